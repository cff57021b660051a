"""Lattice-free MMI: the criterion of Kaldi's chain models.

The objective of a sequence is the log-likelihood of the paths of its supervision graph
less that of all paths through the denominator graph. It is maximized; outputs of the
network are taken as log-likelihoods as they are, neither normalized nor scaled.

Source: Kaldi `chain/chain-training.cc`, `ComputeChainObjfAndDeriv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from latflow.criteria.batch import Batch, SupervisedBatch
from latflow.criteria.criterion import with_gradient
from latflow.criteria.denominator import Denominator
from latflow.criteria.numerator import numerators
from latflow.criteria.options import LfmmiOptions
from latflow.criteria.packed_graphs import PackedGraphs
from latflow.criteria.protocol import GraphCriterion, Loss, Pending
from latflow.device_copies import sent
from latflow.fst.graph import Graph
from latflow.nnet.described import OutputLoss
from latflow.nnet.network import Output

#: Objective per frame of a sequence that failed (Kaldi's `default_objf`).
FAILED_OBJECTIVE = -10.0
#: Outputs beyond it, and its negative, are penalized.
RANGE_LIMIT = 30.0


@dataclass(frozen=True, eq=False)
class Lfmmi:
    """Values of the sequences of a batch, to be maximized, and their derivative.

    Attributes:
        value: float64 [B], `objective + l2 + out_of_range`; torch can differentiate it,
            once, where the outputs of the network ask for that.
        objective: float64 [B], weight * (num_log_like - den_log_like); of a sequence
            that failed weight * `FAILED_OBJECTIVE` per frame.
        l2: float64 [B], weighted, 0 or below.
        out_of_range: float64 [B], 0 or below; not weighted, as in Kaldi.
        num_log_like: float64 [B], not weighted; -inf if the supervision has no path.
        den_log_like: float64 [B], not weighted.
        frames: float64 [B], weight * frames: what sums are divided by.
        failed: bool [B], sequences whose objective is NaN: the supervision has
            no path of their length, or outputs of the network are NaN. Their
            gradient and numerator posteriors are 0, their `l2` and `out_of_range`, too.
        gradient: [B, T, P], of `value`; None if not asked for.
        numerator_posteriors: [B, T, P], weighted; the soft targets of a cross-entropy
            branch; None if neither a gradient nor they were asked for.
    """

    value: Tensor
    objective: Tensor
    l2: Tensor
    out_of_range: Tensor
    num_log_like: Tensor
    den_log_like: Tensor
    frames: Tensor
    failed: Tensor
    gradient: Tensor | None
    numerator_posteriors: Tensor | None


Need: TypeAlias = Literal["value", "numerator", "gradient"]


def evaluate_lfmmi(
    logits: Tensor,
    supervisions: Sequence[Graph] | PackedGraphs,
    denominator: Denominator,
    options: LfmmiOptions,
    weights: Tensor | None = None,
    *,
    lengths: Sequence[int] | None = None,
    need: Need = "gradient",
    pool: Executor | None = None,
) -> Lfmmi:
    """Evaluate the criterion for a batch.

    The penalty of outputs that are out of range differs from Kaldi's, which gives its
    derivative to every other batch by chance, at twice the scale, and leaves its value
    out: here each batch has it at the scale of the options, in value and gradient.
    Kaldi limits the outputs that the denominator sees to that range, here it sees
    them as they are. The l2 term is that of all outputs, as in Kaldi.

    Args:
        logits: [B, T, P], the outputs of the network. What is not a float64 is computed
            on as float32.
        supervisions: B graphs, the weights of the normalization graph added; labels are
            pdf-id + 1. For a GPU they may be packed, and there already.
        denominator: all phone sequences.
        options: of the criterion; `xent` is for the caller.
        weights: [B], factors on objective, l2 and their gradient; None = 1.
        lengths: [B], frames of each sequence; None = T.
        need: what is computed beside the values: the `gradient` with all posteriors,
            those of the `numerator` alone, or nothing (`value`).
        pool: threads for sequences on a CPU; None = the calling thread.

    Raises:
        UserError: a supervision has labels of other pdfs.
    """
    scores = logits.detach()
    scores = scores if scores.dtype == torch.float64 else scores.float()
    counts = [scores.shape[1]] * len(scores) if lengths is None else list(lengths)
    frames = sent(np.array(counts, np.int64), scores.device)
    if weights is None:
        scale = scores.new_ones(len(scores), dtype=torch.float64)
    else:
        scale = weights.to(scores.device, torch.float64)
    den, den_posteriors = denominator.forward_backward(
        scores,
        counts,
        leaky=options.leaky_hmm,
        need_posteriors=need == "gradient",
        pool=pool,
        there=frames,
    )
    num, posteriors = numerators(
        scores,
        supervisions,
        counts,
        need_posteriors=need != "value",
        pool=pool,
        there=frames,
    )
    failed = ~torch.isfinite(num - den)
    is_frame = torch.arange(scores.shape[1], device=scores.device) < frames[:, None]
    kept = is_frame & ~failed[:, None]
    scores = torch.where(kept[:, :, None], scores, 0.0)
    beyond = scores - scores.clamp(-RANGE_LIMIT, RANGE_LIMIT)
    l2 = -0.5 * options.l2 * scale * _squares(scores)
    out_of_range = -0.5 * options.out_of_range * _squares(beyond)
    objective = scale * torch.where(failed, FAILED_OBJECTIVE * frames, num - den)
    value = objective + l2 + out_of_range
    gradient = None
    factor = scale.to(scores.dtype)[:, None, None]
    if posteriors is not None:
        posteriors = torch.where(kept[:, :, None], posteriors, 0.0) * factor
    if posteriors is not None and den_posteriors is not None:
        den_posteriors = torch.where(kept[:, :, None], den_posteriors, 0.0)
        gradient = posteriors - factor * (den_posteriors + options.l2 * scores)
        gradient -= options.out_of_range * beyond
        value = with_gradient(logits, value, gradient)
    return Lfmmi(
        value=value,
        objective=objective,
        l2=l2,
        out_of_range=out_of_range,
        num_log_like=num,
        den_log_like=den,
        frames=scale * frames,
        failed=failed,
        gradient=gradient,
        numerator_posteriors=posteriors,
    )


def _squares(values: Tensor) -> Tensor:
    """Sum the squares of each sequence in float64, [B]."""
    return values.flatten(1).double().square().sum(1)


class LatticeFree(GraphCriterion):
    """LF-MMI of the first output, cross-entropy of those that have this loss.

    Statistics, sums over frames: `objective` (per frame in the log: what Kaldi's logs
    call the chain objective), `l2`, `out_of_range`, `xent` (cross-entropy of the other
    outputs, not weighted) and `failed_frames`, of chunks whose supervision has no path
    or whose scores are NaN; those have no gradient.

    Args:
        losses: of each output, the first one by LF-MMI.
        denominator: graph of all phone sequences.
        options: weights.
        is_training: false leaves all but the objective out of the loss.
        threads: sequences worked on at a time.
    """

    name = "lfmmi"
    statistics = ("objective", "l2", "out_of_range", "xent", "failed_frames")

    def __init__(
        self,
        losses: Mapping[str, OutputLoss],
        denominator: Denominator,
        options: LfmmiOptions,
        *,
        is_training: bool = True,
        threads: int = 1,
    ) -> None:
        self.main = next(iter(losses))
        self.others = [name for name, loss in losses.items() if loss.name == "ce"]
        self._scales = {name: loss.scale for name, loss in losses.items()}
        self._denominator, self._options = denominator, options
        self._is_training = is_training
        self._need: Need = "gradient"
        if not is_training:
            self._need = "numerator" if self.others else "value"
        super().__init__(threads)

    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Evaluate the criterion when it is waited for; see `Criterion.begin`."""
        assert isinstance(batch, SupervisedBatch)
        supervised = batch
        return lambda: self._evaluate(outputs, supervised)

    def _evaluate(self, outputs: Mapping[str, Output], batch: SupervisedBatch) -> Loss:
        """Return the loss of a part."""
        logits = outputs[self.main].logits
        counted = batch.counted.tolist()
        lfmmi = evaluate_lfmmi(
            logits if logits.dtype == torch.float64 else logits.float(),
            batch.supervisions if batch.packed is None else batch.packed,
            self._denominator,
            self._options,
            lengths=counted,
            need=self._need,
            pool=self._pool,
        )
        self.note_failures(lfmmi.failed, batch)
        by_sequence = -(lfmmi.value if self._is_training else lfmmi.objective)
        xent = lfmmi.objective.new_zeros(len(batch))
        if lfmmi.numerator_posteriors is not None:
            for name in self.others:
                own = _cross_entropy(outputs[name].logits, lfmmi.numerator_posteriors)
                if self._is_training:
                    by_sequence = by_sequence + self._weight(name) * own
                xent = xent + torch.where(lfmmi.failed, 0.0, own.detach())
        statistics = {
            "objective": lfmmi.objective.detach().sum(),
            "l2": lfmmi.l2.detach().sum(),
            "out_of_range": lfmmi.out_of_range.detach().sum(),
            "xent": xent.sum(),
            "failed_frames": torch.where(lfmmi.failed, lfmmi.frames, 0.0).sum(),
        }
        total = by_sequence.sum()
        return Loss(total, batch.num_frames, statistics, by_sequence.detach())

    def _weight(self, name: str) -> float:
        """Return the factor of an output's cross-entropy."""
        return self._options.xent * self._scales[name]


def _cross_entropy(logits: Tensor, posteriors: Tensor) -> Tensor:
    """Return cross-entropy with posteriors [B, T, P], by sequence, float64 [B]."""
    log_probs = functional.log_softmax(logits.float(), -1)
    return -(log_probs * posteriors).sum((1, 2), dtype=torch.float64)
