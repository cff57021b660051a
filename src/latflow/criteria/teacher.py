"""Teacher-student MMI: a teacher's path posteriors take the numerator's place.

    F = sum over paths of P_teacher(path) * log P_student(path)

over the paths of one lattice (commonly made with the teacher's scores), P being
normalised over it. F is minus the cross-entropy of the two distributions: at most 0,
and greatest where they agree. Since a path's score is a sum over its arcs,

    F = sum over arcs of P_teacher(arc) * student's score(arc) - student's total,

and the gradient to a scaled log-likelihood is the teacher's posterior minus the
student's.

Public: `TeacherOptions`, `evaluate_teacher`, `teacher_student`.

Source: Wong, Gales 2016, "Sequence student-teacher training of deep neural networks";
the class of that name in PyKaldi2's `ops/ops.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from latflow.criteria.evaluation import Evaluation, add_arcs, raw_lattice, scored
from latflow.criteria.function import CriterionResult, differentiable
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.compact import CompactLattice
from latflow.lattice.forward_backward import ForwardBackward, forward_backward
from latflow.lattice.lattice import Lattice


@dataclass(frozen=True)
class TeacherOptions:
    """How teacher and student are compared.

    Attributes:
        acoustic_scale: factor on the student's log-likelihoods.
        lm_scale: factor on graph costs, of both.
        teacher_scale: factor on the teacher's log-likelihoods; less makes it softer.
    """

    acoustic_scale: float = 0.1
    lm_scale: float = 1.0
    teacher_scale: float = 0.1


def teacher_student(
    log_likes: Tensor,
    teacher: Tensor,
    lattice: Lattice | CompactLattice,
    model: TransitionModel,
    options: TeacherOptions,
) -> CriterionResult:
    """Teacher-student MMI, differentiable in the student; see `evaluate_teacher`.

    Args:
        log_likes: the student's, [T, P].
        teacher: the teacher's, [T, P]; a constant.
        lattice: of T frames; its acoustic costs are not used.
        model: what transition-ids mean.
        options: see there.
    """
    scores = teacher.detach().cpu()
    known = scores.numpy() if scores.element_size() == 8 else scores.float().numpy()
    return differentiable(
        lambda own: evaluate_teacher(own, known, lattice, model, options), log_likes
    )


def evaluate_teacher(
    log_likes: np.ndarray,
    teacher: np.ndarray,
    lattice: Lattice | CompactLattice,
    model: TransitionModel,
    options: TeacherOptions,
    *,
    gradient: np.ndarray | None = None,
) -> Evaluation:
    """Value and gradient of teacher-student MMI.

    Args:
        log_likes: the student's, float32 or float64 [T, P].
        teacher: the teacher's, likewise.
        lattice: of T frames; its acoustic costs are not used.
        model: what transition-ids mean.
        options: scales.
        gradient: [T, P] zeros of the type of `log_likes`, to be filled; made if None.

    Returns:
        The value in nats, at most 0, its gradient, and as a statistic the entropy of
        the teacher's paths: minus the value that no student can exceed.

    Raises:
        UserError: the lattice has no path, scores are NaN, or sizes differ.
    """
    lattice = raw_lattice(lattice)
    arcs, of_student = _sums(
        lattice, log_likes, model, options.acoustic_scale, options.lm_scale
    )
    taught, of_teacher = _sums(
        lattice, teacher, model, options.teacher_scale, options.lm_scale
    )
    value = _mean_score(arcs, of_teacher) - of_student.log_like
    entropy = of_teacher.log_like - _mean_score(taught, of_teacher)
    weights = of_teacher.arc_posterior - of_student.arc_posterior
    gradient = np.zeros_like(log_likes) if gradient is None else gradient
    add_arcs(arcs, weights, model, options.acoustic_scale, gradient)
    return Evaluation(value, gradient, arcs.num_frames, {"teacher_entropy": entropy})


def _sums(
    lattice: Lattice,
    log_likes: np.ndarray,
    model: TransitionModel,
    acoustic_scale: float,
    lm_scale: float,
) -> tuple[Lattice, ForwardBackward]:
    """The lattice with scores, and sums over its paths."""
    arcs = scored(
        lattice, log_likes, model, acoustic_scale=acoustic_scale, lm_scale=lm_scale
    )
    return arcs, forward_backward(arcs)


def _mean_score(arcs: Lattice, of: ForwardBackward) -> float:
    """Mean score of a path, with the posteriors of `of`."""
    sums = of.forward
    with np.errstate(divide="ignore", invalid="ignore"):
        ends = sums.total[:-1] * sums.final_weight / sums.total[-1]
    score = _weighted(of.arc_posterior, arcs.graph_cost)
    return -(score + _weighted(ends, arcs.final_graph_cost))


def _weighted(weights: np.ndarray, costs: np.ndarray) -> float:
    """Sum of weights times costs, where 0 times inf is 0."""
    used = weights > 0.0
    return float(weights[used] @ costs[used])
