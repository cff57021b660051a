"""The decoding graph as the search walks it.

The arcs of each state are packed into 12-byte records, those that consume a frame
first and the epsilon arcs behind them, so that expanding a token touches one record of
its state and a few neighbouring cache lines. Made once from a graph and shared by all
threads; it never changes.

A search that reads the OpenFst records in place instead takes 1.15 times as long
(measured on speechocean tri1), so large graphs are packed too. What that costs in
memory is paid once per machine: `mapped_search_graph` keeps the packed form in a file
beside the graph and maps it, and all processes share its pages.
"""

from __future__ import annotations

import logging
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from latflow.decode.composition import NO_COMPOSITION, Composition
from latflow.decode.parts import ARC, HAS_EPSILON, STATE, STATE_BITS, Records
from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.fst.openfst import map_file
from latflow.jit import njit

log = logging.getLogger(__name__)


class LabelledArcs(Protocol):
    """What lattices have of the arcs of a graph."""

    @property
    def ilabel(self) -> np.ndarray:
        """int32[A]."""
        ...

    @property
    def olabel(self) -> np.ndarray:
        """int32[A]."""
        ...

    @property
    def weight(self) -> np.ndarray:
        """float32[A]."""
        ...


class ArcArrays(LabelledArcs, Protocol):
    """Arrays of a `latflow.fst.graph.Graph` that a search reads; see there."""

    start: int

    @property
    def arc_begin(self) -> np.ndarray:
        """int64[S + 1]."""
        ...

    @property
    def next_state(self) -> np.ndarray:
        """int32[A]."""
        ...

    @property
    def final(self) -> np.ndarray:
        """float32[S]."""
        ...


class SearchGraph(NamedTuple):
    """A graph with its arcs packed; S states, A arcs.

    Attributes:
        start: the start state.
        states: `STATE`[S + 1]: arcs begin ... middle - 1 consume a frame, the arcs from
            middle to where the next state begins are epsilon arcs.
        arcs: `ARC`[A]: code of the target (its number, and `HAS_EPSILON`), pdf (0 for
            epsilon), cost.
        origin: uint32[A], number of each arc in the graph.
        final: float32[S], final costs; inf where not final.
        has_epsilon_cycle: whether epsilon arcs form a cycle (of cost 0 or more).
        composition: how arcs are made when they are asked for; of no length where all
            are there.
    """

    start: int
    states: Records
    arcs: Records
    origin: np.ndarray
    final: np.ndarray
    has_epsilon_cycle: bool
    composition: Composition = NO_COMPOSITION


@dataclass(frozen=True, eq=False)
class PackedGraph:
    """A graph and its packed form, which a search walks on.

    Attributes:
        graph: its arcs.
        packed: the same, packed.
    """

    graph: LabelledArcs
    packed: SearchGraph


def make_search_graph(graph: ArcArrays, tid_to_pdf: np.ndarray) -> SearchGraph:
    """Pack the arcs of a graph.

    Args:
        graph: a graph with transition-ids as input labels, 0 for epsilon.
        tid_to_pdf: int32[I + 1], pdf of each transition-id; entry 0 is not used.

    Raises:
        UserError: the graph has no start state, its input labels are not transition-ids
            of the model, or epsilon arcs form a cycle of negative cost.
    """
    num_states = len(graph.final)
    if not 0 <= graph.start < num_states:
        raise UserError(
            "the decoding graph is empty", remedy="make the graph again (target graph)"
        )
    labels = np.asarray(graph.ilabel)
    if len(labels) and (labels.min() < 0 or labels.max() >= len(tid_to_pdf)):
        raise UserError(
            f"the decoding graph has input labels {labels.min()} to {labels.max()}, "
            f"the model transition-ids 1 to {len(tid_to_pdf) - 1}",
            remedy="use a graph that was made with this model",
        )
    states, arcs, origin = pack_arcs(
        np.asarray(graph.arc_begin),
        (labels, np.asarray(graph.weight), np.asarray(graph.next_state)),
        np.ascontiguousarray(tid_to_pdf, np.int32),
    )
    cycle = _epsilon_cycle(states, arcs)
    if cycle < 0:
        raise UserError(
            "the decoding graph has a cycle of epsilon arcs with negative cost",
            remedy="make the graph from a grammar without such cycles",
        )
    final = np.ascontiguousarray(graph.final, np.float32)
    for array in (states, arcs, origin, final):
        array.setflags(write=False)  # as if mapped: kernels are compiled once
    return SearchGraph(int(graph.start), states, arcs, origin, final, cycle > 0)


@dataclass(frozen=True, eq=False)
class GraphFile:
    """A graph together with its file, for searches that share memory with others.

    Attributes:
        graph: what the file holds.
        path: where it is; the packed form is kept beside it.
    """

    graph: ArcArrays
    path: str | Path


def mapped_search_graph(
    graph: ArcArrays, tid_to_pdf: np.ndarray, path: str | Path
) -> SearchGraph:
    """Return the packed graph from a file beside the graph; write it if absent.

    The file `<path>.packed` belongs to one version of the graph's file (by size and
    time of change) and one model (by the pdfs of its transition-ids); it is made again
    for another.

    Args:
        graph: what `path` holds.
        tid_to_pdf: as for `make_search_graph`.
        path: the file of the graph.

    Raises:
        UserError: as `make_search_graph`.
    """
    packed_path = Path(f"{path}.packed")
    file = os.stat(path)
    pdfs = np.ascontiguousarray(tid_to_pdf, np.int32)
    key = (_FORMAT, file.st_size, file.st_mtime_ns, zlib.crc32(pdfs.data))
    mapped = _map(packed_path, key)
    if mapped is None:
        packed = make_search_graph(graph, tid_to_pdf)
        try:
            with atomic_output(packed_path) as temporary:
                _write(temporary, key, packed)
        except (UserError, OSError) as error:  # each process then has its own
            log.warning("%s; the graph is packed in memory", error)
            return packed
        mapped = _map(packed_path, key)
    return mapped or make_search_graph(graph, tid_to_pdf)


_BLOCK = 1 << 20  # arcs looked at together
_MOST_PDFS = 1 << 24  # the decoder then asks for scores of as many
_FORMAT = 0x4C41_5402  # of the file: changes with the layout
_ALIGNMENT = 64  # of the arrays in it, a cache line
# Key (4), start, has_epsilon_cycle, states, arcs, checksum.
_HEADER = np.dtype(("<i8", 9))
_CHECKSUM_AT = 64  # byte of the file


def _sections(num_states: int, num_arcs: int) -> list[tuple[np.dtype, int]]:
    """Return the type and length of the arrays of the file, in order."""
    return [
        (STATE, num_states + 1),
        (ARC, num_arcs),
        (np.dtype(np.uint32), num_arcs),
        (np.dtype(np.float32), num_states),
    ]


def _write(path: Path, key: tuple[int, ...], packed: SearchGraph) -> None:
    sizes = (len(packed.final), len(packed.arcs))
    header = (*key, packed.start, int(packed.has_epsilon_cycle), *sizes, 0)
    arrays = (packed.states, packed.arcs, packed.origin, packed.final)
    start = np.array(header, np.int64).tobytes()
    checksum = zlib.crc32(start[:_CHECKSUM_AT])
    with path.open("wb") as file:
        file.write(start)
        for array in arrays:
            for part in (b"\0" * (-file.tell() % _ALIGNMENT), array.data):
                file.write(part)
                checksum = zlib.crc32(part, checksum)
        file.seek(_CHECKSUM_AT)
        file.write(checksum.to_bytes(8, "little"))


def _map(path: Path, key: tuple[int, ...]) -> SearchGraph | None:
    """Map a packed graph; None if there is no whole one with this key."""
    try:
        content = map_file(path)
    except (OSError, UserError):  # none, or one that cannot be read; an empty one
        return None
    if len(content) < _HEADER.itemsize:
        return None
    header = np.frombuffer(content, np.int64, 9).tolist()
    if tuple(header[:4]) != key:
        return None
    checksum = zlib.crc32(content[:_CHECKSUM_AT])
    checksum = zlib.crc32(content[_HEADER.itemsize :], checksum)
    if header[8] != checksum:  # the search would leave the arrays
        return None
    start, has_cycle, num_states, num_arcs = header[4:8]
    arrays, at = [], _HEADER.itemsize
    for dtype, length in _sections(num_states, num_arcs):
        at += -at % _ALIGNMENT
        arrays.append(np.frombuffer(content, dtype, length, at))
        at += length * dtype.itemsize
    states, arcs, origin, final = arrays
    graph = SearchGraph(start, states, arcs, origin, final, bool(has_cycle))
    return graph if _is_sound(graph) else None


def _is_sound(graph: SearchGraph) -> bool:
    """Return whether a search stays within the arrays; packages are anybody's files."""
    num_states, num_arcs = len(graph.final), len(graph.arcs)
    if not 0 <= graph.start < num_states:
        return False
    begin, middle = graph.states["begin"], graph.states["middle"]
    if begin[0] != 0 or begin[-1] != num_arcs:
        return False
    if (begin[:-1] > middle[:-1]).any() or (middle[:-1] > begin[1:]).any():
        return False
    return all(
        (graph.arcs["code"][at : at + _BLOCK] & STATE_BITS < num_states).all()
        and (graph.arcs["pdf"][at : at + _BLOCK] < _MOST_PDFS).all()
        and (graph.origin[at : at + _BLOCK] < num_arcs).all()
        for at in range(0, num_arcs, _BLOCK)
    )


def pack_arcs(
    arc_begin: np.ndarray,
    columns: tuple[np.ndarray, np.ndarray, np.ndarray],
    tid_to_pdf: np.ndarray,
    base: Records | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pack the arcs of states, of each state those first that consume a frame.

    Args:
        arc_begin: int64[S + 1].
        columns: input label (a transition-id, or 0), cost and target of each arc.
        tid_to_pdf: int32[I + 1].
        base: `STATE`, of a graph that the states are added to, and numbered behind.

    Returns:
        states, arcs and origin of a `SearchGraph`.
    """
    base = np.zeros(1, STATE) if base is None else base
    states = np.empty(len(arc_begin), STATE)
    arcs = np.empty(len(columns[0]), ARC)
    origin = np.empty(len(columns[0]), np.uint32)
    _fill_states(arc_begin, columns[0], states)
    _fill_arcs(arc_begin, columns, tid_to_pdf, (base, states), arcs, origin)
    return states, arcs, origin


@njit(cache=True, nogil=True)
def _fill_states(arc_begin: np.ndarray, ilabel: np.ndarray, states: Records) -> None:
    """Set where the arcs of each state begin, and its epsilon arcs."""
    for state in range(len(states) - 1):
        begin, end = arc_begin[state], arc_begin[state + 1]
        emitting = 0
        for arc in range(begin, end):
            emitting += ilabel[arc] != 0
        states[state].begin = begin
        states[state].middle = begin + emitting
    states[-1].begin = arc_begin[-1]
    states[-1].middle = arc_begin[-1]


@njit(cache=True, nogil=True)
def _fill_arcs(
    arc_begin: np.ndarray,
    columns: tuple[np.ndarray, np.ndarray, np.ndarray],
    tid_to_pdf: np.ndarray,
    halves: tuple[Records, Records],
    arcs: Records,
    origin: np.ndarray,
) -> None:
    """Pack the arcs, see `pack_arcs`; `halves` are the states before, and their own."""
    ilabel, weight, next_state = columns
    base, states = halves
    num_base = len(base) - 1
    for state in range(len(arc_begin) - 1):
        emitting, epsilon = int(states[state].begin), int(states[state].middle)
        for arc in range(arc_begin[state], arc_begin[state + 1]):
            if ilabel[arc] == 0:
                at = epsilon
                epsilon += 1
            else:
                at = emitting
                emitting += 1
            target = next_state[arc]
            if target < num_base:
                has_epsilon = base[target + 1].begin > base[target].middle
            else:
                own = target - num_base
                has_epsilon = states[own + 1].begin > states[own].middle
            arcs[at].code = target | (HAS_EPSILON if has_epsilon else 0)
            arcs[at].pdf = tid_to_pdf[ilabel[arc]] if ilabel[arc] != 0 else 0
            arcs[at].weight = weight[arc]
            origin[at] = arc


@njit(cache=True, nogil=True)
def _target(arcs: Records, arc: int) -> np.integer:
    """Return the state that an arc leads to."""
    return np.int64(arcs[arc].code & STATE_BITS)


@njit(cache=True, nogil=True)
def _epsilon_cycle(states: Records, arcs: Records) -> int:
    """Return 0 if epsilon arcs form no cycle, 1 if they do, -1 if one costs below 0.

    States are taken away as long as no epsilon arc leads to them; what is left lies on
    or behind a cycle, and there the relaxation of Bellman and Ford must come to rest.
    """
    num_states = len(states) - 1
    pending = np.zeros(num_states, np.int32)
    for state in range(num_states):
        for a in range(states[state].middle, states[state + 1].begin):
            pending[_target(arcs, a)] += 1
    stack = np.empty(num_states, np.int32)
    depth, left = 0, num_states
    for state in range(num_states):
        if pending[state] == 0:
            stack[depth] = state
            depth += 1
    while depth > 0:
        depth -= 1
        left -= 1
        state = stack[depth]
        for a in range(states[state].middle, states[state + 1].begin):
            pending[_target(arcs, a)] -= 1
            if pending[_target(arcs, a)] == 0:
                stack[depth] = _target(arcs, a)
                depth += 1
    if left == 0:
        return 0
    return 1 if _comes_to_rest(states, arcs, pending, left) else -1


@njit(cache=True, nogil=True)
def _comes_to_rest(
    states: Records, arcs: Records, pending: np.ndarray, rounds: int
) -> bool:
    """Return whether relaxing the epsilon arcs among the pending states ends."""
    cost = np.zeros(len(pending))
    for _ in range(rounds + 1):
        changed = False
        for state in range(len(pending)):
            if pending[state] == 0:
                continue
            for a in range(states[state].middle, states[state + 1].begin):
                candidate = cost[state] + arcs[a].weight
                if candidate < cost[_target(arcs, a)] - 1e-5:
                    cost[_target(arcs, a)] = candidate
                    changed = True
        if not changed:
            return True
    return False
