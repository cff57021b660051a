"""Write what speakers say in a recording: TextGrids, and MFA's JSON and CSV.

They have the words and phones of each speaker in tiers.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from latflow.align.timing import AlignedUtterance
from latflow.corpus.json_lines import CutLine
from latflow.corpus.textgrid import Interval, short_textgrid, textgrid


@dataclass
class Place:
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
    def of(cls, cut: CutLine, *, has_signal: bool) -> Place:
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


Timed = tuple[Place, AlignedUtterance | None]


@dataclass
class Track:
    """What one speaker says on one channel of a recording.

    Attributes:
        prefix: before the names of the tiers where there are several.
        labels: intervals by kind, `words` and `phones`.
    """

    speaker: str
    prefix: str
    labels: dict[str, list[Interval]]


def tracks_of(utterances: list[Timed]) -> list[Track]:
    """Return the words and phones of a recording by speaker and channel."""
    found = dict.fromkeys((place.speaker, place.channel) for place, _ in utterances)
    channels = {channel for _, channel in found}
    tracks = []
    for speaker, channel in found:
        prefix = "" if len(found) == 1 else f"{speaker} - "
        if len(channels) > 1:
            prefix = f"{speaker} ({channel + 1}) - "
        track = Track(speaker, prefix, {"words": [], "phones": []})
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


def _tiers(tracks: list[Track]) -> dict[str, list[Interval]]:
    return {
        f"{track.prefix}{kind}": intervals
        for track in tracks
        for kind, intervals in track.labels.items()
    }


def _as_mfa_json(tracks: list[Track], end: float) -> str:
    """Return the JSON that MFA writes."""
    tiers = {
        name: {
            "type": "interval",
            "entries": [[rounded(i.start), rounded(i.end), i.text] for i in tier],
        }
        for name, tier in _tiers(tracks).items()
    }
    found = {"start": 0, "end": rounded(end), "tiers": tiers}
    return json.dumps(found, ensure_ascii=False, indent=1) + "\n"


def _as_csv(tracks: list[Track], end: float) -> str:  # noqa: ARG001 - a form
    """Return the table that MFA writes of a recording."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(("Begin", "End", "Label", "Type", "Speaker"))
    for track in tracks:
        for kind, intervals in track.labels.items():
            writer.writerows(
                (rounded(start), rounded(stop), text, kind, track.speaker)
                for start, stop, text in intervals
            )
    return stream.getvalue()


# Forms of a recording: suffix, and how they are made of tracks and the length.
FORMS: dict[str, tuple[str, Callable[[list[Track], float], str]]] = {
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
    place: Place,
) -> Iterator[Interval]:
    """Yield intervals at their time in the recording, none over those of the tier."""
    last = tier[-1].end if tier else 0.0
    for start, end, text in intervals:
        begin = max(last, place.start + start)
        stop = min(place.length, place.start + end)
        if stop - begin >= 1e-4:  # longer than a TextGrid's resolution
            yield Interval(begin, stop, text)
            last = stop


def rounded(value: float | None) -> float | None:
    """Round to four decimals."""
    return None if value is None else round(value, 4)
