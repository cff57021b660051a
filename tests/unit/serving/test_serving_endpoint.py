"""Endpoint rules against a plain reading of Kaldi's text."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.decode.options import EndpointOptions
from latflow.serving.endpoint import EndpointDetector, fired_rule

INF = float("inf")
# must contain nonsilence, least trailing silence, most relative cost, least length
KALDI = [
    (False, 5.0, INF, 0.0),
    (True, 0.5, 2.0, 0.0),
    (True, 1.0, 8.0, 0.0),
    (True, 2.0, INF, 0.0),
    (False, 0.0, INF, 20.0),
]
SHIFT = 0.03
COSTS = st.sampled_from([0.0, 1.9, 2.0, 2.1, 8.0, 9.0, 1e4, INF])


def kaldi_rule(num_frames, silent, cost):
    for number, (must, silence, most, length) in enumerate(KALDI, start=1):
        has_speech = silent < num_frames
        if (
            (has_speech or not must)
            and np.float32(silent) * np.float32(SHIFT) >= np.float32(silence)
            and cost <= most
            and np.float32(num_frames) * np.float32(SHIFT) >= np.float32(length)
        ):
            return number
    return 0


def detector():
    is_silence = np.array([False, True, True, False, False])
    return EndpointDetector(EndpointOptions(), is_silence, SHIFT)


@given(st.integers(0, 800), st.integers(0, 800), COSTS, st.integers(0, 2**32 - 1))
def test_the_five_rules(num_frames, silent, cost, seed):
    silent = min(num_frames, silent)
    ids = np.random.default_rng(seed).integers(1, 5, num_frames)
    ids[num_frames - silent :] = seed % 2 + 1
    if silent < num_frames:
        ids[num_frames - silent - 1] = 3
    search = SimpleNamespace(final_relative_cost=lambda: cost)
    found = detector().rule(search, ids.astype(np.int32))
    assert found == kaldi_rule(num_frames, silent, cost)


@given(st.lists(st.integers(1, 4), max_size=20))
def test_trailing_silence_is_counted_from_the_end(ids):
    expected = 0
    for number in reversed(ids):
        if number > 2:
            break
        expected += 1
    assert detector().trailing_silence(np.array(ids, np.int32)) == expected


@pytest.mark.parametrize(
    ("length", "silence", "cost", "rule"),
    [
        (4.9, 4.9, 0.0, 0),
        (5.0, 5.0, INF, 1),
        (3.0, 0.5, 2.0, 2),
        (3.0, 0.5, 2.1, 0),
        (3.0, 1.0, 8.0, 3),
        (3.0, 2.0, INF, 4),
        (20.0, 0.0, INF, 5),
    ],
)
def test_bounds(length, silence, cost, rule):
    found = fired_rule(
        EndpointOptions(), length=length, trailing_silence=silence, relative_cost=cost
    )
    assert found == rule


def test_the_fourth_rule_is_an_option():
    of_segment = {"length": 3.0, "trailing_silence": 1.5, "relative_cost": INF}
    assert fired_rule(EndpointOptions(), **of_segment) == 0
    sooner = EndpointOptions(rule4={"min_trailing_silence": 1.5})
    assert fired_rule(sooner, **of_segment) == 4
