"""Drawings of sequence training; plain numbers in, inline SVG out.

Public: `dev_errors`, `panels`, `DevErrors`, `Panel`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from latflow.report.figures import WIDTH, Point
from latflow.report.svg import INK, bare, canvas, render, series_colour


class DevErrors(NamedTuple):
    """Word error rate on dev over a training.

    Attributes:
        points: (epochs done, per cent), in order.
        chosen: epochs whose parameters the model has.
    """

    points: Sequence[Point]
    chosen: Sequence[int]


class Panel(NamedTuple):
    """One quantity over the epochs of several trainings.

    Attributes:
        label: what it is, with the unit.
        lines: network -> (epochs done, value), in order; none may be empty.
    """

    label: str
    lines: Mapping[str, Sequence[Point]]


def dev_errors(curves: Mapping[str, DevErrors]) -> str:
    """Word error rates on dev over epochs, the chosen epochs circled.

    Args:
        curves: network -> its errors.
    """
    with canvas(WIDTH, 3.2) as figure:
        axes = figure.subplots()
        for i, (name, (points, chosen)) in enumerate(curves.items()):
            colour = series_colour(i)
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
            circled = [point for point in points if point[0] in chosen]
            if circled:
                axes.plot(
                    *zip(*circled, strict=True),
                    marker="o",
                    markersize=11,
                    linestyle="",
                    color=INK,
                    fillstyle="none",
                )
        axes.set_ylabel("word error rate on dev (%)")
        axes.set_xlabel("epoch (0 = the network that training started from)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(0.06, 0.12)
        axes.legend(fontsize=8.5)
        bare(axes, grid="y")
        return render(figure, "Word error rate on dev over epochs")


def panels(quantities: Sequence[Panel], names: Sequence[str]) -> str:
    """Several quantities over epochs, two panels side by side.

    Args:
        quantities: what is drawn.
        names: networks in the order of their colours.
    """
    num_rows = -(-len(quantities) // 2)
    with canvas(WIDTH, 0.3 + 2.1 * num_rows) as figure:
        grid = figure.subplots(num_rows, 2, squeeze=False).flatten()
        for axes in grid[len(quantities) :]:
            axes.set_visible(False)
        known = {}
        for axes, (label, lines) in zip(grid, quantities, strict=False):
            for name, points in lines.items():
                (known[name],) = axes.plot(
                    *zip(*points, strict=True),
                    marker="o" if len(points) <= 20 else "",
                    markersize=4,
                    linewidth=1.4,
                    color=series_colour(names.index(name)),
                )
            axes.set_title(label, fontsize=9.5, fontweight="normal")
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            bare(axes, grid="y")
        for axes in grid[max(0, len(quantities) - 2) : len(quantities)]:
            axes.set_xlabel("epoch")
        shown = [name for name in names if name in known]
        figure.legend(
            [known[name] for name in shown],
            shown,
            loc="outside upper left",
            ncols=min(6, len(shown)),
        )
        return render(figure, "Quantities of sequence training over epochs")
