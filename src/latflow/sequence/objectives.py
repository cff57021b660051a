"""Criteria of `latflow.criteria` as objectives of an utterance.

Public: `EvaluatedObjective`, `TeacherObjective`, `objective_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from latflow.criteria.registry import Evaluator, evaluator_of
from latflow.criteria.teacher import TeacherOptions, evaluate_teacher
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.lattice import Lattice
from latflow.sequence.generation import Objective, Scored, Teacher
from latflow.sequence.statistics import STATISTICS


class EvaluatedObjective:
    """A criterion as `latflow.sequence.generation.Objective`.

    Statistics that every lattice gives (`numerator_in_lattice`) are left to the
    generation of lattices, which counts them for all criteria alike.

    Args:
        evaluator: the criterion.
    """

    teacher: Teacher | None = None

    def __init__(self, evaluator: Evaluator) -> None:
        self.name = evaluator.name
        self.statistics = tuple(n for n in evaluator.statistics if n not in STATISTICS)
        self._evaluate = evaluator.evaluate

    def __call__(
        self,
        log_likes: np.ndarray,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
        gradient: np.ndarray,
        taught: np.ndarray | None = None,
    ) -> Scored:
        """Value and gradient; see `latflow.sequence.generation.Objective`."""
        del taught
        found = self._evaluate(log_likes, lattice, alignment, words, gradient)
        return Scored(
            found.objective, {name: found.statistics[name] for name in self.statistics}
        )


class TeacherObjective:
    """Teacher-student MMI as `latflow.sequence.generation.Objective`.

    Args:
        teacher: the network that is learnt from.
        model: what transition-ids mean.
        options: scales.
    """

    name: str = "teacher"
    statistics: tuple[str, ...] = ("teacher_entropy",)

    def __init__(
        self, teacher: Teacher, model: TransitionModel, options: TeacherOptions
    ) -> None:
        self.teacher: Teacher | None = teacher
        self._model, self._options = model, options

    def __call__(
        self,
        log_likes: np.ndarray,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
        gradient: np.ndarray,
        taught: np.ndarray | None = None,
    ) -> Scored:
        """Value and gradient; see `latflow.sequence.generation.Objective`.

        Raises:
            ValueError: there are no scores of a teacher.
        """
        del alignment, words
        if taught is None:
            raise ValueError("no teacher's scores")
        found = evaluate_teacher(
            log_likes, taught, lattice, self._model, self._options, gradient=gradient
        )
        return Scored(found.objective, found.statistics)


def objective_of(
    options: Mapping[str, Any], *, seed: int = 0, teacher: Teacher | None = None
) -> Callable[[TransitionModel, Lang], Objective]:
    """What makes the criterion that the options name, for a model and its language.

    Args:
        options: `workflow/schemas/criterion.yaml`, filled.
        seed: of drawn paths.
        teacher: the network that criterion `teacher` learns from.

    Raises:
        UserError: (when it is called) there is no such criterion.
    """

    def make(model: TransitionModel, lang: Lang) -> Objective:
        if options["type"] == "teacher" and teacher is not None:
            names = ("acoustic_scale", "lm_scale", "teacher_scale")
            return TeacherObjective(
                teacher,
                model,
                TeacherOptions(**{name: float(options[name]) for name in names}),
            )
        return EvaluatedObjective(
            evaluator_of(options, model, lang.silence_phones, seed=seed)
        )

    return make
