"""Priors of the classes, by which posteriors become likelihoods.

Source: Bourlard and Morgan 1994; RETURNN's task `compute_priors` (mean posteriors).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch

from latflow.nnet.network import Network
from latflow.training.batches import Batch
from latflow.training.distributed import Backend
from latflow.training.labels import LabelStore
from latflow.training.steps import autocast, parts_of


def priors_of_labels(labels: LabelStore) -> np.ndarray:
    """Shares of the classes among the labels of training, float64 [K]."""
    counts = labels.counts().astype(np.float64)
    return counts / max(counts.sum(), 1.0)


@torch.no_grad()
def priors_of_posteriors(
    network: Network,
    batches: Iterable[Batch | None],
    options: Mapping[str, Any],
    backend: Backend,
) -> np.ndarray:
    """Mean posteriors of the first output over counted frames, float64 [K].

    Args:
        network: on its device; put into evaluation mode.
        batches: this rank's shares; frames with a label of the first output count.
        options: `precision` and `micro_sequences` of the section `training`.
        backend: the other ranks, which add theirs.
    """
    name, output = next(iter(network.outputs.items()))
    device = next(network.parameters()).device
    sums = torch.zeros(output.num_classes + 1, dtype=torch.float64, device=device)
    network.eval()
    for part in chain.from_iterable(parts_of(batch, options) for batch in batches):
        there = part.to(device)
        with autocast(options, device):
            logits = network(there.features, there.lengths)[name].logits
        is_counted = there.targets[output.loss.target] >= 0
        posteriors = torch.softmax(logits[is_counted].float(), -1)
        sums[:-1] += posteriors.sum(0, dtype=torch.float64)
        sums[-1] += is_counted.sum()
    backend.all_reduce_([sums])
    return (sums[:-1] / sums[-1].clamp(min=1.0)).cpu().numpy()
