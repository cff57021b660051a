"""Minimum Bayes risk over frames: sMBR (right pdfs) and MPFE (right phones).

    F = sum over paths of posterior(path) * number of right frames,

with posteriors at the scaled scores of the paths. Its gradient to the scaled
log-likelihood of an arc is the arc's posterior times what the paths over it are more
accurate than the mean. PyKaldi2 and Kaldi's nnet1 tools call MPFE `mpe`; that name is
understood too. The phone-level criterion of Povey's thesis is
`latflow.criteria.mpe`.

Silence: with `one_silence_class` silence for silence is right; without, a frame in
silence is never right.

Public: `MbrOptions`, `evaluate_mbr`, `mbr`.

Source: Gibson, Hain 2006, "Hypothesis spaces for minimum Bayes risk training in large
vocabulary speech recognition"; Zheng, Stolcke 2005, "Improved discriminative training
using phone lattices" (MPFE); Kaldi `lat/lattice-functions.cc`
(`LatticeForwardBackwardMpeVariants`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from latflow.criteria.evaluation import Evaluation, add_arcs, raw_lattice, scored
from latflow.criteria.function import CriterionResult, differentiable
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.accuracy import arc_accuracies, expected_arc_score
from latflow.lattice.compact import CompactLattice
from latflow.lattice.forward_backward import forward
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import check_alignment


@dataclass(frozen=True)
class MbrOptions:
    """How expected accuracies of frames are computed.

    Attributes:
        criterion: what is compared: "smbr" pdfs, "mpfe" (or "mpe") phones.
        silence_phones: phone ids.
        one_silence_class: how silence counts, see above.
        acoustic_scale: factor on log-likelihoods.
        lm_scale: factor on graph costs.
    """

    criterion: Literal["smbr", "mpfe", "mpe"]
    silence_phones: Sequence[int]
    one_silence_class: bool = True
    acoustic_scale: float = 0.1
    lm_scale: float = 1.0


def mbr(
    log_likes: Tensor,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MbrOptions,
) -> CriterionResult:
    """Expected right frames (sMBR, MPFE), differentiable; see `evaluate_mbr`.

    Args:
        log_likes: [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T].
        model: what they mean.
        options: see there.
    """
    return differentiable(
        lambda scores: evaluate_mbr(scores, lattice, alignment, model, options),
        log_likes,
    )


def evaluate_mbr(
    log_likes: np.ndarray,
    lattice: Lattice | CompactLattice,
    alignment: np.ndarray,
    model: TransitionModel,
    options: MbrOptions,
    *,
    gradient: np.ndarray | None = None,
) -> Evaluation:
    """Value and gradient of sMBR or MPFE.

    Args:
        log_likes: float32 or float64 [T, P].
        lattice: of T frames; its acoustic costs are not used.
        alignment: transition-ids of what was said, int32[T].
        model: what they mean.
        options: scales and so on.
        gradient: [T, P] zeros of the type of `log_likes`, to be filled; made if None.

    Returns:
        The expected number of right frames, 0 to T, and its gradient.

    Raises:
        UserError: the lattice has no path, scores are NaN, or sizes differ.
    """
    lattice = raw_lattice(lattice)
    check_alignment(lattice, alignment, model)
    arcs = scored(
        lattice,
        log_likes,
        model,
        acoustic_scale=options.acoustic_scale,
        lm_scale=options.lm_scale,
    )
    right = arc_accuracies(
        arcs,
        alignment,
        model,
        criterion="smbr" if options.criterion == "smbr" else "mpfe",
        silence_phones=options.silence_phones,
        one_silence_class=options.one_silence_class,
    )
    sums = forward(arcs)
    expected, weights = expected_arc_score(
        arcs.arc_begin,
        arcs.next_state,
        sums.weight,
        sums.final_weight,
        sums.total,
        right,
    )
    gradient = np.zeros_like(log_likes) if gradient is None else gradient
    add_arcs(arcs, weights, model, options.acoustic_scale, gradient)
    return Evaluation(expected, gradient, arcs.num_frames, {})
