"""Boundaries learnt from those that were set by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.align.boundary_model import (
    CONTEXT,
    FILE,
    BoundaryModel,
    in_order_of_time,
    windows_around,
)
from latflow.align.short_windows import ShortWindows
from latflow.corpus.textgrid import Interval
from latflow.errors import UserError
from latflow.training import boundary_learning
from latflow.training.boundary_learning import (
    FEWEST,
    Utterance,
    conformal_factors,
    learn_from,
    true_boundaries,
)

WINDOWS = ShortWindows(16000)
SHIFT = WINDOWS.frame_shift


def utterance(rng, speaker, late=0.03):
    """Phones of two kinds in turn; one of them is aligned `late` too late."""
    names = ["a", "b"] * 5
    truth = np.cumsum([0.0, *rng.uniform(0.06, 0.2, len(names))])
    kind = np.searchsorted(truth[1:], (np.arange(int(truth[-1] / SHIFT)) + 0.5) * SHIFT)
    frames = rng.normal(scale=0.3, size=(len(kind), 13)) + (kind % 2)[:, None] * 3.0
    times = truth.copy()
    times[1:-1:2] += late
    times[2:-1:2] += rng.uniform(-0.01, 0.01, len(times[2:-1:2]))
    return Utterance(
        speaker, f"{speaker}{rng.integers(1 << 30)}", names, times, truth, frames
    )


@pytest.fixture(scope="module", autouse=True)
def short_training():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundary_learning, "_STEPS", (250, 250))
        yield


@pytest.fixture(scope="module")
def learnt():
    rng = np.random.default_rng(5)
    return learn_from([utterance(rng, f"s{n % 4}") for n in range(48)], WINDOWS)


def test_what_is_learnt_holds_for_other_speakers(learnt):
    rng = np.random.default_rng(6)
    errors, inside = [], []
    for _ in range(30):
        u = utterance(rng, "new")
        moved, margins = learnt.model.corrected(u.names, u.times, u.frames, SHIFT)
        assert (moved[[0, -1]] == u.times[[0, -1]].round(6)).all()
        assert (np.diff(moved) > 0).all()
        error = np.abs(moved - u.truth)[1:-1]
        errors += error.tolist()
        inside += (error[:, None] <= margins[1:-1]).tolist()
    assert np.median(errors) < 0.002
    shares = np.mean(inside, axis=0)
    assert shares == pytest.approx([0.8, 0.95], abs=0.08)
    assert learnt.coverage == pytest.approx([0.8, 0.95], abs=0.05)
    assert learnt.held_out == "speakers"
    assert learnt.after["median_ms"] < 2 < learnt.before["median_ms"]


def test_held_out_figures_are_not_of_what_was_learnt():
    """Truth without reason can't be predicted, however well it could be remembered."""
    rng = np.random.default_rng(7)
    found = []
    for n in range(30):
        u = utterance(rng, f"s{n % 4}")
        truth = u.truth.copy()
        truth[1:-1] = u.times[1:-1] + rng.choice([-0.02, 0.02], len(truth) - 2)
        frames = rng.normal(size=u.frames.shape)
        found.append(dataclasses.replace(u, truth=truth, frames=frames))
    assert learn_from(found, WINDOWS).after["median_ms"] > 12


def test_threads_change_nothing():
    rng = np.random.default_rng(5)
    given = [utterance(rng, "one") for _ in range(25)]
    one, three = (learn_from(given, WINDOWS, threads=n).model for n in (1, 3))
    assert (one.weight1 == three.weight1).all()
    assert (one.factors == three.factors).all()


def test_a_package_keeps_it(learnt, tmp_path):
    assert BoundaryModel.load(tmp_path) is None
    learnt.model.save(tmp_path / FILE)
    held = BoundaryModel.load(tmp_path)
    u = utterance(np.random.default_rng(8), "x")
    ours = learnt.model.corrected(u.names, u.times, u.frames, SHIFT)
    theirs = held.corrected(u.names, u.times, u.frames, SHIFT)
    assert all((a == b).all() for a, b in zip(ours, theirs, strict=True))
    dataclasses.replace(learnt.model, bias1=np.zeros(3)).save(tmp_path / FILE)
    with pytest.raises(UserError, match="not a model of boundaries"):
        BoundaryModel.load(tmp_path)
    (tmp_path / FILE).write_bytes(b"PK")
    with pytest.raises(UserError, match="not a model of boundaries"):
        BoundaryModel.load(tmp_path)


def test_phones_that_were_never_seen_are_moved_too(learnt):
    u = utterance(np.random.default_rng(9), "x")
    moved, margins = learnt.model.corrected(["?"] * 10, u.times, u.frames, SHIFT)
    assert np.isfinite(moved).all()
    assert (margins[1:-1] > 0).all()


def test_too_little_is_refused():
    rng = np.random.default_rng(10)
    few = [utterance(rng, "a") for _ in range(FEWEST // 9)]
    with pytest.raises(UserError, match=f"where {FEWEST} are needed"):
        learn_from(few, WINDOWS)


def label(*intervals):
    return [Interval(*interval) for interval in intervals]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        # sil a b sil: as aligned
        (label((0.2, 0.4, "a"), (0.4, 0.6, "b")), [0.2, 0.4, 0.6]),
        # another name for the same place
        (label((0.2, 0.4, "A1"), (0.4, 0.6, "b")), [0.2, 0.4, 0.6]),
        # a pause that the alignment lacks: none can say where the boundary is
        (label((0.2, 0.35, "a"), (0.45, 0.6, "b")), [0.2, 0.45, 0.6]),
        # a phone that the alignment lacks
        (label((0.2, 0.4, "a"), (0.4, 0.5, "x"), (0.5, 0.6, "b")), [0.2, 0.5, 0.6]),
        # the same phones at another time
        (label((1.2, 1.4, "a"), (1.4, 1.6, "b")), [np.nan] * 3),
        ([], [np.nan] * 3),
    ],
)
def test_labels_tell_boundaries(labels, expected):
    found = true_boundaries(
        ["sil", "a", "b", "sil"], np.array([0.0, 0.21, 0.42, 0.63, 1.0]), labels
    )
    assert found[1:4] == pytest.approx(np.array(expected), nan_ok=True)
    assert np.isnan(found[[0, 4]]).all()


@given(st.lists(st.floats(-0.2, 1.2), min_size=1, max_size=20))
def test_boundaries_stay_in_order(inner):
    found = in_order_of_time(np.array([0.0, *inner, 1.0]))
    assert (found[0], found[-1]) == (0.0, 1.0)
    assert (np.diff(found) > 0.0049).all()
    kept = np.array([0.0, *sorted(inner), 1.0])
    if (np.diff(kept) >= 0.005).all():
        assert in_order_of_time(kept) == pytest.approx(kept)


def test_windows_are_between_frames():
    frames = np.arange(40.0)[:, None]
    found = windows_around(np.array([0.1025, 0.105, 0.0]), frames, 0.005)
    assert found.shape == (3, len(CONTEXT))
    assert found[0] == pytest.approx(20 + CONTEXT)
    assert found[1] == pytest.approx(20.5 + CONTEXT)
    assert found[2] == pytest.approx(np.maximum(CONTEXT - 0.5, 0))


def test_intervals_hold_the_share_of_errors_that_they_name():
    rng = np.random.default_rng(0)
    held = [
        rng.laplace(size=300)[:, None].__abs__()
        <= conformal_factors(np.abs(rng.laplace(size=500)))
        for _ in range(40)
    ]
    assert np.mean(np.concatenate(held), axis=0) == pytest.approx([0.8, 0.95], abs=0.01)
