"""Files that an experiment has left in its folder, as far as it got.

Public: `Results`, `SplitSize`, `Log`, `read_log`, `read_table`, `read_json`,
`read_manifest`.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from latflow.features.frame_times import FrameTimes
from latflow.files import read_lines
from latflow.nnet.described import frame_subsampling
from latflow.scoring import results as tables
from latflow.sequence.options import SequenceSystemOptions
from latflow.workflow.experiment import Experiment
from latflow.workflow.recipe import Recipe

Line = Mapping[str, Any]


@dataclass(frozen=True)
class SplitSize:
    """Amount of speech in a part of the corpus.

    Attributes:
        oov: words that the lexicon lacks; None while there is no lexicon.
    """

    seconds: float
    utterances: int
    speakers: int
    words: int
    distinct_words: int
    oov: int | None


@dataclass(frozen=True)
class Results:
    """The folder `results/<experiment>/` and the recipe that it came from.

    Attributes:
        folder: the folder.
        recipe: what the recipe says and what follows from it.
    """

    folder: Path
    recipe: Recipe

    def __truediv__(self, path: str) -> Path:
        return self.folder / path

    @property
    def options(self) -> Experiment:
        """The typed recipe."""
        return self.recipe.options

    @cached_property
    def split_sizes(self) -> dict[str, SplitSize]:
        """Sizes of the parts of the corpus that are there, each read once."""
        words = _vocabulary(self / "lang/words.txt")
        splits = [*self.recipe.splits, *self.recipe.training_sets[1:]]
        paths = {split: self / f"corpus/{split}/cuts.jsonl.gz" for split in splits}
        return {
            split: _measured(path, words)
            for split, path in paths.items()
            if path.is_file()
        }

    def frame_shift(self, network: str) -> float:
        """Return the seconds from one frame of a network's output to the next."""
        nnet, name = self.options.nnet, self.recipe.stream_of(network) or ""
        if name in nnet.ivectors:
            name = nnet.ivectors[name].features
        stream = nnet.features.get(name)
        features = self.options.features if stream is None else stream
        hdf5 = self.recipe.hdf5_of(network)
        subsampling = frame_subsampling(self.folder / "nnet" / network)
        if hdf5 is not None:
            return subsampling * hdf5.frame_shift_ms / 1000
        times = FrameTimes.of(features, features.sample_rate)
        return subsampling * times.shift_ms / 1000

    def baseline_of(self, system: str) -> str | None:
        """Return the system that a system is to be better than; None for the first.

        A sequence-trained network starts from another network; other networks learn
        from a GMM system, or nothing precedes them; a GMM system follows another.
        """
        if self.recipe.is_network(system):
            options = self.options.nnet.systems[system]
            has_parent = isinstance(options, SequenceSystemOptions)
            return options.parent if has_parent else self.recipe.gmm_behind(system)
        systems = list(self.recipe.systems)
        index = systems.index(system)
        return systems[index - 1] if index else None

    @property
    def shown_system(self) -> str:
        """The system that is looked at closely."""
        last = self.recipe.decoded_systems[-1]
        return self.options.report.example_system or last

    @property
    def shown_set(self) -> str:
        """The set that is looked at closely."""
        sets = self.recipe.test_sets or ["dev"]
        return self.options.report.example_set or sets[0]

    def score_folder(self, system: str, name: str) -> Path:
        """Return the folder of the scores of a system on a set."""
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

    def epochs_at(self, line: Line) -> float:
        """Return the epochs done when a line was written, with the part of the last."""
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
    """Read the lines of a log; None if it is not there."""
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


def read_table(path: Path) -> pd.DataFrame | None:
    """Read a tab-separated table, cells as text; None if it is not there."""
    return tables.read_table(path) if path.is_file() else None


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None if it is not there."""
    if not path.is_file():
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def read_manifest(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the items of a Lhotse manifest (`.jsonl.gz`)."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


def _vocabulary(path: Path) -> frozenset[str] | None:
    """Return the words of a symbol table; None if it is not there."""
    if not path.is_file():
        return None
    return frozenset(line.split()[0] for _, line in read_lines(path) if line.strip())


def _measured(cuts: Path, vocabulary: frozenset[str] | None) -> SplitSize:
    """Return the size of one part of the corpus, by its manifest."""
    seconds, utterances = 0.0, 0
    speakers: set[str] = set()
    counts: Counter[str] = Counter()
    for cut in read_manifest(cuts):
        seconds += cut["duration"]
        utterances += 1
        for supervision in cut["supervisions"]:
            speakers.add(supervision.get("speaker") or "unknown")
            counts.update((supervision.get("text") or "").split())
    oov = None
    if vocabulary is not None:
        oov = sum(n for word, n in counts.items() if word not in vocabulary)
    words = sum(counts.values())
    return SplitSize(seconds, utterances, len(speakers), words, len(counts), oov)
