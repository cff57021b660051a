"""The stage that trains on adapted features, with speakers distorted on purpose."""

import json
import shutil

import numpy as np
import pytest
from fixtures.adapted_system import history, make_systems, system_options, train
from reference import gmm_naive

from latflow.features.frames import FrameStore
from latflow.gmm.model import AcousticModel, DiagGmms, GmmSystem
from latflow.gmm.sat import estimate_alignment_model, update_all
from latflow.gmm.source import FrameSource, SpeakerTransforms
from latflow.kaldi.io import read_int_vectors, read_matrices
from latflow.parallel import worker_pool


@pytest.fixture(scope="module")
def root(tmp_path_factory, request):
    return make_systems(tmp_path_factory.mktemp("sat"), request.config.rootpath)


def test_system_lies_in_its_folder(root):
    assert sorted(p.name for p in (root / "tri3").iterdir()) == [
        "final.alimdl",
        "final.mdl",
        "info.json",
        "iterations.tsv",
        "ledger.jsonl",
        "trans.ark",
        "transform.json",
        "tree",
    ]
    system = GmmSystem.load(root / "tri3")
    assert system.is_speaker_adapted
    frames = FrameStore.load(root / "frames").frames(0)
    source = GmmSystem.load(root / "mono")
    np.testing.assert_array_equal(system.transform(frames), source.transform(frames))
    matrices = dict(read_matrices(root / "tri3/trans.ark"))
    assert list(matrices) == ["s0", "s1", "s2"]
    assert {matrix.shape for matrix in matrices.values()} == {(4, 5)}
    info = json.loads((root / "tri3/info.json").read_text())
    assert info["type"] == "sat"
    assert (info["num_speakers"], info["num_unadapted_speakers"]) == (3, 0)
    assert "transform" not in info["options"]


def test_adaptation_gains_where_it_is_estimated(root):
    rows = history(root / "tri3")
    gains = [row["transform_gain"] for row in rows]
    assert [bool(gain) for gain in gains] == [row["iter"] in "24" for row in rows]
    assert all(float(gain) >= 0 for gain in gains if gain)
    info = json.loads((root / "tri3/info.json").read_text())
    # The first transforms, of the source system, undo most of the distortion.
    estimated = sum(float(gain) for gain in gains if gain)
    assert info["fmllr_gain_per_frame"] > estimated + 0.1


def test_adapted_features_are_more_alike_than_unadapted_ones(root):
    """Speakers' means of a phone differ less after their transforms."""
    store = FrameStore.load(root / "frames")
    system = GmmSystem.load(root / "tri3")
    transforms = SpeakerTransforms.load(root / "tri3/trans.ark")
    old = AcousticModel.load(root / "mono/final.mdl").transitions
    phones = {u: old.phone[ids] for u, ids in read_int_vectors(root / "ali/ali.ark")}
    spread = []
    for is_adapted in (False, True):
        sums = {}
        for i, utterance in enumerate(store.utt_ids):
            frames = system.transform(store.frames(i))
            if is_adapted:
                frames = transforms.apply(store.speakers[i], frames)
            for phone in np.unique(phones[utterance]):
                mine = frames[phones[utterance] == phone]
                kept = sums.setdefault((phone, store.speakers[i]), [])
                kept.append(mine)
        means = {key: np.concatenate(v).mean(axis=0) for key, v in sums.items()}
        within = {key: np.concatenate(v).std(axis=0) for key, v in sums.items()}
        by_phone = [
            np.std([m for (p, _), m in means.items() if p == phone], axis=0)
            / np.mean([w for (p, _), w in within.items() if p == phone], axis=0)
            for phone in {p for p, _ in means}
        ]
        spread.append(np.mean([s[:2] for s in by_phone]))
    assert spread[1] < 0.7 * spread[0]


def test_the_twin_has_the_same_gaussians_for_unadapted_features(root):
    system = GmmSystem.load(root / "tri3")
    adapted, twin = system.model.gmms, system.alignment_model.gmms
    np.testing.assert_array_equal(adapted.begin, twin.begin)
    assert np.abs(adapted.means - twin.means).max() > 0.1
    # Distorted speakers spread the features of a sound.
    assert twin.variances[:, :2].mean() > 1.2 * adapted.variances[:, :2].mean()


def test_twin_is_that_of_plain_loops(root):
    """Posteriors of adapted frames, moments of unadapted ones."""
    system = GmmSystem.load(root / "tri3")
    store = FrameStore.load(root / "frames")
    transforms = SpeakerTransforms.load(root / "tri3/trans.ark")
    some = np.arange(3)
    plain = FrameSource(store, system.transform, some, chunk_bytes=4 * 4 * 100)
    adapted = plain.with_speaker_transforms(transforms)
    assert len(plain.chunks) > 1
    rng = np.random.default_rng(0)
    model = system.model
    last = model.transitions.num_transition_ids
    ids = rng.integers(1, last + 1, plain.num_frames).astype(np.int32)
    ids[plain.begin[1] : plain.begin[2]] = 0  # not aligned
    with worker_pool(2) as pool:
        found = estimate_alignment_model(model, adapted, plain, ids, pool)
    moments = np.zeros((model.gmms.num_gaussians, 9))
    for u in (0, 2):
        mine = slice(plain.begin[u], plain.begin[u + 1])
        pairs = zip(adapted.frames(u), plain.frames(u), ids[mine], strict=True)
        for x, y, i in pairs:
            pdf = model.transitions.pdf[i]
            log_likes = gmm_naive.scores(model.gmms, x.astype(float), pdf)
            total = gmm_naive.log_sum_exp(log_likes)
            for k, value in enumerate(log_likes):
                row = np.r_[1.0, y.astype(float), y.astype(float) ** 2]
                moments[model.gmms.begin[pdf] + k] += np.exp(value - total) * row
    expected = update_all(model.gmms, moments)
    np.testing.assert_allclose(found.gmms.weights, expected.weights, rtol=1e-3)
    np.testing.assert_allclose(found.gmms.means, expected.means, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found.gmms.variances, expected.variances, rtol=1e-2)


def test_no_gaussian_of_the_twin_is_removed():
    gmms = DiagGmms.from_moments(
        np.array([0, 3, 4, 6]),
        np.array([0.5, 0.3, 0.2, 1.0, 0.5, 0.5]),
        np.arange(6.0)[:, None],
        np.ones((6, 1)),
    )
    moments = np.zeros((6, 3))
    # Enough, too little, nothing; enough; nothing at all in the last mixture.
    moments[0] = 80.0, 80.0 * 2, 80.0 * (4 + 3)
    moments[1] = 5.0, 5.0 * 9, 5.0 * 90
    moments[3] = 20.0, 0.0, 20.0 * 2
    found = update_all(gmms, moments)
    np.testing.assert_array_equal(found.begin, gmms.begin)
    np.testing.assert_allclose(found.means[:, 0], [2, 1, 2, 0, 4, 5], atol=1e-6)
    np.testing.assert_allclose(found.variances[:, 0], [3, 1, 1, 2, 1, 1], atol=1e-6)
    np.testing.assert_allclose(
        found.weights, [80 / 85, 5 / 85, 1e-5, 1, 0.5, 0.5], rtol=1e-4
    )


def test_threads_do_not_change_the_system(root, repository, tmp_path):
    options = system_options(repository)["tri3"]
    train(root, tmp_path / "tri3", options, threads=3)
    for name in ("final.mdl", "final.alimdl", "trans.ark", "tree"):
        ours = (root / "tri3" / name).read_bytes()
        assert (tmp_path / "tri3" / name).read_bytes() == ours


def test_adapted_systems_fit_the_data_better(root):
    adapted, plain = (history(root / s)[-1] for s in ("tri3", "tri1"))
    assert float(adapted["log_like_per_frame"]) > float(plain["log_like_per_frame"])


def test_transforms_beside_the_alignments_are_the_first(root, repository, tmp_path):
    shutil.copytree(root / "ali", tmp_path / "ali")
    rng = np.random.default_rng(5)
    first = {
        s: np.hstack([np.eye(4) + 0.1 * rng.normal(size=(4, 4)), np.ones((4, 1))])
        for s in ("s0", "s2")
    }
    SpeakerTransforms(first).save(tmp_path / "ali/trans.ark")
    for name in ("frames", "lang", "mono"):
        (tmp_path / name).symlink_to(root / name)
    options = system_options(repository, fmllr_iterations=[])["tri3"]
    train(tmp_path, tmp_path / "tri3", options)
    found = dict(read_matrices(tmp_path / "tri3/trans.ark"))
    assert found.keys() == first.keys()
    for speaker, matrix in first.items():
        np.testing.assert_allclose(found[speaker], matrix, rtol=1e-6)
    assert not any(row["transform_gain"] for row in history(tmp_path / "tri3"))


def test_few_frames_leave_all_speakers_as_they_are(root, repository, tmp_path):
    options = system_options(repository, fmllr={"min_count": 1e9})["tri3"]
    train(root, tmp_path / "tri3", options)
    for matrix in dict(read_matrices(tmp_path / "tri3/trans.ark")).values():
        np.testing.assert_array_equal(matrix, np.eye(4, 5))
    info = json.loads((tmp_path / "tri3/info.json").read_text())
    assert info["num_unadapted_speakers"] == 3
    system = GmmSystem.load(tmp_path / "tri3")
    # Without transforms the twin sees the frames that the model saw; an iteration
    # more moves its Gaussians, but not the mean of the frames of a leaf.
    means = [
        np.add.reduceat(g.weights[:, None] * g.means, g.begin[:-1])
        for g in (system.model.gmms, system.alignment_model.gmms)
    ]
    np.testing.assert_allclose(*means, atol=1e-3)


def test_files_beside_the_matrix_of_the_source_come_along(root, repository, tmp_path):
    for name in ("frames", "lang", "ali"):
        (tmp_path / name).symlink_to(root / name)
    shutil.copytree(root / "mono", tmp_path / "mono")
    (tmp_path / "mono/full.mat").write_bytes(b"full")
    (tmp_path / "mono/splice_opts").write_text("--left-context=1\n")
    train(tmp_path, tmp_path / "tri3", system_options(repository)["tri3"])
    assert (tmp_path / "tri3/full.mat").read_bytes() == b"full"
    assert (tmp_path / "tri3/splice_opts").read_text() == "--left-context=1\n"
