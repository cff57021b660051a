"""Words and phones of alignments, with times and scores.

Frame t of an alignment stands for the time from `offset` + t * `frame_shift` on, where
the offset puts the middle of that time on the middle of the frame's window. Kaldi's
front end, and ours, lay windows of 25 ms every 10 ms from the first sample on, so
that times without the offset are 7.5 ms early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from latflow.align.phone_sums import PhoneSums
from latflow.align.word_times import Pronunciations, phone_segments, split_phones
from latflow.corpus.dictionaries import plain_word
from latflow.errors import UserError
from latflow.files import read_json
from latflow.hmm.transition_model import TransitionModel
from latflow.lang.directory import Lang
from latflow.ragged import RaggedStore

Within = tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class TimedPhone:
    """A phone with its time.

    Attributes:
        phone: without its position in the word.
        start: seconds from the beginning of the utterance.
        end: likewise.
        score: mean acoustic log-likelihood of its frames; None where not known.
        confidence: see `PhoneScores`; None where there is no score.
        start_within: half-widths of the intervals around the start that hold the true
            one with 80 and 95 %, seconds; None where they are not known.
        end_within: likewise of the end.
    """

    phone: str
    start: float
    end: float
    score: float | None
    confidence: float | None
    start_within: Within = None
    end_within: Within = None


@dataclass(frozen=True, slots=True)
class AlignedWord:
    """A word with its phones.

    Attributes:
        word: as the transcript has it, without the name of a dictionary.
        phones: at least one.
    """

    word: str
    phones: tuple[TimedPhone, ...]

    @property
    def start(self) -> float:
        """Seconds from the beginning of the utterance."""
        return self.phones[0].start

    @property
    def end(self) -> float:
        """Likewise."""
        return self.phones[-1].end

    @property
    def start_within(self) -> Within:
        """See `TimedPhone`."""
        return self.phones[0].start_within

    @property
    def end_within(self) -> Within:
        """Likewise."""
        return self.phones[-1].end_within

    @property
    def confidence(self) -> float | None:
        """Mean of its phones', None without."""
        return mean_confidence(self.phones)


@dataclass(frozen=True, slots=True)
class AlignedUtterance:
    """Words and phones of an utterance.

    Attributes:
        words: of the transcript; None where the phones are not pronunciations of it.
        phones: all, silences between words included.
        silence: names of the phones that stand between words.
    """

    words: tuple[AlignedWord, ...] | None
    phones: tuple[TimedPhone, ...]
    silence: frozenset[str]

    @property
    def spoken(self) -> tuple[TimedPhone, ...]:
        """The phones of words."""
        if self.words is None:
            return tuple(p for p in self.phones if p.phone not in self.silence)
        return tuple(phone for word in self.words for phone in word.phones)


def mean_confidence(phones: Sequence[TimedPhone]) -> float | None:
    """Return the mean confidence of phones; None where one has none."""
    found = [phone.confidence for phone in phones if phone.confidence is not None]
    return sum(found) / len(found) if found and len(found) == len(phones) else None


class PhoneScores:
    """Confidences of phones of a corpus, by its scores.

    The score of a phone is the mean acoustic log-likelihood of its frames. Its
    confidence is the share of occurrences of the same phone that would score lower,
    were their scores normally distributed: low ones are worth a look. A phone that
    occurs once is compared with all phones.
    """

    def __init__(self) -> None:
        self._sums = PhoneSums()

    def add(self, phones: Sequence[str], scores: np.ndarray) -> None:
        """Take note of the phones of an utterance."""
        for phone, score in zip(phones, scores.tolist(), strict=True):
            self._sums.add(phone, score)

    def confidence(self, phone: str, score: float) -> float | None:
        """Return the confidence of a phone; None in a corpus of one."""
        own = self._sums.of(phone)
        known = own if own.number > 1 else self._sums.of_all()
        if known.number < 2:
            return None
        spread = math.sqrt(2.0 * max(known.variance, 1e-6))
        return 0.5 * (1.0 + math.erf((score - known.mean) / spread))


class Boundaries(NamedTuple):
    """Boundaries of the N phones of an utterance.

    Attributes:
        times: seconds from the beginning of the utterance, float64[N + 1]: 0, where
            each next phone begins, and the utterance's end.
        margins: half-widths of the intervals around them that hold the true ones with
            80 and 95 %, seconds, float32[N + 1, 2]; [0, 2] where they are not known.
    """

    times: np.ndarray
    margins: np.ndarray

    @property
    def within(self) -> list[Within]:
        """Margins of each boundary, in whole tenths of a millisecond."""
        if not len(self.margins):
            return [None] * len(self.times)
        return [(a, b) for a, b in np.round(self.margins.astype(float), 4).tolist()]


class PhoneTimes(RaggedStore):
    """`Boundaries` of aligned utterances, where they are not frames'."""

    FORMAT = "latflow-phone-times-2"
    KIND = "store of phones' times"
    REMEDY = "run the refine_boundaries stage again"
    COLUMNS: ClassVar = {"times": ("<f8", 1), "margins": ("<f4", 2)}

    def get(self, utterance: str) -> Boundaries | None:
        """Return those of an utterance; None without it."""
        if utterance not in self:
            return None
        position = self.position(utterance)
        return Boundaries(self["times"][position], self["margins"][position])


class Timer:
    """Gives words and phones of alignments their times.

    Args:
        lang: the lang directory of the alignments.
        model: what transition-ids are ids of.
        frame_shift: seconds from frame to frame of the alignments.
        offset: time of the first frame, seconds; see above.
    """

    def __init__(
        self, lang: Lang, model: TransitionModel, *, frame_shift: float, offset: float
    ) -> None:
        self._lang, self._model = lang, model
        self._offset = offset
        self._pronunciations = Pronunciations(
            {w: [entry for _, entry in es] for w, es in lang.lexicon.items()},
            [lang.phones[lang.optional_silence]],
            is_position_dependent=lang.word_boundary is not None,
        )
        base = self._pronunciations.base
        self._names = {number: base(name) for number, name in lang.phones.items()}
        self.frame_shift = frame_shift
        self.scores = PhoneScores()

    @classmethod
    def load(
        cls,
        lang_dir: Path,
        model_dir: Path,
        statistics: Path,
        *,
        first_middle: float | None,
    ) -> Self:
        """Read what the times of alignments depend on.

        Args:
            lang_dir: the lang directory of the alignments.
            model_dir: folder with the `final.mdl` that aligned.
            statistics: `statistics.json` of the alignments, which has the frame shift.
            first_middle: middle of the window of the features' first frame, seconds;
                None where `statistics.json` has it.

        Raises:
            UserError: one of them is missing or garbled.
        """

        def times(known: dict[str, Any]) -> tuple[float, float]:
            middle = known["first_middle"] if first_middle is None else first_middle
            shift = float(known["frame_shift"])
            if not 0 < shift <= 1 or not abs(float(middle)) < 60:
                raise ValueError(f"a frame shift of {shift} s")
            return shift, float(middle)

        what = "statistics of alignments"
        frame_shift, middle = read_json(statistics, times, what, "align the data again")
        return cls(
            Lang.load(lang_dir),
            TransitionModel.load(model_dir / "final.mdl"),
            frame_shift=frame_shift,
            offset=middle - frame_shift / 2,
        )

    @property
    def phone_names(self) -> list[str]:
        """All names that phones may have, each once, without positions in words."""
        return sorted(set(self._names.values()))

    def phones(
        self, transition_ids: np.ndarray, duration: float
    ) -> tuple[list[str], np.ndarray]:
        """Return the phones of an utterance and their times by its frames.

        Args:
            transition_ids: int32[T].
            duration: of the utterance, seconds.

        Returns:
            (N names, boundaries in seconds float64[N + 1], from 0 to `duration`).
        """
        names, bounds = self._segments(transition_ids)
        return names, self._times(bounds, duration)

    def _segments(self, transition_ids: np.ndarray) -> tuple[list[str], list[int]]:
        """Return the names of phones, and first frames with T at the end."""
        phones, bounds, _ = phone_segments(transition_ids, self._model)
        return [self._names[phone] for phone in phones], bounds

    def _times(self, bounds: list[int], duration: float) -> np.ndarray:
        """Return the times of first frames, float64[N + 1]."""
        times = np.round(self._offset + self.frame_shift * np.array(bounds), 6)
        times[0], times[-1] = 0.0, duration
        return np.clip(times, 0.0, duration)

    def note(self, transition_ids: np.ndarray, log_likes: np.ndarray) -> None:
        """Take note of the scores of an utterance, for confidences."""
        names, bounds = self._segments(transition_ids)
        self.scores.add(names, _means(log_likes, bounds))

    def time(
        self,
        text: str,
        transition_ids: np.ndarray,
        duration: float,
        log_likes: np.ndarray | None = None,
        bounds: Boundaries | None = None,
    ) -> AlignedUtterance:
        """Return the words and phones of an utterance.

        Args:
            text: its transcript.
            transition_ids: int32[T].
            duration: of the utterance, seconds; its last phone ends there.
            log_likes: float32[T], acoustic log-likelihoods.
            bounds: boundaries of its phones; None for those of frames.

        Raises:
            UserError: the times are not of these phones.
        """
        names, first = self._segments(transition_ids)
        if bounds is None:
            bounds = Boundaries(self._times(first, duration), np.zeros((0, 2)))
        if len(bounds.times) != len(first):
            raise UserError(
                f"times of {len(bounds.times) - 1} phones, where the alignment has "
                f"{len(names)}",
                remedy=PhoneTimes.REMEDY,
            )
        scores: list[float | None] = [None] * len(names)
        sure = list(scores)
        if log_likes is not None:
            found = _means(log_likes, first).tolist()
            scores = list(found)
            pairs = zip(names, found, strict=True)
            sure = [self.scores.confidence(name, score) for name, score in pairs]
        ends, within = bounds.times.tolist(), bounds.within
        columns = (names, ends[:-1], ends[1:], scores, sure, within[:-1], within[1:])
        timed = tuple(map(TimedPhone, *columns))
        words = text.split()
        known = [self._lang.words[i] for i in self._lang.words_to_ids(text)]
        spans = split_phones(names, known, self._pronunciations)
        silence = self._pronunciations.silence
        if spans is None:
            return AlignedUtterance(None, timed, silence)
        aligned = tuple(
            AlignedWord(plain_word(word), timed[first:last])
            for word, (first, last) in zip(words, spans, strict=True)
        )
        return AlignedUtterance(aligned, timed, silence)


def _means(log_likes: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
    """Return the mean over the frames of each phone, float64[N]."""
    begin = np.array(bounds)
    if bounds[-1] > len(log_likes):
        raise UserError(
            f"{len(log_likes)} log-likelihoods of {bounds[-1]} frames of an alignment",
            remedy="align the data again",
        )
    sums = np.add.reduceat(log_likes.astype(np.float64), begin[:-1])
    return sums / np.diff(begin)


@dataclass(frozen=True, kw_only=True)
class AlignedSet:
    """The alignments of a split, and what their times depend on."""

    alignments: Path
    """`ali.ark`."""
    statistics: Path
    """Its `statistics.json`, which has the frame shift."""
    cuts: Path
    """`cuts.jsonl.gz` of the split."""
    lang_dir: Path
    """The lang directory of the alignments."""
    model_dir: Path
    """Folder with the `final.mdl` that aligned."""
    first_middle: float | None = None
    """Middle of the window of the features' first frame, seconds; None where
    `statistics.json` has it."""

    def timer(self) -> Timer:
        """Read what the times depend on; see `Timer.load`."""
        return Timer.load(
            self.lang_dir,
            self.model_dir,
            self.statistics,
            first_middle=self.first_middle,
        )
