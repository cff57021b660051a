"""The n best word sequences of a lattice, and random paths.

`n_best` is exact: it gives the n cheapest *distinct* word sequences, each with its
cheapest path, on any lattice, raw or compact, deterministic or not. It searches over
word sequences, best first. A hypothesis is a beginning of a word sequence with the set
of states that some path with just these words reaches, and the least cost to each.
Since the least cost from every state to the end is known, so is the exact cost of the
best completion of a hypothesis: the search takes up no beginning that is not the
beginning of one of the n best, and nothing beyond the n best is ever expanded.

Source: Mohri and Riley 2002, "An efficient algorithm for the n-best-strings problem":
shortest paths through a graph that is determinized only where the search goes. Kaldi's
`lattice-nbest` wants a lattice that is deterministic already.
"""

from __future__ import annotations

import heapq
from bisect import insort
from dataclasses import dataclass, field

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit
from latflow.lattice.best_path import BestPath, path_along
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.path_sums import ScaledArcs, costs_to_end, forward_backward
from latflow.lattice.word_graph import WordGraph

_SLACK = 1e-9  # relative: sums in another order differ by rounding


def n_best(
    lattice: Lattice | CompactLattice,
    n: int,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
    word_insertion_penalty: float = 0.0,
) -> list[BestPath]:
    """Find the cheapest distinct word sequences.

    Args:
        lattice: raw or compact.
        n: how many, >= 1.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.
        word_insertion_penalty: cost of each word.

    Returns:
        At most n paths, cheapest first, no two with the same words; each is the
        cheapest path of its words. Equally cheap ones are in the order of word ids.

    Raises:
        UserError: n is below 1, no path leads to a final state, or a cost is NaN.
    """
    _check_count(n)
    graph = WordGraph.of(
        lattice,
        lm_scale=lm_scale,
        acoustic_scale=acoustic_scale,
        word_insertion_penalty=word_insertion_penalty,
    )
    to_end = costs_to_end(graph.arcs)
    return [
        graph.path(_best_arcs(graph.arcs, graph.word, to_end, words, _above(cost)))
        for cost, words in _Search(graph, to_end, n).run()
    ]


def random_paths(
    lattice: Lattice | CompactLattice,
    n: int,
    generator: np.random.Generator,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> list[BestPath]:
    """Draw paths, each with its posterior probability, with replacement.

    The probability of a path is exp(-cost) over the sum of all paths.

    Args:
        lattice: raw or compact.
        n: how many, >= 1.
        generator: of random numbers.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Raises:
        UserError: n is below 1, no path leads to a final state, or a cost is NaN.
    """
    _check_count(n)
    sums = forward_backward(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    posteriors = sums.arc_posterior, sums.final_posterior
    seeds = generator.integers(0, 2**32, n, np.uint32)
    drawn = (_draw(sums.forward.arcs, *posteriors, seed) for seed in seeds)
    return [path_along(lattice, arcs, end) for arcs, end in drawn]


def _check_count(n: int) -> None:
    """Raise UserError unless at least one path is asked for."""
    if n < 1:
        raise UserError(f"{n} paths asked for", remedy="ask for one or more")


def _above(cost: float) -> float:
    """Return a bound that a cost does not pass by rounding."""
    return cost + _SLACK * max(1.0, abs(cost))


@dataclass(order=True)
class _Hypothesis:
    """The beginning of a word sequence.

    Attributes:
        cost: of the cheapest path that begins so, to the end of the lattice.
        words: its words.
        is_complete: whether the sequence ends here.
        states: int32[K], states reached by a path with these words, its last one on
            the last arc.
        costs: float64[K], least cost to each.
    """

    cost: float
    words: tuple[int, ...]
    is_complete: bool
    states: np.ndarray = field(compare=False)
    costs: np.ndarray = field(compare=False)


class _Search:
    """Best-first search over word sequences.

    Args:
        graph: the lattice.
        to_end: float64[S], least cost from each state to the end.
        n: number of sequences to find.
    """

    def __init__(self, graph: WordGraph, to_end: np.ndarray, n: int) -> None:
        self._arcs, self._word = graph.arcs, graph.word
        self._to_end = to_end
        self._n = n
        self._scratch = np.full(graph.num_states, np.inf)
        start = _Hypothesis(
            cost=float(to_end[0]),
            words=(),
            is_complete=False,
            states=np.zeros(1, np.int32),
            costs=np.zeros(1),
        )
        self._open = [start]
        # The best costs, at most n, of sequences that exist: no hypothesis is the
        # beginning of another one, so each stands for its own sequence.
        self._least = [start.cost]

    def run(self) -> list[tuple[float, np.ndarray]]:
        """Find (cost, words) of the best sequences, cheapest first."""
        found: list[tuple[float, np.ndarray]] = []
        while self._open and len(found) < self._n:
            best = heapq.heappop(self._open)
            if best.is_complete:
                found.append((best.cost, np.array(best.words, np.int32)))
            else:
                self._expand(best)
        return found

    def _expand(self, parent: _Hypothesis) -> None:
        """Put a hypothesis with each next word, or with the end, in the queue."""
        limit = self._limit()
        arcs = self._arcs, self._word, self._to_end
        last = _follow(*arcs, (parent.states, parent.costs), limit, self._scratch)
        first = int(parent.states.min())
        word, state, cost = _collect(*arcs, (first, last), limit, self._scratch)
        order = np.lexsort((cost, state, word))
        word, state, cost = word[order], state[order], cost[order]
        is_first = np.ones(len(word), bool)  # the cheapest of a word and a state
        is_first[1:] = (word[1:] != word[:-1]) | (state[1:] != state[:-1])
        word, state, cost = word[is_first], state[is_first], cost[is_first]
        first = np.flatnonzero(np.append([True], word[1:] != word[:-1]))
        totals = np.minimum.reduceat(cost + self._to_end[state], first)
        bound = np.append(first[1:], len(word))
        for rank, k in enumerate(np.argsort(totals, kind="stable").tolist()):
            total = float(totals[k])
            if rank:  # the first continues the sequence that the parent stood for
                if total > self._limit():
                    break
                insort(self._least, total)
                del self._least[self._n :]
            label, span = int(word[first[k]]), slice(first[k], bound[k])
            words = (*parent.words, label) if label else parent.words
            child = _Hypothesis(total, words, label == 0, state[span], cost[span])
            heapq.heappush(self._open, child)

    def _limit(self) -> float:
        """Return the cost beyond which nothing is wanted; finite."""
        is_full = len(self._least) == self._n
        return _above(self._least[-1]) if is_full else float(np.finfo(np.float64).max)


@njit(cache=True, nogil=True)
def _follow(
    arcs: ScaledArcs,
    word: np.ndarray,
    to_end: np.ndarray,
    start: tuple[np.ndarray, np.ndarray],
    limit: float,
    reached: np.ndarray,
) -> int:
    """Follow arcs without words from a set of states.

    Args:
        arcs: of the graph.
        word: int32[A], their words.
        to_end: float64[S], least cost to the end.
        start: the states, int32[K], and the cost of each of them, float64[K].
        limit: finite; paths that cost more are left out.
        reached: float64[S], all inf; filled with the least cost to each state.

    Returns:
        The highest state that is reached.
    """
    arc_begin, target, cost, _ = arcs
    states, costs = start
    first, last = states[0], states[0]
    for k in range(len(states)):
        reached[states[k]] = costs[k]
        first, last = min(first, states[k]), max(last, states[k])
    state = first
    while state <= last:
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            there = target[arc]
            through = reached[state] + cost[arc]
            is_next = word[arc] == 0 and there < len(to_end) - 1
            if (
                is_next
                and through < reached[there]
                and through + to_end[there] <= limit
            ):
                reached[there] = through
                last = max(last, there)
        state += 1
    return last


@njit(cache=True, nogil=True)
def _collect(
    arcs: ScaledArcs,
    word: np.ndarray,
    to_end: np.ndarray,
    span: tuple[int, int],
    limit: float,
    reached: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the arcs with a word, or to the end, from the states reached.

    Args:
        arcs: of the graph.
        word: int32[A], their words.
        to_end: float64[S], least cost to the end.
        span: lowest and highest state reached.
        limit: finite; paths that cost more are left out.
        reached: float64[S], least cost to each state; all inf again on return.

    Returns:
        (int32[M], word of each arc, 0 for the end; int32[M], the state it leads to;
        float64[M], cost up to there). A word and state may come more than once.
    """
    arc_begin, target, cost, _ = arcs
    most = arc_begin[span[1] + 1] - arc_begin[span[0]]
    found_word, found_state = np.empty(most, np.int32), np.empty(most, np.int32)
    found_cost = np.empty(most, np.float64)
    count = 0
    for state in range(span[0], span[1] + 1):
        if reached[state] == np.inf:
            continue
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            there = target[arc]
            through = reached[state] + cost[arc]
            is_listed = word[arc] != 0 or there == len(to_end) - 1
            if is_listed and through + to_end[there] <= limit:
                found_word[count], found_state[count] = word[arc], there
                found_cost[count] = through
                count += 1
        reached[state] = np.inf
    return found_word[:count], found_state[:count], found_cost[:count]


@njit(cache=True, nogil=True)
def _best_arcs(
    arcs: ScaledArcs,
    word: np.ndarray,
    to_end: np.ndarray,
    words: np.ndarray,
    limit: float,
) -> np.ndarray:
    """Find the cheapest path with given words.

    Args:
        arcs: of the graph.
        word: int32[A], their words.
        to_end: float64[S], least cost to the end.
        words: int32[N].
        limit: a little more than the path costs: what costs more is not looked at.

    Returns:
        int64[L], its arcs.
    """
    arc_begin, target, cost, _ = arcs
    num_states, num_words = len(to_end), len(words)
    # best[s, j]: least cost to state s with the first j words, by the arc came_by
    best = np.full((num_states, num_words + 1), np.inf)
    came_by = np.full((num_states, num_words + 1), -1, np.int64)
    came_from = np.full((num_states, num_words + 1), -1, np.int32)
    is_reached = np.zeros(num_states, np.bool_)
    best[0, 0] = 0.0
    is_reached[0] = True
    for state in range(num_states - 1):
        if not is_reached[state]:
            continue
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            there, label = target[arc], word[arc]
            step = 1 if label != 0 else 0
            for j in range(num_words + 1 - step):
                through = best[state, j] + cost[arc]
                if (
                    through + to_end[there] <= limit
                    and through < best[there, j + step]
                    and (step == 0 or label == words[j])
                ):
                    best[there, j + step] = through
                    came_by[there, j + step] = arc
                    came_from[there, j + step] = state
                    is_reached[there] = True
    path = np.empty(num_states, np.int64)
    length, state, j = 0, num_states - 1, num_words
    while came_by[state, j] >= 0:
        arc = came_by[state, j]
        path[length] = arc
        length += 1
        state, j = came_from[state, j], j - (1 if word[arc] != 0 else 0)
    return path[:length][::-1].copy()


@njit(cache=True, nogil=True)
def _draw(
    arcs: ScaledArcs, arc_posterior: np.ndarray, final_posterior: np.ndarray, seed: int
) -> tuple[np.ndarray, int]:
    """Draw one path.

    Args:
        arcs: of the lattice.
        arc_posterior: float64[A].
        final_posterior: float64[S], share of the paths that end in each state.
        seed: of Numba's own generator, below 2^32.

    Returns:
        (int64[L], its arcs; its last state).
    """
    np.random.seed(seed)  # noqa: NPY002 (per thread in Numba; no generator object here)
    path = np.empty(len(final_posterior), np.int64)
    length, state = 0, 0
    while True:
        first, last = arcs.arc_begin[state], arcs.arc_begin[state + 1]
        of_state = final_posterior[state]
        for arc in range(first, last):
            of_state += arc_posterior[arc]
        rest = np.random.random() * of_state  # noqa: NPY002
        taken = -1
        for arc in range(first, last):
            if arc_posterior[arc] > 0.0:
                taken = arc  # also the last one, should rounding leave a rest
                rest -= arc_posterior[arc]
                if rest < 0.0:
                    break
        if taken < 0 or (rest >= 0.0 and final_posterior[state] > 0.0):
            return path[:length].copy(), state
        path[length] = taken
        length += 1
        state = arcs.next_state[taken]
