"""Tables of scores: by utterance, by speaker, by word pair, and of all sets.

pandas is imported where a table is made, Numba where words are compared: stages that
only write tables go without.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latflow.errors import UserError
from latflow.files import read_json, reading, write_text
from latflow.scoring.bootstrap import Interval, bootstrap_interval
from latflow.scoring.options import BootstrapOptions, ComparisonOptions
from latflow.text_files import read_lines

if TYPE_CHECKING:
    import pandas as pd

    from latflow.lattice.edit_distance import ErrorCounts

GAP = "***"  # stands where the other side has a word and this one has none
COUNTS = ["words", "ins", "del", "sub", "errors"]
COLUMNS = (
    *("system", "set", "wer", "ins", "del", "sub", "words", "sentences"),
    *("sentence_errors", "lmwt", "wip", "ci_low", "ci_high"),
)
_RATES = ("wer", "lmwt", "wip", "ci_low", "ci_high")  # of `COLUMNS`
_SIDES = ["reference", "hypothesis"]
_UTTERANCE_COLUMNS = ["utterance", "speaker", *COUNTS, "wer", *_SIDES]
_KINDS = ["sub", "del", "ins"]


def score_utterances(
    references: Mapping[str, Sequence[str]],
    hypotheses: Mapping[str, Sequence[str]],
    speakers: Mapping[str, str],
    *,
    options: ComparisonOptions,
) -> pd.DataFrame:
    """Compare every reference with its hypothesis.

    Args:
        references: words of each utterance.
        hypotheses: recognized words; a reference without one counts as all deleted.
        speakers: speaker of each reference.
        options: words that count, and costs of their alignment.

    Returns:
        A row an utterance, sorted by id: `utterance`, `speaker`, `COUNTS`, `wer` (per
        cent; NaN without words), and `reference` and `hypothesis`, aligned word by word
        and joined by spaces (`GAP`: no word).

    Raises:
        UserError: a hypothesis has no reference.
    """
    import pandas as pd

    from latflow.lattice.edit_distance import align_words

    unknown = sorted(hypotheses.keys() - references.keys())
    if unknown:
        raise UserError(
            f"{len(unknown)} recognized utterances have no reference",
            utterance=unknown[0],
            remedy="score with the cuts that were decoded",
        )
    rows = []
    for utterance in sorted(references):
        aligned = align_words(
            options.filter(references[utterance]),
            options.filter(hypotheses.get(utterance, ())),
            rule=options.alignment,
        )
        c = aligned.counts
        sides = zip(*((a or GAP, b or GAP) for a, b in aligned.pairs), strict=True)
        texts = [" ".join(side) for side in sides] or ["", ""]
        counts = (c.words, c.ins, c.del_, c.sub, c.errors, c.wer)
        rows.append([utterance, speakers[utterance], *counts, *texts])
    return pd.DataFrame(rows, columns=_UTTERANCE_COLUMNS)


def read_scores(path: str | Path) -> pd.DataFrame:
    """Read a `per_utterance.tsv` back, as `score_utterances` returns it.

    Raises:
        UserError: a line does not have its fields, its numbers are not those of one
            utterance, or its words are not aligned.
    """
    table = read_table(path)
    if list(table.columns) != _UTTERANCE_COLUMNS:
        raise UserError("not scores of utterances", file=path, remedy="score again")
    with reading(path, "not scores of utterances", "score again"):
        scores = table.astype({**dict.fromkeys(COUNTS, int), "wer": float})
        _check_scores(scores)
    return scores


def _check_scores(scores: pd.DataFrame) -> None:
    """Refuse scores that no utterances have.

    Raises:
        ValueError: of an utterance there are two, numbers do not add up, or its words
            are not aligned.
    """
    names = scores["utterance"]
    is_wrong = scores["errors"] != scores[["ins", "del", "sub"]].sum(axis=1)
    is_wrong |= (scores[COUNTS] < 0).any(axis=1) | names.duplicated()
    for name in names[is_wrong].head(1):
        raise ValueError(f"{name}: comes twice, or its errors do not add up")
    texts = (scores[side].tolist() for side in _SIDES)
    for name, *sides in zip(names, *texts, strict=True):
        words, heard = (side.split() for side in sides)
        if len(words) != len(heard):
            raise ValueError(f"{name}: words are not aligned")
        if GAP in words and (GAP, GAP) in zip(words, heard, strict=True):
            raise ValueError(f"{name}: nothing is aligned with nothing")


def totals(scores: pd.DataFrame) -> ErrorCounts:
    """Return the errors of all utterances together."""
    from latflow.lattice.edit_distance import ErrorCounts

    words, ins, deletions, sub, _ = scores[COUNTS].sum().astype(int)
    return ErrorCounts(ins, deletions, sub, words)


def by_speaker(scores: pd.DataFrame) -> pd.DataFrame:
    """Sum scores by speaker.

    Returns:
        A row a speaker, sorted: `speaker`, `sentences`, `sentence_errors` (with an
        error), `COUNTS`, `wer`.
    """
    marked = scores.assign(sentences=1, sentence_errors=scores["errors"] > 0)
    columns = ["sentences", "sentence_errors", *COUNTS]
    sums = marked.groupby("speaker")[columns].sum().astype(int).reset_index()
    return sums.assign(
        wer=100 * sums["errors"] / sums["words"].where(sums["words"] > 0)
    )


def confusions(scores: pd.DataFrame) -> pd.DataFrame:
    """Count the pairs of words that are errors.

    Returns:
        `kind` (`sub`, `del`, `ins`), `reference`, `hypothesis` (`GAP` for no word),
        `count`; the most frequent first within each kind.

    """
    import pandas as pd

    words = {side: scores[side].astype(str).str.split() for side in _SIDES}
    pairs = pd.DataFrame(words).explode(_SIDES).dropna()
    wrong = pairs[pairs["reference"] != pairs["hypothesis"]]
    gaps = [wrong["hypothesis"] == GAP, wrong["reference"] == GAP]
    kind = pd.Categorical(np.select(gaps, _KINDS[1:], _KINDS[0]), _KINDS, ordered=True)
    groups = wrong.assign(kind=kind).groupby(["kind", *_SIDES], observed=True)
    return (
        groups.size()
        .reset_index(name="count")
        .sort_values(["kind", "count", *_SIDES], ascending=[True, False, True, True])
    )


def interval(scores: pd.DataFrame, *, options: BootstrapOptions, seed: int) -> Interval:
    """Return the bootstrap interval of the word error rate of these utterances."""
    return bootstrap_interval(
        scores["errors"].to_numpy(),
        scores["words"].to_numpy(),
        samples=options.samples,
        confidence=options.confidence,
        seed=seed,
        blocks=options.blocks(scores["speaker"].tolist()),
    )


def summary(
    scores: pd.DataFrame, *, options: BootstrapOptions, seed: int
) -> dict[str, Any]:
    """Return the counts of all utterances together, as `wer.json` has them.

    Args:
        scores: of `score_utterances`.
        options: of the interval of the word error rate.
        seed: of its draws.
    """
    counts = totals(scores)
    bounds = interval(scores, options=options, seed=seed)
    has_words = counts.words > 0
    return {
        "wer": counts.wer if has_words else None,
        "ins": counts.ins,
        "del": counts.del_,
        "sub": counts.sub,
        "words": counts.words,
        "sentences": len(scores),
        "sentence_errors": int((scores["errors"] > 0).sum()),
        "speakers": scores["speaker"].nunique(),
        "confidence_interval": {
            "low": bounds.low if has_words else None,
            "high": bounds.high if has_words else None,
            **options.values(),
            "by": options.unit(scores["speaker"].tolist()),
        },
    }


def write_tables(folder: Path, scores: pd.DataFrame, max_confusions: int) -> None:
    """Write `per_utterance.tsv`, `per_speaker.tsv` and `confusions.tsv`.

    Args:
        folder: for the files.
        scores: of `score_utterances`.
        max_confusions: listed of each kind, the most frequent.
    """
    tables = {"per_utterance": scores, "per_speaker": by_speaker(scores)}
    for name, table in tables.items():
        write_table(folder / f"{name}.tsv", table, {"wer": 2}, missing="nan")
    kinds = confusions(scores).groupby("kind", observed=True)
    write_table(folder / "confusions.tsv", kinds.head(max_confusions))


def is_far_worse(rate: float, before: float) -> bool:
    """Return whether a word error rate asks for a warning beside an earlier one.

    A tenth and 1 % (absolute) more are beyond what beams and small sets explain.

    Args:
        rate: in per cent.
        before: likewise, of what was to be improved.
    """
    return rate > 1.1 * before + 1.0


def summarize_wer(scores: Sequence[Path], table: Path) -> None:
    """Collect the word error rates of all systems and sets into one table.

    Args:
        scores: `wer.json` of each system and set, in the order wanted; their folders
            are `<system>/<set>`.
        table: file to write, with the columns `COLUMNS`; rates and bounds in per cent.

    Raises:
        UserError: a `wer.json` is not there.
    """
    _write_texts(table, [[*COLUMNS], *_rates(scores)])


def _rates(scores: Iterable[Path]) -> list[list[str]]:
    """Return the lines of `summarize_wer`."""
    rows = []
    for path in scores:
        if not path.is_file():
            raise UserError(
                "no such file", file=path, remedy="run the target score first"
            )
        names = {"system": path.parent.parent.name, "set": path.parent.name}
        rows.append(read_json(path, partial(_row, names), "a score", "score again"))
    decimals = {"wer": 2, "ci_low": 2, "ci_high": 2}
    return _texts(COLUMNS, rows, decimals, missing="nan")


def _row(names: Mapping[str, str], result: Mapping[str, Any]) -> list[Any]:
    """Return the cells of a system and a set in the table of all."""
    bounds = result["confidence_interval"]
    known = {**result, "ci_low": bounds["low"], "ci_high": bounds["high"]}
    numbers = {name: known[name] for name in COLUMNS if name not in names}
    for number in numbers.values():
        if number is not None and type(number) not in (int, float):
            raise TypeError(f"{number!r} is not a number")
    return [{**numbers, **names}[column] for column in COLUMNS]


def read_rates(
    results: Path, scores: Iterable[Path] | None = None
) -> pd.DataFrame | None:
    """Read the word error rates of an experiment, before it has ended those so far.

    Args:
        results: folder of the experiment.
        scores: `wer.json` of each system and set, where there is no `wer.tsv` yet, in
            the order wanted; None for all that are there, in the order in which they
            were made.

    Returns:
        The table of `summarize_wer`, cells as text; None where nothing is scored.

    Raises:
        UserError: a file is no such table, or no scores.
    """
    file = results / "wer.tsv"
    if file.is_file():
        table = read_table(file)
        with reading(file, "no word error rates", "remove it, and score again"):
            _check_rates(table)
        return table
    if scores is None:
        there = results.glob("score/*/*/wer.json")
        scores = sorted(there, key=lambda path: path.stat().st_mtime_ns)
    found = [path for path in scores if path.is_file()]
    if not found:
        return None
    import pandas as pd

    return pd.DataFrame(_rates(found), columns=list(COLUMNS), dtype=str)


def _check_rates(table: pd.DataFrame) -> None:
    """Refuse a table that is not of `summarize_wer`.

    Raises:
        ValueError, LookupError, ArithmeticError: it is not.
    """
    if np.isinf(table[list(_RATES)].to_numpy(np.float64)).any():
        raise ValueError("a rate is infinite")
    counts = table[[c for c in COLUMNS[2:] if c not in _RATES]].astype(int)
    if (counts < 0).to_numpy().any():
        raise ValueError("a count below 0")
    if table[["system", "set"]].duplicated().any():
        raise ValueError("a system and set come twice")


def format_rates(table: pd.DataFrame) -> str:
    """Lay out word error rates for a terminal: lines, without a newline at the end."""
    table = table.copy()
    bounds = table.pop("ci_low") + " - " + table.pop("ci_high")
    table = table.assign(interval=bounds).rename(
        columns={"wer": "WER %", "sentence_errors": "wrong"}
    )
    cells = [list(table.columns), *table.to_numpy().tolist()]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    names, numbers = widths[:2], widths[2:]
    form = "  ".join([*(f"{{:{n}}}" for n in names), *(f"{{:>{n}}}" for n in numbers)])
    return "\n".join(form.format(*row).rstrip() for row in cells)


def read_table(path: str | Path) -> pd.DataFrame:
    """Read a tab-separated table with a heading line, all cells as text.

    Raises:
        UserError: a line has more or fewer fields than the heading, or a column comes
            twice.
    """
    import pandas as pd

    # pandas' reader fills short lines up in silence.
    lines = [line.split("\t") for _, line in read_lines(path)] or [[]]
    for number, cells in enumerate(lines, start=1):
        if len(cells) != len(lines[0]):
            raise UserError(
                f"line {number} has {len(cells)} fields, not {len(lines[0])}",
                file=path,
                remedy="remove the file and run again",
            )
    if len(set(lines[0])) < len(lines[0]):
        remedy = "remove the file and run again"
        raise UserError("a column comes twice", file=path, remedy=remedy)
    return pd.DataFrame(lines[1:], columns=lines[0], dtype=str)


def write_table(
    path: str | Path,
    table: pd.DataFrame,
    decimals: Mapping[str, int] | None = None,
    *,
    missing: str = "",
) -> None:
    """Write a tab-separated table with a heading line, atomically.

    Args:
        path: file to write.
        table: its columns and rows; no cell may hold a tab or a newline.
        decimals: digits behind the point, of columns that are rounded.
        missing: text of NaN and None.
    """
    rows = table.itertuples(index=False, name=None)
    write_rows(path, table.columns.tolist(), rows, decimals, missing=missing)


def write_rows(
    path: str | Path,
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    decimals: Mapping[str, int] | None = None,
    *,
    missing: str = "",
) -> None:
    """Write what `write_table` does, from rows of cells.

    Args:
        path: file to write.
        columns: heading.
        rows: a cell for each column, as text or number.
        decimals: digits behind the point, of columns that are rounded.
        missing: text of NaN and None.
    """
    texts = _texts(columns, rows, decimals or {}, missing=missing)
    _write_texts(path, [columns, *texts])


def _texts(
    columns: Sequence[str],
    rows: Iterable[Sequence[Any]],
    decimals: Mapping[str, int],
    *,
    missing: str,
) -> list[list[str]]:
    """Return the cells of rows as text; see `write_rows`."""
    digits = [decimals.get(name) for name in columns]

    def text(cell: Any, places: int | None) -> str:
        if cell is None or cell != cell:  # noqa: PLR0124 - NaN
            return missing
        return str(cell) if places is None else f"{cell:.{places}f}"

    return [[*map(text, row, digits)] for row in rows]


def _write_texts(path: str | Path, lines: Iterable[Sequence[str]]) -> None:
    write_text(path, "".join("\t".join(line) + "\n" for line in lines))
