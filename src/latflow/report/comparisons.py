"""Whether a system really is better than the one that it is built on.

Public: `comparisons`, `compare`, `Verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from latflow.report.inputs import Results
from latflow.report.page import Block, Column, Heading, Note, Table, text_column
from latflow.scoring.bootstrap import Comparison, paired_bootstrap
from latflow.scoring.results import blocks, count_arrays, read_utterance_scores

_CHANCE = 0.05

_HOW = (
    "A network trained on lattices is compared with the network that it started from, "
    "another network with the GMM system whose alignments it learnt, and a GMM system "
    "with the one before it. Both are judged on the same redrawn utterances (paired "
    "bootstrap). A negative change is an improvement; p is how often chance alone "
    "would undo or reverse it (two-sided)."
)


@dataclass(frozen=True)
class Verdict:
    """What became of the word error rate of a set from one system to another.

    Attributes:
        old: what is compared with.
        new: what is judged.
        found: difference, interval and p; per cent absolute.
    """

    old: str
    new: str
    found: Comparison

    @property
    def change(self) -> str:
        """The difference with its sign, per cent absolute."""
        return f"{self.found.difference:+.2f}"

    @property
    def interval(self) -> str:
        """Where the difference may lie, per cent absolute."""
        return f"{self.found.low:+.2f} to {self.found.high:+.2f}"

    @property
    def reading(self) -> str:
        """The outcome in words."""
        if self.found.p_value >= _CHANCE:
            return "could be chance"
        return "better" if self.found.difference < 0 else "worse"


def comparisons(results: Results) -> Sequence[Block]:
    """Paired comparison of each system with what it is built on."""
    rows = []
    for system in results.systems:
        for name in results.evaluation_sets:
            verdict = compare(results, system, name)
            if verdict is not None:
                rows.append([system, verdict.old, name, *_cells(verdict)])
    if not rows:
        return []
    columns = [
        text_column("system"),
        text_column("against"),
        text_column("set"),
        Column("change (absolute %)"),
        Column("interval (%)"),
        Column("better in (% of draws)"),
        Column("p"),
        text_column("reading"),
    ]
    return [
        Heading("Is the difference real?"),
        Note(_HOW),
        Table(columns, rows),
    ]


def compare(results: Results, system: str, name: str) -> Verdict | None:
    """Compare a system with its baseline (`Results.baseline_of`) on a set.

    Args:
        results: the experiment.
        system: what is judged.
        name: the set.

    Returns:
        None where there is no baseline, or either has no scores of any word.
    """
    old = results.baseline_of(system)
    if old is None:
        return None
    paths = [
        results.score_folder(which, name) / "per_utterance.tsv"
        for which in (old, system)
    ]
    if not all(path.is_file() for path in paths):
        return None
    before, after = (
        {score.utterance: score for score in read_utterance_scores(path)}
        for path in paths
    )
    shared = sorted(before.keys() & after.keys())
    bootstrap = results.config["score"]["bootstrap"]
    old_errors, words = count_arrays([before[utt] for utt in shared])
    new_errors, _ = count_arrays([after[utt] for utt in shared])
    if not words.sum():
        return None
    found = paired_bootstrap(
        old_errors,
        new_errors,
        words,
        samples=bootstrap["samples"],
        confidence=bootstrap["confidence"],
        seed=results.config["seed"],
        blocks=blocks([before[utt] for utt in shared], by=bootstrap["by"]),
    )
    return Verdict(old, system, found)


def _cells(verdict: Verdict) -> list[str]:
    """Cells of a comparison."""
    found = verdict.found
    return [
        verdict.change,
        verdict.interval,
        f"{100 * found.probability_of_improvement:.1f}",
        f"{found.p_value:.4f}" if found.p_value >= 0.001 else "< 0.001",
        verdict.reading,
    ]
