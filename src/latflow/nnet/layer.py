"""Layers: the protocol of the built-in classes and of a user's own.

A layer is a torch module made of the shape of its input and its checked options::

    class GainOptions(Options):
        start: float = 1.0
        '''the first value of the factor'''

    class Gain(Layer):
        '''Multiply by a learnt factor.'''

        OPTIONS = GainOptions

        def __init__(self, shape: Shape, options: GainOptions) -> None:
            super().__init__(shape)
            self.factor = nn.Parameter(torch.tensor(options.start))

        def forward(self, batch: Padded) -> Padded:
            return batch.with_values(batch.values * self.factor)

and a description names it by its import path, `class: my.module.Gain`.

Sequences of a batch are padded to a common length. The rule: **values beyond a
sequence's end are zero between any two layers**. A sequence alone sees zeros beyond its
end (convolutions pad with zeros), so a convolution needs no mask; layers that mix
frames otherwise (recurrent, attention, batch statistics) use `lengths` or `padding`.

With `edges: repeat` a network gets frames of context at both sides instead
(`Padded.before`), and layers that look around use them up: nothing is computed that no
output frame needs, and what is beyond the ends never reaches a true frame.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from latflow.nnet.streams import Piece
from latflow.options import Options


@dataclass(frozen=True)
class Shape:
    """The numbers of a frame and how they are laid out.

    Attributes:
        dim: numbers a frame.
        channels: the frame is [channels, dim / channels], row by row; 1 where the
            numbers are not maps over frequency.
    """

    dim: int
    channels: int = 1


@dataclass(frozen=True)
class Context:
    """The input frames that an output frame depends on.

    Output frame t sees the input frames stride * t - left ... stride * t + right. With
    a period P, input frames fall into chunks of P, and frames of a chunk see alike:
    left counts from its first frame, right from its last one.

    Attributes:
        left: frames before; None = all.
        right: frames after; None = all.
        stride: input frames an output frame.
        period: input frames of a chunk; 1 where each frame sees for itself.
    """

    left: int | None = 0
    right: int | None = 0
    stride: int = 1
    period: int = 1

    def then(self, following: Context) -> Context:
        """Return the context of two layers, this one first."""
        return Context(
            self._reach(self.left, following.left),
            self._reach(self.right, following.right),
            self.stride * following.stride,
            math.lcm(self.period, self.stride * following.period),
        )

    def _reach(self, own: int | None, following: int | None) -> int | None:
        """Return the frames on one side with a following layer's, in whole chunks."""
        if own is None or following is None:
            return None
        return own + -(-self.stride * following // self.period) * self.period

    def repeated(self, times: int) -> Context:
        """Return the context of `times` such layers, one after another."""
        whole = Context()
        for _ in range(times):
            whole = whole.then(self)
        return whole

    def joined(self, other: Context) -> Context:
        """Return the context of two layers side by side (of equal stride)."""
        return Context(
            _widest(self.left, other.left),
            _widest(self.right, other.right),
            self.stride,
            math.lcm(self.period, other.period),
        )


def _widest(one: int | None, other: int | None) -> int | None:
    """Return the frames on one side of two layers in parallel."""
    return None if one is None or other is None else max(one, other)


@dataclass(frozen=True)
class Padded:
    """Sequences of frames, padded with zeros to a common length.

    Attributes:
        values: [B, T, D].
        lengths: int64 [B], frames of each sequence, 1 <= length <= T, on the CPU.
        padding: bool [B, T, 1] on the device of `values`, true beyond the end; None
            where no sequence is shorter than T, which saves all the masking.
        before: frames of context that stand before each sequence's own first one, with
            others behind; lengths count them all, and values beyond the ends may be
            anything. None where there is no context: zeros stand beyond the ends.
        state: [B, S], what a recurrent layer has in mind at each sequence's end, if it
            keeps it for another (`Layer.HAS_STATE`).
    """

    values: Tensor
    lengths: Tensor
    padding: Tensor | None
    before: int | None = None
    state: Tensor | None = None

    @staticmethod
    def of(values: Tensor, lengths: Tensor, there: Tensor | None = None) -> Padded:
        """Make a batch; what stands beyond the ends (even NaN) becomes zero.

        Args:
            values: [B, T, D].
            lengths: integers [B], on any device.
            there: the same on the device of `values`; None where they are not known
                there.

        Raises:
            ValueError: shapes that do not fit, or a length outside 1..T.
        """
        lengths = lengths.to("cpu", torch.int64)
        if values.ndim != 3 or lengths.shape != values.shape[:1]:
            shapes = f"{tuple(values.shape)}, {tuple(lengths.shape)}"
            raise ValueError(f"need values [B, T, D] and lengths [B], not {shapes}")
        num_frames = values.shape[1]
        if not bool(((lengths >= 1) & (lengths <= num_frames)).all()):
            raise ValueError(f"lengths must be in 1..{num_frames}: {lengths.tolist()}")
        padding = padding_of(lengths, num_frames, values.device, there)
        return Padded(values, lengths, padding).with_values(values)

    def lengths_there(self) -> Tensor:
        """Return the lengths on the device of the values; nothing is copied."""
        if self.values.is_cpu:
            return self.lengths
        if self.padding is not None:
            return (~self.padding).sum((1, 2))
        return torch.full(
            self.lengths.shape, self.values.shape[1], device=self.values.device
        )

    def with_values(self, values: Tensor) -> Padded:
        """Return the time axis with other values [B, T, D']; padding is zero."""
        if self.before is None:
            values = zero(values, self.padding)
        return Padded(values, self.lengths, self.padding, self.before)

    def strided(self, values: Tensor, stride: int) -> Padded:
        """Return every `stride`-th frame, with the values made for them.

        Args:
            values: [B, ceil(T / stride), D'].
            stride: >= 1.
        """
        if stride == 1:
            return self.with_values(values)
        lengths = (self.lengths + stride - 1) // stride
        padding = self._padding_of(lengths, values, 0, stride)
        return Padded(zero(values, padding), lengths, padding)

    def first_whole(self, left: int, stride: int = 1) -> int:
        """Return the first frame from which a layer can count, where there is context.

        Args:
            left: frames that it sees before the present one.
            stride: of its output, which has the frame of time 0.
        """
        assert self.before is not None
        return (self.before - left) % stride

    def consumed(
        self, values: Tensor, left: int, right: int, stride: int = 1
    ) -> Padded:
        """Return the frames that have their context whole, with values made for them.

        Args:
            values: [B, T', D'], made from the frame `first_whole(left, stride)` on.
            left: frames before the present one that were seen.
            right: frames behind it.
            stride: frames for one of these.

        Raises:
            ValueError: there is less context than that.
        """
        assert self.before is not None
        if self.before < left:
            raise ValueError(f"{self.before} frames of context, {left} are needed")
        if left == right == 0 and stride == 1:
            return self.with_values(values)
        left += self.first_whole(left, stride)
        lengths = (self.lengths - left - right + stride - 1) // stride
        padding = self._padding_of(lengths, values, left + right, stride)
        return Padded(values, lengths, padding, (self.before - left) // stride)

    def cut(self, before: int) -> Padded:
        """Drop frames of context before the sequences, but for `before` of them."""
        assert self.before is not None
        first = self.before - before
        lengths = self.lengths - first
        values = self.values[:, first : first + int(lengths.max())]
        padding = self._padding_of(lengths, values, first, 1)
        return Padded(values, lengths, padding, before)

    def shortened(self, lengths: Tensor, padding: Tensor | None) -> Padded:
        """Drop frames behind the sequences.

        Args:
            lengths: int64 [B], of what is left, on the CPU.
            padding: bool [B, max(lengths), 1], what is beyond them; see `padding`.
        """
        values = self.values[:, : int(lengths.max())]
        return Padded(values, lengths, padding, self.before)

    def _padding_of(
        self, lengths: Tensor, values: Tensor, first: int, stride: int
    ) -> Tensor | None:
        """Mark what is beyond the ends where frames are left out.

        A mark of its own would need the new lengths on the device.

        Args:
            lengths: int64 [B], what is left of the present ones.
            values: [B, T', D].
            first: frames that a sequence has lost.
            stride: of the rest, every s-th frame is left.
        """
        num_frames = values.shape[1]
        if self.padding is None or bool((lengths == num_frames).all()):
            return None
        return self.padding[:, first::stride][:, :num_frames]


def padding_of(
    lengths: Tensor,
    num_frames: int,
    device: torch.device,
    there: Tensor | None = None,
) -> Tensor | None:
    """Mark the frames beyond each sequence's end.

    Args:
        lengths: integers [B], on the CPU.
        num_frames: T.
        device: of the result.
        there: the lengths on that device, where they are there already.

    Returns:
        bool [B, T, 1], None if no frame is beyond an end.
    """
    if bool((lengths == num_frames).all()):
        return None
    if there is None:
        there = lengths.to(device, non_blocking=True)
    times = torch.arange(num_frames, device=device)
    return (times[None, :] >= there[:, None]).unsqueeze(2)


def zero(values: Tensor, padding: Tensor | None) -> Tensor:
    """Set values [B, T, D] to zero where `padding` [B, T, 1] says."""
    return values if padding is None else values.masked_fill(padding, 0.0)


class Layer(nn.Module, ABC):
    """A layer: frames in, frames out.

    A subclass declares `OPTIONS`, takes `(shape, options)` and sets `shape` (what it
    gives) and `context` where they differ from its input's. `forward` must not let
    padding reach a true frame: values beyond the ends are zero when they arrive, and
    `Padded.with_values` makes them zero again. Use of `padding` is needed only where
    zeros are not harmless.

    Class attributes:
        OPTIONS: the model of the options that a description may give.
        COMBINE: how several inputs become one: `concat` (side by side), `add`, or
            `multiply`.
        STACK: the option that says how many copies stand one after another, if any.
        IS_DEEP: whether layer-wise pretraining counts it as its own layer; others (a
            norm, dropout, splicing) come with the layer before them.
        USES_CONTEXT: whether it works in networks with `edges: repeat`, where layers
            use up frames of context (`Padded.before`).
        PADS_ZEROS: whether zeros that stand before and behind a sequence, as context,
            are to it what it sees beyond the ends without them.
        HAS_STATE: whether it can begin with the state that another ended in
            (`initial_state`): it takes that, [B, S], as a second argument of
            `forward`, gives its own as `Padded.state` where `keeps_state` is set, and
            says with `state_form` which states fit.
        IN_LOOPS: whether it works in a `loop`: it gives a frame what it gives it
            alone, or has a state.
        IS_CAPTURABLE: whether a CUDA graph can hold what it does in training: shapes
            follow from those of the batch and `max(lengths)` alone, nothing is copied
            to or from the processor, random numbers are the batch's or torch's. It is
            not inherited.
        HAS_CLASSES: whether it takes the number of its target's classes as a third
            argument; what it gives is what its loss continues with, not their scores.
        HAS_OWN_START: whether it sets its parameters itself, where others of latflow
            start as `latflow.nnet.graph.initialize` says.

    Args:
        shape: the shape of the input.
    """

    OPTIONS: ClassVar[type[Options]] = Options
    COMBINE: ClassVar[str] = "concat"
    STACK: ClassVar[str | None] = None
    IS_DEEP: ClassVar[bool] = True
    USES_CONTEXT: ClassVar[bool] = False
    PADS_ZEROS: ClassVar[bool] = False
    HAS_STATE: ClassVar[bool] = False
    IN_LOOPS: ClassVar[bool] = False
    IS_CAPTURABLE: ClassVar[bool] = False
    HAS_CLASSES: ClassVar[bool] = False
    HAS_OWN_START: ClassVar[bool] = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.context = Context()
        self.keeps_state = False

    @property
    def state_form(self) -> str:
        """What a state is of; layers of equal forms can begin with each other's."""
        return "none"

    def learning_rate_factors(self) -> dict[str, float]:
        """Return factors on the learning rate, by parameter; 1 for the others."""
        return {}

    def at_step(self, step: int) -> None:
        """Do what falls due before a step of the training, counted from 1.

        It may free parameters, or let them stay (`requires_grad`), that had a gradient
        when the training began.
        """

    @abstractmethod
    def forward(self, batch: Padded) -> Padded:
        """Compute the output frames of a batch."""

    def can_stream(self, *, has_context: bool) -> bool:
        """Return whether `stream` gives what `forward` gives the whole sequence.

        Layers that use up context do; where zeros stand beyond the ends, those that see
        each frame alone, or say so by `PADS_ZEROS`.

        Args:
            has_context: whether the network has frames of context beyond the ends.
        """
        is_same = has_context or self.PADS_ZEROS or self.context == Context()
        return self.USES_CONTEXT and is_same

    def stream(self, piece: Piece) -> Piece:
        """Compute the output frames of a stream whose context has come.

        Frames that are still to be seen are kept, and no others: this is called in
        place of `forward`, in evaluation, for layers that `can_stream`.
        """
        return windowed(self, piece, self.context, self.shape.dim)


def windowed(
    layer: Callable[[Padded], Padded], piece: Piece, context: Context, dim: int
) -> Piece:
    """Compute the output frames of a stream whose context has come.

    Args:
        layer: uses up context.
        piece: what has come.
        context: of the layer.
        dim: numbers of its output frames.
    """
    count, before = piece.values.shape[1], None
    if context != Context():
        assert context.left is not None
        assert context.right is not None
        before = context.left
        piece, count = piece.window(before, context.right, context.stride)
    values = piece.values
    if not count:
        return piece.with_values(values.new_empty(len(values), 0, dim))
    lengths = torch.full((len(values),), values.shape[1])
    return piece.with_values(layer(Padded(values, lengths, None, before)).values)


class LayerError(ValueError):
    """Options that do not fit the input's shape; the network adds the layer's name."""


def check_result(layer: Layer, inputs: tuple[Padded], found: Padded) -> None:
    """Refuse an output of a layer that does not have the shape that it declares.

    Raises:
        ValueError: it is not a `Padded`, or has other sizes.
    """
    if not isinstance(found, Padded):
        raise TypeError(f"gives {type(found).__name__}, not a Padded batch")
    dim, given = layer.shape.dim, found.values.shape
    if len(given) != 3 or given[2] != dim:
        raise ValueError(f"gives numbers of shape {[*given]}, and says {dim} a frame")
    if int(found.lengths.max()) != given[1]:
        frames = int(found.lengths.max())
        raise ValueError(f"gives {given[1]} frames, and says {frames}")
    expected = -(-inputs[0].lengths // layer.context.stride)
    if inputs[0].before is None and not torch.equal(found.lengths, expected):
        raise ValueError(
            f"gives {found.lengths.tolist()} frames of {inputs[0].lengths.tolist()}, "
            f"and says one in {layer.context.stride}"
        )
