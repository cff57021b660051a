"""HDF5 files in RETURNN's layout: frames and labels of sequences.

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

Labels may take the place of the frames, one number each (RETURNN's sparse data).

Labels may lie in other files than the frames, as RETURNN's `HDFDumpLayer` writes
alignments: `inputs` are then labels, integers [sum labels], of `inputPattSize` classes
whose names are `labels`; or there are no `inputs`, and no column for them. Files of a
data set are put together by their `seqTags`.

Source: RETURNN `datasets/hdf.py`, `demos/mdlstm/IAM/create_IAM_dataset.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from latflow.corpus.ids import plain_id
from latflow.errors import UserError

log = logging.getLogger(__name__)

_SIZES = "sizes"  # the target with height and width of images
_INPUTS = "data"  # RETURNN's name of `inputs`, as a target where they are labels


@dataclass(frozen=True)
class HdfFile:
    """One open file.

    Attributes:
        path: its path.
        file: the open file.
        tags: ids of its sequences, with `_` instead of blanks.
        begin: int64 [N + 1, columns of `seqLengths`], first row of each sequence.
        columns: column of `begin` of each target.
        has_frames: whether it has frames; otherwise it has labels alone.
        inputs: the target that `inputs` are the labels of, where they are.
        sizes: int64 [N, 2], height and width of images; None where inputs are frames.
        height: that images are filled to, with zeros below: that of the highest; 0
            where inputs are frames.
    """

    path: Path
    file: h5py.File
    tags: list[str]
    begin: np.ndarray
    columns: Mapping[str, int]
    has_frames: bool = False
    inputs: str | None = None
    sizes: np.ndarray | None = None
    height: int = 0

    @property
    def dim(self) -> int:
        """Features a frame, D."""
        inputs: Any = self.file["inputs"]
        return int(inputs.shape[1]) * (self.height or 1)

    @property
    def targets(self) -> list[str]:
        """Names of the targets, without that of the sizes of images."""
        return [name for name in self.columns if name != _SIZES]

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
        """Return the labels of a sequence, int32 [n].

        Raises:
            UserError: there is no such target, or a label is not one of its classes;
                -1, for no label, is allowed.
        """
        num_classes = self.num_classes(name)
        with _reading(self.path):
            column = self.columns[name]
            first, last = self.begin[i, column], self.begin[i + 1, column]
            values = np.asarray(self._data(name)[first:last])
        is_class = (values >= -1) & (values < num_classes)
        is_class &= values == np.floor(values)
        if not is_class.all():
            raise UserError(
                f"target {name} has labels outside of 0..{num_classes - 1}: "
                f"{values[~is_class][0]}",
                file=self.path,
                utterance=self.tags[i],
                remedy="labels must be class numbers, and their file list all classes",
            )
        return values.astype(np.int32)

    def num_classes(self, name: str) -> int:
        """Return the classes of a target."""
        with _reading(self.path):
            self._data(name)
            size: Any = (
                self.file.attrs["inputPattSize"]
                if name == self.inputs
                else self.file["targets/size"].attrs[name]  # (classes, dimensions)
            )
            number = np.ravel(size)[0]
            if not float(number).is_integer():
                raise ValueError(f"{name} has {number} classes")
            return int(number)

    def class_names(self, name: str) -> list[str]:
        """Return the names of the classes of a target."""
        with _reading(self.path):
            self._data(name)
            where = "labels" if name == self.inputs else f"targets/labels/{name}"
            names: Any = self.file[where]
            return [_text(label) for label in np.asarray(names).tolist()]

    def _data(self, name: str) -> Any:
        """Return the labels of a target; they must be one number each, and all."""
        if name not in self.columns:
            known = ", ".join(self.columns) or "none"
            raise UserError(f"has no target {name}; it has {known}", file=self.path)
        where = "inputs" if name == self.inputs else f"targets/data/{name}"
        data: Any = self.file[where]
        if data.ndim != 1 or data.dtype.kind not in "iuf":
            what = f"of {data.ndim} dimensions" if data.ndim != 1 else "text"
            what = f"target {name} is {what}, not class numbers"
            raise UserError(what, file=self.path, remedy="name the targets to be read")
        if self.begin[-1, self.columns[name]] != len(data):
            raise UserError("seqLengths do not fit the data", file=self.path)
        return data


@dataclass(frozen=True)
class HdfLabels:
    """Labels of one target in the files of a data set.

    Attributes:
        name: of the target.
        num_classes: K; 0 where no file has labels.
        places: where those of each sequence are, by its id: a file, and its number.
    """

    name: str
    num_classes: int
    places: Mapping[str, tuple[HdfFile, int]]

    def of(self, tag: str) -> np.ndarray | None:
        """Return the labels of a sequence, int32 [n]; None where it has none."""
        if tag not in self.places:
            return None
        part, i = self.places[tag]
        return part.labels(self.name, i)


@dataclass(frozen=True)
class HdfSequences:
    """The sequences of a data set: frames, and labels of the same files or of others.

    Attributes:
        dim: features per frame.
        frames: where the frames of each are, by its id: a file, and its number there.
        labels: of the targets that are read.
        sparse: the target whose labels are the frames, or None.
    """

    dim: int
    frames: Mapping[str, tuple[HdfFile, int]]
    labels: Sequence[HdfLabels]
    sparse: HdfLabels | None = None

    def frames_of(self, tag: str) -> np.ndarray:
        """Return the frames of a sequence, float32 [T, D]."""
        part, i = self.frames[tag]
        if self.sparse is None:
            return part.frames(i)
        return part.labels(self.sparse.name, i).astype(np.float32)[:, None]


def open_sequences(
    stack: ExitStack,
    files: Sequence[str | Path],
    targets: Sequence[str] | None,
    *,
    image_height: int | None = None,
    sparse: str | None = None,
) -> HdfSequences:
    """Open the files of a data set, to be closed with the stack.

    Sequences that have no labels of a target are counted in a line of the log; where
    the files have no targets at all (a test set), these are all.

    Args:
        files: in any order. Where one's `inputs` are labels, they are those of the only
            target that no other file has.
        targets: names of the targets to be read; None for all, and `data` for labels
            that are `inputs`.
        image_height: rows that images are filled to; None for those of the highest.
        sparse: the target whose labels are the frames; `data` for `inputs` that are
            labels. None for `inputs` that are frames.

    Raises:
        UserError: none is named, or one cannot be read; frames have different sizes, or
            a target different classes; an image is higher; a sequence comes twice; no
            file has a target, or which one `inputs` are is not known.
    """
    parts = [stack.enter_context(open_hdf(Path(file))) for file in files]
    if not parts:
        raise UserError("no HDF5 files are named")
    as_frames = None if sparse is None else _labels(parts, sparse)
    if as_frames is None:
        with_frames = _of_one_size([p for p in parts if p.has_frames], image_height)
        if not with_frames:
            raise UserError(
                "has labels, and no file has features",
                file=parts[0].path,
                remedy="name the files of the features, too; or name the labels that "
                "are to be read as features in sparse",
            )
        dim, frames = with_frames[0].dim, _places(with_frames)
    else:
        dim, frames = 1, as_frames.places
    if targets is None:
        targets = sorted({name for part in parts for name in part.targets})
    if sparse != _INPUTS:
        parts = _with_inputs_named(parts, targets)
    labels = [_labels(parts, name) for name in targets]
    for one in labels:
        missing = sorted(frames.keys() - one.places)
        if missing:
            what = "%d of %d sequences have no labels (%s): %s"
            log.warning(what, len(missing), len(frames), one.name, missing[0])
    return HdfSequences(dim, frames, labels, as_frames)


def _of_one_size(parts: list[HdfFile], image_height: int | None) -> list[HdfFile]:
    """Return files of frames, their images filled to one height."""
    highest = max((part.height for part in parts), default=0)
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


def _with_inputs_named(
    parts: Sequence[HdfFile], targets: Sequence[str]
) -> list[HdfFile]:
    """Return files whose `inputs`, where they are labels, have their target's name."""
    unnamed = [part for part in parts if part.inputs is not None]
    if not unnamed or _INPUTS in targets:
        return list(parts)
    named = {name for part in parts if part.inputs is None for name in part.targets}
    left = [name for name in targets if name not in named]
    if len(left) != 1:
        raise UserError(
            "its inputs are labels, and of which target is not stated",
            file=unnamed[0].path,
            remedy="name one target that no other file has",
        )
    (name,) = left
    return [
        part
        if part.inputs is None
        else replace(part, inputs=name, columns={name: part.columns[_INPUTS]})
        for part in parts
    ]


def _places(parts: Sequence[HdfFile]) -> dict[str, tuple[HdfFile, int]]:
    """Return where each sequence is: a file, and its number; none may come twice."""
    places: dict[str, tuple[HdfFile, int]] = {}
    for part in parts:
        for i, tag in enumerate(part.tags):
            if tag in places:
                raise UserError("comes twice", file=part.path, utterance=tag)
            places[tag] = part, i
    return places


def _labels(parts: Sequence[HdfFile], name: str) -> HdfLabels:
    having = [part for part in parts if name in part.columns]
    if not having and any(part.targets for part in parts):
        parts[0].num_classes(name)  # raises: no part has this target
    sizes = [part.num_classes(name) for part in having]
    for part, size in zip(having, sizes, strict=True):
        if size != sizes[0]:
            raise UserError(
                f"target {name} has {size} classes, and {sizes[0]} in {having[0].path}",
                file=part.path,
                remedy="files of one data set must be of the same classes",
            )
    return HdfLabels(name, sizes[0] if sizes else 0, _places(having))


@contextmanager
def open_hdf(path: Path) -> Iterator[HdfFile]:
    """Open a file of RETURNN's layout.

    Raises:
        UserError: it is not readable, or not of this layout.
    """
    try:
        file = h5py.File(path, "r")
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path") from None
    except OSError as error:
        raise UserError(f"not readable as HDF5 ({error})", file=path) from error
    with file:
        # not around the yield: what writers raise there is no fault of this file
        with _reading(path):
            part = _described(path, file)
        yield part


def _described(path: Path, file: h5py.File) -> HdfFile:
    """Find the sequences of an open file."""
    inputs: Any = file.get("inputs")
    data = file.get("targets/data")
    names = sorted(data) if isinstance(data, h5py.Group) else []
    rows, dimensions = (0, 0) if inputs is None else (len(inputs), inputs.ndim)
    _check_layout(path, file, dimensions, names)
    known = [_INPUTS, *names] if dimensions else names
    lengths = np.asarray(file["seqLengths"], np.int64)
    if lengths.ndim == 1:  # old files: all streams have the same lengths
        lengths = np.repeat(lengths[:, None], len(known), axis=1)
    if not names:  # RETURNN writes a column for targets that are not there
        lengths = lengths[:, :1]
    tags = _tags(path, file)
    begin = np.zeros((len(lengths) + 1, lengths.shape[1]), np.int64)
    np.cumsum(lengths, axis=0, out=begin[1:])
    fit = lengths.shape == (len(tags), len(known)) and (lengths >= 0).all()
    if not fit or (dimensions and begin[-1, 0] != rows):
        raise UserError("seqLengths do not fit the data", file=path)
    columns = {name: column for column, name in enumerate(known)}
    if dimensions == 1:
        return HdfFile(path, file, tags, begin, columns, inputs=_INPUTS)
    if dimensions:
        del columns[_INPUTS]
    part = HdfFile(path, file, tags, begin, columns, has_frames=bool(dimensions))
    return _as_images(part) if part.has_frames and _SIZES in names else part


def _check_layout(
    path: Path, file: h5py.File, dimensions: int, names: list[str]
) -> None:
    """Refuse a file that has not what RETURNN's have; 0 dimensions: no `inputs`."""
    missing = [n for n in ("seqLengths", "seqTags") if n not in file]
    if not dimensions and not names:
        missing = ["inputs", *missing]
    if missing or dimensions > 2:
        what = f"inputs of {dimensions} dimensions"
        what = f"no {', '.join(missing)}" if missing else what
        remedy = "give a file that RETURNN's HDFDataset reads"
        raise UserError(f"{what} in it", file=path, remedy=remedy)
    if dimensions and _INPUTS in names:
        raise UserError(f"has {_INPUTS} twice: inputs, and a target", file=path)


def _tags(path: Path, file: h5py.File) -> list[str]:
    """Return the ids of the sequences of a file, without blanks."""
    raw = [_text(tag) for tag in np.asarray(file["seqTags"]).tolist()]
    tags = [plain_id(tag) for tag in raw]
    if not all(tags):
        raise UserError("a sequence has no id in seqTags", file=path)
    changed = [old for old, new in zip(raw, tags, strict=True) if old != new]
    if changed:
        what = "%s: %d ids hold blanks, which become _: %r"
        log.warning(what, path, len(changed), changed[0])
    return tags


def _as_images(part: HdfFile) -> HdfFile:
    """Return a file whose inputs are images of the sizes that it lists."""
    data: Any = part.file[f"targets/data/{_SIZES}"]
    if part.begin[-1, part.columns[_SIZES]] != data.size:
        raise UserError("seqLengths do not fit the data", file=part.path)
    sizes = np.asarray(data, np.int64).reshape(len(part.tags), 2)
    pixels = np.diff(part.begin[:, 0])
    faulty = np.flatnonzero((sizes < 1).any(1) | (sizes.prod(1) != pixels))
    if len(faulty):
        raise UserError(
            "has other pixels than sizes say",
            file=part.path,
            utterance=part.tags[faulty[0]],
        )
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
