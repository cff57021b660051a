"""The work on one utterance: alignment, lattice, criterion.

Runs in a thread, one utterance a thread; kernels release the interpreter's lock. What
comes out depends on nothing but the utterance's scores and the beams, so neither
threads nor batch mates nor ranks change it.

When something fails, this is done, and told in the ledger: a search that ends in no
final state is repeated with a wider beam, and then its incomplete paths are taken or
the utterance is skipped (`lattices.on_no_final`); an utterance that cannot be aligned
takes its static alignment, or is skipped. A skipped utterance adds nothing, neither
value nor frames.

Public: `Generator`, `LatticeMaker`, `Objective`, `Scored`, `Teacher`.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from latflow.decode.retry import Attempt, RetryPolicy
from latflow.decode.search import LatticeDecoder
from latflow.decode.search_graph import ArcArrays, GraphFile
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.lattice import Lattice
from latflow.lattice.oracle import oracle
from latflow.sequence.alignments import AlignmentSource
from latflow.sequence.coverage import held_frames
from latflow.sequence.outcome import Event, Outcome
from latflow.sequence.transcripts import Transcripts

#: (features [B, T, D], lengths [B]) -> log-likelihoods [B, T, P], without gradient.
Teacher = Callable[[Tensor, Tensor], Tensor]


class Scored(NamedTuple):
    """A criterion's verdict on an utterance.

    Attributes:
        value: to be maximised; a sum over frames.
        statistics: further sums over frames.
    """

    value: float
    statistics: Mapping[str, float]


class Objective(Protocol):
    """A criterion of one utterance; safe to call from several threads.

    Attributes:
        name: for logs and model folders.
        statistics: names of what `Scored.statistics` may hold.
        teacher: the network that is learnt from; None without one.
    """

    name: str
    statistics: tuple[str, ...]
    teacher: Teacher | None

    def __call__(
        self,
        log_likes: np.ndarray,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
        gradient: np.ndarray,
        taught: np.ndarray | None = None,
    ) -> Scored:
        """Give the value, and write its derivative.

        Args:
            log_likes: float32 or float64 [T, P], unscaled.
            lattice: what might have been said; its acoustic costs are those of
                `taught`, else of `log_likes`, rounded to float32.
            alignment: transition-ids of what was said, int32[T].
            words: word ids of what was said, int32[N].
            gradient: [T, P] of the type of `log_likes`, zeros; receives the
                derivative of the value.
            taught: a teacher's scores, of the shape of `log_likes`, if there is one.
        """
        ...


class LatticeMaker:
    """Makes lattices with a beam that may change from step to step.

    Args:
        graph: the denominator; a `GraphFile` is shared by all processes.
        model: its pdfs are the columns of the scores.
        options: section `lattices` of `workflow/schemas/sequence.yaml`.
    """

    def __init__(
        self,
        graph: ArcArrays | GraphFile,
        model: TransitionModel,
        options: Mapping[str, Any],
    ) -> None:
        self._graph, self._pdf = graph, model.pdf
        self._limits = {k: options[k] for k in ("beam", "max_active", "min_active")}
        beam, factor = options["beam"], options["retry_beam_factor"]
        self._policy = RetryPolicy(
            (beam, beam * factor) if factor > 1 else (beam,),
            allow_partial=options["on_no_final"] == "partial",
        )
        self._scale = options["acoustic_scale"]
        self._lock = Lock()
        self._decoder: tuple[float, LatticeDecoder] | None = None

    def make(
        self, utterance: str, log_likes: np.ndarray, lattice_beam: float
    ) -> Attempt:
        """Search for the lattice of an utterance.

        Args:
            utterance: for messages.
            log_likes: [T, P], unscaled.
            lattice_beam: paths costing more than the best one plus this are left out.
        """
        decoder = self._decoder_of(lattice_beam)
        scores = np.ascontiguousarray(log_likes, np.float32)
        return self._policy.run(
            lambda beam: decoder.decode(
                scores, acoustic_scale=self._scale, utterance=utterance, beam=beam
            ),
            utterance=utterance,
        )

    def _decoder_of(self, lattice_beam: float) -> LatticeDecoder:
        """The decoder with a lattice beam; the last one is kept."""
        with self._lock:
            if self._decoder is None or self._decoder[0] != lattice_beam:
                decoder = LatticeDecoder(
                    self._graph, self._pdf, lattice_beam=lattice_beam, **self._limits
                )
                self._decoder = (lattice_beam, decoder)
            return self._decoder[1]


class Generator:
    """Does all the work on an utterance, from scores to the gradient.

    Args:
        maker: makes lattices.
        alignments: tells what was said when.
        objective: the criterion.
        model: what transition-ids mean.
        transcripts: words of the utterances.
        oracle_every: one of so many utterances, always the same ones, has the oracle
            error rate of its lattice measured; 0 = none.
    """

    def __init__(
        self,
        maker: LatticeMaker,
        alignments: AlignmentSource,
        objective: Objective,
        model: TransitionModel,
        transcripts: Transcripts,
        *,
        oracle_every: int = 0,
    ) -> None:
        self.objective = objective
        self.model = model
        self._maker = maker
        self._alignments = alignments
        self._transcripts = transcripts
        self._oracle_every = oracle_every

    def work(
        self,
        utterance: str,
        log_likes: np.ndarray,
        gradient: np.ndarray,
        *,
        lattice_beam: float,
        taught: np.ndarray | None = None,
    ) -> Outcome:
        """Align, search, and compute the criterion.

        Frames of NaN give an objective of NaN, for the trainer's guard to tell.

        Args:
            utterance: its id.
            log_likes: [T, P], unscaled; float32 or float64.
            gradient: the same shape and type, zeros; receives the derivative of the
                objective. Left as it is if the utterance is skipped.
            lattice_beam: of the lattice.
            taught: scores of a teacher, [T, P]; the lattice is then made with them.

        Raises:
            UserError: the utterance has no transcript, or its alignment has another
                number of frames than the scores.
        """
        outcome = Outcome(utterance)
        if np.isnan(log_likes[:, 0]).any():  # the softmax spreads it over the frame
            outcome.num_frames, outcome.objective = len(log_likes), float("nan")
            return outcome
        words = self._transcripts.words(utterance)
        with _Clock(outcome, "seconds_align"):
            alignment = self._alignments.align(outcome, words, log_likes)
        if alignment is None:
            return outcome
        with _Clock(outcome, "seconds_lattice"):
            guide = log_likes if taught is None else taught
            lattice = self._search(outcome, guide, lattice_beam)
        if lattice is None:
            return outcome
        with _Clock(outcome, "seconds_criterion"):
            scored = self.objective(
                log_likes, lattice, alignment, words, gradient, taught
            )
            outcome.objective = scored.value
            outcome.sums.update(scored.statistics)
            outcome.num_frames, outcome.alignment = len(log_likes), alignment
            self._measure(outcome, lattice, words)
        outcome.add("lattice_beam", lattice_beam * len(log_likes))
        return outcome

    def _search(
        self, outcome: Outcome, log_likes: np.ndarray, lattice_beam: float
    ) -> Lattice | None:
        """The lattice; None if the utterance is skipped."""
        attempt = self._maker.make(outcome.utterance, log_likes, lattice_beam)
        if attempt.was_retried:
            outcome.add("retried", 1.0)
        if attempt.decoded is None:
            reason = attempt.error.what if attempt.error else "no lattice"
            outcome.skip(reason, attempt.beam)
            return None
        if attempt.is_partial:
            outcome.add("partial", 1.0)
            reason = "the lattice reaches no final state"
            outcome.events.append(Event(reason, "partial", attempt.beam))
        elif attempt.was_retried:
            reason = "no complete path at first, searched again"
            outcome.events.append(Event(reason, "retried", attempt.beam))
        return attempt.decoded.lattice

    def _measure(self, outcome: Outcome, lattice: Lattice, words: np.ndarray) -> None:
        """Depth and coverage; oracle errors, if the utterance is in the sample."""
        pdf = self.model.pdf
        outcome.add("depth", float(np.count_nonzero(lattice.transition_id)))
        held = held_frames(lattice, pdf[outcome.alignment], pdf)
        outcome.add("numerator_in_lattice", float(held))
        key = zlib.crc32(outcome.utterance.encode())
        if self._oracle_every and key % self._oracle_every == 0:
            counts = oracle(lattice, words).counts
            outcome.add("oracle_errors", float(counts.errors))
            outcome.add("oracle_words", float(len(words)))


class _Clock:
    """Adds the processor time of a block, in this thread, to a sum of an outcome."""

    def __init__(self, outcome: Outcome, name: str) -> None:
        self._outcome, self._name = outcome, name

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        self._outcome.add(self._name, time.thread_time() - self._began)
