"""CMVN: zero means, unit variances, additive statistics, Kaldi's windows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import features as reference

from latflow.errors import UserError
from latflow.features.cmvn import (
    CmvnStream,
    cmvn_statistics,
    normalize,
)
from latflow.features.cmvn_options import (
    LevelCmvn,
    OnlineCmvn,
    SlidingCmvn,
    SpeakerCmvn,
)


def random_frames(T, seed, D=4):
    rng = np.random.default_rng(seed)
    scale = rng.uniform(0.5, 20, D)
    return (rng.normal(size=(T, D)) * scale + rng.normal(size=D) * 30).astype(
        np.float32
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(0, 1000))
def test_speaker_statistics_add_up_and_give_zero_mean(lengths, seed):
    utterances = [random_frames(T, seed + i) for i, T in enumerate(lengths)]
    stats = sum(cmvn_statistics(u) for u in utterances)
    together = np.concatenate(utterances)
    np.testing.assert_allclose(stats, cmvn_statistics(together), rtol=1e-12)
    normalized = np.concatenate(
        [normalize(u, SpeakerCmvn(), stats) for u in utterances]
    )
    np.testing.assert_allclose(normalized.mean(axis=0), 0.0, atol=1e-4)
    assert normalized.dtype == np.float32


@given(st.integers(5, 100), st.integers(0, 1000))
def test_norm_vars_gives_unit_variance(T, seed):
    frames = random_frames(T, seed)
    normalized = normalize(frames, SpeakerCmvn(norm_vars=True), cmvn_statistics(frames))
    np.testing.assert_allclose(normalized.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(normalized.var(axis=0), 1.0, atol=1e-2)


@given(
    st.integers(1, 60), st.integers(1, 40), st.integers(1, 40), st.booleans(),
    st.booleans(), st.integers(0, 100),
)  # fmt: skip
def test_sliding_equals_windows_one_by_one(
    T, window, min_window, center, norm_vars, seed
):
    frames = random_frames(T, seed)
    options = {
        "window": window, "min_window": min_window, "center": center,
        "norm_vars": norm_vars,
    }  # fmt: skip
    wanted = reference.sliding_cmvn(frames, **options)
    np.testing.assert_allclose(
        normalize(frames, SlidingCmvn(**options)), wanted, atol=2e-3
    )


def test_sliding_over_a_long_utterance_keeps_its_precision():
    frames = random_frames(20_000, 3) + np.float32(1000.0)
    out = normalize(frames, SlidingCmvn(window=300, norm_vars=True))
    middle = frames[9850:10150].astype(np.float64)
    wanted = (frames[10_000] - middle.mean(axis=0)) / middle.std(axis=0)
    np.testing.assert_allclose(out[10_000], wanted, atol=1e-4)


def test_constant_frames_do_not_divide_by_zero():
    frames = np.ones((5, 2), np.float32)
    stats = cmvn_statistics(frames)
    assert np.isfinite(normalize(frames, SpeakerCmvn(norm_vars=True), stats)).all()
    assert np.isfinite(normalize(frames, SlidingCmvn(norm_vars=True))).all()


def test_statistics_of_nothing_are_refused():
    with pytest.raises(UserError, match="no frames"):
        normalize(np.ones((1, 2)), SpeakerCmvn(), cmvn_statistics(np.empty((0, 2))))


@given(
    st.integers(0, 60), st.integers(1, 40), st.integers(1, 40), st.booleans(),
    st.lists(st.integers(0, 60), max_size=4), st.integers(0, 100),
)  # fmt: skip
def test_frames_in_pieces_are_normalized_as_the_whole(
    T, window, min_window, norm_vars, cuts, seed
):
    options = SlidingCmvn(
        window=window, min_window=min_window, center=False, norm_vars=norm_vars
    )

    def streamed(cuts):
        stream = CmvnStream(options)
        found = [stream.accept(piece) for piece in np.split(frames, sorted(cuts))]
        waited = len(np.concatenate(found))
        assert waited == (T if min_window <= T else 0)
        return np.concatenate([*found, stream.finish()])

    frames = random_frames(T, seed)
    whole = streamed([])
    np.testing.assert_array_equal(streamed([min(cut, T) for cut in cuts]), whole)
    if T:
        np.testing.assert_allclose(whole, normalize(frames, options), atol=1e-3)


@given(
    st.integers(0, 60), st.integers(2, 40), st.integers(1, 50), st.booleans(),
    st.lists(st.integers(0, 60), max_size=4), st.integers(0, 100),
)  # fmt: skip
def test_online_equals_windows_one_by_one_however_frames_are_cut(
    T, window, global_frames, norm_vars, cuts, seed
):
    given = {"window": window, "global_frames": global_frames, "norm_vars": norm_vars}
    frames, others = random_frames(T, seed), random_frames(90, seed + 1) + 3.0
    stats = cmvn_statistics(others)

    def streamed(cuts):
        stream = CmvnStream(OnlineCmvn(**given), stats)
        found = [stream.accept(piece) for piece in np.split(frames, sorted(cuts))]
        assert stream.finish().shape == (0, frames.shape[1])
        return np.concatenate(found)

    whole = normalize(frames, OnlineCmvn(**given), stats)
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(streamed([min(cut, T) for cut in cuts]), whole)
    exact = others.astype(np.float64)
    wanted = reference.online_cmvn(frames, exact.mean(0), exact.var(0), **given)
    np.testing.assert_allclose(whole, wanted, rtol=1e-4, atol=1e-4)


@given(
    st.integers(0, 60), st.integers(1, 60), st.integers(2, 40), st.integers(1, 50),
    st.booleans(), st.integers(0, 60), st.integers(0, 100),
)  # fmt: skip
def test_online_goes_on_with_the_speakers_frames_before(
    before, T, window, global_frames, norm_vars, cut, seed
):
    given = {"window": window, "global_frames": global_frames, "norm_vars": norm_vars}
    first, frames = random_frames(before, seed) - 2.0, random_frames(T, seed + 1)
    others = random_frames(90, seed + 2) + 3.0
    stats = cmvn_statistics(others)
    stream = CmvnStream(OnlineCmvn(**given), stats)
    stream.accept(first[: min(cut, before)])
    stream.accept(first[min(cut, before) :])
    stream = CmvnStream(OnlineCmvn(**given), stats, stream.state)
    got = np.concatenate([stream.accept(frames[:cut]), stream.accept(frames[cut:])])
    exact = others.astype(np.float64)
    moments = exact.mean(0), exact.var(0)
    wanted = reference.online_cmvn(frames, *moments, **given, before=first)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)
    # what is known of the speaker is never more than a window
    state = stream.state
    assert state.count == pytest.approx(min(window, min(window, before) + T))


def test_sliding_windows_begin_anew():
    options = SlidingCmvn(center=False)
    stream = CmvnStream(options)
    stream.accept(random_frames(50, 1))
    assert stream.state is None


def test_a_window_around_the_frame_does_not_stream():
    with pytest.raises(ValueError, match="frames to come"):
        CmvnStream(SlidingCmvn(center=True))


@given(
    st.integers(1, 60), st.integers(1, 40), st.integers(1, 40), st.integers(1, 30),
    st.integers(0, 100),
)  # fmt: skip
def test_level_is_that_of_the_loudest_frame(T, window, min_window, piece, seed):
    frames = random_frames(T, seed)
    options = LevelCmvn(window=window, min_window=min_window)
    loudness = frames.astype(np.float64).mean(axis=1).astype(np.float32)
    levels = []
    for t in range(T):
        end = min(max(t + 1, min_window), T)
        begin = max(t - window, 0)
        if t + 1 < min_window:  # as of `sliding`: moved inwards at the start
            begin = max(begin - max(max(t + 1, min_window) - T, 0), 0)
        levels.append(loudness[begin:end].max())
    wanted = frames - np.array(levels)[:, np.newaxis]
    whole = normalize(frames, options)
    np.testing.assert_allclose(whole, wanted, rtol=1e-5, atol=1e-4)

    stream = CmvnStream(options)
    pieces = [stream.accept(frames[t : t + piece]) for t in range(0, T, piece)]
    np.testing.assert_array_equal(np.concatenate([*pieces, stream.finish()]), whole)


@given(st.floats(-60, 20), st.integers(0, 20))
def test_level_forgets_the_volume(gain, seed):
    frames = random_frames(50, seed)
    one = normalize(frames, LevelCmvn())
    np.testing.assert_allclose(normalize(frames + gain, LevelCmvn()), one, atol=1e-3)
