"""A folder of audio with transcripts beside the files, as aligners take it.

    george/one.wav     george/one.lab        the words of one.wav
    lucas/talk.flac    lucas/talk.TextGrid   tiers of intervals with words

Public: `list_folder`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from latflow.corpus.folder_files import folders, is_audio_name, transcript_suffix
from latflow.corpus.listing import AudioFile, Fault, Listing, Part, file_id, tidy_text
from latflow.corpus.options import FolderSource
from latflow.corpus.textgrid import Interval, Tier, read_tiers
from latflow.errors import UserError
from latflow.files import read_lines

_ALONE = "put the other one beside it, with the same name, or remove it"


def list_folder(source: FolderSource, listing: Listing) -> None:
    """List the audio files of a folder and their utterances.

    Raises:
        UserError: the folder is missing or holds no audio, a transcript cannot be read,
            or two files have the same id.
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
    """List the files of one folder."""
    transcripts: dict[str, dict[str, Path]] = {}
    for name in names:
        if suffix := transcript_suffix(name, source):
            transcripts.setdefault(Path(name).stem, {})[suffix] = folder / name
    for name in filter(is_audio_name, names):
        path = folder / name
        recording_id = file_id(path.relative_to(top))
        found = transcripts.pop(path.stem, {})
        if not found and source.transcripts:
            reason = "audio without a transcript beside it"
            listing.faults.append(Fault(recording_id, reason, str(path), _ALONE))
            continue
        listing.files.add(AudioFile(recording_id, str(path)), file=path)
        chosen = next((s for s in source.transcript_suffixes if s in found), None)
        transcript = None if chosen is None else found[chosen]
        speaker = _speaker(source, top, path)
        if transcript is None or not source.transcripts:
            part = Part(recording_id, recording_id, "", speaker, str(path))
            listing.parts.add(part, file=path)
        elif chosen == "TextGrid":
            _list_intervals(source, listing, recording_id, speaker, transcript)
        else:
            text = " ".join(line for _, line in read_lines(transcript))
            part = Part(
                recording_id,
                recording_id,
                tidy_text(text, source),
                speaker,
                str(transcript),
            )
            listing.parts.add(part, file=transcript)
    for stem, found in transcripts.items():
        path = next(iter(found.values()))
        name = file_id((folder / stem).relative_to(top) / "x").removesuffix("-x")
        reason = "transcript without audio beside it"
        listing.faults.append(Fault(name, reason, str(path), _ALONE))


def _list_intervals(
    source: FolderSource,
    listing: Listing,
    recording_id: str,
    speaker: str | None,
    path: Path,
) -> None:
    """List the labelled intervals of a TextGrid."""
    tiers = _chosen_tiers(source, path)
    count = 0
    for tier in tiers:
        name = re.sub(r"\s+", "_", tier.name)
        prefix = recording_id if len(tiers) == 1 else f"{recording_id}-{name}"
        who = speaker
        if source.speaker_by == "tier":
            who = name
        elif len(tiers) > 1:
            who = f"{speaker}-{name}"
        for interval in tier.intervals:
            text = tidy_text(interval.text, source)
            if not text:
                continue  # a pause, or nothing but marks
            part = Part(
                f"{prefix}-{_milliseconds(interval)}",
                recording_id,
                text,
                who,
                str(path),
                interval.start,
                interval.end,
            )
            listing.parts.add(part, file=path)
            count += 1
    if not count:
        reason = "TextGrid without a labelled interval"
        remedy = "label its intervals, or name other tiers"
        listing.faults.append(Fault(recording_id, reason, str(path), remedy))


def _chosen_tiers(source: FolderSource, path: Path) -> list[Tier]:
    """Return the tiers of a TextGrid that hold transcripts."""
    tiers = read_tiers(path)
    if not source.tiers:
        return tiers
    chosen = [tier for tier in tiers if tier.name in source.tiers]
    if not chosen:
        raise UserError(
            f"none of its tiers is called {' or '.join(source.tiers)}",
            file=path,
            remedy=f"it has: {', '.join(tier.name for tier in tiers) or 'none'}",
        )
    return chosen


def _milliseconds(interval: Interval) -> str:
    """Return the beginning of an interval as a part of an id that sorts by time."""
    return f"{round(1000 * interval.start):08d}"


def _speaker(source: FolderSource, top: Path, path: Path) -> str:
    """Return the speaker of an audio file."""
    if source.speaker_by == "prefix":
        return re.sub(r"\s+", "_", path.stem.partition(source.prefix_end)[0])
    folder = path.parent.relative_to(top)
    return file_id(folder / "x").removesuffix("-x") if folder.parts else top.name
