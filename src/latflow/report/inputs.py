"""What an experiment has left in its folder, as far as it got.

Public: `Results`, `Log`, `read_log`, `read_table`, `read_json`, `read_manifest`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from latflow.files import read_lines
from latflow.recipe import Recipe

Row = Mapping[str, str]
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Results:
    """The folder `results/<experiment>/` and the configuration that it came from.

    Attributes:
        folder: the folder.
        config: the complete configuration.
    """

    folder: Path
    config: Mapping[str, Any]

    def __truediv__(self, path: str) -> Path:
        return self.folder / path

    @cached_property
    def _recipe(self) -> Recipe:
        """What follows from the configuration."""
        return Recipe(self.config)

    @property
    def systems(self) -> list[str]:
        """Systems of the configuration in its order, GMMs first, then networks."""
        return self._recipe.decoded_systems

    @property
    def swept_systems(self) -> list[str]:
        """Systems that decode dev with several beams."""
        return self._recipe.swept_systems

    @property
    def gmm_systems(self) -> list[str]:
        """GMM systems of the configuration, in its order."""
        return list(self._recipe.systems)

    @property
    def networks(self) -> list[str]:
        """Networks of the configuration, in its order."""
        return list(self._recipe.networks)

    def networks_of(self, kind: str) -> list[str]:
        """Networks of a type: `ce`, by cross-entropy, or `sequence`, on lattices."""
        return self._recipe.networks_of(kind)

    def options_of(self, network: str) -> Mapping[str, Any]:
        """Configuration of a network."""
        return self._recipe.networks[network]

    def gmm_behind(self, network: str) -> str:
        """The GMM system whose alignments and graphs a network works with."""
        return self._recipe.gmm_behind(network)

    def frame_shift(self, network: str) -> float:
        """Seconds from one frame of a network's features to the next."""
        streams = self._recipe.feature_streams
        stream = streams.get(self._recipe.stream_of(network) or "")
        front_end = self.config["features"] if stream is None else stream
        return front_end["frame_shift_ms"] / 1000

    def baseline_of(self, system: str) -> str | None:
        """The system that a system is to be better than; None for the first.

        A sequence-trained network starts from another network; other networks learn
        from a GMM system; a GMM system follows another.
        """
        if not self._recipe.is_network(system):
            place = self.systems.index(system)
            return self.systems[place - 1] if place else None
        parent = self.options_of(system).get("parent")
        return self.gmm_behind(system) if parent is None else parent

    @property
    def decodings(self) -> list[str]:
        """What was scored: systems, and `<system>.<lm>` where they were rescored."""
        return self._recipe.decodings

    @property
    def test_sets(self) -> list[str]:
        """Test sets of the configuration, in its order."""
        return self._recipe.test_sets

    @property
    def evaluation_sets(self) -> list[str]:
        """Dev, which chooses the scales, and the test sets."""
        return self._recipe.evaluation_sets

    @property
    def splits(self) -> list[str]:
        """All parts of the corpus."""
        return self._recipe.splits

    @property
    def shown_system(self) -> str:
        """The system that is looked at closely."""
        return self.config["report"]["example_system"] or self.systems[-1]

    @property
    def shown_set(self) -> str:
        """The set that is looked at closely."""
        sets = self.test_sets or ["dev"]
        return self.config["report"]["example_set"] or sets[0]

    def score_folder(self, system: str, name: str) -> Path:
        """Folder that the stage `score` wrote."""
        return self.folder / "score" / system / name


@dataclass(frozen=True)
class Log:
    """A training's `log.jsonl`, by kind of line.

    Attributes:
        steps: means since the line before, every so many steps.
        epochs: means of each epoch, and of dev at its end.
        dev: means of dev within epochs, where the training asked for them.
        chosen: epochs whose parameters the model has; empty while it is not done.
    """

    steps: list[Line]
    epochs: list[Line]
    dev: list[Line]
    chosen: list[int]

    def place(self, line: Line) -> float:
        """Epochs done when a line was written, with the part of the one under way."""
        length = self._batches[line["epoch"]]
        return line["epoch"] - 1 + line["batch"] / max(1, length)

    @cached_property
    def _batches(self) -> dict[int, int]:
        """Epoch -> its number of batches, as far as it got."""
        found: dict[int, int] = {}
        for line in (*self.steps, *self.epochs, *self.dev):
            epoch = line["epoch"]
            found[epoch] = max(found.get(epoch, 0), line["batch"])
        return found


def read_log(path: Path) -> Log | None:
    """The lines of a log; None if it is not there."""
    if not path.is_file():
        return None
    by_kind: dict[str, list[Line]] = {}
    for _, line in read_lines(path):
        record: Line = json.loads(line)
        by_kind.setdefault(record["kind"], []).append(record)
    steps, epochs, dev, final = (
        by_kind.get(kind, []) for kind in ("step", "epoch", "dev", "final")
    )
    return Log(steps, epochs, dev, chosen=final[-1]["epochs"] if final else [])


def read_table(path: Path) -> list[Row] | None:
    """Rows of a tab-separated table with a heading line; None if it is not there."""
    if not path.is_file():
        return None
    lines = [line.split("\t") for _, line in read_lines(path)]
    return [dict(zip(lines[0], row, strict=True)) for row in lines[1:]]


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None if it is not there."""
    if not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def read_manifest(path: Path) -> Iterator[dict[str, Any]]:
    """Items of a Lhotse manifest (`.jsonl.gz`), one at a time."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
