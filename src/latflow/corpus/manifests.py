"""Lhotse manifests as streams: read item by item, sorted on disk, written whole.

Lhotse's JSONL manifests are the only inner form of a corpus. A corpus folder holds
`recordings.jsonl.gz`, `supervisions.jsonl.gz`, `cuts.jsonl.gz` (one cut an utterance,
`cut.id == supervision.id`), each sorted by id, and `ledger.jsonl`. Paths of audio files
in them are absolute: manifests are read from many working directories (jobs of a
cluster, notebooks), and the audio seldom lies below them.

Cuts are read one at a time and checked to be sorted, so that a corpus of any size
passes through the stages.

What needs no more than their JSON is in `latflow.corpus.json_lines`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from lhotse import MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioLoadingError, DurationMismatchError
from lhotse.utils import fastcopy

from latflow.corpus.audio import can_resample
from latflow.corpus.json_lines import (
    REMEDY,
    ItemT,
    Spool,
    read_cut_lines,
)
from latflow.corpus.manifest_fields import (
    audio_types,
    recording_fields,
    supervision_fields,
)
from latflow.errors import UserError
from latflow.files import reading
from latflow.text_files import read_json_lines

# Field of a cut: factor of its samples, where a corpus with changed volumes has one.
VOLUME = "volume"


_WRITE = "write the manifest with Lhotse, as .jsonl or .jsonl.gz"
_RESTORE = "restore it, or prepare the corpus again"
# Errors that Lhotse and its readers raise on damaged audio.
_UNREADABLE = (
    AudioLoadingError,
    DurationMismatchError,
    ArithmeticError,
    AssertionError,
    EOFError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """Yield the recordings of a JSONL manifest (`.gz` or plain)."""

    def make(values: dict[str, Any]) -> Recording:
        return Recording.from_dict(recording_fields(values))

    return read_json_lines(path, make, "a Lhotse recording", _WRITE)


def read_supervisions(path: str | Path) -> Iterator[SupervisionSegment]:
    """Yield the supervisions of a JSONL manifest (`.gz` or plain)."""

    def make(values: dict[str, Any]) -> SupervisionSegment:
        return SupervisionSegment.from_dict(supervision_fields(values))

    return read_json_lines(path, make, "a Lhotse supervision", _WRITE)


def read_cuts(path: str | Path) -> Iterator[MonoCut]:
    """Yield the cuts of a `cuts.jsonl.gz`.

    Raises:
        UserError: as of `read_cut_lines`, or a line is not a Lhotse cut, or one whose
            audio is not in files.
    """
    for line in read_cut_lines(path):
        with reading(path, "is not a Lhotse cut", REMEDY, line.id):
            types = audio_types(line.values.get("recording"))
            del line.values["type"]
            cut = MonoCut.from_dict(line.values)
        if types - {"file"}:
            raise UserError(
                f"its audio is of type {min(types - {'file'})}, not in a file",
                file=path,
                utterance=cut.id,
                remedy="prepare it as a corpus (type cuts), which writes files",
            )
        yield cut


def at_rate(
    cuts: Iterable[MonoCut], rate: int, *, may_resample: bool
) -> Iterator[MonoCut]:
    """Yield the cuts, those with another sample rate to be resampled on reading.

    Raises:
        UserError: a cut has another sample rate and may not, or cannot, be resampled.
    """
    for cut in cuts:
        if cut.sampling_rate == rate:
            yield cut
        elif may_resample and can_resample(cut.sampling_rate, rate):
            yield cast("MonoCut", cut.resample(rate))
        elif may_resample:
            raise UserError(
                f"sample rate {cut.sampling_rate} Hz cannot be resampled to {rate} Hz",
                file=file_of(cut),
                utterance=cut.id,
                remedy="restore the recording, or leave it out",
            )
        else:
            raise UserError(
                f"sample rate {cut.sampling_rate} Hz, but others have {rate} Hz",
                file=file_of(cut),
                utterance=cut.id,
                remedy="set features.sample_rate: recordings are then resampled to it",
            )


def load_samples(
    cut: MonoCut, channels: Sequence[int] | None = None, *, repeat: bool = False
) -> np.ndarray:
    """Return the samples of a cut, float32 [L], or of several channels of it, [C, L].

    Args:
        cut: the utterance.
        channels: of its recording; None for the cut's own.
        repeat: take the only channel of a recording for each of the channels.

    Raises:
        UserError: the audio cannot be read, or has no such channel.
    """
    with refuse_damaged(file_of(cut), utterance=cut.id):
        return _load(cut, channels, repeat=repeat)


def samples_or_reason(
    cut: MonoCut, channels: Sequence[int] | None = None, *, repeat: bool = False
) -> np.ndarray | str:
    """Return the samples of a cut, see `load_samples`, or why its audio is damaged.

    Raises:
        UserError: a file is missing, or a channel of it.
    """
    recording = cut.recording
    assert recording is not None
    for source in recording.sources:
        if source.type != "file":
            continue
        path = Path(str(source.source))
        if not path.is_file():
            raise UserError(
                "audio file is missing",
                file=path,
                utterance=cut.id,
                remedy=_RESTORE,
            )
        if path.stat().st_size == 0:
            return f"{path}: audio file of no bytes"
    try:
        return _load(cut, channels, repeat=repeat)
    except _UNREADABLE as error:
        return f"{file_of(cut)}: unreadable audio ({type(error).__name__})"


@contextmanager
def refuse_damaged(
    file: str | Path, *, utterance: str | None = None, remedy: str = _RESTORE
) -> Iterator[None]:
    """Raise what Lhotse raises on damaged audio as a `UserError`.

    Args:
        file: that is read.
        utterance: for the message.
        remedy: likewise.
    """
    try:
        yield
    except _UNREADABLE as error:
        raise UserError(
            f"audio cannot be read ({type(error).__name__})",
            file=file,
            utterance=utterance,
            remedy=remedy,
        ) from error


def _load(cut: MonoCut, channels: Sequence[int] | None, *, repeat: bool) -> np.ndarray:
    """Return the samples of a cut, see `load_samples`.

    Raises:
        UserError: the recording has no such channel.
        Exception: one of `_UNREADABLE`.
    """
    recording = cut.recording
    assert recording is not None
    known = recording.channel_ids or []
    if channels is not None and repeat and len(known) == 1:
        return np.repeat(_load(cut, known, repeat=False), len(channels), axis=0)
    missing = [channel for channel in channels or () if channel not in known]
    if missing:
        raise UserError(
            f"has no channel {missing[0]}: its channels are {known}",
            file=file_of(cut),
            utterance=cut.id,
            remedy="name channels of features.channels that all recordings have, or "
            "set features.single_channel: repeat for those of one channel",
        )
    wave = recording.load_audio(
        channels=cut.channel if channels is None else list(channels),
        offset=cut.start,
        duration=cut.duration,
    )
    if channels is None:
        return wave[0]
    # Lhotse gives channels in their own order, not in that asked for
    return wave[np.argsort(np.argsort(channels))]


def volume_of(cut: MonoCut) -> float:
    """Return the factor of a cut's samples that `perturb_corpus` drew; 1 if none."""
    return float((cut.custom or {}).get(VOLUME, 1.0))


def file_of(cut: MonoCut) -> str:
    """Return the first source of a cut's recording, for messages."""
    recording = cut.recording
    assert recording is not None
    return str(recording.sources[0].source) if recording.sources else recording.id


def supervision_of(cut: MonoCut) -> SupervisionSegment:
    """Return the supervision of an utterance.

    Raises:
        UserError: it has none.
    """
    if not cut.supervisions:
        raise UserError(
            "the cut has no supervision",
            file=file_of(cut),
            utterance=cut.id,
            remedy="prepare the corpus again",
        )
    return cut.supervisions[0]


def speaker_of(cut: MonoCut) -> str:
    """Return the speaker of an utterance; its id where none is known, as in Kaldi."""
    supervisions = cut.supervisions
    return (supervisions[0].speaker if supervisions else None) or cut.id


def text_of(cut: MonoCut) -> str:
    """Return the transcript of an utterance, empty without one."""
    supervisions = cut.supervisions
    return (supervisions[0].text if supervisions else None) or ""


def renamed(item: ItemT, rename: Callable[[str], str]) -> ItemT:
    """Return a recording, supervision or cut with other ids.

    Args:
        item: of a manifest.
        rename: makes the new name of an utterance, a recording or a speaker.
    """
    if isinstance(item, SupervisionSegment):
        return fastcopy(
            item,
            id=rename(item.id),
            recording_id=rename(item.recording_id),
            speaker=item.speaker and rename(item.speaker),
        )
    if isinstance(item, MonoCut):
        assert item.recording is not None
        return fastcopy(
            item,
            id=rename(item.id),
            recording=renamed(item.recording, rename),
            supervisions=[renamed(segment, rename) for segment in item.supervisions],
        )
    assert isinstance(item, Recording)
    return fastcopy(item, id=rename(item.id))


@contextmanager
def spools(
    folder: str | Path,
) -> Iterator[tuple[Spool[Recording], Spool[SupervisionSegment]]]:
    """Open empty spools of recordings and of supervisions."""
    with (
        Spool(folder, Recording.from_dict) as recordings,
        Spool(folder, SupervisionSegment.from_dict) as supervisions,
    ):
        yield recordings, supervisions
