"""Criteria of `latflow.criteria` as objectives of an utterance.

Public: `EvaluatedObjective`, `objective_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from latflow.criteria.registry import Evaluator, evaluator_of
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.lattice import Lattice
from latflow.sequence.generation import Objective, Scored
from latflow.sequence.statistics import STATISTICS


class EvaluatedObjective:
    """A criterion as `latflow.sequence.generation.Objective`.

    Statistics that every lattice gives (`numerator_in_lattice`) are left to the
    generation of lattices, which counts them for all criteria alike.

    Args:
        evaluator: the criterion.
    """

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
    ) -> Scored:
        """Value and gradient; see `latflow.sequence.generation.Objective`."""
        found = self._evaluate(log_likes, lattice, alignment, words, gradient)
        return Scored(
            found.objective, {name: found.statistics[name] for name in self.statistics}
        )


def objective_of(
    options: Mapping[str, Any], *, seed: int = 0
) -> Callable[[TransitionModel, Lang], Objective]:
    """What makes the criterion that the options name, for a model and its language.

    Args:
        options: `workflow/schemas/criterion.yaml`, filled.
        seed: of drawn paths.

    Raises:
        UserError: (when it is called) there is no such criterion.
    """

    def make(model: TransitionModel, lang: Lang) -> Objective:
        return EvaluatedObjective(
            evaluator_of(options, model, lang.silence_phones, seed=seed)
        )

    return make
