"""Lattice criteria in the trainer: forward on the device, lattices in threads.

`begin` turns the network's output into log-likelihoods, copies them to the CPU and
hands each utterance to a pool of threads; `finish` waits for them, puts their gradients
together and gives a loss that can be differentiated. Between the two the trainer runs
the forward pass of the next part of the batch, on the device, and the backward pass of
the one before. The thread that trains waits for the device nowhere, and for a part no
longer than for its slowest lattice. Copies stay float32: half precision would change
gradients, and paths near the beam.

With x the output before the softmax, the loss of a part is

    - sum over utterances of F(log p(x) - prior_scale * log prior)
    + ce_weight * sum over frames of -log p(label)
    + l2 / 2 * sum over frames and pdfs of x^2,

over utterances that count; F is the lattice criterion, labels are those of the
alignment it is trained with. Threads compute dF / d log-likelihood; the rest is
torch's. (Su et al. 2013, F-smoothing; Kaldi `chain/chain-training.cc` for l2.
PyKaldi2's `weight_decay`, of the parameters, is `training.optimizer.weight_decay`.)

A teacher network, where the criterion has one, scores the same features without a
gradient; lattices are made with its scores.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from latflow.criteria.batch import Batch
from latflow.criteria.criterion import with_gradient
from latflow.criteria.protocol import Criterion, Loss, Pending
from latflow.criteria.sequence.generation import Generator
from latflow.criteria.sequence.journal import STATISTICS, Journal, UtteranceResult
from latflow.criteria.sequence.options import SequenceOptions
from latflow.criteria.sequence.policy import BeamPolicy, FailureBound
from latflow.device_copies import HostCopy, pinned, sent
from latflow.errors import UserError
from latflow.nnet.network import Output, log_likelihoods_of

_NOT_COUNTED = -1

#: (features [B, T, D], lengths [B]) -> log-likelihoods [B, T, P], without gradient.
Teacher = Callable[[Tensor, Tensor], Tensor]


class SequenceCriterion(Criterion):
    """A criterion over lattices that are made on the fly.

    Results depend neither on the number of threads nor on how a global batch is shared
    among ranks and micro-batches, but for the rounding of the network itself.

    Args:
        generator: does the work on an utterance.
        log_priors: scaled, float32 [P]; None where they are not taken off.
        options: section `sequence` of a sequence-trained system.
        ce_weight: of cross-entropy.
        l2: of the squared outputs.
        teacher: network that a criterion learns from; lattices are made with its
            scores.
        threads: utterances worked on at a time, by this rank.

    Attributes:
        journal: ledger and drift of this rank.

    Raises:
        UserError: the criterion's statistics have names that are taken.
    """

    def __init__(
        self,
        generator: Generator,
        log_priors: Tensor | None,
        options: SequenceOptions,
        *,
        ce_weight: float = 0.0,
        l2: float = 0.0,
        teacher: Teacher | None = None,
        threads: int = 1,
    ) -> None:
        self.name = generator.criterion.name
        self.statistics = (*STATISTICS, *generator.criterion.statistics)
        if len(set(self.statistics)) < len(self.statistics):
            raise UserError(
                f"criterion {self.name} has statistics of names that are taken",
                remedy="rename them; see latflow.criteria.sequence.journal.STATISTICS",
            )
        self.max_pending = options.max_pending
        self.journal = Journal(generator.model)
        self._generator = generator
        self._ce_weight, self._l2 = ce_weight, l2
        self._teacher = teacher
        self._beam = BeamPolicy(options.lattices)
        self._bound = FailureBound(options.lattices.max_failed_fraction)
        self._log_priors = log_priors
        self._pool = ThreadPoolExecutor(max(1, threads), "lattices")
        self._quiet = _QuietTorch()

    @property
    def lattice_beam(self) -> float:
        """The lattice beam of the next part of a batch."""
        return self._beam.lattice_beam

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Start the work on the utterances of a part; see `Criterion.begin`.

        Raises:
            UserError: pieces of utterances, or outputs that do not fit the model.
        """
        logits, lengths = self._scores(outputs, batch)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        log_probs = log_likelihoods_of(logits)
        if self._log_priors is not None:  # copied to a device once
            self._log_priors = self._log_priors.to(log_probs.device)
        log_likes = log_likelihoods_of(log_probs, self._log_priors, softmax=False)
        teacher = self._teacher_scores(batch)
        part = _Part(logits, log_probs, log_likes, teacher, batch.weight)
        if part.device.type == "cpu":
            self._quiet.hold()
        # The longest first: a thread that begins it last would be waited for.
        futures = {
            b: self._pool.submit(
                *(self._evaluate, batch.utterances[b], part, b, lengths[b]),
                self.lattice_beam,
            )
            for b in sorted(range(len(batch)), key=lambda b: -lengths[b])
        }
        return partial(self._finish, part, [futures[b] for b in range(len(batch))])

    def _teacher_scores(self, batch: Batch) -> Tensor | None:
        """Return the log-likelihoods of the teacher, [B, T, P]."""
        if self._teacher is None:
            return None
        with torch.no_grad():
            return self._teacher(batch.features, batch.lengths)

    def _scores(
        self, outputs: Mapping[str, Output], batch: Batch
    ) -> tuple[Tensor, list[int]]:
        """Return the first output, which scores pdfs, and its utterances' lengths."""
        name, (logits, lengths) = next(iter(outputs.items()))
        num_pdfs = self._generator.model.num_pdfs
        if logits.shape[-1] != num_pdfs:
            raise UserError(
                f"output {name} has {logits.shape[-1]} classes, the model of the "
                f"denominator has {num_pdfs} pdfs",
                remedy="train the network on alignments of the system of the graph",
            )
        if bool(batch.first_frame.any()):
            at_fault = int(batch.first_frame.ne(0).nonzero()[0, 0])
            raise UserError(
                "only a piece of it is in the batch",
                utterance=batch.utterances[at_fault],
                remedy="lattice criteria need whole utterances: set data.sequences to "
                "{type: utterances}",
            )
        return logits, lengths.tolist()

    def _evaluate(
        self, utterance: str, part: _Part, b: int, length: int, lattice_beam: float
    ) -> UtteranceResult:
        """Evaluate the criterion of an utterance; runs in a thread."""
        part.gradient[b] = 0.0
        teacher = part.teacher_copy
        return self._generator.evaluate(
            utterance,
            part.log_likes_copy.wait()[b, :length],
            part.gradient[b, :length],
            lattice_beam=lattice_beam,
            teacher=None if teacher is None else teacher.wait()[b, :length],
        )

    def _finish(self, part: _Part, futures: Sequence[Future[UtteranceResult]]) -> Loss:
        """Wait for the utterances of a part and make its loss."""
        began = time.perf_counter()
        try:
            results = [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()  # after an error the rest is not needed
            if part.device.type == "cpu":
                self._quiet.release()
        waited = time.perf_counter() - began
        sums = dict.fromkeys(self.statistics, 0.0)
        sums["seconds_wait"] = waited
        for result in results:
            sums["objective"] += result.objective
            for name, value in result.sums.items():
                sums[name] += value
            self.journal.enter(result)
        by_sequence, ce = self._losses(part, results)
        num_frames = sum(result.num_frames for result in results)
        statistics = {**sums, "ce": ce}
        return Loss(by_sequence.sum(), num_frames, statistics, by_sequence.detach())

    def _losses(
        self, part: _Part, results: Sequence[UtteranceResult]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each sequence, float64 [B], and cross-entropy."""
        values = np.array([-result.objective for result in results], np.float64)
        loss = with_gradient(
            part.log_likes,
            sent(values, part.device),
            part.gradient_on_device().neg_(),
        )
        labels = sent(self._labels(results, part.logits.shape[1]), part.device)
        nats = functional.nll_loss(
            part.log_probs.flatten(0, 1),
            labels.flatten(),
            ignore_index=_NOT_COUNTED,
            reduction="none",
        )
        nats = nats.view(labels.shape).sum(1, dtype=torch.float64)
        if self._ce_weight:
            loss = loss + self._ce_weight * nats
        if self._l2:
            counted = (labels != _NOT_COUNTED).unsqueeze(-1)
            squares = (part.logits.square() * counted).sum((1, 2)).double()
            loss = loss + 0.5 * self._l2 * squares
        if part.weight is not None:
            loss = loss * part.weight.to(loss)
        return loss, nats.detach().sum()

    def _labels(
        self, results: Sequence[UtteranceResult], num_frames: int
    ) -> np.ndarray:
        """Return the pdfs of the alignments, int64 [B, T]; -1 = not counted."""
        labels = np.full((len(results), num_frames), _NOT_COUNTED, np.int64)
        for row, result in zip(labels, results, strict=True):
            if result.alignment is not None:
                pdfs = self._generator.model.pdf[result.alignment]
                row[: len(pdfs)] = pdfs
        return labels

    def stepped(self, totals: Mapping[str, float]) -> None:
        """Adapt the lattice beam and watch failures; see `Criterion.stepped`.

        Raises:
            UserError: too many utterances have failed.
        """
        if totals["frames"]:
            self._beam.update(totals["depth"] / totals["frames"])
        self._bound.add(round(totals["utterances"]), round(totals["skipped"]))

    def state(self) -> dict[str, Any]:
        """Return beam, failures, ledger and drift; see `Criterion.state`."""
        return {
            "beam": self._beam.state(),
            "bound": self._bound.state(),
            "journal": self.journal.state(),
        }

    def load_states(
        self, states: Sequence[Mapping[str, Any]], *, is_main: bool
    ) -> None:
        """Go on from a checkpoint: beam and failures are the same on all ranks."""
        self._beam.load_state(states[0]["beam"])
        self._bound.load_state(states[0]["bound"])
        if is_main:
            self.journal.load_states([state["journal"] for state in states])

    def close(self) -> None:
        """End the threads and the criterion; work not begun is given up."""
        self._pool.shutdown(cancel_futures=True)
        self._generator.criterion.close()
        self._quiet.restore()


class _Part:
    """A part of a batch: tensors of its loss, and what threads read and write.

    Args:
        logits: [B, T, P], before the softmax.
        log_probs: [B, T, P], after it.
        log_likes: [B, T, P], less priors.
        teacher: log-likelihoods of a teacher, [B, T, P]; None without one.
        weight: [B], of the utterances; None = 1.

    Attributes:
        device: of all tensors.
        log_likes_copy: the log-likelihoods on their way to the threads.
        teacher_copy: those of the teacher, likewise.
        gradient: [B, T, P] for the threads, not filled.
    """

    def __init__(
        self,
        logits: Tensor,
        log_probs: Tensor,
        log_likes: Tensor,
        teacher: Tensor | None,
        weight: Tensor | None,
    ) -> None:
        self.logits, self.log_probs, self.log_likes = logits, log_probs, log_likes
        self.weight, self.device = weight, log_likes.device
        self.log_likes_copy = HostCopy(log_likes.detach())
        self.teacher_copy = None if teacher is None else HostCopy(teacher)
        self._gradient = pinned(log_likes.shape, log_likes.dtype, self.device)
        self.gradient: np.ndarray = self._gradient.numpy()

    def gradient_on_device(self) -> Tensor:
        """Return the gradient, [B, T, P]."""
        return self._gradient.to(self.device, non_blocking=True)


class _QuietTorch:
    """Holds torch to one thread while lattices are made on the same cores."""

    def __init__(self) -> None:
        self._num_holds = 0
        self._before = 1

    def hold(self) -> None:
        """Note that a part is under way."""
        if not self._num_holds:
            self._before = torch.get_num_threads()
            torch.set_num_threads(1)
        self._num_holds += 1

    def release(self) -> None:
        """Note that a part is done; after the last one torch has its threads again."""
        self._num_holds -= 1
        if not self._num_holds:
            torch.set_num_threads(self._before)

    def restore(self) -> None:
        """Give torch its threads, whatever is under way."""
        if self._num_holds:
            self._num_holds = 1
            self.release()
