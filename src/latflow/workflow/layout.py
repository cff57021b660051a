"""What a folder of data holds: the sources of its sets, by the layout of its files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from latflow.corpus.folder import is_timed
from latflow.corpus.folder_files import (
    TIMED_SUFFIXES,
    folders,
    is_audio_name,
    transcript_suffix,
)
from latflow.corpus.options import FolderSource
from latflow.corpus.table import find_audio
from latflow.corpus.transcript_search import Pairs, find_pairs
from latflow.errors import UserError
from latflow.text_files import read_lines

Source = dict[str, Any]  # as a recipe has it
_SUFFIXES = (".csv", ".tsv", ".tab", ".jsonl", ".json")
_TABLES = (*_SUFFIXES, *(f"{suffix}.gz" for suffix in _SUFFIXES))
_SKIP = {"on_bad_utterance": "skip"}
_SET = re.compile(
    r"(?:^|[-_. ])(train(?:ing)?|dev(?:el)?|valid(?:ation)?|val|test(?:ing)?|eval)"
    r"(?=$|[-_. \d])",
    re.IGNORECASE,
)
_BEGIN = {"tr": "train", "de": "dev", "va": "dev", "te": "test", "ev": "test"}
_DEPTH = 3  # of folders that tables and manifests are looked for in
_MOSTLY = 0.5


@dataclass
class Layout:
    """Sets that a folder holds.

    Attributes:
        sets: source of each, by `train`, `dev` or the name of a test set.
        pairs: of sets that no source reads, audio with transcripts; their sources are
            to be tables of these.
        unused: files that look like sets, and are not taken.
    """

    sets: dict[str, Source] = field(default_factory=dict)
    pairs: dict[str, Pairs] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def find_source(corpus: str | Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source of a corpus, by what lies there.

    Args:
        corpus: a Kaldi data directory (with `wav.scp`), Lhotse's manifests (a folder
            with `..recordings...jsonl.gz` and `..supervisions...jsonl.gz`, or the first
            of them) or CutSet, a table (`.csv`, `.tsv`, `.jsonl`), or a folder of audio
            with transcripts beside the files.
        settings: further keys of the source; paths become absolute, too.

    Raises:
        UserError: there is nothing of the kind, or several manifests.
    """
    path = Path(os.path.abspath(corpus))
    if (path / "wav.scp").is_file():
        found = {"type": "kaldi", "path": str(path), "on_bad_utterance": "skip"}
        if not (path / "utt2spk").is_file():
            found["speaker"] = "utterance"
    elif listed := _only_manifest(path):
        found = listed
    elif path.is_file() and path.name.endswith(_TABLES):
        found = {"type": "table", "path": str(path)}
    elif path.is_dir() and holds_audio(path):
        found = {"type": "folder", "path": str(path)}
    else:
        raise UserError(
            "no corpus here",
            file=corpus,
            remedy="name a folder of audio with .txt, .lab, .TextGrid, .srt or .vtt "
            "files, a table (.csv, .tsv, .jsonl), a Kaldi data directory, or Lhotse's "
            "manifests (recordings.jsonl.gz with supervisions.jsonl.gz, or a CutSet)",
        )
    return {**found, **{key: _from_here(key, settings[key]) for key in settings}}


def _from_here(key: str, value: Any) -> Any:
    """Return a setting of a source so that another folder may be worked in."""
    is_path = key in {"audio", "exclude"} or (
        key == "tokenizer" and str(value).rpartition(":")[0].endswith(".py")
    )
    return os.path.abspath(value) if is_path and value else value


def holds_audio(folder: Path) -> bool:
    """Return whether a folder, or one below it, holds audio."""
    return any(
        is_audio_name(name)
        for _, _, names in os.walk(folder, followlinks=True)
        for name in names
    )


def find_layout(data: str | Path) -> Layout:
    """Return the sets that lie in a folder, or a table.

    Parts that are called so (`train-clean-100`, `dev.tsv`, `test/`) are their own sets;
    all else is the training set.

    Raises:
        UserError: there is no audio with transcripts.
    """
    top = Path(os.path.abspath(data))
    if not top.exists():
        raise UserError("no such folder", file=data, remedy="check the path")
    layout = Layout()
    if top.is_file():
        layout.sets["train"] = _table_source(top) or find_source(top, {})
        return layout
    listed = _tables(top) or _manifests(top)
    parts = _parts(top)
    if listed:
        _take_listed(layout, top, listed)
    elif "train" in parts:
        for name, folder_parts in parts.items():
            _take_folders(layout, name, folder_parts)
    else:
        _take_folders(layout, "train", [top])
    if "train" not in layout.sets:
        raise UserError(
            f"no training set here; there are: {', '.join(layout.sets)}",
            file=data,
            remedy="name the folder or table to train on, then the others in its "
            "recipe (corpus.dev, corpus.test)",
        )
    return layout


def set_of(name: str) -> str | None:
    """Return which set a file or folder is of, by its name: train, dev or test."""
    found = _SET.findall(name)
    return _BEGIN[found[-1][:2].lower()] if found else None


def _parts(top: Path) -> dict[str, list[Path]]:
    """Return folders of sets, by set; several of `train` and `dev` are one set."""
    while True:
        below = sorted(p for p in top.iterdir() if p.is_dir() and p.name[:1] != ".")
        if len(below) != 1 or set_of(below[0].name):
            break
        top = below[0]
    found: dict[str, list[Path]] = {}
    for folder in below:
        kind = set_of(folder.name)
        if kind is None or not (holds_audio(folder) or (folder / "wav.scp").is_file()):
            continue
        found.setdefault(_set_name(folder.name, kind), []).append(folder)
    return found


def _set_name(name: str, kind: str) -> str:
    """Return the name that a set gets in the recipe: test sets keep theirs."""
    plain = re.sub(r"[^a-z0-9_-]", "-", name.lower()).strip("-_")
    return plain if kind == "test" else kind


def _take_folders(layout: Layout, name: str, parts: list[Path]) -> None:
    """Add the set that lies in folders.

    Raises:
        UserError: they hold no audio, or none with a transcript.
    """
    found = {_set_name(part.name, "test"): _folder_source(part) for part in parts}
    sources = {part: source for part, source in found.items() if source is not None}
    if len(sources) == len(parts):
        layout.sets[name] = _combined(sources)
        return
    pairs = find_pairs(parts)
    if not pairs.pairs:
        raise UserError(
            f"{pairs.without} audio files, and no transcript has the name of one",
            file=parts[0],
            remedy="put a.txt (or .lab, .TextGrid, .srt, .vtt) beside a.wav, or write "
            "a table with the columns path and text (.csv, .tsv, .jsonl), and name "
            "that",
        )
    layout.pairs[name] = pairs
    layout.sets[name] = {}


def _folder_source(folder: Path) -> Source | None:
    """Return the source that reads a folder; None where that takes a table."""
    source = find_source(folder, {})
    if source["type"] != "folder":
        return source
    is_source = _has_transcripts_beside(FolderSource(path=str(folder)))
    return source if is_source else None


def _has_transcripts_beside(source: FolderSource) -> bool:
    """Return whether most audio has a transcript without times beside it."""
    count, found, is_text = 0, 0, None
    for folder, names in folders(Path(source.path)):
        known = {Path(n).stem: n for n in names if transcript_suffix(n, source)}
        for name in filter(is_audio_name, names):
            count += 1
            beside = known.get(Path(name).stem)
            found += beside is not None
            if (
                beside
                and is_text is None
                and transcript_suffix(beside, source) not in TIMED_SUFFIXES
            ):
                lines = [line for _, line in read_lines(folder / beside)]
                is_text = not (lines and all(map(is_timed, filter(str.strip, lines))))
    return found > _MOSTLY * count and is_text is not False


def _combined(sources: Mapping[str, Source]) -> Source:
    if len(sources) == 1:
        return next(iter(sources.values()))
    return {"type": "combined", "sources": dict(sources)}


def _take_listed(layout: Layout, top: Path, listed: Mapping[Path, Source]) -> None:
    """Add the sets of tables or manifests; one without the name of a set is train."""
    stems = {path: _stem(top, path) for path in listed}
    kinds = {path: set_of(stem) for path, stem in stems.items()}
    if "train" not in kinds.values():
        unnamed = [path for path, kind in kinds.items() if kind is None]
        # `validated.tsv` of Common Voice, or the only table there is.
        best = max(unnamed, key=lambda path: path.stat().st_size, default=None)
        kinds |= {path: "train" for path in unnamed if path == best}
    found: dict[str, dict[str, Source]] = {}
    for path, source in listed.items():
        kind, stem = kinds[path], stems[path]
        if kind is None:
            layout.unused.append(str(path))
            continue
        name = _set_name(stem, kind)
        found.setdefault(name, {})[_set_name(stem, "test")] = source
    layout.sets |= {name: _combined(sources) for name, sources in found.items()}


def _stem(top: Path, path: Path) -> str:
    """Return the name that says which set a file is of: its own, or its folder's."""
    stem = path.name.partition(".")[0]
    is_below = path.parent != top and set_of(path.parent.name) is not None
    return path.parent.name if is_below and set_of(stem) is None else stem


def _tables(top: Path) -> dict[Path, Source]:
    """Return tables of utterances, of the highest folder that has some."""
    for level in _levels(top):
        found = {}
        for folder in level:
            for path in sorted(folder.iterdir()):
                if path.is_file() and path.name.lower().endswith(_TABLES):
                    source = _table_source(path)
                    found |= {path: source} if source else {}
        if found:
            return found
    return {}


def _table_source(table: Path) -> Source | None:
    """Return the source that reads a table; None if it lists no audio that is here."""
    below = sorted(path for path in table.parent.iterdir() if path.is_dir())
    try:
        found = find_audio(table, [table.parent, *below])
    except UserError:  # another text
        return None
    if found is None:
        return None
    source: Source = {"type": "table", "path": str(table)}
    if found[0] != table.parent:
        source["audio"] = str(found[0])
    return source if found[1] else {**source, "speaker": "utterance"}


def _manifests(top: Path) -> dict[Path, Source]:
    """Return Lhotse's manifests: recordings with supervisions, or else CutSets."""
    for level in _levels(top):
        if found := _manifests_of(level):
            return found
    return {}


def _manifests_of(level: Iterable[Path]) -> dict[Path, Source]:
    """Return the same of some folders alone."""
    files = sorted(path for folder in level for path in folder.glob("*.jsonl*"))
    listed = {path: source for path in files if (source := _manifest_source(path))}
    pairs = {p: source for p, source in listed.items() if source["type"] != "cuts"}
    return pairs or listed


def _only_manifest(path: Path) -> Source | None:
    """Return the source of what Lhotse wrote, in a folder or with that name.

    Raises:
        UserError: a folder holds several, and none is named as others are without sets.
    """
    if path.is_file():
        return _manifest_source(path)
    listed = _manifests_of([path])
    if len(listed) > 1 and path / "recordings.jsonl.gz" not in listed:
        names = ", ".join(file.name for file in listed)
        what = f"several sets of Lhotse: {names}"
        raise UserError(what, file=path, remedy="name one of them")
    return listed.get(path / "recordings.jsonl.gz") or next(iter(listed.values()), None)


def _manifest_source(path: Path) -> Source | None:
    """Return the source of a manifest of recordings, or of a CutSet; None else."""
    if not path.is_file() or not path.name.endswith((".jsonl", ".jsonl.gz")):
        return None
    other = path.with_name(path.name.replace("recordings", "supervisions"))
    if other != path and other.is_file():
        files = {"recordings": str(path), "supervisions": str(other)}
        return {"type": "manifests", **files, **_SKIP}
    with suppress(UserError, ValueError, StopIteration):
        first = json.loads(next(read_lines(path))[1])
        if isinstance(first, dict) and str(first.get("type")).endswith("Cut"):
            return {"type": "cuts", "path": str(path), **_SKIP}
    return None


def _levels(top: Path) -> Iterator[list[Path]]:
    """Yield the folders of each depth, from the top down."""
    level = [top]
    for _ in range(_DEPTH):
        yield level
        level = [
            path
            for folder in level
            for path in sorted(folder.iterdir())
            if path.is_dir() and path.name[:1] != "."
        ]
