"""Text forms of recognized audio: txt, json, ctm, srt, vtt, TextGrid.

Times are rounded to milliseconds, confidences to four decimals, so that the same words
give the same bytes. `docs/serving.md` describes the JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from latflow.corpus.ctm import TimedWord, ctm_line
from latflow.corpus.textgrid import Interval, textgrid
from latflow.serving.results import Hypothesis, Segment

JSON_FORMAT = "latflow-transcription-1"

# What subtitles are held to: two lines a cue, and a reader's patience.
LINE_CHARACTERS = 42
CUE_MILLISECONDS = 7000
# A pause of this length is as good a place for a new cue as a full one.
_LONG_PAUSE = 1000


@dataclass(frozen=True, eq=False)
class Transcription:
    """Result of recognition in one channel of a recording.

    Attributes:
        name: of the recording.
        duration: of the audio, seconds.
        segments: in order of time.
        channel: NIST's channel name.
        model: name and version of the package that recognized it, for the JSON.
    """

    name: str
    duration: float
    segments: Sequence[Segment]
    channel: str = "1"
    model: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All words, parted by spaces."""
        return " ".join(text for s in self.segments if (text := s.best.text))


def render(transcription: Transcription, form: str) -> str:
    """Return a transcription as text in one of `FORMATS`."""
    return FORMATS[form](transcription)


def log_probabilities(words: Sequence[TimedWord]) -> list[dict[str, Any]]:
    """Return the confidences of words as OpenAI's clients read those of tokens."""
    return [
        {
            "token": word.word,
            "logprob": math.log(max(word.confidence or 0.0, 1e-10)),
            "bytes": list(word.word.encode()),
        }
        for word in words
    ]


def _as_txt(transcription: Transcription) -> str:
    """Write a line a segment; none of a segment without words."""
    texts = (segment.best.text for segment in transcription.segments)
    return "".join(f"{text}\n" for text in texts if text)


def _as_ctm(transcription: Transcription) -> str:
    """Write NIST's CTM; blanks in the recording's name become underscores."""
    name = re.sub(r"\s", "_", transcription.name)
    return "".join(
        ctm_line(replace(word, utterance=name, channel=transcription.channel))
        for segment in transcription.segments
        for word in segment.best.words
    )


def _as_json(transcription: Transcription) -> str:
    """Write segments, words and alternatives; see `docs/serving.md`."""
    value = {
        "format": JSON_FORMAT,
        "model": dict(transcription.model),
        "audio": transcription.name,
        "channel": transcription.channel,
        "duration": _seconds(transcription.duration),
        "text": transcription.text,
        "segments": [_segment_values(segment) for segment in transcription.segments],
    }
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _segment_values(segment: Segment) -> dict[str, Any]:
    """Return a segment as JSON has it."""
    values = {
        "start": _seconds(segment.start),
        "end": _seconds(segment.end),
        **_hypothesis_values(segment.best),
    }
    if others := segment.hypotheses[1:]:
        values["alternatives"] = [_hypothesis_values(other) for other in others]
    return values


def _hypothesis_values(hypothesis: Hypothesis) -> dict[str, Any]:
    """Return a hypothesis as JSON has it."""
    return {
        "text": hypothesis.text,
        "confidence": _rounded(hypothesis.confidence),
        "words": [
            {
                "word": word.word,
                "start": _seconds(word.start),
                "end": _seconds(word.end),
                "confidence": _rounded(word.confidence),
            }
            for word in hypothesis.words
        ],
    }


def _seconds(time: float) -> float:
    """Round a time to milliseconds."""
    return round(float(time), 3)


def _rounded(confidence: float | None) -> float | None:
    return None if confidence is None else round(float(confidence), 4)


class _Label(NamedTuple):
    """A word, or a cue's words, from one millisecond to another."""

    start: int
    end: int
    text: str


def _labels(words: Sequence[TimedWord], begin: int = 0) -> Iterator[_Label]:
    """Yield words that do not overlap and last a millisecond at least.

    Args:
        begin: millisecond before which none starts.
    """
    for word in words:
        start = max(begin, round(1000 * word.start))
        begin = max(start + 1, round(1000 * word.end))
        yield _Label(start, begin, word.word)


def _cues(transcription: Transcription) -> Iterator[_Label]:
    """Yield the cues of all segments; their text has its line break."""
    end = 0
    for segment in transcription.segments:
        words = list(_labels(segment.best.words, end))
        for first, last in pairwise(_cue_bounds(words)):
            lines = _lines([word.text for word in words[first:last]])
            end = words[last - 1].end
            yield _Label(words[first].start, end, "\n".join(lines))


def _cue_bounds(words: Sequence[_Label]) -> list[int]:
    """Divide words into cues: few, about equally full, apart where there are pauses.

    Returns:
        Index of the first word of each cue, then the number of words.
    """
    best = [0.0]  # cost of the cues of the first i words
    origin = [0]
    for last in range(1, len(words) + 1):
        choices = [
            (best[first] + _cue_cost(words, first, last), first)
            for first in _fitting(words, last)
        ]
        cost, first = min(choices)
        best.append(cost)
        origin.append(first)
    bounds = [len(words)]
    while bounds[-1]:
        bounds.append(origin[bounds[-1]])
    return bounds[::-1]


def _fitting(words: Sequence[_Label], last: int) -> Iterator[int]:
    """Yield where a cue may begin that ends before a word: one word always fits."""
    yield last - 1
    for first in range(last - 2, -1, -1):
        is_long = words[last - 1].end - words[first].start > CUE_MILLISECONDS
        if is_long or not _fits([word.text for word in words[first:last]]):
            return
        yield first


def _cue_cost(words: Sequence[_Label], first: int, last: int) -> float:
    """Return the cost of a cue: of its being there, of space unused, less its pause."""
    used = sum(len(word.text) + 1 for word in words[first:last]) - 1
    unused = max(0.0, 1.0 - used / (2 * LINE_CHARACTERS))
    if last == len(words):
        return 1.0 + unused**2
    pause = words[last].start - words[last - 1].end
    return 1.0 + unused**2 - min(1.0, pause / _LONG_PAUSE)


def _fits(words: Sequence[str]) -> bool:
    """Return whether words fit two lines."""
    return max(map(len, _lines(words))) <= LINE_CHARACTERS


def _lines(words: Sequence[str]) -> list[str]:
    """Return words on one line, or on the two that differ least in length."""
    text = " ".join(words)
    if len(text) <= LINE_CHARACTERS or len(words) == 1:
        return [text]
    breaks = [i for i, character in enumerate(text) if character == " "]
    middle = min(breaks, key=lambda i: abs(2 * i + 1 - len(text)))
    return [text[:middle], text[middle + 1 :]]


def _as_srt(transcription: Transcription) -> str:
    """Write SubRip's subtitles."""
    return "".join(
        f"{number}\n{_clock(start, ',')} --> {_clock(end, ',')}\n{text}\n\n"
        for number, (start, end, text) in enumerate(_cues(transcription), start=1)
    )


def _as_vtt(transcription: Transcription) -> str:
    """Write subtitles of the web (W3C's WebVTT)."""
    cues = (
        f"{_clock(start, '.')} --> {_clock(end, '.')}\n{_escaped(text)}\n\n"
        for start, end, text in _cues(transcription)
    )
    return "WEBVTT\n\n" + "".join(cues)


def _clock(milliseconds: int, point: str) -> str:
    """Return a time as hours, minutes, seconds and thousandths."""
    seconds, thousandths = divmod(milliseconds, 1000)
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{seconds:02}{point}{thousandths:03}"


def _escaped(text: str) -> str:
    """Return text in which WebVTT sees no tag."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _as_textgrid(transcription: Transcription) -> str:
    """Write Praat's long TextGrid: a tier of words, a tier of segments."""
    words = [word for s in transcription.segments for word in s.best.words]
    segments = [
        TimedWord("", s.start, s.end - s.start, s.best.text)
        for s in transcription.segments
    ]
    tiers = {"words": list(_labels(words)), "segments": list(_labels(segments))}
    ends = [label.end for labels in tiers.values() for label in labels]
    end = max([round(1000 * transcription.duration), 1, *ends]) / 1000
    return textgrid(
        {
            name: [Interval(start / 1000, stop / 1000, t) for start, stop, t in labels]
            for name, labels in tiers.items()
        },
        end,
    )


FORMATS: Mapping[str, Callable[[Transcription], str]] = {
    "txt": _as_txt,
    "json": _as_json,
    "ctm": _as_ctm,
    "srt": _as_srt,
    "vtt": _as_vtt,
    "textgrid": _as_textgrid,
}
# Endings of files' names, as the programs that read them expect.
EXTENSIONS = {name: "TextGrid" if name == "textgrid" else name for name in FORMATS}
