"""The stage that trains on LDA and MLLT features, on made-up data, good and bad."""

import json
import logging

import numpy as np
import pytest
from fixtures.adapted_system import history

from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.features.transform import Chain, Linear, Splice
from latflow.gmm.alignment import align_gmm
from latflow.gmm.lda_mllt import LdaMlltJob, pdfs_without, train_lda_mllt
from latflow.gmm.mllt import transform_means
from latflow.gmm.model import AcousticModel, GmmSystem
from latflow.gmm.options import (
    AlignAdaptedOptions,
    DeltasOptions,
    LdaMlltOptions,
    MonoOptions,
    SharedOptions,
)
from latflow.gmm.train import DeltasJob, MonoJob, train_deltas, train_mono
from latflow.gmm.training import Kind, Training
from latflow.graphs.options import GraphOptions
from latflow.kaldi.io import KaldiReader
from latflow.lang.directory import Lang
from latflow.lang.options import LangOptions
from latflow.lang.prepare import make_lang
from latflow.parts import SetJob

LEXICON = "A AA B\nB B AA\nC K\n<UNK> SPN\n"
WORDS = {"A": ["AA", "B"], "B": ["B", "AA"], "C": ["K"]}
SOUND = {"SIL": 0.0, "AA": 4.0, "B": -4.0, "K": 8.0}
SPEAKERS = 3


def write_frames(folder):
    """Utterances of phones with a mean each; two features that correlate, and noise."""
    rng = np.random.default_rng(3)
    with FrameWriter(folder, dim=3) as writer:
        for n in range(24):
            words = rng.choice(list(WORDS), 4).tolist()
            phones = ["SIL", *(p for w in words for p in WORDS[w]), "SIL"]
            lengths = rng.integers(8, 14, len(phones))
            mean = np.repeat([SOUND[p] for p in phones], lengths)[:, None]
            noise = rng.normal(0, 1, (lengths.sum(), 3))
            frames = mean * [1.0, -0.5, 0.0] + noise @ [
                [1, 0.8, 0],
                [0, 0.6, 0],
                [0, 0, 1],
            ]
            writer.append(
                f"u{n:02}",
                f"s{n % SPEAKERS}",
                " ".join(words),
                frames.astype(np.float32),
            )
    return folder


SHARED = SharedOptions(transform={"type": "deltas", "order": 1})


@pytest.fixture(scope="module")
def options():
    """Options of small systems by name, and of alignment."""
    small = {
        "num_iterations": 8,
        "num_gaussians": 40,
        "last_increase_iteration": 4,
        "realign_iterations": [1, 3, 5],
    }
    tree = {"alignments": "mono", "num_leaves": 24, "split_threshold": 10.0}
    lda = {"lda_dim": 5, "splice_left": 2, "splice_right": 1}
    return {
        "mono": MonoOptions(**small),
        "tri2": LdaMlltOptions(**lda, **tree, **small, mllt_iterations=[2, 4]),
        "lda": LdaMlltOptions(**lda, **tree, **small, mllt_iterations=[]),
        "tri1": DeltasOptions(**tree, **small, subset_shortest=9),
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory, options, request):
    """Monophones, their alignments, and `tri2` on top."""
    root = tmp_path_factory.mktemp("lda_mllt")
    frames, lang = write_frames(root / "frames"), root / "lang"
    (root / "lexicon.txt").write_text(LEXICON)
    lang_options = LangOptions()
    make_lang(root / "lexicon.txt", lang, options=lang_options)
    limits = {"threads": 1, "max_skipped_fraction": 0.05}
    mono = {"options": options["mono"], "shared": SHARED, "threads": 1}
    train_mono(MonoJob(**mono, frames_dir=frames, lang_dir=lang, out_dir=root / "mono"))
    align_gmm(
        SetJob(
            frames_dir=frames,
            lang_dir=lang,
            model_dir=root / "mono",
            out_dir=root / "ali",
            **limits,
        ),
        options=AlignAdaptedOptions(),
        graph=GraphOptions(),
    )
    train(root, root / "tri2", options["tri2"])
    return root


def train(root, out, options, *, stage=train_lda_mllt, threads=1):
    source = root / "ali/ali.ark"
    kind = LdaMlltJob if stage is train_lda_mllt else DeltasJob
    job = kind(
        frames_dir=root / "frames",
        lang_dir=root / "lang",
        alignments=source,
        source_dir=root / "mono",
        out_dir=out,
        options=options,
        shared=SHARED,
        threads=threads,
    )
    stage(job)


def matrix_of(path):
    with KaldiReader.open(path) as reader:
        return reader.float_matrix()


def test_system_lies_in_its_folder_with_all_matrices(trained):
    assert sorted(p.name for p in (trained / "tri2").iterdir()) == [
        "final.mat",
        "final.mdl",
        "full.mat",
        "info.json",
        "iterations.tsv",
        "ledger.jsonl",
        "splice_opts",
        "transform.json",
        "tree",
    ]
    system = GmmSystem.load(trained / "tri2")
    final, full = (matrix_of(trained / "tri2" / n) for n in ("final.mat", "full.mat"))
    assert final.shape == (5, 12)
    assert full.shape == (12, 12)
    # MLLT turns the directions of LDA, it never adds one.
    _, residuals, *_ = np.linalg.lstsq(full[:5].T.astype(float), final.T, rcond=None)
    assert residuals.max() < 1e-8 * np.square(final).sum()
    assert (trained / "tri2/splice_opts").read_text() == (
        "--left-context=2 --right-context=1\n"
    )
    frames = FrameStore.load(trained / "frames").frames(0)
    expected = Chain([Splice(2, 1), Linear(final)])(frames)
    np.testing.assert_array_equal(system.transform(frames), expected)
    assert system.model.gmms.dim == 5
    assert not system.is_speaker_adapted


def test_mllt_gains_where_it_is_estimated(trained):
    rows = history(trained / "tri2")
    gains = [row["transform_gain"] for row in rows]
    assert [bool(gain) for gain in gains] == [row["iter"] in "24" for row in rows]
    assert all(float(gain) > -1e-9 for gain in gains if gain)
    assert float(gains[1]) > 0.05  # the first finds the correlation of the features
    info = json.loads((trained / "tri2/info.json").read_text())
    assert info["mllt_gain_per_frame"] == pytest.approx(
        sum(float(gain) for gain in gains if gain), abs=1e-5
    )
    assert info["spliced_dim"] == 12
    assert "transform" not in info["options"]


def test_without_mllt_the_matrix_is_that_of_lda(trained, options, tmp_path):
    train(trained, tmp_path / "lda", options["lda"])
    final, full = (matrix_of(tmp_path / "lda" / n) for n in ("final.mat", "full.mat"))
    np.testing.assert_array_equal(final, full[:5])
    np.testing.assert_array_equal(full, matrix_of(trained / "tri2/full.mat"))
    assert not any(row["transform_gain"] for row in history(tmp_path / "lda"))


def test_mllt_raises_the_likelihood_of_the_spliced_frames(trained, options, tmp_path):
    """A transform's volume counts: log p(x) = log p(A x) + log |det A|."""
    train(trained, tmp_path / "lda", options["lda"])
    likes = []
    for folder in (tmp_path / "lda", trained / "tri2"):
        matrix = matrix_of(folder / "final.mat").astype(float)
        volume = 0.5 * np.linalg.slogdet(matrix @ matrix.T)[1]
        likes.append(float(history(folder)[-1]["log_like_per_frame"]) + volume)
    assert likes[1] > likes[0] + 0.02


def test_threads_do_not_change_the_model(trained, options, tmp_path):
    train(trained, tmp_path / "tri2", options["tri2"], threads=3)
    for name in ("final.mdl", "final.mat", "full.mat", "tree"):
        ours = (trained / "tri2" / name).read_bytes()
        assert (tmp_path / "tri2" / name).read_bytes() == ours


def test_alignments_of_an_adapted_system_are_said_to_be_taken_unadapted(
    trained, options, tmp_path, caplog
):
    (trained / "ali/trans.ark").touch()
    try:
        with caplog.at_level(logging.INFO):
            train(trained, tmp_path / "lda", options["lda"])
    finally:
        (trained / "ali/trans.ark").unlink()
    assert "LDA takes its frames unadapted" in caplog.text


def test_more_dimensions_than_pdfs_are_refused(trained, options, tmp_path):
    # 3 phones of 3 states and at most 2 x 5 silence states, which LDA leaves out.
    wrong = options["tri2"].replace(lda_dim=11)
    with pytest.raises(UserError, match=r"LDA to 11 dimensions.*set lda_dim to"):
        train(trained, tmp_path / "tri2", wrong)
    assert not (tmp_path / "tri2").exists()


@pytest.mark.parametrize("kind", ["tri1", "tri2"])
def test_shortest_utterances_alone_can_train(trained, options, tmp_path, kind):
    chosen = options[kind].replace(subset_shortest=9)
    stage = train_deltas if kind == "tri1" else train_lda_mllt
    train(trained, tmp_path / kind, chosen, stage=stage)
    store = FrameStore.load(trained / "frames")
    info = json.loads((tmp_path / kind / "info.json").read_text())
    assert info["num_utterances"] == 9
    assert info["num_frames"] == np.sort(np.diff(store.begin))[:9].sum()


def test_silence_has_no_pdf(trained):
    lang = Lang.load(trained / "lang")
    transitions = AcousticModel.load(trained / "mono/final.mdl").transitions
    pdfs = pdfs_without(lang.silence_phones, transitions)
    is_silence = np.isin(transitions.phone, lang.silence_phones)
    assert (pdfs[is_silence] == -1).all()
    assert pdfs[0] == -1
    heard = ~is_silence
    heard[0] = False
    np.testing.assert_array_equal(pdfs[heard], transitions.pdf[heard])


def test_refine_sees_every_iteration_and_gives_the_model_of_the_statistics(
    trained, options
):
    """What `Training.run` promises to a kind that changes features."""
    mono = GmmSystem.load(trained / "mono")
    job = MonoJob(
        frames_dir=trained / "frames",
        lang_dir=trained / "lang",
        out_dir=trained / "refined",
        options=options["mono"],
        shared=SHARED,
    )
    source = job.source(mono.transform)
    shift = np.hstack([np.eye(source.dim), np.ones((source.dim, 1))])
    gmms = transform_means(mono.model.gmms, shift)
    shifted = AcousticModel(mono.model.transitions, gmms)
    seen, expected = [], []

    class Shift(Kind):
        def refine(self, model, training, iteration):
            aligned = [training.alignment_of(u) is not None for u in range(len(source))]
            chunks = training.source.aligned_chunks(training.alignment, training.pool)
            shapes = [(len(frames), len(ids)) for frames, ids in chunks]
            seen.append((iteration, all(aligned), shapes))
            if iteration == 2:
                training.transform_gain = 0.25
                training.source = source.with_speaker_transforms(None)
                expected.append(training.statistics(shifted).log_like_per_frame)
                return shifted
            return model

    with Training.begin(job, source, mono.tree, mono.model) as training:
        assert training.alignment_of(0) is None
        count = mono.model.gmms.num_gaussians
        training.run(mono.model, Shift(), initial_gaussians=count)
        assert training.source is not source
        history = training.history
    num_frames = source.num_frames
    assert seen == [(x, True, [(num_frames, num_frames)]) for x in range(1, 8)]
    gains = [row.transform_gain for row in history]
    assert gains == [None, 0.25] + [None] * 5
    # In iteration 2 the statistics are those of the model that was put in place.
    likes = [row.log_like_per_frame for row in history]
    assert [likes[1]] == expected
    assert likes[1] < likes[0] - 0.3
