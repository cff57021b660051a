"""The training and alignment stages on made-up data, good and bad."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from fixtures.adapted_system import history

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.transform import Deltas
from latflow.gmm.alignment import align_gmm
from latflow.gmm.estep import Statistics, accumulate
from latflow.gmm.model import AcousticModel
from latflow.gmm.options import (
    AlignAdaptedOptions,
    DeltasOptions,
    MonoOptions,
    SharedOptions,
)
from latflow.gmm.source import FrameSource
from latflow.gmm.train import (
    DeltasJob,
    MonoJob,
    known_alignments,
    train_deltas,
    train_mono,
)
from latflow.graphs.options import GraphOptions
from latflow.hmm.tree import ContextDependency
from latflow.kaldi.io import read_int_vectors, write_int_vectors
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.ledger import read_ledger
from latflow.parallel import worker_pool
from latflow.parts import SetJob

align = partial(align_gmm, graph=GraphOptions())

LEXICON = "A AA B\nB B AA\nC K\n<UNK> SPN\n"
WORDS = {"A": ["AA", "B"], "B": ["B", "AA"], "C": ["K"]}
SOUND = {"SIL": 0.0, "AA": 4.0, "B": -4.0, "K": 8.0}


def speech(rng, words):
    """Frames [T, 2] of words between silences; each phone has its own mean."""
    phones = ["SIL", *(p for w in words for p in WORDS[w]), "SIL"]
    blocks = []
    for phone in phones:
        length = int(rng.integers(8, 14))
        mean = np.array([SOUND[phone], -0.5 * SOUND[phone]])
        blocks.append(mean + rng.normal(0, 1, (length, 2)))
    return np.concatenate(blocks).astype(np.float32)


def write_store(folder, extra=(), count=24):
    rng = np.random.default_rng(3)
    with FrameWriter(folder, dim=2) as writer:
        for n in range(count):
            words = rng.choice(list(WORDS), 4).tolist()
            frames = speech(rng, words)
            writer.append(f"u{n:02}", f"s{n % 3}", " ".join(words), frames)
        for name, text, frames in extra:
            writer.append(name, "s0", text, frames)
    return folder


@pytest.fixture(scope="module")
def lang(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("lang")
    (folder / "lexicon.txt").write_text(LEXICON)
    options = LangOptions()
    make_lang(folder / "lexicon.txt", folder / "lang", options=options)
    return folder / "lang"


SHARED = SharedOptions(transform={"type": "deltas", "order": 1})


@pytest.fixture(scope="module")
def options():
    return {
        "mono": MonoOptions(
            num_iterations=8, num_gaussians=40, last_increase_iteration=4
        ),
        "tri": DeltasOptions(
            alignments="mono",
            num_iterations=6,
            num_leaves=30,
            num_gaussians=60,
            split_threshold=10.0,
            last_increase_iteration=3,
            realign_iterations=[2, 4],
        ),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory, lang, options):
    """Both systems, trained, with the alignments between them."""
    root = tmp_path_factory.mktemp("gmm")
    frames = write_store(root / "frames")
    run(train_mono, frames, lang, root / "mono", options=options["mono"])
    run(align, frames, lang, root / "mono", root / "ali", options=AlignAdaptedOptions())
    run(
        train_deltas,
        frames,
        lang,
        root / "ali/ali.ark",
        root / "mono",
        root / "tri",
        options=options["tri"],
    )
    return root


JOBS = {
    align: (SetJob, ("frames_dir", "lang_dir", "model_dir", "out_dir")),
    train_mono: (MonoJob, ("frames_dir", "lang_dir", "out_dir")),
    train_deltas: (
        DeltasJob,
        ("frames_dir", "lang_dir", "alignments", "source_dir", "out_dir"),
    ),
}


def run(stage, *paths, options, threads=1, allowed=0.05, **changes):
    kind, names = JOBS[stage]
    given = dict(zip(names, paths, strict=True))
    given |= {"threads": threads, "max_skipped_fraction": allowed}
    if stage is align:
        stage(kind(**given), options=options)
    else:
        stage(kind(**given, options=options, shared=SHARED.replace(**changes)))


def test_mono_learns_and_describes_itself(trained, options):
    rows = history(trained / "mono")
    assert [row["phase"] for row in rows[:2]] == ["equal", "realign"]
    assert [int(row["iter"]) for row in rows] == list(range(8))
    likes = [float(row["log_like_per_frame"]) for row in rows]
    assert likes[-1] > likes[0] + 0.5
    info = json.loads((trained / "mono/info.json").read_text())
    model = AcousticModel.load(trained / "mono/final.mdl")
    assert info["num_gaussians"] == model.gmms.num_gaussians
    assert info["options"] == {**options["mono"].values(), **SHARED.values()}
    assert info["num_utterances"] == 24
    tree = ContextDependency.load(trained / "mono/tree")
    assert tree.num_pdfs == model.gmms.num_pdfs == model.transitions.num_pdfs


def test_alignments_find_the_phones(trained):
    paths = dict(read_int_vectors(trained / "ali/ali.ark"))
    assert list(paths) == [f"u{n:02}" for n in range(24)]
    statistics = json.loads((trained / "ali/statistics.json").read_text())
    assert statistics["num_aligned"] == 24
    assert statistics["num_failed"] == 0
    assert statistics["num_frames"] == statistics["frames"]
    assert 0.15 < statistics["silence_share"] < 0.35
    means = [p["mean_frames"] for p in statistics["phones"].values()]
    assert 6 < np.mean(means) < 16


def test_statistics_add_up_over_chunks(trained):
    store = FrameStore.load(trained / "frames")
    model = AcousticModel.load(trained / "mono/final.mdl")
    found = []
    for chunk_bytes, threads in ((10**7, 1), (4000, 1), (4000, 4)):
        source = FrameSource(
            store, Deltas(order=1), np.arange(len(store)), chunk_bytes=chunk_bytes
        )
        paths = [p for _, p in known_alignments(source, trained / "ali/ali.ark")]
        alignment = np.concatenate(paths)
        alignment[: source.begin[1]] = 0  # the first utterance is not aligned
        with worker_pool(threads) as pool:
            found.append(accumulate(model, source, alignment, pool))
    whole, chunks, threaded = found
    np.testing.assert_array_equal(chunks.moments, threaded.moments)
    assert chunks.log_like == threaded.log_like
    np.testing.assert_allclose(whole.moments, chunks.moments, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(whole.transitions, chunks.transitions)
    assert whole.num_frames == source.num_frames - source.begin[1]
    assert whole.transitions.sum() == whole.num_frames
    assert whole.occupancy.sum() == pytest.approx(whole.num_frames)
    zeros = Statistics.zeros(model)
    np.testing.assert_array_equal((zeros + whole).moments, whole.moments)
    assert zeros.log_like_per_frame == 0.0


def test_triphones_are_better_than_monophones(trained):
    rows = history(trained / "tri")
    assert [row["phase"] for row in rows] == [
        "keep",
        "realign",
        "keep",
        "realign",
        "keep",
    ]
    mono = history(trained / "mono")
    likes = [float(r[-1]["log_like_per_frame"]) for r in (mono, rows)]
    assert likes[1] > likes[0]
    tree = ContextDependency.load(trained / "tri/tree")
    assert tree.context_width == 3


def test_threads_do_not_change_the_model(trained, lang, options, tmp_path):
    frames = trained / "frames"
    run(train_mono, frames, lang, tmp_path / "mono", options=options["mono"], threads=3)
    ours = (trained / "mono/final.mdl").read_bytes()
    assert (tmp_path / "mono/final.mdl").read_bytes() == ours


def test_seed_changes_the_model(trained, lang, options, tmp_path):
    frames, out = trained / "frames", tmp_path / "mono"
    run(train_mono, frames, lang, out, options=options["mono"], seed=2)
    ours = (trained / "mono/final.mdl").read_bytes()
    assert (tmp_path / "mono/final.mdl").read_bytes() != ours


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_clear_line(trained, lang, options, tmp_path):
    frames, out = trained / "frames", tmp_path / "mono"
    with pytest.raises(UserError, match=r"gmm\.device.*cuda.*set gmm\.device: cpu"):
        run(train_mono, frames, lang, out, options=options["mono"], device="cuda")
    assert not (tmp_path / "mono").exists()


def test_what_cannot_be_aligned_is_in_the_ledger(trained, lang, options, tmp_path):
    rng = np.random.default_rng(0)
    good = speech(rng, ["A", "B"])
    bad = good.copy()
    bad[5, 1] = np.nan
    extra = [
        ("v0", "A B C A B C A", good[:12]),
        ("v1", "A B", bad),
        ("v2", "", good),
        ("v3", "A B", good[:0]),
    ]
    frames = write_store(tmp_path / "frames", extra)
    stage = AlignAdaptedOptions()
    out = tmp_path / "ali"
    run(align, frames, lang, trained / "mono", out, options=stage, allowed=0.2)
    reasons = {e.utterance: e.reason for e in read_ledger(out / "ledger.jsonl")}
    assert reasons["v0"].startswith("too short: 12 frames")
    assert "not finite" in reasons["v1"]
    assert "empty" in reasons["v2"]
    assert reasons["v3"].startswith("too short: 0 frames")
    assert set(dict(read_int_vectors(out / "ali.ark"))) == {
        f"u{n:02}" for n in range(24)
    }
    with pytest.raises(UserError, match="skipped 4 of 28 utterances"):
        run(align, frames, lang, trained / "mono", tmp_path / "no", options=stage)
    assert not (tmp_path / "no/ali.ark").exists()
    assert (tmp_path / "no/ledger.jsonl").exists()


def test_training_leaves_out_what_cannot_be_aligned(lang, options, tmp_path):
    frame = np.zeros((3, 2), np.float32)
    frames = write_store(tmp_path / "frames", [("v0", "A B C", frame)])
    run(train_mono, frames, lang, tmp_path / "mono", options=options["mono"])
    entries = list(read_ledger(tmp_path / "mono/ledger.jsonl"))
    assert [(e.utterance, e.action) for e in entries] == [("v0", "skipped")]
    assert int(history(tmp_path / "mono")[-1]["num_utterances"]) == 24
    with pytest.raises(UserError, match="skipped 1 of 25"):
        run(
            train_mono,
            frames,
            lang,
            tmp_path / "strict",
            options=options["mono"],
            allowed=0.0,
        )
    assert not (tmp_path / "strict/final.mdl").exists()


def test_nothing_is_left_beside_a_system(trained):
    assert sorted(p.name for p in trained.iterdir()) == ["ali", "frames", "mono", "tri"]
    assert sorted(p.name for p in (trained / "tri").iterdir()) == [
        "final.mdl",
        "info.json",
        "iterations.tsv",
        "ledger.jsonl",
        "transform.json",
        "tree",
    ]


def test_only_short_utterances_are_an_error(lang, options, tmp_path):
    rng = np.random.default_rng(0)
    with FrameWriter(tmp_path / "frames", dim=2) as writer:
        writer.append("u", "s", "A B C A", rng.normal(size=(4, 2)))
    with pytest.raises(UserError, match="no utterance is long enough"):
        run(
            train_mono,
            tmp_path / "frames",
            lang,
            tmp_path / "mono",
            options=options["mono"],
        )
    assert not (tmp_path / "mono").exists()


def test_alignments_of_other_features_are_refused(trained, lang, options, tmp_path):
    paths = dict(read_int_vectors(trained / "ali/ali.ark"))
    paths["u03"] = paths["u03"][:-1]
    write_int_vectors(tmp_path / "ali.ark", sorted(paths.items()))
    with pytest.raises(UserError, match="u03: .* frames aligned, but the features"):
        run(
            train_deltas,
            trained / "frames",
            lang,
            tmp_path / "ali.ark",
            trained / "mono",
            tmp_path / "tri",
            options=options["tri"],
        )


def test_alignments_of_other_utterances_are_refused(trained, lang, options, tmp_path):
    write_int_vectors(tmp_path / "ali.ark", [("x", np.array([1], np.int32))])
    with pytest.raises(UserError, match="no utterance of the training data is aligned"):
        run(
            train_deltas,
            trained / "frames",
            lang,
            tmp_path / "ali.ark",
            trained / "mono",
            tmp_path / "tri",
            options=options["tri"],
        )
