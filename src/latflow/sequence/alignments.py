"""What was said when: alignments made before training, or by the network of the moment.

Public: `AlignmentSource`.
"""

from __future__ import annotations

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.sequence.aligner import Aligner, Alignment, AlignmentFailure
from latflow.sequence.alignment_archive import AlignmentArchive
from latflow.sequence.outcome import Event, Outcome
from latflow.sequence.statistics import Drift
from latflow.sequence.transcripts import TranscriptGraphs


class AlignmentSource:
    """Gives each utterance the alignment to train with; safe to share.

    Args:
        model: what transition-ids mean.
        static: alignments made before training; None if there are none.
        aligner: aligns on the fly; None takes static alignments.
        graphs: training graphs for the aligner.
        fall_back: whether an utterance that cannot be aligned takes its static
            alignment, if it has one.

    Raises:
        ValueError: there are neither static alignments nor an aligner with graphs.
    """

    def __init__(
        self,
        model: TransitionModel,
        static: AlignmentArchive | None,
        *,
        aligner: Aligner | None = None,
        graphs: TranscriptGraphs | None = None,
        fall_back: bool = True,
    ) -> None:
        if (static if aligner is None else graphs) is None:
            raise ValueError("need static alignments, or an aligner and its graphs")
        self._static = static
        self._aligner = aligner
        self._graphs = graphs
        self._fall_back = fall_back
        self._drift = Drift(model)  # for its tables; nothing is added to it

    def align(
        self, outcome: Outcome, words: np.ndarray, log_likes: np.ndarray
    ) -> np.ndarray | None:
        """The alignment of an utterance, int32[T]; None if the utterance is skipped.

        Args:
            outcome: of the utterance; is told retries, fall-backs and failures, and
                the drift where there are two alignments.
            words: word ids of what was said, int32[N].
            log_likes: [T, P], unscaled.

        Raises:
            UserError: the static alignment has another number of frames.
        """
        static = self._static_alignment(outcome.utterance, len(log_likes))
        if self._aligner is None:
            if static is None:
                outcome.skip("no static alignment")
            return static
        found = self._fresh_alignment(self._aligner, words, log_likes)
        if isinstance(found, AlignmentFailure):
            return self._without_alignment(outcome, found, static)
        if found.beam != self._aligner.beams[0]:
            outcome.add("retried", 1.0)
            reason = "aligned with the retry beam"
            outcome.events.append(Event(reason, "retried", found.beam))
        fresh = found.transition_ids
        if static is not None:
            outcome.drift = self._drift.compare(static, fresh)
            outcome.add("aligned_frames", float(len(fresh)))
            outcome.add("drifted_frames", float(outcome.drift[:, 1].sum()))
        return fresh

    def _static_alignment(self, utterance: str, num_frames: int) -> np.ndarray | None:
        """The alignment made before training, if there is one."""
        alignment = None if self._static is None else self._static.get(utterance)
        if alignment is not None and len(alignment) != num_frames:
            raise UserError(
                f"its alignment has {len(alignment)} frames, the network's output "
                f"{num_frames}",
                utterance=utterance,
                remedy="lattice criteria need a network without subsampling, trained "
                "on whole utterances, and alignments of the same features",
            )
        return alignment

    def _fresh_alignment(
        self, aligner: Aligner, words: np.ndarray, log_likes: np.ndarray
    ) -> Alignment | AlignmentFailure:
        """Align with the network's scores."""
        graph = None if self._graphs is None else self._graphs.get(words)
        if graph is None:
            return AlignmentFailure("no training graph for its transcript", 0.0)
        return aligner.align(graph, log_likes)

    def _without_alignment(
        self, outcome: Outcome, failure: AlignmentFailure, static: np.ndarray | None
    ) -> np.ndarray | None:
        """What is trained with where no alignment could be made."""
        if static is None or not self._fall_back:
            outcome.skip(failure.reason, failure.beam)
            return None
        outcome.add("fallbacks", 1.0)
        reason = f"{failure.reason}; its static alignment is taken"
        outcome.events.append(Event(reason, "noted", failure.beam))
        return static
