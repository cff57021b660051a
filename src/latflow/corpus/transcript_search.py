"""Pairs of audio and transcript in a tree of files that no source of corpora reads.

Corpora come in many layouts: transcripts in their own tree (VCTK), one file for a
chapter (LibriSpeech's `.trans.txt`), for a session (`PROMPTS` of VoxForge), for the
whole (`metadata.csv` of LJ Speech, Festival's `txt.done.data`), or in JSON. What they
share is that a transcript's line, or its file, has the name of the audio. `find_pairs`
goes by these names alone; a table of what it finds can be read as a source.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from os.path import commonpath
from pathlib import Path
from statistics import fmean
from typing import Any

from latflow.corpus.folder import is_timed
from latflow.corpus.folder_files import AUDIO_SUFFIXES, folders, is_audio_name
from latflow.corpus.table import PATHS, TEXTS
from latflow.corpus.words import holds_word
from latflow.errors import UserError
from latflow.text_files import read_lines

_ALONE = ("txt", "lab", "text", "trn", "wrd")  # one file for one audio file
_LISTS = ("", "txt", "tsv", "csv", "text", "data", "trans", "list", "lst", "tab")
_MOST_BYTES = 1 << 30  # of a list of transcripts
_MOST_JSON = 1 << 28  # JSON is read as a whole
_TITLES = 2  # lines of a list that may be no utterances
_FESTIVAL = re.compile(r'\(\s*(\S+)\s+"(.*)"\s*\)\s*')
_SAMPLES = re.compile(r"\s*0\s+\d+\s+(?=\D)")  # TIMIT: first and last sample
_MICROPHONE = re.compile(r"(.+)_mic\d+")
_DOCUMENTS = re.compile(r"readme|licen[cs]e|copying|changelog|speaker-info", re.I)
# Folders that are called by what lies there, not by who speaks.
_KINDS = re.compile(
    r"(wavs?|audio|clips?|flac|mp3|m4a|opus|ogg|sph|data|recordings?|wav\d+\w*)", re.I
)


@dataclass(frozen=True)
class Pair:
    """An audio file, its transcript, and who speaks, by the folders."""

    audio: Path
    text: str
    speaker: str


@dataclass
class Pairs:
    """What a tree holds.

    Attributes:
        pairs: audio with a transcript, sorted by path.
        without: audio files without one.
        microphones: further recordings of an utterance (`_mic2`), left out.
        several: transcripts of audio that has another one, left out.
        sources: kind of transcript -> how many audio files it gave one.
    """

    pairs: list[Pair] = field(default_factory=list)
    without: int = 0
    microphones: int = 0
    several: int = 0
    sources: Counter[str] = field(default_factory=Counter)


def find_pairs(tops: Iterable[Path]) -> Pairs:
    """Return the audio files of folders with their transcripts, matched by name.

    Raises:
        UserError: a list of transcripts cannot be read.
    """
    search = _Search()
    for top in tops:
        search.look(top)
    return search.result()


class _Search:
    """Audio by its name, and the transcripts found for it."""

    def __init__(self) -> None:
        self._found = Pairs()
        self._audio: dict[str, list[Path]] = defaultdict(list)
        self._texts: dict[Path, str] = {}
        self._speakers: dict[Path, str] = {}

    def look(self, top: Path) -> None:
        """Look for audio and transcripts in a folder."""
        others = []
        utterances: set[Path] = set()
        for folder, names in folders(top):
            for name in names:
                path = folder / name
                if not is_audio_name(name):
                    others.append(path)
                    continue
                microphone = _MICROPHONE.fullmatch(path.stem)
                key = _key(microphone[1] if microphone else path.stem)
                utterance = folder / key
                if microphone and utterance in utterances:
                    self._found.microphones += 1
                    continue
                utterances.add(utterance)
                self._speakers[path] = _speaker(top, path)
                self._audio[key].append(path)
        for path in others:
            self._read(path)

    def result(self) -> Pairs:
        """Return what was found."""
        found = self._found
        audio = sorted(path for paths in self._audio.values() for path in paths)
        found.without = len(audio) - len(self._texts)
        found.pairs = [
            Pair(path, self._texts[path], self._speakers[path])
            for path in audio
            if path in self._texts
        ]
        return found

    def _read(self, path: Path) -> None:
        """Take the transcripts of a file, if it has some."""
        suffix = path.suffix.lower().removeprefix(".")
        if suffix == "json" and path.stat().st_size < _MOST_JSON:
            self._read_json(path)
        elif suffix in _ALONE and _key(path.stem) in self._audio:
            self._read_alone(path)
        elif suffix in _LISTS and not _DOCUMENTS.search(path.stem):
            self._read_list(path)

    def _read_alone(self, path: Path) -> None:
        """Take the transcript of a file for one audio file, unless it is labels."""
        lines = [line for _, line in read_lines(path) if line.strip()]
        if len(lines) == 1:
            lines = [_SAMPLES.sub("", lines[0])]
        if not (lines and all(map(is_timed, lines))):
            self._take(_key(path.stem), " ".join(lines), path, "files of their own")

    def _read_list(self, path: Path) -> None:
        """Take the transcripts of a file with a line for each audio file."""
        if path.stat().st_size > _MOST_BYTES:
            return
        try:
            rows = list(_rows(line for _, line in read_lines(path) if line.strip()))
        except UserError:  # no text, and so no transcripts
            return
        known = [row for row in rows if _key_of(row[0]) in self._audio]
        if not known or 2 * len(known) < len(rows) - _TITLES:
            return
        for key, text in _texts(known):
            self._take(_key_of(key), text, path, f"lines of {path.name}")

    def _read_json(self, path: Path) -> None:
        """Take the transcripts of a JSON document: of one file, a list or a mapping."""
        try:
            document = json.loads("\n".join(line for _, line in read_lines(path)))
        except (UserError, RecursionError, ValueError):
            return
        own = _text_of(document)
        if own and _key(path.stem) in self._audio:
            self._take(_key(path.stem), own, path, "JSON files of their own")
            return
        for name, text in _entries(document):
            self._take(_key_of(name), text, path, f"entries of {path.name}")

    def _take(self, key: str, text: str, origin: Path, kind: str) -> None:
        """Give a transcript to the audio of its name that lies nearest."""
        audio = _nearest(self._audio.get(key, ()), origin)
        if audio is None or not holds_word(text):
            return
        if audio in self._texts:
            self._found.several += 1
            return
        self._texts[audio] = " ".join(text.split())
        self._found.sources[kind] += 1


def _key(stem: str) -> str:
    """Return what an audio file is found by; some systems decompose letters."""
    return unicodedata.normalize("NFC", stem)


def _key_of(name: str) -> str:
    """Return the key of a path, with the suffix of an audio file or without."""
    last = name.strip().strip('"').replace("\\", "/").rsplit("/", 1)[-1]
    stem, point, suffix = last.rpartition(".")
    return _key(stem if point and suffix.lower() in AUDIO_SUFFIXES else last)


def _rows(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the columns of lines, the first with the name of the audio."""
    for line in lines:
        if festival := _FESTIVAL.fullmatch(line):
            yield [festival[1], festival[2].replace('\\"', '"')]
            continue
        mark = next((mark for mark in "|\t" if mark in line), None)
        if mark is None:
            first = line.split(None, 1)
            mark = "," if "," in first[0] else None
            yield line.split(",", 1) if mark else first
        else:
            yield line.split(mark)


def _texts(rows: list[list[str]]) -> Iterator[tuple[str, str]]:
    """Yield (name, transcript) of lines: of several columns that of most words.

    Where two are alike, as raw and normalized text, the last one is taken.
    """
    width = Counter(map(len, rows)).most_common(1)[0][0]
    whole = [row for row in rows if len(row) == width]
    lengths = [fmean(len(row[column].split()) for row in whole[:1000])
               for column in range(1, width)]  # fmt: skip
    most = max(lengths, default=0.0)
    chosen = max(
        (column for column, length in enumerate(lengths, 1) if length > 0.8 * most),
        default=1,
    )
    for row in rows:
        if len(row) > 1:
            yield row[0], row[min(chosen, len(row) - 1)].strip().strip('"')


def _entries(document: Any) -> Iterator[tuple[str, str]]:
    """Yield (name of the audio, transcript) of a JSON document."""
    if isinstance(document, dict):
        for name, value in document.items():
            text = value if isinstance(value, str) else _text_of(value)
            if text:
                yield _name_of(value) or str(name), text
            elif isinstance(value, list):
                yield from _entries(value)
    elif isinstance(document, list):
        for value in document:
            if (name := _name_of(value)) and (text := _text_of(value)):
                yield name, text


def _text_of(value: Any) -> str:
    """Return the transcript of a JSON object; "" without one."""
    return _first(value, TEXTS)


def _name_of(value: Any) -> str:
    """Return the audio file that a JSON object names; "" without one."""
    return _first(value, (*PATHS, "id", "utterance", "name", "key"))


def _first(value: Any, names: Iterable[str]) -> str:
    if not isinstance(value, dict):
        return ""
    found = (value.get(name) for name in names)
    return next((item for item in found if isinstance(item, str) and item), "")


def _nearest(audio: Iterable[Path], origin: Path) -> Path | None:
    """Return the audio that shares most folders with a transcript; None for a tie."""
    shares = sorted(((_shared(path, origin), path) for path in audio), reverse=True)
    if not shares or (len(shares) > 1 and shares[0][0] == shares[1][0]):
        return None
    return shares[0][1]


def _shared(first: Path, second: Path) -> int:
    """Return how many folders two files share: above them, or by their names."""
    above = Path(commonpath([first.parent, second.parent]))
    one, other = (path.parent.relative_to(above).parts for path in (first, second))
    return 2 * len(above.parts) + len({*one} & {*other})


def _speaker(top: Path, path: Path) -> str:
    """Return the speaker of a file, by the folders that it lies in below the top.

    The highest folder whose name begins the file's (`1272/128104/1272-128104-0000`),
    else the lowest that isn't called by what lies there (`wav`), else the top.
    """
    below = path.parent.relative_to(top).parts
    for part in below:
        if path.stem.startswith((f"{part}-", f"{part}_")):
            return part
    own = (part for part in reversed(below) if not _KINDS.fullmatch(part))
    return next(own, top.name)
