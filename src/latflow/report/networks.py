"""Section on the networks: loss, frame errors and speed over training, sizes.

Public: `networks_section`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from latflow.files import read_lines
from latflow.nnet.description import NetworkDescription
from latflow.nnet.drawing import network_svg
from latflow.nnet.network import Network
from latflow.report import network_figures
from latflow.report.inputs import Results, read_json
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
    "Networks learn to tell which tied state each frame belongs to, from the "
    "alignments of a GMM system. The loss is in nats per frame; the frame error rate "
    "is the share of frames whose best state is not the aligned one. Dev falling less "
    "than training is over-fitting; both still falling at the end asks for more epochs."
)
_PARTS = ("data", "forward", "criterion", "backward", "reduce", "update")


class Log(NamedTuple):
    """A training's `log.jsonl`, by kind of line."""

    steps: list[Mapping[str, Any]]
    epochs: list[Mapping[str, Any]]


def networks_section(results: Results) -> Section | None:
    """What the networks are and how they were trained; None where there are none."""
    if not results.networks:
        return None
    section = Section("networks", "Networks", _LEAD)
    logs = {
        name: _read_log(results / f"nnet/{name}/log.jsonl") for name in results.networks
    }
    trained = {name: log for name, log in logs.items() if log is not None}
    if not trained:
        section.blocks.append(missing("trained network", f"nnet_{results.networks[0]}"))
        return section
    for criterion, names in _by_criterion(results, trained).items():
        curves = {name: _curves(trained[name]) for name in names}
        caption = (
            f"Training by {criterion}: lines are means over training batches, dots dev "
            "at the end of each epoch."
        )
        section.blocks.append(Figure(network_figures.loss_curves(curves), caption))
    section.blocks.append(_facts(results, trained))
    section.blocks += _speed(trained)
    for name in trained:
        section.blocks += _drawing(results, name)
    return section


def _read_log(path: Path) -> Log | None:
    """The lines of a log; None if it is not there."""
    if not path.is_file():
        return None
    lines = [json.loads(line) for _, line in read_lines(path)]
    by_kind = {
        kind: [x for x in lines if x["kind"] == kind] for kind in ("step", "epoch")
    }
    return Log(by_kind["step"], by_kind["epoch"])


def _by_criterion(results: Results, trained: Mapping[str, Log]) -> dict[str, list[str]]:
    """Networks that are trained by the same criterion: their losses compare."""
    groups: dict[str, list[str]] = {}
    for name in trained:
        groups.setdefault(results.criterion_of(name), []).append(name)
    return groups


def _curves(log: Log) -> Curves:
    """What is drawn of a training, over epochs."""
    per_epoch = {}
    for line in log.steps:
        per_epoch[line["epoch"]] = max(per_epoch.get(line["epoch"], 1), line["batch"])
    steps = [
        (line["epoch"] - 1 + line["batch"] / per_epoch[line["epoch"]], line["loss"])
        for line in log.steps
    ]
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
    system = results.config["nnet"]["systems"][name]
    last = log.epochs[-1] if log.epochs else None
    facts = {
        "description": Path(system["network"]).stem,
        "criterion": results.criterion_of(name),
        "alignments": system["alignments"],
        "features": system["features"] or "those of the GMM systems",
        "parameters": f"{_load(results, name).num_parameters:,}",
        "epochs": str(len(log.epochs)),
        "steps": str(last["step"]) if last else "0",
    }
    for part in ("train", "dev"):
        if last is not None:
            facts[f"{part} loss (nats per frame), last epoch"] = (
                f"{last[part]['loss']:.4f}"
            )
            if "frame_errors" in last[part]:
                rate = 100 * last[part]["frame_errors"]
                facts[f"{part} frame errors (%), last epoch"] = f"{rate:.2f}"
    if log.steps:
        speeds = sorted(line["frames_per_second"] for line in log.steps)
        facts["frames per second (median)"] = f"{speeds[len(speeds) // 2]:,.0f}"
    return facts


def _speed(trained: Mapping[str, Log]) -> Iterator[Block]:
    """Where the time of training goes."""
    rows = []
    for name, log in trained.items():
        if log.steps:
            shares = [
                _mean([line["time"][part] for line in log.steps]) for part in _PARTS
            ]
            rows.append([name, *(f"{100 * share:.1f}" for share in shares)])
    if rows:
        yield Heading("Where the time of training goes")
        columns = [text_column("network"), *(Column(f"{part} (%)") for part in _PARTS)]
        yield Table(columns, rows)


def _mean(values: Sequence[float]) -> float:
    """Mean of some numbers."""
    return sum(values) / len(values)


def _load(results: Results, name: str) -> Network:
    """The network of a model folder, without its parameters' values."""
    folder = results / f"nnet/{name}"
    meta = read_json(folder / "meta.json") or {}
    description = NetworkDescription.load(folder / "network.yaml")
    return Network(description, meta["dim_in"], meta["classes"])


def _drawing(results: Results, name: str) -> Iterator[Block]:
    """The layers of a network."""
    network = _load(results, name)
    yield Heading(f"Layers of {name}")
    yield Figure(
        network_svg(network.graph(), f"Layers of {name}"),
        "Layers, numbers a frame, and parameters.",
    )
    field = network.receptive_field
    sides = ["all" if side is None else str(side) for side in field]
    yield Note(
        f"An output frame sees {sides[0]} frames before it and {sides[1]} after it."
    )
