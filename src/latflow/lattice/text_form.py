"""The text form of lattices, state-level and compact.

Public: `read`, `as_text`.

Source: Kaldi `lat/kaldi-lattice.cc` (`ReadCompactLatticeText`, `WriteLattice`),
`fstext/kaldi-fst-io.cc`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.files import read_lines
from latflow.lattice.binary_form import Spread
from latflow.lattice.lattice import Lattice

Weight = tuple[float, float, tuple[int, ...]]
_ONE: Weight = (0.0, 0.0, ())


def read(path: Path) -> Iterator[tuple[str, Spread]]:
    """Yield (utterance, contents) of each lattice of a text archive.

    An arc has four or five fields in the state-level form and three or four in the
    compact form; a weight of three parts, the last a string, tells the compact form.
    Compact arcs are spread to one transition-id each, the first one carrying word and
    weight.

    Raises:
        UserError: a line is no arc, final state or key; names the line.
    """
    builder: _Builder | None = None
    utterance = ""
    for number, line in read_lines(path):
        fields = line.split()
        if not fields and builder is not None:
            yield utterance, builder.contents()
            builder = None
        elif fields and builder is None:
            if len(fields) > 1:
                _fail(path, number, "an utterance alone on its line is expected")
            utterance, builder = fields[0], _Builder()
        elif builder is not None:
            try:
                builder.add(fields)
            except (ValueError, IndexError):
                _fail(path, number, "no arc or final state of a lattice")
    if builder is not None:
        yield utterance, builder.contents()


def _fail(path: Path, number: int, what: str) -> None:
    """Raise a UserError that names the line."""
    raise UserError(
        f"line {number}: {what}",
        file=path,
        remedy="the file is truncated or no archive of lattices; make it again",
    )


class _Builder:
    """Collects the arcs and final states of one lattice."""

    def __init__(self) -> None:
        self._start = -1
        self._num_states = 0
        self._rows: list[tuple[int, int, int, Weight]] = []  # source, target, label
        self._arcs: list[tuple[int, int, int, int]] = []
        self._costs: list[tuple[float, float]] = []
        self._finals: list[tuple[int, Weight]] = []

    def add(self, fields: Sequence[str]) -> None:
        """Take one line in."""
        has_weight = "," in fields[-1] or fields[-1] in ("Infinity", "BadNumber")
        numbers = [int(field) for field in fields[: len(fields) - has_weight]]
        weight = _weight(fields[-1]) if has_weight else _ONE
        states = numbers[:2]
        if min(numbers) < 0 or not 1 <= len(numbers) <= 4:
            raise ValueError
        if self._start < 0:
            self._start = numbers[0]
        if len(numbers) == 1:
            self._finals.append((numbers[0], weight))
        elif len(numbers) == 4:
            self._arcs.append((*states, *numbers[2:]))  # type: ignore[arg-type]
            self._costs.append(weight[:2])
        else:
            self._rows.append((*states, numbers[2], weight))  # type: ignore[arg-type]
        self._num_states = max(self._num_states, *(s + 1 for s in states))

    def contents(self) -> Spread:
        """All arcs, costs and final costs."""
        finals: dict[int, tuple[float, float]] = {}
        for source, target, label, weight in self._rows:
            self._chain(source, target, label, weight)
        for state, weight in self._finals:
            if weight[2]:
                end = self._num_states
                self._num_states += 1
                finals[end] = (0.0, 0.0)
                self._chain(state, end, 0, weight)
            else:
                finals[state] = weight[:2]
        final_costs = np.full((self._num_states, 2), np.inf, np.float32)
        for state, costs in finals.items():
            final_costs[state] = costs
        arcs = np.array(self._arcs, np.int32).reshape(-1, 4)
        costs_of_arcs = np.array(self._costs, np.float32).reshape(-1, 2)
        return arcs, costs_of_arcs, final_costs, max(self._start, 0)

    def _chain(self, source: int, target: int, label: int, weight: Weight) -> None:
        """Add one compact arc."""
        graph, acoustic, ids = weight
        state = source
        for k, transition_id in enumerate(ids or (0,)):
            is_last = k + 1 >= len(ids)
            there = target if is_last else self._num_states
            self._num_states += not is_last
            self._arcs.append((state, there, transition_id, label if k == 0 else 0))
            self._costs.append((graph, acoustic) if k == 0 else (0.0, 0.0))
            state = there


def _weight(field: str) -> Weight:
    """Parse `graph,acoustic` or `graph,acoustic,string`."""
    graph, acoustic, *string = field.replace("Infinity", "inf").split(",")
    ids = tuple(int(i) for i in string[0].split("_")) if string and string[0] else ()
    return float(graph), float(acoustic), ids


def as_text(utterance: str, lattice: Lattice) -> str:
    """One lattice of a text archive, costs with nine digits so that none is lost."""
    lines = [f"{utterance} "]
    source = lattice.source().tolist()
    columns = (
        lattice.next_state.tolist(),
        lattice.transition_id.tolist(),
        lattice.word.tolist(),
        lattice.graph_cost.tolist(),
        lattice.acoustic_cost.tolist(),
    )
    finals = np.stack([lattice.final_graph_cost, lattice.final_acoustic_cost], 1)
    rows = list(zip(source, *columns, strict=True))
    begin = lattice.arc_begin.tolist()
    for state, (graph, acoustic) in enumerate(finals.tolist()):
        lines += [
            f"{s}\t{n}\t{i}\t{w}\t{g:.9g},{a:.9g}"
            for s, n, i, w, g, a in rows[begin[state] : begin[state + 1]]
        ]
        if np.isfinite(graph) and np.isfinite(acoustic):
            lines.append(f"{state}\t{graph:.9g},{acoustic:.9g}")
    return "\n".join(lines) + "\n\n"
