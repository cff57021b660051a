"""Drawings of the training of networks; plain numbers in, inline SVG out.

Public: `loss_curves`, `Curves`, `Epoch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from latflow.report.figures import WIDTH, Point
from latflow.report.svg import bare, canvas, render, series_colour


class Epoch(NamedTuple):
    """The end of an epoch; losses in nats per frame, errors as shares of frames."""

    number: int
    dev_loss: float
    dev_errors: float | None
    train_errors: float | None
    learning_rate: float


class Curves(NamedTuple):
    """A training: (epochs done, loss) of its steps, and its epochs."""

    steps: Sequence[Point]
    epochs: Sequence[Epoch]


def loss_curves(curves: Mapping[str, Curves]) -> str:
    """Losses, frame errors and learning rate over epochs.

    Args:
        curves: network -> its training.
    """
    with canvas(WIDTH, 6.4) as figure:
        loss, errors, rate = figure.subplots(
            3, 1, sharex=True, height_ratios=[1.6, 1.2, 0.6]
        )
        for i, (name, training) in enumerate(curves.items()):
            colour = series_colour(i)
            if training.steps:
                loss.plot(*zip(*training.steps, strict=True), color=colour, alpha=0.5)
            numbers = [epoch.number for epoch in training.epochs]
            losses = [epoch.dev_loss for epoch in training.epochs]
            loss.plot(numbers, losses, marker="o", color=colour, label=name)
            _draw_errors(errors, training.epochs, colour)
            rates = [epoch.learning_rate for epoch in training.epochs]
            rate.plot(numbers, rates, marker=".", color=colour)
        loss.set_ylabel("loss (nats per frame)")
        errors.set_ylabel("frame errors (%)")
        rate.set_ylabel("learning rate")
        rate.set_yscale("log")
        rate.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        rate.yaxis.set_minor_formatter(NullFormatter())
        rate.set_xlabel("epoch")
        rate.xaxis.set_major_locator(MaxNLocator(integer=True))
        loss.legend(loc="upper right")
        for axes in (loss, errors, rate):
            bare(axes, grid="y")
        return render(figure, "Loss, frame errors and learning rate over epochs")


def _draw_errors(axes: Axes, epochs: Sequence[Epoch], colour: str) -> None:
    """Frame errors of dev (dots) and of training (line)."""
    for marker, style, key in (("o", "-", "dev_errors"), ("", ":", "train_errors")):
        points = [(e.number, getattr(e, key)) for e in epochs]
        known = [(number, 100 * share) for number, share in points if share is not None]
        if known:
            axes.plot(
                *zip(*known, strict=True), marker=marker, linestyle=style, color=colour
            )
