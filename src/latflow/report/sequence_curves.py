"""Curves of sequence training over epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from latflow.report.figures import (
    INK,
    WIDTH,
    Point,
    bare,
    canvas,
    legend_beside,
    render,
    series_colour,
)
from latflow.report.inputs import Line, Log
from latflow.report.page import Block, Figure, Heading, Table

Value = Callable[[Line], float | None]

#: Criterion -> unit of its value.
UNITS = {
    "mmi": "nats per frame",
    "smbr": "right frames per frame",
    "mpfe": "right frames per frame",
    "mpe": "right frames per frame",
    "phone_mpe": "right phones per frame",
    "mwe": "minus word errors per frame",
    "teacher": "nats per frame",
    "custom": "per frame",
    "external": "per frame",
}
_GLOSSARY = {
    "objective": "The value of the criterion, which training raises. Values of "
    "different criteria do not compare.",
    "cross-entropy": "Minus the log probability of the aligned tied state, as in "
    "training frame by frame. A steep rise says that the network forgets what it had "
    "learnt there: a smaller learning rate or a larger cross-entropy weight holds it.",
    "reference is in the lattice": "Frames whose aligned tied state is on some path of "
    "the lattice. Where it is missing, nothing is compared; well below 95 % asks for "
    "wider beams.",
    "lattice depth": "How many links (arcs) the lattices have for each frame, which "
    "says how many alternatives they hold. Lattices of a few arcs teach little, very "
    "deep ones cost time. Depth falls as the network becomes surer.",
    "lattice beam": "How much worse than the best path a path may be to stay in the "
    "lattice; drawn where it follows a wanted lattice depth.",
    "oracle errors": "Word error rate of the least wrong path of each lattice, on a "
    "sample of the training utterances. Low is good: the lattice holds the reference.",
    "gradient norm": "Length of the gradient, the direction in which the parameters "
    "are moved, before it is limited. Jumps say that the learning rate is too high.",
    "left the static alignment": "Frames whose alignment on the fly names another "
    "tied state than the alignment that the seed was trained on; drawn where "
    "alignments are made on the fly.",
}


class Panel(NamedTuple):
    """One quantity over the epochs of several trainings.

    Attributes:
        label: what it is, with the unit.
        lines: network -> (epochs done, value), in order; none may be empty.
    """

    label: str
    lines: Mapping[str, Sequence[Point]]


def curves(kinds: Mapping[str, str], trained: Mapping[str, Log]) -> Iterator[Block]:
    """Draw objective, cross-entropy and the state of the lattices over epochs.

    Args:
        kinds: network -> type of its criterion.
        trained: network -> its log, with a step or an epoch at least.
    """
    by_criterion: dict[str, dict[str, Log]] = {}
    for name, log in trained.items():
        by_criterion.setdefault(kinds[name], {})[name] = log
    found = [
        _panel(f"objective of {kind} ({UNITS[kind]})", own, _mean("objective"))
        for kind, own in by_criterion.items()
    ]
    found += [
        _panel("cross-entropy (nats per frame)", trained, _mean("ce")),
        _panel("reference is in the lattice (% of frames)", trained, _in_lattice),
        _panel("lattice depth (arcs a frame)", trained, _mean("depth")),
        _panel("lattice beam", _moving(trained), _mean("lattice_beam")),
        _panel("oracle errors of a sample (% of words)", trained, _oracle),
        _panel("gradient norm", trained, lambda line: line.get("gradient_norm")),
        _panel("left the static alignment (% of frames)", trained, _drifted),
    ]
    drawn = [panel for panel in found if panel.lines]
    meanings = [
        {"curve": name, "what it says": text}
        for name, text in _GLOSSARY.items()
        if any(panel.label.startswith(name) for panel in drawn)
    ]
    yield Heading("What happens in training")
    yield Figure(
        panels(drawn, list(trained)),
        "Training data. Points are means over the steps since the point before; the "
        "gradient norm is that of the step itself.",
    )
    yield Table(meanings, {"curve", "what it says"})


def _panel(label: str, logs: Mapping[str, Log], value: Value) -> Panel:
    """Return a quantity of all trainings that have it."""
    lines = {name: _points(log, value) for name, log in logs.items()}
    return Panel(label, {name: points for name, points in lines.items() if points})


def _points(log: Log, value: Value) -> list[Point]:
    """Return a quantity over epochs: of groups of steps, or of epochs if more."""
    epochs = [{**line, **line["train"]} for line in log.epochs]
    found = []
    for lines in (log.steps, epochs):
        values = [(log.epochs_at(line), value(line)) for line in lines]
        found.append([(x, number) for x, number in values if number is not None])
    return max(found, key=len)


def _mean(name: str) -> Value:
    """Return a reader of a mean per frame in the log."""
    return lambda line: line.get(name)


def _in_lattice(line: Line) -> float | None:
    """Return the frames whose aligned pdf is in the lattice, per cent."""
    return 100 * line["numerator_in_lattice"]


def _oracle(line: Line) -> float | None:
    """Return the oracle word error rate, per cent; None without a sample."""
    words = line["oracle_words"]
    return 100 * line["oracle_errors"] / words if words else None


def _drifted(line: Line) -> float | None:
    """Return the frames that left their static pdf, per cent; None without any."""
    frames = line["aligned_frames"]
    return 100 * line["drifted_frames"] / frames if frames else None


def _moving(trained: Mapping[str, Log]) -> dict[str, Log]:
    """Return the trainings whose lattice beam did not stay unchanged."""
    found = {}
    for name, log in trained.items():
        beams = [beam for _, beam in _points(log, _mean("lattice_beam"))]
        if beams and max(beams) - min(beams) > 1e-6 * max(beams):
            found[name] = log
    return found


def dev_errors(
    points_of: Mapping[str, Sequence[Point]], chosen: Mapping[str, Sequence[int]]
) -> str:
    """Draw word error rates on dev over epochs, the chosen epochs circled.

    Args:
        points_of: network -> (epochs done, per cent), in order.
        chosen: network -> epochs whose parameters the model has.
    """
    with canvas(WIDTH, 3.2) as figure:
        axes = figure.subplots()
        for i, (name, points) in enumerate(points_of.items()):
            colour = series_colour(i)
            axes.plot(*zip(*points, strict=True), marker="o", color=colour, label=name)
            circled = [point for point in points if point[0] in chosen[name]]
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
        legend_beside(axes)
        bare(axes, grid="y")
        return render(figure, "Word error rate on dev over epochs")


def panels(quantities: Sequence[Panel], names: Sequence[str]) -> str:
    """Draw several quantities over epochs, two panels side by side.

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
        return render(figure, "Quantities of training over epochs")
