"""Conversations: utterances of several speakers on one timeline, as records.

Speakers take turns; another one begins before the last has ended, or after a pause, so
that over a set the share of the time with speech in which two speak is the one that is
asked for. More than two never speak at once. The kinds of turns are those of Lhotse's
`ConversationalMeetingSimulator`, which knows no wanted share and takes its rooms from a
global generator.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from latflow.simulation.distributions import drawn
from latflow.simulation.drawing import Drawing
from latflow.simulation.options import ConversationOptions, SimulatedSetOptions
from latflow.simulation.records import AudioFiles, Record, Speech, TurnDraw

_CONVERSATIONS = zlib.crc32(b"conversations")


def draw_conversations(
    options: SimulatedSetOptions,
    speech: Speech,
    *,
    rate: int,
    seed: int,
    audio: AudioFiles | None = None,
) -> Iterator[Record]:
    """Draw conversations in which each utterance of a set occurs once.

    They follow from the options, the seed and the set; who speaks when does not depend
    on rooms, noises and devices.

    Args:
        options: with `conversation`.
        speech: the set.
        rate: Hz.
        seed: of all draws.
        audio: see `Drawing`.

    Raises:
        UserError: see `Drawing`.
    """
    assert options.conversation is not None
    drawing = Drawing(
        options, speech, rate=rate, seed=seed, purpose=options.purpose, audio=audio
    )
    talk = _Talk(options.conversation, speech, rate=rate, seed=seed)
    number = 0
    while talk.left:
        turns, num_samples = talk.next()
        name = f"conversation-{number:06d}"
        base = drawing.draw(name, num_samples, whole_pass=0)
        speakers = list(dict.fromkeys(turn.speaker for turn in turns))
        if base.room is not None:
            # as the only speaker of an utterance, the first has the place chosen for it
            taken = {noise.place for noise in base.noises}
            free = (place for place in base.room.others if place not in taken)
            places = (base.room.source, *free)
            at = {name: places[k % len(places)] for k, name in enumerate(speakers)}
            turns = [turn.replace(place=at[turn.speaker]) for turn in turns]
        yield base.replace(turns=tuple(turns))
        number += 1


@dataclass
class _Timeline:
    """What is known of a conversation so far, in samples.

    Attributes:
        start: where the last turn begins.
        end: where the latest ends.
        one_ends: from where on one speaks at most.
    """

    start: int = 0
    end: int = 0
    one_ends: int = 0

    def add(self, start: int, length: int) -> None:
        """Add a turn that begins no earlier than the last."""
        ends = sorted((self.end, start + length))
        self.start, self.end = start, ends[1]
        self.one_ends = max(self.one_ends, ends[0])


class _Talk:
    """Utterances that are still to be placed, and who speaks next.

    Args:
        options: of the conversations.
        speech: the set.
        rate: Hz.
        seed: of the draws.

    Attributes:
        left: numbers of the utterances that are left, by speaker.
    """

    def __init__(
        self, options: ConversationOptions, speech: Speech, *, rate: int, seed: int
    ) -> None:
        self._options, self._speech, self._rate = options, speech, rate
        self._rng = np.random.default_rng([seed, _CONVERSATIONS])
        by_speaker: dict[str, list[int]] = {}
        for i in range(len(speech)):
            by_speaker.setdefault(speech.speaker(i), []).append(i)
        self.left = {
            name: self._shuffled(by_speaker[name]) for name in sorted(by_speaker)
        }
        self._debt = 0.0  # samples of overlap that are missing

    def next(self) -> tuple[list[TurnDraw], int]:
        """Draw a conversation: its turns, and its length in samples."""
        options, rng = self._options, self._rng
        names = self._speakers(round(drawn(options.speakers, rng)))
        levels = {name: drawn(options.level, rng) for name in names}
        wanted = drawn(options.overlap, rng)
        line, turns = _Timeline(), []
        own_end: dict[str, int] = {}
        last = ""
        while not turns or line.end < options.duration * self._rate:
            others = [name for name in names if name != last or len(names) == 1]
            others = [name for name in others if name in self.left]
            if not others:
                break
            (name,) = self._chosen(others, 1)
            i = self._take(name)
            length = self._speech.num_samples(i)
            earliest = max(line.start, line.one_ends, own_end.get(name, 0))
            share = wanted if len(names) > 1 else 0.0
            start = line.end - self._overlap(share, length, line.end - earliest)
            if start == line.end:
                start += round(drawn(options.pause, rng) * self._rate)
            line.add(start, length)
            own_end[name] = start + length
            turns.append(
                TurnDraw(
                    utterance=self._speech.utt_id(i),
                    speaker=name,
                    offset=start,
                    num_samples=length,
                    level=round(levels[name], 3),
                )
            )
            last = name
        return turns, line.end + round(drawn(options.pause, rng) * self._rate)

    def _overlap(self, share: float, length: int, most: int) -> int:
        """Return the samples in which the next turn overlaps the last; 0 for a pause.

        Args:
            share: of the time with speech that two are to speak in.
            length: of the turn.
            most: what there is to overlap.
        """
        # of what is overlapped, the speech gets no longer: with an overlap of x the
        # debt is to be debt + share (length - x) - x = 0
        wanted = round((self._debt + share * length) / (1 + share))
        is_drawn = bool(self._rng.random() < self._options.overlap_probability)
        is_late = wanted > length / 2  # with turns like this one it would not be had
        found = 0
        if share > 0 and (is_drawn or is_late):
            found = max(0, min(wanted, length, most))
        self._debt += share * (length - found) - found
        return found

    def _speakers(self, number: int) -> list[str]:
        """Draw speakers with something left to say."""
        names = list(self.left)
        return self._chosen(names, min(number, len(names)))

    def _chosen(self, names: list[str], number: int) -> list[str]:
        """Draw some of the speakers, by what they have left."""
        weights = np.array([len(self.left[name]) for name in names], np.float64)
        found = self._rng.choice(
            len(names), number, replace=False, p=weights / weights.sum()
        )
        return [names[k] for k in found.tolist()]

    def _take(self, name: str) -> int:
        """Return the next utterance of a speaker."""
        numbers = self.left[name]
        i = numbers.pop()
        if not numbers:
            del self.left[name]
        return i

    def _shuffled(self, numbers: list[int]) -> list[int]:
        """Return numbers in an order that is drawn."""
        return self._rng.permutation(numbers).tolist()


def speech_and_overlap(turns: Iterable[TurnDraw]) -> tuple[int, int]:
    """Return the samples in which one speaks at least, and those with two or more."""
    edges = sorted(
        edge
        for turn in turns
        for edge in ((turn.offset, 1), (turn.offset + turn.num_samples, -1))
    )
    times = np.diff([time for time, _ in edges])
    speaking = np.cumsum([step for _, step in edges])[:-1]
    return int(times[speaking >= 1].sum()), int(times[speaking >= 2].sum())
