"""CTC (connectionist temporal classification): the probability of a transcript.

The log-probability of a sequence is the log-sum over the paths of its graph, which has
all frame sequences that CTC reads as the transcript (`latflow.align.ctc`), of the
network's posteriors (softmax). It is maximized. With one pronunciation a word it equals
`torch.nn.functional.ctc_loss`; with several, it is the sum over them all.

Source: Graves et al. 2006.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.criterion import with_gradient
from latflow.criteria.numerator import numerators
from latflow.device_copies import sent
from latflow.fst.graph import Graph

#: Log-probability per frame of a sequence that has no path of its length.
FAILED_LOG_PROB = -10.0


@dataclass(frozen=True, eq=False)
class Ctc:
    """Log-probabilities of the sequences of a batch, to be maximized.

    Attributes:
        log_prob: float64 [B]; torch can differentiate it, once, where the outputs of
            the network ask for that. NaN where outputs are.
        failed: bool [B], sequences whose graph has no path of their length: their
            gradient is 0, their value `FAILED_LOG_PROB` per frame.
    """

    log_prob: Tensor
    failed: Tensor


def evaluate_ctc(
    logits: Tensor,
    graphs: Sequence[Graph],
    lengths: Sequence[int],
    *,
    need_gradient: bool = True,
    pool: Executor | None = None,
) -> Ctc:
    """Evaluate the criterion for a batch.

    Args:
        logits: [B, T, K], outputs of the network before the softmax; class 0 is the
            blank. What is no float64 is computed on as float32.
        graphs: B graphs; symbols are label + 1.
        lengths: frames of each sequence; what is beyond has gradient 0.
        need_gradient: whether torch is to differentiate it.
        pool: threads for sequences; None = the calling thread.

    Raises:
        UserError: a graph has labels that the network does not.
    """
    scores = logits.detach()
    scores = scores if scores.dtype == torch.float64 else scores.float()
    log_probs = torch.log_softmax(scores, -1)
    frames = sent(np.array(lengths, np.int64), scores.device)
    found, posteriors = numerators(
        log_probs,
        graphs,
        lengths,
        need_posteriors=need_gradient,
        pool=pool,
        there=frames,
    )
    failed = torch.isneginf(found)
    value = torch.where(failed, FAILED_LOG_PROB * frames, found)
    if posteriors is not None:
        is_frame = torch.arange(scores.shape[1], device=scores.device) < frames[:, None]
        is_counted = (is_frame & ~failed[:, None])[:, :, None]
        # of log p(paths) to the logits: what the graph says less what the network does
        gradient = torch.where(is_counted, posteriors - log_probs.exp(), 0.0)
        value = with_gradient(logits, value, gradient)
    return Ctc(value, failed)
