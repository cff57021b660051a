"""Alignments as files: TextGrids by recording, CTM, JSON (stage).

The folder gets `textgrid/<name>.TextGrid` and the like, `words.ctm`, `phones.ctm`,
`alignments.jsonl` and `alignment_analysis.csv`, as the options ask, and `export.json`
with counts. Times are seconds
from the beginning of the recording. Recordings are written one by one: memory holds the
ids of the utterances alone.
"""

from __future__ import annotations

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
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
from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.corpus.dictionaries import plain_word
from latflow.corpus.ids import file_name
from latflow.corpus.json_lines import REMEDY, CutLine, Spool, read_cut_lines
from latflow.corpus.textgrid import Interval, short_textgrid, textgrid
from latflow.errors import UserError
from latflow.files import atomic_directory, write_json
from latflow.logs import progress


@dataclass
class _Place:
    """An utterance in its recording.

    Attributes:
        path: of the audio, or empty.
        cut: all that is known of it, where its signal is asked for.
    """

    id: str
    recording: str
    length: float
    path: str
    channel: int
    start: float
    duration: float
    speaker: str
    text: str
    cut: dict[str, Any] | None

    def to_dict(self) -> dict[str, Any]:
        """Turn into what JSON can hold."""
        return asdict(self)

    @classmethod
    def of(cls, cut: CutLine, *, has_signal: bool) -> _Place:
        """Return what a cut says.

        Raises:
            AttributeError, KeyError, TypeError: its JSON is incomplete.
        """
        recording = cut.values["recording"]
        first = next(iter(recording["sources"]), {})
        is_file = first.get("type") == "file"
        return cls(
            cut.id,
            recording["id"],
            recording["duration"],
            str(first["source"]) if is_file else "",
            cut.values["channel"],
            cut.values["start"],
            cut.values["duration"],
            cut.speaker,
            cut.text,
            cut.values if has_signal else None,
        )


def _place(values: dict[str, Any]) -> _Place:
    """Make a place of its dictionary."""
    return _Place(**values)


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
        UserError: the file is no manifest of cuts.
    """
    found: dict[str, str] = {}
    for cut in read_cut_lines(cuts):
        place = _place_of(cut, cuts, has_signal=False)
        found.setdefault(place.recording, place.path)
    return found


def _place_of(cut: CutLine, cuts: Path, *, has_signal: bool) -> _Place:
    """Return the place of an utterance."""
    try:
        return _Place.of(cut, has_signal=has_signal)
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


Timed = tuple[_Place, AlignedUtterance | None]


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
        tracks = _tracks(utterances)
        for form, (suffix, text) in _FORMS.items():
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
            times = {"start": _rounded(last), "end": _rounded(start)}
            found.append({"recording": place.recording, **times})
        last = max(last, end)
    return found


@dataclass
class _Track:
    """What one speaker says on one channel of a recording.

    Attributes:
        prefix: before the names of the tiers where there are several.
        labels: intervals by kind, `words` and `phones`.
    """

    speaker: str
    prefix: str
    labels: dict[str, list[Interval]]


def _tracks(utterances: list[Timed]) -> list[_Track]:
    """Return the words and phones of a recording by speaker and channel."""
    found = dict.fromkeys((place.speaker, place.channel) for place, _ in utterances)
    channels = {channel for _, channel in found}
    tracks = []
    for speaker, channel in found:
        prefix = "" if len(found) == 1 else f"{speaker} - "
        if len(channels) > 1:
            prefix = f"{speaker} ({channel + 1}) - "
        track = _Track(speaker, prefix, {"words": [], "phones": []})
        for place, timed in utterances:
            if timed is None or (place.speaker, place.channel) != (speaker, channel):
                continue
            words = ((w.start, w.end, w.word) for w in timed.words or ())
            phones = ((p.start, p.end, p.phone) for p in timed.spoken)
            for kind, intervals in (("words", words), ("phones", phones)):
                tier = track.labels[kind]
                tier.extend(_placed(tier, intervals, place))
        tracks.append(track)
    return tracks


def _tiers(tracks: list[_Track]) -> dict[str, list[Interval]]:
    """Return tiers by name."""
    return {
        f"{track.prefix}{kind}": intervals
        for track in tracks
        for kind, intervals in track.labels.items()
    }


def _as_mfa_json(tracks: list[_Track], end: float) -> str:
    """Return the JSON that MFA writes."""
    tiers = {
        name: {
            "type": "interval",
            "entries": [[_rounded(i.start), _rounded(i.end), i.text] for i in tier],
        }
        for name, tier in _tiers(tracks).items()
    }
    found = {"start": 0, "end": _rounded(end), "tiers": tiers}
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _as_csv(tracks: list[_Track], end: float) -> str:  # noqa: ARG001 - a form
    """Return the table that MFA writes of a recording."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("Begin", "End", "Label", "Type", "Speaker"))
    for track in tracks:
        for kind, intervals in track.labels.items():
            writer.writerows(
                (_rounded(start), _rounded(stop), text, kind, track.speaker)
                for start, stop, text in intervals
            )
    return stream.getvalue()


# Forms of a recording: suffix, and how they are made of tracks and the length.
_FORMS: dict[str, tuple[str, Callable[[list[_Track], float], str]]] = {
    "textgrid": (".TextGrid", lambda tracks, end: textgrid(_tiers(tracks), end)),
    "short_textgrid": (
        ".TextGrid",
        lambda tracks, end: short_textgrid(_tiers(tracks), end),
    ),
    "mfa_json": (".json", _as_mfa_json),
    "csv": (".csv", _as_csv),
}


def _placed(
    tier: list[Interval],
    intervals: Iterator[tuple[float, float, str]],
    place: _Place,
) -> Iterator[Interval]:
    """Yield intervals at their time in the recording, none over those of the tier."""
    last = tier[-1].end if tier else 0.0
    for start, end, text in intervals:
        begin = max(last, place.start + start)
        stop = min(place.length, place.start + end)
        if stop - begin >= 1e-4:  # what a TextGrid can tell from nothing
            yield Interval(begin, stop, text)
            last = stop


def _word_lines(place: _Place, timed: AlignedUtterance) -> Iterator[TimedWord]:
    """Yield the words of an utterance for a CTM file."""
    for word in timed.words or ():
        yield _timed(place, word.word, word)


def _phone_lines(place: _Place, timed: AlignedUtterance) -> Iterator[TimedWord]:
    """Yield the phones of an utterance for a CTM file, silences included."""
    for phone in timed.phones:
        yield _timed(place, phone.phone, phone)


def _timed(place: _Place, label: str, timed: AlignedWord | TimedPhone) -> TimedWord:
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
    place: _Place, timed: AlignedUtterance
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


def _json_values(place: _Place, timed: AlignedUtterance) -> dict[str, Any]:
    return {
        "utterance": place.id,
        "recording": place.recording,
        "channel": place.channel + 1,
        "speaker": place.speaker,
        "start": _rounded(place.start),
        "end": _rounded(place.start + place.duration),
        "text": " ".join(map(plain_word, place.text.split())),
        "confidence": _rounded(mean_confidence(timed.spoken)),
        "words": None
        if timed.words is None
        else [
            {
                "word": word.word,
                "start": _rounded(place.start + word.start),
                "end": _rounded(place.start + word.end),
                "confidence": _rounded(word.confidence),
                **_margins(word),
                "phones": [_phone_values(place, phone) for phone in word.phones],
            }
            for word in timed.words
        ],
        "phones": [_phone_values(place, phone) for phone in timed.phones],
    }


def _phone_values(place: _Place, phone: TimedPhone) -> dict[str, Any]:
    """Return a phone as JSON has it."""
    return {
        "phone": phone.phone,
        "start": _rounded(place.start + phone.start),
        "end": _rounded(place.start + phone.end),
        "score": _rounded(phone.score),
        "confidence": _rounded(phone.confidence),
        **_margins(phone),
    }


def _margins(timed: AlignedWord | TimedPhone) -> dict[str, Any]:
    """Return the intervals of a label's times, where they are known."""
    if timed.start_within is None:
        return {}
    return {"start_within": timed.start_within, "end_within": timed.end_within}


def _rounded(value: float | None) -> float | None:
    """Round to four decimals."""
    return None if value is None else round(value, 4)
