"""Viterbi alignment of utterances to their training graphs.

The best path must end in a final state; an utterance that does not within the beam is
searched again with wider ones, at last without any: then it fails only if no path is as
long as the utterance, or its back pointers would take more memory than is allowed.
Graphs hold no transition probabilities (`latflow.align.graphs`): an aligner adds its
model's, scaled, arc by arc.

GMMs and networks align alike; they differ in their *provider* of scores, which is asked
in each frame for the pdfs that the live states emit: a matrix that holds them all
(float32[T, P], of a network), or a type that computes them when they are asked for
(`latflow.gmm.alignment`). A provider is a type for which `frame_scores` has an
overload; the kernel is compiled for each.

The search keeps a list of live states for each frame and never looks at others, so that
its cost follows the beam and not the size of the graph. Arrays of a search: `live` is
(state int32[S], cost float64[S], slot int32[S]): the live states of a frame as a list,
their costs, and the index of every state in the list, -1 if it is not live. `back` is
(source int32[N], arc int32[N], log_like float32[N]): for every list entry of every
frame the entry it came from, -1 at the start, the arc taken, and the acoustic
log-likelihood of that arc, meaningless if it emits nothing.

Public: `Aligner`, `Alignment`, `AlignmentFailure`, `Scores`, `best_path`,
`frame_scores`.

Source: Kaldi `bin/align-compiled-mapped.cc`, `gmmbin/gmm-boost-silence.cc`,
`decoder/training-graph-compiler.cc`, `decoder/faster-decoder.cc`,
`decoder/decoder-wrappers.cc` (`AlignUtteranceWrapper`,
`ModifyGraphForCarefulAlignment`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np
from numba import njit, types
from numba.extending import overload

from latflow.align.options import AlignOptions, AlignSplitOptions
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.graphs.options import GraphOptions
from latflow.hmm.transition_model import TransitionModel

# More than any path costs, but for one over a class whose prior is 0, to which
# `latflow.nnet.model_dir` gives a log-likelihood of about -2e19.
_IMPOSSIBLE = 1e12
_FIRST_SIZE = 4096  # back pointers at first
_BACK_BYTES = 12  # of a back pointer
_BEYOND_BEAM = "no final state was reached within the beam"
_NO_LIMIT = np.iinfo(np.int64).max
_RESCUE_FACTOR = 4.0  # of the retry beam, for the attempt before that without a beam


class Scores(Protocol):
    """Acoustic log-likelihoods of an utterance by frame and pdf, natural log, unscaled.

    An array float32[T, P], or a type that `latflow.align.aligner.frame_scores` has an
    overload for.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """T, P."""
        ...


@dataclass(frozen=True, eq=False)
class Alignment:
    """The best path of one utterance.

    Attributes:
        transition_ids: int32[T].
        frame_log_likes: float32[T], acoustic log-likelihoods, unscaled and not boosted.
        cost: total cost of the path, acoustics scaled; less is better.
        beam: the beam it was found with.
    """

    transition_ids: np.ndarray
    frame_log_likes: np.ndarray
    cost: float
    beam: float


@dataclass(frozen=True)
class AlignmentFailure:
    """The reason why an utterance has no alignment.

    Attributes:
        reason: in a user's terms.
        beam: the widest beam tried.
    """

    reason: str
    beam: float


class Aligner:
    """Aligns utterances with one model; safe to use from several threads.

    Args:
        model: its pdfs are those of the scores.
        options: beams, acoustic scale, boost of silence; those of whole splits also the
            memory of further attempts, of which there is one at a time.
        scales: of the transition probabilities.
        silence_phones: phones whose pdfs are boosted.

    Attributes:
        beams: widths of the first search and of the second one, in scaled
            log-likelihood; 0 for none.
    """

    def __init__(
        self,
        model: TransitionModel,
        options: AlignOptions,
        scales: GraphOptions,
        *,
        silence_phones: Sequence[int] = (),
    ) -> None:
        self.beams = (options.beam, options.retry_beam)
        self._is_careful = options.careful
        self._lock = Lock()
        # Back pointers of further attempts: while arrays grow, the old ones are kept.
        self._rescue_size = 0
        if isinstance(options, AlignSplitOptions) and not options.careful:
            self._rescue_size = options.rescue_memory_mb * 10**6 // (3 * _BACK_BYTES)
        self._num_pdfs = model.num_pdfs
        self._scale = np.float32(options.acoustic_scale)
        self._pdf = model.pdf.astype(np.int32)
        self._pdf[0] = -1  # transition-id 0 emits nothing
        boosted, _ = model.pdfs_of_phones(list(silence_phones))
        bias = np.zeros(model.num_pdfs, np.float32)
        bias[boosted] = np.log(options.boost_silence)
        # What an arc costs beside its likelihood, by transition-id.
        self._arc_cost = -model.scaled_log_prob(
            scales.transition_scale, scales.self_loop_scale
        )
        self._arc_cost[1:] -= self._scale * bias[model.pdf[1:]]

    def align(self, graph: Graph, scores: Scores) -> Alignment | AlignmentFailure:
        """Find the best path of an utterance through its graph.

        Args:
            graph: transition-ids as input labels, no transition probabilities.

        Raises:
            UserError: the scores have another number of pdfs than the model.
        """
        num_frames, num_pdfs = scores.shape
        if num_pdfs != self._num_pdfs:
            raise UserError(
                f"scores of {num_pdfs} pdfs, where the model of the training graphs "
                f"has {self._num_pdfs}",
                remedy="train the network on alignments of the system of the graphs",
            )
        if isinstance(scores, np.ndarray):
            scores = np.ascontiguousarray(scores, np.float32)
        if not num_frames or not graph.num_states:
            return AlignmentFailure(failure_reason(graph, num_frames), max(self.beams))
        searched = with_second_copy(graph) if self._is_careful else graph
        ids = np.array(searched.ilabel)
        arcs = (
            np.array(searched.arc_begin),
            self._pdf[ids],
            searched.weight + self._arc_cost[ids],
            np.array(searched.next_state),
        )
        final = np.array(searched.final)
        for beam in self.beams:
            if beam <= 0:
                break
            found = self._search(arcs, graph.start, final, ids, scores, beam, _NO_LIMIT)
            if found is not None:
                return found
        why = failure_reason(graph, num_frames)
        widest = max(self.beams)
        if why != _BEYOND_BEAM or not self._rescue_size or self.beams[1] <= 0:
            return AlignmentFailure(why, widest)
        with self._lock:
            for beam in (_RESCUE_FACTOR * self.beams[1], np.inf):
                found = self._search(
                    arcs, graph.start, final, ids, scores, beam, self._rescue_size
                )
                if found is not None:
                    return found
        why = f"{_BEYOND_BEAM}, and a wider one needs more memory than is allowed"
        return AlignmentFailure(why, _RESCUE_FACTOR * widest)

    def _search(
        self,
        arcs: tuple[np.ndarray, ...],
        start: int,
        final: np.ndarray,
        ids: np.ndarray,
        scores: Scores,
        beam: float,
        max_back: int,
    ) -> Alignment | AlignmentFailure | None:
        """Search once; None where no final state was reached."""
        num_frames = scores.shape[0]
        path, log_likes, cost = best_path(
            arcs, start, final, scores, num_frames, self._scale, float(beam), max_back
        )
        if cost > _IMPOSSIBLE and len(path):
            reason = "its words need a pdf that the network was never trained on"
            return AlignmentFailure(reason, beam)
        if not len(path):
            return None
        return Alignment(ids[path], log_likes, float(cost), beam)


def with_second_copy(graph: Graph) -> Graph:
    """Let every complete path go on through a second copy that never ends.

    Final states lead to one new state, which alone is final and from which the copy
    starts. States: the graph's, their copies, the new one.

    Source: Kaldi `decoder/decoder-wrappers.cc` (`ModifyGraphForCarefulAlignment`).
    """
    num_states, start = graph.num_states, graph.start
    ends = np.flatnonzero(np.isfinite(graph.final))
    sizes = np.diff(graph.arc_begin)
    is_end = np.isfinite(graph.final).astype(np.int64)
    begin = np.cumsum(np.concatenate([[0], sizes + is_end, sizes, [1]]))
    behind = graph.arc_begin[1:][ends]  # a new arc is its state's last one

    def twice(values: np.ndarray, to_new: np.ndarray, from_new: int) -> np.ndarray:
        return np.concatenate([np.insert(values, behind, to_new), values, [from_new]])

    new = 2 * num_states
    next_state = twice(graph.next_state, np.full(len(ends), new), start + num_states)
    next_state[begin[num_states] : begin[new]] += num_states
    none = np.zeros(len(ends), np.int32)
    return Graph.from_arrays(
        start,
        begin,
        twice(graph.ilabel, none, 0),
        twice(graph.olabel, none, 0),
        twice(graph.weight, graph.final[ends], 0),
        next_state,
        np.concatenate([np.full(new, np.inf), [0.0]]),
    )


def failure_reason(graph: Graph, num_frames: int) -> str:
    """Return why an utterance of T frames could not be aligned to a graph."""
    least = least_frames(graph)
    if least is None:
        return "no path through the training graph"
    if least > num_frames:
        return f"too short: {num_frames} frames, its transcript needs at least {least}"
    return _BEYOND_BEAM


def least_frames(graph: Graph) -> int | None:
    """Return the frames of the shortest path through a graph; None if there is none."""
    distance = np.full(graph.num_states, -1, np.int64)
    queue = deque([(graph.start, 0)])
    while queue:
        state, frames = queue.popleft()
        if distance[state] >= 0:
            continue
        distance[state] = frames
        if np.isfinite(graph.final[state]):
            return frames
        for arc in range(int(graph.arc_begin[state]), int(graph.arc_begin[state + 1])):
            target = int(graph.next_state[arc])
            if graph.ilabel[arc] > 0:
                queue.append((target, frames + 1))
            else:
                queue.appendleft((target, frames))
    return None


def frame_scores(scores, t, live):
    """Return the log-likelihoods of a frame, where live states need them.

    Called from compiled code alone, once a frame, for frames in order.

    Args:
        live: (arcs, see `best_path`; int32[N], the live states; float64[N] or longer,
            their costs; the cost above which a state emits nothing).

    Returns:
        float32[P]; what the arcs of other states emit need not be there.
    """
    raise NotImplementedError


@overload(frame_scores, inline="always")
def _matrix_scores(scores, t, live):  # noqa: ARG001
    """Take a row of a matrix that holds all scores."""
    if not isinstance(scores, types.Array):
        return None
    return lambda scores, t, live: scores[t]  # noqa: ARG005


@njit(cache=True, nogil=True)
def best_path(arcs, start, final, scores, num_frames, scale, beam, max_back):
    """Find the cheapest path that emits every frame and ends in a final state.

    A state is left out of a frame if its cost is more than `beam` above the least cost
    of the frame. Of paths of equal cost the one found first wins.

    Args:
        arcs: (arc_begin int64[S + 1], pdf int32[A], costs float32[A], next_state
            int32[A]); `pdf` is what an arc emits, -1 for nothing.
        final: float32[S], final costs, inf where a state is not final.
        scores: the provider, see `frame_scores`.
        num_frames: T.
        scale: float32; emitting a frame costs -scale * its log-likelihood.
        max_back: back pointers that may be kept; beyond, the search is given up.

    Returns:
        (int32[T] arcs that emit, float32[T] their log-likelihoods, float64 total cost);
        no arcs and infinite cost if no final state was reached.
    """
    arc_begin, pdf = arcs[0], arcs[1]
    num_states = len(final)
    here, there = _empty_list(num_states), _empty_list(num_states)
    stack = (np.empty(num_states, np.int32), np.zeros(num_states, np.bool_))
    has_epsilon = _states_with_epsilon(arc_begin, pdf)
    back = _enlarged(_no_back_pointers(), num_states)
    base = 0
    here[0][0], here[1][0], here[2][start] = start, 0.0, 0
    back[0][0], back[1][0] = -1, -1
    count = _follow_epsilons(arcs, has_epsilon, here, back, base, 1, beam, stack)
    for t in range(num_frames):
        if base + count + num_states > max_back:
            count = 0
            break
        back = _enlarged(back, base + count + num_states)
        found, cutoff = _emit(
            arcs, here, there, back, base, count, (scores, t, scale), beam
        )
        base += count
        count = _follow_epsilons(
            arcs, has_epsilon, there, back, base, found, cutoff, stack
        )
        here, there = there, here
    states, cost, _ = here
    last, total = -1, np.inf
    for i in range(count):
        if cost[i] + final[states[i]] < total:
            last, total = base + i, cost[i] + final[states[i]]
    path, log_likes = _trace_back(back, pdf, last, num_frames)
    return path, log_likes, total


@njit(cache=True, nogil=True)
def _empty_list(num_states):
    """Return a list of live states, empty, large enough for all."""
    return (
        np.empty(num_states, np.int32),
        np.empty(num_states, np.float64),
        np.full(num_states, np.int32(-1)),
    )


@njit(cache=True, nogil=True)
def _no_back_pointers():
    """Return arrays for the first back pointers."""
    return (
        np.empty(_FIRST_SIZE, np.int32),
        np.empty(_FIRST_SIZE, np.int32),
        np.empty(_FIRST_SIZE, np.float32),
    )


@njit(cache=True, nogil=True)
def _states_with_epsilon(arc_begin, pdf):
    """Mark the states that an arc leaves which emits nothing, bool[S]."""
    found = np.zeros(len(arc_begin) - 1, np.bool_)
    for state in range(len(found)):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            if pdf[arc] < 0:
                found[state] = True
    return found


@njit(cache=True, nogil=True)
def _enlarged(back, count):
    """Return back pointers for `count` entries: these, or larger copies of them."""
    source, arc, log_like = back
    filled = len(source)
    if count <= filled:
        return back
    size = max(count, 2 * filled)
    more_source, more_arc = np.empty(size, np.int32), np.empty(size, np.int32)
    more_log_like = np.empty(size, np.float32)
    more_source[:filled] = source
    more_arc[:filled] = arc
    more_log_like[:filled] = log_like
    return more_source, more_arc, more_log_like


@njit(cache=True, nogil=True)
def _emit(arcs, here, there, back, base, count, acoustics, beam):
    """Take the live states over one frame.

    Args:
        arcs: see `best_path`.
        here: the live states before the frame; its slots are emptied.
        there: those behind it, written; its slots are all -1 at first.
        back: back pointers, large enough.
        base: where the entries of `here` begin in `back`.
        count: how many are live before.
        acoustics: (provider of scores, the frame, scale).
        beam: see `best_path`.

    Returns:
        (how many are live behind the frame, cost above which they may be given up).
    """
    arc_begin, pdf, costs, next_state = arcs
    scores, t, scale = acoustics
    states, cost, old_slot = here
    best = np.inf
    for i in range(count):
        best = min(best, cost[i])
        old_slot[states[i]] = -1
    log_likes = frame_scores(scores, t, (arcs, states[:count], cost, best + beam))
    new_states, new_cost, slot = there
    source, arc_of, log_like_of = back
    found = 0
    next_cutoff = np.inf
    for i in range(count):
        if cost[i] > best + beam:
            continue
        for arc in range(arc_begin[states[i]], arc_begin[states[i] + 1]):
            emitted = pdf[arc]
            if emitted < 0:
                continue
            log_like = log_likes[emitted]
            new = cost[i] + costs[arc] - scale * log_like
            if new > next_cutoff:
                continue
            next_cutoff = min(next_cutoff, new + beam)
            target = next_state[arc]
            j = slot[target]
            if j < 0:
                j = found
                found += 1
                slot[target] = j
                new_states[j] = target
            elif new >= new_cost[j]:
                continue
            new_cost[j] = new
            source[base + count + j] = base + i
            arc_of[base + count + j] = arc
            log_like_of[base + count + j] = log_like
    return found, next_cutoff


@njit(cache=True, nogil=True)
def _follow_epsilons(arcs, has_epsilon, live, back, base, count, cutoff, stack):
    """Extend the live states of a frame by arcs that emit nothing.

    Args:
        arcs: see `best_path`.
        has_epsilon: bool[S], states that such arcs leave.
        live: the live states, extended.
        back: back pointers, large enough.
        base: where the entries of `live` begin in `back`.
        count: how many are live.
        cutoff: cost above which a state is not made live.
        stack: (int32[S], bool[S] all False), scratch.

    Returns:
        How many are live now.
    """
    arc_begin, pdf, costs, next_state = arcs
    states, cost, slot = live
    waiting, is_waiting = stack
    depth = 0
    for i in range(count - 1, -1, -1):
        if has_epsilon[states[i]]:
            waiting[depth] = i
            is_waiting[i] = True
            depth += 1
    while depth:
        depth -= 1
        i = waiting[depth]
        is_waiting[i] = False
        for arc in range(arc_begin[states[i]], arc_begin[states[i] + 1]):
            new = cost[i] + costs[arc]
            if pdf[arc] >= 0 or new > cutoff:
                continue
            target = next_state[arc]
            j = slot[target]
            if j < 0:
                j = count
                count += 1
                slot[target] = j
                states[j] = target
            elif new >= cost[j]:
                continue
            cost[j] = new
            back[0][base + j] = base + i
            back[1][base + j] = arc
            if has_epsilon[target] and not is_waiting[j]:
                waiting[depth] = j
                is_waiting[j] = True
                depth += 1
    return count


@njit(cache=True, nogil=True)
def _trace_back(back, pdf, last, num_frames):
    """Return the emitting arcs of the path to entry `last`, and their log-likelihoods.

    Both are empty if `last` is -1.
    """
    source, arc_of, log_like_of = back
    t = num_frames if last >= 0 else 0
    path, log_likes = np.empty(t, np.int32), np.empty(t, np.float32)
    while last >= 0 and arc_of[last] >= 0:
        if pdf[arc_of[last]] >= 0:
            t -= 1
            path[t], log_likes[t] = arc_of[last], log_like_of[last]
        last = source[last]
    return path, log_likes
