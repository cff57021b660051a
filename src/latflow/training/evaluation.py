"""A network's criterion on a corpus, without training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from latflow.criteria.base import Criterion
from latflow.errors import UserError
from latflow.nnet.network import Network
from latflow.training.batches import BatchSource
from latflow.training.distributed import Backend
from latflow.training.progress import Clock
from latflow.training.standing import FRAMES, Means, means
from latflow.training.steps import LOSS, Passes, add_loss


@torch.no_grad()
def evaluate(
    network: Network,
    criterion: Criterion,
    batches: BatchSource,
    options: Mapping[str, Any],
    backend: Backend,
) -> Means:
    """Return means per frame: `loss`, the criterion's statistics; and `frames`.

    All ranks share the work.

    Args:
        network: on its device; in evaluation mode while this runs.
        criterion: what is measured.
        batches: the corpus; its epoch 0 is taken.
        options: `precision` and `micro_sequences` of the section `training`.
        backend: the other ranks.

    Raises:
        UserError: no frame has a label.
    """
    names = (FRAMES, LOSS, *criterion.statistics)
    device = next(network.parameters()).device
    numbers = torch.zeros(len(names), dtype=torch.float64, device=device)
    was_training = network.training
    network.eval()
    passes = Passes(network, criterion, options, Clock())
    for _, loss in passes(batches.epoch(0, rank=backend.rank, size=backend.size)):
        add_loss(numbers, names, loss)
    network.train(was_training)
    backend.all_reduce_([numbers])
    found = means(dict(zip(names, numbers.tolist(), strict=True)))
    if not found:
        raise UserError(
            "no frame of the dev set has a label",
            remedy="check the alignments of dev",
        )
    return found
