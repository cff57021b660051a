"""Records of a file instead of draws: the same simulation again, anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import soundfile

from latflow.corpus.perturb import check_speed
from latflow.errors import UserError
from latflow.features.perturb import num_samples_at
from latflow.files import atomic_output
from latflow.parallel import in_order, worker_pool
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import AudioFiles, Record, Speech, read_records
from latflow.simulation.simulator import Simulator

Item = TypeVar("Item")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")  # of conversations: names of files


def audio_name(number: int, utt_id: str) -> str:
    """Return what files of an utterance are called: in the order of their set."""
    return f"{number:06d}-{re.sub(r'[^A-Za-z0-9_.-]', '_', utt_id)[:100]}"


def evenly(items: Sequence[Item], number: int) -> list[Item]:
    """Return some items, or all: the middle of each of as many equal parts."""
    count = len(items)
    number = min(number, count)
    return [items[i * count // (2 * number)] for i in range(1, 2 * number, 2)]


def write_audio(
    records: Iterable[Record],
    folder: str | Path,
    *,
    speech: Speech,
    audio: AudioFiles,
    rate: int,
    threads: int = 1,
) -> None:
    """Write utterances as their set has them, and beside it as records say.

    Each has the files `<number>-<id>.clean.wav` and `.simulated.wav`, of floats: above
    full scale nothing is cut off, and no bit is lost.

    Args:
        records: as files of records have them.
        folder: made if it is not there; what else is in it stays.
        speech: the set.
        audio: recordings of the options.
        rate: of the set, Hz.
        threads: utterances at the same time.

    Raises:
        UserError: see `AudioFiles.absolute` and `Simulator.apply`.
    """
    simulator = Simulator(speech, rate=rate)

    def write(record: Record) -> None:
        with naming(record, None):
            i = speech.position(record.utterance)
            clean = speech.samples(i)
            simulated = simulator.apply(audio.absolute(record), clean)
        name = audio_name(i, record.utterance)
        for kind, samples in (("clean", clean), ("simulated", simulated)):
            with atomic_output(Path(folder, f"{name}.{kind}.wav")) as path:
                soundfile.write(path, samples.T, rate, subtype="FLOAT")

    # torch has other bits of another speed with other numbers of threads
    with worker_pool(threads) as pool:
        for _ in in_order(pool, write, records):
            pass


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
    if not replay.is_used.all():
        missing = speech.utt_id(int(replay.is_used.argmin()))
        raise UserError(
            f"has no record of an utterance of {options.of}",
            file=options.records,
            utterance=missing,
            remedy="take the records of this set, or exclude what they lack from it",
        )


class _Replay:
    """Checks records one after another, and knows those before.

    Attributes:
        is_used: bool [N], utterances that have had their record, or their turn.
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
        self.is_used = np.zeros(len(speech), np.bool_)

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
        if record.speed is not None:
            check_speed(self._rate, record.speed)

    def _check_utterance(self, record: Record) -> None:
        """Refuse an utterance that is not the next of the set, or of another length."""
        i = self._position(record.utterance)
        if self._conversations or i != self._next:
            raise UserError(
                "is not the next utterance of the set",
                remedy="leave one record of each utterance, in the order of the set",
            )
        self._use(i, record.num_samples, record.speed or 1.0)

    def _check_conversation(self, record: Record) -> None:
        """Refuse turns of others than the set's utterances, each once."""
        name = record.utterance
        if record.speed is not None or record.volume is not None:
            raise UserError(
                "is a conversation with a speed or a volume",
                remedy="leave them to records of utterances",
            )
        is_name = _NAME.fullmatch(name) and name not in self._conversations
        if not is_name or len(self._conversations) != self._next:
            raise UserError(
                "is not a conversation with a unique name, next to conversations",
                remedy="name each by other letters, digits, -, _ and ., and leave "
                "records of single utterances out",
            )
        self._conversations.add(name)
        for turn in record.turns:
            i = self._position(turn.utterance)
            if self.is_used[i]:
                raise UserError("occurs twice", utterance=turn.utterance)
            if turn.offset + turn.num_samples > record.num_samples:
                raise UserError(
                    f"ends behind the end of {name}", utterance=turn.utterance
                )
            self._use(i, turn.num_samples)

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

    def _use(self, i: int, num_samples: int, speed: float = 1.0) -> None:
        """Note an utterance as used; refuse another length."""
        length = num_samples_at(self._speech.num_samples(i), speed)
        if length != num_samples:
            there = f" at speed {speed:g}" if speed != 1.0 else ""
            raise UserError(
                f"has {length} samples in the set {self._options.of}{there}, and "
                f"{num_samples} in its record",
                utterance=self._speech.utt_id(i),
                remedy="take records of these recordings",
            )
        self.is_used[i] = True
