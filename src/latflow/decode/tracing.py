"""The best path of a search that is still going on.

Going back from the best token of the last frame, link by link, leads after some frames
to a token that the previous best path had come through as well. From there on the two
are one, for the best way to a token is settled with its frame. So each call goes back
only that far, and an hour of speech costs no more than a minute.

Public: `PathTracer`.

Source: Kaldi `decoder/lattice-faster-online-decoder.cc` (`BestPathEnd`,
`TraceBackBestPath`; it keeps a pointer back in each token).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.decode.search_graph import ArcArrays, SearchGraph
from latflow.decode.tokens import FRAMES, TOKENS, Store
from latflow.lattice.lattice import BestPath

_NOWHERE = np.uint32(0xFFFF_FFFF)
STEP = np.dtype([("frame", "i4"), ("state", "u4"), ("arc", "u4"), ("acoustic", "f4")])


class PathTracer:
    """Finds best paths of one search, time and again.

    Args:
        graph: the graph searched.
        packed: the same, packed.
    """

    def __init__(self, graph: ArcArrays, packed: SearchGraph) -> None:
        self._graph = graph
        self._packed = packed
        self._left_from = np.zeros(0, np.uint32)  # state in which each frame is left
        # The path so far, one entry an arc.
        self._frame = np.zeros(0, np.int32)  # that the arc leads to
        self._transition_id = np.zeros(0, np.int32)
        self._word = np.zeros(0, np.int32)
        self._costs = np.zeros((0, 2), np.float32)  # graph, acoustic

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
        """Keep so many arcs of the known path and go on with these steps."""
        graph, arcs = self._graph, self._packed.origin[steps["arc"]]
        weight = np.asarray(graph.weight[arcs], np.float32)
        costs = np.stack([weight, steps["acoustic"]], axis=1)
        label = np.asarray(graph.ilabel[arcs], np.int32)
        word = np.asarray(graph.olabel[arcs], np.int32)
        self._frame = np.append(self._frame[:kept], steps["frame"])
        self._transition_id = np.append(self._transition_id[:kept], label)
        self._word = np.append(self._word[:kept], word)
        self._costs = np.concatenate([self._costs[:kept], costs])

    def _path(self, num_frames: int, final_cost: float) -> BestPath:
        """The path as its labels, times and costs."""
        ids, is_word = self._transition_id, self._word != 0
        # The label of an arc that consumes a frame stands where that frame begins.
        begin = (self._frame - (ids != 0))[is_word].astype(np.int32)
        graph_cost, acoustic_cost = self._costs.sum(axis=0, dtype=np.float64)
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
    """The token of the last frame where the best path ends, and its final cost."""
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
        `STEP`[some], the way back; the frame where the known path is met, -1 for none.
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
    """The link at the end of the best way to each token, int64[tokens], -1 for none.

    Ways grow from the frame before (or the start), so that no way goes round a cycle.
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
