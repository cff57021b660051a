"""HDF5 files in RETURNN's layout, as a corpus: sequences with labels, without audio.

What RETURNN's `HDFDataset` reads:

    inputs                float32 [sum T, D], the frames of all sequences
    seqLengths            int32 [N, 1 + M]: frames, then labels of each of the M targets
                          (by the order of their names)
    seqTags               ids, strings [N]
    targets/data/<name>   int32 [sum labels]
    targets/size          attribute <name>: (classes, 1)
    targets/labels/<name> names of the classes

Images (RETURNN: 2-D inputs) have a target `sizes`, height and width of each, and their
pixels row by row as `inputs`: [height x width, C], C numbers a pixel. Here frames are
the columns of an image: [width, C x height], as layers over time and frequency take
them (`conv2d`, `mdlstm`).

Public: `HdfFile`, `open_hdf`, `open_hdf_files`, `locations_of`, `read_hdf_corpus`,
`read_sequences`, `write_strings`.

Source: RETURNN `datasets/hdf.py`, `demos/mdlstm/IAM/create_IAM_dataset.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from lhotse import Recording, SupervisionSegment

from latflow.corpus.assemble import CorpusWriter
from latflow.corpus.audio import Found
from latflow.corpus.options import GivenSource, Hdf5Source
from latflow.errors import UserError
from latflow.ledger import Ledger

_SIZES = "sizes"  # the target that tells height and width of images
_NOMINAL_RATE = 16000  # of recordings without audio, whose durations are what counts


@dataclass(frozen=True)
class HdfFile:
    """One open file.

    Attributes:
        path: its path.
        file: the open file.
        tags: ids of its sequences.
        begin: int64 [N + 1, 1 + M], first row of each sequence, in inputs and targets.
        columns: column of `begin` of each target of the file.
        targets: names of the targets that are read.
        sizes: int64 [N, 2], height and width of images; None where inputs are frames.
        height: that images are filled to, with zeros below: that of the highest; 0
            where inputs are frames.
    """

    path: Path
    file: h5py.File
    tags: list[str]
    begin: np.ndarray
    columns: Mapping[str, int]
    targets: tuple[str, ...]
    sizes: np.ndarray | None = None
    height: int = 0

    @property
    def dim(self) -> int:
        """Features a frame, D."""
        inputs: Any = self.file["inputs"]
        return int(inputs.shape[1]) * (self.height or 1)

    def num_frames(self, i: int) -> int:
        """Return the frames of a sequence; of an image, its columns."""
        if self.sizes is not None:
            return int(self.sizes[i, 1])
        return int(self.begin[i + 1, 0] - self.begin[i, 0])

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of a sequence, float32 [T, D]."""
        with _reading(self.path):
            inputs: Any = self.file["inputs"]
            rows = inputs[self.begin[i, 0] : self.begin[i + 1, 0]]
            rows = np.asarray(rows, np.float32)
        if self.sizes is None:
            return rows
        height, width = self.sizes[i]
        pixels = rows.reshape(height, width, -1)
        filled = np.pad(pixels, ((0, self.height - height), (0, 0), (0, 0)))
        return filled.transpose(1, 2, 0).reshape(width, -1)

    def labels(self, name: str, i: int) -> np.ndarray:
        """Return the labels of a sequence, int32 [n]."""
        with _reading(self.path):
            column = self._column(name)
            first, last = self.begin[i, column], self.begin[i + 1, column]
            data: Any = self.file[f"targets/data/{name}"]
            return np.asarray(data[first:last], np.int32)

    def num_classes(self, name: str) -> int:
        """Return the classes of a target."""
        with _reading(self.path):
            self._column(name)
            size: Any = self.file["targets/size"].attrs[name]  # (classes, dimensions)
            return int(np.ravel(size)[0])

    def class_names(self, name: str) -> list[str]:
        """Return the names of the classes of a target."""
        with _reading(self.path):
            self._column(name)
            names: Any = self.file[f"targets/labels/{name}"]
            return [_text(label) for label in np.asarray(names).tolist()]

    def _column(self, name: str) -> int:
        """Return the column of `begin` of a target; it must be one label at a time."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UserError(f"has no target {name}; it has {known}", file=self.path)
        data: Any = self.file[f"targets/data/{name}"]
        if data.ndim != 1:
            what = f"target {name} is of {data.ndim} dimensions, not class numbers"
            raise UserError(what, file=self.path, remedy="name the targets to be read")
        return self.columns[name]


def open_hdf_files(
    stack: ExitStack,
    files: Sequence[str | Path],
    targets: Sequence[str] | None,
    *,
    image_height: int | None = None,
) -> list[HdfFile]:
    """Open the files of a data set, to be closed with the stack.

    Args:
        files: in any order.
        targets: names of the targets to be read; None for all of a file.
        image_height: rows that images are filled to; None for those of the highest.

    Raises:
        UserError: none is named, or one cannot be read or has frames of another size,
            or an image is higher.
    """
    parts = [stack.enter_context(open_hdf(Path(file), targets)) for file in files]
    if not parts:
        raise UserError("no HDF5 files are named")
    highest = max(part.height for part in parts)
    if image_height is not None and highest > image_height:
        part = next(part for part in parts if part.height == highest)
        raise UserError(
            f"has images of {highest} rows, and image_height is {image_height}",
            file=part.path,
            remedy=f"set image_height to {highest} or more",
        )
    height = image_height or highest
    parts = [replace(part, height=height) if part.height else part for part in parts]
    odd = [part for part in parts if part.dim != parts[0].dim]
    if odd:
        raise UserError(
            f"frames have different sizes: {odd[0].dim}, and {parts[0].dim} in the "
            "first file",
            file=odd[0].path,
        )
    return parts


def locations_of(parts: Sequence[HdfFile]) -> dict[str, tuple[HdfFile, int]]:
    """Return where each sequence is: a file, and its number there.

    Raises:
        UserError: one comes twice.
    """
    locations: dict[str, tuple[HdfFile, int]] = {}
    for part in parts:
        for i, tag in enumerate(part.tags):
            if tag in locations:
                raise UserError("comes twice", file=part.path, utterance=tag)
            locations[tag] = part, i
    return locations


@contextmanager
def open_hdf(path: Path, targets: Sequence[str] | None) -> Iterator[HdfFile]:
    """Open a file of RETURNN's layout.

    Args:
        path: the file.
        targets: names of the targets to be read; None for all.

    Raises:
        UserError: it is not readable, or not of this layout.
    """
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"not readable as HDF5 ({error})", file=path) from error
    with file:
        # not around the yield: what writers raise there is no fault of this file
        with _reading(path):
            part = _described(path, file, targets)
        yield part


def _described(path: Path, file: h5py.File, targets: Sequence[str] | None) -> HdfFile:
    """Find the sequences of an open file."""
    missing = [n for n in ("inputs", "seqLengths", "seqTags") if n not in file]
    if missing or file["inputs"].ndim != 2:  # type: ignore[union-attr]
        what = f"no {', '.join(missing)}" if missing else "sparse inputs"
        remedy = "give a file that RETURNN's HDFDataset reads, with dense features"
        raise UserError(f"{what} in it", file=path, remedy=remedy)
    data = file.get("targets/data")
    names = sorted(data) if isinstance(data, h5py.Group) else []
    lengths = np.asarray(file["seqLengths"], np.int64)
    if lengths.ndim == 1:  # old files: all streams have the same lengths
        lengths = np.repeat(lengths[:, None], 1 + len(names), axis=1)
    if not names:  # RETURNN writes a column for targets that are not there
        lengths = lengths[:, :1]
    begin = np.zeros((len(lengths) + 1, lengths.shape[1]), np.int64)
    np.cumsum(lengths, axis=0, out=begin[1:])
    tags = [_text(tag) for tag in np.asarray(file["seqTags"]).tolist()]
    columns = {name: 1 + i for i, name in enumerate(names)}
    labels = [name for name in names if name != _SIZES]
    chosen = tuple(labels if targets is None else targets)
    totals: dict[int, Any] = {0: file["inputs"]}
    totals |= {columns[name]: data[name] for name in chosen if name in columns}  # type: ignore[index]
    if _SIZES in columns:
        totals[columns[_SIZES]] = data[_SIZES]  # type: ignore[index]
    fit = lengths.shape == (len(tags), 1 + len(names)) and (lengths >= 0).all()
    if not fit or any(begin[-1, column] != len(totals[column]) for column in totals):
        raise UserError("seqLengths do not fit the data", file=path)
    part = HdfFile(path, file, tags, begin, columns, chosen)
    if _SIZES not in columns:
        return part
    sizes = np.asarray(totals[columns[_SIZES]], np.int64).reshape(len(tags), 2)
    faulty = np.flatnonzero((sizes < 1).any(1) | (sizes.prod(1) != lengths[:, 0]))
    if len(faulty):
        tag = tags[faulty[0]]
        raise UserError("has other pixels than sizes say", file=path, utterance=tag)
    return replace(part, sizes=sizes, height=int(sizes[:, 0].max(initial=1)))


_DAMAGED = (
    *(AttributeError, IndexError, KeyError, OSError),
    *(RuntimeError, TypeError, ValueError),
)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Make what h5py raises on damaged files a UserError; its kinds are many."""
    try:
        yield
    except _DAMAGED as error:
        raise UserError(
            f"damaged, or not of RETURNN's layout ({error})",
            file=path,
            remedy="make or copy the file again",
        ) from error


def _text(tag: bytes | str) -> str:
    """Return an id; old files fill them up with zero bytes."""
    text = tag.decode("utf-8") if isinstance(tag, bytes) else tag
    return text.partition("\0")[0]


def write_strings(file: h5py.File, name: str, strings: Sequence[str]) -> None:
    """Write strings of any lengths, as bytes."""
    encoded = [text.encode("utf-8") for text in strings]
    file.create_dataset(name, data=encoded, dtype=h5py.special_dtype(vlen=bytes))


def read_hdf_corpus(
    source: Hdf5Source, folder: Path, *, ledger: Ledger, max_skipped_fraction: float
) -> None:
    """Write the manifests of the sequences of HDF5 files.

    Each is a recording without audio, and an utterance of a speaker of its own, which
    tells the frame shift.

    Args:
        source: see `read_sequences`.
        folder: see `CorpusWriter`.
        ledger: where skipped utterances are noted.
        max_skipped_fraction: largest share of utterances that may be skipped.

    Raises:
        UserError: as of `read_sequences`; or too many sequences have no labels.
    """
    checks = GivenSource(
        speaker="utterance", on_bad_utterance=source.on_bad_utterance, min_duration=0.0
    )
    with CorpusWriter(folder, source.files[0], checks, ledger) as writer:
        jobs = (
            (tag, partial(_found, tag, duration))
            for tag, duration, _ in read_sequences(source)
        )
        writer.add_recordings(jobs, threads=1)
        frame_shift = {"frame_shift": source.frame_shift_ms / 1000}
        utterances = (
            SupervisionSegment(
                tag,
                tag,
                0.0,
                _recording(tag, duration).duration,
                text=text,
                custom=frame_shift,
            )
            for tag, duration, text in read_sequences(source)
        )
        writer.add_utterances(utterances)
        writer.finish(max_skipped_fraction=max_skipped_fraction)


def read_sequences(source: Hdf5Source) -> Iterator[tuple[str, float, str]]:
    """Yield id, duration in seconds and transcript of each sequence, sorted by id.

    The transcript is the sequence of labels, by the names of the classes.

    Args:
        source: the files, and the target that is the transcript.

    Raises:
        UserError: a file is not of this layout or lacks the target, the names of its
            classes are no words, or a sequence comes twice.
    """
    target = source.target
    with ExitStack() as stack:
        parts = [
            stack.enter_context(open_hdf(Path(file), [target])) for file in source.files
        ]
        words = {part.path: _words(part, target) for part in parts}
        for tag, (part, i) in sorted(
            locations_of(parts).items(), key=lambda item: item[0]
        ):
            text = _transcript(part, i, target, words[part.path])
            yield tag, part.num_frames(i) * source.frame_shift_ms / 1000, text


def _found(tag: str, duration: float) -> Found:
    """Return a recording of a duration in seconds, without audio."""
    return Found(_recording(tag, duration))


def _recording(tag: str, duration: float) -> Recording:
    """Return a recording of a duration in seconds, without audio."""
    num_samples = round(duration * _NOMINAL_RATE)
    return Recording(
        id=tag,
        sources=[],
        sampling_rate=_NOMINAL_RATE,
        num_samples=num_samples,
        duration=num_samples / _NOMINAL_RATE,
        channel_ids=[0],
    )


def _words(part: HdfFile, target: str) -> list[str]:
    """Return the names of the classes of a target; each must be one word."""
    words = part.class_names(target)
    for number, word in enumerate(words):
        if len(word.split()) != 1:
            raise UserError(
                f"class {number} of target {target} is called {word!r}, which is not "
                "one word",
                file=part.path,
                remedy=f"give it another name in targets/labels/{target}",
            )
    return words


def _transcript(part: HdfFile, i: int, target: str, words: list[str]) -> str:
    """Return the labels of a sequence as words."""
    labels = part.labels(target, i)
    if len(labels) and not 0 <= labels.min() <= labels.max() < len(words):
        raise UserError(
            f"target {target} has labels outside of 0..{len(words) - 1}",
            file=part.path,
            utterance=part.tags[i],
            remedy=f"name all classes in targets/labels/{target}",
        )
    return " ".join([words[label] for label in labels.tolist()])
