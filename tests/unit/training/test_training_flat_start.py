"""LF-MMI from transcripts alone: tree, supervision, and a training that learns."""

import json

import numpy as np
import pytest
from fixtures.adapted_system import LEXICON, WORDS, write_frames
from fixtures.training_task import training_options

from latflow.align.flat_start import FlatStartSupervisions, supervise_flat_start
from latflow.align.full_tree import PhoneSampler, build_full_tree
from latflow.criteria.numerator import numerator_posteriors
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.graphs.hclg import load_model
from latflow.graphs.options import ChainTreeOptions
from latflow.graphs.training import TrainingGraphCompiler
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger
from latflow.nnet.model_dir import load_model as load_network
from latflow.training.data_options import LfmmiDataOptions, UtteranceOptions
from latflow.training.lfmmi import LfmmiJob, train_lfmmi
from latflow.training.options import LfmmiRunOptions

NETWORK = {
    "edges": "repeat",
    "layers": {
        "near": {"class": "tdnn", "from": "data", "size": 24, "offsets": [-1, 0, 1]},
        "thirds": {"class": "tdnnf", "size": 24, "bottleneck": 8, "stride": 3},
        "output": {"class": "output", "loss": "lfmmi"},
        "xent": {"class": "output", "from": "thirds"},
    },
}


def build_tree(task, out, **options):
    build_full_tree(
        task / "train",
        task / "lang",
        out,
        options=ChainTreeOptions(**{"context_width": 1, **options}),
        seed=5,
    )


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """Speech of two dimensions, its language, tree and supervision."""
    root = tmp_path_factory.mktemp("task")
    write_frames(root / "train", is_distorted=False)
    write_frames(root / "dev", count=6, seed=8, is_distorted=False)
    (root / "lexicon.txt").write_text(LEXICON)
    make_lang(root / "lexicon.txt", root / "lang", options=LangOptions())
    build_tree(root, root / "chain")
    for split in ("train", "dev"):
        out = root / "supervisions" / split
        supervise_flat_start(root / split, root / "lang", root / "chain", out)
    (root / "network.yaml").write_text(json.dumps(NETWORK))
    return root


def test_draws_are_what_the_lexicon_allows(task):
    """Each draw is a row of words' phones, silences between them or not."""
    lang = Lang.load(task / "lang")
    compiler = TrainingGraphCompiler(lang, *load_model(task / "chain"))
    sampler = PhoneSampler(compiler, seed=5)
    words = lang.words_to_ids("A C B")
    drawn = [tuple(draw) for draw in sampler.draw("one", words, 300)]
    silence = lang.optional_silence
    spoken = [lang.base_phone(p) for p in drawn[0] if p != silence]
    assert spoken == [*WORDS["A"], *WORDS["C"], *WORDS["B"]]
    # silence is as likely as none, at both ends and between words
    assert len(set(drawn)) == 2**4
    shares = [np.mean([d[at] == silence for d in drawn]) for at in (0, -1)]
    assert shares == pytest.approx([0.5, 0.5], abs=0.1)
    again = PhoneSampler(compiler, seed=5).draw("one", words, 300)
    assert [tuple(draw) for draw in again] == drawn
    assert [tuple(d) for d in sampler.draw("two", words, 300)] != drawn


@pytest.mark.parametrize("split", ["train", "dev"])
def test_every_utterance_has_a_path_of_its_length(task, split):
    store = FlatStartSupervisions.load(task / "supervisions" / split)
    frames = FrameStore.load(task / split)
    assert store.utt_ids == frames.utt_ids
    for i in range(len(store)):
        num_frames = -(-len(frames.frames(i)) // 3)
        assert store.num_frames[i] == num_frames
        scores = np.zeros((num_frames, store.meta["num_pdfs"]))
        graph = store.chunk(i, 0, num_frames)
        assert -np.inf < numerator_posteriors(scores, graph) < 0.0
    with pytest.raises(ValueError, match="cannot be cut"):
        store.chunk(0, 3, 5)


def test_what_cannot_be_supervised_is_in_the_ledger(task, tmp_path):
    short, whole = np.zeros((26, 2), np.float32), np.zeros((27, 2), np.float32)
    with FrameWriter(tmp_path / "frames", dim=2) as writer:
        writer.append("empty", "s", "", whole)
        writer.append("short", "s", "A B C A B", short)
        writer.append("whole", "s", "A B C A", whole)
    folders = tmp_path / "frames", task / "lang", task / "chain"
    supervise_flat_start(*folders, tmp_path / "out")
    entries = list(read_ledger(tmp_path / "out/ledger.jsonl"))
    assert {e.stage for e in entries} == {"supervise_flat_start"}
    reasons = {e.utterance: e.reason for e in entries}
    assert reasons == {
        "empty": "the transcript is empty",
        "short": "has 9 frames, its phones need 10",
    }
    with pytest.raises(UserError, match="2 of 3"):
        supervise_flat_start(*folders, tmp_path / "other", max_skipped_fraction=0.5)


def test_a_language_model_that_does_not_know_a_transcript(task, tmp_path):
    """Its supervision has no weights, and is counted."""
    for split, text in (("train", "A A B C"), ("dev", "C C B")):
        with FrameWriter(tmp_path / split, dim=2) as writer:
            writer.append("one", "s", text, np.zeros((60, 2), np.float32))
    (tmp_path / "lang").symlink_to(task / "lang")
    build_tree(tmp_path, tmp_path / "chain")
    out = tmp_path / "out"
    supervise_flat_start(tmp_path / "dev", task / "lang", tmp_path / "chain", out)
    store = FlatStartSupervisions.load(out)
    assert store.meta["refused"] == 1
    assert not store.chunk(0, 0, 20).weight.any()


def test_a_tree_of_all_pairs(task, tmp_path):
    build_tree(task, tmp_path, context_width=2)
    tree, transitions = load_model(tmp_path)
    lang = Lang.load(task / "lang")
    assert (tree.context_width, tree.central_position) == (2, 1)
    (entry,) = read_ledger(tmp_path / "ledger.jsonl")
    info = json.loads((tmp_path / "info.json").read_text())
    missing = info["num_pdfs"] - info["pdfs_in_denominator"]
    assert missing > 0
    assert (entry.stage, entry.action) == ("build_full_tree", "noted")
    told = f"{missing} of {info['num_pdfs']} pdfs are not in the denominator"
    assert entry.reason.startswith(told)
    assert tree.num_pdfs == transitions.num_pdfs
    alone = [s for s in lang.phone_sets if set(s) <= set(lang.context_independent)]
    rest = len(lang.phone_sets) - len(alone)
    windows = len(alone) + rest * (1 + len(lang.phone_sets))
    assert tree.num_pdfs == 2 * windows
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["pdfs_in_denominator"] < info["num_pdfs"]


def test_training_learns_what_is_spoken(task, tmp_path):
    options = LfmmiRunOptions(
        data=LfmmiDataOptions(
            sequences=UtteranceOptions(), max_sequences=4, normalization="none"
        ),
        training=training_options(
            epochs=6, learning_rate=0.01, max_change=2.0, final="last"
        ),
        device="cpu",
        seed=3,
    )
    train_lfmmi(
        LfmmiJob(
            frames_dir=task / "train",
            supervisions_dir=task / "supervisions/train",
            dev_frames_dir=task / "dev",
            dev_supervisions_dir=task / "supervisions/dev",
            chain_dir=task / "chain",
            network=task / "network.yaml",
            out_dir=tmp_path / "model",
            options=options,
            checkpoints=tmp_path / "checkpoints",
        )
    )
    info = json.loads((tmp_path / "model/info.json").read_text())
    objectives = [epoch["objective"] for epoch in info["history"]]
    assert objectives[-1] > objectives[0]
    assert -0.3 < objectives[-1] < 0.0
    assert info["dev"]["failed_frames"] == 0
    assert load_network(tmp_path / "model").meta["scores"] == "log_likelihoods"
