"""A decoder with attention: trained on transcripts, decoded, scored."""

import json

import numpy as np
import pytest
from fixtures.adapted_system import ARPA, LEXICON, SOUND, WORDS
from fixtures.training_task import training_options

from latflow.align.ctc import build_ctc_tree
from latflow.align.units import spell_transcripts
from latflow.decode.attention import AttentionRecognizer, decode_attention
from latflow.decode.options import AttentionDecodeOptions, NetworkScoreOptions
from latflow.decode.scorers import load_scorer
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_grammar, make_lang
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.io.archives import read_lattices
from latflow.ledger import read_ledger
from latflow.nnet.model_dir import load_model
from latflow.parts import SetJob
from latflow.scoring.score import Transcriber
from latflow.training.options import AttentionRunOptions
from latflow.training.train import NetworkJob, train_network

SHIFT = 0.01
DECODER = {
    "class": "attention_decoder",
    "from": "encoder",
    "loss": "attention",
    "units": 32,
    "embedding": 16,
    "attention_size": 24,
    "filters": 4,
    "reach": 3,
}
LAYERS = {
    "near": {"class": "splice", "from": "data", "left": 1, "right": 1},
    "pairs": {"class": "subsample", "factor": 2},
    "encoder": {"class": "rec", "size": 16},
    "decoder": DECODER,
    "labels": {
        "class": "output",
        "from": "encoder",
        "loss": "ctc",
        "loss_scale": 0.5,
    },
}


def write_speech(folder, *, count, seed):
    """One or two words of phones with a mean each; true first frames of the words."""
    rng = np.random.default_rng(seed)
    begins = {}
    with FrameWriter(folder, dim=2, frame_shift=SHIFT) as writer:
        for n in range(count):
            words = rng.choice(list(WORDS), rng.integers(1, 3)).tolist()
            phones = ["SIL", *(p for word in words for p in WORDS[word]), "SIL"]
            lengths = rng.integers(3, 5, len(phones))
            mean = np.repeat([SOUND[p] for p in phones], lengths, axis=0)
            frames = mean + rng.normal(0, 0.3, mean.shape)
            name = f"u{n:03}"
            writer.append(name, "s", " ".join(words), frames.astype(np.float32))
            begins[name] = np.cumsum(lengths)[0:-2:2].tolist()
    return begins


def train(task, out, layers, *, epochs=30, units="units", **training):
    """Train a network of layers."""
    network = task / f"{out.name}.yaml"
    network.write_text(json.dumps({"layers": layers}))
    given = {
        "data": {"max_sequences": 8, "buckets": 3, "normalization": "none"},
        "training": training_options(
            epochs=epochs,
            learning_rate=0.02,
            final="last",
            schedule={"type": "cosine", "final_ratio": 0.1},
            **training,
        ),
        "device": "cpu",
        "seed": 3,
    }
    train_network(
        NetworkJob(
            frames_dir=task / "train",
            alignments=None,
            source_dir=task / "chain",
            dev_frames_dir=task / "dev",
            dev_alignments=None,
            network=network,
            out_dir=out,
            options=AttentionRunOptions.model_validate(given),
            checkpoints=task / f"checkpoints-{out.name}",
            graphs_dir=task / units / "train",
            dev_graphs_dir=task / units / "dev",
        )
    )
    return json.loads((out / "info.json").read_text())


def decode(task, out, model="model", **options):
    decode_attention(
        SetJob(
            frames_dir=task / "dev",
            model_dir=task / model,
            lang_dir=task / "lang",
            out_dir=out,
        ),
        grammar=task / "G.fst",
        options=AttentionDecodeOptions(**options),
        device="cpu",
    )


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Speech of two dimensions, its language and units; a trained network."""
    root = tmp_path_factory.mktemp("task")
    write_speech(root / "train", count=40, seed=3)
    begins = write_speech(root / "dev", count=10, seed=3)  # learnt by heart
    (root / "begins.json").write_text(json.dumps(begins))
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    (root / "lm.arpa").write_text(ARPA)
    make_grammar(root / "lm.arpa", root / "lang", root / "G.fst")
    build_ctc_tree(root / "lang", root / "chain")
    for split in ("train", "dev"):
        folder = root / "units" / split
        spell_transcripts(
            root / split, root / "lang", folder, kind="phone", subsampling=2
        )
    train(root, root / "model", LAYERS)
    return root


@pytest.fixture(scope="module")
def decoded(task):
    """The folder of what dev was decoded to."""
    decode(task, task / "decode")
    return task / "decode"


@pytest.mark.slow
def test_training_learns_units_and_labels_together(task):
    info = json.loads((task / "model/info.json").read_text())
    dev = info["dev"]
    assert dev["loss"] == pytest.approx(dev["attention"] + dev["ctc"])
    assert dev["unit_errors"] < 0.1 * dev["units"]
    assert dev["loss"] < 0.3 * info["history"][0]["loss"]
    assert dev["failed_frames"] == 0
    model = load_model(task / "model")
    assert model.meta["scores"] == "attention"
    assert model.meta["units"]["kind"] == "phone"
    assert model.meta["units"]["names"][0] == "</s>"
    assert [*model.network.outputs] == ["decoder", "labels"]
    assert model.log_priors is None
    assert model.lattice_scale == 10.0


def test_words_are_found_and_scored_as_of_other_systems(task, decoded):
    store = FrameStore.load(task / "dev")
    texts = dict(zip(store.utt_ids, store.texts, strict=True))
    begins = json.loads((task / "begins.json").read_text())
    scales = Scales.from_lmwt(3.0, 0.0)
    by_decision = {
        decision: Transcriber.load(
            task / "lang",
            task / "model",
            scales=scales,
            frame_shift=SHIFT,
            decision=decision,
        )
        for decision in ("best_path", "mbr")
    }
    found = dict(read_lattices(decoded / "lattices.ark"))
    assert list(found) == store.utt_ids
    wrong = dict.fromkeys(by_decision, 0)
    for i, (utterance, lattice) in enumerate(found.items()):
        path = best_paths(lattice, [scales])[0]
        assert len(path.transition_ids) == -(-len(store.frames(i)) // 2)
        for decision, transcriber in by_decision.items():
            told = transcriber((utterance, lattice))
            words = [word.word for word in told.words]
            wrong[decision] += words != texts[utterance].split()
        told = by_decision["best_path"]((utterance, lattice))
        words = [word.word for word in told.words]
        phones = [lang_phone(p.word) for p in told.phones if p.word != "SIL"]
        assert phones == [phone for word in words for phone in WORDS[word]]
        starts = [word.start for word in told.words]
        assert starts == sorted(starts)
        if words == texts[utterance].split():
            ahead = np.array(starts) - SHIFT * np.array(begins[utterance])
            assert np.abs(ahead).max() < 0.3  # the attention's, rough
    assert max(wrong.values()) <= 1  # of 10
    summary = json.loads((decoded / "decode.json").read_text())
    assert summary["utterances"] == len(texts)
    assert summary["real_time_factor_per_core"]["both"] > 0
    assert not list(read_ledger(decoded / "ledger.jsonl"))


def lang_phone(name):
    return name.rpartition("_")[0] or name


def test_lattices_hold_the_search_scores(task, decoded):
    """The best path with the weight of the search is the best that was found."""
    recognizer = AttentionRecognizer.load(
        task / "model", task / "lang", task / "G.fst", AttentionDecodeOptions(), "cpu"
    )
    store = FrameStore.load(task / "dev")
    values, lengths = recognizer.encode([store.frames(0), store.frames(1)])
    found = recognizer.search(values, lengths)
    lattices = dict(read_lattices(decoded / "lattices.ark"))
    for utterance, paths in zip(store.utt_ids, found, strict=False):
        lm_scale = recognizer.options.lm_scale
        scales = Scales(lm_scale, 1 / recognizer.model.lattice_scale, 0.0)
        best = best_paths(lattices[utterance], [scales])[0]
        first = paths[0]
        words = [recognizer.tree.entries[n].word for n in first.entries]
        assert best.words.tolist() == words
        assert best.graph_cost == pytest.approx(first.lm_cost, rel=1e-4)
        assert best.acoustic_cost == pytest.approx(-10 * first.acoustic, rel=1e-3)


def test_options_of_the_search_change_what_is_found(task, tmp_path):
    lengths = {}
    for name, bonus in (("short", -20.0), ("long", 4.0)):
        decode(task, tmp_path / name, length_bonus=bonus, beam=4)
        lattices = read_lattices(tmp_path / name / "lattices.ark")
        scales = [Scales.from_lmwt(3.0, 0.0)]
        lengths[name] = [len(best_paths(one, scales)[0].words) for _, one in lattices]
    assert sum(lengths["short"]) == 0
    assert sum(lengths["long"]) > 10


@pytest.mark.parametrize("kind", ["character", "word"])
def test_other_units_and_options_of_training(task, tmp_path, kind):
    for split in ("train", "dev"):
        spell_transcripts(
            task / split,
            task / "lang",
            task / kind / split,
            kind=kind,
            subsampling=2,
        )
    layers = {**LAYERS, "decoder": {**DECODER, "sampling": 0.2, "dropout": 0.1}}
    info = train(
        task, task / f"model_{kind}", layers, epochs=1, units=kind, label_smoothing=0.1
    )
    assert np.isfinite(info["dev"]["loss"])
    decode(task, tmp_path / "decode", f"model_{kind}", beam=2, coverage=0.1)
    assert len(list(read_lattices(tmp_path / "decode/lattices.ark"))) == 10


def test_what_does_not_fit_is_refused(task, tmp_path):
    with pytest.raises(UserError, match="no scores of frames"):
        load_scorer(task / "dev", task / "model", NetworkScoreOptions(device="cpu"))
    with pytest.raises(UserError, match="decoded output labels has loss ctc"):
        layers = {k: v for k, v in LAYERS.items() if k != "decoder"}
        train(task, tmp_path / "ctc", layers)
    (tmp_path / "lexicon.txt").write_text("A AA\n")
    make_lang(tmp_path / "lexicon.txt", tmp_path / "lang", options=LangOptions())
    with pytest.raises(UserError, match="has other units"):
        AttentionRecognizer.load(
            task / "model",
            tmp_path / "lang",
            task / "G.fst",
            AttentionDecodeOptions(),
            "cpu",
        )


def test_utterances_whose_search_ends_in_vain_are_in_the_ledger(task, tmp_path):
    """A word takes a frame of the output for each phone: one frame holds none."""
    with FrameWriter(tmp_path / "dev", dim=2, frame_shift=SHIFT) as writer:
        writer.append("u1", "s", "A", np.zeros((1, 2), np.float32))

    def run(most):
        decode_attention(
            SetJob(
                frames_dir=tmp_path / "dev",
                model_dir=task / "model",
                lang_dir=task / "lang",
                out_dir=tmp_path / "decode",
                max_skipped_fraction=most,
            ),
            grammar=task / "G.fst",
            options=AttentionDecodeOptions(beam=1, length_bonus=20.0),
            device="cpu",
        )

    run(1.0)
    assert not list(read_lattices(tmp_path / "decode/lattices.ark"))
    (entry,) = read_ledger(tmp_path / "decode/ledger.jsonl")
    assert entry.utterance == "u1"
    assert "no sequence of words was finished" in entry.reason
    with pytest.raises(UserError, match="1 of 1"):
        run(0.0)
