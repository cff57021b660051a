"""What an experiment has left in its folder, as far as it got.

Public: `Results`, `read_table`, `read_json`.
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
    def gmm_systems(self) -> list[str]:
        """GMM systems of the configuration, in its order."""
        return list(self._recipe.systems)

    @property
    def networks(self) -> list[str]:
        """Networks of the configuration, in its order."""
        return list(self._recipe.networks)

    def criterion_of(self, network: str) -> str:
        """What a network is trained by: cross-entropy, or a lattice criterion."""
        criterion = self._recipe.networks[network].get("criterion")
        return "cross-entropy" if criterion is None else criterion["type"]

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
