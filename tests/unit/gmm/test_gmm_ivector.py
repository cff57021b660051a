"""I-vectors against dense Gaussians: posteriors, EM, online extraction."""

import dataclasses
import json

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.features.cmvn import CmvnStream, cmvn_statistics, normalize
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.frames import FrameStore, FrameWriter
from latflow.gmm.ivector import (
    Extractor,
    FrameProjection,
    IvectorModel,
    append_ivectors,
    gaussian_posteriors,
)
from latflow.gmm.ivector_stream import IvectorStream
from latflow.gmm.ivector_training import (
    ExtractorStatistics,
    estimate_mixture,
    initial_extractor,
    train_ivectors,
    update_extractor,
)
from latflow.gmm.model import DiagGmms
from latflow.gmm.options import IvectorOptions

G, D, S = 4, 3, 2
OPTIONS = IvectorOptions(features="x", dim=S, num_gaussians=G)


def make_ubm(rng, num_gaussians=G, dim=D):
    means = 3 * rng.normal(size=(num_gaussians, dim))
    variances = rng.uniform(0.5, 2, (num_gaussians, dim))
    weights = rng.dirichlet(np.ones(num_gaussians))
    begin = np.array([0, num_gaussians])
    return DiagGmms.from_moments(begin, weights, means, variances)


def make_extractor(rng):
    noise = rng.normal(size=(G, D, D))
    covariances = noise @ noise.transpose(0, 2, 1) + np.eye(D)
    matrices = rng.normal(size=(G, D, S))
    return Extractor(matrices, np.linalg.inv(covariances), 5.0)


def hard(labels):
    return np.eye(G)[labels]


def dense(extractor, labels):
    """Mean and covariance of an utterance's frames, one below the other; M of them."""
    stacked = extractor.matrices[labels].reshape(-1, extractor.dim)
    covariance = stacked @ stacked.T
    for t, g in enumerate(labels):
        here = slice(t * D, (t + 1) * D)
        covariance[here, here] += np.linalg.inv(extractor.inverses[g])
    return stacked @ (extractor.offset * np.eye(extractor.dim)[0]), covariance, stacked


def log_likelihood(extractor, frames, labels):
    mean, covariance, _ = dense(extractor, labels)
    rest = frames.ravel() - mean
    log_det = np.linalg.slogdet(2 * np.pi * covariance)[1]
    return -0.5 * (log_det + rest @ np.linalg.solve(covariance, rest))


def one(extractor, frames, posteriors, max_count=0.0):
    """Mean and precision of one utterance's i-vector."""
    first = posteriors.T @ frames
    found = extractor.posterior(posteriors.sum(0)[None], first[None], max_count)
    return found[0][0], found[1][0]


@pytest.mark.parametrize("num_frames", [0, 1, 7, 20])
def test_the_posterior_is_that_of_a_dense_gaussian(num_frames):
    rng = np.random.default_rng(num_frames)
    extractor = make_extractor(rng)
    labels = rng.integers(G, size=num_frames)
    frames = rng.normal(size=(num_frames, D))
    got, precision = one(extractor, frames, hard(labels))
    mean, covariance, stacked = dense(extractor, labels)
    gain = np.linalg.solve(covariance, stacked).T if num_frames else stacked.T
    prior = extractor.offset * np.eye(S)[0]
    np.testing.assert_allclose(got, prior + gain @ (frames.ravel() - mean), rtol=1e-9)
    wanted = np.eye(S) - gain @ stacked
    np.testing.assert_allclose(np.linalg.inv(precision), wanted, atol=1e-9)


def test_the_priors_weight_grows_beyond_the_greatest_count():
    rng = np.random.default_rng(1)
    extractor = make_extractor(rng)
    frames, posteriors = rng.normal(size=(50, D)), hard(rng.integers(G, size=50))
    # a prior five times as heavy is as good as a fifth of the frames
    heavy, _ = one(extractor, frames, posteriors, max_count=10)
    fifth, _ = one(extractor, frames, posteriors / 5)
    np.testing.assert_allclose(heavy, fifth, rtol=1e-9)
    light, _ = one(extractor, frames, posteriors, max_count=50)
    np.testing.assert_array_equal(light, one(extractor, frames, posteriors)[0])


def draw_utterances(rng, extractor, count, num_frames=40):
    """Utterances of the model itself: frames, labels, i-vectors."""
    found = []
    deviations = np.linalg.cholesky(np.linalg.inv(extractor.inverses))
    for _ in range(count):
        ivector = rng.normal(size=S) + extractor.offset * np.eye(S)[0]
        labels = rng.integers(G, size=num_frames)
        noise = np.einsum(
            "tij,tj->ti", deviations[labels], rng.normal(size=(num_frames, D))
        )
        found.append((extractor.matrices[labels] @ ivector + noise, labels, ivector))
    return found


@pytest.mark.slow
def test_em_climbs_and_finds_the_directions():
    rng = np.random.default_rng(2)
    truth = make_extractor(rng)
    utterances = draw_utterances(rng, truth, 120)
    pooled = [
        np.concatenate([x[labels == g] for x, labels, _ in utterances])
        for g in range(G)
    ]
    ubm = DiagGmms.from_moments(
        np.array([0, G]), np.full(G, 1 / G),
        np.stack([x.mean(0) for x in pooled]), np.stack([x.var(0) for x in pooled]),
    )  # fmt: skip
    extractor = initial_extractor(ubm, S, rng)
    likelihoods = []
    for _ in range(30):
        total = sum(log_likelihood(extractor, x, labels) for x, labels, _ in utterances)
        likelihoods.append(total)
        found = ExtractorStatistics.zeros(extractor)
        for frames, labels, _ in utterances:
            found.add(extractor, [frames], [hard(labels)])
        extractor = update_extractor(extractor, found)
    assert (np.diff(likelihoods) > -1e-6 * abs(likelihoods[0])).all()
    best = sum(log_likelihood(truth, x, labels) for x, labels, _ in utterances)
    assert likelihoods[-1] > best - 5
    # the speakers' means are found again
    errors, spreads = [], []
    for frames, labels, ivector in utterances:
        got = extractor.matrices @ one(extractor, frames, hard(labels))[0]
        wanted = truth.matrices @ ivector
        errors.append(got - wanted)
        spreads.append(wanted)
    assert np.var(errors) < 0.1 * np.var(spreads, axis=0).mean()


def test_ivectors_have_variance_one_about_the_offset_after_an_update():
    rng = np.random.default_rng(3)
    extractor = make_extractor(rng)
    found = ExtractorStatistics.zeros(extractor)
    for frames, labels, _ in draw_utterances(rng, extractor, 50):
        found.add(extractor, [frames], [hard(labels)])
    before = found.ivectors / found.count
    new = update_extractor(extractor, found)
    # the Gaussians' means at the mean i-vector stay, whatever the turn
    fitted = np.linalg.solve(found.squares, found.cross.transpose(0, 2, 1))
    means = fitted.transpose(0, 2, 1) @ before
    moved = new.matrices @ (new.offset * np.eye(S)[0])
    np.testing.assert_allclose(moved, means, rtol=1e-8, atol=1e-8)


def test_gaussians_with_few_frames_keep_their_parameters():
    rng = np.random.default_rng(4)
    extractor = make_extractor(rng)
    found = ExtractorStatistics.zeros(extractor)
    for _ in range(10):
        frames = rng.normal(size=(30, D))
        found.add(extractor, [frames], [hard(rng.integers(G - 1, size=30))])
    new = update_extractor(extractor, found)
    np.testing.assert_array_equal(new.inverses[-1], extractor.inverses[-1])
    assert (new.inverses[:-1] != extractor.inverses[:-1]).any()
    empty = ExtractorStatistics.zeros(extractor)
    with pytest.raises(UserError, match="0 utterances are too few"):
        update_extractor(extractor, empty)


def test_posteriors_of_the_chosen_gaussians():
    rng = np.random.default_rng(5)
    ubm = make_ubm(rng, 9)
    frames = 3 * rng.normal(size=(200, D))
    options = OPTIONS.replace(num_gselect=3, min_post=0.1, posterior_scale=0.5)
    got = gaussian_posteriors(ubm, frames, options)
    for row, x in zip(got, frames, strict=True):
        z = (x - ubm.means) ** 2 / ubm.variances + np.log(2 * np.pi * ubm.variances)
        joint = ubm.weights * np.exp(-0.5 * z.sum(1))
        joint[np.argsort(joint)[:-3]] = 0
        joint /= joint.sum()
        joint[joint < 0.1] = 0
        np.testing.assert_allclose(row, 0.5 * joint / joint.sum(), atol=1e-4)
    assert (np.count_nonzero(got, axis=1) == 1).any()


def make_model(rng, **options):
    plain = FrameProjection(0, np.zeros(D), np.eye(D))
    return IvectorModel(
        plain, make_ubm(rng), make_extractor(rng), OPTIONS.replace(**options)
    )


@pytest.mark.parametrize("num_frames", [1, 10, 11, 57])
def test_online_is_offline_on_the_same_frames(num_frames):
    rng = np.random.default_rng(6)
    model = make_model(rng, max_count=2.0)
    frames = 2 * rng.normal(size=(num_frames, D)).astype(np.float32)
    posteriors = gaussian_posteriors(model.ubm, frames, model.options)
    got = model.online(frames)
    assert got.shape == (-(-num_frames // 10), S)
    for k, ivector in enumerate(got):
        heard = slice(0, 10 * k + 1)
        wanted, _ = one(model.extractor, frames[heard], posteriors[heard], 2.0)
        np.testing.assert_allclose(ivector, wanted - [5.0, 0.0], rtol=1e-5, atol=1e-5)
    # no frame is heard before its time
    longer = np.vstack((frames, 9 * rng.normal(size=(30, D)).astype(np.float32)))
    again = model.online(longer)[: len(got)]
    np.testing.assert_allclose(again, got, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("norm_vars", [False, True])
def test_gaussians_may_be_chosen_on_normalized_frames(tmp_path, norm_vars):
    rng = np.random.default_rng(10)
    cmvn = OnlineCmvn(norm_vars=norm_vars, window=20, global_frames=5)
    frames = 2 * rng.normal(size=(47, D)).astype(np.float32) + np.float32(3.0)
    stats = cmvn_statistics(3 * rng.normal(size=(30, D)))
    splice = FrameProjection(1, np.zeros(3 * D), rng.normal(size=(D, 3 * D)) / 3)
    model = dataclasses.replace(
        make_model(rng), projection=splice, cmvn=cmvn, cmvn_stats=stats
    )
    model.save(tmp_path / "extractor.npz")
    model = IvectorModel.load(tmp_path / "extractor.npz")
    assert model.cmvn == cmvn
    chosen = splice(normalize(frames, cmvn, stats))
    posteriors = gaussian_posteriors(model.ubm, chosen, model.options)
    counted = splice(frames)
    got = model.online(frames)
    for k, ivector in enumerate(got):
        heard = slice(0, 10 * k + 1)
        wanted, _ = one(model.extractor, counted[heard], posteriors[heard], 100.0)
        np.testing.assert_allclose(ivector, wanted - [5.0, 0.0], rtol=1e-4, atol=1e-4)
    plain = dataclasses.replace(model, cmvn=None, cmvn_stats=None)
    assert np.abs(plain.online(frames) - got).max() > 0.01
    # after the speaker's frames before, whose last i-vector is of frame 30
    past, before = model.begin(), IvectorStream(model)
    first = frames[:31] - np.float32(1.0)
    model.online(first, past)
    before.accept(first)
    before.finish()
    known = before.state
    stream = IvectorStream(model, known)
    found = np.concatenate([stream.accept(frames), stream.finish()])[::10, D:]
    np.testing.assert_allclose(known.past.occupancy, past.occupancy, rtol=1e-6)
    normalized = CmvnStream(cmvn, stats, known.cmvn).accept(frames)
    assert np.abs(normalized - normalize(frames, cmvn, stats)).max() > 0.1
    posteriors = gaussian_posteriors(model.ubm, splice(normalized), model.options)
    for k, ivector in enumerate(found):
        heard = slice(0, 10 * k + 1)
        means, _ = model.extractor.posterior(
            (past.occupancy + posteriors[heard].sum(0))[None],
            (past.first + posteriors[heard].T @ counted[heard])[None],
            100.0,
        )
        np.testing.assert_allclose(ivector, means[0] - [5.0, 0.0], rtol=1e-4, atol=1e-4)
    assert np.abs(found - got).max() > 0.01
    # in pieces
    for pieces in (1, 5, 47):
        stream = IvectorStream(model)
        found = [stream.accept(piece) for piece in np.array_split(frames, pieces)]
        found = np.concatenate([*found, stream.finish()])
        np.testing.assert_array_equal(found[:, :D], frames)
        expected = np.repeat(got, 10, axis=0)[:47]
        np.testing.assert_allclose(found[:, D:], expected, rtol=1e-4, atol=1e-4)


def test_what_a_search_holds_for_silence_counts_less():
    """I-vectors are those of weighted sums over the frames, as they were known then."""
    rng = np.random.default_rng(12)
    model = make_model(rng, silence_weight=0.01)
    frames = 2 * rng.normal(size=(83, D)).astype(np.float32)
    posteriors = gaussian_posteriors(model.ubm, frames, model.options)
    stream = IvectorStream(model)
    assert stream.weighs_silence
    stream.weigh(np.ones(1, np.bool_))
    got, begin, known = [], 0, np.ones(1, np.bool_)
    for end in (20, 41, 60, 83):
        got.append(stream.accept(frames[begin:end]))
        if end == 83:
            got.append(stream.finish())
        weights = np.where(known[np.arange(83).clip(max=len(known) - 1)], 0.01, 1.0)
        for t in range(-(-begin // 10) * 10, end, 10):
            seen = slice(0, t + 1)
            weighted = posteriors[seen] * weights[seen, None]
            wanted, _ = one(model.extractor, frames[seen], weighted, 100.0)
            wanted = wanted - [5.0, 0.0]
            here = np.concatenate(got)[t, D:]
            np.testing.assert_allclose(here, wanted, rtol=1e-4, atol=1e-4)
        begin, known = end, rng.random(end - 6) < 0.5  # the search is behind
        stream.weigh(known)


def test_without_weight_for_silence_a_search_changes_nothing():
    rng = np.random.default_rng(13)
    model = make_model(rng)
    frames = 2 * rng.normal(size=(47, D)).astype(np.float32)
    plain, told = IvectorStream(model), IvectorStream(model)
    assert not told.weighs_silence
    told.weigh(np.ones(20, np.bool_))
    np.testing.assert_array_equal(told.accept(frames), plain.accept(frames))


def test_a_speakers_utterances_go_on_and_decay():
    rng = np.random.default_rng(7)
    model = make_model(rng)
    first, second = (2 * rng.normal(size=(n, D)).astype("f4") for n in (40, 31))
    past = model.begin()
    model.online(first, past)
    got = model.online(second, past)
    whole = model.online(np.vstack((first, second)))
    np.testing.assert_allclose(got, whole[4:], rtol=1e-5, atol=1e-6)
    assert past.occupancy.sum() == pytest.approx(7.1)
    short = IvectorModel(
        model.projection, model.ubm, model.extractor,
        model.options.replace(max_remembered_frames=20),
    )  # fmt: skip
    short.online(first, past)
    assert past.occupancy.sum() == pytest.approx(0.1 * (20 + 40))


def test_a_mixture_is_found_again():
    rng = np.random.default_rng(8)
    truth = make_ubm(rng, 3)
    drawn = rng.choice(3, 6000, p=truth.weights.astype(float) / truth.weights.sum())
    noise = rng.normal(size=(6000, D)) * np.sqrt(truth.variances)[drawn]
    frames = truth.means[drawn] + noise
    found = estimate_mixture(frames, 6, rng)
    assert 3 <= found.num_gaussians <= 6
    got, best = (m.log_likelihoods(frames.astype("f4")).mean() for m in (found, truth))
    assert got > best - 0.02


@pytest.fixture
def store(tmp_path):
    """Frames of 6 speakers, of 5 utterances each, who differ by a shift."""
    rng = np.random.default_rng(9)
    shifts = 2 * rng.normal(size=(6, 4))
    centers = 6 * rng.normal(size=(5, 4))
    with FrameWriter(tmp_path / "frames", dim=4, frame_shift=0.01) as writer:
        for u in range(5):
            for speaker in range(6):
                kinds = np.repeat(rng.integers(5, size=30), 5)
                frames = centers[kinds] + shifts[speaker] + rng.normal(size=(150, 4))
                writer.append(f"u{u}-{speaker}", f"s{speaker}", "x", frames)
    return FrameStore.load(tmp_path / "frames")


def test_stages_give_ivectors_that_tell_speakers_apart(store, tmp_path):
    options = OPTIONS.replace(
        dim=3, num_gaussians=8, context=1, feature_dim=6, num_iterations=5
    )
    train_ivectors(store.folder, tmp_path / "model", options=options, seed=1)
    train_ivectors(store.folder, tmp_path / "again", options=options, seed=1)
    file = tmp_path / "model/extractor.npz"
    one, two = (
        IvectorModel.load(tmp_path / f"{n}/extractor.npz") for n in ("model", "again")
    )
    np.testing.assert_array_equal(one.extractor.matrices, two.extractor.matrices)
    assert one.options == options
    append_ivectors(store.folder, file, tmp_path / "out")
    out = FrameStore.load(tmp_path / "out")
    assert (out.dim, out.utt_ids, out.speakers) == (7, store.utt_ids, store.speakers)
    last = []
    for i in range(len(store)):
        frames = out.frames(i)
        np.testing.assert_array_equal(frames[:, :4], store.frames(i))
        blocks = frames[:, 4:].reshape(-1, 10, 3)
        assert (blocks == blocks[:, :1]).all()
        last.append(frames[-1, 4:])
    by_speaker = np.array(last).reshape(5, 6, 3)
    within = by_speaker.var(0).mean()
    assert by_speaker.mean(0).var(0).mean() > 5 * within
    # from the second utterance on, a speaker's history is known from the start
    begins = np.array([out.frames(i)[0, 4:] for i in range(len(out))]).reshape(5, 6, 3)
    np.testing.assert_array_less(
        np.abs(begins[1:] - by_speaker[:-1]).mean(),
        0.5 * np.abs(begins[0] - by_speaker[0]).mean(),
    )


def test_faulty_models_and_frames_are_refused(store, tmp_path):
    with pytest.raises(UserError, match="not readable as an i-vector extractor"):
        IvectorModel.load(tmp_path / "none.npz")
    make_model(np.random.default_rng(0)).save(tmp_path / "other.npz")
    with pytest.raises(
        UserError, match="has 4 features, the i-vector extractor expects 3"
    ):
        append_ivectors(store.folder, tmp_path / "other.npz", tmp_path / "out")


def test_the_extractor_learns_from_as_many_utterances_as_allowed(store, tmp_path):
    options = OPTIONS.replace(
        dim=2, num_gaussians=4, context=0, feature_dim=4, num_iterations=1
    )
    found = []
    for most in (len(store), 2):
        out = tmp_path / str(most)
        changed = options.replace(max_utterances=most)
        train_ivectors(store.folder, out, options=changed, seed=1)
        found.append(json.loads((out / "info.json").read_text())["auxiliary"])
    assert found[0] != found[1]
