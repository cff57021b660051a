"""What the report draws of sequence training over epochs.

Public: `curves`, `UNITS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from latflow.report import sequence_figures
from latflow.report.figures import Point
from latflow.report.inputs import Line, Log, Results
from latflow.report.page import Block, Figure, Heading, Table, text_column
from latflow.report.sequence_figures import Panel

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
}
_GLOSSARY = {
    "objective": "The value of the criterion, which training raises. Values of "
    "different criteria do not compare.",
    "cross-entropy": "Minus the log probability of the aligned tied state, as in "
    "training frame by frame. A steep rise says that the network forgets what it had "
    "learnt there: a smaller learning rate or a larger cross-entropy weight holds it.",
    "said is in the lattice": "Frames whose aligned tied state is on some path of the "
    "lattice. Where it is missing, nothing is compared; well below 95 % asks for wider "
    "beams.",
    "arcs a frame": "The depth of the lattices: how many links (arcs) they have for "
    "each frame, which says how many alternatives they hold. "
    "Lattices of a few arcs teach little, very deep ones cost time. Depth falls as "
    "the network becomes surer.",
    "lattice beam": "How much worse than the best path a path may be to stay in the "
    "lattice; drawn where it follows a wanted depth.",
    "oracle errors": "Word error rate of the least wrong path of each lattice, on a "
    "sample of the training utterances. Low is good: the lattice holds what was said.",
    "gradient norm": "Length of the gradient, the direction in which the parameters "
    "are moved, before it is limited. Jumps say that the learning rate is too high.",
    "left the static alignment": "Frames whose alignment on the fly names another "
    "tied state than the alignment that the seed was trained on; drawn where "
    "alignments are made on the fly.",
}


def curves(results: Results, trained: Mapping[str, Log]) -> Iterator[Block]:
    """Objective, cross-entropy and the state of the lattices over epochs.

    Args:
        results: the experiment.
        trained: network -> its log, with a step or an epoch at least.
    """
    by_criterion: dict[str, dict[str, Log]] = {}
    for name, log in trained.items():
        kind = results.options_of(name)["criterion"]["type"]
        by_criterion.setdefault(kind, {})[name] = log
    found = [
        _panel(f"objective of {kind} ({UNITS[kind]})", own, _mean("objective"))
        for kind, own in by_criterion.items()
    ]
    found += [
        _panel("cross-entropy (nats per frame)", trained, _mean("ce")),
        _panel("said is in the lattice (% of frames)", trained, _in_lattice),
        _panel("arcs a frame (depth of lattices)", trained, _mean("depth")),
        _panel("lattice beam", _moving(trained), _mean("lattice_beam")),
        _panel("oracle errors of a sample (% of words)", trained, _oracle),
        _panel("gradient norm", trained, lambda line: line.get("gradient_norm")),
        _panel("left the static alignment (% of frames)", trained, _drifted),
    ]
    drawn = [panel for panel in found if panel.lines]
    meanings = [
        [name, text]
        for name, text in _GLOSSARY.items()
        if any(panel.label.startswith(name) for panel in drawn)
    ]
    yield Heading("What happens in training")
    yield Figure(
        sequence_figures.panels(drawn, list(trained)),
        "Training data. Points are means over the steps since the point before; the "
        "gradient norm is that of the step itself.",
    )
    yield Table([text_column("curve"), text_column("what it says")], meanings)


def _panel(label: str, logs: Mapping[str, Log], value: Value) -> Panel:
    """A quantity of all trainings that have it."""
    lines = {name: _points(log, value) for name, log in logs.items()}
    return Panel(label, {name: points for name, points in lines.items() if points})


def _points(log: Log, value: Value) -> list[Point]:
    """A quantity over epochs: of groups of steps, or of epochs if those are more."""
    epochs = [{**line, **line["train"]} for line in log.epochs]
    found = []
    for lines in (log.steps, epochs):
        values = [(log.place(line), value(line)) for line in lines]
        found.append([(x, number) for x, number in values if number is not None])
    return max(found, key=len)


def _mean(name: str) -> Value:
    """A mean per frame as it is in the log."""
    return lambda line: line.get(name)


def _in_lattice(line: Line) -> float | None:
    """Frames whose aligned pdf is in the lattice, per cent."""
    return 100 * line["numerator_in_lattice"]


def _oracle(line: Line) -> float | None:
    """Word error rate of the lattices' best words, per cent; None without sample."""
    words = line["oracle_words"]
    return 100 * line["oracle_errors"] / words if words else None


def _drifted(line: Line) -> float | None:
    """Frames that left their static pdf, per cent; None where none was compared."""
    frames = line["aligned_frames"]
    return 100 * line["drifted_frames"] / frames if frames else None


def _moving(trained: Mapping[str, Log]) -> dict[str, Log]:
    """Trainings whose lattice beam did not stay as it was."""
    found = {}
    for name, log in trained.items():
        beams = [beam for _, beam in _points(log, _mean("lattice_beam"))]
        if beams and max(beams) - min(beams) > 1e-6 * max(beams):
            found[name] = log
    return found
