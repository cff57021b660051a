"""A table of utterances: CSV, TSV or JSONL with columns of paths and of transcripts."""

from __future__ import annotations

import csv
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from latflow.corpus.folder_files import AUDIO_SUFFIXES
from latflow.corpus.listing import Fault, Listing, Part, file_id
from latflow.corpus.options import TableSource
from latflow.errors import UserError
from latflow.text_files import read_lines

# Names that exports give the columns, the first one that is there counts.
PATHS = ("path", "audio", "file_name", "file", "audio_path", "audio_filepath")
PATHS += ("audio_file", "filename", "wav_filename", "wav", "wav_path")
TEXTS = ("text", "sentence", "transcription", "transcript", "wrd")
_SPEAKERS = ("speaker", "speaker_id", "client_id", "spk_id")
# Columns of parts of audio, as NeMo has them, which are not read.
_STARTS = ("offset", "start", "start_time", "begin", "begin_time")
_FIRST = 20  # rows that are looked at to see whether a table lists audio that is here
_EXCEL = re.compile(r"sep=(.)", re.IGNORECASE)

Row = Mapping[str, Any]


def list_table(source: TableSource, listing: Listing) -> None:
    """List the audio files of a table and their utterances.

    Raises:
        UserError: the table is missing, empty or malformed, or a column is missing.
            What is wrong with a row alone is a fault of the listing.
    """
    table = Path(source.path)
    folder = Path(os.path.abspath(source.audio or table.parent))
    columns: tuple[str, str, str | None] | None = None
    for number, row in table_rows(table):
        try:
            if isinstance(row, UserError):
                raise row
            columns = columns or _columns(source, row)
            _list_row(source, listing, folder, row, columns, number)
        except UserError as error:
            what = f"{error.what} (line {number})"
            if columns is None:
                raise UserError(what, file=table, remedy=error.remedy) from None
            name = error.utterance or f"line-{number}"
            remedy = error.remedy or "fix the line"
            listing.faults.append(Fault(name, what, str(table), remedy))
    if columns is None:
        what = "the table is empty, or has no line below its titles"
        raise UserError(what, file=table, remedy="check the path")


def find_audio(table: Path, folders: Iterable[Path]) -> tuple[Path, bool] | None:
    """Find the audio that a table lists, by its first rows.

    Args:
        folders: that its paths may be relative to.

    Returns:
        (the first folder in which one of them is a file, whether a column has
        speakers); None if there is none, or no table of utterances.
    """
    source = TableSource(path=str(table), speaker="utterance")
    first = [
        row for _, row in islice(table_rows(table), _FIRST) if isinstance(row, Mapping)
    ]
    try:
        path_column = _columns(source, first[0])[0] if first else ""
        paths = [_path(row.get(path_column)) for row in first]
    except UserError:
        return None
    titles = {str(title).strip().lower() for row in first[:1] for title in row}
    for folder in folders:
        if any(_existing(os.path.join(folder, path)).is_file() for path in paths):
            return folder, not titles.isdisjoint(_SPEAKERS)
    return None


def _list_row(
    source: TableSource,
    listing: Listing,
    folder: Path,
    row: Row,
    columns: tuple[str, str, str | None],
    number: int,
) -> None:
    """List the utterance of a row.

    Raises:
        UserError: it has no audio file, one that another row has, or no text.
    """
    path_column, text_column, speaker_column = columns
    path = _path(row.get(path_column))
    _refuse_parts(row)
    text = row.get(text_column, "") if text_column else ""
    speaker = row.get(speaker_column) if speaker_column else None
    audio = _existing(os.path.normpath(folder / path))
    inside = audio.relative_to(folder) if audio.is_relative_to(folder) else audio
    inside = Path(*(part for part in inside.parts if part != "/"))
    name = file_id(inside)
    if not audio.is_file():
        raise UserError(
            f"audio file does not exist: {audio}",
            utterance=name,
            remedy="restore the file, remove the line, set the folder of the audio",
        )
    for name_of, value in ((text_column, text), (speaker_column, speaker)):
        if isinstance(value, list | dict):
            raise UserError(
                f"column {name_of} holds a {type(value).__name__}, not a text",
                utterance=name,
                remedy="write one text a line, or name another column",
            )
    if listing.has_file(inside):
        raise UserError(
            f"another line has this audio file: {audio}",
            utterance=name,
            remedy="remove one of the lines",
        )
    recording_id = listing.add_file(audio, inside)
    spoken = str(text or "") if source.transcripts else ""
    known = None if speaker is None else str(speaker).strip() or None
    where = f"{source.path} line {number}"
    listing.parts.add(Part(recording_id, recording_id, spoken, known, where))


def _refuse_parts(row: Row) -> None:
    """Refuse a row whose utterance begins within its audio file."""
    for title, value in row.items():
        if str(title).strip().lower() not in _STARTS or not value:
            continue
        with suppress(TypeError, ValueError):
            if float(value) > 0:
                raise UserError(
                    f"begins at {title} {value}; tables are of whole audio files",
                    remedy="cut the audio, or make a Kaldi directory with segments",
                )


def _existing(path: str) -> Path:
    """Return a path as its file has it, if there is one: normal form, and suffix."""
    # Some systems write names with decomposed letters (NFD), tables seldom. Some
    # tables have names without suffix.
    forms = (path, *(unicodedata.normalize(form, path) for form in ("NFC", "NFD")))
    names = [*forms, *(f"{path}.{s}" for s in AUDIO_SUFFIXES)]
    return Path(next(filter(os.path.isfile, names), path))


def table_rows(table: Path) -> Iterator[tuple[int, Row | UserError]]:
    """Yield (line number, values by column, or what is wrong with the line)."""
    suffix = Path(table.name.removesuffix(".gz")).suffix
    if suffix in {".jsonl", ".json"}:
        return _json_rows(table)
    if suffix == ".csv":
        mark = _delimiter(table)
        return _separated_rows(table, mark, has_quotes=mark != "|")  # as in LJ Speech
    if suffix in {".tsv", ".tab"}:
        # Exports of Common Voice hold quotation marks as they are.
        return _separated_rows(table, "\t", has_quotes=False)
    raise UserError(
        f"a table of unknown kind {suffix or '(no suffix)'}",
        file=table,
        remedy="name it .csv, .tsv or .jsonl, after what it is",
    )


def _delimiter(table: Path) -> str:
    """Return what parts the titles of a CSV file: `;` where the comma is decimal."""
    _, titles = next(read_lines(table), (0, ""))
    stated = _EXCEL.fullmatch(titles)
    return stated[1] if stated else max(",;\t|", key=titles.count)


def _separated_rows(
    table: Path, delimiter: str, *, has_quotes: bool
) -> Iterator[tuple[int, Row | UserError]]:
    """Yield the rows of a CSV or TSV file."""
    lines = (
        line + "\n"
        for number, line in read_lines(table)
        if number > 1 or not _EXCEL.fullmatch(line)
    )
    quoting = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    reader = csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True)
    try:
        header = next(reader, [])
        for title in header:
            if title and header.count(title) > 1:
                what, remedy = f"two columns are called {title}", "rename one of them"
                raise UserError(what, file=table, remedy=remedy)
        for row in reader:
            if not row:
                continue
            if len(row) == len(header):
                yield reader.line_num, dict(zip(header, row, strict=True))
                continue
            fault = UserError(
                f"{len(row)} columns, the first line names {len(header)}",
                file=table,
                remedy="fix the line; a separator within a value needs quotes",
            )
            yield reader.line_num, fault
    except csv.Error as error:
        raise UserError(
            f"line {reader.line_num} is malformed ({error})",
            file=table,
            remedy="fix the line",
        ) from None


def _json_rows(table: Path) -> Iterator[tuple[int, Row | UserError]]:
    """Yield the rows of a file with a JSON object a line."""
    for number, line in read_lines(table):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (RecursionError, ValueError):
            row = None
        if isinstance(row, dict):
            yield number, row
            continue
        yield (
            number,
            UserError(
                "no JSON object",
                file=table,
                remedy="write one object a line, e.g. with Dataset.to_json",
            ),
        )


def _columns(source: TableSource, row: Row) -> tuple[str, str, str | None]:
    """Return the columns of paths, transcripts ("" without) and speakers."""
    path = _column(source, row, "path_column", PATHS)
    text = _column(source, row, "text_column", TEXTS) if source.transcripts else ""
    speaker = None
    if source.speaker == "given":
        speaker = _column(source, row, "speaker_column", _SPEAKERS)
    return path, text, speaker


def _column(source: TableSource, row: Row, option: str, names: tuple[str, ...]) -> str:
    """Return the column that an option names, or the first of the usual ones."""
    named: str | None = getattr(source, option)
    titles = {str(title).strip().lower(): title for title in reversed([*row])}
    usual = (titles[name] for name in names if name in titles)
    found = next(usual, None) if named is None else named if named in row else None
    if found is None:
        sought = named or " or ".join(names)
        hint = ", if the first line has titles; else write some, e.g. path, text"
        if option == "speaker_column":
            hint = ", or speaker to utterance (each utterance its own) or single"
        raise UserError(
            f"no column {sought}; it has: {', '.join(map(str, row))}",
            file=source.path,
            remedy=f"set {option}{hint}",
        )
    return found


def _path(value: Any) -> str:
    """Return the path of an audio file; Hugging Face has it in an object."""
    if isinstance(value, Mapping):
        value = value.get("path")
    if not isinstance(value, str) or not value.strip():
        raise UserError(
            "names no audio file",
            remedy="give its path; audio within the table is not read: save it as "
            "files",
        )
    return value
