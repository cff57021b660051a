"""The choice of the epochs whose parameters a training ends with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latflow.training.checkpoint import Means
from latflow.training.options import TrainingOptions
from latflow.training.steps import LOSS


@dataclass(frozen=True)
class EpochChoice:
    """The choice among the finished epochs of a training; epochs count from 1.

    Attributes:
        history: means per frame on dev at the end of each finished epoch.
        options: name the choice (`final`, `average`).
        whole_from: the first epoch whose network has all layers; those of pretraining
            before it count only where there is no other.
    """

    history: Sequence[Means]
    options: TrainingOptions
    whole_from: int = 1

    @property
    def judged(self) -> list[Means]:
        """Dev results of epochs that may be compared: not those of pretraining."""
        return list(self.history[max(0, self._first - 1) :])

    @property
    def best(self) -> int:
        """The epoch with the least dev loss, the first of equals."""
        losses = [epoch[LOSS] for epoch in self.history]
        return losses.index(min(losses[self._first - 1 :])) + 1

    @property
    def chosen(self) -> list[int]:
        """The epoch whose parameters are taken, or several that are averaged."""
        match self.options.final:
            case "best":
                return [self.best]
            case "average":
                return self._averaged
            case _:
                return [len(self.history)]

    @property
    def wanted(self) -> list[int]:
        """The epochs whose parameters may be needed at the end."""
        if not self.history:
            return []
        is_average = self.options.final == "average"
        return [self.best, *(self._averaged if is_average else ())]

    @property
    def _first(self) -> int:
        """The first finished epoch whose network had all layers, or the last one."""
        return min(len(self.history), self.whole_from)

    @property
    def _averaged(self) -> list[int]:
        """The last epochs, whose parameters are to be averaged."""
        done = len(self.history)
        first = max(self._first, done - self.options.average + 1)
        return list(range(first, done + 1))
