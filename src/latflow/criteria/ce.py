"""Cross-entropy against one label a frame."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional

from latflow.criteria.base import Criterion, Loss, Ready
from latflow.errors import UserError
from latflow.nnet.description import Loss as OutputLoss
from latflow.nnet.network import Network, Output
from latflow.training.batches import Batch

NOT_COUNTED = -1


class CrossEntropy(Criterion):
    """Sum over frames of -log p(label), over all outputs that have this loss.

    With label smoothing e the label's distribution is 1 - e on the label plus e spread
    evenly over all classes. Frames labelled -1 do not count, in value, gradient or
    statistics. The statistic `frame_errors` counts frames whose best class is not the
    label, of the first output; others have `frame_errors.<output>` and `ce.<output>`
    (unscaled).

    Args:
        losses: of each output: the name of its labels and its factor in the sum.
        label_smoothing: e, in [0, 1).

    Raises:
        ValueError: no outputs.
    """

    name = "ce"

    def __init__(
        self, losses: Mapping[str, OutputLoss], *, label_smoothing: float = 0.0
    ) -> None:
        if not losses:
            raise ValueError("cross-entropy needs an output")
        self.losses = dict(losses)
        self.label_smoothing = label_smoothing
        first, *others = self.losses
        self.main = first
        self.statistics = (
            "frame_errors",
            *(f"{what}.{name}" for name in others for what in ("frame_errors", "ce")),
        )

    @classmethod
    def of(cls, network: Network, *, label_smoothing: float = 0.0) -> CrossEntropy:
        """The criterion of a network's description."""
        losses = {name: output.loss for name, output in network.outputs.items()}
        return cls(losses, label_smoothing=label_smoothing)

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Ready:
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
        return Ready(loss)

    def _by_sequence(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy summed over each sequence's frames, float64 [B]."""
        of_frame = functional.cross_entropy(
            logits.flatten(0, 1).float(),
            labels.flatten(),
            ignore_index=NOT_COUNTED,
            reduction="none",
            label_smoothing=self.label_smoothing,
        )
        return of_frame.view(labels.shape).sum(1, dtype=torch.float64)


def _labels(batch: Batch, target: str, output: str) -> Tensor:
    """Labels of an output, int64 [B, T']."""
    if target not in batch.targets:
        known = ", ".join(batch.targets) or "none"
        raise UserError(
            f"output {output}: no labels called {target}",
            remedy=f"the training data have: {known}",
        )
    return batch.targets[target]


@torch.no_grad()
def _frame_errors(logits: Tensor, labels: Tensor) -> Tensor:
    """Number of counted frames whose highest score is not the label's."""
    is_wrong = (logits.argmax(-1) != labels) & (labels != NOT_COUNTED)
    return is_wrong.sum()
