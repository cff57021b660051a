"""A table of utterances: CSV, TSV or JSONL with columns of paths and of transcripts.

Public: `list_table`.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from latflow.corpus.listing import AudioFile, Fault, Listing, Part, file_id, tidy_text
from latflow.corpus.options import TableSource
from latflow.errors import UserError
from latflow.files import read_lines

# Names that exports give the columns, the first one that is there counts.
_PATHS = ("path", "audio", "file_name", "file", "audio_path")
_TEXTS = ("text", "sentence", "transcription", "transcript")
_SPEAKERS = ("speaker", "speaker_id", "client_id")

Row = Mapping[str, Any]


def list_table(source: TableSource, listing: Listing) -> None:
    """List the audio files of a table and their utterances.

    Raises:
        UserError: the table is missing or malformed, a column is missing, or an audio
            file stands in two lines; names the line.
    """
    table = Path(source.path)
    folder = Path(os.path.abspath(source.audio or table.parent))
    columns: tuple[str, str, str | None] | None = None
    for number, row in _rows(table):
        columns = columns or _columns(source, row)
        path_column, text_column, speaker_column = columns
        path = _path(row.get(path_column), table, number)
        text = row.get(text_column, "") if text_column else ""
        speaker = row.get(speaker_column) if speaker_column else None
        audio = Path(os.path.normpath(folder / path))
        inside = audio.relative_to(folder) if audio.is_relative_to(folder) else audio
        name = file_id(Path(*(part for part in inside.parts if part != "/")))
        where = f"{table} line {number}"
        if not audio.is_file():
            fault = Fault(
                name,
                f"audio file does not exist (line {number}: {audio})",
                str(table),
                "restore the file, remove the line, set the folder of the audio",
            )
            listing.faults.append(fault)
            continue
        listing.files.add(AudioFile(name, str(audio)), file=where)
        for name_of, value in ((text_column, text), (speaker_column, speaker)):
            if isinstance(value, list | dict):
                raise UserError(
                    f"line {number}: column {name_of} holds {value!r}, not a text",
                    file=table,
                    remedy="write one text a line, or name another column",
                )
        spoken = tidy_text(str(text or ""), source) if source.transcripts else ""
        known = None if speaker is None else "_".join(str(speaker).split()) or None
        listing.parts.add(Part(name, name, spoken, known, where), file=where)
    if columns is None:
        raise UserError("the table is empty", file=table, remedy="check the path")


def _rows(table: Path) -> Iterator[tuple[int, Row]]:
    """Yield (line number, values by column)."""
    suffix = Path(table.name.removesuffix(".gz")).suffix
    if suffix in {".jsonl", ".json"}:
        return _json_rows(table)
    if suffix == ".csv":
        return _separated_rows(table, ",", has_quotes=True)
    if suffix in {".tsv", ".tab"}:
        # Exports of Common Voice hold quotation marks as they are.
        return _separated_rows(table, "\t", has_quotes=False)
    raise UserError(
        f"a table of unknown kind {suffix or '(no suffix)'}",
        file=table,
        remedy="name it .csv, .tsv or .jsonl, after what it is",
    )


def _separated_rows(
    table: Path, delimiter: str, *, has_quotes: bool
) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a CSV or TSV file."""
    lines = (line.removeprefix("\ufeff") + "\n" for _, line in read_lines(table))
    quoting = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    try:
        header = next(reader, None)
        for row in reader:
            if not row:
                continue
            if header is None or len(row) != len(header):
                raise UserError(
                    f"line {reader.line_num} has {len(row)} columns, the first line "
                    f"names {len(header or ())}",
                    file=table,
                    remedy="mend the line; a separator within a value needs quotes",
                )
            yield reader.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise UserError(
            f"line {reader.line_num} is malformed ({error})",
            file=table,
            remedy="mend the line",
        ) from None


def _json_rows(table: Path) -> Iterator[tuple[int, Row]]:
    """Yield the rows of a file with a JSON object a line."""
    for number, line in read_lines(table):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (RecursionError, ValueError):
            row = None
        if not isinstance(row, dict):
            raise UserError(
                f"line {number} is no JSON object",
                file=table,
                remedy="write one object a line, e.g. with Dataset.to_json",
            )
        yield number, row


def _columns(source: TableSource, row: Row) -> tuple[str, str, str | None]:
    """Return the columns of paths, transcripts ("" without) and speakers."""
    path = _column(source, row, "path_column", _PATHS)
    text = _column(source, row, "text_column", _TEXTS) if source.transcripts else ""
    speaker = None
    if source.speaker == "given":
        speaker = _column(source, row, "speaker_column", _SPEAKERS)
    return path, text, speaker


def _column(source: TableSource, row: Row, option: str, names: tuple[str, ...]) -> str:
    """Return the column that an option names, or the first of the usual ones."""
    named: str | None = getattr(source, option)
    found = next((name for name in ([named] if named else names) if name in row), None)
    if found is None:
        sought = named or " or ".join(names)
        hint = ""
        if option == "speaker_column":
            hint = ", or speaker to utterance (each utterance its own) or single"
        raise UserError(
            f"no column {sought}; it has: {', '.join(map(str, row))}",
            file=source.path,
            remedy=f"set {option}{hint}",
        )
    return found


def _path(value: Any, table: Path, number: int) -> str:
    """Return the path of an audio file; Hugging Face has it in an object."""
    if isinstance(value, Mapping):
        value = value.get("path")
    if not isinstance(value, str) or not value:
        raise UserError(
            f"line {number} names no audio file",
            file=table,
            remedy="give its path; audio within the table is not read: save it as "
            "files",
        )
    return value
