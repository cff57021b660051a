"""Lhotse manifests as streams: read item by item, sorted on disk, written whole.

Lhotse's JSONL manifests are the only inner form of a corpus. A corpus folder holds
`recordings.jsonl.gz`, `supervisions.jsonl.gz`, `cuts.jsonl.gz` (one cut an utterance,
`cut.id == supervision.id`), each sorted by id, and `ledger.jsonl`. Paths of audio files
in them are absolute: manifests are read from many working directories (jobs of a
cluster, notebooks), and the audio seldom lies below them.

Cuts are read one at a time and checked to be sorted, so that a corpus of any size
passes through the stages.

Public: `read_recordings`, `read_supervisions`, `read_cuts`, `ManifestWriter`, `Spool`,
`spools`, `renamed`; of cuts `at_rate`, `load_samples`, `samples_or_reason`, `file_of`,
`volume_of`, `count_cuts`, `speaker_of`, `text_of`; `refuse_damaged`.
"""

from __future__ import annotations

import gzip
import json
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.audio import AudioLoadingError, DurationMismatchError
from lhotse.utils import fastcopy

from latflow.errors import UserError
from latflow.files import read_lines

# Field of a cut: factor of its samples, where a corpus with changed volumes has one.
VOLUME = "volume"


class Item(Protocol):
    """Describe the part that Lhotse's manifest items have in common."""

    id: str

    def to_dict(self) -> dict:
        """Turn into what JSON can hold."""
        ...


_REMEDY = "run the prepare_corpus stage again"
_RESTORE = "restore it, or prepare the corpus again"
# Errors that Lhotse and its readers raise on damaged audio.
_UNREADABLE = (
    AudioLoadingError,
    DurationMismatchError,
    AssertionError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)

ItemT = TypeVar("ItemT", bound=Item)


def read_recordings(path: str | Path) -> Iterator[Recording]:
    """Yield the recordings of a JSONL manifest (`.gz` or plain)."""
    return _read(path, Recording.from_dict, "recording")


def read_supervisions(path: str | Path) -> Iterator[SupervisionSegment]:
    """Yield the supervisions of a JSONL manifest (`.gz` or plain)."""
    return _read(path, SupervisionSegment.from_dict, "supervision")


def _read(
    path: str | Path, make: Callable[[dict[str, Any]], ItemT], kind: str
) -> Iterator[ItemT]:
    """Yield items, with line numbers in errors.

    Raises:
        UserError: the file is missing, or a line is not an item of the kind.
    """
    for number, line in read_lines(path):
        if not line:
            continue
        try:
            yield make(json.loads(line))
        except (ValueError, KeyError, TypeError, AssertionError) as error:
            raise UserError(
                f"line {number} is not a Lhotse {kind} ({error})",
                file=path,
                remedy="write the manifest with Lhotse, as .jsonl or .jsonl.gz",
            ) from error


def read_cuts(path: str | Path) -> Iterator[MonoCut]:
    """Yield the cuts of a `cuts.jsonl.gz`.

    Raises:
        UserError: the file is missing or garbled, an id comes twice or out of order, or
            a cut is not one channel of one recording.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError("no such file", file=path, remedy=_REMEDY)
    last = ""
    try:
        for cut in CutSet.from_jsonl_lazy(path):
            if not isinstance(cut, MonoCut):
                raise UserError(
                    "is not a cut of one channel of one recording",
                    file=path,
                    utterance=cut.id,
                    remedy="cut the channel that is to be recognized",
                )
            if cut.id <= last:
                twice = "comes twice" if cut.id == last else f"comes after {last}"
                raise UserError(twice, file=path, utterance=cut.id, remedy=_REMEDY)
            last = cut.id
            yield cut
    except (EOFError, OSError, ValueError, KeyError, TypeError, zlib.error) as error:
        raise UserError(
            f"is not a manifest of cuts ({error})", file=path, remedy=_REMEDY
        ) from error


def at_rate(
    cuts: Iterable[MonoCut], rate: int, *, may_resample: bool
) -> Iterator[MonoCut]:
    """Yield the cuts, those with another sample rate to be resampled on reading.

    Raises:
        UserError: a cut has another sample rate and may not be resampled.
    """
    for cut in cuts:
        if cut.sampling_rate == rate:
            yield cut
        elif may_resample:
            yield cast("MonoCut", cut.resample(rate))
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


def count_cuts(path: str | Path) -> int:
    """Count the lines of a manifest, for progress bars; 0 if it cannot be read."""
    try:
        with gzip.open(path, "rb") as stream:
            return sum(1 for _ in stream)
    except (OSError, EOFError, zlib.error):
        return 0


def speaker_of(cut: MonoCut) -> str:
    """Return the speaker of an utterance; its id where none is known, as in Kaldi."""
    supervisions = cut.supervisions
    return (supervisions[0].speaker if supervisions else None) or cut.id


def text_of(cut: MonoCut) -> str:
    """Return the transcript of an utterance, empty where there is none."""
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


class ManifestWriter:
    """Writes items as JSON lines, compressed; equal items give equal bytes.

    Use as a context manager. The file's time stamp field is left empty (Lhotse's own
    writer puts the clock there, so that no two runs would agree).
    """

    def __init__(self, path: str | Path) -> None:
        self._raw = Path(path).open("wb")  # noqa: SIM115 - closed in __exit__
        self._stream = gzip.GzipFile(
            filename="", mode="wb", fileobj=self._raw, mtime=0, compresslevel=6
        )

    def write(self, item: Item) -> None:
        """Append one item."""
        self._stream.write(_line(item))

    def __enter__(self) -> ManifestWriter:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._stream.close()
        finally:
            self._raw.close()


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


class Spool(Generic[ItemT]):
    """Items on disk with random access by id; memory holds ids and offsets only.

    Use as a context manager; the file has no name and vanishes with the object.

    Args:
        folder: where the temporary file lies.
        make: makes an item of its dictionary.
    """

    def __init__(
        self, folder: str | Path, make: Callable[[dict[str, Any]], ItemT]
    ) -> None:
        self._stream = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115
        self._make = make
        self._offsets: dict[str, int] = {}
        self._end = 0

    def add(self, item: ItemT, *, file: str | Path | None = None) -> None:
        """Append one item.

        Raises:
            UserError: an item of that id is there already; names `file`.
        """
        if item.id in self._offsets:
            raise UserError(
                "this id occurs twice",
                file=file,
                utterance=item.id,
                remedy="give each recording and each utterance an id of its own",
            )
        self._offsets[item.id] = self._end
        self._stream.seek(self._end)
        self._end += self._stream.write(_line(item))

    def extend(self, items: Iterable[ItemT], *, file: str | Path | None = None) -> None:
        """Append items."""
        for item in items:
            self.add(item, file=file)

    def __contains__(self, item_id: str) -> bool:
        return item_id in self._offsets

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, item_id: str) -> ItemT:
        self._stream.seek(self._offsets[item_id])
        return self._make(json.loads(self._stream.readline()))

    def ids(self) -> list[str]:
        """Return the ids of the items, sorted."""
        return sorted(self._offsets)

    def __iter__(self) -> Iterator[ItemT]:
        """Yield the items, sorted by id."""
        for item_id in self.ids():
            yield self[item_id]

    def __enter__(self) -> Spool[ItemT]:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()


def _line(item: Item) -> bytes:
    """Return one item as a line of JSON."""
    return (json.dumps(item.to_dict(), ensure_ascii=False) + "\n").encode()
