"""Choosing the scales."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latflow.decode.options import DecodeOptions
from latflow.errors import UserError
from latflow.lattice.best_path import Scales, best_paths
from latflow.lattice.lattice import Lattice
from latflow.options import read_options
from latflow.scoring.options import TuneOptions
from latflow.scoring.tune import choose, penalties_beyond, weights_beyond


def table(*rows):
    """Errors of weights 7, 8, ... in each row; one row a penalty 0.0, 0.5, ..."""
    return {
        (7 + k, 0.5 * i): errors
        for i, row in enumerate(rows)
        for k, errors in enumerate(row)
    }


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (([3, 2, 1, 2],), (9, 0.0)),
        (([1, 1, 1, 2],), (8, 0.0)),
        (([2, 1, 1, 2],), (8, 0.0)),
        (([1, 2, 1, 1], [9, 1, 1, 1]), (9, 0.5)),
        (([1, 2, 2], [2, 1, 2]), (7, 0.0)),
        (([4, 4, 4], [4, 4, 4]), (8, 0.0)),
        (([5],), (7, 0.0)),
    ],
)
def test_the_middle_of_the_longest_plateau_is_chosen(rows, chosen):
    assert choose(table(*rows)) == chosen


def test_of_equally_good_penalties_that_nearest_to_0_is_chosen():
    errors = {(7, wip): 1 for wip in (-4.0, -0.5, 0.5, 1.0)}
    assert choose(errors) == (7, -0.5)


def test_bonuses_of_words_are_for_decoders_with_attention():
    tune = read_options(DecodeOptions, {"tune": {"word_bonuses": [2.0]}}, "decode").tune
    others = tune.of_system(has_decoder=False)
    assert others == TuneOptions(word_bonuses=())
    found = tune.of_system(has_decoder=True).word_insertion_penalties
    assert found == (0.0, 0.5, 1.0, -2.0)
    with pytest.raises(UserError, match="word_bonuses"):
        read_options(DecodeOptions, {"tune": {"word_bonuses": [0.0]}}, "decode")


def test_a_bonus_takes_the_path_that_leaves_no_word_out():
    """Two linear paths, as a decoder with attention writes them."""
    arcs = np.array([[0, 1, 1, 5], [1, 2, 1, 0], [0, 3, 1, 5], [3, 4, 1, 6]], np.int32)
    costs = np.zeros((4, 2), np.float32)
    costs[0], costs[2] = (1.0, 0.0), (2.0, 10.0)  # of the language model, and others
    ends = np.full((5, 2), np.inf, np.float32)
    ends[[2, 4]] = 0.0
    lattice = Lattice.from_arcs(arcs, costs, ends)
    scales = [Scales.from_lmwt(10, wip) for wip in (0.0, -1.0, -4.0)]
    found = [list(path.words) for path in best_paths(lattice, scales)]
    assert found == [[5], [5], [5, 6]]


def test_defaults_of_the_section():
    section = DecodeOptions()
    assert (section.beam, section.lattice_beam) == (13, 6)
    assert (section.tune.lmwt.min, section.tune.lmwt.max) == (7, 40)
    assert section.tune.word_insertion_penalties == (0.0, 0.5, 1.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"baem": 10}, r"decode\.baem - did you mean beam"),
        ({"tune": {"lmwt": {"mim": 3}}}, r"decode\.tune\.lmwt\.mim"),
        ({"beam": 0}, r"decode\.beam"),
        ({"on_no_final": "skip"}, r"decode\.on_no_final"),
        ({"tune": {"word_insertion_penalties": []}}, "word_insertion_penalties"),
    ],
)
def test_wrong_keys_and_values_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        read_options(DecodeOptions, values, "decode")


@given(st.integers(1, 1000), st.integers(1, 1000), st.integers(1, 1000))
def test_the_sweep_ends_wherever_the_best_weight_lies(low, high, best):
    low, high = min(low, high), max(low, high)
    tried = list(range(low, high + 1))
    for _ in range(20):
        nearest = min(tried, key=lambda weight: abs(weight - best))
        fresh = weights_beyond(tried, nearest)
        assert not set(fresh) & set(tried)
        if not fresh:
            break
        tried = sorted({*tried, *fresh})
        assert tried == list(range(tried[0], tried[-1] + 1))
    assert tried[0] < best < tried[-1] or best in {1, 1000} or low == high


@given(st.floats(0.1, 3), st.integers(-5, 5), st.integers(2, 5), st.floats(-30, 30))
def test_penalties_go_on_until_the_best_is_inside(step, first, count, best):
    tried = [step * (first + k) for k in range(count)]
    for _ in range(20):
        nearest = min(tried, key=lambda penalty: abs(penalty - best))
        fresh = penalties_beyond(tried, nearest)
        assert not set(fresh) & set(tried)
        assert all(abs(penalty) <= 20 for penalty in fresh)
        if not fresh:
            break
        tried = sorted({*tried, *fresh})
        np.testing.assert_allclose(np.diff(tried), step, atol=1e-5)
    assert tried[0] < best < tried[-1] or abs(best) > 20 - step


def test_penalties_keep_the_distance_of_that_end():
    assert penalties_beyond([0.0, 0.5, 1.0], 1.0) == [1.5, 2.0]
    assert penalties_beyond([0.0, 0.5, 1.0], 0.0) == [-1.0, -0.5]
    assert penalties_beyond([-4.0, -2.0, -1.0, 0.0, 0.1], -4.0) == [-8.0, -6.0]
    assert penalties_beyond([0.0, 0.1, 0.3], 0.0) == [-0.3, -0.2, -0.1]
    assert penalties_beyond([0.0, 0.5, 1.0], 0.5) == []
    assert penalties_beyond([0.0, 30.0], 30.0) == []
