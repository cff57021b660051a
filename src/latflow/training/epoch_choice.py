"""The choice of the epochs whose parameters a training ends with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    def candidates(self) -> list[list[int]]:
        """Epochs whose parameters may be taken, or their mean; the best on dev are.

        Source: Kaldi `chainbin/nnet3-chain-combine.cc`, which takes the mean of as many
        of the last models as is best.
        """
        match self.options.final:
            case "best":
                return [[self.best]]
            case "average":
                last = self._averaged
                return [last[i:] for i in range(len(last))]
            case _:
                return [[len(self.history)]]

    def take_best(
        self, put_in: Callable[[list[int]], None], evaluate: Callable[[], Means]
    ) -> tuple[list[int], Means]:
        """Give a network the parameters that are best on dev.

        Args:
            put_in: gives it the mean parameters of epochs.
            evaluate: returns its means per frame on dev.

        Returns:
            (the epochs, their means on dev).
        """
        found: list[tuple[list[int], Means]] = []
        held: list[int] = []
        for epochs in self.candidates:
            if len(epochs) == 1:
                found.append((epochs, self.history[epochs[0] - 1]))
            else:
                put_in(held := epochs)
                found.append((epochs, evaluate()))
        best, means = min(found, key=lambda one: one[1][LOSS])
        if best != held:
            put_in(best)
        return best, means

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
        """The last epochs, whose parameters may be averaged."""
        done = len(self.history)
        first = max(self._first, done - self.options.average + 1)
        return list(range(first, done + 1))
