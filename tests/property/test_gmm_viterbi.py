"""The Viterbi search against enumeration of all paths."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from reference import gmm_naive

from latflow.align.aligner import least_frames, with_second_copy
from latflow.align.viterbi import best_path
from latflow.fst.graph import Graph
from latflow.gmm.alignment import WIDTH, MixtureScores, new_book
from latflow.gmm.kernels import new_tile, open_tile, score_mixture
from latflow.gmm.model import DiagGmms
from latflow.gmm.train import equal_alignment


@st.composite
def graphs(draw):
    """Graphs of up to 5 states with silent arcs, self-loops and dead ends."""
    num_states = draw(st.integers(1, 5))
    state = st.integers(0, num_states - 1)
    cost = st.floats(0, 4, width=32)
    arcs = draw(st.lists(st.tuples(state, state, st.integers(0, 3), cost), max_size=8))
    arcs.sort(key=lambda arc: arc[0])
    finals = draw(
        st.lists(
            st.one_of(st.just(np.inf), cost), min_size=num_states, max_size=num_states
        )
    )
    source = np.array([arc[0] for arc in arcs], np.int64)
    label = np.array([arc[2] for arc in arcs], np.int32)
    return Graph.from_arrays(
        0,
        np.searchsorted(source, np.arange(num_states + 1)),
        label,
        np.zeros_like(label),
        np.array([arc[3] for arc in arcs], np.float32),
        np.array([arc[1] for arc in arcs], np.int32),
        np.array(finals, np.float32),
    )


def search(graph, acoustic_costs, beam):
    """Search with costs that are given.

    Frame t of the features holds them, and pdf p has one Gaussian, without constant or
    squares, whose log-likelihood is minus entry p of the frame.
    """
    arcs = (
        np.array(graph.arc_begin),
        np.array(graph.ilabel) - np.int32(1),
        np.array(graph.weight),
        np.array(graph.next_state),
    )
    num_pdfs = acoustic_costs.shape[1]
    num_rows = -(-(1 + 2 * num_pdfs) // 4) * 4
    factors = np.zeros((num_pdfs, num_rows), np.float32)
    factors[:, 1 : 1 + num_pdfs] = -np.eye(num_pdfs)
    mixtures = (np.arange(num_pdfs + 1), factors)
    lazily = MixtureScores(acoustic_costs, mixtures, new_book(mixtures))
    final = np.array(graph.final)
    searches = [
        best_path(
            arcs,
            graph.start,
            final,
            scores,
            len(acoustic_costs),
            np.float32(1.0),
            float(beam),
            1 << 40,
        )
        for scores in (lazily, -acoustic_costs)
    ]
    (path, log_likes, cost), (other_path, _, other_cost) = searches
    np.testing.assert_array_equal(path, other_path)
    assert cost == other_cost
    pdfs = arcs[1][path]
    np.testing.assert_array_equal(
        log_likes, -acoustic_costs[np.arange(len(path)), pdfs]
    )
    return path, cost


@given(graphs(), st.integers(1, 4), st.integers(0, 2**31))
def test_best_path_is_the_cheapest_of_all(graph, num_frames, seed):
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0, 5, (num_frames, 3)).astype(np.float32)
    column = np.array(graph.ilabel) - 1
    path, cost = search(graph, costs, 1e6)
    wanted = gmm_naive.cheapest_path(graph, costs, column)
    assert cost == pytest.approx(wanted, rel=1e-5)
    assert len(path) == (num_frames if np.isfinite(wanted) else 0)
    if len(path):
        assert gmm_naive.is_path(graph, path, column)
    narrow, narrow_cost = search(graph, costs, 1.0)
    assert narrow_cost >= cost - 1e-4
    assert len(narrow) in (0, num_frames)


@given(graphs(), st.integers(1, 3), st.integers(0, 2**31))
def test_second_copy_only_refuses(graph, num_frames, seed):
    """A careful search finds the same path, or none."""
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0, 5, (num_frames, 3)).astype(np.float32)
    doubled = with_second_copy(graph)
    doubled.check()
    assert doubled.num_states == 2 * graph.num_states + 1
    assert doubled.num_final_states == 1
    _, cost = search(graph, costs, 1e6)
    _, careful = search(doubled, costs, 1e6)
    assert careful == pytest.approx(cost, rel=1e-5)


@given(graphs(), st.integers(1, 12), st.integers(0, 2**31))
def test_equal_alignment_is_a_path(graph, num_frames, seed):
    shortest = least_frames(graph)
    if shortest is None or _has_trap(graph):
        return
    ids = equal_alignment(graph, num_frames, np.random.default_rng(seed))
    if ids is None:
        return
    assert len(ids) == num_frames >= shortest
    again = equal_alignment(graph, num_frames, np.random.default_rng(seed))
    np.testing.assert_array_equal(ids, again)
    costs = np.ones((num_frames, 3), np.float32)
    costs[np.arange(num_frames), ids - 1] = 0.0
    zeros = Graph.from_arrays(
        graph.start,
        graph.arc_begin,
        graph.ilabel,
        graph.olabel,
        np.zeros(graph.num_arcs),
        graph.next_state,
        np.where(np.isfinite(graph.final), 0.0, np.inf),
    )
    assert search(zeros, costs, 1e6)[1] == 0.0


def _has_trap(graph):
    """Whether a state can be reached from which no final state can."""
    reach = np.eye(graph.num_states, dtype=bool)
    source = np.repeat(np.arange(graph.num_states), np.diff(graph.arc_begin))
    for _ in range(graph.num_states):
        for arc in range(graph.num_arcs):
            reach[source[arc]] |= reach[graph.next_state[arc]]
    ends = np.asarray(reach[:, np.isfinite(graph.final)].any(axis=1))
    return not ends[reach[graph.start]].all()


def small_mixtures(rng, sizes, dim):
    """Mixtures with a number of Gaussians each."""
    total = sum(sizes)
    return DiagGmms.from_moments(
        np.concatenate([[0], np.cumsum(sizes)]),
        rng.uniform(0.1, 1.0, total),
        rng.normal(size=(total, dim)),
        rng.uniform(0.5, 2.0, (total, dim)),
    )


@njit
def tile_row(x, mixtures, first, pdf):
    """A mixture's log-likelihoods on one tile; tiles stay within compiled code."""
    begin, factors = mixtures
    tile = new_tile(factors.shape[1], WIDTH, (begin[1:] - begin[:-1]).max())
    open_tile(tile, x, first, min(WIDTH, len(x) - first))
    row = np.empty(WIDTH, np.float32)
    score_mixture(tile, mixtures, pdf, WIDTH, row)
    return row


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 2 * WIDTH + 3),
    st.integers(0, 2**31),
)
def test_tiles_hold_the_log_likelihoods_of_their_frames(sizes, dim, num_frames, seed):
    rng = np.random.default_rng(seed)
    gmms = small_mixtures(rng, sizes, dim)
    x = rng.normal(size=(num_frames, dim)).astype(np.float32)
    wanted = gmms.log_likelihoods(x)
    for first in range(0, num_frames, WIDTH):
        pdf = int(rng.integers(len(sizes)))
        found = tile_row(x, gmms.mixtures, first, pdf)
        mine = wanted[first : first + WIDTH, pdf]
        np.testing.assert_array_equal(found[: len(mine)], mine)


@given(graphs(), st.integers(WIDTH - 1, 2 * WIDTH + 1), st.integers(0, 2**31))
@settings(max_examples=30)
def test_search_goes_on_over_the_edges_of_tiles(graph, num_frames, seed):
    """Without a beam: the plain recursion over all states (costs are not negative)."""
    rng = np.random.default_rng(seed)
    costs = rng.uniform(0, 5, (num_frames, 3)).astype(np.float32)
    _, cost = search(graph, costs, 1e6)
    wanted = gmm_naive.cheapest_path_by_recursion(graph, costs)
    assert cost == pytest.approx(wanted, rel=1e-5)
