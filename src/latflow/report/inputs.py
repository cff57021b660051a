"""Files that an experiment has left in its folder, as far as it got."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from latflow.corpus.manifest_fields import cut_fields
from latflow.errors import UserError
from latflow.files import reading
from latflow.nnet.described import frame_subsampling
from latflow.options import adapter
from latflow.report.choice import Decision, decide, rates_of
from latflow.report.records import LINES, Job
from latflow.report.significance import (
    CHANCE,
    Pair,
    Verdict,
    compare_pairs,
    turned,
)
from latflow.scoring import results as tables
from latflow.scoring.bootstrap import Comparison
from latflow.text_files import read_json_lines, read_lines
from latflow.workflow.experiment import Experiment
from latflow.workflow.recipe import Recipe
from latflow.workflow.sequence_networks import SequenceNetwork

Line = Mapping[str, Any]
Kind = TypeVar("Kind")
Record = TypeVar("Record", bound=BaseModel)
_AGAIN = "run the stage that wrote it again: latflow provenance names it"


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
        splits = [*self.recipe.splits, *self.recipe.training_sets[1:]]
        paths = {split: self / f"corpus/{split}/cuts.jsonl.gz" for split in splits}
        return {
            split: _measured(path, self.vocabulary)
            for split, path in paths.items()
            if path.is_file()
        }

    @cached_property
    def vocabulary(self) -> frozenset[str] | None:
        """Words of the lexicon; None where it is not there yet."""
        return _vocabulary(self / "lang/words.txt")

    @cached_property
    def wer(self) -> pd.DataFrame | None:
        """Rows of `wer.tsv`, before it is there those of what is scored; or None."""
        pairs = product(self.recipe.decodings, self.recipe.evaluation_sets)
        scores = [self / f"score/{system}/{name}/wer.json" for system, name in pairs]
        return tables.read_rates(self.folder, scores)

    @cached_property
    def rates(self) -> dict[tuple[str, str], float]:
        """Word error rates in per cent by (system, set), as far as they are scored."""
        return {} if self.wer is None else rates_of(self.wer)

    @property
    def decision(self) -> Decision | None:
        """The system to ship; None where dev or a test set is not scored."""
        return decide(self.rates, self.recipe.test_sets)

    @cached_property
    def comparisons(self) -> dict[Pair, Comparison]:
        """All that the report compares, by (old system, new system, set).

        Each system with its baseline on all sets, and the one to ship with all others
        on the test set. p is corrected for their number (Holm): a pair has one p, and
        one reading, wherever it is shown.
        """
        pairs: dict[Pair, None] = {}
        for system in self.recipe.decodings:
            old = self.baseline_of(system)
            if old is not None:
                sets = self.recipe.evaluation_sets
                pairs |= dict.fromkeys((old, system, name) for name in sets)
        decision = self.decision
        if decision is not None:
            test, chosen = decision.test, decision.system
            against = ((other, chosen, test) for other in decision.others)
            pairs |= {pair: None for pair in against if turned(pair) not in pairs}
        files = {
            (old, new, name): (self.scores_of(old, name), self.scores_of(new, name))
            for old, new, name in pairs
        }
        options = self.options
        return compare_pairs(files, options.score.bootstrap, options.seed)

    @cached_property
    def alike_on_dev(self) -> list[str]:
        """Systems that dev can't separate from the one to ship, each compared alone."""
        decision = self.decision
        if decision is None:
            return []
        chosen, alike = decision.system, []
        options = self.options
        for other in decision.others:
            files = self.scores_of(other, "dev"), self.scores_of(chosen, "dev")
            pair = {(other, chosen, "dev"): files}
            for found in compare_pairs(
                pair, options.score.bootstrap, options.seed
            ).values():
                alike += [other] if found.p_value >= CHANCE else []
        return alike

    def comparison(self, old: str, new: str, name: str) -> Comparison | None:
        """Return one of `comparisons`, or its reverse; None where it is not made."""
        pair = (old, new, name)
        if pair in self.comparisons:
            return self.comparisons[pair]
        reverse = self.comparisons.get(turned(pair))
        return None if reverse is None else reverse.reversed()

    def verdict(self, system: str, name: str) -> Verdict | None:
        """Compare a system with its baseline (`baseline_of`) on a set.

        Returns:
            None where there is no baseline, or either has no scores of any word.
        """
        old = self.baseline_of(system)
        found = None if old is None else self.comparison(old, system, name)
        return None if old is None or found is None else Verdict(old, found)

    def frame_shift(self, network: str) -> float:
        """Return the seconds from one frame of a network's output to the next."""
        subsampling = frame_subsampling(self.folder / "nnet" / network)
        return subsampling * self.recipe.networks[network].frames.shift

    def baseline_of(self, system: str) -> str | None:
        """Return the system that a system is to be better than; None for the first.

        That of `report.baselines`, if any. Else: a sequence-trained network starts from
        another network; other networks learn from a GMM system, or nothing precedes
        them; a GMM system follows another. What was rescored is compared with what it
        was.
        """
        if system in self.options.report.baselines:
            return self.options.report.baselines[system]
        found = self.recipe.system_of(system)
        if found.name != system:
            return found.name
        if isinstance(found, SequenceNetwork):
            return found.parent.name
        if found.is_network:
            return None if found.gmm_ancestor is None else found.gmm_ancestor.name
        systems = list(self.recipe.gmms)
        index = systems.index(system)
        return systems[index - 1] if index else None

    @property
    def shown_system(self) -> str:
        """The system that is looked at closely."""
        chosen = None if self.decision is None else self.decision.system
        last = list(self.recipe.systems)[-1]
        return self.options.report.example_system or chosen or last

    @property
    def shown_set(self) -> str:
        """The set that is looked at closely."""
        sets = self.recipe.test_sets or ["dev"]
        return self.options.report.example_set or sets[0]

    def score_folder(self, system: str, name: str) -> Path:
        """Return the folder of the scores of a system on a set."""
        return self.folder / "score" / system / name

    def scores_of(self, system: str, name: str) -> Path:
        """Return the file with the scores of each utterance of a set."""
        return self.score_folder(system, name) / "per_utterance.tsv"


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
    """Read the lines of a log; None if it is not there.

    Returns:
        It; a mean that is asked for, and not there, is a `UserError`.

    Raises:
        UserError: a line is not one of a log.
    """
    if not path.is_file():
        return None
    by_kind: dict[str, list[Line]] = {}
    make = partial(_logged, path=path)
    for record in read_json_lines(path, make, "of a training's log", _AGAIN):
        by_kind.setdefault(record["kind"], []).append(record)
    steps, epochs, dev, final = (by_kind.get(kind, []) for kind in LINES)
    return Log(steps, epochs, dev, chosen=final[-1]["epochs"] if final else [])


class _Means(dict[str, Any]):
    """Values of a line of a log; what it should have, and lacks, is an error."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        nested = {
            key: _Means(value, path) if isinstance(value, dict) else value
            for key, value in values.items()
        }
        super().__init__(nested)
        self._path = path

    def __missing__(self, key: str) -> NoReturn:
        raise UserError(f"a line has no {key}", file=self._path, remedy=_AGAIN)


def _logged(record: dict[str, Any], path: Path) -> Line:
    """Return a line that has what all lines of its kind have.

    Raises:
        ValueError: it lacks some of it, or some is of another type.
    """
    kind = record.get("kind")
    if not isinstance(kind, str):
        raise TypeError(f"of kind {kind}")
    if kind not in LINES:
        return record
    return _Means(checked(LINES[kind], record).model_dump(), path)


def read_table(
    path: Path, texts: Sequence[str] = (), numbers: Sequence[str] = ()
) -> pd.DataFrame | None:
    """Read a tab-separated table, cells as text; None if it is not there.

    Args:
        path: of the table.
        texts: columns that it must have.
        numbers: columns that it must have, whose cells are empty or finite numbers.

    Raises:
        UserError: it lacks one of them, or a cell is not a number.
    """
    if not path.is_file():
        return None
    table = tables.read_table(path)
    with reading(path, f"no table of {', '.join([*texts, *numbers])}", _AGAIN):
        cells = table[[*texts, *numbers]][list(numbers)]
        found = cells.where(cells != "", "0").astype(float)
        if not np.isfinite(found.to_numpy()).all():
            raise ValueError("a number is not finite")
    return table


def read_numbers(path: Path, columns: list[str]) -> pd.DataFrame | None:
    """Read columns of a tab-separated table as numbers; None if it is not there.

    Raises:
        UserError: it lacks one of them, or a cell is not a finite number.
    """
    table = read_table(path, numbers=columns)
    if table is None:
        return None
    with reading(path, f"no table of {', '.join(columns)}", _AGAIN):
        return table[columns].astype(float)


def read_iterations(folder: Path) -> pd.DataFrame | None:
    """Read `iterations.tsv` of a GMM system, cells as text; None if it is not there."""
    numbers = ["iter", "log_like_per_frame", "num_gaussians"]
    return read_table(folder / "iterations.tsv", ["phase"], numbers)


def read_json(path: Path, kind: type[Kind]) -> Kind | None:
    """Read a JSON file; None if it is not there.

    Args:
        path: of the file.
        kind: what is in it: a class of `latflow.report.records`, or a plain type.

    Raises:
        UserError: the file holds something else; names the first field that does.
    """
    if not path.is_file():
        return None
    try:
        return adapter(kind).validate_json(path.read_bytes(), strict=True)
    except ValidationError as error:
        raise UserError(_fault(error), file=path, remedy=_AGAIN) from None


def checked(kind: type[Record], values: Mapping[str, Any]) -> Record:
    """Return the record that the values of a line are.

    Raises:
        ValueError: names the first field that is wrong.
    """
    try:
        return kind.model_validate(values, strict=True)
    except ValidationError as error:
        raise ValueError(_fault(error)) from None


def _fault(error: ValidationError) -> str:
    """Return the first thing that is wrong with a record, by its path."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else first["msg"]


def read_jobs(results: Path) -> dict[tuple[str, str], Job]:
    """Return the records of the jobs of a run by (rule, job)."""
    paths = sorted((results / "provenance").glob("*/*.json"))
    found = {(path.parent.name, path.stem): read_json(path, Job) for path in paths}
    return {key: job for key, job in found.items() if job is not None}


def read_manifest(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the cuts of a manifest (`cuts.jsonl.gz`), as they stand there."""
    return read_json_lines(path, cut_fields, "a Lhotse cut", _AGAIN)


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
        for supervision in cut.get("supervisions") or ():
            speakers.add(supervision.get("speaker") or "unknown")
            counts.update((supervision.get("text") or "").split())
    oov = None
    if vocabulary is not None:
        oov = sum(n for word, n in counts.items() if word not in vocabulary)
    words = sum(counts.values())
    return SplitSize(seconds, utterances, len(speakers), words, len(counts), oov)
