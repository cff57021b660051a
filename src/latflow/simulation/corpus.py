"""Sets of simulated utterances, stored: test sets that stay the same."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import soundfile
from lhotse import AudioSource, MonoCut, Recording
from lhotse.utils import fastcopy

from latflow.corpus.json_lines import ManifestWriter, Spool
from latflow.corpus.manifests import (
    VOLUME,
    at_rate,
    file_of,
    load_samples,
    read_cuts,
    speaker_of,
    supervision_of,
)
from latflow.errors import UserError
from latflow.files import atomic_directory, reading, write_json
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.simulation.conversations import draw_conversations, speech_and_overlap
from latflow.simulation.counts import Counts, recordings
from latflow.simulation.drawing import Drawing
from latflow.simulation.options import SimulatedSetOptions
from latflow.simulation.records import AudioFiles, Record, record_line
from latflow.simulation.replay import audio_name, naming, replayed
from latflow.simulation.simulator import Simulator

RECORDS, SUMMARY = "records.jsonl", "simulation.json"
_REASONS = {
    "noises_repeated": "noise too short: repeated",
    "noises_moved": "noise silent where it began: begins elsewhere",
}


class CutSpeech:
    """Utterances of a manifest of cuts, at the sample rate of the first.

    Use as a context manager; memory holds ids and offsets only. Safe to share between
    threads.

    Args:
        cuts: `cuts.jsonl.gz`.
        folder: where a temporary file lies.

    Attributes:
        rate: Hz.

    Raises:
        UserError: there are no utterances.
    """

    def __init__(self, cuts: str | Path, folder: str | Path) -> None:
        self._lock = threading.Lock()
        self._positions: dict[str, int] = {}
        self.rate = 0
        with ExitStack() as stack:
            self._spool = stack.enter_context(Spool(folder, MonoCut.from_dict))
            for cut in read_cuts(cuts):
                with reading(
                    cuts, "a cut has no audio", "prepare the corpus again", cut.id
                ):
                    self.rate = self.rate or int(cut.sampling_rate)
                for at_its_rate in at_rate([cut], self.rate, may_resample=True):
                    self._spool.add(at_its_rate, file=cuts)
                self._positions[cut.id] = len(self._positions)
            if not self.rate:
                raise UserError("holds no utterances", file=cuts)
            stack.pop_all()  # `__exit__` closes it
        self._utt_ids = list(self._positions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._spool.__exit__(kind, error, trace)

    def __len__(self) -> int:
        return len(self._utt_ids)

    def utt_id(self, i: int) -> str:
        """Return the id of utterance i."""
        return self._utt_ids[i]

    def position(self, utt_id: str) -> int:
        """See `Speech.position`."""
        return self._positions[utt_id]

    def cut(self, i: int) -> MonoCut:
        """Return the cut of utterance i."""
        with self._lock:
            return self._spool[self._utt_ids[i]]

    def speaker(self, i: int) -> str:
        """Return the speaker of utterance i."""
        return speaker_of(self.cut(i))

    def num_samples(self, i: int) -> int:
        """Return the samples of utterance i."""
        return self.cut(i).num_samples or 0

    def samples(self, i: int) -> np.ndarray:
        """Return the samples of utterance i, float32 [L].

        Raises:
            UserError: the audio cannot be read, or holds NaN.
        """
        cut = self.cut(i)
        samples = load_samples(cut)
        if not np.isfinite(samples).all():  # FLAC has no such samples
            raise UserError(
                "samples that are not numbers",
                file=file_of(cut),
                utterance=cut.id,
                remedy=f"restore the file, or exclude {cut.id} from the set that is "
                "simulated (exclude)",
            )
        return samples


def simulate_corpus(
    cuts: Path,
    out_dir: Path,
    *,
    options: SimulatedSetOptions,
    seed: int,
    threads: int,
) -> None:
    """Write a corpus folder with the utterances of another one, simulated.

    Ids, speakers and transcripts stay. Audio is FLAC of 16 bits in `audio/`, a file for
    each utterance, or for each conversation, of which the utterances are segments.
    What records of a training say of the speed is done to the audio; their volumes are
    in the cuts, as those of `perturb_corpus`: what is above full scale is not cut off.
    Beside the manifests are `records.jsonl` (what was done to each utterance or
    conversation, in their order; see `AudioFiles` for the names of recordings),
    `simulation.json` (counts) and a ledger that notes noises that repeat or begin
    elsewhere, files that are resampled (at their first use) and rooms drawn again
    (likewise). An utterance that cannot be simulated fails the stage.

    Args:
        cuts: manifest of the other set.
        out_dir: corpus folder to write, replaced as a whole.
        options: what utterances are put into, or the records that say it.
        seed: of the draws.
        threads: utterances at the same time.

    Raises:
        UserError: see `Drawing`, `replayed`, `Simulator.apply` and `CutSpeech.samples`.
    """
    final = Path(os.path.abspath(out_dir))
    with atomic_directory(out_dir) as folder, CutSpeech(cuts, folder) as speech:
        (folder / "audio").mkdir()
        audio = AudioFiles(options)
        if options.records is not None:  # all are checked before the first is done
            for _ in replayed(options, speech, audio, rate=speech.rate):
                pass
        drawn = _records(options, speech, audio, seed)
        first = next(drawn)
        make = _simulate_conversations if first.turns else _simulate_utterances
        total = None if first.turns else len(speech)
        counts = _Counts()
        with (
            (folder / RECORDS).open("w", encoding="utf-8") as records,
            closing(
                make(
                    speech,
                    chain((first,), drawn),
                    folder,
                    final,
                    options=options,
                    threads=threads,
                )
            ) as made,
        ):
            for record, events in progress(made, "simulate", total=total):
                records.write(record_line(audio.relative(record)))
                counts.add(record, events)
        counts.write(folder)


def _records(
    options: SimulatedSetOptions, speech: CutSpeech, audio: AudioFiles, seed: int
) -> Iterator[Record]:
    """Yield the records of a set: of a file, or drawn."""
    rate = speech.rate
    if options.records is not None:
        yield from replayed(options, speech, audio, rate=rate)
    elif options.conversation is not None:
        yield from draw_conversations(
            options, speech, rate=rate, seed=seed, audio=audio
        )
    else:
        drawing = Drawing(
            options, speech, rate=rate, seed=seed, purpose=options.purpose, audio=audio
        )
        for i in range(len(speech)):
            yield drawing.draw(speech.utt_id(i), speech.num_samples(i), whole_pass=0)


def _simulate_utterances(
    speech: CutSpeech,
    drawn: Iterable[Record],
    folder: Path,
    final: Path,
    *,
    options: SimulatedSetOptions,
    threads: int,
) -> Generator[tuple[Record, Counter[str]]]:
    """Write utterances, each by itself, and their manifests.

    Args:
        speech: the utterances.
        drawn: a record of each, in their order.
        folder: that is written.
        final: its name once it is whole.
        options: see `simulate_corpus`.
        threads: see `simulate_corpus`.

    Yields:
        What was done, and what came of it; see `Simulator.apply`.
    """
    simulator = Simulator(speech, rate=speech.rate, cache_mb=options.cache_mb)

    def simulate(item: tuple[int, Record]) -> tuple[MonoCut, Record, Counter[str]]:
        i, record = item
        cut, events = speech.cut(i), Counter[str]()
        name = audio_name(i, cut.id) + ".flac"
        full = record.model_copy(update={"volume": None})
        with naming(record, options.records):
            simulated = simulator.apply(full, speech.samples(i), events=events)
        soundfile.write(folder / "audio" / name, simulated.T, speech.rate)
        made = _as_recording(cut, final / "audio" / name, simulated.shape)
        if record.volume is not None:
            made.custom = {**(made.custom or {}), VOLUME: record.volume}
        return made, record, events

    with (
        ManifestWriter(folder / "recordings.jsonl.gz") as recordings,
        ManifestWriter(folder / "supervisions.jsonl.gz") as supervisions,
        ManifestWriter(folder / "cuts.jsonl.gz") as cut_writer,
        worker_pool(threads) as pool,
    ):
        for cut, record, events in in_order(pool, simulate, enumerate(drawn)):
            assert cut.recording is not None
            recordings.write(cut.recording)
            supervisions.write(supervision_of(cut))
            cut_writer.write(cut)
            yield record, events


def _simulate_conversations(
    speech: CutSpeech,
    drawn: Iterable[Record],
    folder: Path,
    final: Path,
    *,
    options: SimulatedSetOptions,
    threads: int,
) -> Generator[tuple[Record, Counter[str]]]:
    """Write conversations, and the manifests of their utterances.

    Each utterance occurs once in `drawn`; all else is as in `_simulate_utterances`.
    """
    rate = speech.rate
    simulator = Simulator(speech, rate=rate, cache_mb=options.cache_mb)

    def simulate(record: Record) -> tuple[Record, Counter[str]]:
        events = Counter[str]()
        with naming(record, options.records):
            made = simulator.conversation(record, events=events)
        soundfile.write(folder / "audio" / f"{record.utterance}.flac", made.T, rate)
        return record, events

    made: list[tuple[str, int]] = []  # id and length of each conversation

    def recording(number: int) -> Recording:
        name, num_samples = made[number]
        path = str(final / "audio" / f"{name}.flac")
        channels = list(range(options.num_channels))
        return Recording(
            id=name,
            sources=[AudioSource("file", channels, path)],
            sampling_rate=rate,
            num_samples=num_samples,
            duration=num_samples / rate,
        )

    places = np.full((len(speech), 2), -1, np.int64)  # conversation and offset
    with (
        ManifestWriter(folder / "recordings.jsonl.gz") as recordings,
        worker_pool(threads) as pool,
    ):
        for record, events in in_order(pool, simulate, drawn):
            for turn in record.turns:
                places[speech.position(turn.utterance)] = len(made), turn.offset
            made.append((record.utterance, record.num_samples))
            recordings.write(recording(len(made) - 1))
            yield record, events
    with (
        ManifestWriter(folder / "supervisions.jsonl.gz") as supervisions,
        ManifestWriter(folder / "cuts.jsonl.gz") as cut_writer,
    ):
        for i, (number, offset) in enumerate(places.tolist()):
            talk, length = recording(number), speech.num_samples(i)
            cut = _as_segment(speech.cut(i), talk, offset, length)
            supervisions.write(supervision_of(cut).with_offset(cut.start))
            cut_writer.write(cut)


def _as_segment(
    cut: MonoCut, recording: Recording, offset: int, num_samples: int
) -> MonoCut:
    """Return a cut as a segment of a recording of its rate."""
    rate = recording.sampling_rate
    start, duration = offset / rate, num_samples / rate
    supervision = fastcopy(
        supervision_of(cut),
        recording_id=recording.id,
        start=0.0,
        duration=duration,
        channel=0,
    )
    return MonoCut(
        id=cut.id,
        start=start,
        duration=duration,
        channel=0,
        supervisions=[supervision],
        recording=recording,
        custom=cut.custom,
    )


def _as_recording(cut: MonoCut, path: Path, shape: tuple[int, ...]) -> MonoCut:
    """Return a cut as the whole of its own recording, of the cut's id.

    Args:
        cut: of the utterance.
        path: of the recording.
        shape: [L] or [C, L]; the cut is of the first channel.
    """
    rate, num_samples = int(cut.sampling_rate), shape[-1]
    channels = list(range(shape[0])) if len(shape) > 1 else [0]
    recording = Recording(
        id=cut.id,
        sources=[AudioSource("file", channels, str(path))],
        sampling_rate=rate,
        num_samples=num_samples,
        duration=num_samples / rate,
    )
    supervision = fastcopy(
        supervision_of(cut),
        recording_id=cut.id,
        start=0.0,
        duration=recording.duration,
        channel=0,
    )
    return MonoCut(
        id=cut.id,
        start=0.0,
        duration=recording.duration,
        channel=0,
        supervisions=[supervision],
        recording=recording,
        custom=cut.custom,
    )


class _Counts(Counts):
    """Counts of a set, with a ledger of what was drawn again, repeated or resampled."""

    def __init__(self) -> None:
        super().__init__()
        self._ledger = Ledger("simulate_corpus")
        self._speech = np.zeros(2)  # time with one speaker at least, with two; s

    def add(self, record: Record, events: Mapping[str, int]) -> None:
        """Count an utterance or a conversation, and note what happened."""
        if record.turns:
            self._kinds["conversations"] += 1
            self._speech += np.array(speech_and_overlap(record.turns)) / record.rate
        utt_id = record.turns[0].utterance if record.turns else record.utterance
        room = record.room
        if room is not None and room.redraws and room.number not in self._rooms:
            self._note(utt_id, "room drawn again: not its T60, or no place")
        for event, reason in _REASONS.items():
            for _ in range(events.get(event, 0)):
                self._note(utt_id, reason)
        for file, is_resampled in recordings(record).items():
            if is_resampled and file not in self._files:
                self._note(utt_id, "noise or response of another rate: resampled")
        super().add(record, events)

    def _note(self, utt_id: str, reason: str) -> None:
        """Note an event in the ledger."""
        self._ledger.record(utt_id, reason, action="noted")

    def write(self, folder: Path) -> None:
        """Write the counts and the ledger."""
        write_json(folder / SUMMARY, self.values())
        self._ledger.write(folder / "ledger.jsonl")

    def values(self) -> dict[str, float]:
        """Return the counts by name; times in seconds."""
        counts = super().values()
        speech, overlap = (round(float(seconds), 3) for seconds in self._speech)
        if speech:
            counts |= {
                "speech": speech,
                "overlap": overlap,
                "overlap_share": round(overlap / speech, 4),
            }
        return counts
