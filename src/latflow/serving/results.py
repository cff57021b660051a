"""Results of recognition: hypotheses, segments, events of a session."""

from __future__ import annotations

from dataclasses import dataclass, replace

from latflow.corpus.ctm import TimedWord
from latflow.lattice.lattice import Lattice

SILENCE = 6  # of a segment's `endpoint_rule`: no rule of Kaldi's, but silence by VAD


@dataclass(frozen=True)
class Hypothesis:
    """A word sequence that a segment of speech may hold.

    Attributes:
        words: with times in seconds from the beginning of the audio, and confidences;
            none where nothing was recognized.
        confidence: posterior probability of the word sequence in the lattice.
    """

    words: tuple[TimedWord, ...]
    confidence: float

    @property
    def text(self) -> str:
        """The words, parted by spaces."""
        return " ".join(word.word for word in self.words)


@dataclass(frozen=True, eq=False)
class Segment:
    """A stretch of audio, recognized to its end.

    Attributes:
        start: seconds from the beginning of the audio.
        end: seconds from the beginning of the audio.
        hypotheses: at least one, the best first.
        endpoint_rule: rule that ended it, 1 to 5 (Kaldi's), or `SILENCE`; 0 where the
            audio ended.
        lattice: state-level lattice with unscaled acoustic costs; None unless asked
            for, or where no frame was recognized.
        warning: why nothing was recognized although there was audio (the search came
            to a dead end); None otherwise.
        no_speech: posterior probability, in the lattice, that there was no word.
    """

    start: float
    end: float
    hypotheses: tuple[Hypothesis, ...]
    endpoint_rule: int = 0
    lattice: Lattice | None = None
    warning: str | None = None
    no_speech: float = 1.0

    @property
    def best(self) -> Hypothesis:
        """The best hypothesis."""
        return self.hypotheses[0]


@dataclass(frozen=True)
class Partial:
    """The words so far of a segment that continues.

    Attributes:
        start: beginning of the segment, seconds from the beginning of the audio.
        text: words of the best path, parted by spaces.
    """

    start: float
    text: str


@dataclass(frozen=True, eq=False)
class Final:
    """A segment that has ended."""

    segment: Segment


Event = Partial | Final


def moved(segment: Segment, seconds: float) -> Segment:
    """Return a segment that is later in its recording."""
    hypotheses = tuple(
        replace(
            hypothesis,
            words=tuple(
                replace(word, start=word.start + seconds) for word in hypothesis.words
            ),
        )
        for hypothesis in segment.hypotheses
    )
    return replace(
        segment,
        start=segment.start + seconds,
        end=segment.end + seconds,
        hypotheses=hypotheses,
    )
