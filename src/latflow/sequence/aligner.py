"""Alignments with the network of the moment: Viterbi on training graphs.

A training graph stands for the ways to say a transcript; the best path through it, with
the network's scores, says when which state was spoken. Graphs hold the transition
probabilities already: training the network leaves these alone, so that a graph is
compiled once (`latflow.sequence.transcripts`) and searched in every epoch.

Public: `Aligner`, `AlignmentFailure`.

Source: Kaldi `bin/align-compiled-mapped.cc`, `decoder/decoder-wrappers.cc`
(`AlignUtteranceWrapper`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.gmm.corpus_alignment import why_not
from latflow.hmm.transition_model import TransitionModel
from latflow.sequence.alignment_kernel import best_path

# More than any path costs, but for one over a class whose prior is 0, to which
# `latflow.nnet.model_dir` gives a log-likelihood of about -2e19.
_IMPOSSIBLE = 1e12


@dataclass(frozen=True)
class AlignmentFailure:
    """Why an utterance has no alignment.

    Attributes:
        reason: in a user's terms.
        beam: the widest beam tried.
    """

    reason: str
    beam: float


@dataclass(frozen=True, eq=False)
class Alignment:
    """The best path of one utterance.

    Attributes:
        transition_ids: int32[T].
        cost: of the path, acoustics scaled; less is better.
        beam: the beam it was found with.
    """

    transition_ids: np.ndarray
    cost: float
    beam: float


class Aligner:
    """Aligns utterances to their training graphs; safe to use from several threads.

    Args:
        model: its pdfs are the columns of the scores.
        acoustic_scale: factor of log-likelihoods.
        beam: width of the search, in units of scaled log-likelihood.
        retry_beam: width of a second search where the first fails; 0 for none.
    """

    def __init__(
        self,
        model: TransitionModel,
        *,
        acoustic_scale: float = 0.1,
        beam: float = 10.0,
        retry_beam: float = 40.0,
    ) -> None:
        self.num_pdfs = model.num_pdfs
        self.acoustic_scale = float(acoustic_scale)
        self.beams = (float(beam), float(retry_beam))
        self._pdf = model.pdf.astype(np.int32)
        self._pdf[0] = -1  # transition-id 0 emits nothing

    def align(
        self, graph: Graph, log_likes: np.ndarray
    ) -> Alignment | AlignmentFailure:
        """Find the best path of an utterance.

        Args:
            graph: transition-ids as input labels, transition probabilities in place.
            log_likes: float32[T, P], natural log.

        Raises:
            UserError: the scores have another number of columns than the model pdfs.
        """
        if log_likes.shape[1] != self.num_pdfs:
            raise UserError(
                f"scores of {log_likes.shape[1]} pdfs, where the model of the training "
                f"graphs has {self.num_pdfs}",
                remedy="train the network on alignments of the system of the graphs",
            )
        ids = np.array(graph.ilabel)
        arcs = (
            np.array(graph.arc_begin, np.int64),
            self._pdf[ids],
            np.array(graph.weight),
            np.array(graph.next_state),
        )
        final = np.array(graph.final)
        scores = np.ascontiguousarray(log_likes, np.float32)
        scale = np.float32(self.acoustic_scale)
        for beam in self.beams:
            if beam <= 0 or not len(scores) or not len(final):
                break
            path, _, cost = best_path(arcs, graph.start, final, scores, scale, beam)
            if cost > _IMPOSSIBLE and len(path):
                reason = "its words need a pdf that the network was never trained on"
                return AlignmentFailure(reason, beam)
            if len(path):
                return Alignment(ids[path], float(cost), beam)
        return AlignmentFailure(why_not(graph, len(scores)), max(self.beams))
