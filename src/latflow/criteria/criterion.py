"""The one interface of sequence criteria, and its use as a function of torch.

A criterion is a function of the log-likelihoods of one utterance, [T, P], and of the
rivals of its reference, a lattice. It is *maximized*, is a sum (over frames, phones or
words), and gives the gradient of the very number that it gives as its value. A user's
criterion derives from `LatticeCriterion`, too: `docs/criteria.md`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from latflow.criteria.arc_scores import scored
from latflow.hmm.transition_model import TransitionModel
from latflow.lattice.discriminative import check_alignment
from latflow.lattice.lattice import CompactLattice, Lattice


@dataclass(frozen=True, eq=False)
class Utterance:
    """One utterance, as a criterion is given it; T frames, P pdfs.

    Attributes:
        log_likes: float32 or float64 [T, P], unscaled; what the value is a function of.
        lattice: the rivals of the reference, T frames. Its acoustic costs are those it
            was made with, and do not count.
        alignment: transition-ids of the reference, int32[T].
        words: word ids of the reference, int32[N].
        teacher: log-likelihoods of a teacher network, like `log_likes`; None where
            there is no such network.
        numerator: a lattice of the reference, in place of the alignment's path (MMI).
    """

    log_likes: np.ndarray
    lattice: Lattice | CompactLattice
    alignment: np.ndarray
    words: np.ndarray
    teacher: np.ndarray | None = None
    numerator: Lattice | CompactLattice | None = None

    @cached_property
    def raw(self) -> Lattice:
        """The lattice, state-level."""
        return self.lattice.to_lattice()


class Evaluation(NamedTuple):
    """Value of a criterion for one utterance.

    Attributes:
        objective: to be maximized; a sum, not a mean.
        num_frames: T.
        statistics: further sums, by the names of `LatticeCriterion.statistics`.
    """

    objective: float
    num_frames: int
    statistics: Mapping[str, float]


class LatticeCriterion(ABC):
    """A criterion of one utterance; `evaluate` may be called by several threads.

    Args:
        options: of the criterion; those of `type: custom` are a mapping.
        model: what transition-ids mean.
        silence_phones: phone ids.
        seed: of whatever is drawn.

    Attributes:
        name: for logs and model folders.
        statistics: names of all that `Evaluation.statistics` holds.
    """

    name: str = ""
    statistics: tuple[str, ...] = ()

    def __init__(
        self,
        options: Any,
        model: TransitionModel,
        silence_phones: Sequence[int] = (),
        *,
        seed: int = 0,
    ) -> None:
        self.options = options
        self.model = model
        self.silence_phones = tuple(silence_phones)
        self.seed = seed

    @abstractmethod
    def evaluate(self, utterance: Utterance, gradient: np.ndarray) -> Evaluation:
        """Return the value, and write its derivative.

        Args:
            utterance: log-likelihoods, lattice and reference.
            gradient: [T, P] of the type of the log-likelihoods, zeros; receives the
                derivative of the value to them.

        Raises:
            UserError: the lattice has no path, scores are NaN, or sizes differ.
        """

    def evaluation(
        self, objective: float, num_frames: int, *statistics: float
    ) -> Evaluation:
        """Return a value with its statistics, in the order of `statistics`."""
        named = dict(zip(self.statistics, statistics, strict=True))
        return Evaluation(objective, num_frames, named)

    def __call__(
        self,
        log_likes: Tensor,
        lattice: Lattice | CompactLattice,
        alignment: np.ndarray,
        words: np.ndarray,
        **given: Any,
    ) -> Tensor:
        """Return the value as a scalar that torch can differentiate, once.

        Args:
            log_likes: [T, P], of any float type and device. All but float64 is
                computed on as float32.
            lattice: see `Utterance`.
            alignment: see `Utterance`.
            words: see `Utterance`.
            given: further fields of `Utterance`.

        Returns:
            float64, on the device of the log-likelihoods.
        """
        host = log_likes.detach().cpu()
        host = host if host.dtype == torch.float64 else host.float()
        scores = np.ascontiguousarray(host.numpy())
        gradient = np.zeros_like(scores)
        utterance = Utterance(scores, lattice, alignment, words, **given)
        evaluation = self.evaluate(utterance, gradient)
        return with_gradient(
            log_likes,
            log_likes.new_tensor(evaluation.objective, dtype=torch.float64),
            torch.from_numpy(gradient).to(log_likes.device),
        )

    def close(self) -> None:  # noqa: B027 - optional
        """End processes and files, if there are any."""


class PathCriterion(LatticeCriterion):
    """A criterion over the paths of the lattice; its options are `PathOptions`."""

    def arcs(self, utterance: Utterance, extra: np.ndarray | None = None) -> Lattice:
        """Return the lattice with scaled scores of the log-likelihoods; see `scored`.

        Args:
            utterance: its alignment is checked.
            extra: float64 [A], added to the scores of arcs.

        Raises:
            UserError: alignment, lattice, scores and model do not belong together.
        """
        check_alignment(utterance.raw, utterance.alignment, self.model)
        return scored(
            utterance.raw,
            utterance.log_likes,
            self.model,
            acoustic_scale=self.options.acoustic_scale,
            lm_scale=self.options.lm_scale,
            extra=extra,
        )


def with_gradient(log_likes: Tensor, values: Tensor, gradient: Tensor) -> Tensor:
    """Return values whose gradient has been computed elsewhere.

    Args:
        log_likes: [..., T, P]; only says what the values depend on.
        values: [...]; each depends on its own [T, P] only.
        gradient: [..., T, P], of the values; multiplied by what comes in for each.
    """
    return _WithGradient.apply(log_likes, values, gradient)


class _WithGradient(torch.autograd.Function):
    """See `with_gradient`."""

    @staticmethod
    def forward(ctx: Any, log_likes: Tensor, values: Tensor, gradient: Tensor) -> Any:
        """Return the values."""
        ctx.save_for_backward(gradient)
        ctx.dtype = log_likes.dtype
        return values

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] (the decorator)
        ctx: Any, *incoming: Tensor
    ) -> tuple[Tensor, None, None]:
        """Multiply the gradient of each value by what comes in for it."""
        (gradient,) = ctx.saved_tensors
        factor = incoming[0].to(gradient.dtype)[..., None, None]
        return (gradient * factor).to(ctx.dtype), None, None
