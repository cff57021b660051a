"""n-best lists worked out by hand, and lattices that have none."""

from dataclasses import replace

import numpy as np
import pytest

from latflow.errors import UserError
from latflow.lattice.lattice import Lattice
from latflow.lattice.n_best import n_best, random_paths


@pytest.fixture
def lattice():
    # Two ways to say "1 2", one to say "1 3":
    # 0 --1/1--> 1 --2/1--> 3      0 --1/2--> 2 --2/3--> 3, 2 --3/0.5--> 3
    arcs = [(0, 1, 5, 1), (0, 2, 6, 1), (1, 3, 5, 2), (2, 3, 6, 2), (2, 3, 6, 3)]
    costs = [(1, 0), (2, 0), (1, 0), (3, 0), (0.5, 0)]
    finals = np.full((4, 2), np.inf, np.float32)
    finals[3] = 0.0
    return Lattice.from_arcs(np.array(arcs), np.array(costs, np.float32), finals)


def test_no_word_sequence_comes_twice(lattice):
    found = n_best(lattice, 10)
    assert [path.words.tolist() for path in found] == [[1, 2], [1, 3]]
    assert [path.graph_cost for path in found] == [2.0, 2.5]
    assert [path.transition_ids.tolist() for path in found] == [[5, 5], [6, 6]]
    assert found[0].word_begin.tolist() == [0, 1]
    assert found[0].word_end.tolist() == [1, 2]


def test_the_best_one_only(lattice):
    assert [path.words.tolist() for path in n_best(lattice, 1)] == [[1, 2]]


def test_a_lattice_without_frames_or_words_has_the_empty_sequence():
    nothing = Lattice.from_arcs(
        np.empty((0, 4), np.int32),
        np.empty((0, 2), np.float32),
        np.zeros((1, 2), np.float32),
    )
    (path,) = n_best(nothing, 3)
    assert path.words.tolist() == path.transition_ids.tolist() == []
    (path,) = random_paths(nothing, 1, np.random.default_rng(0))
    assert path.words.tolist() == []


def test_what_cannot_be_answered(lattice):
    with pytest.raises(UserError, match="0 paths asked for"):
        n_best(lattice, 0)
    with pytest.raises(UserError, match="0 paths asked for"):
        random_paths(lattice, 0, np.random.default_rng(0))
    lost = replace(lattice, final_graph_cost=np.full(4, np.inf, np.float32))
    with pytest.raises(UserError, match="without a path to a final state"):
        n_best(lost, 1)
    with pytest.raises(UserError, match="without a path to a final state"):
        random_paths(lost, 1, np.random.default_rng(0))
    odd = replace(lattice, graph_cost=np.full(5, -np.inf, np.float32))
    with pytest.raises(UserError, match="graph cost of -inf"):
        n_best(odd, 1)


def test_parallel_paths_do_not_blow_up():
    # 2^60 paths, 61 word sequences: each of 60 steps has a pair of arcs with one word.
    steps = np.arange(60)
    arcs = np.array([(s, s + 1, t, 1) for s in steps for t in (1, 2)])
    arcs[1::2, 3] = np.where(steps == 30, 2, 1)
    costs = np.tile(np.array([[1, 0], [2, 0]], np.float32), (60, 1))
    finals = np.full((61, 2), np.inf, np.float32)
    finals[60] = 0.0
    found = n_best(Lattice.from_arcs(arcs, costs, finals), 100)
    assert [path.graph_cost for path in found] == [60.0, 61.0]
    assert found[1].words[30] == 2
