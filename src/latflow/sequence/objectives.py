"""Criteria of an utterance for `latflow.sequence.generation`, on the lattice engine.

Public: `MmiObjective`, `RiskObjective`, `objective_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.lattice.accuracy import Criterion, expected_accuracy
from latflow.lattice.lattice import Lattice
from latflow.lattice.posteriors import mmi_posteriors
from latflow.sequence.generation import Objective, Scored


class MmiObjective:
    """Maximum mutual information: score of the alignment less that of the lattice.

        F = k * sum over t of log p(t, pdf of the alignment) - log sum over paths of the
            lattice of exp(k * acoustic score + lm_scale * graph score)

    Args:
        model: what transition-ids mean.
        acoustic_scale: k.
        lm_scale: factor on graph costs.
        drop_frames: whether frames whose aligned pdf the lattice does not hold get no
            gradient (frame rejection).
    """

    name = "mmi"
    statistics = ()

    def __init__(
        self,
        model: TransitionModel,
        *,
        acoustic_scale: float = 0.1,
        lm_scale: float = 1.0,
        drop_frames: bool = False,
    ) -> None:
        self._model = model
        self._scale = acoustic_scale
        self._lm_scale = lm_scale
        self._drop_frames = drop_frames

    def __call__(
        self,
        log_likes: np.ndarray,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
        gradient: np.ndarray,
    ) -> Scored:
        """Value and gradient; see `latflow.sequence.generation.Objective`."""
        del words
        total, signed = mmi_posteriors(
            lattice,
            alignment,
            self._model,
            drop_frames=self._drop_frames,
            lm_scale=self._lm_scale,
            acoustic_scale=self._scale,
        )
        gradient[:] = signed.scaled(self._scale).to_matrix(log_likes.shape[1])
        pdfs = self._model.pdf[alignment]
        said = log_likes[np.arange(len(pdfs)), pdfs].sum(dtype=np.float64)
        return Scored(self._scale * float(said) - total, {})


class RiskObjective:
    """The accuracy that the lattice lets expect: sMBR (of pdfs) or MPFE (of phones).

    Args:
        model: what transition-ids mean.
        criterion: `smbr` or `mpfe`.
        silence_phones: phone ids.
        one_silence_class: how silence counts, see `latflow.lattice.accuracy`.
        acoustic_scale: factor on acoustic costs.
        lm_scale: factor on graph costs.
    """

    statistics = ()

    def __init__(
        self,
        model: TransitionModel,
        criterion: Criterion,
        silence_phones: Sequence[int],
        *,
        one_silence_class: bool = True,
        acoustic_scale: float = 0.1,
        lm_scale: float = 1.0,
    ) -> None:
        self.name: str = criterion
        self._model = model
        self._criterion: Criterion = criterion
        self._silence_phones = list(silence_phones)
        self._one_silence_class = one_silence_class
        self._scale = acoustic_scale
        self._lm_scale = lm_scale

    def __call__(
        self,
        log_likes: np.ndarray,
        lattice: Lattice,
        alignment: np.ndarray,
        words: np.ndarray,
        gradient: np.ndarray,
    ) -> Scored:
        """Value and gradient; see `latflow.sequence.generation.Objective`."""
        del words
        accuracy, signed = expected_accuracy(
            lattice,
            alignment,
            self._model,
            criterion=self._criterion,
            silence_phones=self._silence_phones,
            one_silence_class=self._one_silence_class,
            lm_scale=self._lm_scale,
            acoustic_scale=self._scale,
        )
        weights = signed.to_pdfs(self._model).scaled(self._scale)
        gradient[:] = weights.to_matrix(log_likes.shape[1])
        return Scored(accuracy, {})


def objective_of(
    options: Mapping[str, Any],
) -> Callable[[TransitionModel, Lang], Objective]:
    """What makes the criterion that the options name, for a model and its language.

    Args:
        options: section `criterion` of a system.

    Raises:
        UserError: there is no such criterion.
    """
    kind = options["type"]
    scales = {k: options[k] for k in ("acoustic_scale", "lm_scale")}
    if kind not in ("mmi", "smbr", "mpfe"):
        raise UserError(f"no criterion {kind}", remedy="choose mmi, smbr or mpfe")

    def make(model: TransitionModel, lang: Lang) -> Objective:
        if kind == "mmi":
            return MmiObjective(model, drop_frames=options["drop_frames"], **scales)
        return RiskObjective(
            model,
            kind,
            lang.silence_phones,
            one_silence_class=options["one_silence_class"],
            **scales,
        )

    return make
