"""One step of the optimizer: from batches to changed parameters.

    gradient = (sum over all parts of all ranks) / (frames of all parts of all ranks)

so that neither the number of ranks nor of micro-batches changes a step. Then, in this
order: noise, L2, the rule on outliers, clipping by the norm of the whole, the optimizer
(whose change may be shortened), and constraints.

On a GPU nobody waits for a step: its numbers travel to the processor while the next
one is under way, and are looked at then (`Measured.read`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn, optim

from latflow.criteria.batch import Batch
from latflow.criteria.consistency import with_second_view
from latflow.criteria.protocol import Criterion, Loss, Pending
from latflow.errors import UserError
from latflow.logs import note_progress
from latflow.nnet.draws import mixed_seed
from latflow.nnet.network import Network
from latflow.nnet.precision import passes_in
from latflow.training.checkpoint import FRAMES
from latflow.training.cuda_graphs import GraphedNetwork
from latflow.training.distributed import Backend
from latflow.training.memory import enough_for_pass
from latflow.training.natural_gradient import NaturalGradient
from latflow.training.optimizers import (
    FlatGradient,
    limit_change,
    limit_norms,
    set_learning_rate,
)
from latflow.training.options import TrainingOptions
from latflow.training.outliers import OutlierRule, Verdict
from latflow.training.progress import Clock

LOSS = "loss"
CHECKPOINT, STOP = "checkpoint", "stop"  # requests of ranks, added up like the rest
_NAMED = 8  # utterances in a message
_CONSTRAIN = -1  # instead of a rank, for the draw of a step
_FIXED = (FRAMES, LOSS, CHECKPOINT, STOP)


@dataclass(frozen=True)
class Part:
    """A pass through the network.

    Attributes:
        batch: the sequences.
        loss: its loss, without the graph behind it.
    """

    batch: Batch
    loss: Loss

    def suspects(self) -> list[str]:
        """Return utterances that may be at fault for a value that is not finite."""
        is_bad = ~self.batch.features.isfinite().flatten(1).all(1).cpu()
        if self.loss.by_sequence is not None:
            is_bad |= ~self.loss.by_sequence.isfinite().cpu()
        return [self.batch.utterances[i] for i in is_bad.nonzero().flatten().tolist()]


@dataclass
class Measured:
    """The numbers of a step, perhaps still on their way.

    Attributes:
        step: its number, from 1.
        names: of the numbers; the last is the norm of the gradient.
        parts: what this rank saw.
        is_outlier: whether the step was skipped or clipped.
    """

    step: int
    names: Sequence[str]
    parts: Sequence[Part]
    numbers: Tensor
    arrived: Any = field(default=None)
    is_outlier: bool = False

    def read(self) -> dict[str, float]:
        """Return the numbers by name; waits until they are there."""
        if self.arrived is not None:
            self.arrived.synchronize()
        return dict(zip(self.names, self.numbers.tolist(), strict=True))

    def suspects(self) -> list[str]:
        """Return utterances that may be at fault for a value that is not finite."""
        found = [name for part in self.parts for name in part.suspects()]
        if found:
            return found
        bad = [p for p in self.parts if not math.isfinite(float(p.loss.value))]
        return [u for part in bad or self.parts for u in part.batch.utterances]


class Stepper:
    """Makes steps.

    Args:
        network: on its device.
        criterion: what is minimized.
        optimizer: of the network's parameters.
        options: of the training.
        seed: of dropout, gradient noise and constraints.
        backend: the other ranks.
    """

    def __init__(
        self,
        network: Network,
        criterion: Criterion,
        optimizer: optim.Optimizer,
        options: TrainingOptions,
        *,
        seed: int,
        backend: Backend,
    ) -> None:
        self.network, self.criterion, self.optimizer = network, criterion, optimizer
        self.options, self.seed, self.backend = options, seed, backend
        self.gradient = FlatGradient(network.parameters())
        self.device = self.gradient.vector.device
        # with several parts under way, one's numbers would take the place of another's
        self.scorer = GraphedNetwork(
            network,
            partial(passes_in, options.precision, self.device),
            self.gradient if criterion.max_pending == 1 else None,
            compiles=options.compile == "auto",
        )
        self.averages_parameters = (
            options.parameter_averaging is not None and backend.size > 1
        )
        self.statistics = RunningStatistics(network, backend)
        rule = options.outliers
        self.outliers = None if rule is None else OutlierRule(rule)
        self._names = (*_FIXED, *criterion.statistics)
        self._pending_sums: dict[str, float] = {}

    def make(
        self,
        batches: Sequence[Batch | None],
        step: int,
        learning_rate: float,
        clock: Clock,
        *,
        requests: Mapping[str, bool],
    ) -> Measured:
        """Make a step.

        Args:
            batches: this rank's shares of the step's batches; None is an empty share.
            step: its number, from 1.
            learning_rate: of the optimizer.
            clock: counts where the time goes.
            requests: whether this rank wants a checkpoint, or to stop.

        Returns:
            Its numbers: sums over parts (and ranks, unless parameters are averaged)
            and the norm of the gradient before clipping.
        """
        torch.manual_seed(mixed_seed(self.seed, step, self.backend.rank))
        self.network.at_step(step)
        self.gradient.clear()
        numbers = torch.zeros(len(self._names), dtype=torch.float64, device=self.device)
        parts = self._accumulate(batches, numbers, clock)
        for request, is_wanted in requests.items():
            numbers[self._names.index(request)].fill_(float(is_wanted))
        if not self.averages_parameters:
            with clock.during("reduce"):
                self.backend.all_reduce_([self.gradient.vector, numbers])
        with clock.during("update"):
            norm, is_outlier = self._update(numbers, step, learning_rate)
        measured = torch.cat([numbers, norm.double()[None]])
        return self._measured(step, parts, measured, is_outlier=is_outlier)

    def add_sums(self, numbers: Mapping[str, float]) -> None:
        """Pass the sums of a step, of all ranks, on to the criterion.

        Ranks that train alone keep theirs until `sync_sums`.

        Args:
            numbers: of all ranks, or of this one where it trains alone.
        """
        if not self.averages_parameters:
            self.criterion.stepped(numbers)
            return
        for name, value in numbers.items():
            self._pending_sums[name] = self._pending_sums.get(name, 0.0) + value

    def sync_sums(self) -> None:
        """Pass on what ranks that train alone have kept; all of them call it."""
        if self._pending_sums:
            totals = self.backend.all_reduce_numbers([*self._pending_sums.values()])
            totals_by_name = dict(zip(self._pending_sums, totals, strict=True))
            self._pending_sums.clear()
            self.criterion.stepped(totals_by_name)

    def _accumulate(
        self, batches: Sequence[Batch | None], numbers: Tensor, clock: Clock
    ) -> list[Part]:
        """Add up gradients and numbers of this rank's shares."""
        parts: list[Part] = []
        passes = ForwardPasses(self.scorer, self.criterion, self.options, clock)
        for batch, loss in passes(batches):
            with clock.during("backward"), enough_for_pass(batch):
                if loss.value.requires_grad:
                    loss.value.backward()
            add_loss(numbers, self._names, loss)
            kept = Loss(loss.value.detach(), loss.num_frames, {}, loss.by_sequence)
            parts.append(Part(batch, kept))
            self.statistics.seen += len(batch)
        return parts

    def _update(
        self, numbers: Tensor, step: int, learning_rate: float
    ) -> tuple[Tensor, bool]:
        """Change the parameters.

        Returns:
            The gradient's norm before clipping, and whether the step is an outlier.
        """
        options, gradient = self.options, self.gradient
        with torch.no_grad():
            gradient.vector.div_(numbers[0].clamp(min=1.0).float())
        if options.gradient_noise:
            gradient.add_noise(options.gradient_noise, step - 1, self.seed)
        if options.l2:
            gradient.pull(options.l2)
        norm = gradient.clip(None)
        verdict = self._judge(numbers, norm)
        natural = (
            self.optimizer if isinstance(self.optimizer, NaturalGradient) else None
        )
        if not verdict.is_made:
            if natural is not None:
                natural.forget()
            return norm, True
        limits = [x for x in (options.clip_norm, verdict.max_norm) if x is not None]
        gradient.clip(min(limits, default=None), norm)
        set_learning_rate(self.optimizer, learning_rate)
        if natural is not None and not self.averages_parameters:
            natural.share(self.backend)
        with limit_change(gradient.parameters, options.max_change):
            self.optimizer.step()
        if options.max_norm is not None:
            limit_norms(gradient.parameters, options.max_norm)
        draw = mixed_seed(self.seed, step, _CONSTRAIN) / 2**63
        if draw < options.constrain_share:
            self.network.constrain()
        return norm, verdict.is_outlier

    def _judge(self, numbers: Tensor, norm: Tensor) -> Verdict:
        """Return what the rule on outliers says of the step; waits for its numbers."""
        if self.outliers is None:
            return Verdict()
        found = torch.cat([numbers[:2], norm.double()[None]])
        frames, loss, length = found.tolist()  # the one wait, for all of them
        return self.outliers.judge(loss / max(frames, 1.0), length)

    def _measured(
        self, step: int, parts: list[Part], numbers: Tensor, *, is_outlier: bool
    ) -> Measured:
        """Send the numbers to the processor."""
        names = (*self._names, "gradient_norm")
        if not numbers.is_cuda:
            return Measured(step, names, parts, numbers, is_outlier=is_outlier)
        there = torch.empty_like(numbers, device="cpu", pin_memory=True)
        there.copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()
        arrived.record()
        return Measured(step, names, parts, there, arrived, is_outlier)

    def synchronize(self) -> None:
        """Average parameters, or running statistics alone, over the ranks."""
        if self.averages_parameters:
            average_(self.gradient.parameters, self.backend)
        self.statistics.average()

    @contextmanager
    def joined(self) -> Iterator[None]:
        """Evaluate the same network on all ranks within an epoch; then continue."""
        if self.backend.size == 1:
            yield
            return
        own, seen = [*self.statistics.tensors], self.statistics.seen
        if self.averages_parameters:
            own += self.gradient.parameters
        kept = [tensor.detach().clone() for tensor in own]
        self.synchronize()
        yield
        with torch.no_grad():
            for tensor, value in zip(own, kept, strict=True):
                tensor.copy_(value)
        self.statistics.seen = seen


class RunningStatistics:
    """Running statistics (of batch normalization), which each rank has of its shares.

    Args:
        network: whose.
        backend: the other ranks.

    Attributes:
        tensors: the statistics.
        seen: sequences that this rank has seen since they were last averaged.
    """

    def __init__(self, network: nn.Module, backend: Backend) -> None:
        self.tensors = [b for b in network.buffers() if b.dtype == torch.float32]
        self.seen = 0
        self._backend = backend

    def average(self) -> None:
        """Make them the same on all ranks: means, weighted by what each has seen."""
        if self._backend.size == 1 or not self.tensors:
            return
        (total,) = self._backend.all_reduce_numbers([self.seen])
        weight = self.seen * self._backend.size / total if total else 1.0
        with torch.no_grad():
            for tensor in self.tensors:
                tensor.mul_(weight)
        average_(self.tensors, self._backend)
        self.seen = 0

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of this rank."""
        return {"values": [t.cpu() for t in self.tensors], "seen": self.seen}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        for tensor, value in zip(self.tensors, state["values"], strict=True):
            tensor.copy_(value)
        self.seen = state["seen"]


@dataclass(frozen=True, eq=False)
class ForwardPasses:
    """Forward passes and the criterion, so many under way as the criterion allows.

    Attributes:
        scorer: the network, on its device.
        criterion: of the outputs.
        options: `micro_sequences`.
        clock: counts where the time goes.
    """

    scorer: GraphedNetwork
    criterion: Criterion
    options: TrainingOptions
    clock: Clock

    def __call__(self, batches: Iterable[Batch | None]) -> Iterator[tuple[Batch, Loss]]:
        """Yield each part and its loss, in order."""
        device = self.scorer.device
        waiting: deque[tuple[Batch, Pending]] = deque()
        for batch in batches:
            for part in parts_of(batch, self.options):
                micro = with_second_view(part) if self.options.consistency else part
                with enough_for_pass(micro):
                    waiting.append(self._begun(micro, device))
                if len(waiting) >= self.criterion.max_pending:
                    yield self._finished(waiting)
        while waiting:
            yield self._finished(waiting)

    def _begun(self, micro: Batch, device: torch.device) -> tuple[Batch, Pending]:
        """Return a part, on its device, and what its loss comes of."""
        with self.clock.during("data"):
            there = micro.to(device, non_blocking=True)
        with self.clock.during("forward"):
            outputs = self.scorer(there)
            return there, self.criterion.begin(outputs, there)

    def _finished(self, waiting: deque[tuple[Batch, Pending]]) -> tuple[Batch, Loss]:
        """Return the part that has waited longest, with its loss."""
        batch, finish = waiting.popleft()
        note_progress()
        with self.clock.during("criterion"), enough_for_pass(batch):
            return batch, finish()


def parts_of(batch: Batch | None, options: TrainingOptions) -> list[Batch]:
    """Return the parts of a batch that go through the network at once.

    Args:
        batch: a rank's share of a batch; None is an empty one.
        options: `micro_sequences`.
    """
    if batch is None or not len(batch):
        return []
    limit = options.micro_sequences
    return batch.split(1 if limit is None else math.ceil(len(batch) / limit))


def not_finite(
    measured: Measured, norm: float, loss: float, backend: Backend
) -> UserError:
    """Return the error of a step that is not finite, the same on all ranks.

    Args:
        measured: the step.
        norm: length of the gradient.
        loss: sum of the loss.
        backend: the ranks that have found the same.
    """
    names = sorted(
        {name for names in backend.gather(measured.suspects()) for name in names}
    )
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return UserError(
        f"step {measured.step}: the loss ({loss:g}) or the length of the gradient "
        f"({norm:g}) is not finite",
        utterance=", ".join(names[:_NAMED]) + more,
        remedy="look at the features of these utterances; if they are sound, lower the "
        "learning rate or clip_norm",
    )


def add_loss(numbers: Tensor, names: Sequence[str], loss: Loss) -> None:
    """Add the numbers of a loss to sums.

    Args:
        numbers: float64 sums, changed.
        names: theirs, `frames` and `loss` first.
        loss: of a part.

    Raises:
        ValueError: a statistic that the criterion has not announced.
    """
    values = {FRAMES: loss.num_frames, LOSS: loss.value.detach(), **loss.statistics}
    for name, value in values.items():
        if name not in names:
            raise ValueError(f"the criterion does not announce its statistic {name}")
        numbers[names.index(name)].add_(value)  # `+=` would copy the sum once more


@torch.no_grad()
def average_(tensors: Sequence[Tensor], backend: Backend) -> None:
    """Replace tensors by their means over the ranks."""
    if backend.size == 1 or not tensors:
        return
    flat = torch.cat([tensor.detach().flatten() for tensor in tensors])
    backend.all_reduce_([flat])
    flat /= backend.size
    sizes = [tensor.numel() for tensor in tensors]
    for tensor, mean in zip(tensors, flat.split(sizes), strict=True):
        tensor.copy_(mean.view_as(tensor))
