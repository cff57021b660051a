"""Statistics by speaker: who is estimated when, and what silence weighs."""

import logging

import numpy as np
import pytest
from fixtures.small_model import SILENCE, small_model

from latflow.gmm.adaptation import FmllrAccumulator, SpeakerEstimates, with_items
from latflow.gmm.fmllr import FmllrStatistics, estimate_fmllr
from latflow.gmm.model import AcousticModel, DiagGmms
from latflow.gmm.options import FmllrOptions
from latflow.lattice.posteriors import FramePosteriors, alignment_posteriors
from latflow.parallel import worker_pool

OPTIONS = FmllrOptions(min_count=30.0)


@pytest.fixture(scope="module")
def model():
    transitions = small_model()
    rng = np.random.default_rng(1)
    count = transitions.num_pdfs
    gmms = DiagGmms.from_moments(
        np.arange(count + 1),
        np.ones(count),
        rng.normal(0, 3, (count, 2)),
        np.ones((count, 2)),
    )
    return AcousticModel(transitions, gmms)


def utterance(model, seed, num_frames=40):
    """(frames, transition-ids) near the means of the pdfs."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(1, model.transitions.num_transition_ids + 1, num_frames)
    means = model.gmms.means[model.transitions.pdf[ids]]
    frames = 1.2 * means + rng.normal(0, 1, (num_frames, 2)) + 0.5
    return frames.astype(np.float32), ids.astype(np.int32)


def statistics_of(model, seed, weight=1.0, **size):
    frames, ids = utterance(model, seed, **size)
    accumulator = FmllrAccumulator.of(model, SILENCE, weight)
    return accumulator.statistics(frames, alignment_posteriors(ids))


def test_speakers_are_closed_with_their_last_utterance(model):
    order = ["a", "b", "a", "c", "b"]
    parts = [statistics_of(model, n) for n in range(5)]
    expected = {}
    for speaker, n in zip(order, range(5), strict=True):
        total = expected.setdefault(speaker, FmllrStatistics.zeros(2))
        total += statistics_of(model, n)
    open_after = [{"a"}, {"a", "b"}, {"b"}, {"b"}, set()]
    with worker_pool(2) as pool:
        estimates = SpeakerEstimates(order, OPTIONS, pool)
        for speaker, part, still_open in zip(order, parts, open_after, strict=True):
            estimates.add(speaker, part)
            assert set(estimates._open) == still_open
        found = estimates.finish("test")
    assert list(found.transforms.matrices) == ["a", "b", "c"]
    for speaker, statistics in expected.items():
        wanted = estimate_fmllr(statistics, OPTIONS).matrix
        matrix = found.transforms.matrices[speaker]
        np.testing.assert_allclose(matrix, wanted, rtol=1e-5, atol=1e-6)
    assert found.as_dict()["num_frames"] == pytest.approx(200)
    gains = [estimate_fmllr(s, OPTIONS).gain for s in expected.values()]
    assert found.gain_per_frame == pytest.approx(sum(gains) / 200)


def test_utterances_that_failed_leave_their_speakers_to_the_others(model, caplog):
    order = ["a", "a", "b", "c"]
    with worker_pool(1) as pool, caplog.at_level(logging.INFO):
        estimates = SpeakerEstimates(order, OPTIONS, pool)
        estimates.add("a", None)
        estimates.add("a", statistics_of(model, 0))
        estimates.add("b", statistics_of(model, 1, num_frames=9))
        estimates.add("c", None)
        found = estimates.finish("test")
    assert list(found.transforms.matrices) == ["a", "b"]
    np.testing.assert_array_equal(found.transforms.matrices["b"], np.eye(2, 3))
    assert found.num_unadapted == 1
    assert "1 speakers have no more than 30 and stay as they are (b)" in caplog.text
    frames = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(found.transforms.apply("c", frames), frames)


def test_utterances_that_never_come_do_not_keep_a_speaker_back(model):
    with worker_pool(1) as pool:
        estimates = SpeakerEstimates(["a", "a"], OPTIONS, pool)
        estimates.add("a", statistics_of(model, 0))
        found = estimates.finish("test")
    assert list(found.transforms.matrices) == ["a"]


def test_nobody_at_all_is_no_error(model):
    with worker_pool(1) as pool:
        found = SpeakerEstimates([], OPTIONS, pool).finish("test")
    assert found.as_dict() == {
        "num_speakers": 0,
        "num_unadapted": 0,
        "num_frames": 0.0,
        "gain_per_frame": 0.0,
    }


def test_silence_weighs_what_it_is_told(model):
    frames, ids = utterance(model, 3, num_frames=200)
    is_silence = np.isin(model.transitions.phone[ids], SILENCE)
    assert 0 < is_silence.sum() < 200
    speech = FmllrAccumulator.of(model, [], 1.0).statistics(
        frames[~is_silence], alignment_posteriors(ids[~is_silence])
    )
    silence = FmllrAccumulator.of(model, [], 1.0).statistics(
        frames[is_silence], alignment_posteriors(ids[is_silence])
    )
    for weight in (0.0, 0.01, 1.0):
        found = statistics_of(model, 3, weight, num_frames=200)
        assert found.count == pytest.approx(speech.count + weight * silence.count)
        for name in ("linear", "quadratic"):
            wanted = getattr(speech, name) + weight * getattr(silence, name)
            np.testing.assert_allclose(getattr(found, name), wanted, rtol=1e-9)


def test_transition_ids_of_one_pdf_add_up(model):
    """Two ids of a pdf with half the weight each are that pdf."""
    transitions = model.transitions
    pairs = [
        (i, j)
        for i in range(1, transitions.num_transition_ids + 1)
        for j in range(i + 1, transitions.num_transition_ids + 1)
        if transitions.pdf[i] == transitions.pdf[j] and transitions.phone[i] > 1
    ]
    frames = np.ones((1, 2), np.float32)
    accumulator = FmllrAccumulator.of(model, SILENCE, 0.0)
    begin, half = np.array([0, 2]), np.full(2, 0.5)
    both = FramePosteriors(begin, np.array(pairs[0], np.int32), half)
    one = alignment_posteriors(np.array(pairs[0][:1], np.int32))
    found, wanted = (accumulator.statistics(frames, p) for p in (both, one))
    np.testing.assert_allclose(found.linear, wanted.linear)
    np.testing.assert_allclose(found.quadratic, wanted.quadratic)


def test_results_come_with_their_items_in_order():
    with worker_pool(3) as pool:
        found = list(with_items(pool, lambda x: x * x, range(50)))
    assert found == [(n, n * n) for n in range(50)]
