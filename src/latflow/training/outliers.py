"""Steps whose loss or gradient is far from what it was in the steps before.

A step is an outlier if its loss (per frame) or the length of its gradient is more than
this many deviations above the median of the last steps. The deviation is 1.4826 times
the median distance from the median, that is the standard deviation where values are
normal, and does not grow with the outliers themselves; a change that stays is usual
after half of the history. (RETURNN: outlier detection, AdaSecant's by mean and
variance.)

All ranks see the same sums, and judge alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from latflow.training.optimizer_options import OutlierOptions

_TO_STANDARD = 1.4826  # median distance of a normal variable -> standard deviation
_LEAST = 1e-3  # of the median: less is no deviation


@dataclass(frozen=True)
class Verdict:
    """What becomes of a step.

    Attributes:
        is_outlier: whether it is one.
        is_made: whether parameters change.
        max_norm: greatest length of its gradient; None for any.
    """

    is_outlier: bool = False
    is_made: bool = True
    max_norm: float | None = None


class OutlierRule:
    """Judge steps by those before.

    Args:
        options: how far is too far, and what is done then.
    """

    def __init__(self, options: OutlierOptions) -> None:
        self.options = options
        self._past: dict[str, deque[float]] = {
            name: deque(maxlen=options.history) for name in ("loss", "gradient_norm")
        }

    def judge(self, loss: float, gradient_norm: float) -> Verdict:
        """Decide about a step, and remember it.

        Args:
            loss: per frame.
            gradient_norm: length of the gradient before clipping.
        """
        options, norms = self.options, self._past["gradient_norm"]
        usual = median(norms) if norms else 0.0
        is_far = [
            self._is_far("loss", loss, options.loss),
            self._is_far("gradient_norm", gradient_norm, options.gradient_norm),
        ]
        self._past["loss"].append(loss)
        norms.append(gradient_norm)
        if not any(is_far):
            return Verdict()
        if options.action == "skip":
            return Verdict(is_outlier=True, is_made=False)
        return Verdict(is_outlier=True, max_norm=usual)

    def _is_far(self, name: str, value: float, deviations: float | None) -> bool:
        """Return whether a value is too far above the ones before."""
        past = self._past[name]
        if deviations is None or len(past) < self.options.history:
            return False
        middle = median(past)
        spread = _TO_STANDARD * median(abs(x - middle) for x in past)
        return value - middle > deviations * max(spread, _LEAST * abs(middle))

    def state(self) -> dict[str, list[float]]:
        """Return what a checkpoint keeps."""
        return {name: list(values) for name, values in self._past.items()}

    def load_state(self, state: Mapping[str, Sequence[float]]) -> None:
        """Go on from a checkpoint."""
        for name, values in state.items():
            self._past[name] = deque(values, maxlen=self.options.history)


def reason_of(found: Mapping[str, Any], action: str) -> str:
    """Return the line of the ledger on the utterances of an outlier.

    Args:
        found: `step`, `loss` (per frame) and `gradient_norm`.
        action: of `OutlierOptions`.
    """
    done = {"skip": "skipped", "clip": "clipped"}[action]
    return (
        f"step {found['step']} was {done} as an outlier: loss {found['loss']:.4g} per "
        f"frame, gradient of length {found['gradient_norm']:.4g}"
    )
