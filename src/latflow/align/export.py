"""Alignments as files: TextGrids by recording, CTM, JSON (stage).

The folder gets `textgrid/<name>.TextGrid` and the like, `words.ctm`, `phones.ctm`,
`alignments.jsonl` and `alignment_analysis.csv`, as the options ask, and `export.json`
with counts. Times are seconds
from the beginning of the recording. Recordings are written one by one: memory holds the
ids of the utterances alone.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from latflow.align.analysis import AlignmentAnalysis
from latflow.align.corpus import AlignmentArchive, LogLikes
from latflow.align.options import ExportOptions
from latflow.align.timing import (
    AlignedSet,
    AlignedUtterance,
    AlignedWord,
    PhoneTimes,
    TimedPhone,
    mean_confidence,
)
from latflow.align.tracks import FORMS, Place, Timed, rounded, tracks_of
from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.corpus.dictionaries import plain_word
from latflow.corpus.ids import file_name
from latflow.corpus.json_lines import REMEDY, CutLine, Spool, read_cut_lines
from latflow.errors import UserError
from latflow.files import atomic_directory, write_json
from latflow.logs import progress


def _place(values: dict[str, Any]) -> Place:
    """Make a place of its dictionary."""
    return Place(**values)


def export_alignments(
    aligned: AlignedSet,
    out_dir: Path,
    *,
    options: ExportOptions,
    log_likes_dir: Path | None = None,
    boundaries_dir: Path | None = None,
) -> None:
    """Write the alignments of a split as files (stage).

    Args:
        aligned: the split.
        out_dir: folder to write, replaced as a whole.
        options: forms, and names of files.
        log_likes_dir: the `LogLikes` of the alignments; without it there are no scores.
        boundaries_dir: `PhoneTimes` of the alignments; None for the times of frames.

    Raises:
        UserError: parts do not fit each other, or no utterance is aligned.
    """
    archive = AlignmentArchive(aligned.alignments)
    timer = aligned.timer()
    scores = None if log_likes_dir is None else LogLikes.load(log_likes_dir)
    bounds = None if boundaries_dir is None else PhoneTimes.load(boundaries_dir)
    with (
        atomic_directory(out_dir) as folder,
        Spool(folder, _place) as places,
        _Writer(folder, options) as writer,
    ):
        order: list[tuple[str, float, str]] = []
        audio: dict[str, str] = {}
        for cut in read_cut_lines(aligned.cuts):
            has_signal = "analysis" in options.formats
            place = _place_of(cut, aligned.cuts, has_signal=has_signal)
            places.add(place, file=aligned.cuts)
            order.append((place.recording, place.start, place.id))
            audio.setdefault(place.recording, place.path)
            ids = archive.get(cut.id)
            log_likes = scores.get(cut.id) if scores is not None else None
            if ids is not None and log_likes is not None:
                timer.note(ids, log_likes)
        if not any(utterance in archive for *_, utterance in order):
            raise UserError(
                "no utterance of the set is aligned",
                file=aligned.alignments,
                remedy="look at the ledger beside it",
            )
        names = recording_names(audio, options)
        order.sort()
        groups = groupby(progress(order, "export", len(order)), key=lambda row: row[0])
        for recording, rows in groups:
            found = []
            for *_, utterance in rows:
                place, ids = places[utterance], archive.get(utterance)
                if ids is None:
                    writer.missing.append(utterance)
                    found.append((place, None))
                    continue
                log_likes = scores.get(utterance) if scores is not None else None
                times = bounds.get(utterance) if bounds is not None else None
                timed = timer.time(place.text, ids, place.duration, log_likes, times)
                found.append((place, timed))
            writer.write(found, names[recording])
        writer.finish()


def audio_of(cuts: Path) -> dict[str, str]:
    """Return the paths of the audio of the recordings of cuts, by id.

    Raises:
        UserError: the file is not a manifest of cuts.
    """
    found: dict[str, str] = {}
    for cut in read_cut_lines(cuts):
        place = _place_of(cut, cuts, has_signal=False)
        found.setdefault(place.recording, place.path)
    return found


def _place_of(cut: CutLine, cuts: Path, *, has_signal: bool) -> Place:
    try:
        return Place.of(cut, has_signal=has_signal)
    except (AttributeError, KeyError, TypeError) as error:
        raise UserError(
            f"is not a Lhotse cut ({type(error).__name__}: {error})",
            file=cuts,
            utterance=cut.id,
            remedy=REMEDY,
        ) from error


def recording_names(audio: Mapping[str, str], options: ExportOptions) -> dict[str, str]:
    """Return the names of the files of recordings by id; no two are the same.

    Args:
        audio: path of the audio, or empty, by id.
        options: say what names are like.
    """
    folders = {os.path.dirname(path) for path in audio.values() if path}
    top = _top(folders, options.folder)
    names: dict[str, str] = {}
    taken: set[str] = set()
    counts: Counter[str] = Counter()
    for recording, path in sorted(audio.items()):
        name = recording
        if options.names == "path" and path:
            name = os.path.splitext(os.path.relpath(path, top))[0]
        stem = name
        while name in taken:  # a.wav and a.flac
            counts[stem] += 1
            name = f"{stem}.{counts[stem] + 1}"
        taken.add(name)
        names[recording] = name
    return names


def _top(folders: set[str], wanted: str | None) -> str:
    """Return the folder that names of files are relative to."""
    if not folders:
        return ""
    common = os.path.commonpath(list(folders))
    is_below = wanted is not None and Path(common).is_relative_to(wanted)
    return str(wanted) if is_below else common


class _Writer:
    """Writes recordings in all forms; use as a context manager."""

    def __init__(self, folder: Path, options: ExportOptions) -> None:
        self._folder, self._options = folder, options
        self._stack = ExitStack()
        self._made: set[Path] = set()
        self._counts: Counter[str] = Counter()
        self.missing: list[str] = []
        self._pauses: list[dict[str, Any]] = []
        self._ctm: tuple[TextIO, TextIO] | None = None
        self._json: TextIO | None = None
        self._analysis: AlignmentAnalysis | None = None
        if "ctm" in options.formats:
            self._ctm = self._open("words.ctm"), self._open("phones.ctm")
        if "json" in options.formats:
            self._json = self._open("alignments.jsonl")
        if "analysis" in options.formats:
            self._analysis = AlignmentAnalysis(folder / ".durations.jsonl")

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _open(self, name: str) -> TextIO:
        """Open a file of the folder, closed with this object."""
        stream = (self._folder / name).open("w", encoding="utf-8")
        return self._stack.enter_context(stream)

    def write(self, utterances: list[Timed], name: str) -> None:
        """Write the utterances of a recording, in order of time.

        Args:
            name: of its files.
        """
        for place, timed in utterances:
            if timed is None:
                continue
            self._counts["utterances"] += 1
            self._counts["without_words"] += timed.words is None
            if self._ctm is not None:
                self._ctm[0].writelines(map(ctm_line, _word_lines(place, timed)))
                self._ctm[1].writelines(map(ctm_line, _phone_lines(place, timed)))
            if self._json is not None:
                line = json.dumps(_json_values(place, timed), ensure_ascii=False)
                self._json.write(line + "\n")
            if self._analysis is not None:
                self._analysis.add(*_measured(place, timed))
        self._counts["recordings"] += 1
        self._pauses += _long_pauses(utterances, self._options.long_pause)
        first = utterances[0][0]
        tracks = tracks_of(utterances)
        for form, (suffix, text) in FORMS.items():
            if form in self._options.formats:
                path = self._folder / form / file_name(name, suffix, in_folders=True)
                if path.parent not in self._made:
                    path.parent.mkdir(parents=True, exist_ok=True)
                    self._made.add(path.parent)
                path.write_text(text(tracks, first.length), "utf-8")

    def finish(self) -> None:
        """Close the files; write the counts."""
        self._stack.close()
        if self._analysis is not None:
            self._analysis.write(self._folder / "alignment_analysis.csv")
        write_json(
            self._folder / "export.json",
            {
                "recordings": self._counts["recordings"],
                "utterances": self._counts["utterances"],
                "without_words": self._counts["without_words"],
                "not_aligned": self.missing,
                "long_pauses": self._pauses,
            },
        )


def _long_pauses(utterances: list[Timed], least: float) -> list[dict[str, Any]]:
    """Return the times of a recording without a word, where words' times are known."""
    words = [
        (place.start + word.start, place.start + word.end)
        for place, timed in utterances
        if timed is not None
        for word in timed.words or ()
    ]
    place = utterances[0][0]
    last, found = 0.0, []
    for start, end in [*sorted(words), (place.length, place.length)]:
        if words and start - last >= least:
            times = {"start": rounded(last), "end": rounded(start)}
            found.append({"recording": place.recording, **times})
        last = max(last, end)
    return found


def _word_lines(place: Place, timed: AlignedUtterance) -> Iterator[TimedWord]:
    """Yield the words of an utterance for a CTM file."""
    for word in timed.words or ():
        yield _timed(place, word.word, word)


def _phone_lines(place: Place, timed: AlignedUtterance) -> Iterator[TimedWord]:
    """Yield the phones of an utterance for a CTM file, silences included."""
    for phone in timed.phones:
        yield _timed(place, phone.phone, phone)


def _timed(place: Place, label: str, timed: AlignedWord | TimedPhone) -> TimedWord:
    """Return a label at its time in the recording."""
    return TimedWord(
        place.recording,
        place.start + timed.start,
        timed.end - timed.start,
        label,
        str(place.channel + 1),
        timed.confidence,
        (*(timed.start_within or ()), *(timed.end_within or ())),
    )


def _measured(
    place: Place, timed: AlignedUtterance
) -> tuple[tuple[str | float, ...], AlignedUtterance, np.ndarray | None, float]:
    """Return what an utterance is measured by, for `AlignmentAnalysis.add`."""
    # Here alone: other forms need no audio, nor Lhotse, which takes a second.
    from lhotse import MonoCut

    from latflow.corpus.manifests import samples_or_reason

    cut = MonoCut.from_dict({**(place.cut or {})})
    samples = samples_or_reason(cut)
    end = place.start + place.duration
    row = (place.recording, place.start, end, place.speaker)
    signal = None if isinstance(samples, str) else samples
    return row, timed, signal, cut.sampling_rate


def _json_values(place: Place, timed: AlignedUtterance) -> dict[str, Any]:
    return {
        "utterance": place.id,
        "recording": place.recording,
        "channel": place.channel + 1,
        "speaker": place.speaker,
        "start": rounded(place.start),
        "end": rounded(place.start + place.duration),
        "text": " ".join(map(plain_word, place.text.split())),
        "confidence": rounded(mean_confidence(timed.spoken)),
        "words": None
        if timed.words is None
        else [
            {
                "word": word.word,
                "start": rounded(place.start + word.start),
                "end": rounded(place.start + word.end),
                "confidence": rounded(word.confidence),
                **_margins(word),
                "phones": [_phone_values(place, phone) for phone in word.phones],
            }
            for word in timed.words
        ],
        "phones": [_phone_values(place, phone) for phone in timed.phones],
    }


def _phone_values(place: Place, phone: TimedPhone) -> dict[str, Any]:
    """Return a phone as JSON has it."""
    return {
        "phone": phone.phone,
        "start": rounded(place.start + phone.start),
        "end": rounded(place.start + phone.end),
        "score": rounded(phone.score),
        "confidence": rounded(phone.confidence),
        **_margins(phone),
    }


def _margins(timed: AlignedWord | TimedPhone) -> dict[str, Any]:
    """Return the intervals of a label's times, where they are known."""
    if timed.start_within is None:
        return {}
    return {"start_within": timed.start_within, "end_within": timed.end_within}
