"""Slices of a test set: word errors by what utterances are like, also `slices.tsv`.

An utterance has a duration, a speaking rate, perhaps words that the lexicon lacks, and
whatever the manifest says of it or its speaker (gender, language, custom fields such as
`snr_db` or `spk2age`), or the simulation that made it. Numbers are cut at quantiles
into slices of about as many utterances; other columns have a slice for each value, the
last for each speaker.

Only these values are held in memory, none of the audio or features.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from latflow.report.choice import chosen_on_dev
from latflow.report.figures import slice_rates
from latflow.report.inputs import Results, read_manifest
from latflow.report.page import (
    Figure,
    Heading,
    Note,
    Row,
    Section,
    Table,
    missing,
    rows_of,
)
from latflow.report.significance import (
    bounds_text,
    compare_joined,
    join_scores,
    p_text,
    reading,
    too_few_draws,
)
from latflow.scoring.bootstrap import holm
from latflow.scoring.results import interval, read_scores, totals
from latflow.simulation.records import Record, read_records

COLUMNS = (
    *("set", "system", "baseline", "column", "slice", "utterances", "words", "wer"),
    *("ci_low", "ci_high", "drawn", "baseline_wer", "change", "change_low"),
    *("change_high", "p"),
)
DECIMALS = dict.fromkeys(
    ("wer", "ci_low", "ci_high", "baseline_wer", "change", "change_low", "change_high"),
    2,
) | {"p": 4}
_NUM_BINS = 4
_FEW_VALUES = 6  # so many distinct numbers or fewer are slices themselves
_MOST_VALUES = 12  # further ones, the rarest, are one slice
_MOST_SPEAKERS = 40
_FEWEST = 5  # utterances of a slice that is compared
_OTHERS, _UNKNOWN = "other values", "not given"


def slices_section(results: Results, table: pd.DataFrame) -> Section:
    """Show a table of slices, for the set that the report looks at closely.

    Args:
        results: the experiment.
        table: of `slices_of`.
    """
    name = results.shown_set
    lead = (
        "Word error rates of parts of a test set, by what its utterances are like: "
        "where a system is weak, and whether it is better everywhere. Numbers are cut "
        "at quantiles into slices of about as many utterances."
    )
    section = Section("slices", "Slices of the test set", lead)
    shown = table[table["set"] == name]
    if shown.empty:
        is_scored = any(each == name for _, each in results.rates)
        few = Note(f"{name} has fewer than {2 * _FEWEST} utterances with words.")
        section.blocks.append(
            few if is_scored else missing(f"slices of {name}", "score")
        )
        return section
    first = shown.iloc[0]
    system, baseline = first["system"], first["baseline"]
    against = f", beside {baseline}" if baseline else ""
    chosen = ", which dev chose" if (system, "dev") in results.rates else ""
    section.blocks.append(Note(f"System {system}{chosen}{against}; {name}."))
    num_compared = int(shown["p"].notna().sum())
    section.blocks += too_few_draws(num_compared, results.options.score.bootstrap)
    corrected = "; p is corrected for the number of slices (Holm)" if baseline else ""
    for column, own in shown.groupby("column", sort=False):
        rows = rows_of(own)
        rates = {
            row["slice"]: (row["wer"], row["ci_low"], row["ci_high"]) for row in rows
        }
        before = own["baseline_wer"].tolist() if baseline else None
        section.blocks += [
            Heading(f"By {column}"),
            Figure(
                slice_rates(rates, (system, baseline), before),
                f"Word error rate by {column}; lines are the intervals of {system}.",
            ),
            Table(
                [_row(row) for row in rows],
                {"slice", "drawn", "reading"},
                f"Intervals from redrawn utterances or speakers, as above{corrected}.",
            ),
        ]
    others = [each for each in table["set"].unique() if each != name]
    if others:
        section.blocks.append(
            Note(f"The file slices.tsv has {', '.join(others)}, too.")
        )
    return section


def _row(row: Mapping[str, Any]) -> Row:
    """Return a row of `slices_of` as the page shows it."""
    shown: dict[str, str | int] = {
        "slice": row["slice"],
        "utterances": row["utterances"],
        "words": row["words"],
        "WER (%)": f"{row['wer']:.2f}",
        "interval (%)": f"{row['ci_low']:.2f} – {row['ci_high']:.2f}",
        "drawn": row["drawn"],
    }
    if row["baseline"]:
        shown |= {
            "baseline WER (%)": f"{row['baseline_wer']:.2f}",
            "change (absolute %)": f"{row['change']:+.2f}",
            "reading": f"fewer than {_FEWEST} utterances",
        }
        if not math.isnan(row["p"]):
            bounds = row["change_low"], row["change_high"]
            shown |= {
                "its interval": bounds_text(*bounds),
                "p": p_text(row["p"]),
                "reading": reading(row["change"], row["p"], bounds),
            }
    return shown


def slices_of(results: Results) -> pd.DataFrame:
    """Score the slices of each test set, of the system that dev chose.

    Args:
        results: the experiment.

    Returns:
        A row a slice that has words, with `COLUMNS`: rates, bounds and changes in per
        cent; `drawn`, what the intervals were drawn by; p of the change from the
        baseline, corrected within the set (Holm). No rows where nothing is scored.
    """
    rows = []
    for name in results.recipe.test_sets or ["dev"]:
        system = chosen_on_dev(results.rates, name)
        cuts = results / f"corpus/{name}/cuts.jsonl.gz"
        if system is None or not cuts.is_file():
            continue
        found = list(_slices_of_set(results, system, name, cuts))
        compared = [row for row in found if not math.isnan(row["p"])]
        corrected = holm([row["p"] for row in compared])
        for row, p in zip(compared, corrected, strict=True):
            row["p"] = p
        rows += found
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _slices_of_set(
    results: Results, system: str, name: str, cuts: Path
) -> Iterator[dict[str, Any]]:
    """Yield the slices of a set, p not corrected yet."""
    path = results.scores_of(system, name)
    if not path.is_file():
        return
    scores = read_scores(path).set_index("utterance")
    if len(scores) < 2 * _FEWEST:
        return
    baseline = results.baseline_of(system)
    old = results.scores_of(baseline, name) if baseline else None
    joined = join_scores(old, path).table if old and old.is_file() else None
    known = attributes(cuts, results.vocabulary).reindex(scores.index)
    for key, simulated in _simulated(cuts.with_name("records.jsonl")).items():
        known[key] = pd.Series(simulated).reindex(scores.index)
    labels_of = {column: slice_labels(known[column]) for column in known}
    labels_of["speaker"] = _speaker_labels(scores["speaker"])
    for column, labels in labels_of.items():
        for label in labels.cat.categories if labels is not None else ():
            inside = scores.index[labels == label]
            row = _scored(results, scores.loc[inside])
            if row is None:
                continue
            names = {"set": name, "system": system, "baseline": ""}
            row = {**names, "column": column, "slice": label, **row}
            if joined is not None:
                row |= _change(results, joined.loc[joined.index.isin(inside)])
                row["baseline"] = baseline
            yield row


def _scored(results: Results, scores: pd.DataFrame) -> dict[str, Any] | None:
    """Return rate and interval of some utterances; None where they have no words."""
    counts = totals(scores)
    if not counts.words:
        return None
    options = results.options
    bootstrap = options.score.bootstrap
    bounds = interval(scores, options=bootstrap, seed=options.seed)
    nothing = dict.fromkeys(("change", "change_low", "change_high", "p"), math.nan)
    return {
        "utterances": len(scores),
        "words": counts.words,
        "wer": counts.wer,
        "ci_low": bounds.low,
        "ci_high": bounds.high,
        "drawn": f"{bootstrap.unit(scores['speaker'].tolist())}s",
        "baseline_wer": math.nan,
        **nothing,
    }


def _change(results: Results, joined: pd.DataFrame) -> dict[str, float]:
    """Return the change from the baseline on some utterances; nothing without words."""
    options = results.options
    found = compare_joined(joined, options.score.bootstrap, options.seed)
    if found is None:
        return {}
    before = {"baseline_wer": 100 * joined["errors"].sum() / joined["words"].sum()}
    if len(joined) < _FEWEST:  # drawn again they are nearly the same again
        return {**before, "change": found.difference}
    return {
        **before,
        "change": found.difference,
        "change_low": found.low,
        "change_high": found.high,
        "p": found.p_value,
    }


def attributes(cuts: Path, vocabulary: frozenset[str] | None) -> pd.DataFrame:
    """Read what a manifest says of its utterances.

    Args:
        cuts: `cuts.jsonl.gz` with one supervision a cut.
        vocabulary: words of the lexicon; None where it is not known.

    Returns:
        A row an utterance by its id; a column each of duration, speaking rate, words
        out of the lexicon, and every single value (no lists or arrays) that the
        supervision or the cut has beside text, times and speaker.
    """
    rows = {}
    for cut in read_manifest(cuts):
        supervision = (cut.get("supervisions") or [{}])[0]
        words = (supervision.get("text") or "").split()
        row: dict[str, Any] = {"duration (s)": cut["duration"]}
        if cut["duration"] > 0:
            row["speaking rate (words/s)"] = len(words) / cut["duration"]
        if vocabulary is not None:
            unknown = any(word not in vocabulary for word in words)
            row["words out of the lexicon"] = "some" if unknown else "none"
        fields = {key: supervision.get(key) for key in ("gender", "language")}
        custom = (cut.get("custom") or {}) | (supervision.get("custom") or {})
        fields |= {key: custom[key] for key in sorted(custom)}
        rows[cut["id"]] = row | {
            key: value
            for key, value in fields.items()
            if isinstance(value, str | int | float)
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _simulated(path: Path) -> dict[str, dict[str, float]]:
    """Return column -> utterance -> what the simulation of a set drew, if it is one."""
    found: dict[str, dict[str, float]] = {}
    for record in read_records(path) if path.is_file() else ():
        for key, value in _drawn(record).items():
            found.setdefault(key, {})[record.utterance] = value
    return found


def _drawn(record: Record) -> dict[str, float]:
    """Return what was drawn for an utterance, by the titles of columns."""
    found = {}
    if record.noises:
        power = sum(10 ** (-noise.snr / 10) for noise in record.noises)
        found["SNR of the simulation (dB)"] = -10 * math.log10(power)
    if record.speakers:
        least = min(speaker.sir for speaker in record.speakers)
        found["level over another speaker (dB)"] = least
    if record.room is not None:
        found["reverberation time (s)"] = record.room.t60
    return found


def slice_labels(values: pd.Series) -> pd.Series | None:
    """Sort the values of a column into slices.

    Args:
        values: of each utterance; NaN or None where it is not known.

    Returns:
        Categories by their labels, in order, on the same index. Numbers, also those
        written as text, have `_NUM_BINS` slices between quantiles or, where they are
        few, one each; of other values the rarest are one slice. None where the column
        says nothing: one value for all, or text that names nearly each utterance.
    """
    known = values.dropna()
    is_bool = known.map(lambda value: isinstance(value, bool)).any()
    numbers = pd.to_numeric(known.astype(str) if is_bool else known, errors="coerce")
    if len(known) and np.isfinite(numbers.astype(float)).all():
        names, order = _bins(numbers.astype(float))
    else:
        names, order = _values(known.astype(str), _MOST_VALUES)
    if len(order) < 2 and not (order and len(known) < len(values)):
        return None
    if len(known) < len(values):
        order = [*order, _UNKNOWN]
    labels = names.reindex(values.index).fillna(_UNKNOWN)
    return labels.astype(pd.CategoricalDtype(order, ordered=True))


def _speaker_labels(speakers: pd.Series) -> pd.Series | None:
    """Return categories of speakers; None of one alone, or of one an utterance."""
    names, order = _values(speakers.astype(str), _MOST_SPEAKERS)
    if len(order) < 2:
        return None
    return names.astype(pd.CategoricalDtype(order, ordered=True))


def _bins(numbers: pd.Series) -> tuple[pd.Series, list[str]]:
    """Return the slice of each number, and the slices in their order."""
    distinct = np.unique(numbers)
    if len(distinct) <= _FEW_VALUES:
        member = np.searchsorted(distinct, numbers)
    else:
        shares = np.arange(1, _NUM_BINS) / _NUM_BINS
        edges = np.unique(np.quantile(numbers, shares))
        member = np.searchsorted(edges, numbers, side="left")
    groups = numbers.groupby(member)
    titles = {
        key: f"{own.min():.4g}"
        if own.min() == own.max()
        else f"{own.min():.4g} to {own.max():.4g}"
        for key, own in groups
    }
    names = pd.Series([titles[key] for key in member], index=numbers.index)
    return names, list(dict.fromkeys(titles.values()))


def _values(texts: pd.Series, most: int) -> tuple[pd.Series, list[str]]:
    """Return the slice of each value, and the slices (`most`) in their order."""
    counts = texts.value_counts()
    if len(counts) > max(_MOST_VALUES, len(texts) / 2):
        return texts, []
    kept = sorted(counts.index, key=lambda value: (-counts[value], value))
    if len(kept) > most:
        kept = kept[: most - 1]
        return texts.where(texts.isin(kept), _OTHERS), [*sorted(kept), _OTHERS]
    return texts, sorted(kept)
