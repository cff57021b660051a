"""The text form of lattices, state-level and compact.

A line `source target transition-id word graph,acoustic` is an arc of a state-level
lattice, `source target word graph,acoustic,id_id_id` one of a compact lattice;
`state graph,acoustic` (with a string behind a second comma in compact lattices) is a
final state. Costs that are both 0 with an empty string are left out. The key stands
alone on the line in front, an empty line follows behind each lattice.

Source: Kaldi `lat/kaldi-lattice.cc` (`LatticeReader::ReadText`,
`CompactLatticeHolder::Write`), OpenFst `fst/script/print-impl.h`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from latflow.errors import UserError
from latflow.lattice.lattice import CompactLattice, Lattice, Strings

Maker = Callable[[], Lattice | CompactLattice]

_ONE = "0,0"
_NAMES = {"inf": "Infinity", "-inf": "-Infinity", "nan": "BadNumber"}
_VALUES = {name: value for value, name in _NAMES.items()}
_FEWEST_DIGITS, _MOST_DIGITS = 6, 9  # that Kaldi prints; that distinguish all float32


def read(lines: Iterable[tuple[int, str]], path: Path) -> Iterator[tuple[str, Maker]]:
    """Yield (utterance, what makes it) of each lattice of a text archive.

    An arc has four or five fields in the state-level form and three or four in the
    compact form; a weight of three parts, the last a string, marks the compact form.

    Args:
        lines: (line number, line).
        path: what error messages call the archive.

    Raises:
        UserError: a line is not an arc, final state or key, or belongs to another kind
            of lattice than those before; names the line.
    """
    builder: _Builder | None = None
    utterance, number = "", 0
    for number, line in lines:
        fields = line.split()
        if not fields and builder is not None:
            yield utterance, _finished(builder, path, number)
            builder = None
        elif fields and builder is None:
            if len(fields) > 1:
                _fail(path, number, "an utterance alone on its line is expected")
            utterance, builder = fields[0], _Builder()
        elif builder is not None:
            try:
                builder.add(fields)
            except (ValueError, IndexError, OverflowError):
                _fail(path, number, "no arc or final state of a lattice")
    if builder is not None and builder.is_empty:
        _fail(path, number, "the file ends behind a key")
    if builder is not None:
        yield utterance, _finished(builder, path, number)


def _finished(builder: _Builder, path: Path, number: int) -> Maker:
    """Return what makes the lattice that ends at a line."""
    try:
        return builder.lattice()
    except ValueError:
        _fail(path, number, "the lattice has a state far beyond the others")


def _fail(path: Path, number: int, what: str) -> NoReturn:
    """Raise a UserError that names the line."""
    raise UserError(
        f"line {number}: {what}",
        file=path,
        remedy="the file is truncated or no archive of lattices; make it again",
    )


_LARGEST = 2**31 - 1  # state, label or id
_UNNAMED = 1_000_000  # states that no line needs to name; a damaged number means more


class _Builder:
    """Collect the arcs and final states of one lattice.

    Columns of an arc are source, target, transition-id and word in a state-level
    lattice, and source, target and word in a compact one.
    """

    def __init__(self) -> None:
        self._start = -1
        self._num_states = 0
        self._is_compact: bool | None = None  # not known yet
        self._arcs: list[list[int]] = []
        self._weights: list[list[str]] = []
        self._finals: dict[int, list[str]] = {}

    @property
    def is_empty(self) -> bool:
        """True until a line has been taken."""
        return self._start < 0

    def add(self, fields: Sequence[str]) -> None:
        """Take a line; raise ValueError if it does not belong to a lattice."""
        has_weight = "," in fields[-1]
        numbers = [int(field) for field in fields[: len(fields) - has_weight]]
        weight = (fields[-1] if has_weight else _ONE).split(",")
        if min(numbers) < 0 or len(numbers) not in (1, 3, 4) or len(weight) > 3:
            raise ValueError
        if max(numbers) > _LARGEST:
            raise ValueError
        self._decide(len(numbers), len(weight))
        if len(weight) < 3:
            weight = [*weight, ""]
        if self._start < 0:
            self._start = numbers[0]
        if len(numbers) == 1:
            self._finals[numbers[0]] = weight
        else:
            self._arcs.append(numbers)
            self._weights.append(weight)
        self._num_states = max(self._num_states, *(s + 1 for s in numbers[:2]))
        _check(weight)

    def _decide(self, num_numbers: int, num_weights: int) -> None:
        """Find of which kind the lattice is, or check that a line fits."""
        says_compact = num_numbers == 3 or num_weights == 3
        says_raw = num_numbers == 4
        if says_compact and (says_raw or self._is_compact is False):
            raise ValueError
        if says_raw and self._is_compact:
            raise ValueError
        if says_compact or says_raw:
            self._is_compact = says_compact

    def lattice(self) -> Maker:
        """Return what makes the lattice; raise ValueError if states are missing."""
        if self._num_states > _UNNAMED + 2 * len(self._arcs) + len(self._finals):
            raise ValueError
        costs = _costs(self._weights)
        final_costs = np.full((self._num_states, 2), np.inf, np.float32)
        states = np.fromiter(self._finals, np.int64, len(self._finals))
        final_costs[states] = _costs(self._finals.values())
        start = max(self._start, 0)
        if not self._is_compact:
            arcs = np.array(self._arcs, np.int32).reshape(-1, 4)
            return partial(Lattice.from_arcs, arcs, costs, final_costs, start=start)
        ends = [["", "", ""]] * self._num_states
        for state, weight in self._finals.items():
            ends[state] = weight
        return partial(
            CompactLattice.from_arcs,
            np.array(self._arcs, np.int32).reshape(-1, 3),
            costs,
            _strings(self._weights),
            final_costs,
            _strings(ends),
            start=start,
        )


def _check(weight: Sequence[str]) -> None:
    """Raise ValueError if a weight is invalid."""
    _costs([weight])
    _strings([weight])


def _number(field: str) -> str:
    """Return a number that Kaldi printed in a form that Python reads."""
    return _VALUES.get(field, field)


def _costs(weights: Iterable[Sequence[str]]) -> np.ndarray:
    """Return graph and acoustic costs of weights, float32[N, 2]."""
    rows = [(float(_number(w[0])), float(_number(w[1]))) for w in weights]
    return np.array(rows, np.float32).reshape(-1, 2)


def _strings(weights: Iterable[Sequence[str]]) -> Strings:
    """Return the transition-ids of weights."""
    return Strings.of(
        [[int(i) for i in w[2].split("_")] if w[2] else [] for w in weights]
    )


def as_text(utterance: str, lattice: Lattice | CompactLattice) -> str:
    """Return one lattice of a text archive.

    A cost has the six digits that Kaldi prints where these are exact, and as many more
    as it takes, so that none is lost.
    """
    source, begin = lattice.source().tolist(), lattice.arc_begin.tolist()
    weights = _weights(lattice.graph_cost, lattice.acoustic_cost)
    ends = _weights(lattice.final_graph_cost, lattice.final_acoustic_cost)
    labels = [lattice.next_state, lattice.word]
    one = _ONE
    if isinstance(lattice, CompactLattice):
        one += ","
        weights = _with_strings(weights, lattice.string_begin, lattice.string)
        ends = _with_strings(ends, lattice.final_string_begin, lattice.final_string)
    else:
        labels.insert(1, lattice.transition_id)
    columns = zip(source, *(label.tolist() for label in labels), strict=True)
    arcs = [
        "\t".join(map(str, row)) + ("" if weight == one else f"\t{weight}")
        for row, weight in zip(columns, weights, strict=True)
    ]
    lines = [f"{utterance} "]
    for state, weight in enumerate(ends):
        rows = arcs[begin[state] : begin[state + 1]]
        lines += rows
        if not weight.startswith("Infinity") or not rows:
            lines.append(f"{state}" if weight == one else f"{state}\t{weight}")
    return "\n".join(lines) + "\n\n"


def _weights(graph: np.ndarray, acoustic: np.ndarray) -> list[str]:
    """Return `graph,acoustic` of each arc or state."""
    pairs = zip(_decimals(graph), _decimals(acoustic), strict=True)
    return [f"{g},{a}" for g, a in pairs]


def _with_strings(weights: list[str], begin: np.ndarray, ids: np.ndarray) -> list[str]:
    """Return the weights with their strings behind a comma."""
    texts, ends = [str(i) for i in ids.tolist()], begin.tolist()
    return [
        f"{weight},{'_'.join(texts[ends[n] : ends[n + 1]])}"
        for n, weight in enumerate(weights)
    ]


def _decimals(values: np.ndarray) -> list[str]:
    """Return each float32 with the fewest digits, at least six, that identify it."""
    texts = [f"{value:.{_FEWEST_DIGITS}g}" for value in values.tolist()]
    for digits in range(_FEWEST_DIGITS + 1, _MOST_DIGITS + 1):
        lost = np.flatnonzero(np.array(texts, np.float32) != values)
        for n in lost.tolist():
            texts[n] = f"{values[n]:.{digits}g}"
    return [_NAMES.get(text, text) for text in texts]
