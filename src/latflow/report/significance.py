"""Paired comparisons of systems on the same utterances, and what they mean in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import pandas as pd

from latflow.report.page import Note
from latflow.scoring.bootstrap import Comparison, holm, paired_bootstrap
from latflow.scoring.options import BootstrapOptions
from latflow.scoring.results import GAP, read_scores

Pair = tuple[str, str, str]  # old system, new system, set
CHANCE = 0.05  # p below it is not chance
COULD_BE_CHANCE = "could be chance"  # a reading


@dataclass(frozen=True)
class Verdict:
    """The change of the word error rate of a set from one system to another.

    Attributes:
        old: the system compared with.
        found: difference, interval and p; per cent absolute.
    """

    old: str
    found: Comparison

    @property
    def change(self) -> str:
        """The difference with its sign, per cent absolute."""
        return f"{self.found.difference:+.2f}"

    @property
    def words(self) -> str:
        """The difference as a sentence has it."""
        size, side = abs(self.found.difference), "better"
        if self.found.difference > 0:
            side = "worse"
        return f"{size:.2f} points {side} than {self.old}"

    @property
    def interval(self) -> str:
        """Bounds of the difference, per cent absolute."""
        return interval_text(self.found)

    @property
    def reading(self) -> str:
        """The outcome in words."""
        return read_comparison(self.found)


def reading(
    difference: float,
    p_value: float,
    interval: tuple[float, float],
    sides: tuple[str, str] = ("better", "worse"),
) -> str:
    """Describe a difference of word error rates; below 0 the new one is better.

    The interval is of this comparison alone, p of all: one may exclude 0 where the
    other says that among so many one such difference is to be expected.
    """
    if difference == 0:
        return "equal"
    side = sides[0] if difference < 0 else sides[1]
    if p_value < CHANCE:
        return side
    if interval[0] > 0 or interval[1] < 0:
        return f"{COULD_BE_CHANCE} of many ({side}, were it the only comparison)"
    return COULD_BE_CHANCE


def read_comparison(found: Comparison) -> str:
    """Describe a comparison in words, see `reading`."""
    return reading(found.difference, found.p_value, (found.low, found.high))


def could_be_chance(verdict: object) -> bool:
    """Return whether a reading doesn't separate two systems."""
    return str(verdict).startswith(COULD_BE_CHANCE)


def p_text(p_value: float) -> str:
    """Return a p as tables show it."""
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


def interval_text(found: Comparison) -> str:
    """Return the bounds of a difference, per cent absolute, with their signs."""
    return bounds_text(found.low, found.high)


def bounds_text(low: float, high: float) -> str:
    """Return bounds with their signs; what is 0 when rounded is +0.00."""
    low, high = round(low, 2) + 0.0, round(high, 2) + 0.0
    return f"{low:+.2f} to {high:+.2f}"


@dataclass(frozen=True)
class Joined:
    """Scores of the same utterances by two systems.

    Attributes:
        table: a row an utterance by its id, sorted: `speaker`, `words`, `errors` of the
            old system, `errors_after` of the new one.
        differing: utterances that both have with other reference words, sorted; left
            out, since their errors are not of the same words.
        num_single: utterances that only one of them has.
    """

    table: pd.DataFrame
    differing: list[str]
    num_single: int


def join_scores(old: Path, new: Path) -> Joined:
    """Join two `per_utterance.tsv` on the utterances that both have.

    Raises:
        UserError: a file is not a table of scores.
    """
    before, after = (read_scores(path).set_index("utterance") for path in (old, new))
    columns = {"errors": "errors_after", "reference": "reference_after"}
    both = before.join(after[list(columns)].rename(columns=columns), how="inner")
    both = both.sort_index()
    is_same = _spoken(both["reference"]) == _spoken(both["reference_after"])
    table = both.loc[is_same, ["speaker", "words", "errors", "errors_after"]]
    single = len(before) + len(after) - 2 * len(both)
    return Joined(table, [*both.index[~is_same]], single)


def _spoken(references: pd.Series) -> pd.Series:
    """Return aligned references without the gaps, which depend on the hypothesis."""
    texts = (text.split() for text in references.tolist())
    spoken = [" ".join(word for word in words if word != GAP) for words in texts]
    return pd.Series(spoken, references.index, dtype=object)


def compare_joined(
    table: pd.DataFrame, bootstrap: BootstrapOptions, seed: int
) -> Comparison | None:
    """Compare two systems on the same utterances.

    Args:
        table: of `Joined`, or rows of it.
        bootstrap: of the paired comparison.
        seed: of its draws.

    Returns:
        None where there is no word among them.
    """
    if not table["words"].sum():
        return None
    return paired_bootstrap(
        table["errors"].to_numpy(),
        table["errors_after"].to_numpy(),
        table["words"].to_numpy(),
        samples=bootstrap.samples,
        confidence=bootstrap.confidence,
        seed=seed,
        blocks=bootstrap.blocks(table["speaker"].tolist()),
    )


def compare_pairs(
    files: Mapping[Pair, tuple[Path, Path]], bootstrap: BootstrapOptions, seed: int
) -> dict[Pair, Comparison]:
    """Compare pairs of systems, with p corrected for the number of them (Holm).

    Args:
        files: `per_utterance.tsv` of the old and the new system of each pair.
        bootstrap: of the paired comparisons.
        seed: of their draws.

    Returns:
        The pairs whose files are there and have words.
    """
    found = {}
    for pair, (old, new) in files.items():
        if old.is_file() and new.is_file():
            each = compare_joined(join_scores(old, new).table, bootstrap, seed)
            if each is not None:
                found[pair] = each
    return corrected(found)


Key = TypeVar("Key")


def corrected(found: Mapping[Key, Comparison]) -> dict[Key, Comparison]:
    """Return comparisons with p corrected for the number of them (Holm)."""
    p_values = holm([each.p_value for each in found.values()])
    items = zip(found.items(), p_values, strict=True)
    return {key: replace(each, p_value=p) for (key, each), p in items}


def too_few_draws(num_comparisons: int, bootstrap: BootstrapOptions) -> Iterator[Note]:
    """Report where no difference can be significant, however large it is.

    The least p of a comparison is 2 / (draws + 1), and Holm's correction multiplies the
    least of all by the number of comparisons.
    """
    least = 2 * num_comparisons / (bootstrap.samples + 1)
    if least >= CHANCE:
        enough = math.ceil(2 * num_comparisons / CHANCE)
        yield Note(
            f"{bootstrap.samples} draws are too few for {num_comparisons} comparisons: "
            f"corrected for these, p is {min(1.0, least):.2f} or more, and no "
            f"difference can be significant. Draw {enough} or more "
            "(score.bootstrap.samples; --samples of latflow compare)."
        )


def turned(pair: Pair) -> Pair:
    """Return a pair with old and new exchanged."""
    old, new, name = pair
    return new, old, name
