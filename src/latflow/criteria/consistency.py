"""Consistency regularization: equal posteriors for two views of a sequence.

Each batch goes through the network twice, as one of twice as many sequences, whose
masks and dropout differ. Beside the loss of both views, the mean of theirs, stands

    weight x 1/2 sum over frames (KL(sg(q) || p) + KL(sg(p) || q)),

with p and q the posteriors of a frame in the two views; sg lets no gradient through.

Source: Yao et al. 2024, "CR-CTC: Consistency regularization on CTC for improved speech
recognition", section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from latflow.criteria.batch import Batch
from latflow.criteria.protocol import Criterion, Loss, Pending
from latflow.nnet.described import OutputLoss
from latflow.nnet.draws import RowDraws
from latflow.nnet.network import Output

#: Losses of outputs that give posteriors of frames.
_OF_FRAMES = {"ce", "ctc"}
_SECOND = "second view"


def with_second_view(batch: Batch) -> Batch:
    """Return a batch with each sequence twice, with other draws behind the first ones.

    Args:
        batch: on the CPU.
    """
    rows = list(range(len(batch)))
    both = batch.select(rows + rows)
    if batch.keys is None:
        return both
    others = RowDraws(batch.keys).named(_SECOND).keys
    return replace(both, keys=torch.cat((batch.keys, others)))


def regularized_outputs(losses: Mapping[str, OutputLoss]) -> list[str]:
    """Return the outputs whose views are compared."""
    return [name for name, loss in losses.items() if loss.name in _OF_FRAMES]


class Consistent(Criterion):
    """A criterion of batches that have each sequence twice, and their consistency.

    The statistic `consistency` is the sum over frames of both divergences, of all
    outputs that are compared.

    Args:
        inner: the criterion.
        outputs: that are compared, not empty.
        weight: of the consistency.
    """

    def __init__(self, inner: Criterion, outputs: Sequence[str], weight: float) -> None:
        self._inner, self._outputs, self._weight = inner, list(outputs), weight
        self.name, self.max_pending = inner.name, inner.max_pending
        self.statistics = (*inner.statistics, "consistency")

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Start on a part with two views of each sequence; see `Criterion.begin`."""
        finish = self._inner.begin(outputs, batch)
        divergences = torch.stack([divergence(outputs[name]) for name in self._outputs])
        return lambda: self._together(finish(), divergences.sum(0))

    def _together(self, loss: Loss, divergences: Tensor) -> Loss:
        """Return a loss with the consistency [B / 2] of its sequences."""
        statistics = {**loss.statistics, "consistency": divergences.detach().sum()}
        value = loss.value + self._weight * divergences.sum()
        by_sequence = loss.by_sequence
        if by_sequence is not None:
            by_sequence = (
                by_sequence + 0.5 * self._weight * divergences.detach().repeat(2)
            )
        return Loss(value, loss.num_frames, statistics, by_sequence)

    def stepped(self, totals: Mapping[str, float]) -> None:
        """Pass the sums of a step on."""
        self._inner.stepped(totals)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return self._inner.state()

    def load_states(
        self, states: Sequence[Mapping[str, Any]], *, is_main: bool
    ) -> None:
        """Go on from a checkpoint."""
        self._inner.load_states(states, is_main=is_main)

    def failures(self) -> Set[str]:
        """Return the utterances that had no path."""
        return self._inner.failures()

    def close(self) -> None:
        """End threads and files."""
        self._inner.close()


def divergence(output: Output) -> Tensor:
    """Return the divergences of two views from each other, summed over frames.

    Args:
        output: of B sequences, the second half of which are views of the first.

    Returns:
        float64 [B / 2]: KL(sg(q) || p) + KL(sg(p) || q), in nats.
    """
    logits, lengths = output
    one, other = logits.float().log_softmax(-1).chunk(2)
    times = torch.arange(logits.shape[1], device=logits.device)
    length = lengths[: len(one)].to(logits.device)
    beyond = times >= length[:, None]
    both = _divergence(one, other) + _divergence(other, one)
    return both.masked_fill(beyond, 0.0).sum(1, dtype=torch.float64)


def _divergence(learnt: Tensor, target: Tensor) -> Tensor:
    """Return KL(target || learnt) by frame, [B, T]; the target has no gradient."""
    target = target.detach()
    return (target.exp() * (target - learnt)).sum(-1)
