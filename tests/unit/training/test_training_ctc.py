"""CTC from transcripts: a training that learns, and the decoder that reads it."""

import json

import numpy as np
import pytest
import torch
from fixtures.adapted_system import ARPA, LEXICON, write_frames
from fixtures.training_task import training_options

from latflow.align.ctc import build_ctc_tree, compile_ctc
from latflow.criteria.ctc import CtcLoss
from latflow.decode.align import align_network
from latflow.decode.lattices import decode_lattices
from latflow.decode.options import (
    AlignNetworkOptions,
    NetworkScoreOptions,
    SearchOptions,
)
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.graphs.hclg import load_model, make_graph
from latflow.graphs.options import CtcGraphOptions
from latflow.hmm.alignment import pdfs_of
from latflow.kaldi.io import read_int_vectors
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_grammar, make_lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.io.archives import read_lattices
from latflow.ledger import read_ledger
from latflow.nnet.model_dir import load_model as load_network
from latflow.parts import SetJob
from latflow.training.forward import Forward
from latflow.training.options import CeRunOptions, CtcRunOptions, RunOptions
from latflow.training.train import NetworkJob, train_network

CPU = NetworkScoreOptions(device="cpu")
LAYERS = {
    "near": {"class": "tdnn", "from": "data", "size": 32, "offsets": [-2, 0, 2]},
    "thirds": {"class": "tdnn", "size": 32, "offsets": [-3, 0, 3]},
    "slow": {"class": "subsample", "factor": 3},
}
CTC = {"output": {"class": "output", "loss": "ctc"}}


def run(
    task,
    out,
    layers,
    kind: type[RunOptions] = CtcRunOptions,
    decode=None,
    training=None,
    **given,
):
    """Train a network of layers."""
    network = task / f"{out.name}.yaml"
    config = {"layers": {**LAYERS, **layers}}
    network.write_text(
        json.dumps(config if decode is None else {**config, "decode": decode})
    )
    given_options = {
        "data": {
            "sequences": {"type": "utterances"},
            "max_sequences": 4,
            "normalization": "none",
        },
        "training": training_options(
            **{"epochs": 12, "learning_rate": 0.01, "final": "last", **(training or {})}
        ),
        "device": "cpu",
        "seed": 3,
    }
    options = kind.model_validate(given_options)
    arguments = {
        "frames_dir": task / "train",
        "alignments": None,
        "source_dir": task / "chain",
        "dev_frames_dir": task / "dev",
        "dev_alignments": None,
        "graphs_dir": task / "ctc/train",
        "dev_graphs_dir": task / "ctc/dev",
    }
    train_network(
        NetworkJob(
            **{**arguments, **given},
            network=network,
            out_dir=out,
            options=options,
            checkpoints=task / f"checkpoints-{out.name}",
        )
    )
    return json.loads((out / "info.json").read_text())


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Speech of two dimensions, its language, labels and graphs; a trained network."""
    root = tmp_path_factory.mktemp("task")
    write_frames(root / "train", is_distorted=False)
    write_frames(root / "dev", count=6, seed=8, is_distorted=False)
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    (root / "lm.arpa").write_text(ARPA)
    make_grammar(root / "lm.arpa", root / "lang", root / "G.fst")
    build_ctc_tree(root / "lang", root / "chain")
    for split in ("train", "dev"):
        compile_ctc(root / split, root / "lang", root / "ctc" / split, subsampling=3)
    run(root, root / "model", CTC)
    return root


@pytest.fixture(scope="module")
def aligned(task):
    """Alignments of the network's."""
    for split in ("train", "dev"):
        align_network(
            SetJob(
                frames_dir=task / split,
                lang_dir=task / "lang",
                model_dir=task / "model",
                out_dir=task / "ali" / split,
                threads=1,
                max_skipped_fraction=0.0,
            ),
            options=AlignNetworkOptions(acoustic_scale=1.0, scores=CPU),
            graph=CtcGraphOptions(),
        )
    return {split: task / "ali" / split / "ali.ark" for split in ("train", "dev")}


def test_training_learns_what_is_spoken(task):
    info = json.loads((task / "model/info.json").read_text())
    losses = [epoch["loss"] for epoch in info["history"]]
    assert losses[-1] < 0.5 * losses[0]
    assert info["dev"]["failed_frames"] == 0
    model = load_network(task / "model")
    assert model.meta["scores"] == "ctc"
    assert model.has_full_scale
    assert not model.gives_log_likelihoods
    assert (model.lattice_scale, model.prior_scale()) == (10.0, 0.0)
    tree, _ = load_model(task / "model")
    assert model.network.outputs["output"].num_classes == tree.num_pdfs
    priors = np.load(task / "model/priors.npy")
    assert priors.sum() == pytest.approx(1.0, abs=1e-5)
    assert priors[0] == priors.max()  # the blank


def test_the_decoder_reads_it(task, tmp_path):
    make_graph(
        task / "lang",
        task / "G.fst",
        task / "model",
        tmp_path / "HCLG.fst",
        options=CtcGraphOptions(),
    )
    decode_lattices(
        SetJob(
            frames_dir=task / "dev",
            model_dir=task / "model",
            lang_dir=task / "lang",
            out_dir=tmp_path / "decode",
            threads=1,
            max_skipped_fraction=0.0,
        ),
        graph=tmp_path / "HCLG.fst",
        options=SearchOptions(),
        scores=CPU,
    )
    lang, store = Lang.load(task / "lang"), FrameStore.load(task / "dev")
    texts = dict(zip(store.utt_ids, store.texts, strict=True))
    errors = 0
    for utterance, lattice in read_lattices(tmp_path / "decode/lattices.ark"):
        path = best_paths(lattice, [Scales.from_lmwt(10.0, 0.0)])[0]
        heard = " ".join(lang.words[word] for word in path.words)
        errors += heard != texts[utterance]
    assert errors <= 1


def test_alignments_have_all_labels_in_order(task, aligned):
    lang, store = Lang.load(task / "lang"), FrameStore.load(task / "train")
    tree, model = load_model(task / "model")
    found = dict(read_int_vectors(aligned["train"]))
    assert list(found) == store.utt_ids
    spelled = {"A": ["AA", "B"], "B": ["K", "L"], "C": ["M", "N"]}
    label = {lang.base_phone(p): tree.pdf([p], 0) for p in model.topology.phones}
    for utterance, text in zip(store.utt_ids, store.texts, strict=True):
        pdfs = pdfs_of(found[utterance], model)
        said = pdfs[np.flatnonzero(np.diff(pdfs, prepend=-1))]
        wanted = [label[phone] for word in text.split() for phone in spelled[word]]
        assert said[said > 0].tolist() == wanted


def test_cross_entropy_beside_it(task, aligned, tmp_path):
    """Each loss is in the log, and the sum is what is minimized."""
    info = run(
        task,
        tmp_path / "joint",
        {**CTC, "ce": {"class": "output", "from": "slow", "loss_scale": 0.5}},
        alignments=aligned["train"],
        dev_alignments=aligned["dev"],
    )
    dev = info["dev"]
    assert dev["loss"] == pytest.approx(dev["ctc"] + dev["ce"])
    assert dev["frame_errors"] < 0.3
    logged = (tmp_path / "joint/log.jsonl").read_text()
    assert '"ce"' in logged
    assert '"ctc"' in logged
    network = load_network(tmp_path / "joint").network
    assert [*network.outputs] == ["output", "ce"]


def test_two_views_of_each_utterance_are_told_alike(task, tmp_path):
    """Also with a stop on the way, with the same bits."""
    layers = {"drop": {"class": "dropout", "rate": 0.2}, **CTC}
    few = {"consistency": 0.2, "epochs": 3, "log_interval": 1}
    info = run(task, tmp_path / "two", layers, training=few)
    assert info["history"][-1]["loss"] < info["history"][0]["loss"]
    rows = (tmp_path / "two/log.jsonl").read_text().splitlines()
    found = [row for row in map(json.loads, rows) if row["kind"] == "step"]
    assert all(row["consistency"] > 0 for row in found)
    steps, stepped = [], CtcLoss.stepped

    def stop(self, totals):
        steps.append(totals)
        if len(steps) == 4:
            raise RuntimeError("stopped")
        stepped(self, totals)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CtcLoss, "stepped", stop)
        stopped = {**few, "checkpoint_minutes": 1e-9}
        with pytest.raises((RuntimeError, UserError)):
            run(task, tmp_path / "again", layers, training=stopped)
    run(task, tmp_path / "again", layers, training=few)
    one, other = (
        load_network(tmp_path / name).network.state_dict() for name in ("two", "again")
    )
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_ctc_beside_cross_entropy(task, aligned, tmp_path):
    """The other way round: pdfs are decoded, whichever output is named first."""
    layers = {**CTC, "pdfs": {"class": "output", "from": "slow"}}
    labels = {"alignments": aligned["train"], "dev_alignments": aligned["dev"]}
    with pytest.raises(UserError, match="decoded output output has loss ctc"):
        run(task, tmp_path / "wrong", layers, CeRunOptions, **labels)
    run(task, tmp_path / "right", layers, CeRunOptions, decode="pdfs", **labels)
    model = load_network(tmp_path / "right")
    assert [*model.network.outputs] == ["pdfs", "output"]
    assert not model.has_full_scale
    assert model.prior_scale() == 1.0


def test_no_alignments_for_cross_entropy(task, tmp_path):
    layers = {**CTC, "ce": {"class": "output", "from": "slow"}}
    with pytest.raises(UserError, match="there are no alignments"):
        run(task, tmp_path / "none", layers)


def test_features_as_a_second_target(task, tmp_path):
    """An output learns what the frames are, and gives them in their own units."""
    layers = {
        **CTC,
        "copy": {"class": "output", "from": "slow", "loss": "mse", "target": "clean"},
    }
    folders = {"targets_dir": (task / "train",), "dev_targets_dir": (task / "dev",)}
    info = run(task, tmp_path / "mse", layers, **folders)
    dev = info["dev"]
    assert dev["loss"] == pytest.approx(dev["ctc"] + dev["mse"])
    assert dev["mse"] < 0.5  # of a variance of 1
    store = FrameStore.load(task / "dev")
    scored = Forward.load(store, tmp_path / "mse", device="cpu", output="copy")
    for i, (utterance, found) in enumerate(scored):
        assert utterance == store.utt_ids[i]
        wanted = store.frames(i)[::3]
        assert found.shape == wanted.shape
        assert np.abs(found - wanted).mean() < 2.0  # sounds are 5 apart
    labels = Forward.load(store, tmp_path / "mse", device="cpu", output="output")
    _, posteriors = next(iter(labels))
    np.testing.assert_allclose(np.exp(posteriors).sum(1), 1.0, rtol=1e-4)
    with pytest.raises(UserError, match="no output or layer wrong"):
        Forward.load(store, tmp_path / "mse", device="cpu", output="wrong")
    with pytest.raises(UserError, match="0 are given"):
        run(task, tmp_path / "none", layers)


def test_utterances_too_short_for_their_labels_are_in_the_ledger(task, tmp_path):
    store = FrameStore.load(task / "train")
    with FrameWriter(tmp_path / "train", dim=store.dim, frame_shift=0.01) as writer:
        for i, (name, text) in enumerate(zip(store.utt_ids, store.texts, strict=True)):
            writer.append(name, "s", text, store.frames(i)[: None if i else 3])
    short = store.utt_ids[0]
    run(task, tmp_path / "model", CTC, frames_dir=tmp_path / "train")
    (found,) = read_ledger(tmp_path / "model/ledger.jsonl")
    assert (found.utterance, found.action) == (short, "skipped")
    assert "fewer frames of the output than its labels" in found.reason
