"""CTC (connectionist temporal classification): the probability of a transcript.

The log-probability of a sequence is the log-sum over the paths of its graph, which has
all frame sequences that CTC reads as the transcript (`latflow.align.ctc`), of the
network's posteriors (softmax). It is maximized. With one pronunciation a word it equals
`torch.nn.functional.ctc_loss`; with several, it is the sum over them all.

Source: Graves et al. 2006.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.batch import Batch
from latflow.criteria.criterion import with_gradient
from latflow.criteria.numerator import numerators
from latflow.criteria.protocol import GraphCriterion, Loss, Pending
from latflow.device_copies import sent
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.nnet.described import OutputLoss
from latflow.nnet.network import Output

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
            blank. What is not a float64 is computed on as float32.
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


class CtcLoss(GraphCriterion):
    """CTC: -log p(transcript), over all outputs that have this loss.

    Statistics: `failed_frames`, of sequences that have fewer frames than their labels
    need; those have no gradient. With several outputs, `ctc.<output>` (unscaled).

    Args:
        losses: of each output.
        is_training: false computes no gradient.
        threads: sequences worked on at a time.
        compile_graph: makes the graph of a sequence of what the batches have; None
            where they have it.
    """

    name = "ctc"

    def __init__(
        self,
        losses: Mapping[str, OutputLoss],
        *,
        is_training: bool = True,
        threads: int = 1,
        compile_graph: Callable[[Graph], Graph] | None = None,
    ) -> None:
        self.losses = dict(losses)
        self._compile = compile_graph
        self._is_training = is_training
        super().__init__(threads)
        several = self.losses if len(self.losses) > 1 else ()
        self.statistics = ("failed_frames", *(f"ctc.{name}" for name in several))

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Evaluate the loss when it is waited for; see `Criterion.begin`.

        Raises:
            UserError: the batch has no graphs.
        """
        if len(batch.graphs) != len(batch):
            raise UserError(
                "an output has the loss ctc, the data have no graphs of transcripts",
                remedy="name the network in a recipe, whose workflow makes them",
            )
        return lambda: self._evaluate(outputs, batch)

    def _evaluate(self, outputs: Mapping[str, Output], batch: Batch) -> Loss:
        """Return the loss of a part."""
        by_sequence = batch.features.new_zeros(len(batch), dtype=torch.float64)
        statistics: dict[str, Any] = {"failed_frames": 0}
        graphs = batch.graphs
        if self._compile is not None:
            graphs = tuple(map(self._compile, graphs))
        for name, loss in self.losses.items():
            logits, lengths = outputs[name]
            # behind a chunk with context stand frames that do not count
            frames = (batch.counted if batch.has_context else lengths).tolist()
            ctc = evaluate_ctc(
                logits,
                graphs,
                frames,
                need_gradient=self._is_training,
                pool=self._pool,
            )
            self.note_failures(ctc.failed, batch)
            counts = sent(np.array(frames, np.int64), ctc.failed.device)
            statistics["failed_frames"] += (ctc.failed * counts).sum()
            if len(self.losses) > 1:
                statistics[f"ctc.{name}"] = -ctc.log_prob.detach().sum()
            by_sequence = by_sequence - loss.scale * ctc.log_prob
        total = by_sequence.sum()
        return Loss(total, batch.num_frames, statistics, by_sequence.detach())
