"""Pronunciations by a transducer from letters to phones, as MFA's G2P models are.

A model is a zip file, or a folder, with `model.fst`: made by Pynini (labels of letters
are code points; `phones.sym` names the phones) or by Phonetisaurus
(both symbol tables in the file or beside it; `a|b` are two letters or phones at once).

The search goes through the letters from left to right and keeps, before each, the
states within a beam of the best; its pronunciations come out in the order of their
costs. A pronunciation has the cost of its best path, as with MFA.

Source: MFA `g2p/generator.py`; Phonetisaurus (`|`, `_`).
"""

from __future__ import annotations

import heapq
import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.fst import openfst
from latflow.fst.graph import Graph
from latflow.lang.directory import read_symbols
from latflow.lang.g2p import Guess
from latflow.zip_files import unpack_files

_FST = "model.fst"
_TABLES = (("graphemes.sym", "graphemes.txt"), ("phones.sym", "phones.txt"))
_REMEDY = "download the model again; mfa model download g2p NAME fetches one"
_SIZES = {
    _FST: 2 << 30,
    **dict.fromkeys((*_TABLES[0], *_TABLES[1]), 16 << 20),
}
BEAM = 12.0  # in nats
_MOST_PATHS = 20_000  # looked at for the pronunciations of a word
_NO_SYMBOL = frozenset({"<eps>", "<epsilon>", "<s>", "</s>", "_", "-", ""})

Node = tuple[int, int]  # letters read, state
_Arc = tuple[int, float, int]  # output label, cost, next state
# Cost of the whole way, number, cost so far, node (None behind the end), phones.
_Entry = tuple[float, int, float, Node | None, tuple[str, ...]]


@dataclass(frozen=True)
class TransducerG2p:
    """A model.

    Attributes:
        fst: from letters to phones.
        pieces: letters, one or several -> input label.
        symbols: output label -> phones.
    """

    fst: Graph
    pieces: Mapping[str, int]
    symbols: Mapping[int, tuple[str, ...]]
    _arcs: dict[int, dict[int, list[_Arc]]] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, path: str | Path) -> TransducerG2p:
        """Read a zip file or a folder.

        Raises:
            UserError: it is damaged, or symbols do not fit the transducer.
        """
        source = Path(path)
        if source.is_dir():
            return cls._read(source, source)
        with tempfile.TemporaryDirectory(prefix="latflow.g2p.") as folder:
            unpack_files(source, Path(folder), _SIZES, [_FST], _REMEDY)
            return cls._read(Path(folder), source)

    @classmethod
    def _read(cls, folder: Path, source: Path) -> TransducerG2p:
        try:
            fst = Graph.load(folder / _FST)
            letters, phones = _symbol_tables(folder)
            if letters is None:
                pieces = _code_points(fst)
            else:
                pieces = {name.replace("|", ""): n for name, n in letters.items() if n}
        except UserError as error:
            raise UserError(error.what, file=source, remedy=_REMEDY) from None
        if phones is None:
            raise UserError("no phones.sym", file=source, remedy=_REMEDY)
        if np.isnan(fst.weight).any() or fst.weight.min(initial=0.0) < 0.0:
            raise UserError("costs below 0", file=source, remedy=_REMEDY)
        symbols = {number: _parts(name) for name, number in phones.items()}
        strange = set(fst.olabel.tolist()) - symbols.keys() - {0}
        if strange:
            raise UserError(
                f"output label {min(strange)} has no symbol",
                file=source,
                remedy=_REMEDY,
            )
        return cls(fst, pieces, symbols)

    @cached_property
    def letters(self) -> frozenset[str]:
        """The distinct letters of words."""
        return frozenset("".join(self.pieces))

    @cached_property
    def phones(self) -> list[str]:
        """The distinct phones."""
        used = set(self.fst.olabel.tolist()) - {0}
        return sorted({phone for label in used for phone in self.symbols[label]})

    def pronounce(self, word: str, number: int) -> list[Guess]:
        """Return the likeliest pronunciations of a word, best first.

        Args:
            word: as the dictionary of the model would spell it.
            number: how many at most.

        Returns:
            Nothing if the model lacks one of the letters.
        """
        arcs = self._lattice(word)
        paths = self._paths(arcs, len(word)) if arcs else iter(())
        wanted = max(number, 10)
        found = [each for _, each in zip(range(wanted), paths, strict=False)]
        if not found:
            return []
        shares = [math.exp(found[0][0] - cost) for cost, _ in found]
        return [
            Guess(share / sum(shares), phones)
            for share, (_, phones) in zip(shares, found, strict=True)
        ][:number]

    # -- search ---------------------------------------------------------------------

    def _by_label(self, state: int) -> dict[int, list[_Arc]]:
        """Return the arcs of a state by their input labels."""
        if state not in self._arcs:
            fst = self.fst
            arcs = slice(fst.arc_begin[state], fst.arc_begin[state + 1])
            found: dict[int, list[_Arc]] = {}
            columns = (fst.ilabel, fst.olabel, fst.weight, fst.next_state)
            rows = zip(*(column[arcs].tolist() for column in columns), strict=True)
            for ilabel, olabel, weight, to in rows:
                found.setdefault(ilabel, []).append((olabel, weight, to))
            self._arcs[state] = found
        return self._arcs[state]

    def _lattice(self, word: str) -> dict[Node, list[tuple[Node, int, float]]]:
        """Return the arcs that read a word, out of each node within the beam."""
        longest = max(map(len, self.pieces), default=1)
        waiting: list[dict[int, float]] = [{} for _ in range(len(word) + 1)]
        if self.fst.start >= 0:
            waiting[0][self.fst.start] = 0.0
        lattice: dict[Node, list[tuple[Node, int, float]]] = {}
        for place in range(len(word) + 1):
            ends = range(place + 1, min(place + longest, len(word)) + 1)
            labels = [(end, self.pieces.get(word[place:end])) for end in ends]
            reached = [(end, label) for end, label in labels if label is not None]
            for state, cost in self._closed(waiting[place]):
                arcs = []
                for label, end in ((0, place), *((n, e) for e, n in reached)):
                    for olabel, weight, to in self._by_label(state).get(label, ()):
                        arcs.append(((end, to), olabel, weight))
                        if end > place:
                            known = waiting[end].get(to, math.inf)
                            waiting[end][to] = min(known, cost + weight)
                lattice[place, state] = arcs
        return lattice

    def _closed(self, costs: dict[int, float]) -> Iterator[tuple[int, float]]:
        """Yield states and costs, also those reached without a letter, in a beam."""
        heap = [(cost, state) for state, cost in costs.items()]
        heapq.heapify(heap)
        best = heap[0][0] if heap else 0.0
        done: set[int] = set()
        while heap:
            cost, state = heapq.heappop(heap)
            if cost > best + BEAM:
                return
            if state in done:
                continue
            done.add(state)
            yield state, cost
            for _, weight, to in self._by_label(state).get(0, ()):
                if to not in done:
                    heapq.heappush(heap, (cost + weight, to))

    def _paths(
        self, lattice: dict[Node, list[tuple[Node, int, float]]], length: int
    ) -> Iterator[tuple[float, tuple[str, ...]]]:
        """Yield (cost, phones) of the pronunciations, the cheapest first."""
        rest = self._costs_to_end(lattice, length)
        begin = (0, self.fst.start)
        order = count()  # no two entries of the heap are compared further
        heap: list[_Entry] = [(rest.get(begin, math.inf), next(order), 0.0, begin, ())]
        seen: set[tuple[Node | None, tuple[str, ...]]] = set()
        for _ in range(_MOST_PATHS):
            if not heap or heap[0][0] == math.inf:
                return
            _, _, cost, node, phones = heapq.heappop(heap)
            if (node, phones) in seen:
                continue
            seen.add((node, phones))
            if node is None:
                if phones:
                    yield cost, phones
                continue
            end = float(self.fst.final[node[1]]) if node[0] == length else math.inf
            if end < math.inf:
                total = cost + end
                heapq.heappush(heap, (total, next(order), total, None, phones))
            for to, olabel, weight in lattice[node]:
                if to in rest:
                    spoken = (*phones, *self.symbols.get(olabel, ()))
                    so_far = cost + weight
                    entry = (so_far + rest[to], next(order), so_far, to, spoken)
                    heapq.heappush(heap, entry)

    def _costs_to_end(
        self, lattice: dict[Node, list[tuple[Node, int, float]]], length: int
    ) -> dict[Node, float]:
        """Return the cost of the best way from each node to the end of the word."""
        into: dict[Node, list[tuple[Node, float]]] = {}
        for node, arcs in lattice.items():
            for to, _, weight in arcs:
                into.setdefault(to, []).append((node, weight))
        heap = [
            (float(self.fst.final[state]), (place, state))
            for place, state in lattice
            if place == length and self.fst.final[state] < math.inf
        ]
        heapq.heapify(heap)
        rest: dict[Node, float] = {}
        while heap:
            cost, node = heapq.heappop(heap)
            if node not in rest:
                rest[node] = cost
                for before, weight in into.get(node, ()):
                    if before not in rest:
                        heapq.heappush(heap, (cost + weight, before))
        return rest


# -- symbols ---------------------------------------------------------------------------


def _symbol_tables(
    folder: Path,
) -> tuple[dict[str, int] | None, dict[str, int] | None]:
    """Return the symbols of letters and phones: of files, else of the transducer."""
    buffer = memoryview((folder / _FST).read_bytes())
    header = openfst.read_header(buffer, name=_FST)
    tables: list[dict[str, int] | None] = []
    at = header.symbols
    for flag, names in zip(
        (openfst.HAS_INPUT_SYMBOLS, openfst.HAS_OUTPUT_SYMBOLS), _TABLES, strict=True
    ):
        table = None
        if header.flags & flag:
            table, at = openfst.read_symbols(buffer, at, name=_FST)
        for name in names:
            if table is None and (folder / name).is_file():
                table = read_symbols(folder / name)
        tables.append(table)
    return tables[0], tables[1]


def _parts(symbol: str) -> tuple[str, ...]:
    """Return the phones of an output symbol."""
    return tuple(part for part in symbol.split("|") if part not in _NO_SYMBOL)


def _code_points(fst: Graph) -> dict[str, int]:
    """Return letters and labels of a transducer whose labels are code points.

    Raises:
        UserError: a label is not a code point.
    """
    labels = sorted(set(fst.ilabel.tolist()) - {0})
    if any(not 0 < label <= 0x10FFFF or 0xD800 <= label <= 0xDFFF for label in labels):
        raise UserError("input labels that are not letters", remedy=_REMEDY)
    return {chr(label): label for label in labels}
