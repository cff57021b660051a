"""The best path of a search that is still going on.

Going back from the best token of the last frame, link by link, leads after some frames
to a token that the previous best path had come through as well. From there on the two
are one, for the best path to a token is settled with its frame. So each call goes back
only that far, and an hour of speech costs no more than a minute.

Source: Kaldi `decoder/lattice-faster-online-decoder.cc` (`BestPathEnd`,
`TraceBackBestPath`; it keeps a pointer back in each token).
"""

from __future__ import annotations

import numpy as np

from latflow.decode.search_graph import PackedGraph, SearchGraph
from latflow.decode.tokens import FRAMES, LINKS, TOKENS, Store
from latflow.jit import njit
from latflow.lattice.best_path import BestPath

STEP = np.dtype([("frame", "i4"), ("state", "u4"), ("arc", "u4"), ("acoustic", "f4")])


class PathTracer:
    """Finds best paths of one search, time and again.

    Args:
        graph: the graph searched.
    """

    def __init__(self, graph: PackedGraph) -> None:
        self._graph, self._packed = graph.graph, graph.packed
        self._left_from = np.zeros(0, np.uint32)  # state in which each frame is left
        # The path so far, one entry an arc.
        self._frame = np.zeros(0, np.int32)  # that the arc leads to
        self._transition_id = np.zeros(0, np.int32)
        self._word = np.zeros(0, np.int32)
        self._costs = np.zeros((2, 0), np.float32)  # graph, acoustic

    def best_path(self, store: Store, *, use_final: bool) -> BestPath:
        """Find the best path up to the last frame.

        Args:
            store: of the search, with tokens in the last frame.
            use_final: count final costs, and only paths to final states, if there are
                any.
        """
        end, final_cost = _best_end(store, self._packed.final, use_final)
        steps, meeting = _trace_back(store, end, self._left_from)
        kept = int(np.searchsorted(self._frame, meeting, side="right"))
        self._extend(kept, steps[::-1])
        frames = int(store.counts[FRAMES])
        left_from = np.empty(frames + 1, np.uint32)
        left_from[: meeting + 1] = self._left_from[: meeting + 1]
        _note_states(left_from, max(meeting, 0), self._packed.start, steps[::-1])
        self._left_from = left_from
        return self._path(frames, final_cost)

    def _extend(self, kept: int, steps: np.ndarray) -> None:
        """Keep this many arcs of the known path and continue with these steps."""
        graph, arcs = self._graph, self._packed.origin[steps["arc"]]
        weight = np.asarray(graph.weight[arcs], np.float32)
        costs = np.stack([weight, steps["acoustic"]])
        label = np.asarray(graph.ilabel[arcs], np.int32)
        word = np.asarray(graph.olabel[arcs], np.int32)
        self._frame = np.append(self._frame[:kept], steps["frame"])
        self._transition_id = np.append(self._transition_id[:kept], label)
        self._word = np.append(self._word[:kept], word)
        self._costs = np.concatenate([self._costs[:, :kept], costs], axis=1)

    def _path(self, num_frames: int, final_cost: float) -> BestPath:
        """Return the path as its labels, times and costs."""
        ids, is_word = self._transition_id, self._word != 0
        # The label of an arc that consumes a frame stands where that frame begins.
        begin = (self._frame - (ids != 0))[is_word].astype(np.int32)
        graph_cost, acoustic_cost = self._costs.sum(axis=1, dtype=np.float64)
        return BestPath(
            words=self._word[is_word],
            word_begin=begin,
            word_end=np.append(begin[1:], np.int32(num_frames))[: len(begin)],
            transition_ids=ids[ids != 0],
            graph_cost=float(graph_cost + final_cost),
            acoustic_cost=float(acoustic_cost),
        )


@njit(cache=True, nogil=True)
def _best_end(
    store: Store,
    final: np.ndarray,
    use_final: bool,  # noqa: FBT001 (a kernel)
) -> tuple[int, float]:
    """Return the last token of the best path, and its final cost."""
    first = store.token_begin[store.counts[FRAMES]]
    best, least, final_cost = -1, np.inf, 0.0
    if use_final:
        for i in range(first, store.counts[TOKENS]):
            cost = float(final[store.state[i]])
            total = float(store.cost[i]) + cost
            if total < least:
                best, least, final_cost = int(i - first), total, cost
    if best < 0:
        costs = store.cost[first : store.counts[TOKENS]]
        for i in range(len(costs)):
            if costs[i] < least:
                best, least = i, float(costs[i])
    return best, final_cost


@njit(cache=True, nogil=True)
def _trace_back(
    store: Store, end: int, left_from: np.ndarray
) -> tuple[np.ndarray, int]:
    """Go back from a token of the last frame until the known path is met.

    Args:
        store: of the search.
        end: the token.
        left_from: uint32[frames known], the state in which the known path leaves each.

    Returns:
        `STEP`[some], the path back; the frame where the known path is met, -1 for none.
    """
    steps = np.empty(256, STEP)
    size, token = 0, end
    for frame in range(store.counts[FRAMES], -1, -1):
        first = store.token_begin[frame]
        state = store.state[first + token]
        if frame < len(left_from) and left_from[frame] == state:
            return steps[:size], frame
        link_to = _best_links(store, frame)
        while link_to[token] >= 0:
            link = store.link[link_to[token]]
            if size == len(steps):
                longer = np.empty(2 * size, STEP)
                longer[:size] = steps
                steps = longer
            step = steps[size]
            step.frame, step.state = frame, store.state[first + token]
            step.arc, step.acoustic = link.arc, link.acoustic
            size += 1
            is_epsilon = link_to[token] >= store.epsilon_begin[frame]
            token = link.source
            if not is_epsilon:
                break
    return steps[:size], -1


@njit(cache=True, nogil=True)
def _best_links(store: Store, frame: int) -> np.ndarray:
    """Return the last link of the best path to each token, int64[tokens], or -1.

    Paths come from the frame before (or the start), so that none goes round a cycle.
    """
    first, last = store.token_begin[frame], store.token_begin[frame + 1]
    link_to = np.full(last - first, -1, np.int64)
    is_known = np.zeros(last - first, np.bool_)
    if frame == 0:
        is_known[0] = True
    else:
        for at in range(store.emitting_begin[frame - 1], store.epsilon_begin[frame]):
            link = store.link[at]
            target = link.target
            if not is_known[target] and link.total <= store.cost[first + target]:
                link_to[target], is_known[target] = at, True
    changed = True
    while changed:
        changed = False
        for at in range(store.epsilon_begin[frame], store.emitting_begin[frame]):
            source, target = store.link[at].source, store.link[at].target
            if is_known[target] or not is_known[source]:
                continue
            if store.link[at].total <= store.cost[first + target]:
                link_to[target], is_known[target] = at, True
                changed = True
    return link_to


@njit(cache=True, nogil=True)
def _note_states(
    left_from: np.ndarray, first_frame: int, start: int, steps: np.ndarray
) -> None:
    """Note the state in which the path leaves each frame from the first one on.

    Args:
        left_from: uint32[frames + 1], changed in place; up to the first frame it holds
            what is known, if anything is.
        first_frame: where the steps begin.
        start: the start state, in which frame 0 may be left.
        steps: `STEP`[some], in order.
    """
    if first_frame == 0 and (len(steps) == 0 or steps[0].frame > 0):
        left_from[0] = start
    for at in range(len(steps)):
        left_from[steps[at].frame] = steps[at].state


Collected = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@njit(cache=True, nogil=True)
def collect(graph: SearchGraph, store: Store) -> Collected:
    """Return number the states and sort the arcs of what a search has left.

    Args:
        graph: the packed graph.
        store: a store after `latflow.decode.pruning.finish`; if the graph has epsilon
            cycles, after `break_cycles` and another `finish`, which removes what then
            leads nowhere.

    Returns:
        frame: int32[S];
        graph_state: int32[S];
        arc_begin: int64[S + 1];
        next_state: int32[A];
        link: int64[A], the link in the store that each arc is.
    """
    position = break_cycles(graph, store)
    num_states = store.counts[TOKENS]
    source = np.empty(store.counts[LINKS], np.int32)
    target = np.empty(store.counts[LINKS], np.int32)
    frame = np.empty(num_states, np.int32)
    graph_state = np.empty(num_states, np.int32)
    for f in range(store.counts[FRAMES] + 1):
        first, last = store.token_begin[f], store.token_begin[f + 1]
        for i in range(first, last):
            frame[position[i]] = f
            graph_state[position[i]] = store.state[i]
        _find_ends(store, f, position, source, target)
    arc_begin = np.zeros(num_states + 1, np.int64)
    for state in source:
        arc_begin[state + 1] += 1
    arc_begin = np.cumsum(arc_begin)
    fill = arc_begin[:-1].copy()
    next_state = np.empty(len(source), np.int32)
    link = np.empty(len(source), np.int64)
    for at in range(len(source)):
        next_state[fill[source[at]]] = target[at]
        link[fill[source[at]]] = at
        fill[source[at]] += 1
    return frame, graph_state, arc_begin, next_state, link


@njit(cache=True, nogil=True)
def _find_ends(
    store: Store,
    frame: int,
    position: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
) -> None:
    """Set the states that the links of a frame join, those that leave it included."""
    first, following = store.token_begin[frame], store.token_begin[frame + 1]
    middle = store.emitting_begin[frame]
    is_last = frame == store.counts[FRAMES]
    end = middle if is_last else store.epsilon_begin[frame + 1]
    for at in range(store.epsilon_begin[frame], end):
        source[at] = position[first + store.link[at].source]
        there = first if at < middle else following
        target[at] = position[there + store.link[at].target]


@njit(cache=True, nogil=True)
def break_cycles(graph: SearchGraph, store: Store) -> np.ndarray:
    """Return number of the state that each token becomes, int32[tokens].

    Links that would lead backward, which only cycles of epsilon arcs have, get the
    total cost inf.
    """
    num_tokens = store.counts[TOKENS]
    position = np.full(num_tokens, -1, np.int32)
    is_rooted = np.ones(num_tokens, np.bool_)
    if graph.has_epsilon_cycle:
        _find_roots(store, is_rooted)
    pending = np.zeros(num_tokens, np.int32)
    by_source = np.empty(num_tokens, np.int64)  # first epsilon link of each token
    done = 0
    for f in range(store.counts[FRAMES] + 1):
        work = (position, is_rooted, pending, by_source)
        done = _order_frame(store, f, done, work)
    return position


@njit(cache=True, nogil=True)
def _find_roots(store: Store, is_rooted: np.ndarray) -> None:
    """Mark the tokens whose best path comes straight from the frame before."""
    is_rooted[1:] = False
    for f in range(store.counts[FRAMES]):
        for at in range(store.emitting_begin[f], store.epsilon_begin[f + 1]):
            link = store.link[at]
            target = store.token_begin[f + 1] + link.target
            if link.total <= store.cost[target]:
                is_rooted[target] = True


@njit(cache=True, nogil=True)
def _order_frame(
    store: Store,
    frame: int,
    done: int,
    work: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
) -> int:
    """Give the tokens of one frame their positions, from `done` on; return the next.

    A token may come once no epsilon link from a token without position leads to it.
    Where none may (a cycle), the token comes that has the least cost among those whose
    best path is known: from the frame before or from a token with a position.
    """
    position, is_rooted, pending, by_source = work
    first, last = store.token_begin[frame], store.token_begin[frame + 1]
    begin, end = store.epsilon_begin[frame], store.emitting_begin[frame]
    by_source[first:last] = end
    for at in range(end - 1, begin - 1, -1):
        pending[first + store.link[at].target] += 1
        by_source[first + store.link[at].source] = at
    queue = np.empty(last - first, np.int32)
    size = 0
    for i in range(first, last):
        if pending[i] == 0:
            queue[size] = i
            size += 1
    at_queue = 0
    placed = 0
    while placed < last - first:
        if at_queue == size:
            queue[size] = _next_in_cycle(store, frame, position, is_rooted)
            size += 1
        i = queue[at_queue]
        at_queue += 1
        position[i] = done + placed
        placed += 1
        at = by_source[i]
        while at < end and first + store.link[at].source == i:
            target = first + store.link[at].target
            pending[target] -= 1
            if position[target] >= 0:
                store.link[at].total = np.inf
            elif pending[target] == 0:
                queue[size] = target
                size += 1
            at += 1
    return done + placed


@njit(cache=True, nogil=True)
def _next_in_cycle(
    store: Store,
    frame: int,
    position: np.ndarray,
    is_rooted: np.ndarray,
) -> int:
    """Choose the token of a frame that comes next although a link to it is pending."""
    first = store.token_begin[frame]
    for at in range(store.epsilon_begin[frame], store.emitting_begin[frame]):
        link = store.link[at]
        source, target = first + link.source, first + link.target
        if position[source] >= 0 and link.total <= store.cost[target]:
            is_rooted[target] = True
    chosen = -1
    for i in range(store.token_begin[frame], store.token_begin[frame + 1]):
        if position[i] >= 0 or not is_rooted[i]:
            continue
        if chosen < 0 or store.cost[i] < store.cost[chosen]:
            chosen = i
    return chosen
