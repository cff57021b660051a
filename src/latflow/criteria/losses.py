"""Losses of a network's outputs, each against targets of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from latflow.align.ctc import ctc_graph
from latflow.criteria.batch import Batch
from latflow.criteria.ctc import CtcLoss
from latflow.criteria.protocol import Criterion, Loss, Pending
from latflow.errors import UserError
from latflow.nnet.described import OutputLoss
from latflow.nnet.layers.decoder import END, padded
from latflow.nnet.network import Network, Output

NOT_COUNTED = -1


class CrossEntropy(Criterion):
    """Cross-entropy: sum over frames of -log p(label), over all outputs that have it.

    With label smoothing e the label's distribution is 1 - e on the label plus e spread
    evenly over all classes. With a focal exponent g, that of each frame is multiplied
    by (1 - p(label))^g, so that frames that are classified well weigh less. Frames
    labelled -1 do not count, in value, gradient or statistics. The statistic
    `frame_errors` counts frames whose best class is not the label, of the first output;
    others have `frame_errors.<output>` and `ce.<output>` (unscaled).

    Source of g: Lin et al. 2017, "Focal loss for dense object detection".

    Args:
        losses: of each output: the name of its labels and its factor in the sum.
        label_smoothing: e, in [0, 1).
        focal: g, 0 or more.

    Raises:
        ValueError: no outputs.
    """

    name = "ce"

    def __init__(
        self,
        losses: Mapping[str, OutputLoss],
        *,
        label_smoothing: float = 0.0,
        focal: float = 0.0,
    ) -> None:
        if not losses:
            raise ValueError("cross-entropy needs an output")
        self.losses = dict(losses)
        self.label_smoothing, self.focal = label_smoothing, focal
        first, *others = self.losses
        self.main = first
        self.statistics = (
            "frame_errors",
            *(f"{what}.{name}" for name in others for what in ("frame_errors", "ce")),
        )

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Compute the loss; see `Criterion.begin`.

        Raises:
            UserError: the batch has no labels of an output's name.
        """
        parts, statistics = [], {}
        for name, loss in self.losses.items():
            logits, labels = outputs[name].logits, _labels(batch, loss.target, name)
            of_sequence = self._by_sequence(logits, labels)
            if batch.weight is not None:
                of_sequence = of_sequence * batch.weight.to(of_sequence)
            parts.append(loss.scale * of_sequence)
            suffix = "" if name == self.main else f".{name}"
            statistics[f"frame_errors{suffix}"] = _frame_errors(logits, labels)
            if suffix:
                statistics[f"ce{suffix}"] = of_sequence.detach().sum()
        by_sequence = torch.stack(parts).sum(0)
        loss = Loss(
            by_sequence.sum(), batch.num_frames, statistics, by_sequence.detach()
        )
        return lambda: loss

    def _by_sequence(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return cross-entropy summed over each sequence's frames, float64 [B]."""
        compute = partial(
            functional.cross_entropy,
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=NOT_COUNTED,
            reduction="none",
        )
        of_frame = compute(label_smoothing=self.label_smoothing)
        if self.focal:
            of_label = compute() if self.label_smoothing else of_frame
            # Away from 0, where the derivative of an exponent below 1 is infinite.
            missed = -torch.expm1(-of_label).clamp(max=-1e-6)
            of_frame = of_frame * missed**self.focal
        return of_frame.view(labels.shape).sum(1, dtype=torch.float64)


def _labels(batch: Batch, target: str, output: str) -> Tensor:
    """Return the labels of an output, int64 [B, T']."""
    if target not in batch.targets:
        known = ", ".join(batch.targets) or "none"
        raise UserError(
            f"output {output}: no targets called {target}",
            remedy=f"the training data have: {known}",
        )
    return batch.targets[target]


@torch.no_grad()
def _frame_errors(logits: Tensor, labels: Tensor) -> Tensor:
    """Count frames with a label whose highest score is not the label's."""
    is_wrong = (logits.argmax(-1) != labels) & (labels != NOT_COUNTED)
    return is_wrong.sum()


class AttentionLoss(Criterion):
    """Cross-entropy of the units that a decoder emits, the end of each sequence too.

    The decoder is given the units before the one that it is to predict (but for its
    `sampling`). With label smoothing e the unit's distribution is 1 - e on the unit
    plus e spread evenly over all. Statistics: `units`, and `unit_errors`, those whose
    best guess is another; a share of errors is their quotient.

    Args:
        network: with a decoder.
        label_smoothing: e, in [0, 1).

    Raises:
        UserError: the network has no decoder.
    """

    name = "attention"
    statistics = ("unit_errors", "units")

    def __init__(self, network: Network, *, label_smoothing: float = 0.0) -> None:
        self.output, self.decoder = network.decoder
        self.scale = network.outputs[self.output].loss.scale
        self.label_smoothing = label_smoothing

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Compute the loss; see `Criterion.begin`.

        Raises:
            UserError: the batch has no units.
        """
        if len(batch.graphs) != len(batch):
            raise UserError(
                "an output has the loss attention, the data have no units of "
                "transcripts",
                remedy="name the network in a recipe, whose workflow makes them",
            )
        values, lengths = outputs[self.output]
        sequences = [graph.ilabel.tolist() for graph in batch.graphs]
        units, counts = padded(sequences, values.device)
        memory = self.decoder.memory(values.float(), lengths)
        logits = self.decoder.teach(memory, units).float()
        wanted = functional.pad(units, (0, 1), value=END)  # the end behind the last
        beyond = torch.arange(wanted.shape[1], device=wanted.device) > counts[:, None]
        wanted = wanted.masked_fill(beyond, NOT_COUNTED)
        of_unit = functional.cross_entropy(
            logits.flatten(0, 1),
            wanted.flatten(),
            ignore_index=NOT_COUNTED,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        by_sequence = of_unit.view(wanted.shape).sum(1, dtype=torch.float64)
        statistics = {
            "unit_errors": _frame_errors(logits, wanted),
            "units": sum(map(len, sequences)) + len(batch),
        }
        by_sequence = self.scale * by_sequence
        loss = Loss(
            by_sequence.sum(), batch.num_frames, statistics, by_sequence.detach()
        )
        return lambda: loss


class SquaredError(Criterion):
    """Squared error against features or masks, over all outputs that have this loss.

    Of a frame it is the mean over its numbers. With several outputs there are the
    statistics `mse.<output>` (unscaled).

    Args:
        losses: of each output.
    """

    name = "mse"

    def __init__(self, losses: Mapping[str, OutputLoss]) -> None:
        self.losses = dict(losses)
        several = self.losses if len(self.losses) > 1 else ()
        self.statistics = tuple(f"mse.{name}" for name in several)

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Compute the loss; see `Criterion.begin`.

        Raises:
            UserError: the batch has no targets of an output's name.
        """
        parts, statistics = [], {}
        for name, loss in self.losses.items():
            target = _labels(batch, loss.target, name)
            values = outputs[name].logits.float()
            # what is not counted gives no gradient, not even NaN times 0
            wanted = torch.where(target.isnan(), values.detach(), target)
            of_frame = (values - wanted).square().mean(-1)
            of_sequence = of_frame.sum(1, dtype=torch.float64)
            parts.append(loss.scale * of_sequence)
            if self.statistics:
                statistics[f"mse.{name}"] = of_sequence.detach().sum()
        by_sequence = torch.stack(parts).sum(0)
        loss = Loss(
            by_sequence.sum(), batch.num_frames, statistics, by_sequence.detach()
        )
        return lambda: loss


class Joint(Criterion):
    """The sum of several losses of one network.

    Statistics: those of the losses, and the value of each by its name (its outputs'
    scales are in it); what several have, such as `failed_frames`, is their sum.

    Args:
        parts: the losses, at least two, of different names.
        measured: names of losses that are not part of the sum.
    """

    name = "joint"

    def __init__(
        self, parts: Sequence[Criterion], *, measured: Set[str] = frozenset()
    ) -> None:
        self.parts, self._measured = tuple(parts), measured
        self.max_pending = min(part.max_pending for part in parts)
        self.statistics = tuple(
            dict.fromkeys(
                name for part in parts for name in (part.name, *part.statistics)
            )
        )

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Begin all of them; see `Criterion.begin`."""
        begun = [(part.name, part.begin(outputs, batch)) for part in self.parts]

        def finish() -> Loss:
            losses = {name: pending() for name, pending in begun}
            statistics: dict[str, Any] = {}
            for name, loss in losses.items():
                statistics[name] = loss.value.detach()
                for what, value in loss.statistics.items():
                    statistics[what] = statistics.get(what, 0) + value
            summed = [x for name, x in losses.items() if name not in self._measured]
            values = torch.stack([loss.value for loss in summed])
            known = [one.by_sequence for one in summed]
            by_sequence = [one for one in known if one is not None]
            return Loss(
                values.sum(),
                batch.num_frames,
                statistics,
                torch.stack(by_sequence).sum(0),
            )

        return finish

    def state(self) -> dict[str, Any]:
        """Return what all of them must keep."""
        return {part.name: part.state() for part in self.parts}

    def load_states(
        self, states: Sequence[Mapping[str, Any]], *, is_main: bool
    ) -> None:
        """Go on with it."""
        for part in self.parts:
            own = [state[part.name] for state in states]
            part.load_states(own, is_main=is_main)

    def failures(self) -> Set[str]:
        """Return the utterances that had no path for any of them."""
        return {name for part in self.parts for name in part.failures()}

    def close(self) -> None:
        """End all of them."""
        for part in self.parts:
            part.close()


def losses_of(
    network: Network,
    *,
    label_smoothing: float = 0.0,
    focal: float = 0.0,
    is_training: bool = True,
    threads: int = 1,
) -> Criterion:
    """Return the criterion of a network's outputs, as its description names them.

    Args:
        network: the network.
        label_smoothing: see `CrossEntropy` and `AttentionLoss`.
        focal: see `CrossEntropy`.
        is_training: false computes no gradient where it takes time.
        threads: sequences that CTC works on at a time.

    Raises:
        UserError: a loss that is not one of outputs alone.
    """
    parts: list[Criterion] = []
    kinds = dict.fromkeys(output.loss.name for output in network.outputs.values())
    for kind in kinds:
        own = network.losses_of(kind)
        if kind == "ce":
            ways = {"label_smoothing": label_smoothing, "focal": focal}
            parts.append(CrossEntropy(own, **ways))
        elif kind == "ctc":
            compiled = ctc_graph if "attention" in kinds else None  # of the units
            parts.append(
                CtcLoss(
                    own,
                    is_training=is_training,
                    threads=threads,
                    compile_graph=compiled,
                )
            )
        elif kind == "attention":
            parts.append(AttentionLoss(network, label_smoothing=label_smoothing))
        elif kind == "mse":
            parts.append(SquaredError(own))
        else:
            raise UserError(
                f"output {next(iter(own))} has the loss {kind}",
                file=network.description.file,
                remedy=f"train it with type: {kind}",
            )
    return parts[0] if len(parts) == 1 else Joint(parts)
