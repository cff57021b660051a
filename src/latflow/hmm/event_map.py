"""Event maps: the decision trees that turn a phone in context into a pdf-id.

An *event* is what a tree may be asked about: key `PDF_CLASS` (-1) has the pdf-class,
keys 0, 1, ... the phones of the context window from left to right (0 where the window
sticks out of the utterance). A context-independent phone may leave out the keys of its
neighbours while statistics are gathered; a tree never asks it for them.

Three kinds of node: `Constant` (a leaf: the pdf-id), `Table` (one branch a value) and
`Split` (is the key's value in this set?).

Source: Kaldi `tree/event-map.{h,cc}`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from latflow.kaldi.io import KaldiReader, KaldiWriter

PDF_CLASS = -1  # the key of the pdf-class (Kaldi's kPdfClass)

Event = Mapping[int, int]
Columns = Mapping[int, np.ndarray]


class EventMap(ABC):
    """A node of a decision tree, with all below it. Nodes are never changed."""

    @abstractmethod
    def answer(self, event: Event) -> int | None:
        """Return the leaf of an event; None if the tree has no answer for it."""

    @abstractmethod
    def possible(self, event: Event) -> set[int]:
        """Return all leaves that an event can reach whose other keys are unknown."""

    @abstractmethod
    def replaced(self, leaves: Mapping[int, EventMap]) -> EventMap:
        """Return the tree with the leaves named by `leaves` replaced by subtrees."""

    @abstractmethod
    def fill(self, columns: Columns, rows: np.ndarray, out: np.ndarray) -> None:
        """Write the leaves of many events to `out`.

        Args:
            columns: int32[N] of each key; negative where an event leaves the key out.
            rows: indices of the events that have come down to this node.
            out: int32[N]; entries `rows` are set, to -1 where there is no answer.
        """

    @abstractmethod
    def write(self, writer: KaldiWriter) -> None:
        """Write the tree as Kaldi does."""

    def answers(self, columns: Columns) -> np.ndarray:
        """Return the leaves of many events, int32[N]; -1 where there is no answer."""
        size = len(next(iter(columns.values())))
        out = np.full(size, -1, np.int32)
        self.fill(columns, np.arange(size), out)
        return out

    @property
    def num_leaves(self) -> int:
        """One more than the highest leaf."""
        return 1 + max(self.possible({}), default=-1)


class Constant(EventMap):
    """A leaf.

    Args:
        leaf: its number, the pdf-id of a finished tree.
    """

    def __init__(self, leaf: int) -> None:
        self.leaf = leaf

    def answer(self, event: Event) -> int | None:  # noqa: ARG002 - a leaf asks nothing
        """Return the leaf."""
        return self.leaf

    def possible(self, event: Event) -> set[int]:  # noqa: ARG002 - a leaf asks nothing
        """Return the leaf alone."""
        return {self.leaf}

    def replaced(self, leaves: Mapping[int, EventMap]) -> EventMap:
        """Return what replaces the leaf, or itself."""
        return leaves.get(self.leaf, self)

    def fill(self, columns: Columns, rows: np.ndarray, out: np.ndarray) -> None:  # noqa: ARG002 - a leaf asks nothing
        """Write the leaf for all of `rows`."""
        out[rows] = self.leaf

    def write(self, writer: KaldiWriter) -> None:
        """Write `CE leaf`."""
        writer.write_token("CE")
        writer.write_int32(self.leaf)


class Table(EventMap):
    """A node with a branch for each value of a key.

    Args:
        key: the key asked for.
        branches: subtree of value 0, 1, ...; None where a value does not occur.
    """

    def __init__(self, key: int, branches: Sequence[EventMap | None]) -> None:
        self.key = key
        self.branches = tuple(branches)

    def _branch(self, value: int) -> EventMap | None:
        return self.branches[value] if 0 <= value < len(self.branches) else None

    def answer(self, event: Event) -> int | None:
        """Return the answer of the branch of the event's value."""
        branch = self._branch(event.get(self.key, -1))
        return None if branch is None else branch.answer(event)

    def possible(self, event: Event) -> set[int]:
        """Return the leaves of one branch, or of all if the key is not known."""
        chosen = self.branches
        if self.key in event:
            chosen = (self._branch(event[self.key]),)
        return set().union(*(b.possible(event) for b in chosen if b is not None))

    def replaced(self, leaves: Mapping[int, EventMap]) -> EventMap:
        """Return the table with each branch replaced."""
        branches = [None if b is None else b.replaced(leaves) for b in self.branches]
        return Table(self.key, branches)

    def fill(self, columns: Columns, rows: np.ndarray, out: np.ndarray) -> None:
        """Send each event to the branch of its value."""
        values = columns[self.key][rows]
        for value in np.unique(values):
            branch = self._branch(int(value))
            if branch is not None:
                branch.fill(columns, rows[values == value], out)

    def write(self, writer: KaldiWriter) -> None:
        """Write `TE key size ( branches )`."""
        writer.write_token("TE")
        writer.write_int32(self.key)
        writer.write_uint32(len(self.branches))
        writer.write_token("(")
        for branch in self.branches:
            if branch is None:
                writer.write_token("NULL")
            else:
                branch.write(writer)
        writer.write_token(")")
        writer.end_line()


class Split(EventMap):
    """A node that asks whether a key's value is in a set.

    Args:
        key: the key asked for.
        values: the set, sorted.
        yes: subtree of values in the set.
        no: subtree of all others.
    """

    def __init__(
        self, key: int, values: Sequence[int], yes: EventMap, no: EventMap
    ) -> None:
        self.key = key
        self.values = tuple(values)
        self.members = frozenset(values)
        self.yes = yes
        self.no = no

    def answer(self, event: Event) -> int | None:
        """Return the answer of one branch; None if the event leaves the key out."""
        value = event.get(self.key, -1)
        if value < 0:
            return None
        return (self.yes if value in self.members else self.no).answer(event)

    def possible(self, event: Event) -> set[int]:
        """Return the leaves of one branch, or of both if the key is not known."""
        if self.key not in event:
            return self.yes.possible(event) | self.no.possible(event)
        return (self.yes if event[self.key] in self.members else self.no).possible(
            event
        )

    def replaced(self, leaves: Mapping[int, EventMap]) -> EventMap:
        """Return the split with both branches replaced."""
        yes, no = self.yes.replaced(leaves), self.no.replaced(leaves)
        return Split(self.key, self.values, yes, no)

    def fill(self, columns: Columns, rows: np.ndarray, out: np.ndarray) -> None:
        """Send each event down one branch."""
        values = columns[self.key][rows]
        is_yes = np.isin(values, self.values)
        is_no = ~is_yes & (values >= 0)
        for branch, is_here in ((self.yes, is_yes), (self.no, is_no)):
            if is_here.any():
                branch.fill(columns, rows[is_here], out)

    def write(self, writer: KaldiWriter) -> None:
        """Write `SE key values { yes no }`."""
        writer.write_token("SE")
        writer.write_int32(self.key)
        writer.write_int_vector(self.values)
        writer.write_token("{")
        self.yes.write(writer)
        self.no.write(writer)
        writer.write_token("}")
        writer.end_line()


def read_event_map(reader: KaldiReader) -> EventMap:
    """Read a tree that `EventMap.write`, or Kaldi, has written.

    Raises:
        UserError: it is truncated or garbled.
    """
    node = _read_node(reader)
    if node is None:
        reader.fail("an empty branch where a tree is expected")
    return node


def _read_node(reader: KaldiReader) -> EventMap | None:
    kind = reader.expect("CE", "TE", "SE", "NULL")
    if kind == "CE":
        return Constant(reader.int32())
    if kind == "TE":
        key = reader.int32()
        size = reader.uint32()
        reader.expect("(")
        branches = [_read_node(reader) for _ in range(size)]
        reader.expect(")")
        return Table(key, branches)
    if kind == "SE":
        key = reader.int32()
        values = reader.int_vector().tolist()
        reader.expect("{")
        yes, no = read_event_map(reader), read_event_map(reader)
        reader.expect("}")
        return Split(key, values, yes, no)
    return None
