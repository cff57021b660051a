"""Records of a file in the place of draws: the same simulation again, anywhere.

Public: `replayed`, `naming`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from latflow.errors import UserError
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import AudioFiles, Record, Speech, read_records

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of conversations: names of files


@contextmanager
def naming(record: Record, records: str | None) -> Iterator[None]:
    """Name a record's utterance, and the file that it is from, in errors."""
    try:
        yield
    except UserError as error:
        raise error.at(
            file=error.file or records,
            utterance=error.utterance or record.utterance,
        ) from error


def replayed(
    options: SimulatedSetOptions, speech: Speech, audio: AudioFiles, *, rate: int
) -> Iterator[Record]:
    """Yield the records of a file, which are those of a set.

    Args:
        options: with `records`, and the folders of the recordings.
        speech: the set.
        audio: recordings of the options.
        rate: of the set, Hz.

    Raises:
        UserError: the file is missing or malformed; a record names an utterance or a
            recording that is not there, or is of another length, sample rate or number
            of microphones; the records are not those of all utterances once, each by
            itself in the order of the set, or all in conversations.
    """
    assert options.records is not None
    replay = _Replay(options, speech, audio, rate)
    for record in read_records(options.records):
        with naming(record, options.records):
            checked = replay.checked(record)
        yield checked
    if not replay.is_said.all():
        missing = speech.utt_id(int(replay.is_said.argmin()))
        raise UserError(
            f"has no record of an utterance of {options.of}",
            file=options.records,
            utterance=missing,
            remedy="take the records of this set, or exclude what they lack from it",
        )


class _Replay:
    """Checks records one after another, and knows those before.

    Attributes:
        is_said: bool [N], utterances that have had their record, or their turn.
    """

    def __init__(
        self,
        options: SimulatedSetOptions,
        speech: Speech,
        audio: AudioFiles,
        rate: int,
    ) -> None:
        self._options, self._speech, self._rate = options, speech, rate
        self._audio = audio
        self._conversations: set[str] = set()
        self._next = 0
        self.is_said = np.zeros(len(speech), np.bool_)

    def checked(self, record: Record) -> Record:
        """Return a record with absolute paths, if it is one of the set's next.

        Raises:
            UserError: see `replayed`.
        """
        self._check_signal(record)
        if record.turns:
            self._check_conversation(record)
        else:
            self._check_utterance(record)
        for speaker in record.speakers:
            self._position(speaker.utterance)
        self._next += 1
        return self._audio.absolute(record)

    def _check_signal(self, record: Record) -> None:
        """Refuse another sample rate, or number of microphones."""
        if record.rate != self._rate:
            raise UserError(
                f"is of {record.rate} Hz, and the set {self._options.of} of "
                f"{self._rate} Hz",
                remedy="take records of recordings at this rate",
            )
        there, wanted = len(record.array or (0,)), self._options.num_channels
        if there != wanted:
            raise UserError(
                f"is of {there} microphones, and array of {wanted}",
                remedy="name as many in array.microphones; none for one",
            )

    def _check_utterance(self, record: Record) -> None:
        """Refuse an utterance that is not the next of the set, or of another length."""
        i = self._position(record.utterance)
        if self._conversations or i != self._next:
            raise UserError(
                "is not the next utterance of the set",
                remedy="leave one record of each utterance, in the order of the set",
            )
        self._say(i, record.num_samples)

    def _check_conversation(self, record: Record) -> None:
        """Refuse turns of others than the set's utterances, each once."""
        name = record.utterance
        is_name = _NAME.fullmatch(name) and name not in self._conversations
        if not is_name or len(self._conversations) != self._next:
            raise UserError(
                "is no conversation with a name of its own, beside conversations",
                remedy="name each by other letters, digits, -, _ and ., and leave "
                "records of single utterances out",
            )
        self._conversations.add(name)
        for turn in record.turns:
            i = self._position(turn.utterance)
            if self.is_said[i]:
                raise UserError("is said twice", utterance=turn.utterance)
            if turn.offset + turn.num_samples > record.num_samples:
                raise UserError(
                    f"ends behind the end of {name}", utterance=turn.utterance
                )
            self._say(i, turn.num_samples)

    def _position(self, utt_id: str) -> int:
        """Return the number of an utterance of the set."""
        try:
            return self._speech.position(utt_id)
        except KeyError:
            raise UserError(
                f"is not in the set {self._options.of}",
                utterance=utt_id,
                remedy="take records of this set",
            ) from None

    def _say(self, i: int, num_samples: int) -> None:
        """Note an utterance as said; refuse another length."""
        length = self._speech.num_samples(i)
        if length != num_samples:
            raise UserError(
                f"has {length} samples in the set {self._options.of}, and "
                f"{num_samples} in its record",
                utterance=self._speech.utt_id(i),
                remedy="take records of these recordings",
            )
        self.is_said[i] = True
