"""The table of word error rates of an experiment: `wer.tsv`, and its text form.

Public: `COLUMNS`, `read_wer`, `read_summary`, `format_table`, `percent`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from latflow.errors import UserError
from latflow.files import read_lines

COLUMNS = (
    "system",
    "set",
    "wer",
    "ins",
    "del",
    "sub",
    "words",
    "sentences",
    "sentence_errors",
    "lmwt",
    "wip",
    "ci_low",
    "ci_high",
)


def read_wer(folder: str | Path) -> dict[str, Any]:
    """Read the `wer.json` of a folder that `score` wrote.

    Raises:
        UserError: there is none.
    """
    path = Path(folder) / "wer.json"
    if not path.is_file():
        raise UserError("no such file", file=path, remedy="run the target score first")
    return json.loads(path.read_text(encoding="utf-8"))


def read_summary(path: str | Path) -> list[dict[str, str]]:
    """Read a `wer.tsv`: one mapping from column to text a row."""
    lines = [line.split("\t") for _, line in read_lines(path)]
    return [dict(zip(lines[0], row, strict=True)) for row in lines[1:]]


def format_table(path: str | Path) -> str:
    """Lay out a `wer.tsv` for a terminal.

    Returns:
        Lines joined by newlines, without one at the end; the last column holds the
        confidence interval.
    """
    heading = ["system", "set", "WER %", "ins", "del", "sub", "words", "sentences"]
    heading += ["wrong", "lmwt", "wip", "interval"]
    table = [heading]
    for row in read_summary(path):
        cells = [row[column] for column in COLUMNS[:-2]]
        table.append([*cells, f"{row['ci_low']} - {row['ci_high']}"])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    rule = "  ".join("-" * width for width in widths)
    lines = [_lay_out(row, widths) for row in table]
    return "\n".join([lines[0], rule, *lines[1:]])


def _lay_out(row: Sequence[str], widths: Sequence[int]) -> str:
    """One line: names to the left, numbers to the right."""
    cells = [
        cell.ljust(width) if i < 2 else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def percent(value: float | None) -> str:
    """A rate with two decimals; `nan` where there was no word to count."""
    return "nan" if value is None or math.isnan(value) else f"{value:.2f}"
