"""OpenFst's binary files, byte by byte: headers, `const` and `vector` bodies.

`latflow.fst.ngram` and `latflow.fst.lookahead` read two types more.

A file is a header (magic number, FST type, arc type, version, flags, property bits,
start state, numbers of states and arcs), then symbol tables if the flags say so, then
the body. All numbers are little-endian.

* `const`: all state records, then all arc records; an *aligned* file (flag 4, version
  1) pads before each of the two so that they start at a multiple of 16 bytes.
* `vector`: state after state: final weight (float32), number of arcs (int64), arcs.

Source: OpenFst `fst.cc` (FstHeader), `const-fst.h`, `vector-fst.h`, `symbol-table.cc`.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.files import require_file
from latflow.jit import njit

FST_MAGIC = 2125659606
SYMBOLS_MAGIC = 2125658996
ADD_ON_MAGIC = 446681434
ALIGNMENT = 16  # bytes, of the two arrays of an aligned file
HAS_INPUT_SYMBOLS, HAS_OUTPUT_SYMBOLS, IS_ALIGNED = 1, 2, 4
CONST_VERSION, ALIGNED_CONST_VERSION, VECTOR_VERSION = 2, 1, 2
ARC_TYPE = "standard"
TYPES = ("const", "vector", "ngram", "olabel_lookahead")

#: A state of a `const` file; `final` is +inf where the state is not final.
STATE = np.dtype(
    [
        ("final", "<f4"),
        ("first_arc", "<u4"),
        ("num_arcs", "<u4"),
        ("num_input_epsilons", "<u4"),
        ("num_output_epsilons", "<u4"),
    ]
)
#: An arc, in `const` and in `vector` files.
ARC = np.dtype(
    [("ilabel", "<i4"), ("olabel", "<i4"), ("weight", "<f4"), ("next_state", "<i4")]
)
_ARC_WORDS = ARC.itemsize // 4
_STATE_WORDS = 3  # of a `vector` file: final weight, number of arcs (two words)
_STATE_FIELDS = STATE.itemsize // 4  # of a `const` file

Name = str | Path | None


@dataclass(frozen=True)
class Header:
    """The head of an OpenFst file.

    Attributes:
        fst_type: `const`, `vector`, `ngram` or `olabel_lookahead`.
        version: of the body's layout.
        flags: sum of HAS_INPUT_SYMBOLS, HAS_OUTPUT_SYMBOLS, IS_ALIGNED.
        properties: OpenFst's property bits.
        start: start state, -1 if the FST is empty.
        num_states: S.
        num_arcs: A; only in `const` files.
        symbols: byte of the stream at which symbol tables begin, if there are any.
        body: byte of the stream at which the body begins (before padding).
    """

    fst_type: str
    version: int
    flags: int
    properties: int
    start: int
    num_states: int
    num_arcs: int
    symbols: int = 0
    body: int = 0

    @property
    def is_aligned(self) -> bool:
        """Return whether arrays of a `const` body start at multiples of 16."""
        is_old = self.fst_type == "const" and self.version == ALIGNED_CONST_VERSION
        return is_old or bool(self.flags & IS_ALIGNED)


def refuse(what: str, name: Name) -> NoReturn:
    """Raise the error of a faulty file."""
    raise UserError(what, file=name, remedy="make the graph again")


def take(buffer: memoryview, at: int, layout: str, name: Name) -> tuple:
    """Unpack numbers at a byte position."""
    try:
        return struct.unpack_from(layout, buffer, at)
    except struct.error:
        refuse("the FST is truncated", name)


def _take_string(buffer: memoryview, at: int, name: Name) -> tuple[str, int]:
    """Read a length and that many characters; returns the byte behind them too."""
    (length,) = take(buffer, at, "<i", name)
    end = at + 4 + length
    if length < 0 or end > len(buffer):
        refuse("the FST is truncated", name)
    return bytes(buffer[at + 4 : end]).decode("utf-8", "replace"), end


def begins_at(buffer: memoryview, at: int) -> bool:
    """Return whether an FST begins at a byte."""
    return bytes(buffer[at : at + 4]) == struct.pack("<i", FST_MAGIC)


def map_file(path: Path) -> memoryview:
    """Return the bytes of a file, read as they are asked for.

    Raises:
        UserError: there is no file, or nothing in it.
    """
    require_file(path)
    if not path.stat().st_size:
        raise UserError("the file is empty", file=path, remedy="make it again")
    with path.open("rb") as stream:
        return memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))


def read_header(buffer: memoryview, at: int = 0, *, name: Name = None) -> Header:
    """Read a header and step over the symbol tables that follow it.

    Args:
        buffer: the bytes of the file.
        at: where the FST begins in them.
        name: the file, for messages.

    Raises:
        UserError: this is not an FST, is truncated, or has arcs of another type than
            `standard` or a type that is not read.
    """
    if len(buffer) - at < 4 or take(buffer, at, "<i", name)[0] != FST_MAGIC:
        refuse("not an OpenFst file", name)
    fst_type, at = _take_string(buffer, at + 4, name)
    arc_type, at = _take_string(buffer, at, name)
    if arc_type != ARC_TYPE:
        refuse(f"an FST with arcs of type {arc_type}, not {ARC_TYPE}", name)
    if fst_type not in TYPES:
        refuse(f"an FST of type {fst_type}, none of {', '.join(TYPES)}", name)
    version, flags, properties, start, states, arcs = take(buffer, at, "<iiQqqq", name)
    at += struct.calcsize("<iiQqqq")
    header = Header(fst_type, version, flags, properties, start, states, arcs, at)
    for flag in (HAS_INPUT_SYMBOLS, HAS_OUTPUT_SYMBOLS):
        if flags & flag:
            _, at = read_symbols(buffer, at, name=name)
    is_counted = (
        fst_type != "olabel_lookahead"
    )  # it has the header of another FST in it
    garbled = states < 0 or arcs < 0 or not -1 <= start < max(states, 1)
    if garbled and is_counted:
        refuse("the header of the FST is garbled", name)
    return replace(header, body=at)


def read_symbols(
    buffer: memoryview, at: int, *, name: Name = None
) -> tuple[dict[str, int], int]:
    """Read the symbol table that begins at a byte.

    Returns:
        (the ids by their symbols, the byte behind the table).

    Raises:
        UserError: it is not a table, or cut, or has a symbol twice.
    """
    if take(buffer, at, "<i", name)[0] != SYMBOLS_MAGIC:
        refuse("the symbol table in the FST is garbled", name)
    _, at = _take_string(buffer, at + 4, name)
    _, size = take(buffer, at, "<qq", name)
    at += 16
    found: dict[str, int] = {}
    for _ in range(size):
        symbol, at = _take_string(buffer, at, name)
        (found[symbol],) = take(buffer, at, "<q", name)
        at += 8
    if len(found) != size:
        refuse("the symbol table in the FST has a symbol twice", name)
    return found, at


def begin_of_contained(buffer: memoryview, header: Header, name: Name = None) -> int:
    """Return the byte at which the FST in an `olabel_lookahead` file begins."""
    if take(buffer, header.body, "<i", name)[0] != ADD_ON_MAGIC:
        refuse("the FST of type olabel_lookahead is garbled", name)
    return header.body + 4


def write_header(stream: BinaryIO, header: Header) -> int:
    """Write a header without symbol tables; returns the number of bytes."""
    parts = [struct.pack("<i", FST_MAGIC)]
    for text in (header.fst_type, ARC_TYPE):
        raw = text.encode()
        parts += [struct.pack("<i", len(raw)), raw]
    parts.append(
        struct.pack(
            "<iiQqqq",
            header.version,
            header.flags & IS_ALIGNED,
            header.properties,
            header.start,
            header.num_states,
            header.num_arcs,
        )
    )
    return stream.write(b"".join(parts))


def padding(at: int) -> int:
    """Return bytes missing to the next multiple of `ALIGNMENT`."""
    return -at % ALIGNMENT


def read_const(
    buffer: memoryview, header: Header, *, begin: int = 0, name: Name = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Find the two arrays of a `const` body, without copying.

    Args:
        buffer: the bytes of the file, e.g. of a memory map.
        header: its header.
        begin: where the FST begins in the buffer (alignment counts from there).
        name: the file, for messages.

    Returns:
        (states, STATE[S]; arcs, ARC[A]; the byte behind the body).

    Raises:
        UserError: the file is too short.
    """
    at = header.body
    arrays = []
    for dtype, count in ((STATE, header.num_states), (ARC, header.num_arcs)):
        if header.is_aligned:
            at += padding(at - begin)
        end = at + dtype.itemsize * count
        if end > len(buffer):
            refuse("the FST is truncated", name)
        arrays.append(np.frombuffer(buffer, dtype, count, at))
        at = end
    return arrays[0], arrays[1], at


def read_vector(
    buffer: memoryview, header: Header, *, name: Name = None
) -> tuple[np.ndarray, np.ndarray, int]:
    """Copy a `vector` body into two arrays; same result as `read_const`.

    Raises:
        UserError: the file is too short.
    """
    num_words = (len(buffer) - header.body) // 4
    words = np.frombuffer(buffer, "<i4", num_words, header.body).copy()
    num_arcs, used = _measure_vector(words, header.num_states)
    if num_arcs < 0:
        refuse("the FST is truncated", name)
    states = np.empty(header.num_states, STATE)
    arcs = np.empty(num_arcs, ARC)
    _split_vector(
        words,
        states.view(np.int32).reshape(-1, _STATE_FIELDS),
        arcs.view(np.int32).reshape(-1, _ARC_WORDS),
    )
    return states, arcs, header.body + 4 * used


@njit(cache=True, nogil=True)
def _measure_vector(words: np.ndarray, num_states: int) -> tuple[int, int]:
    """Count the arcs and words of a body; (-1, 0) if the words do not suffice."""
    at = num_arcs = 0
    for _ in range(num_states):
        if at + _STATE_WORDS > len(words):
            return -1, 0
        count = np.int64(words[at + 1]) & 0xFFFFFFFF | np.int64(words[at + 2]) << 32
        if count < 0 or count > len(words):
            return -1, 0
        at += _STATE_WORDS + _ARC_WORDS * count
        num_arcs += count
    if at > len(words):
        return -1, 0
    return int(num_arcs), int(at)


@njit(cache=True, nogil=True)
def _split_vector(words: np.ndarray, states: np.ndarray, arcs: np.ndarray) -> None:
    """Fill the words of states, int32[S, 5] as in STATE, and of arcs, int32[A, 4]."""
    at = 0
    arc = 0
    for state in range(len(states)):
        num_arcs = words[at + 1]
        states[state, 0] = words[at]
        states[state, 1] = arc
        states[state, 2] = num_arcs
        states[state, 3] = states[state, 4] = 0
        at += _STATE_WORDS
        for _ in range(num_arcs):
            for column in range(_ARC_WORDS):
                arcs[arc, column] = words[at + column]
            states[state, 3] += words[at] == 0
            states[state, 4] += words[at + 1] == 0
            arc += 1
            at += _ARC_WORDS


@njit(cache=True, nogil=True)
def vector_words(
    arc_begin: np.ndarray, finals: np.ndarray, arcs: np.ndarray, first: int, last: int
) -> np.ndarray:
    """Return the body of a `vector` file, as int32 words, from one state to another.

    Args:
        arc_begin: int64[S + 1].
        finals: int32[S], the bits of the final weights.
        arcs: int32[A, 4], the words of the arc records.
        first, last: states first ... last - 1 are returned.
    """
    num_arcs = arc_begin[last] - arc_begin[first]
    words = np.empty(_STATE_WORDS * (last - first) + _ARC_WORDS * num_arcs, np.int32)
    at = 0
    for state in range(first, last):
        words[at] = finals[state]
        words[at + 1] = arc_begin[state + 1] - arc_begin[state]
        words[at + 2] = 0
        at += _STATE_WORDS
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            for column in range(_ARC_WORDS):
                words[at + column] = arcs[arc, column]
            at += _ARC_WORDS
    return words


def return_memory() -> None:
    """Give freed memory back to the system, which the C library keeps in small pieces.

    Of a large FST in kaldifst, an allocation a state, that is nearly all.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def memory_file() -> Iterator[str]:
    """Give a file by name that lives in memory where the system has such files."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("latflow")
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder) / "fst")
