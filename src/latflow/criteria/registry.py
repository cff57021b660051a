"""Criteria by the options that name them."""

from __future__ import annotations

from collections.abc import Sequence

from latflow.criteria.criterion import LatticeCriterion
from latflow.criteria.external import External
from latflow.criteria.mmi import Mmi, TeacherStudent
from latflow.criteria.mpe import Mbr, PhoneMpe
from latflow.criteria.mwe import Mwe
from latflow.criteria.options import (
    CriterionOptions,
    CustomOptions,
    ExternalOptions,
    MbrOptions,
    MmiOptions,
    MweOptions,
    PhoneMpeOptions,
    TeacherOptions,
)
from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.user_code import load_object

#: Type of the options -> the criterion.
CRITERIA: dict[type, type[LatticeCriterion]] = {
    MmiOptions: Mmi,
    MbrOptions: Mbr,
    PhoneMpeOptions: PhoneMpe,
    MweOptions: Mwe,
    TeacherOptions: TeacherStudent,
    ExternalOptions: External,
}


def make_criterion(
    options: CriterionOptions,
    model: TransitionModel,
    silence_phones: Sequence[int],
    *,
    seed: int = 0,
) -> LatticeCriterion:
    """Make the criterion that the options name.

    Args:
        options: section `criterion` of a sequence-trained system.
        model: what transition-ids mean.
        silence_phones: phone ids.
        seed: of whatever is drawn.

    Raises:
        UserError: a class of the user's own is not found, or is not a criterion; an
            external program does not start.
    """
    if isinstance(options, CustomOptions):
        kind = _load_class(options.path)
        return kind(options.options, model, silence_phones, seed=seed)
    return CRITERIA[type(options)](options, model, silence_phones, seed=seed)


def _load_class(path: str) -> type[LatticeCriterion]:
    """Return the class at `module:Class` or `folder/file.py:Class`."""
    remedy = "see docs/criteria.md on criteria of your own"
    try:
        kind = load_object(path)
    except (ImportError, OSError, SyntaxError, AttributeError) as error:
        what = f"criterion {path} cannot be loaded: {error}"
        raise UserError(what, remedy=remedy) from error
    if not (isinstance(kind, type) and issubclass(kind, LatticeCriterion)):
        raise UserError(f"criterion {path} is not a LatticeCriterion", remedy=remedy)
    return kind
