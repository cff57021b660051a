"""Arrays of utterances in one memory-mapped store: frames, labels, graphs.

A store is a folder. `<column>.npy` holds the arrays of all utterances below each other
(any dtype, any shape of a row), `index.npz` where each utterance begins, the ids as
packed UTF-8 and whatever else is kept by utterance, `meta.json` the rest. Opening one
takes milliseconds whatever its size: nothing is parsed per utterance, rows come from
the disk when they are touched, and processes that open the same store share its pages.

A kind of store is a subclass that names its columns:

    class PitchStore(RaggedStore):
        FORMAT = "latflow-pitch-1"
        KIND = "pitch store"
        COLUMNS: ClassVar = {"pitch": ("<f4", 1), "voiced": ("?", 1)}

    with atomic_directory(path) as folder, RaggedWriter(folder, PitchStore) as writer:
        writer.write("utterance-1", pitch, voiced)
    PitchStore.load(path)["pitch"][0]
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from numpy.lib import format as npy

from latflow.errors import UserError
from latflow.files import reading

INDEX, META = "index.npz", "meta.json"


@dataclass(frozen=True, eq=False, slots=True)
class Ragged:
    """Arrays of different lengths, below each other.

    Attributes:
        flat: [sum T, ...], read only.
        begin: int64[N + 1], first row of each array; the last entry is sum T.
    """

    flat: np.ndarray
    begin: np.ndarray

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, i: int) -> np.ndarray:
        """Return array i, [T_i, ...], a view."""
        return self.flat[self.begin[i] : self.begin[i + 1]]

    def block(self, first: int, last: int) -> np.ndarray:
        """Return arrays first..last-1 below each other, a view."""
        return self.flat[self.begin[first] : self.begin[last]]


def factor(value: Any) -> int:
    """Return a positive whole number of a store, for `RaggedStore.FACTS`.

    Raises:
        ValueError: it is not such a number.
    """
    if int(value) < 1:
        raise ValueError(f"{value} is not a number above 0")
    return int(value)


class RaggedStore:
    """Arrays by utterance, read only; the base of the kinds of stores.

    Safe to share between threads. Pickling it pickles the folder's name alone, so
    worker processes map the same pages of memory.

    Attributes:
        folder: its folder.
        meta: the whole of `meta.json`.
        begin: int64[N + 1], of the first column.
    """

    FORMAT: ClassVar[str]  # in `meta.json`
    KIND: ClassVar[str]  # in messages
    REMEDY: ClassVar[str] = "make it again"
    COLUMNS: ClassVar[Mapping[str, tuple[Any, int]]]  # dtype and dimensions of each
    SORTED: ClassVar[bool] = False  # whether ids must be in byte order
    FACTS: ClassVar[Mapping[str, Callable[[Any], Any]]] = {}  # in `meta.json`: type

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, Ragged],
        packed_ids: np.ndarray,
        meta: Mapping[str, Any],
    ) -> None:
        self.folder = folder
        self.meta = meta
        self._columns = columns
        self._packed_ids = packed_ids
        self.begin = next(iter(columns.values())).begin

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Open a folder that a `RaggedWriter` of this kind wrote.

        Raises:
            UserError: there is no such store, or its files do not fit each other.
        """
        folder = Path(folder)
        with reading(folder, f"not a readable {cls.KIND}", cls.REMEDY):
            meta = json.loads((folder / META).read_text(encoding="utf-8"))
            if meta.get("format") != cls.FORMAT:
                raise ValueError(f"its format is {meta.get('format')}")
            for name, kind in cls.FACTS.items():
                kind(meta[name])
            with open_index(folder) as index:
                begins = {name: index[_begin(cls, name)] for name in cls.COLUMNS}
                ids = index["utt_ids"]
            columns = {
                name: Ragged(_map(folder / f"{name}.npy", *kind), begins[name])
                for name, kind in cls.COLUMNS.items()
            }
        first = next(iter(columns.values())).begin
        for name, column in columns.items():
            begin = column.begin
            if (
                begin.ndim != 1
                or begin.dtype.kind != "i"
                or len(begin) != len(first)
                or not len(begin)
                or begin[0] != 0
                or begin[-1] != len(column.flat)
                or (np.diff(begin) < 0).any()
            ):
                what = f"{name} and index differ"
                raise UserError(what, file=folder, remedy=cls.REMEDY)
        return cls(folder, columns, ids, meta)

    def __len__(self) -> int:
        return len(self.begin) - 1

    def __getitem__(self, column: str) -> Ragged:
        """Return a column."""
        return self._columns[column]

    @cached_property
    def utt_ids(self) -> list[str]:
        """Utterance ids, in the order of writing."""
        found = self._unpacked("utt_ids", self._packed_ids, len(self))
        if len({*found}) < len(found):
            what = "utt_ids of the index come twice"
            raise UserError(what, file=self.folder, remedy=self.REMEDY)
        if self.SORTED and found != sorted(found):
            what = "utt_ids of the index are not in order"
            raise UserError(what, file=self.folder, remedy=self.REMEDY)
        return found

    @cached_property
    def _positions(self) -> dict[str, int]:
        """Utterance id -> index."""
        return {utt_id: i for i, utt_id in enumerate(self.utt_ids)}

    def __contains__(self, utt_id: str) -> bool:
        return utt_id in self._positions

    def position(self, utt_id: str) -> int:
        """Return the index of an utterance.

        Raises:
            KeyError: no such utterance.
        """
        return self._positions[utt_id]

    def positions(self, utt_ids: Sequence[str]) -> np.ndarray:
        """Return the indices of utterances, int64; -1 where one is not there."""
        found = [self._positions.get(utt_id, -1) for utt_id in utt_ids]
        return np.array(found, np.int64)

    def index(self, name: str) -> np.ndarray:
        """Read integers of the utterances, which the writer's `index` had under a name.

        Raises:
            UserError: the index is damaged, or has another number of them.
        """
        with self._reading(name), open_index(self.folder) as index:
            return integers(index[name], len(self))

    def strings(self, name: str, count: int) -> list[str]:
        """Read this many strings, which the writer's `index` had under a name.

        Raises:
            UserError: the index is damaged, or has another number of them.
        """
        with self._reading(name), open_index(self.folder) as index:
            packed = index[name]
        return self._unpacked(name, packed, count)

    def _unpacked(self, name: str, packed: np.ndarray, count: int) -> list[str]:
        """Return strings of the index."""
        with self._reading(name):
            return unpack(packed, count)

    def _reading(self, name: str) -> AbstractContextManager[None]:
        """Make what is raised on a damaged index a UserError."""
        what = f"{name} of the {self.KIND} cannot be read"
        return reading(self.folder, what, self.REMEDY)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self).load, (self.folder,))


class RaggedWriter:
    """Write a store, an utterance at a time; memory holds the index alone.

    Use it as a context manager, inside `latflow.files.atomic_directory`: `meta.json`,
    without which the folder is not a store, comes last.

    Attributes:
        index: further arrays for `index.npz`, by name; to be filled before the end.

    Args:
        folder: made if absent.
        kind: the kind of store.
        row_shapes: shape of a row of each column of more than one dimension.
        meta: further JSON values to keep; may be changed until the end.
    """

    def __init__(
        self,
        folder: str | Path,
        kind: type[RaggedStore],
        *,
        row_shapes: Mapping[str, tuple[int, ...]] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)
        self.kind = kind
        self._columns = [
            _Column(self._folder / f"{name}.npy", dtype, (row_shapes or {}).get(name))
            for name, (dtype, _) in kind.COLUMNS.items()
        ]
        self.utt_ids: list[str] = []
        self.index: dict[str, Any] = {}
        self.meta = {**(meta or {}), "format": kind.FORMAT}

    def write(self, utt_id: str, *arrays: np.ndarray) -> None:
        """Add an utterance; ids may come in any order, each once.

        Args:
            arrays: [T, ...] for each column.

        Raises:
            ValueError: a line break in the id, or an array of another shape.
        """
        if "\n" in utt_id:
            raise ValueError(f"{utt_id!r}: line break in the id")
        for column, array in zip(self._columns, arrays, strict=True):
            if array.shape[1:] != column.row_shape or not array.ndim:
                wanted = ("T", *column.row_shape)
                raise ValueError(f"{utt_id!r}: shape {array.shape}, not {wanted}")
        for column, array in zip(self._columns, arrays, strict=True):
            column.append(array)
        self.utt_ids.append(utt_id)

    def close(self) -> None:
        """Write the final headers, the index and `meta.json`.

        Raises:
            UserError: an utterance came twice.
        """
        for column in self._columns:
            column.close()
        if len(set(self.utt_ids)) < len(self.utt_ids):
            twice = Counter(self.utt_ids).most_common(1)[0][0]
            what = f"has {next(iter(self.kind.COLUMNS))} twice"
            raise UserError(what, utterance=twice)
        index: dict[str, Any] = {
            _begin(self.kind, name): np.array(column.begin, np.int64)
            for name, column in zip(self.kind.COLUMNS, self._columns, strict=True)
        }
        index["utt_ids"] = pack(self.utt_ids)
        np.savez(self._folder / INDEX, **index, **self.index)
        meta = {**self.meta, "num_utterances": len(self.utt_ids)}
        text = json.dumps(meta, indent=1, sort_keys=True)
        (self._folder / META).write_text(text + "\n", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        for column in self._columns:
            column.stream.close()


class _Column:
    """A file of rows that grows: numpy's header is padded, to be rewritten in place."""

    def __init__(self, path: Path, dtype: Any, row_shape: tuple[int, ...] | None):
        self.dtype = np.dtype(dtype)
        self.row_shape = row_shape or ()
        self.begin = [0]
        self.stream = path.open("wb")
        self._write_header()
        self._header_length = self.stream.tell()

    def append(self, array: np.ndarray) -> None:
        """Write the rows of an utterance."""
        self.stream.write(np.ascontiguousarray(array, self.dtype).data)
        self.begin.append(self.begin[-1] + len(array))

    def close(self) -> None:
        """Write the header with the final number of rows."""
        self.stream.seek(0)
        self._write_header()
        assert self.stream.tell() == self._header_length
        self.stream.close()

    def _write_header(self) -> None:
        header = {
            "descr": npy.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.begin[-1], *self.row_shape),
        }
        npy.write_array_header_1_0(self.stream, header)


@contextmanager
def open_index(folder: Path) -> Iterator[Mapping[str, np.ndarray]]:
    """Open the index of a store; the file is closed where it is damaged, too."""
    with (folder / INDEX).open("rb") as stream, np.load(stream) as arrays:
        yield arrays


def windows(begin: np.ndarray, max_rows: int) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of consecutive arrays with at most `max_rows` rows together.

    A longer array comes alone. All are covered, in order.

    Args:
        begin: int64[N + 1], first row of each array.
        max_rows: of a window.
    """
    first = 0
    while first < len(begin) - 1:
        limit = begin[first] + max_rows
        last = int(np.searchsorted(begin, limit, side="right")) - 1
        last = max(last, first + 1)
        yield first, last
        first = last


def pack(strings: Sequence[str]) -> np.ndarray:
    """Return strings as the bytes of their lines, uint8."""
    return np.frombuffer("\n".join(strings).encode("utf-8"), np.uint8)


def unpack(packed: np.ndarray, count: int) -> list[str]:
    """Return `count` strings from the bytes of their lines.

    Raises:
        ValueError: they are not bytes of UTF-8, or of another number of lines.
    """
    if packed.dtype != np.uint8 or packed.ndim != 1:
        raise ValueError(f"no text: {packed.ndim} dimensions of {packed.dtype}")
    if not count:
        return []
    found = packed.tobytes().decode("utf-8").split("\n")
    if len(found) != count:
        raise ValueError(f"{len(found)} lines, not {count}")
    return found


def integers(array: np.ndarray, count: int) -> np.ndarray:
    """Return an array that is to be this many integers.

    Raises:
        ValueError: it is something else.
    """
    if array.shape == (0,) == (count,):  # numpy takes no numbers for floats
        return array.astype(np.int64)
    if array.dtype.kind not in "iu" or array.shape != (count,):
        raise ValueError(f"{array.shape} of {array.dtype}, not {count} integers")
    return array


def _begin(kind: type[RaggedStore], column: str) -> str:
    """Return the name in the index of where a column's arrays begin."""
    is_first = column == next(iter(kind.COLUMNS))
    return "begin" if is_first else f"begin_{column}"


def _map(path: Path, dtype: Any, ndim: int) -> np.ndarray:
    """Memory-map an array, read only.

    Raises:
        ValueError: it is of another kind.
    """
    flat = np.asarray(np.load(path, mmap_mode="r"))
    if flat.ndim != ndim or flat.dtype != np.dtype(dtype):
        raise ValueError(f"{path.name}: {flat.ndim} dimensions of {flat.dtype}")
    return flat
