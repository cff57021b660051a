"""Criteria by the names of the configuration.

What comes out is one shape for all: a function of an utterance's scores, lattice,
alignment and words, which fills a gradient; on-the-fly training runs it in threads.

Public: `evaluator_of`, `Evaluator`, `TYPES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from latflow.criteria import mmi, mpe, mwe
from latflow.criteria.evaluation import Evaluation
from latflow.criteria.function import CriterionResult, differentiable
from latflow.criteria.mbr import MbrOptions, evaluate_mbr
from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.lattice import Lattice

#: Name -> what it is. `mpe` is PyKaldi2's name of MPFE.
TYPES = {
    "mmi": "maximum mutual information, boosted where boost is above 0",
    "smbr": "expected right frames, by pdf",
    "mpfe": "expected right frames, by phone",
    "mpe": "another name of mpfe, as PyKaldi2 has it",
    "phone_mpe": "expected raw phone accuracy of Povey's thesis",
    "mwe": "expected word errors over the n best, negated",
}

_Evaluate = Callable[
    [np.ndarray, Lattice, np.ndarray, np.ndarray, np.ndarray | None], Evaluation
]


@dataclass(frozen=True)
class Evaluator:
    """A criterion with its options; safe to call from several threads.

    Attributes:
        name: of the criterion.
        statistics: names of what `Evaluation.statistics` holds.
        evaluate: (log_likes [T, P], lattice, alignment int32[T], words int32[N],
            gradient [T, P] of zeros to fill or None) -> Evaluation.
    """

    name: str
    statistics: tuple[str, ...]
    evaluate: _Evaluate

    def __call__(
        self,
        log_likes: Tensor,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
    ) -> CriterionResult:
        """The criterion as a differentiable function of a tensor [T, P]."""
        return differentiable(
            lambda scores: self.evaluate(scores, lattice, alignment, words, None),
            log_likes,
        )


def evaluator_of(
    options: Mapping[str, Any],
    model: TransitionModel,
    silence_phones: Sequence[int],
    *,
    seed: int = 0,
) -> Evaluator:
    """The criterion that the options name.

    Args:
        options: complete, of `workflow/schemas/criterion.yaml`.
        model: what transition-ids mean.
        silence_phones: phone ids.
        seed: of drawn paths.

    Raises:
        UserError: there is no such criterion.
    """
    kind = str(options["type"])
    if kind not in TYPES:
        raise UserError(f"no criterion {kind}", remedy=f"choose {', '.join(TYPES)}")
    scales = {k: float(options[k]) for k in ("acoustic_scale", "lm_scale")}
    silence = tuple(silence_phones)
    if kind == "mmi":
        return _mmi(options, model, silence, scales)
    if kind == "phone_mpe":
        return _mpe(options, model, silence, scales)
    if kind == "mwe":
        return _mwe(options, model, silence, scales, seed)
    chosen = MbrOptions(
        "smbr" if kind == "smbr" else "mpfe",
        silence,
        one_silence_class=options["one_silence_class"],
        **scales,
    )
    return Evaluator(
        chosen.criterion,
        (),
        lambda scores, lattice, alignment, _, gradient: evaluate_mbr(
            scores, lattice, alignment, model, chosen, gradient=gradient
        ),
    )


def _mmi(
    options: Mapping[str, Any],
    model: TransitionModel,
    silence: Sequence[int],
    scales: Mapping[str, float],
) -> Evaluator:
    """MMI, plain or boosted."""
    chosen = mmi.MmiOptions(
        boost=options["boost"],
        max_silence_error=options["max_silence_error"],
        silence_phones=silence,
        absent=options["absent_numerator"],
        drop_by=options["drop_by"],
        **scales,
    )
    return Evaluator(
        "mmi",
        mmi.STATISTICS,
        lambda scores, lattice, alignment, _, gradient: mmi.evaluate_mmi(
            scores, lattice, alignment, model, chosen, gradient=gradient
        ),
    )


def _mpe(
    options: Mapping[str, Any],
    model: TransitionModel,
    silence: Sequence[int],
    scales: Mapping[str, float],
) -> Evaluator:
    """Phone-level MPE."""
    chosen = mpe.MpeOptions(silence, ignore_silence=options["ignore_silence"], **scales)
    return Evaluator(
        "phone_mpe",
        mpe.STATISTICS,
        lambda scores, lattice, alignment, _, gradient: mpe.evaluate_mpe(
            scores, lattice, alignment, model, chosen, gradient=gradient
        ),
    )


def _mwe(
    options: Mapping[str, Any],
    model: TransitionModel,
    silence: Sequence[int],
    scales: Mapping[str, float],
    seed: int,
) -> Evaluator:
    """Expected word errors."""
    chosen = mwe.MweOptions(
        num_paths=options["num_paths"],
        draw=options["draw"],
        unit=options["unit"],
        silence_phones=silence,
        seed=seed,
        **scales,
    )
    return Evaluator(
        "mwe",
        mwe.STATISTICS,
        lambda scores, lattice, alignment, words, gradient: mwe.evaluate_mwe(
            scores, lattice, alignment, words, model, chosen, gradient=gradient
        ),
    )
