"""`Graph`: a weighted transducer as flat arrays, straight from an OpenFst file.

States are 0 ... S - 1; the arcs of state s are arc_begin[s] ... arc_begin[s + 1] - 1.
Weights are costs (negative natural logarithms); a state whose final cost is +inf is not
final; label 0 is epsilon.

In memory a graph is the body of an OpenFst `const` file: an array of state records
and one of arc records. `ilabel`, `olabel`, `weight`, `next_state` and `final` are views
of single fields, with a stride of 16 (arcs) or 20 bytes (states): what a search reads
of an arc lies in one cache line, and the arrays of a memory-mapped file need no copy
and are shared by all processes that map it (only `arc_begin`, 8 bytes a state, is built
again). All arrays are read only. Numba compiles a kernel once for them, wherever they
come from.

The exception are large `const` files that were written without alignment, as OpenFst's
programs do by default: there the views are not aligned, which numpy and Numba allow but
for which Numba compiles a kernel once more. Small files of that kind are copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import kaldifst
import numpy as np

from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst import openfst
from latflow.fst.ngram import read_ngram
from latflow.fst.openfst import ARC, STATE, Header, memory_file, return_memory
from latflow.jit import njit

COPY_BELOW_BYTES = 64 << 20  # unaligned files up to this size are copied
_CHECK_ARCS = 1 << 20  # arcs looked at together, to keep temporary arrays small
_WRITE_STATES = 1 << 20  # states written together, likewise

# OpenFst's property bits, of those that cost one pass over the arcs.
_EXPANDED = 1
_ACCEPTOR = 0x1_0000
_EPSILONS, _INPUT_EPSILONS, _OUTPUT_EPSILONS = 0x40_0000, 0x100_0000, 0x400_0000
_ILABEL_SORTED, _OLABEL_SORTED = 0x1000_0000, 0x4000_0000
_WEIGHTED, _TOP_SORTED = 0x1_0000_0000, 0x40_0000_0000
_MUTABLE_BITS = 0x7  # expanded, mutable, error: set by the type, not by the content


@dataclass(frozen=True)
class Properties:
    """Properties of the arcs of a graph.

    Attributes:
        is_acceptor: input and output labels are equal on every arc.
        has_epsilons: an arc has epsilon on both sides.
        has_input_epsilons, has_output_epsilons: an arc has epsilon on that side.
        is_ilabel_sorted, is_olabel_sorted: the arcs of each state are.
        is_weighted: an arc or final cost is neither 0 nor (final) +inf.
        is_top_sorted: every arc leads to a state of a higher number.
    """

    is_acceptor: bool
    has_epsilons: bool
    has_input_epsilons: bool
    has_output_epsilons: bool
    is_ilabel_sorted: bool
    is_olabel_sorted: bool
    is_weighted: bool
    is_top_sorted: bool

    @property
    def bits(self) -> int:
        """The same as OpenFst's property bits: each property or its negation."""
        yes_no = (
            (self.is_acceptor, _ACCEPTOR),
            (self.has_epsilons, _EPSILONS),
            (self.has_input_epsilons, _INPUT_EPSILONS),
            (self.has_output_epsilons, _OUTPUT_EPSILONS),
            (self.is_ilabel_sorted, _ILABEL_SORTED),
            (self.is_olabel_sorted, _OLABEL_SORTED),
            (self.is_weighted, _WEIGHTED),
            (self.is_top_sorted, _TOP_SORTED),
        )
        return sum(bit if holds else bit << 1 for holds, bit in yes_no)


class Graph:
    """A weighted transducer as flat arrays; see the module for the layout.

    Args:
        states: STATE[S]; arcs of consecutive states follow each other.
        arcs: ARC[A].
        header_properties: OpenFst's property bits as the file had them; None for a
            graph that comes from no file.

    Attributes:
        start: the start state, -1 if there are no states.
        arc_begin: int64[S + 1].
        ilabel, olabel, next_state: int32[A].
        weight: float32[A], cost.
        final: float32[S], cost; +inf where the state is not final.
        states, arcs: the records behind these.
    """

    def __init__(
        self,
        start: int,
        states: np.ndarray,
        arcs: np.ndarray,
        *,
        header_properties: int | None = None,
    ) -> None:
        self.start = int(start)
        self.states = _read_only(states)
        self.arcs = _read_only(arcs)
        self.ilabel = self.arcs["ilabel"]
        self.olabel = self.arcs["olabel"]
        self.weight = self.arcs["weight"]
        self.next_state = self.arcs["next_state"]
        self.final = self.states["final"]
        begin = np.empty(len(states) + 1, np.int64)
        begin[:-1] = self.states["first_arc"]
        begin[-1] = len(arcs)
        self.arc_begin = _read_only(begin)
        self.header_properties = header_properties

    @classmethod
    def from_arrays(
        cls,
        start: int,
        arc_begin: np.ndarray,
        ilabel: np.ndarray,
        olabel: np.ndarray,
        weight: np.ndarray,
        next_state: np.ndarray,
        final: np.ndarray,
    ) -> Graph:
        """Make a graph of plain arrays, which are copied; see the attributes."""
        arcs = np.empty(len(ilabel), ARC)
        arcs["ilabel"], arcs["olabel"] = ilabel, olabel
        arcs["weight"], arcs["next_state"] = weight, next_state
        return cls(start, state_records(arc_begin, final, arcs), arcs)

    @classmethod
    def from_arc_list(
        cls, start: int, source: np.ndarray, arcs: np.ndarray, final: np.ndarray
    ) -> Graph:
        """Make a graph of arcs in any order; each state keeps the order of its own.

        Args:
            source: int[A], state that each arc leaves.
            arcs: ARC[A].
            final: float32[S], cost.
        """
        order = np.argsort(source, kind="stable")
        begin = np.zeros(len(final) + 1, np.int64)
        np.cumsum(np.bincount(source, minlength=len(final)), out=begin[1:])
        arcs = np.ascontiguousarray(arcs[order])
        return cls(start, state_records(begin, final, arcs), arcs)

    def sources(self) -> np.ndarray:
        """Return the state that each arc leaves, int32[A]."""
        states = np.arange(self.num_states, dtype=np.int32)
        return np.repeat(states, np.diff(self.arc_begin))

    def __repr__(self) -> str:
        return (
            f"Graph(states={self.num_states}, arcs={self.num_arcs}, start={self.start})"
        )

    # -- asking ---------------------------------------------------------------------

    @property
    def num_states(self) -> int:
        """S."""
        return len(self.states)

    @property
    def num_arcs(self) -> int:
        """A."""
        return len(self.arcs)

    @cached_property
    def num_final_states(self) -> int:
        """Number of states with a finite final cost."""
        return int(np.isfinite(self.final).sum())

    @property
    def num_input_epsilons(self) -> np.ndarray:
        """Number of arcs with input epsilon out of each state, uint32[S]."""
        return self.states["num_input_epsilons"]

    @cached_property
    def properties(self) -> Properties:
        """Return what holds for the arcs, found by one pass over them."""
        return Properties(
            *(
                bool(holds)
                for holds in _find_properties(
                    self.arc_begin,
                    self.ilabel,
                    self.olabel,
                    self.weight,
                    self.next_state,
                    self.final,
                )
            )
        )

    def check(self, *, name: str | Path | None = None) -> None:
        """Make sure that kernels stay inside the arrays.

        Raises:
            UserError: arcs of consecutive states do not follow each other, or an arc or
                the start leads to a state that is not there.
        """
        fault = None
        counts = np.diff(self.arc_begin)
        if self.arc_begin[0] or (counts != self.states["num_arcs"]).any():
            fault = "the states of the FST do not partition its arcs"
        if self.num_states and not 0 <= self.start < self.num_states:
            fault = "the FST has no start state"
        for first in range(0, self.num_arcs, _CHECK_ARCS):
            target = self.next_state[first : first + _CHECK_ARCS]
            if target.min() < 0 or target.max() >= self.num_states:
                fault = "an arc of the FST leads to a state that is not there"
        if fault:
            raise UserError(fault, file=name, remedy="make the graph again")

    # -- files ----------------------------------------------------------------------

    @classmethod
    def load(cls, path: str | Path) -> Graph:
        """Read an OpenFst file, `const` (memory-mapped) or `vector`.

        Raises:
            UserError: there is no such file, or it is not an FST with standard arcs, or
                is truncated or inconsistent; or more than one FST is in it.
        """
        first, *others = cls.load_all(path)
        if others:
            raise UserError(
                "a graph in two parts (HCL and G), where a whole one is needed",
                file=path,
                remedy="make it with decode.composition: static",
            )
        return first

    @classmethod
    def load_all(cls, path: str | Path) -> list[Graph]:
        """Read the FSTs of a file, one behind the other; see `load`."""
        source = Path(path)
        buffer = openfst.map_file(source)
        graphs, end = [], 0
        while not graphs or openfst.begins_at(buffer, end):
            graph, end = cls._parse(buffer, end, source)
            graph.check(name=source)
            graphs.append(graph)
        return graphs

    @classmethod
    def _parse(
        cls, buffer: memoryview, at: int, name: str | Path | None
    ) -> tuple[Graph, int]:
        """Read the FST that begins at byte `at`; returns the byte behind it too."""
        header = openfst.read_header(buffer, at, name=name)
        if header.fst_type == "vector":
            states, arcs, end = openfst.read_vector(buffer, header, name=name)
        elif header.fst_type == "ngram":
            states, arcs, end = read_ngram(buffer, header, name=name)
        elif header.fst_type == "olabel_lookahead":
            begin = openfst.begin_of_contained(buffer, header, name)
            return cls._parse(buffer, begin, name)
        else:
            states, arcs, end = openfst.read_const(buffer, header, begin=at, name=name)
            if not arcs["weight"].flags.aligned and end - at <= COPY_BELOW_BYTES:
                states, arcs = states.copy(), arcs.copy()
        return cls(header.start, states, arcs, header_properties=header.properties), end

    def save(self, path: str | Path, *, is_aligned: bool = False) -> None:
        """Write a `const` file atomically.

        Args:
            is_aligned: start the two arrays at multiples of 16 bytes, so that a memory
                map of the file serves aligned arrays. False gives what OpenFst and
                Kaldi write by default; both read both.

        Raises:
            UserError: the disk is full.
        """
        self.save_all([self], path, is_aligned=is_aligned)

    @staticmethod
    def save_all(
        graphs: Sequence[Graph], path: str | Path, *, is_aligned: bool = False
    ) -> None:
        """Write FSTs one behind the other, for `load_all`; see `save`."""
        with atomic_output(path) as temporary, temporary.open("wb") as stream:
            for graph in graphs:
                graph.write(stream, is_aligned=is_aligned)

    def write(self, stream: BinaryIO, *, is_aligned: bool = False) -> None:
        """Write a `const` FST to a stream, perhaps behind another; see `save`."""
        version = openfst.CONST_VERSION
        if is_aligned:
            version = openfst.ALIGNED_CONST_VERSION
        header = Header(
            "const",
            version,
            openfst.IS_ALIGNED if is_aligned else 0,
            self._property_bits() | _EXPANDED,
            self.start,
            self.num_states,
            self.num_arcs,
        )
        at = openfst.write_header(stream, header)
        for records in (self.states, self.arcs):
            if is_aligned:
                at += stream.write(bytes(openfst.padding(at)))
            at += stream.write(np.ascontiguousarray(records).data)

    def _property_bits(self) -> int:
        """Return property bits for a header: the file's own, or cheap ones."""
        if self.header_properties is None:
            return self.properties.bits
        return self.header_properties & ~_MUTABLE_BITS

    # -- kaldifst -------------------------------------------------------------------

    @classmethod
    def from_fst(cls, fst: kaldifst.StdFst, *, is_emptied: bool = False) -> Graph:
        """Copy an FST of kaldifst (by way of a file in memory).

        Args:
            fst: the FST.
            is_emptied: its states are deleted on the way, so that a large one is not
                held twice.
        """
        with memory_file() as path:
            if not fst.write(path):
                raise OSError(f"kaldifst could not write {path}")
            if is_emptied:
                fst.delete_states()
                return_memory()
            return cls._parse(openfst.map_file(Path(path)), 0, None)[0]

    def to_fst(self) -> kaldifst.StdVectorFst:
        """Copy to an FST of kaldifst."""
        with memory_file() as path:
            with open(path, "wb") as stream:
                self.write_vector(stream)
            return kaldifst.StdVectorFst.read(path)

    def write_vector(self, stream: BinaryIO) -> None:
        """Write a `vector` FST, the only type in Kaldi's archives of graphs."""
        header = Header(
            "vector",
            openfst.VECTOR_VERSION,
            0,
            self._property_bits() | _EXPANDED | _EXPANDED << 1,
            self.start,
            self.num_states,
            0,
        )
        openfst.write_header(stream, header)
        finals = np.ascontiguousarray(self.final).view(np.int32)
        arcs = np.ascontiguousarray(self.arcs).view(np.int32).reshape(-1, 4)
        for first in range(0, self.num_states, _WRITE_STATES):
            last = min(first + _WRITE_STATES, self.num_states)
            words = openfst.vector_words(self.arc_begin, finals, arcs, first, last)
            stream.write(words.data)


def state_records(
    arc_begin: np.ndarray, final: np.ndarray, arcs: np.ndarray
) -> np.ndarray:
    """Return the STATE records of arcs that lie state after state.

    Args:
        arc_begin: int[S + 1].
        final: float32[S].
        arcs: ARC[A].
    """
    states = np.empty(len(final), STATE)
    begin = np.asarray(arc_begin, np.int64)
    _fill_states(begin, np.asarray(final, np.float32), arcs, states)
    return states


@njit(cache=True, nogil=True)
def _fill_states(
    arc_begin: np.ndarray, final: np.ndarray, arcs: np.ndarray, states: np.ndarray
) -> None:
    """Fill the records of `state_records`."""
    for state in range(len(final)):
        low, high = arc_begin[state], arc_begin[state + 1]
        num_input_epsilons = num_output_epsilons = 0
        for arc in range(low, high):
            num_input_epsilons += arcs[arc]["ilabel"] == 0
            num_output_epsilons += arcs[arc]["olabel"] == 0
        states[state]["final"] = final[state]
        states[state]["first_arc"] = low
        states[state]["num_arcs"] = high - low
        states[state]["num_input_epsilons"] = num_input_epsilons
        states[state]["num_output_epsilons"] = num_output_epsilons


@njit(cache=True, nogil=True)
def incoming(
    arc_begin: np.ndarray, next_state: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List the arcs that enter each state.

    Args:
        arc_begin: int64[S + 1].
        next_state: int32[A].

    Returns:
        (begin, int64[S + 1], and arcs, int32[A]: those that enter state s are
        arcs[begin[s]:begin[s + 1]]; the state that each arc leaves, int32[A]).
    """
    num_states = len(arc_begin) - 1
    source = np.empty(len(next_state), np.int32)
    begin = np.zeros(num_states + 1, np.int64)
    for state in range(num_states):
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            source[arc] = state
            begin[next_state[arc]] += 1
    begin = np.cumsum(begin)
    arcs = np.empty(len(next_state), np.int32)
    for arc in range(len(next_state) - 1, -1, -1):
        begin[next_state[arc]] -= 1
        arcs[begin[next_state[arc]]] = arc
    return begin, arcs, source


def _read_only(array: np.ndarray) -> np.ndarray:
    """Return the same memory, not to be written through this array."""
    view = array.view()
    view.flags.writeable = False
    return view


@njit(cache=True, nogil=True)
def _find_properties(
    arc_begin: np.ndarray,
    ilabel: np.ndarray,
    olabel: np.ndarray,
    weight: np.ndarray,
    next_state: np.ndarray,
    final: np.ndarray,
) -> tuple[bool, bool, bool, bool, bool, bool, bool, bool]:
    """Return the fields of `Properties`, in their order."""
    is_acceptor, is_top_sorted = True, True
    has_epsilons, has_input_epsilons, has_output_epsilons = False, False, False
    is_ilabel_sorted, is_olabel_sorted, is_weighted = True, True, False
    for state in range(len(arc_begin) - 1):
        is_weighted |= final[state] != 0.0 and final[state] != np.inf
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            is_acceptor &= ilabel[arc] == olabel[arc]
            has_input_epsilons |= ilabel[arc] == 0
            has_output_epsilons |= olabel[arc] == 0
            has_epsilons |= ilabel[arc] == 0 and olabel[arc] == 0
            is_weighted |= weight[arc] != 0.0
            is_top_sorted &= next_state[arc] > state
            if arc > arc_begin[state]:
                is_ilabel_sorted &= ilabel[arc - 1] <= ilabel[arc]
                is_olabel_sorted &= olabel[arc - 1] <= olabel[arc]
    return (
        is_acceptor,
        has_epsilons,
        has_input_epsilons,
        has_output_epsilons,
        is_ilabel_sorted,
        is_olabel_sorted,
        is_weighted,
        is_top_sorted,
    )
