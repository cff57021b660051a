"""HDF5 files in RETURNN's layout, in and out.

What RETURNN's `HDFDataset` reads and `SimpleHDFWriter` writes:

    inputs                float32 [sum T, D], the frames of all sequences
    seqLengths            int32 [N, 1 + M]: frames, then labels of each of the M targets
                          (by the order of their names)
    seqTags               ids, strings [N]
    targets/data/<name>   int32 [sum labels]
    targets/size          attribute <name>: (classes, 1)
    targets/labels/<name> names of the classes (here their numbers)

Training reads `FrameStore` and `LabelStore`, which several threads and processes can
map at once; so HDF5 is converted, once, and both functions stream.

Public: `export_hdf`, `import_hdf`, `import_split`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from latflow.corpus.manifests import read_cuts, speaker_of, text_of
from latflow.errors import UserError
from latflow.features.frames import FrameStore, FrameWriter
from latflow.files import atomic_directory, atomic_output
from latflow.ledger import Ledger
from latflow.training.data_options import Hdf5Options
from latflow.training.labels import LabelStore, LabelWriter

log = logging.getLogger(__name__)


def export_hdf(
    frames_dir: str | Path, labels: Mapping[str, str | Path], out: str | Path
) -> int:
    """Write frames and labels as RETURNN reads them.

    Utterances that lack labels of any target are left out.

    Args:
        frames_dir: a `FrameStore`.
        labels: folders of label stores by the name that the target is to have.
        out: the file, replaced as a whole.

    Returns:
        The number of utterances written.

    Raises:
        UserError: no labels are named, a store is missing, or no utterance has all
            labels.
    """
    if not labels:
        remedy = "name the labels that are to be the targets"
        raise UserError("RETURNN's data have a target at least", remedy=remedy)
    store = FrameStore.load(frames_dir)
    stores = {name: LabelStore.load(labels[name]) for name in sorted(labels)}
    chosen, rows = _with_all_labels(store, stores)
    if not len(chosen):
        raise UserError("no utterance has all labels", file=frames_dir)
    columns = [np.diff(store.begin)[chosen]]
    with atomic_output(out) as path, h5py.File(path, "w") as file:
        _write_inputs(file, store, chosen)
        for name, target in stores.items():
            _write_target(file, name, target, rows[name])
            columns.append(np.diff(target.begin)[rows[name]])
        file["seqLengths"] = np.stack(columns, axis=1).astype(np.int32)
        _write_strings(file, "seqTags", [store.utt_ids[i] for i in chosen])
        first = next(iter(stores.values()))
        file.attrs["numLabels"] = first.num_classes
        file.attrs["numSeqs"] = len(chosen)
        file.attrs["numTimesteps"] = int(columns[0].sum())
        file.attrs["inputPattSize"] = store.dim
    return len(chosen)


def _with_all_labels(
    store: FrameStore, stores: Mapping[str, LabelStore]
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return the utterances with all labels, by number here and in each store."""
    is_chosen = np.ones(len(store), np.bool_)
    rows = {}
    for name, labels in stores.items():
        places = {utt_id: i for i, utt_id in enumerate(labels.utt_ids)}
        rows[name] = np.array([places.get(u, -1) for u in store.utt_ids], np.int64)
        is_chosen &= rows[name] >= 0
    chosen = np.flatnonzero(is_chosen)
    return chosen, {name: places[chosen] for name, places in rows.items()}


def _write_inputs(file: h5py.File, store: FrameStore, chosen: np.ndarray) -> None:
    """Write the frames of the chosen utterances below each other."""
    total = int(np.diff(store.begin)[chosen].sum())
    inputs = file.create_dataset("inputs", (total, store.dim), np.float32)
    row = 0
    for i in chosen:
        frames = store.frames(i)
        inputs[row : row + len(frames)] = frames
        row += len(frames)


def _write_target(
    file: h5py.File, name: str, store: LabelStore, rows: np.ndarray
) -> None:
    """Write the labels of utterances (by their numbers in the store)."""
    total = int(np.diff(store.begin)[rows].sum())
    data = file.create_dataset(f"targets/data/{name}", (total,), np.int32)
    at = 0
    for i in rows:
        labels = store.labels(i)
        data[at : at + len(labels)] = labels
        at += len(labels)
    size = file.require_group("targets/size")
    size.attrs[name] = np.array([store.num_classes, 1], np.int32)
    names = [str(k) for k in range(store.num_classes)]
    _write_strings(file, f"targets/labels/{name}", names)


def _write_strings(file: h5py.File, name: str, strings: Sequence[str]) -> None:
    """Write strings of any lengths, as bytes."""
    encoded = [text.encode("utf-8") for text in strings]
    file.create_dataset(name, data=encoded, dtype=h5py.special_dtype(vlen=bytes))


def import_hdf(
    files: Sequence[str | Path],
    frames_dir: str | Path,
    labels_dir: str | Path,
    *,
    targets: Sequence[str] | None = None,
    frame_shift: float = 0.01,
) -> None:
    """Read RETURNN's HDF5 files into a `FrameStore` and label stores.

    The file knows no speakers: each utterance is its own, and transcripts are empty.

    Args:
        files: of one data set, in any order.
        frames_dir: becomes the frame store.
        labels_dir: `<labels_dir>/<target>` become the label stores.
        targets: names of the targets to read; None for all of the first file.
        frame_shift: time from one frame to the next, seconds.

    Raises:
        UserError: a file is not readable or not of this layout, lacks a target, or an
            utterance comes twice.
    """
    with ExitStack() as stack:
        parts = _open_all(stack, files, targets)
        places = _places(parts)
        folder = stack.enter_context(atomic_directory(frames_dir))
        write = _writer(stack, parts, folder, Path(labels_dir), frame_shift)
        for tag in sorted(places):
            write(tag, tag, "", *places[tag])


def import_split(
    cuts: str | Path,
    files: Sequence[Path],
    out_dir: str | Path,
    labels: str | Path,
    *,
    options: Hdf5Options,
    max_skipped_fraction: float,
) -> None:
    """Read the frames and labels of a split of a corpus from RETURNN's HDF5 files.

    Sequences that are not of the split are left alone. One is read at a time.

    Args:
        cuts: the split's `cuts.jsonl.gz`: its utterances, speakers and transcripts.
        files: that hold the utterances, in any order.
        out_dir: becomes the frame store, with `ledger.jsonl`.
        labels: `<labels>/<target>` become the label stores of the targets.
        options: `targets` and `frame_shift_ms`.
        max_skipped_fraction: share of the utterances that the files may lack.

    Raises:
        UserError: a file is not readable or not of this layout, lacks a target, or an
            utterance comes twice; or too many are in none of the files.
    """
    ledger = Ledger("import_hdf5")
    with ExitStack() as stack:
        parts = _open_all(stack, files, options.targets)
        places = _places(parts)
        example = next(iter(places), "nothing")
        frames = stack.enter_context(atomic_directory(out_dir))
        folder = stack.enter_context(atomic_directory(labels))
        write = _writer(stack, parts, frames, folder, options.frame_shift_ms / 1000)
        num_cuts = 0
        for num_cuts, cut in enumerate(read_cuts(cuts), start=1):  # noqa: B007
            if (place := places.pop(cut.id, None)) is None:
                ledger.record(cut.id, "is in none of the HDF5 files")
            else:
                write(cut.id, speaker_of(cut), text_of(cut), *place)
        if ledger.num_skipped() == num_cuts:
            raise UserError(
                f"has none of the {num_cuts} utterances; it has {example}",
                file=files[0],
                remedy="seqTags must be ids of the corpus' utterances",
            )
        if places:
            log.info("%d sequences are of no utterance: %s", len(places), min(places))
        ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
        ledger.write(frames / "ledger.jsonl")


def _open_all(
    stack: ExitStack, files: Sequence[str | Path], targets: Sequence[str] | None
) -> list[_Part]:
    """Open the files of a data set."""
    parts = [stack.enter_context(_opened(Path(path), targets)) for path in files]
    if not parts:
        raise UserError("no HDF5 files are named")
    dims = {part.dim: part for part in parts}
    if len(dims) > 1:
        odd = next(part for part in parts if part.dim != parts[0].dim)
        raise UserError(
            f"frames have different sizes: {odd.dim}, and {parts[0].dim} in the first "
            "file",
            file=odd.path,
        )
    return parts


def _places(parts: Sequence[_Part]) -> dict[str, tuple[_Part, int]]:
    """Return where each sequence is: a file, and its number there."""
    places: dict[str, tuple[_Part, int]] = {}
    for part in parts:
        for i, tag in enumerate(part.tags):
            if tag in places:
                raise UserError("comes twice", file=part.path, utterance=tag)
            places[tag] = part, i
    return places


def _writer(
    stack: ExitStack,
    parts: Sequence[_Part],
    frames_dir: Path,
    labels_dir: Path,
    frame_shift: float,
) -> Callable[[str, str, str, _Part, int], None]:
    """Return a function that writes a sequence, with id, speaker and text."""
    frames = stack.enter_context(
        FrameWriter(frames_dir, dim=parts[0].dim, frame_shift=frame_shift)
    )
    writers: dict[str, LabelWriter] = {}
    for name in parts[0].targets:
        num_classes = max(part.num_classes(name) for part in parts)
        folder = stack.enter_context(atomic_directory(labels_dir / name))
        writers[name] = stack.enter_context(LabelWriter(folder, num_classes))

    def write(utt_id: str, speaker: str, text: str, part: _Part, i: int) -> None:
        frames.append(utt_id, speaker, text, part.frames(i))
        for name, writer in writers.items():
            writer.append(utt_id, part.labels(name, i))

    return write


@dataclass(frozen=True)
class _Part:
    """One open file.

    Attributes:
        path: its path.
        file: the open file.
        tags: ids of its sequences.
        begin: int64 [N + 1, 1 + M], first row of each sequence, in inputs and targets.
        columns: column of `begin` of each target of the file.
        targets: names of the targets that are read.
    """

    path: Path
    file: h5py.File
    tags: list[str]
    begin: np.ndarray
    columns: Mapping[str, int]
    targets: tuple[str, ...]

    @property
    def inputs(self) -> Any:
        """The frames."""
        return self.file["inputs"]

    @property
    def dim(self) -> int:
        """Features a frame, D."""
        return int(self.inputs.shape[1])

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of a sequence, float32 [T, D]."""
        with _reading(self.path):
            rows = self.inputs[self.begin[i, 0] : self.begin[i + 1, 0]]
            return np.asarray(rows, np.float32)

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


@contextmanager
def _opened(path: Path, targets: Sequence[str] | None) -> Iterator[_Part]:
    """Open a file of RETURNN's layout."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise UserError(f"not readable as HDF5 ({error})", file=path) from error
    with file:
        # not around the yield: what writers raise there is no fault of this file
        with _reading(path):
            part = _described(path, file, targets)
        yield part


def _described(path: Path, file: h5py.File, targets: Sequence[str] | None) -> _Part:
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
    chosen = tuple(names if targets is None else targets)
    totals: dict[int, Any] = {0: file["inputs"]}
    totals |= {columns[name]: data[name] for name in chosen if name in columns}  # type: ignore[index]
    fit = lengths.shape == (len(tags), 1 + len(names)) and (lengths >= 0).all()
    if not fit or any(begin[-1, column] != len(totals[column]) for column in totals):
        raise UserError("seqLengths do not fit the data", file=path)
    return _Part(path, file, tags, begin, columns, chosen)


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
