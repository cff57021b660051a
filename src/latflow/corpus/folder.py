"""A folder of audio with transcripts beside the files, as aligners take it.

For example:

    george/one.wav     george/one.lab        the words of one.wav
    lucas/talk.flac    lucas/talk.TextGrid   tiers of intervals with words
    lucas/film.mp4     lucas/film.srt        subtitles, WebVTT (.vtt) too
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path

from latflow.corpus.folder_files import (
    TIMED_SUFFIXES,
    folders,
    is_audio_name,
    transcript_suffix,
)
from latflow.corpus.ids import plain_id
from latflow.corpus.listing import Fault, Listing, Part, file_id
from latflow.corpus.options import FolderSource
from latflow.corpus.subtitles import read_subtitles
from latflow.corpus.textgrid import Interval, Tier, read_tiers
from latflow.corpus.words import holds_word
from latflow.errors import UserError
from latflow.text_files import read_lines

_PHONES = re.compile(r"\b(phones?|phonemes?|segments?|MAU|KAN)$", re.IGNORECASE)
_TIMES = re.compile(r"\s*(\d+(?:\.\d+)?)\s+(\d+(?:\.\d+)?)\s+\S")
_HTK_MOST = 10_000  # a millisecond in HTK's unit; nobody counts so far
_NO_UTF8 = re.compile("[\ud800-\udfff]")  # what stands for bytes that are not
_RENAME = "rename it, e.g. with convmv"
_EXPORT = "export it as a TextGrid, subtitles or plain text beside it"
_ALONE = "put the other one beside it, with the same name, or remove it"


def list_folder(source: FolderSource, listing: Listing) -> None:
    """List the audio files of a folder and their utterances.

    Raises:
        UserError: the folder is missing or holds no audio. What is wrong with a
            transcript alone is a fault of the listing.
    """
    top = Path(os.path.abspath(source.path))
    if not top.is_dir():
        raise UserError("no such folder", file=source.path, remedy="check the path")
    for folder, names in folders(top):
        _list_files(source, listing, top, folder, names)
    if not len(listing.files) and not listing.faults:
        raise UserError(
            "no audio file in this folder",
            file=source.path,
            remedy="check the path; audio is known by its suffix (.wav, .flac, ...)",
        )


def _list_files(
    source: FolderSource, listing: Listing, top: Path, folder: Path, names: list[str]
) -> None:
    transcripts: dict[str, dict[str, Path]] = {}
    taken = [n for n in names if is_audio_name(n) or transcript_suffix(n, source)]
    if odd := [n for n in taken if _NO_UTF8.search(str((folder / n).relative_to(top)))]:
        names = [name for name in taken if name not in odd]
    for name in odd:
        raw = os.fsencode((folder / name).relative_to(top))
        shown = raw.decode("utf-8", "backslashreplace")
        reason = f"the name {shown} is not UTF-8"
        listing.faults.append(Fault(file_id(Path(shown)), reason, str(top), _RENAME))
    for name in names:
        if suffix := transcript_suffix(name, source):
            # Some systems write names with decomposed letters (NFD).
            stem = unicodedata.normalize("NFC", Path(name).stem)
            transcripts.setdefault(stem, {})[suffix] = folder / name
    others = {Path(n).stem: Path(n).suffix for n in names if not is_audio_name(n)}
    for name in filter(is_audio_name, names):
        path = folder / name
        stem = unicodedata.normalize("NFC", path.stem)
        found = transcripts.pop(stem, {})
        inside = path.relative_to(top)
        if not found and source.transcripts:
            reason, remedy = _why_alone(others.get(path.stem))
            listing.faults.append(Fault(file_id(inside), reason, str(path), remedy))
            continue
        chosen = next((s for s in source.transcript_suffixes if s in found), None)
        transcript = None if chosen is None else found[chosen]
        try:
            parts = _parts(source, top, path, transcript)
        except UserError as error:
            remedy = error.remedy or "fix the file"
            fault = Fault(file_id(inside), error.what, str(transcript), remedy)
            listing.faults.append(fault)
            continue
        recording_id = listing.add_file(path, inside)
        for part in parts:
            listing.add_part(part, recording_id)
    for stem, found in transcripts.items():
        path = next(iter(found.values()))
        name = file_id((folder / stem).relative_to(top) / "x").removesuffix("-x")
        reason = "transcript without audio beside it"
        listing.faults.append(Fault(name, reason, str(path), _ALONE))


def _why_alone(suffix: str | None) -> tuple[str, str]:
    """Return why a recording has no transcript, and the remedy.

    Args:
        suffix: of another file beside it that has its name.
    """
    if not suffix:
        return "audio without a transcript beside it", _ALONE
    return f"beside it is a {suffix} file, not read here", _EXPORT


def _parts(
    source: FolderSource, top: Path, path: Path, transcript: Path | None
) -> list[Part]:
    """Return the utterances of an audio file, their ids without that of the recording.

    Raises:
        UserError: the transcript cannot be read.
    """
    speaker = _speaker(source, top, path)
    if transcript is None or not source.transcripts:
        return [Part("", "", "", speaker, str(path))]
    if transcript_suffix(transcript.name, source) in TIMED_SUFFIXES:
        return list(_intervals(source, speaker, transcript))
    return [Part("", "", read_transcript(transcript), speaker, str(transcript))]


def read_transcript(path: Path) -> str:
    """Read a transcript without times, its lines joined by blanks.

    Raises:
        UserError: its lines are labels with times, or not UTF-8.
    """
    lines = [line for _, line in read_lines(path) if line.strip()]
    if lines and all(is_timed(line) for line in lines):
        raise UserError(
            "labels with times, as of HTK or Audacity, not a transcript",
            file=path,
            remedy="write the words alone, or a TextGrid",
        )
    return " ".join(lines)


def is_timed(line: str) -> bool:
    """Return whether a line begins with two times: in 100 ns, or decimal seconds."""
    found = _TIMES.match(line)
    if found is None:
        return False
    is_decimal = "." in found[1] and "." in found[2]
    start, end = float(found[1]), float(found[2])
    return start <= end and (is_decimal or end >= _HTK_MOST)


def _intervals(source: FolderSource, speaker: str | None, path: Path) -> Iterator[Part]:
    """Yield the labelled intervals of a TextGrid, or the cues of subtitles.

    Raises:
        UserError: it cannot be read, or has none.
    """
    tiers = _chosen_tiers(source, path)
    count = 0
    for tier in tiers:
        name = plain_id(tier.name or "unnamed")
        who = speaker
        if source.speaker_by == "tier":
            who = name
        elif len(tiers) > 1:
            who = f"{speaker}-{name}"
        for interval in tier.intervals:
            if not holds_word(interval.text):
                continue  # a pause, or nothing but marks
            begin = _milliseconds(interval)
            part_id = f"-{begin}" if len(tiers) == 1 else f"-{name}-{begin}"
            text, start, end = interval.text, interval.start, interval.end
            yield Part(part_id, "", text, who, str(path), start, end)
            count += 1
    if not count and path.suffix.lower() == ".textgrid":
        raise UserError(
            "TextGrid without a labelled interval",
            file=path,
            remedy="label its intervals, or name other tiers",
        )
    if not count:
        raise UserError(
            "subtitles without a cue that has words", file=path, remedy="write some"
        )


def _chosen_tiers(source: FolderSource, path: Path) -> list[Tier]:
    """Return the tiers of a TextGrid, or of subtitles, that hold transcripts."""
    if path.suffix.lower() != ".textgrid" or not source.tiers:
        return transcript_tiers(path)
    tiers = read_tiers(path)
    chosen = [tier for tier in tiers if tier.name in source.tiers]
    if not chosen:
        raise UserError(
            f"none of its tiers is called {' or '.join(source.tiers)}; it has: "
            + (", ".join(tier.name for tier in tiers) or "none"),
            file=path,
            remedy="name others in tiers",
        )
    return chosen


def transcript_tiers(path: Path) -> list[Tier]:
    """Return the tiers of a TextGrid, or of subtitles, that hold transcripts.

    Raises:
        UserError: the file is missing or damaged.
    """
    if path.suffix.lower() != ".textgrid":
        return read_subtitles(path)
    tiers = read_tiers(path)
    # Those of phones, as aligners write them, are not transcripts.
    return [tier for tier in tiers if not _PHONES.search(tier.name)] or tiers


def _milliseconds(interval: Interval) -> str:
    """Return the beginning of an interval as a part of an id that sorts by time."""
    return f"{round(1000 * interval.start):08d}"


def _speaker(source: FolderSource, top: Path, path: Path) -> str:
    """Return the speaker of an audio file."""
    if source.speaker_by == "prefix":
        return plain_id(path.stem.partition(source.prefix_end)[0])
    folder = path.parent.relative_to(top)
    return file_id(folder / "x").removesuffix("-x") if folder.parts else top.name
