"""Viterbi alignment of utterances to their training graphs.

The best path must end in a final state; an utterance that does not within the beam is
searched again with wider ones, at last without any: then it fails only if no path is as
long as the utterance, or its back pointers would take more memory than is allowed.
Graphs hold no transition probabilities (`latflow.align.graphs`): an aligner adds its
model's, scaled, arc by arc.

GMMs and networks align alike; they differ in what gives the search its scores
(`latflow.align.viterbi`).

Source: Kaldi `bin/align-compiled-mapped.cc`, `gmmbin/gmm-boost-silence.cc`,
`decoder/training-graph-compiler.cc`, `decoder/decoder-wrappers.cc`
(`AlignUtteranceWrapper`, `ModifyGraphForCarefulAlignment`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

import numpy as np

from latflow.align.options import AlignOptions, AlignSplitOptions
from latflow.align.viterbi import BACK_BYTES, best_path
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.graphs.options import GraphOptions
from latflow.hmm.transition_model import TransitionModel

# More than any path costs, but for one over a class whose prior is 0, to which
# `latflow.nnet.model_dir` gives a log-likelihood of about -2e19.
_IMPOSSIBLE = 1e12
_BEYOND_BEAM = "no final state was reached within the beam"
_NO_LIMIT = np.iinfo(np.int64).max
_RESCUE_FACTOR = 4.0  # of the retry beam, for the attempt before that without a beam


class Scores(Protocol):
    """Acoustic log-likelihoods of an utterance by frame and pdf, natural log, unscaled.

    An array float32[T, P], or a type that `latflow.align.viterbi.frame_scores` has an
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
            self._rescue_size = options.rescue_memory_mb * 10**6 // (3 * BACK_BYTES)
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
            UserError: the scores have another number of pdfs than the model, or the
                graph has transition-ids that the model lacks.
        """
        num_frames, num_pdfs = scores.shape
        self._check(graph, num_pdfs)
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

    def _check(self, graph: Graph, num_pdfs: int) -> None:
        """Refuse scores and graphs that are not of the model."""
        if num_pdfs != self._num_pdfs:
            raise UserError(
                f"scores of {num_pdfs} pdfs, where the model of the training graphs "
                f"has {self._num_pdfs}",
                remedy="train the network on alignments of the system of the graphs",
            )
        low, high = graph.ilabel.min(initial=0), graph.ilabel.max(initial=0)
        if low < 0 or high >= len(self._pdf):
            raise UserError(
                f"a training graph with transition-ids {low} to {high}, where the "
                f"model has 1 to {len(self._pdf) - 1}",
                remedy="compile the training graphs with the model that aligns",
            )

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
    """Let every complete path continue through a second copy that never ends.

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
