"""A network on a corpus, without training: its criterion, and priors of its classes.

Sources: Bourlard and Morgan 1994 (priors); RETURNN's task `compute_priors` (mean
posteriors).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import closing
from functools import partial
from itertools import chain

import numpy as np
import torch

from latflow.criteria.batch import Batch
from latflow.criteria.protocol import Criterion
from latflow.errors import UserError
from latflow.nnet.network import Network
from latflow.nnet.precision import passes_in
from latflow.training.batches import BatchSource
from latflow.training.checkpoint import FRAMES, Means, means
from latflow.training.cuda_graphs import GraphedNetwork
from latflow.training.distributed import Backend
from latflow.training.labels import LabelStore
from latflow.training.memory import enough_for_pass
from latflow.training.options import TrainingOptions
from latflow.training.progress import Clock
from latflow.training.steps import LOSS, ForwardPasses, Part, add_loss, parts_of

_NAMED = 8  # utterances in a message


@torch.no_grad()
def evaluate(
    network: Network,
    criterion: Criterion,
    batches: BatchSource,
    options: TrainingOptions,
    backend: Backend,
) -> Means:
    """Return means per frame: `loss`, the criterion's statistics; and `frames`.

    All ranks share the work.

    Args:
        network: on its device; in evaluation mode while this runs.
        criterion: what is measured.
        batches: the corpus; its epoch 0 is taken.
        options: `precision` and `micro_sequences`.
        backend: the other ranks.

    Raises:
        UserError: no frame has a label, or the loss is not finite: no epoch could be
            compared with another.
    """
    names = (FRAMES, LOSS, *criterion.statistics)
    device = next(network.parameters()).device
    numbers = torch.zeros(len(names), dtype=torch.float64, device=device)
    was_training = network.training
    network.eval()
    scorer = GraphedNetwork(network, partial(passes_in, options.precision, device))
    passes = ForwardPasses(scorer, criterion, options, Clock())
    suspects: set[str] = set()
    with closing(batches.epoch(0, rank=backend.rank, size=backend.size)) as parts:
        for batch, loss in passes(parts):
            add_loss(numbers, names, loss)
            if not math.isfinite(float(loss.value)):
                part = Part(batch, loss)
                suspects.update(part.suspects() or batch.utterances)
    network.train(was_training)
    backend.all_reduce_([numbers])
    if not math.isfinite(float(numbers[1])):
        raise _not_finite(suspects, backend)
    found = means(dict(zip(names, numbers.tolist(), strict=True)))
    if not found:
        raise UserError(
            "no frame of the dev set has a label",
            remedy="check the alignments of dev",
        )
    return found


def _not_finite(suspects: Iterable[str], backend: Backend) -> UserError:
    """Return the error of a loss that is not finite, the same on all ranks."""
    ranks = backend.gather(sorted(suspects))
    names = sorted({name for names in ranks for name in names})
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return UserError(
        "the loss on the dev set is not finite",
        utterance=", ".join(names[:_NAMED]) + more,
        remedy="look at the features of these utterances",
    )


def priors_of_labels(
    labels: LabelStore, weights: np.ndarray | None = None
) -> np.ndarray:
    """Return the shares of the classes among labels, float64 [K].

    Args:
        labels: K classes, of n utterances.
        weights: float64 [n], how often each utterance counts; None for once.
    """
    counts = labels.counts(weights).astype(np.float64)
    return counts / max(counts.sum(), 1.0)


@torch.no_grad()
def priors_of_posteriors(
    network: Network,
    batches: Iterable[Batch | None],
    options: TrainingOptions,
    backend: Backend,
) -> np.ndarray:
    """Return mean posteriors of the first output over counted frames, float64 [K].

    Args:
        network: on its device; put into evaluation mode.
        batches: this rank's shares; frames with a label of that output count, all where
            it learnt by CTC.
        options: `precision` and `micro_sequences`.
        backend: the other ranks, which add theirs.
    """
    name, output = next(iter(network.outputs.items()))
    device = next(network.parameters()).device
    sums = torch.zeros(output.num_classes + 1, dtype=torch.float64, device=device)
    network.eval()
    for part in chain.from_iterable(parts_of(batch, options) for batch in batches):
        with enough_for_pass(part), passes_in(options.precision, device):
            there = part.to(device)
            logits, lengths = network(there.features, there.lengths)[name]
        if output.loss.name == "ctc":
            times = torch.arange(logits.shape[1], device=device)
            is_counted = times < lengths.to(device)[:, None]
        else:
            is_counted = there.targets[output.loss.target] >= 0
        posteriors = torch.softmax(logits[is_counted].float(), -1)
        sums[:-1] += posteriors.sum(0, dtype=torch.float64)
        sums[-1] += is_counted.sum()
    backend.all_reduce_([sums])
    return (sums[:-1] / sums[-1].clamp(min=1.0)).cpu().numpy()
