"""Oracle paths worked out by hand, and lattices that have none."""

from dataclasses import replace

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.lattice.edit_distance import ErrorCounts
from latflow.lattice.lattice import Lattice
from latflow.lattice.oracle import oracle

# 0 --1--> 1 --2--> 3 (final)      "1 2", cost 2
#  `-3--> 2 --0--> 3               "3", cost 1
ARCS = [(0, 1, 7, 1), (0, 2, 8, 3), (1, 3, 7, 2), (2, 3, 8, 0)]
COSTS = [(1, 0), (0.5, 0), (1, 0), (0.5, 0)]


@pytest.fixture
def lattice():
    finals = np.full((4, 2), np.inf, np.float32)
    finals[3] = 0.0
    return Lattice.from_arcs(np.array(ARCS), np.array(COSTS, np.float32), finals)


def ids(*words):
    return np.array(words, np.int32)


@pytest.mark.parametrize(
    ("reference", "words", "counts"),
    [
        ((1, 2), (1, 2), ErrorCounts(0, 0, 0, 2)),
        ((3,), (3,), ErrorCounts(0, 0, 0, 1)),
        ((1, 9), (1, 2), ErrorCounts(0, 0, 1, 2)),
        ((9, 1, 2), (1, 2), ErrorCounts(0, 1, 0, 3)),
        ((), (3,), ErrorCounts(1, 0, 0, 0)),
        # both paths have two errors: the cheaper one is taken
        ((8, 9), (3,), ErrorCounts(0, 1, 1, 2)),
    ],
)
def test_oracle_by_hand(lattice, reference, words, counts):
    found = oracle(lattice, ids(*reference))
    assert tuple(found.words) == words
    assert found.counts == counts


def test_words_that_do_not_count(lattice):
    found = oracle(lattice, ids(2), ignore={1})
    assert found.counts == ErrorCounts(0, 0, 0, 1)
    assert tuple(found.words) == (2,)
    assert tuple(found.path.words) == (1, 2)
    assert tuple(found.path.transition_ids) == (7, 7)


def test_errors_add_up(lattice):
    found = [oracle(lattice, ids(*reference)) for reference in ((1, 2), (1, 9))]
    assert sum((one.counts for one in found), ErrorCounts()).wer == 25.0


def test_no_path_and_costs_that_are_no_numbers(lattice):
    lost = replace(lattice, final_graph_cost=np.full(4, np.inf, np.float32))
    with pytest.raises(UserError, match="without a path to a final state"):
        oracle(lost, ids(1))
    odd = replace(lattice, acoustic_cost=np.full(4, np.nan, np.float32))
    with pytest.raises(UserError, match="NaN"):
        oracle(odd, ids(1))
