"""Viterbi alignment of one utterance to its training graph, with a beam.

The search keeps a list of live states for each frame and never looks at others, and
computes the likelihoods of their pdfs alone, so that its cost follows the beam and not
the size of the graph. The best path must end in a final
state; an utterance that does not within the beam is searched again with a wider one.

Source: Kaldi `decoder/faster-decoder.cc`, `decoder/training-graph-compiler.cc`,
`decoder/decoder-wrappers.cc` (`AlignUtteranceWrapper`,
`ModifyGraphForCarefulAlignment`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from latflow.fst.graph import Graph
from latflow.gmm.lazy_scores import padded_factors
from latflow.gmm.model import AcousticModel
from latflow.gmm.viterbi_kernel import best_path


@dataclass(frozen=True)
class Scales:
    """How scores are weighed; the acoustic ones against the graph's.

    Attributes:
        acoustic: factor of acoustic log-likelihoods.
        transition: factor of the log-probability of the arc by which a state is left.
        self_loop: factor of the log-probability of staying in or leaving a state.
    """

    acoustic: float = 0.1
    transition: float = 1.0
    self_loop: float = 0.1

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Scales:
        """Take the scales out of the options of a stage."""
        graph = options["graph"]
        return cls(
            options["acoustic_scale"],
            graph["transition_scale"],
            graph["self_loop_scale"],
        )


@dataclass(frozen=True)
class Aligned:
    """The best path of one utterance.

    Attributes:
        transition_ids: int32[T].
        frame_log_likes: float32[T], acoustic log-likelihoods, unscaled and not boosted.
        cost: total cost of the path, scaled (Kaldi's sign: less is better).
        beam: the beam it was found with.
    """

    transition_ids: np.ndarray
    frame_log_likes: np.ndarray
    cost: float
    beam: float


class Aligner:
    """Align utterances with one model; safe to use from several threads.

    Args:
        model: the acoustic model.
        scales: see `Scales`.
        boost: factor of the likelihoods of `boosted_phones` (Kaldi's
            `gmm-boost-silence`).
        boosted_phones: phones whose pdfs are boosted.
        careful: refuse paths that could go on with a second copy of the transcript, a
            sign that the recording holds more speech than the transcript.
    """

    def __init__(
        self,
        model: AcousticModel,
        *,
        scales: Scales,
        boost: float = 1.0,
        boosted_phones: list[int] | None = None,
        careful: bool = False,
    ) -> None:
        self.model = model
        self.scales = scales
        self.careful = careful
        transitions = model.transitions
        pdfs, _ = transitions.pdfs_of_phones(boosted_phones or [])
        bias = np.zeros(transitions.num_pdfs, np.float32)
        bias[pdfs] = np.log(boost)
        # What an arc costs beside its likelihood, by transition-id; 0 emits nothing.
        self._pdf = transitions.pdf.astype(np.int32)
        self._pdf[0] = -1
        self._arc_cost = -transitions.scaled_log_prob(
            scales.transition, scales.self_loop
        )
        self._arc_cost[1:] -= np.float32(scales.acoustic) * bias[transitions.pdf[1:]]
        gmms = model.gmms
        self._mixtures = (gmms.begin.astype(np.int64), padded_factors(gmms.factors))

    def align(
        self, graph: Graph, frames: np.ndarray, *, beam: float, retry_beam: float
    ) -> Aligned | None:
        """Find the best path of an utterance through its graph.

        Args:
            graph: transition-ids on the input side, no transition probabilities.
            frames: float32[T, D].
            beam: width of the search, in units of scaled log-likelihood.
            retry_beam: width of the second attempt; 0 for none.

        Returns:
            The path, or None if no final state was reached.

        Raises:
            UserError: the frames have another dimension than the model.
        """
        if not len(frames) or not graph.num_states:
            return None
        if self.careful:
            graph = with_second_copy(graph)
        self.model.gmms.check_dim(frames.shape[1])
        ids = np.array(graph.ilabel)
        arcs = (
            np.array(graph.arc_begin),
            self._pdf[ids],
            graph.weight + self._arc_cost[ids],
            np.array(graph.next_state),
        )
        final = np.array(graph.final)
        x = np.array(frames, np.float32, order="C")
        acoustics = (x, self._mixtures, np.float32(self.scales.acoustic))
        for width in (beam, retry_beam):
            if width <= 0:
                break
            found = best_path(arcs, graph.start, final, acoustics, float(width))
            path, log_likes, cost = found
            if len(path):
                return Aligned(ids[path], log_likes, cost, width)
        return None


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
