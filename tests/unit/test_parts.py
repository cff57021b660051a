"""Every utterance is in one part, whatever the lengths; order comes back in joining."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.errors import UserError
from latflow.parts import in_order_of_ids, share_of, utterances_of

LENGTHS = st.lists(st.integers(0, 500), max_size=30)


def parts_of(count, begin, speakers=None):
    names = [f"{k}-of-{count}" for k in range(1, count + 1)]
    return [utterances_of(name, begin, speakers).tolist() for name in names]


@given(LENGTHS, st.integers(1, 8))
def test_parts_are_ranges_that_cover_the_set(lengths, count):
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    parts = parts_of(count, begin)
    assert [u for part in parts for u in part] == list(range(len(lengths)))
    longest, mean = max(lengths, default=0), sum(lengths) / count
    for part in parts:  # balanced by duration
        assert abs(sum(lengths[u] for u in part) - mean) <= max(longest, mean)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 5)), max_size=30))
def test_speakers_stay_together(utterances):
    lengths = [length for length, _ in utterances]
    codes = {}
    speakers = [codes.setdefault(name, len(codes)) for _, name in utterances]
    begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    parts = parts_of(3, begin, np.array(speakers, np.int32))
    assert sorted(u for part in parts for u in part) == list(range(len(lengths)))
    assert all(part == sorted(part) for part in parts)
    of_parts = [{speakers[u] for u in part} for part in parts]
    assert sum(map(len, of_parts)) == len(codes)


def test_the_whole_is_no_part():
    assert utterances_of(None, np.array([0, 3, 5])).tolist() == [0, 1]
    assert (share_of(None), share_of("2-of-4")) == (1.0, 0.25)


def test_items_come_in_the_order_of_the_whole():
    parts = [[("a", 1), ("d", 4)], [], [("b", 2), ("c", 3)]]
    assert [item for _, item in in_order_of_ids(parts)] == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["5-of-4", "0-of-4", "4", "1-of-0", "-1-of-2"])
def test_other_names_are_refused(name):
    with pytest.raises(UserError, match="names no part of a set"):
        utterances_of(name, np.array([0, 3, 5]))
