"""What is added to a lattice criterion: cross-entropy and a penalty on outputs.

    F_total = F + ce_weight * sum over t of log p(label_t) - l2 / 2 * sum of x^2

with p the network's softmax and x its input. Cross-entropy keeps the network near frame
labels, where a lattice says nothing (F-smoothing); the penalty keeps outputs small (as
Kaldi's `--l2-regularize` of chain training). PyKaldi2's `weight_decay` is another
thing, the squares of the *parameters*: `training.optimiser.weight_decay` here.

Public: `interpolate`.

Source: Su et al. 2013, "Error back propagation for sequence training of context-
dependent deep networks for conversational speech transcription" (F-smoothing); Kaldi
`chain/chain-training.cc` (`ComputeChainObjfAndDeriv`, L2 term).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from latflow.criteria.function import CriterionResult

NOT_COUNTED = -1


def interpolate(
    result: CriterionResult,
    logits: Tensor,
    labels: Tensor,
    *,
    ce_weight: float = 0.0,
    l2: float = 0.0,
) -> CriterionResult:
    """Add cross-entropy and the penalty to a criterion.

    Args:
        result: the criterion of an utterance.
        logits: the network's output before the softmax, [T, P].
        labels: pdfs, int64 [T]; -1 where a frame does not count.
        ce_weight: of cross-entropy.
        l2: of the squared outputs.

    Returns:
        The sum, to be maximised; as statistics also `ce`, the unweighted cross-entropy
        in nats, and `squares`, the unweighted sum of squares.
    """
    exact = logits.double()
    nats = functional.cross_entropy(
        exact, labels, ignore_index=NOT_COUNTED, reduction="sum"
    )
    squares = (exact.square() * (labels != NOT_COUNTED).unsqueeze(-1)).sum()
    total = result.objective - ce_weight * nats - 0.5 * l2 * squares
    with torch.no_grad():
        added = {"ce": float(nats), "squares": float(squares)}
    return replace(result, objective=total, statistics={**result.statistics, **added})
