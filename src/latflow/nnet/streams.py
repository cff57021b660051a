"""Streams that a network takes piece by piece, each frame once.

A layer that looks around (`latflow.nnet.layer.Layer.stream`) gives the frames whose
context has come, and keeps what it needs of those before. All frames leave at the end
of the stream, beyond which it sees what it sees beyond that of a whole sequence. What
comes out is what the network gives the whole sequence, for any pieces.

What layers keep has no names: all passes go through the layers in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

#: What is kept at one place of a layer: tensors [B, ...], and numbers.
Slot = tuple[Tensor | int, ...]


@dataclass(frozen=True)
class Memory:
    """What a network keeps of streams side by side, from one piece to the next.

    Attributes:
        slots: of the layers, in the order of a pass; none before the first piece.
        rows: [B, R, K], outputs that have not been asked for yet; None before the
            first piece.
        has_ended: whether no frame follows.
    """

    slots: tuple[Slot, ...] = ()
    rows: Tensor | None = None
    has_ended: bool = False

    @property
    def form(self) -> Hashable:
        """Return what is equal of streams that can go side by side."""
        shapes = tuple(
            tuple(x if isinstance(x, int) else x.shape[1:] for x in slot)
            for slot in self.slots
        )
        waiting = 0 if self.rows is None else self.rows.shape[1]
        return shapes, waiting, self.has_ended

    @staticmethod
    def joined(memories: Sequence[Memory]) -> Memory:
        """Put streams of one form side by side."""
        first, *others = memories
        if not others or first.rows is None:
            return first
        places = zip(*(memory.slots for memory in memories), strict=True)
        slots = tuple(tuple(map(_joined, zip(*place, strict=True))) for place in places)
        rows = torch.cat([m.rows for m in memories if m.rows is not None])
        return Memory(slots, rows, first.has_ended)

    def parted(self, count: int) -> list[Memory]:
        """Return the memories of `count` streams side by side, each for itself.

        They hold nothing else: what passes keep are views of more.
        """
        if self.rows is None:
            return [self] * count
        return [
            Memory(
                tuple(tuple(_picked(x, i) for x in slot) for slot in self.slots),
                self.rows[i : i + 1].clone(),
                self.has_ended,
            )
            for i in range(count)
        ]


def _joined(parts: Sequence[Tensor | int]) -> Tensor | int:
    """Return what streams keep at one place, side by side; numbers are equal."""
    tensors = [part for part in parts if isinstance(part, Tensor)]
    return torch.cat(tensors) if tensors else parts[0]


def _picked(part: Tensor | int, index: int) -> Tensor | int:
    """Return what one of the streams keeps."""
    return part if isinstance(part, int) else part[index : index + 1].clone()


class Pass:
    """The way of one piece through the layers.

    Attributes:
        is_last: whether the streams end with the piece.
        kept: what layers have kept of it.

    Args:
        slots: that they kept of the piece before; none before the first one.
        is_last: see above.
    """

    def __init__(self, slots: Sequence[Slot], *, is_last: bool) -> None:
        self.is_last = is_last
        self.kept: list[Slot] = []
        self._slots = slots

    def recall(self) -> Slot | None:
        """Return what was kept here of the piece before; None for the first piece."""
        return self._slots[len(self.kept)] if self._slots else None

    def keep(self, *slot: Tensor | int) -> None:
        """Keep something for the next piece; each `recall` has its `keep`."""
        self.kept.append(slot)


@dataclass(frozen=True)
class Piece:
    """The next frames of streams side by side, as a layer takes or gives them.

    Attributes:
        values: [B, T, D]; T may be 0.
        run: the pass.
        before: frames of context that stand before the stream's own first one, see
            `Padded.before`; None where zeros stand beyond the ends.
    """

    values: Tensor
    run: Pass
    before: int | None = None

    def with_values(self, values: Tensor) -> Piece:
        """Return other values [B, T', D'] at the same frames."""
        return Piece(values, self.run, self.before)

    def skipped(self, count: int) -> Piece:
        """Drop the first frames of the stream."""
        if not count:
            return self
        found = self.run.recall()
        left = count if found is None else found[0]
        assert isinstance(left, int)
        here = min(left, self.values.shape[1])
        self.run.keep(left - here)
        before = None if self.before is None else self.before - count
        return Piece(self.values[:, here:], self.run, before)

    def window(self, left: int, right: int, stride: int) -> tuple[Piece, int]:
        """Return the frames around those that have all their context now.

        Args:
            left: frames that a frame sees before itself.
            right: frames that it sees behind.
            stride: of what is made of them, which has the frame of time 0.

        Returns:
            [B, left + stride (n - 1) + 1 + right, D], and n; no frames where n is 0.
            `before` is that of what is made of them.
        """
        piece = self
        if self.before is not None:
            piece = self.skipped((self.before - left) % stride)
        values = piece.values
        found = self.run.recall()
        if found is not None:
            values = after(found[0], values)
        elif self.before is None:
            values = functional.pad(values, (0, 0, left, 0))
        if self.run.is_last and self.before is None:
            values = functional.pad(values, (0, 0, 0, right))
        needed = left + 1 + right
        # what is dropped has come
        whole = needed if self.run.is_last else max(needed, stride)
        count = max(0, (values.shape[1] - whole) // stride + 1)
        self.run.keep(values[:, count * stride :])
        used = needed + stride * (count - 1) if count else 0
        before = piece.before
        before = None if before is None else (before - left) // stride
        return Piece(values[:, :used], self.run, before), count

    def plus(self, other: Piece) -> Piece:
        """Add other values, which may come later than these."""
        one, two = together([self, other])
        return self.with_values(one + two)


def after(kept: Tensor | int, values: Tensor, dim: int = 1) -> Tensor:
    """Return values behind those that were kept."""
    assert isinstance(kept, Tensor)
    return torch.cat((kept, values), dim) if kept.shape[dim] else values


def together(pieces: Sequence[Piece]) -> list[Tensor]:
    """Return the frames that have come by all ways; the others wait.

    Args:
        pieces: of the same streams; with context, as much of it.
    """
    run = pieces[0].run
    there = run.recall()
    values = [piece.values for piece in pieces]
    if there is not None:
        values = [after(*pair) for pair in zip(there, values, strict=True)]
    count = min(one.shape[1] for one in values)
    run.keep(*(one[:, count:] for one in values))
    return [one[:, :count] for one in values]
