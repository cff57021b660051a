"""The search for the beginnings of parts against trying all of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference import boundaries_naive

from latflow.align.boundaries import best_beginnings


@st.composite
def searches(draw):
    """Up to three parts in a few frames, with three Gaussians of dimension two."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_parts = draw(st.integers(1, 3))
    lengths = draw(st.lists(st.integers(1, 3), min_size=num_parts, max_size=num_parts))
    begin = np.concatenate([[0], np.cumsum(lengths[:-1])]).astype(np.int64)
    frames = rng.standard_normal((sum(lengths), 2))
    classes = rng.integers(0, 3, num_parts)
    factor = np.tril(rng.standard_normal((3, 2, 2)))
    gaussians = rng.standard_normal((3, 2)), factor, rng.standard_normal(3)
    return frames, classes, begin, draw(st.integers(1, 2)), *gaussians


@given(searches())
def test_beginnings_are_the_likeliest(search):
    frames, classes, _, _, *gaussians = search
    found = best_beginnings(*search)
    _, value = boundaries_naive.best_beginnings(*search)
    _, reached = boundaries_naive.best_beginnings(frames, classes, found, 0, *gaussians)
    assert reached == pytest.approx(value, rel=1e-9, abs=1e-9)


@given(searches())
def test_parts_stay_in_order_and_near(search):
    frames, _, begin, reach, *_ = search
    found = best_beginnings(*search)
    assert found[0] == 0
    assert (np.diff(np.append(found, len(frames))) >= 1).all()
    assert (np.abs(found - begin) <= reach).all()
