"""Binary lattices: OpenFst `vector` files, one behind the other, as Kaldi writes them.

Behind the header everything in them is a multiple of four bytes. A state is its final
weight, the number of its arcs (two words) and the arcs; an arc is input label, output
label, weight, target. A weight is the graph and the acoustic cost; in a compact lattice
a string of transition-ids follows, its length first, and both labels are the word.

The header holds *property bits*, what OpenFst happens to know of the arcs when it
writes. Those of a state-level lattice are here those of Kaldi's decoders, which scale
the costs last; those of a compact lattice are those of a new one to which arcs have
been added in order (Kaldi's `ConvertLattice`; a program that scales the costs after
that leaves out the bits about order, which says less and means the same to a reader).

Source: OpenFst `fst/fst.cc` (`FstHeader`), `fst/vector-fst.h`, `fst/properties.h`
(`AddArcProperties`); Kaldi `fstext/lattice-weight.h`, `lat/kaldi-lattice.cc`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO

import numpy as np

from latflow.jit import njit
from latflow.kaldi.encoding import BufferedBytes
from latflow.lattice.lattice import CompactLattice, Lattice, Strings

Arrays = tuple[np.ndarray, np.ndarray]

MAGIC = (2125659606).to_bytes(4, "little")  # OpenFst's file mark
_IS_COMPACT = {"lattice4": False, "compactlattice44": True}  # by arc type
_LONGEST_KEY = 1 << 16

_EXPANDED_MUTABLE = 0x3
_ACCEPTOR, _NOT_ACCEPTOR = 0x10000, 0x20000
_EPSILONS, _NO_EPSILONS = 0x400000, 0x800000
_I_EPSILONS, _NO_I_EPSILONS = 0x1000000, 0x2000000
_O_EPSILONS, _NO_O_EPSILONS = 0x4000000, 0x8000000
_SORTED_LABELS, _UNSORTED_LABELS = 0x50000000, 0xA0000000  # input and output labels
_WEIGHTED, _UNWEIGHTED = 0x100000000, 0x200000000
_TOPOLOGICALLY_SORTED = 0x6800000000  # hence acyclic, also at the start


class LatticeStream(BufferedBytes):
    """Take binary lattices from a stream, one after the other.

    Args:
        stream: a file opened for reading bytes.
        path: what error messages call it.
        position: bytes of the file before the stream's position.

    Raises:
        UserError: from every method, if the file ends early or holds something else
            than asked for; names the file and the byte.
    """

    def __init__(self, stream: IO[bytes], path: Path, position: int = 0) -> None:
        super().__init__(stream, path)
        self._base = position

    def at_end(self) -> bool:
        """Return whether nothing is left."""
        return self._at == len(self._buffer) and not self._more()

    def starts_binary(self) -> bool:
        """Return whether a key and a binary lattice come next; take nothing."""
        while (end := self._key_end()) < 0 and self._unread() < _LONGEST_KEY:
            if not self._more():
                break
        length = max(end, 0)
        while self._unread() < length + 5 and self._more():
            pass
        return self._buffer.startswith(b" " + MAGIC, self._at + length)

    def key(self) -> str:
        """Take the key in front of a lattice, and the blank behind it."""
        while (length := self._key_end()) < 0:
            if self._unread() > _LONGEST_KEY or not self._more():
                self.fail("found no key where one is expected")
        key = bytes(self.take(length + 1)[:-1])
        if key.split() != [key]:
            self.fail("found no key where one is expected")
        return key.decode("utf-8", "replace")

    def skip(self) -> None:
        """Pass over a lattice."""
        _, num_states, is_compact = self._header()
        _, sizes = self._scan(num_states, is_compact)  # may move what is unread
        self._at += 4 * sizes[3]

    def lattice(self) -> Callable[[], Lattice | CompactLattice]:
        """Take a lattice of either kind.

        Returns:
            A function that makes it; raises UserError if it has cycles or uneven paths.
        """
        start, num_states, is_compact = self._header()
        words, sizes = self._scan(num_states, is_compact)
        make: Callable[[], Lattice | CompactLattice]
        if is_compact:
            arcs, costs, strings, finals, final_strings, is_sound = _unpack_compact(
                words, num_states, sizes[:3]
            )
            columns = arcs, costs, Strings(*strings), finals, Strings(*final_strings)
            make = partial(CompactLattice.from_arcs, *columns, start=start)
        else:
            arcs, costs, finals, is_sound = _unpack(words, num_states, sizes[0])
            make = partial(Lattice.from_arcs, arcs, costs, finals, start=start)
        if not is_sound or not 0 <= start < max(num_states, 1):
            self.fail("a lattice with an arc to a state that it does not have")
        self._at += 4 * sizes[3]
        return make

    def _header(self) -> tuple[int, int, bool]:
        """Take the header of an OpenFst file: start, number of states, is it compact.

        A lattice without states says that it starts at -1; 0 is returned then.
        """
        if not self.take_if(MAGIC):
            self.fail("found something else where a lattice is expected")
        names = []
        for _ in range(2):
            (length,) = struct.unpack("<i", self.take(4))
            if not 0 < length < 100:
                self.fail("found no OpenFst header where one is expected")
            names.append(self.take(length).decode("latin-1"))
        if names[0] != "vector" or names[1] not in _IS_COMPACT:
            self.fail(f"an FST of type {names[0]} {names[1]}, which is not a lattice")
        _, flags, _, start, num_states, _ = struct.unpack("<iiQqqq", self.take(40))
        if flags != 0 or num_states < 0:
            self.fail("a lattice with symbol tables or an impossible header")
        return (start if num_states else 0), num_states, _IS_COMPACT[names[1]]

    def _scan(
        self,
        num_states: int,
        is_compact: bool,  # noqa: FBT001
    ) -> tuple[np.ndarray, tuple[int, int, int, int]]:
        """Read on until a whole lattice is there; return its words and its sizes."""
        while True:
            rest = memoryview(self._buffer)[self._at :]
            words = np.frombuffer(rest[: len(rest) // 4 * 4], "<i4")
            sizes = _sizes(words, num_states, is_compact)
            if sizes[3] >= 0:
                return words, sizes
            if not self._more():
                self.fail("the file ends within a lattice")

    def _unread(self) -> int:
        """Return the number of bytes read and not taken."""
        return len(self._buffer) - self._at

    def _key_end(self) -> int:
        """Return the number of bytes before the next blank; -1 if none is read yet."""
        found = self._buffer.find(b" ", self._at)
        return found - self._at if found >= 0 else -1


@njit(cache=True, nogil=True)
def _sizes(
    words: np.ndarray,
    num_states: int,
    is_compact: bool,  # noqa: FBT001
) -> tuple[int, int, int, int]:
    """Measure a lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        is_compact: whether weights have strings.

    Returns:
        (arcs, transition-ids in the strings of arcs, those in the strings of states,
        words of the lattice); -1 in the last place if it is longer than `words`.
    """
    num_arcs, num_ids, num_final_ids, at = 0, 0, 0, 0
    for _ in range(num_states):
        at += 2
        if is_compact:
            if at >= len(words) or words[at] < 0:
                return 0, 0, 0, -1
            num_final_ids += words[at]
            at += 1 + words[at]
        if at + 1 >= len(words) or words[at] < 0:
            return 0, 0, 0, -1
        degree = words[at]
        num_arcs += degree
        at += 2
        if not is_compact:
            at += 5 * degree
            continue
        for _ in range(degree):
            if at + 4 >= len(words) or words[at + 4] < 0:
                return 0, 0, 0, -1
            num_ids += words[at + 4]
            at += 6 + words[at + 4]
    return num_arcs, num_ids, num_final_ids, at if at <= len(words) else -1


@njit(cache=True, nogil=True)
def _unpack(
    words: np.ndarray, num_states: int, num_arcs: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, bool]:
    """Read a state-level lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        num_arcs: as `_sizes` says.

    Returns:
        int32[A, 4] source, target, transition-id, word; float32[A, 2] graph and
        acoustic costs; float32[S, 2] final costs; whether all targets exist.
    """
    floats = words.view(np.float32)
    arcs = np.empty((num_arcs, 4), np.int32)
    costs = np.empty((num_arcs, 2), np.float32)
    final_costs = np.empty((num_states, 2), np.float32)
    at, arc = 0, 0
    is_sound = True
    for state in range(num_states):
        final_costs[state] = floats[at : at + 2]
        degree = words[at + 2]
        at += 4
        for _ in range(degree):
            arcs[arc, 0], arcs[arc, 1] = state, words[at + 4]
            arcs[arc, 2], arcs[arc, 3] = words[at], words[at + 1]
            costs[arc] = floats[at + 2 : at + 4]
            is_sound = is_sound and bool(0 <= words[at + 4] < num_states)
            at += 5
            arc += 1
    return arcs, costs, final_costs, is_sound


@njit(cache=True, nogil=True)
def _unpack_compact(
    words: np.ndarray, num_states: int, sizes: tuple[int, int, int]
) -> tuple[np.ndarray, np.ndarray, Arrays, np.ndarray, Arrays, bool]:
    """Read a compact lattice.

    Args:
        words: int32, starting behind the header.
        num_states: number of states.
        sizes: arcs and transition-ids, as `_sizes` says.

    Returns:
        int32[A, 3] source, target, word; float32[A, 2] graph and acoustic costs;
        offsets int64[A + 1] and transition-ids of the arcs; float32[S, 2] final costs;
        offsets int64[S + 1] and transition-ids of the states; whether all targets
        exist.
    """
    num_arcs, num_ids, num_final_ids = sizes
    floats = words.view(np.float32)
    arcs = np.empty((num_arcs, 3), np.int32)
    costs = np.empty((num_arcs, 2), np.float32)
    begin, ids = np.zeros(num_arcs + 1, np.int64), np.empty(num_ids, np.int32)
    final_costs = np.empty((num_states, 2), np.float32)
    final_begin = np.zeros(num_states + 1, np.int64)
    final_ids = np.empty(num_final_ids, np.int32)
    at, arc = 0, 0
    is_sound = True
    for state in range(num_states):
        final_costs[state] = floats[at : at + 2]
        length = words[at + 2]
        final_begin[state + 1] = final_begin[state] + length
        final_ids[final_begin[state] : final_begin[state + 1]] = words[
            at + 3 : at + 3 + length
        ]
        degree = words[at + 3 + length]
        at += 5 + length
        for _ in range(degree):
            length = words[at + 4]
            target = words[at + 5 + length]
            arcs[arc, 0], arcs[arc, 1], arcs[arc, 2] = state, target, words[at + 1]
            costs[arc] = floats[at + 2 : at + 4]
            begin[arc + 1] = begin[arc] + length
            ids[begin[arc] : begin[arc + 1]] = words[at + 5 : at + 5 + length]
            is_sound = is_sound and bool(0 <= target < num_states)
            at += 6 + length
            arc += 1
    return arcs, costs, (begin, ids), final_costs, (final_begin, final_ids), is_sound


def as_bytes(lattice: Lattice | CompactLattice) -> bytes:
    """Return the OpenFst file of a lattice."""
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost])
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost])
    begin = np.asarray(lattice.arc_begin)
    if isinstance(lattice, CompactLattice):
        words = _pack_compact(
            begin,
            np.stack([lattice.next_state, lattice.word]),
            costs.view(np.int32),
            (lattice.string_begin, lattice.string),
            finals.view(np.int32),
            (lattice.final_string_begin, lattice.final_string),
        )
        kind, properties = b"compactlattice44", _compact_properties(lattice)
    else:
        columns = np.stack([lattice.next_state, lattice.transition_id, lattice.word])
        words = _pack(begin, columns, costs.view(np.int32), finals.view(np.int32))
        kind, properties = b"lattice4", _properties(lattice)
    header = struct.pack(
        f"<4si6si{len(kind)}siiQqqq",
        MAGIC,
        6,
        b"vector",
        len(kind),
        kind,
        2,  # version
        0,  # flags: no symbol tables, not aligned
        properties,
        0 if lattice.num_states else -1,  # start
        lattice.num_states,
        0,  # number of arcs, which OpenFst leaves out of vector FSTs
    )
    return header + words.astype("<i4", copy=False).tobytes()


def _properties(lattice: Lattice) -> int:
    """Return what OpenFst knows of a lattice whose weights Kaldi has scaled."""
    ids, words = lattice.transition_id, lattice.word
    known = _EXPANDED_MUTABLE
    known |= _NOT_ACCEPTOR if np.any(ids != words) else _ACCEPTOR
    known |= _EPSILONS if np.any((ids == 0) & (words == 0)) else _NO_EPSILONS
    known |= _I_EPSILONS if np.any(ids == 0) else _NO_I_EPSILONS
    known |= _O_EPSILONS if np.any(words == 0) else _NO_O_EPSILONS
    return known | (_WEIGHTED if _has_weights(lattice) else _UNWEIGHTED)


def _compact_properties(lattice: CompactLattice) -> int:
    """Return what OpenFst knows of a compact lattice whose arcs were added in order."""
    words, source = lattice.word, lattice.source()
    known = _EXPANDED_MUTABLE | _ACCEPTOR | _TOPOLOGICALLY_SORTED
    if np.any(words == 0):
        known |= _EPSILONS | _I_EPSILONS | _O_EPSILONS
    else:
        known |= _NO_EPSILONS | _NO_I_EPSILONS | _NO_O_EPSILONS
    falls = (words[1:] < words[:-1]) & (source[1:] == source[:-1])
    known |= _UNSORTED_LABELS if np.any(falls) else _SORTED_LABELS
    has_strings = len(lattice.string) + len(lattice.final_string) > 0
    is_weighted = has_strings or _has_weights(lattice)
    return known | (_WEIGHTED if is_weighted else _UNWEIGHTED)


def _has_weights(lattice: Lattice | CompactLattice) -> bool:
    """Return whether an arc or a final state costs anything."""
    graph = np.concatenate([lattice.graph_cost, lattice.final_graph_cost])
    acoustic = np.concatenate([lattice.acoustic_cost, lattice.final_acoustic_cost])
    is_one = (graph == 0) & (acoustic == 0)
    is_zero = np.isinf(graph) & np.isinf(acoustic)
    return not bool(np.all(is_one | is_zero))


@njit(cache=True, nogil=True)
def _pack(
    arc_begin: np.ndarray, columns: np.ndarray, costs: np.ndarray, finals: np.ndarray
) -> np.ndarray:
    """Return the words of a state-level lattice, int32.

    Args:
        arc_begin: int64[S + 1].
        columns: int32[3, A]: target, transition-id, word.
        costs: int32[2, A], the bits of graph and acoustic costs.
        finals: int32[2, S], likewise.
    """
    num_states, num_arcs = finals.shape[1], columns.shape[1]
    words = np.empty(4 * num_states + 5 * num_arcs, np.int32)
    at = 0
    for state in range(num_states):
        words[at : at + 2] = finals[:, state]
        words[at + 2] = arc_begin[state + 1] - arc_begin[state]
        words[at + 3] = 0
        at += 4
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            words[at] = columns[1, arc]
            words[at + 1] = columns[2, arc]
            words[at + 2 : at + 4] = costs[:, arc]
            words[at + 4] = columns[0, arc]
            at += 5
    return words


@njit(cache=True, nogil=True)
def _pack_compact(
    arc_begin: np.ndarray,
    columns: np.ndarray,
    costs: np.ndarray,
    strings: Arrays,
    finals: np.ndarray,
    final_strings: Arrays,
) -> np.ndarray:
    """Return the words of a compact lattice, int32.

    Args:
        arc_begin: int64[S + 1].
        columns: int32[2, A]: target, word.
        costs: int32[2, A], the bits of graph and acoustic costs.
        strings: offsets int64[A + 1] and transition-ids of the arcs.
        finals: int32[2, S], likewise.
        final_strings: offsets int64[S + 1] and transition-ids of the states.
    """
    begin, ids = strings
    final_begin, final_ids = final_strings
    num_states, num_arcs = finals.shape[1], columns.shape[1]
    size = 5 * num_states + len(final_ids) + 6 * num_arcs + len(ids)
    words = np.empty(size, np.int32)
    at = 0
    for state in range(num_states):
        words[at : at + 2] = finals[:, state]
        length = final_begin[state + 1] - final_begin[state]
        words[at + 2] = length
        at += 3
        words[at : at + length] = final_ids[final_begin[state] : final_begin[state + 1]]
        words[at + length] = arc_begin[state + 1] - arc_begin[state]
        words[at + length + 1] = 0
        at += length + 2
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            length = begin[arc + 1] - begin[arc]
            words[at] = columns[1, arc]
            words[at + 1] = columns[1, arc]
            words[at + 2 : at + 4] = costs[:, arc]
            words[at + 4] = length
            words[at + 5 : at + 5 + length] = ids[begin[arc] : begin[arc + 1]]
            words[at + 5 + length] = columns[0, arc]
            at += 6 + length
    return words
