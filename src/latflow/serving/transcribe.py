"""Transcription of recordings with a model package.

Recordings are read in blocks and cut into segments; each segment is recognized by a
`Session`, as a stream of the same samples would be, several at a time by threads (of
one recording one after the other, where the model adapts to the speaker). A recording
that cannot be read is reported in one line, the others continue. The memory that it
takes does not depend on how long recordings are (but for segmentation `none`, where the
search remembers all of a recording, and for formats that only Lhotse reads).
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from latflow.corpus.audio import AudioReader, BadAudio
from latflow.corpus.ids import file_name
from latflow.decode.options import RecordingsOptions, TranscribeOptions
from latflow.errors import UserError
from latflow.files import write_text
from latflow.lattice.io.archives import LatticeWriter
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import in_order, worker_pool
from latflow.scoring.results import write_table
from latflow.serving.features import Adaptation
from latflow.serving.formats import EXTENSIONS, Transcription, render
from latflow.serving.options import LanguageOptions, SessionOptions
from latflow.serving.package import Model
from latflow.serving.recording import (
    Recording,
    find_recordings,
    listed_recordings,
    open_recording,
)
from latflow.serving.results import Event, Final, Segment, moved
from latflow.serving.segmentation import SpeechCutter, detector_of
from latflow.serving.session import Session

log = logging.getLogger(__name__)


def transcribe(
    model: Model,
    recordings: Sequence[Recording],
    *,
    options: TranscribeOptions,
    out_dir: Path | None = None,
    language: LanguageOptions | None = None,
    lattices: Path | None = None,
    threads: int = 1,
) -> list[Transcription | Fault]:
    """Transcribe recordings, and write the results.

    Args:
        model: the package.
        recordings: see `find_recordings` and `received`.
        options: segmentation, formats, channel, alternatives.
        out_dir: folder for `<name>.<format>`; None for standard output, where one
            recording and one format are asked for.
        language: words, phrases and language model in addition to those of the package.
        lattices: archive for the lattices of all segments, or None; keys are
            `<name>-<start>-<end>` in hundredths of a second.
        threads: segments recognized at a time.

    Returns:
        For each recording, its words, or why there are none.

    Raises:
        UserError: standard output would take several results; or as
            `Model.for_session`.
    """
    number = len(recordings) * len(options.formats)
    if out_dir is None and number != 1:
        raise UserError(
            f"{number} results (recordings x formats) for standard output, which "
            "takes one",
            remedy="name a folder for the results: --out",
        )
    for recording, form in product(recordings, options.formats):
        _file_of(recording.name, form)  # too long a name is refused before the work
    found: list[Transcription | Fault] = []
    is_alone = len(recordings) == 1  # and may be hours long
    results = transcriptions(
        model,
        recordings,
        options=options,
        language=language,
        lattices=lattices,
        threads=threads,
        tells_segments=is_alone,
    )
    if not is_alone:
        results = progress(results, "transcribe", total=len(recordings))
    for result in results:
        found.append(result)
        if isinstance(result, Fault):
            log.error("%s - %s", result.reason, result.remedy)
        else:
            _write(result, out_dir, options.formats)
    return found


def transcriptions(
    model: Model,
    recordings: Iterable[Recording],
    *,
    options: TranscribeOptions,
    language: LanguageOptions | None = None,
    lattices: Path | None = None,
    threads: int = 1,
    tells_segments: bool = False,
) -> Iterator[Transcription | Fault]:
    """Yield for each recording its words, or why there are none.

    Arguments are those of `transcribe`; with `tells_segments` a bar counts segments.
    """
    wants_lattices = lattices is not None
    job = _Job(model, options, language, wants_lattices=wants_lattices)
    opened = nullcontext() if lattices is None else LatticeWriter.open(lattices)
    with worker_pool(threads) as pool, opened as archive:
        parts = in_order(pool, _call, job.parts(recordings), ahead=2 * threads)
        if tells_segments:
            parts = progress(parts, "transcribe segments")
        yield from job.gathered(parts, archive)


def transcribe_recordings(
    package_dir: Path,
    out_dir: Path,
    *,
    options: RecordingsOptions,
    threads: int,
    max_skipped_fraction: float,
    recordings: Path | None = None,
) -> None:
    """Transcribe a file, a folder or a set into a folder (stage `transcribe`).

    Args:
        package_dir: the model package.
        out_dir: folder for `<name>.<format>`, `lattices.ark` if asked for,
            `recordings.tsv` and `ledger.jsonl` (recordings that could not be read).
        options: path of the file or folder; segmentation, formats, and the like.
        threads: segments recognized at a time.
        max_skipped_fraction: largest share of recordings that may not be readable.
        recordings: `recordings.jsonl.gz` of the set, where the options name one.

    Raises:
        UserError: there is no audio, or too much of it cannot be read.
    """
    if options.path:
        asked = find_recordings([options.path])
    else:
        assert recordings is not None, "neither a path nor a set"
        asked = listed_recordings(recordings)
    found = transcribe(
        Model.load(package_dir, trust_code=True),  # of this experiment
        asked,
        options=options,
        out_dir=out_dir,
        lattices=out_dir / "lattices.ark" if options.lattices else None,
        threads=threads,
    )
    ledger = Ledger("transcribe")
    for result in found:
        if isinstance(result, Fault):
            ledger.record(result.name, result.reason)
    ledger.check(len(found), max_skipped_fraction=max_skipped_fraction)
    rows = [
        (
            result.name,
            result.duration,
            len(result.segments),
            sum(len(segment.best.words) for segment in result.segments),
        )
        for result in found
        if isinstance(result, Transcription)
    ]
    table = pd.DataFrame(rows, columns=["recording", "seconds", "segments", "words"])
    write_table(out_dir / "recordings.tsv", table, {"seconds": 3})
    ledger.write(out_dir / "ledger.jsonl")


def _write(
    transcription: Transcription, out_dir: Path | None, formats: Sequence[str]
) -> None:
    """Write the files of a recording, or print what is asked for."""
    for form in formats:
        text = render(transcription, form)
        if out_dir is None:
            sys.stdout.write(text)
        else:
            write_text(out_dir / _file_of(transcription.name, form), text)


def _file_of(name: str, form: str) -> str:
    """Return where the result of a recording is written, below the folder of all."""
    return file_name(name, f".{EXTENSIONS[form]}", in_folders=True)


@dataclass(frozen=True)
class Fault:
    """A recording that could not be transcribed.

    Attributes:
        name: of the recording.
        reason: names the file.
        remedy: for the user.
    """

    name: str
    reason: str
    remedy: str


@dataclass(frozen=True, eq=False)
class _Part:
    """Result of a part of a recording.

    Attributes:
        recording: the recording.
        segments: of this part, in order.
        warnings: of its session.
        duration: seconds of the whole recording, as far as its last part.
        fault: why the recording cannot be transcribed.
        is_last: whether this ends the recording.
        adaptation: to the speaker, for the parts to come.
    """

    recording: Recording
    segments: Sequence[Segment] = ()
    warnings: Sequence[str] = ()
    duration: float = 0.0
    fault: BadAudio | UserError | None = None
    is_last: bool = False
    adaptation: Adaptation | None = None


class _Turn(NamedTuple):
    """What a segment waits for, and what waits for it, where the model adapts.

    A pool of threads begins work in order: what is waited for has begun.

    Attributes:
        before: gives the adaptation that the segment before ends with.
        after: takes that of this one.
    """

    before: Future[Adaptation | None] | None = None
    after: Future[Adaptation | None] | None = None


def _turns(*, adapts: bool) -> Iterator[_Turn]:
    """Yield those of a recording's segments; they wait only if the model adapts."""
    before = None
    while True:
        after: Future[Adaptation | None] | None = Future() if adapts else None
        yield _Turn(before, after)
        before = after


def _call(part: Callable[[], _Part]) -> _Part:
    """Do the work of a part."""
    return part()


class _Job:
    """Transcribes recordings with one model.

    Args:
        model: shared by threads.
        options: of the transcription.
        language: that it brings.
        wants_lattices: whether segments need lattices.
    """

    def __init__(
        self,
        model: Model,
        options: TranscribeOptions,
        language: LanguageOptions | None,
        *,
        wants_lattices: bool,
    ) -> None:
        self._model = model
        self._options = options
        is_whole = options.segmentation.type == "none"
        language = language or LanguageOptions()
        model.for_session(language)  # what is wrong with it is not a recording's fault
        session = SessionOptions(
            partials=False,
            endpoint="off" if is_whole else "model",
            max_alternatives=options.max_alternatives,
            lattices=wants_lattices,
            **dict(language),
        )
        length = options.chunk_length if is_whole else session.chunk_length
        self._session = session.replace(chunk_length=length)
        self._info = {
            "name": model.info.name,
            "experiment": model.info.experiment,
            "latflow": model.info.versions["latflow"],
        }

    def parts(self, recordings: Iterable[Recording]) -> Iterator[Callable[[], _Part]]:
        """Yield the work on all recordings, to be done by any threads."""
        for recording in recordings:
            if self._options.segmentation.type == "vad":
                yield from self._speech(recording)
            else:
                yield partial(self._whole, recording)

    def gathered(
        self, parts: Iterable[_Part], archive: LatticeWriter | None
    ) -> Iterator[Transcription | Fault]:
        """Yield the results of recordings from those of their parts, in order."""
        segments: list[Segment] = []
        warnings: set[str] = set()
        fault: BadAudio | UserError | None = None
        for part in parts:
            name = part.recording.name
            warnings |= set(part.warnings)
            fault = fault or part.fault
            for segment in part.segments:
                if archive is not None and segment.lattice is not None:
                    archive.write(_key(name, segment), segment.lattice)
                segments.append(replace(segment, lattice=None))
            if not part.is_last:
                continue
            for warning in sorted(warnings):
                log.warning("%s: %s", part.recording.path, warning)
            if fault is None:
                channel = str(self._options.channel or 1)
                yield Transcription(name, part.duration, segments, channel, self._info)
            else:
                yield _fault_of(part.recording, fault)
            segments, warnings, fault = [], set(), None

    def _speech(self, recording: Recording) -> Iterator[Callable[[], _Part]]:
        """Read a recording; yield the recognition of its segments of speech."""
        options = self._options
        turns = _turns(adapts=self._model.adapts)
        try:
            with _opened(recording) as audio:
                rate = audio.sample_rate
                cutter = SpeechCutter(rate, detector_of(rate), options.segmentation)
                work = partial(self._piece, recording, rate)
                for block in audio.blocks(options.channel):
                    for piece in cutter.accept(block):
                        yield partial(work, *piece, next(turns))
                for piece in cutter.finish():
                    yield partial(work, *piece, next(turns))
        except BadAudio as fault:
            yield partial(_Part, recording, fault=fault, is_last=True)
        else:
            duration = cutter.num_samples / rate
            yield partial(_Part, recording, duration=duration, is_last=True)

    def _piece(
        self,
        recording: Recording,
        rate: int,
        start: int,
        samples: np.ndarray,
        turn: _Turn,
    ) -> _Part:
        """Recognize a segment that begins at a sample."""
        known = turn.before and turn.before.result()
        try:
            part = self._recognized(recording, rate, [samples], known)
            known = part.adaptation
        except UserError as error:
            return _Part(recording, fault=error)
        finally:
            if turn.after is not None:
                turn.after.set_result(known)
        later = [moved(segment, start / rate) for segment in part.segments]
        return replace(part, segments=later)

    def _whole(self, recording: Recording) -> _Part:
        """Recognize a recording as one stream."""
        try:
            with _opened(recording) as audio:
                blocks = audio.blocks(self._options.channel)
                part = self._recognized(recording, audio.sample_rate, blocks)
        except (BadAudio, UserError) as fault:
            return _Part(recording, fault=fault, is_last=True)
        return replace(part, is_last=True)

    def _recognized(
        self,
        recording: Recording,
        rate: int,
        blocks: Iterable[np.ndarray],
        known: Adaptation | None = None,
    ) -> _Part:
        """Recognize a stream, of a speaker of whom this is known."""
        options = self._session.replace(sample_rate=rate)
        events: list[Event] = []
        with Session(self._model, options, recording.name, known) as session:
            for block in blocks:
                events += session.accept(block)
            events += session.finish()
            duration = session.time
        segments = [event.segment for event in events if isinstance(event, Final)]
        given_up = [segment.warning for segment in segments if segment.warning]
        return _Part(
            recording,
            segments,
            [*session.warnings, *given_up],
            duration,
            adaptation=session.adaptation,
        )


@contextmanager
def _opened(recording: Recording) -> Iterator[AudioReader]:
    """Open a recording; what there is to say of it goes to the log in the end.

    Raises:
        BadAudio: see `open_recording`.
    """
    with open_recording(recording.path, raw_rate=recording.raw_rate) as audio:
        yield audio
        for note in audio.notes:
            log.warning("%s: %s", recording.path, note)


def _key(name: str, segment: Segment) -> str:
    """Return the key of a segment's lattice: no blanks, times in 1/100 s."""
    times = f"{round(100 * segment.start):07}-{round(100 * segment.end):07}"
    return re.sub(r"\s", "_", f"{name}-{times}")


def _fault_of(recording: Recording, error: BadAudio | UserError) -> Fault:
    """Return the fault of a recording, for the user."""
    if isinstance(error, BadAudio):
        return Fault(recording.name, error.reason, error.remedy)
    remedy = error.remedy or "check the recording"
    return Fault(recording.name, f"{recording.path}: {error.what}", remedy)
