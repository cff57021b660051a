"""Learning rates: pure functions of where the training is and how dev went.

Nothing is kept between calls, so that a resumed training has the learning rates of an
uninterrupted one by construction.

Sources: Vaswani et al. 2017 (noam); RETURNN `LearningRateControl.py` (newbob);
PyKaldi2 `train_ce.py` (halving); Loshchilov and Hutter 2017 (cosine, no restarts).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Moment:
    """Where a training is.

    Attributes:
        step: of the optimiser, counted from 1; the one about to be made.
        epoch: counted from 1.
        progress: share of the whole training that is done, in [0, 1].
    """

    step: int
    epoch: int
    progress: float


History = Sequence[Mapping[str, float]]


def learning_rate(
    schedule: Options,
    start: float,
    warmup_steps: int,
    moment: Moment,
    history: History,
) -> float:
    """Return the learning rate of a step.

    Args:
        schedule: key `schedule` of `workflow/schemas/nnet_training.yaml`.
        start: key `learning_rate`.
        warmup_steps: steps over which all is scaled up from 0; the first step's factor
            is 1 / warmup_steps.
        moment: where the training is.
        history: means per frame on dev at the end of each finished epoch.
    """
    rate = start * _FACTORS[schedule["type"]](schedule, start, moment, history)
    if moment.step < warmup_steps:
        rate *= moment.step / warmup_steps
    return rate


def _constant(_: Options, __: float, ___: Moment, ____: History) -> float:
    """Always 1."""
    return 1.0


def _halving(schedule: Options, _: float, moment: Moment, __: History) -> float:
    """Once smaller in `first_epoch`, twice in the next."""
    times = max(0, moment.epoch - schedule["first_epoch"] + 1)
    return schedule["ratio"] ** times


def _newbob(schedule: Options, start: float, _: Moment, history: History) -> float:
    """Smaller by `decay` for each epoch that changed the dev error too little."""
    floor = schedule["min_learning_rate"] / start
    errors = [epoch[schedule["measure"]] for epoch in history]
    factor = 1.0
    for before, after in pairwise(errors):
        change = after - before
        if schedule["relative"]:
            change /= abs(before) or 1.0
        if not change <= schedule["threshold"]:
            factor = max(factor * schedule["decay"], min(factor, floor))
    return factor


def _noam(schedule: Options, _: float, moment: Moment, __: History) -> float:
    """Up to the step `warmup`, then down with the root of the step."""
    return min(moment.step**-0.5, moment.step * schedule["warmup"] ** -1.5)


def _cosine(schedule: Options, _: float, moment: Moment, __: History) -> float:
    """From 1 to `final_ratio`."""
    final = schedule["final_ratio"]
    share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, moment.progress)))
    return final + (1.0 - final) * share


_FACTORS: dict[str, Callable[[Options, float, Moment, History], float]] = {
    "constant": _constant,
    "halving": _halving,
    "newbob": _newbob,
    "noam": _noam,
    "cosine": _cosine,
}


def is_exhausted(history: History, patience: int | None) -> bool:
    """Whether the dev loss has not become better in the last `patience` epochs.

    Args:
        history: means per frame on dev at the end of each finished epoch.
        patience: None for never.
    """
    if patience is None or len(history) <= patience:
        return False
    losses = [epoch["loss"] for epoch in history]
    return min(losses[-patience:]) >= min(losses[:-patience])
