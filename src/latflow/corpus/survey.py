"""What one pass over the utterances of a split brings to light, for the doctor.

Public: `Finding`, `finding_of`, `Dictionary`, `Survey`, `some`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from latflow.errors import UserError
from latflow.lang.lexicon import Lexicon

Severity = Literal["error", "warning", "note"]
MAX_EXAMPLES = 5
OOV_WARNING_SHARE = 0.01  # of the running words of a training set
# Frames that Kaldi's silence topologies need at least (the middle states are ergodic).
MIN_SILENCE_FRAMES = 3


@dataclass(frozen=True)
class Finding:
    """One thing that the doctor found.

    Attributes:
        severity: `error`, `warning` or `note`.
        file: the file or folder to look at.
        what: what was found there.
        remedy: what to do about it.
    """

    severity: Severity
    file: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.file}: {self.what} - {self.remedy}"


def finding_of(error: UserError) -> Finding:
    """An error that the user would meet, as a finding."""
    what = f"{error.utterance}: {error.what}" if error.utterance else error.what
    return Finding("error", error.file or "", what, error.remedy or "mend it")


def some(items: list[str], total: int | None = None) -> str:
    """The first few of some items."""
    total = len(items) if total is None else total
    shown = ", ".join(items[:MAX_EXAMPLES])
    return f"{shown}, ..." if total > MAX_EXAMPLES else shown


@dataclass(frozen=True)
class Dictionary:
    """A lexicon, as far as the doctor needs it."""

    lexicon: Lexicon
    file: str
    lang: Mapping[str, Any]
    phones: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, lexicon: Lexicon, file: str, lang: Mapping[str, Any]) -> Dictionary:
        """Count the phones of each word's shortest pronunciation."""
        shortest: dict[str, int] = {}
        for entry in lexicon.entries:
            known = shortest.get(entry.word, len(entry.phones))
            shortest[entry.word] = min(known, len(entry.phones))
        return cls(lexicon, file, lang, shortest)

    def knows(self, word: str) -> bool:
        """Whether a word has a pronunciation, or is made up by the lang stage."""
        made = (self.lang["oov_word"], self.lang["silence_word"])
        return word in self.phones or word in made

    def min_frames(self, words: Iterable[str]) -> int:
        """Fewest frames that a path through the HMMs of the words takes."""
        states = self.lang["num_nonsilence_states"]
        unknown = min(MIN_SILENCE_FRAMES, self.lang["num_silence_states"])
        return sum(
            states * self.phones[word] if word in self.phones else unknown
            for word in words
        )


class Survey:
    """What one pass over the utterances of a split brings to light."""

    def __init__(
        self,
        split: str,
        file: str,
        dictionary: Dictionary | None,
        features: Mapping[str, Any],
    ) -> None:
        self.split = split
        self.file = file
        self._dictionary = dictionary
        self._features = features
        self.num_utterances = 0
        self.num_words = 0
        self.seconds = 0.0
        self.oov: Counter[str] = Counter()
        self.words: set[str] = set()
        self.speakers: set[str] = set()
        self.ids: set[str] = set()
        self.sample_rates: Counter[int] = Counter()
        self.too_short: list[str] = []
        self.num_too_short = 0

    def add(
        self,
        utt_id: str,
        speaker: str | None,
        words: list[str],
        *,
        duration: float | None = None,
        sample_rate: int | None = None,
    ) -> None:
        """Take note of one utterance.

        Args:
            utt_id: its id.
            speaker: who speaks, if known.
            words: the transcript.
            duration: seconds, if known.
            sample_rate: Hz, if known.
        """
        self.num_utterances += 1
        self.num_words += len(words)
        self.ids.add(utt_id)
        self.words.update(words)
        if speaker:
            self.speakers.add(speaker)
        if sample_rate is not None:
            self.sample_rates[sample_rate] += 1
        if self._dictionary is not None:
            self.oov.update(w for w in words if not self._dictionary.knows(w))
        if duration is not None:
            self.seconds += duration
            self._note_if_short(utt_id, words, duration)

    def _note_if_short(self, utt_id: str, words: list[str], duration: float) -> None:
        """Keep utterances that hold fewer frames than their transcript needs."""
        frames = _num_frames(duration, self._features)
        needed = 1 if self._dictionary is None else self._dictionary.min_frames(words)
        if frames < max(needed, 1):
            self.num_too_short += 1
            if len(self.too_short) < MAX_EXAMPLES:
                self.too_short.append(f"{utt_id} ({frames} of {needed} frames)")

    def findings(self) -> Iterator[Finding]:
        """What is wrong with this split by itself."""
        if self.num_too_short:
            yield Finding(
                "warning",
                self.file,
                f"{self.split}: {self.num_too_short} utterances are shorter than their "
                f"shortest pronunciation: {some(self.too_short)}",
                "check transcripts and segment times; training skips these",
            )
        if self.oov:
            tokens = self.oov.total()
            share = tokens / self.num_words
            frequent = [f"{word} ({n})" for word, n in self.oov.most_common(5)]
            is_train = self.split == "train" and share > OOV_WARNING_SHARE
            yield Finding(
                "warning" if is_train else "note",
                self.file,
                f"{self.split}: {len(self.oov)} words without pronunciation, {tokens} "
                f"of {self.num_words} running words ({100 * share:.2f} %), most "
                f"frequent: {some(frequent, len(self.oov))}",
                "add them to the lexicon"
                if self.split == "train"
                else "each is one error or more; add them to lexicon and LM",
            )


def _num_frames(duration: float, features: Mapping[str, Any]) -> int:
    """Frames of a signal, as Kaldi's NumFrames counts them (but in milliseconds)."""
    length_ms, shift_ms = features["frame_length_ms"], features["frame_shift_ms"]
    total_ms = round(duration * 1000, 6)
    if not features["snip_edges"]:
        return int(total_ms / shift_ms + 0.5)
    return 0 if total_ms < length_ms else 1 + int((total_ms - length_ms) / shift_ms)
