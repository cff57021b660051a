"""Section on the networks: loss, frame errors and speed over training, sizes.

It covers networks that are trained frame by frame (cross-entropy); those that go on
with lattices are in `latflow.report.sequence`.

Public: `networks_section`, `time_shares`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from latflow.nnet.description import NetworkDescription
from latflow.nnet.drawing import network_svg
from latflow.nnet.network import Network
from latflow.report import network_figures
from latflow.report.inputs import Log, Results, read_json, read_log
from latflow.report.network_figures import Curves, Epoch
from latflow.report.page import (
    Block,
    Column,
    Figure,
    Heading,
    Note,
    Section,
    Table,
    missing,
    text_column,
)

_LEAD = (
    "Networks learn to tell which tied state each frame (a short slice of sound) "
    "belongs to, from the alignments of a GMM system; a tied state is a part of a "
    "phone, shared by phones in similar surroundings. The loss is the cross-entropy: "
    "minus the log probability that the network gives to the aligned state, in nats "
    "(natural logarithm) per frame. The frame error rate is the share of frames whose "
    "best state is not the aligned one. Dev falling less than training is "
    "over-fitting; both still falling at the end asks for more epochs (passes over "
    "the training data)."
)
_PARTS = {
    "data": "reading batches",
    "forward": "forward pass",
    "criterion": "criterion",
    "backward": "backward pass",
    "reduce": "exchange between processes",
    "update": "update of the parameters",
}


def networks_section(results: Results) -> Section | None:
    """What the networks are and how they were trained; None where there are none."""
    names = results.networks_of("ce")
    if not names:
        return None
    section = Section("networks", "Networks", _LEAD)
    logs = {name: read_log(results / f"nnet/{name}/log.jsonl") for name in names}
    trained = {name: log for name, log in logs.items() if log is not None}
    if not trained:
        section.blocks.append(missing("trained network", f"nnet_{names[0]}"))
        return section
    curves = {name: _curves(log) for name, log in trained.items()}
    caption = (
        "Lines are means over training batches, dots dev at the end of each epoch; of "
        "frame errors, dotted lines are training."
    )
    section.blocks += [
        Figure(network_figures.loss_curves(curves), caption),
        _facts(results, trained),
        *time_shares(trained),
        *_drawings(results, list(trained)),
    ]
    return section


def time_shares(trained: Mapping[str, Log]) -> Iterator[Block]:
    """Where the time of training goes, a table; nothing where no step is logged.

    Args:
        trained: network -> its log.
    """
    rows = []
    for name, log in trained.items():
        if log.steps:
            shares = [
                _mean([line["time"][part] for line in log.steps]) for part in _PARTS
            ]
            rows.append([name, *(f"{100 * share:.1f}" for share in shares)])
    if rows:
        titles = (f"{title} (%)" for title in _PARTS.values())
        yield Heading("Where the time of training goes")
        yield Table([text_column("network"), *map(Column, titles)], rows)


def _curves(log: Log) -> Curves:
    """What is drawn of a training, over epochs."""
    steps = [(log.place(line), line["loss"]) for line in log.steps]
    epochs = [
        Epoch(
            line["epoch"],
            line["dev"]["loss"],
            line["dev"].get("frame_errors"),
            line["train"].get("frame_errors"),
            line["learning_rate"],
        )
        for line in log.epochs
    ]
    return Curves(steps, epochs)


def _facts(results: Results, trained: Mapping[str, Log]) -> Table:
    """One column a network."""
    found = {name: _network_facts(results, name, log) for name, log in trained.items()}
    keys = list(dict.fromkeys(key for facts in found.values() for key in facts))
    rows = [[key, *(facts.get(key, "") for facts in found.values())] for key in keys]
    return Table([text_column("of the network"), *map(Column, found)], rows)


def _network_facts(results: Results, name: str, log: Log) -> dict[str, str]:
    """Facts of a network by what they are called in the report."""
    options = results.options_of(name)
    last = log.epochs[-1] if log.epochs else None
    meta = read_json(results / f"nnet/{name}/meta.json") or {}
    facts = {
        "description": Path(options["network"]).stem,
        "learns the alignments of": options["alignments"],
        "features": options["features"] or "those of the GMM systems",
        "parameters": f"{meta['num_parameters']:,}" if "num_parameters" in meta else "",
        "epochs": str(len(log.epochs)),
        "steps": str(last["step"]) if last else "0",
    }
    for part in ("train", "dev"):
        if last is not None:
            loss = f"{last[part]['loss']:.4f}"
            facts[f"{part} loss (nats per frame), last epoch"] = loss
            if "frame_errors" in last[part]:
                rate = 100 * last[part]["frame_errors"]
                facts[f"{part} frame errors (%), last epoch"] = f"{rate:.2f}"
    if log.steps:
        speeds = sorted(line["frames_per_second"] for line in log.steps)
        facts["frames per second (median)"] = f"{speeds[len(speeds) // 2]:,.0f}"
    return facts


def _mean(values: Sequence[float]) -> float:
    """Mean of some numbers."""
    return sum(values) / len(values)


def _drawings(results: Results, names: Sequence[str]) -> Iterator[Block]:
    """The layers of the networks, drawn once where several are made alike."""
    alike: dict[str, list[str]] = {}
    for name in names:
        folder = results / f"nnet/{name}"
        meta = read_json(folder / "meta.json")
        if meta is not None:
            text = (folder / "network.yaml").read_text(encoding="utf-8")
            key = f"{meta['dim_in']} {meta['classes']} {text}"
            alike.setdefault(key, []).append(name)
    for own in alike.values():
        yield from _drawing(results, own)


def _drawing(results: Results, names: Sequence[str]) -> Iterator[Block]:
    """The layers of networks that are made alike."""
    folder = results / f"nnet/{names[0]}"
    meta = read_json(folder / "meta.json") or {}
    description = NetworkDescription.load(folder / "network.yaml")
    network = Network(description, meta["dim_in"], meta["classes"])
    title = f"Layers of {', '.join(names)}"
    yield Heading(title)
    yield Figure(
        network_svg(network.graph(), title),
        "Layers, numbers a frame, and parameters.",
    )
    field = network.receptive_field
    sides = ["all" if side is None else str(side) for side in field]
    yield Note(
        f"An output frame sees {sides[0]} frames before it and {sides[1]} after it."
    )
