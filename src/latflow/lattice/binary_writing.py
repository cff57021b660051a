"""Lattices as the bytes of OpenFst `vector` files, which is what Kaldi writes.

The header holds *property bits*, what OpenFst happens to know of the arcs when it
writes. Those of a state-level lattice are here those of Kaldi's decoders, which scale
the costs last; those of a compact lattice are those of a new one to which arcs have
been added in order (Kaldi's `ConvertLattice`; a program that scales the costs after
that leaves out the bits about order, which says less and means the same to a reader).

Public: `as_bytes`.

Source: OpenFst `fst/fst.cc` (`FstHeader::Write`), `fst/properties.h`
(`AddArcProperties`), `fst/vector-fst.h`.
"""

from __future__ import annotations

import struct

import numpy as np

from latflow.lattice.binary_form import pack, pack_compact
from latflow.lattice.binary_reading import MAGIC
from latflow.lattice.compact import CompactLattice
from latflow.lattice.lattice import Lattice

_EXPANDED_MUTABLE = 0x3
_ACCEPTOR, _NOT_ACCEPTOR = 0x10000, 0x20000
_EPSILONS, _NO_EPSILONS = 0x400000, 0x800000
_I_EPSILONS, _NO_I_EPSILONS = 0x1000000, 0x2000000
_O_EPSILONS, _NO_O_EPSILONS = 0x4000000, 0x8000000
_SORTED_LABELS, _UNSORTED_LABELS = 0x50000000, 0xA0000000  # input and output labels
_WEIGHTED, _UNWEIGHTED = 0x100000000, 0x200000000
_TOPOLOGICALLY_SORTED = 0x6800000000  # hence acyclic, also at the start


def as_bytes(lattice: Lattice | CompactLattice) -> bytes:
    """The OpenFst file of a lattice."""
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost])
    costs = np.stack([lattice.graph_cost, lattice.acoustic_cost])
    begin = np.asarray(lattice.arc_begin)
    if isinstance(lattice, CompactLattice):
        words = pack_compact(
            begin,
            np.stack([lattice.next_state, lattice.word]),
            costs.view(np.int32),
            (lattice.string_begin, lattice.string),
            finals.view(np.int32),
            (lattice.final_string_begin, lattice.final_string),
        )
        header = _header(b"compactlattice44", _compact_properties(lattice), lattice)
    else:
        columns = np.stack([lattice.next_state, lattice.transition_id, lattice.word])
        words = pack(begin, columns, costs.view(np.int32), finals.view(np.int32))
        header = _header(b"lattice4", _properties(lattice), lattice)
    return header + words.astype("<i4", copy=False).tobytes()


def _header(kind: bytes, properties: int, lattice: Lattice | CompactLattice) -> bytes:
    """The header of a file with this arc type."""
    return struct.pack(
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


def _properties(lattice: Lattice) -> int:
    """What OpenFst knows of a lattice whose weights have been scaled, as Kaldi's."""
    ids, words = lattice.transition_id, lattice.word
    known = _EXPANDED_MUTABLE
    known |= _NOT_ACCEPTOR if np.any(ids != words) else _ACCEPTOR
    known |= _EPSILONS if np.any((ids == 0) & (words == 0)) else _NO_EPSILONS
    known |= _I_EPSILONS if np.any(ids == 0) else _NO_I_EPSILONS
    known |= _O_EPSILONS if np.any(words == 0) else _NO_O_EPSILONS
    return known | (_WEIGHTED if _has_weights(lattice) else _UNWEIGHTED)


def _compact_properties(lattice: CompactLattice) -> int:
    """What OpenFst knows of a compact lattice whose arcs were added in order."""
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
    """Whether an arc or a final state costs anything."""
    graph = np.concatenate([lattice.graph_cost, lattice.final_graph_cost])
    acoustic = np.concatenate([lattice.acoustic_cost, lattice.final_acoustic_cost])
    is_one = (graph == 0) & (acoustic == 0)
    is_zero = np.isinf(graph) & np.isinf(acoustic)
    return not bool(np.all(is_one | is_zero))
