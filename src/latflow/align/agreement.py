"""Parts of an utterance in which its transcript and what was recognized agree.

`compare` lays both side by side in time: words, silences, errors. What borders an error
and is not sure itself (a silence, or an unknown word) is *tainted*: a word may be in it
that nobody recognized. `agreeing_segments` then looks for segments:

1. runs of correct words, unknown words and silences that are not tainted, with at least
   one correct word;
2. long silences divide a run, or are shortened at its ends;
3. where a run ends in a word, a little audio more is taken, since the end of the word
   may be in it. The unknown word stands for it, unless it is a silence;
4. an end goes, up to the next silence, if such audio is a large part of it; then what
   is too short, or of which such audio is a large part;
5. segments that touch each other are joined; few words that the recognizer has left out
   between them stay in the transcript.

So a segment holds an error only where two segments were joined over it: words that were
left out, or a wrong word, or a silence beside one, shorter than twice the audio of 3.

Source: Kaldi `steps/cleanup/internal/taint_ctm_edits.py` and `segment_ctm_edits.py`.
Unlike there, transcripts are never changed to have a repetition or a noise that was
recognized; of a tainted neighbour no more is taken than of others; length is looked at
after 4.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from latflow.corpus.ctm import TimedWord
from latflow.corpus.derived_options import CleanedSetOptions
from latflow.lattice.edit_distance import align_words

_EPSILON = 1e-6  # seconds: no silence

Kind = Literal["correct", "unknown", "silence", "wrong", "left out"]


@dataclass(frozen=True)
class Line:
    """Something that follows what was before it in an utterance.

    Attributes:
        start: seconds from the start of the utterance.
        end: likewise; equal to `start` where words were left out.
        kind: `correct`, `unknown` (a word that the lexicon lacks, recognized as the
            unknown word; a noise that both have), `silence` (other noises, too),
            `wrong` (another word, or one too much), `left out` (words of the transcript
            alone).
        words: of the transcript; several only where words were left out.
        is_tainted: whether it borders an error and may have its part in it.
    """

    start: float
    end: float
    kind: Kind
    words: tuple[str, ...] = ()
    is_tainted: bool = False

    @property
    def duration(self) -> float:
        """Seconds."""
        return self.end - self.start

    @property
    def is_error(self) -> bool:
        """Whether transcript and recognized words differ."""
        return self.kind in {"wrong", "left out"}

    @property
    def is_unsure(self) -> bool:
        """Whether it is an error, or borders one."""
        return self.is_error or self.is_tainted


def compare(
    words: Sequence[str],
    recognized: Sequence[TimedWord],
    duration: float,
    *,
    is_known: Callable[[str], bool],
    unknown_word: str,
    noises: Collection[str] = (),
) -> list[Line]:
    """Lay the words of a transcript and recognized words side by side.

    Args:
        words: the transcript.
        recognized: words, in order, times from the start of the utterance.
        duration: of the utterance, seconds.
        is_known: whether a word is in the lexicon.
        unknown_word: what stands for the others.
        noises: words without speech. One instead of another, or of none, counts as
            silence; one that was not recognized is passed over.

    Returns:
        Lines from 0 to `duration`, without gaps. Words left out come before the silence
        at their place.
    """
    reference = [word if is_known(word) else unknown_word for word in words]
    pairs = align_words(reference, [each.word for each in recognized]).pairs
    lines: list[Line] = []
    own, spoken = iter(words), iter(recognized)
    time, left_out = 0.0, ()

    def advance(end: float, kind: Kind, words: tuple[str, ...] = ()) -> None:
        nonlocal time
        end = min(max(end, time), duration)
        if kind == "silence" and lines and lines[-1].kind == "silence":
            lines[-1] = replace(lines[-1], end=end)
        elif kind != "silence" or end > time + _EPSILON:
            lines.append(Line(time, end, kind, words))
        time = end

    for expected, found in pairs:
        word = None if expected is None else next(own)
        if found is None:
            left_out += () if word is None or word in noises else (word,)
            continue
        if left_out:
            advance(time, "left out", left_out)
            left_out = ()
        timed = next(spoken)
        advance(timed.start, "silence")
        if found in noises and expected != found and (word is None or word in noises):
            advance(timed.end, "silence")
            continue
        kind = "correct" if expected == found else "wrong"
        if kind == "correct" and (found == unknown_word or found in noises):
            kind = "unknown"
        advance(timed.end, kind, () if word is None else (word,))
    if left_out:
        advance(time, "left out", left_out)
    advance(duration, "silence")
    return _tainted(lines)


def _tainted(lines: Sequence[Line]) -> list[Line]:
    """Return lines with those tainted that border an error; see the module."""
    is_tainted = [False] * len(lines)
    for order in (range(len(lines)), reversed(range(len(lines)))):
        is_beside = False
        for n in order:
            if lines[n].is_error or lines[n].kind == "correct":
                is_beside = lines[n].is_error
            else:
                is_tainted[n] |= is_beside
    marked = zip(lines, is_tainted, strict=True)
    return [replace(line, is_tainted=tainted) for line, tainted in marked]


@dataclass
class Segment:
    """A part of an utterance; its lines are those from `first` to before `last`.

    Attributes:
        lines: of the utterance.
        first: first line.
        last: one past the last line.
        start: seconds from the start of the utterance, without padding.
        end: likewise.
        padding: audio taken before and after, seconds each.
        has_unknown: whether the unknown word stands for it, each.
        silent: lines whose words are not part of the transcript.
    """

    lines: Sequence[Line]
    first: int
    last: int
    start: float
    end: float
    padding: tuple[float, float] = (0.0, 0.0)
    has_unknown: tuple[bool, bool] = (False, False)
    silent: set[int] = field(default_factory=set)

    @property
    def begin(self) -> float:
        """Start with padding."""
        return self.start - self.padding[0]

    @property
    def finish(self) -> float:
        """End with padding."""
        return self.end + self.padding[1]

    @property
    def length(self) -> float:
        """Seconds, with padding."""
        return self.finish - self.begin

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the utterance."""
        return self.begin < _EPSILON and self.finish > self.lines[-1].end - _EPSILON

    @property
    def has_correct_word(self) -> bool:
        """Whether a word was recognized as it is in the transcript."""
        inside = range(self.first, self.last)
        return any(self.lines[n].kind == "correct" for n in inside)

    def words(self, unknown_word: str) -> list[str]:
        """Return the transcript; the unknown word stands for padding."""
        own = [
            word
            for n in range(self.first, self.last)
            for word in self.lines[n].words
            if n not in self.silent
        ]
        before, after = ([unknown_word] if each else [] for each in self.has_unknown)
        return [*before, *own, *after]


def agreeing_segments(
    lines: Sequence[Line], options: CleanedSetOptions
) -> tuple[list[Segment], list[tuple[Segment, str]]]:
    """Return the segments of an utterance, and others with the reason they are dropped.

    Args:
        lines: of `compare`.
        options: bounds.

    Returns:
        Segments in order that do not overlap, and (segment, `too short` or `unsure`).
    """
    kept: list[Segment] = []
    dropped: list[tuple[Segment, str]] = []
    for run in _runs(lines):
        for part in _divided(run, options):
            _pad(part, options)
            for at_end in (False, True):
                _cut_junk(part, options, at_end=at_end)
            shortest = max(options.min_new_segment, options.min_segment)
            if part.is_whole:
                shortest = options.min_segment
            is_sure = sum(part.padding) <= options.max_junk * part.length
            if part.length < 0.999 * shortest:
                dropped.append((part, "too short"))
            elif not is_sure or not part.has_correct_word:
                dropped.append((part, "unsure"))
            elif kept and kept[-1].finish >= part.begin:
                _join(kept[-1], part, options.max_left_out_words)
            else:
                kept.append(part)
    return kept, dropped


def _runs(lines: Sequence[Line]) -> Iterator[Segment]:
    """Yield runs of lines without error, each with a correct word."""
    first = 0
    while first < len(lines):
        last = first
        while last < len(lines) and not (
            lines[last].is_error or lines[last].is_tainted
        ):
            last += 1
        if any(line.kind == "correct" for line in lines[first:last]):
            yield Segment(lines, first, last, lines[first].start, lines[last - 1].end)
        first = last + 1


def _divided(run: Segment, options: CleanedSetOptions) -> Iterator[Segment]:
    """Yield the parts of a run between long silences, silence at their ends shortened.

    It is left longer where a part would else be too short.
    """
    lines, first, start = run.lines, run.first, run.start
    longest = options.max_internal_silence
    inner = [
        n
        for n in range(run.first + 1, run.last - 1)
        if lines[n].kind == "silence" and lines[n].duration > longest
    ]
    for n in inner:
        middle = lines[n].start + lines[n].duration / 2
        yield _shortened(Segment(lines, first, n + 1, start, middle), options)
        first, start = n, middle
    yield _shortened(Segment(lines, first, run.last, start, run.end), options)


def _shortened(part: Segment, options: CleanedSetOptions) -> Segment:
    """Shorten long silences at the ends of a segment; return it."""
    first, last = part.lines[part.first], part.lines[part.last - 1]
    longest = options.max_edge_silence
    before = min(part.end, first.end) - part.start - longest
    after = part.end - max(part.start, last.start) - longest
    before = max(0.0, before) if first.kind == "silence" else 0.0
    after = max(0.0, after) if last.kind == "silence" else 0.0
    if before + after > 0.0:
        missing = max(options.min_new_segment, options.min_segment)
        missing -= part.length - before - after
        share = 1.0 - min(1.0, max(0.0, missing / (before + after)))
        part.start += share * before
        part.end -= share * after
    return part


def _pad(part: Segment, options: CleanedSetOptions) -> None:
    """Take some audio beyond words at the ends of a segment, if there is some."""
    lines, wanted = part.lines, options.unknown_padding
    before = range(part.first, -1, -1)
    after = range(part.last - 1, len(lines))
    first = _padding(lines, before, part.start, wanted)
    last = _padding(lines, after, lines[-1].end - part.end, wanted)
    part.padding, part.has_unknown = (first[0], last[0]), (first[1], last[1])


def _padding(
    lines: Sequence[Line], outward: range, room: float, wanted: float
) -> tuple[float, bool]:
    """Return the audio to take beyond a line, and whether a word may be in it.

    Args:
        lines: of the utterance.
        outward: the line, and those beyond it.
        room: audio beyond it, seconds; less than half of what is wanted is not taken.
        wanted: seconds.
    """
    room = min(room, wanted)
    if lines[outward[0]].kind == "silence" or not room or room < 0.5 * wanted:
        return 0.0, False
    beyond = next(lines[n] for n in outward[1:] if lines[n].kind != "left out")
    return room, beyond.kind != "silence" or beyond.duration < room


def _cut_junk(part: Segment, options: CleanedSetOptions, *, at_end: bool) -> None:
    """Cut an end of a segment off, up to its nearest silence, if much is unsure."""
    junk = part.padding[int(at_end)]
    inner = range(part.first + 1, part.last - 1)
    positions = reversed(inner) if at_end else inner
    lines = part.lines
    position = next((n for n in positions if _is_gap(lines[n], options)), None)
    if not junk or position is None:
        return
    line = lines[position]
    removed = part.finish - line.end if at_end else line.start - part.begin
    if junk < options.max_junk * removed:
        return
    (before, after), (is_before, is_after) = part.padding, part.has_unknown
    if at_end:
        part.last, part.end = position + 1, line.end
        part.padding, part.has_unknown = (before, 0.0), (is_before, False)
    else:
        part.first, part.start = position, line.start
        part.padding, part.has_unknown = (0.0, after), (False, is_after)
    _shortened(part, options)


def _is_gap(line: Line, options: CleanedSetOptions) -> bool:
    """Return whether a segment may begin or end with a line."""
    return line.kind == "silence" and line.duration > options.min_split_silence


def _join(segment: Segment, other: Segment, max_left_out_words: int) -> None:
    """Add a segment that touches or overlaps another to it."""
    ends = segment.last - 1, other.first
    between = range(min(ends), max(ends) + 1)
    left_out = [n for n in between if segment.lines[n].kind == "left out"]
    if sum(len(segment.lines[n].words) for n in left_out) > max_left_out_words:
        segment.silent.update(left_out)
    segment.last, segment.end = other.last, other.end
    segment.padding = segment.padding[0], other.padding[1]
    segment.has_unknown = segment.has_unknown[0], other.has_unknown[1]
