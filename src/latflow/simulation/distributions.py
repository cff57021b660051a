"""Distributions that options name, and draws from them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from latflow.options import Options, PositiveFloat


class _Range(Options):
    """A distribution whose values are within a range."""

    low: float
    """Lower end."""
    high: float
    """Upper end."""

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.low > self.high:
            raise ValueError(f"{self.low:g} is above {self.high:g}")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value."""
        return self.low, self.high


class Uniform(_Range):
    """Evenly from a range."""

    type: Literal["uniform"] = "uniform"


class Choice(Options):
    """One of some values, each as likely as the others; of one value: always it."""

    type: Literal["choice"] = "choice"
    of: Annotated[tuple[float, ...], Field(min_length=1)]
    """Values; one that stands there twice is twice as likely."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest value."""
        return min(self.of), max(self.of)


class Gaussian(_Range):
    """Normally distributed, brought to the nearer end where it is out of a range."""

    type: Literal["gaussian"] = "gaussian"
    mean: float
    """Mean."""
    std: PositiveFloat
    """Standard deviation."""


_Any = Uniform | Choice | Gaussian


def _between(low: float, high: float) -> AfterValidator:
    """Return a check that all values of a distribution are in a range."""

    def check(distribution: _Any) -> _Any:
        for value in distribution.bounds:
            if not low <= value <= high:
                raise ValueError(f"{value:g} is not within {low:g} and {high:g}")
        return distribution

    return AfterValidator(check)


TAGGED = Field(discriminator="type")
Decibels = Annotated[_Any, TAGGED, _between(-60, 100)]
Metres = Annotated[_Any, TAGGED, _between(0.3, 100)]
RoomMetres = Annotated[_Any, TAGGED, _between(1.5, 100)]
Seconds = Annotated[_Any, TAGGED, _between(0.05, 5)]
Hertz = Annotated[_Any, TAGGED, _between(20, 96000)]
Share = Annotated[_Any, TAGGED, _between(0, 1)]
HighShare = Annotated[_Any, TAGGED, _between(0.1, 1)]
ClippedShare = Annotated[_Any, TAGGED, _between(0, 0.9)]
MetresPerSecond = Annotated[_Any, TAGGED, _between(0, 3)]
Degrees = Annotated[_Any, TAGGED, _between(-360, 360)]
Pause = Annotated[_Any, TAGGED, _between(0, 60)]
OverlapShare = Annotated[_Any, TAGGED, _between(0, 0.5)]
Speakers = Annotated[_Any, TAGGED, _between(1, 16)]
Others = Annotated[_Any, TAGGED, _between(0, 2)]


def drawn(distribution: _Any, rng: np.random.Generator) -> float:
    """Draw a value of a distribution."""
    match distribution:
        case Uniform():
            return float(rng.uniform(distribution.low, distribution.high))
        case Choice():
            return distribution.of[int(rng.integers(len(distribution.of)))]
        case Gaussian():
            value = rng.normal(distribution.mean, distribution.std)
            return float(np.clip(value, distribution.low, distribution.high))
