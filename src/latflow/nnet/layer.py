"""What a layer is: the protocol of the built-in classes and of a user's own.

A layer is a torch module made of the shape of its input and its checked options::

    class Gain(Layer):
        '''Multiply by a learnt factor.'''

        OPTIONS = {"start": Option("float", "the first value of the factor", 1.0)}

        def __init__(self, shape: Shape, options: Options) -> None:
            super().__init__(shape)
            self.factor = nn.Parameter(torch.tensor(options["start"]))

        def forward(self, batch: Padded) -> Padded:
            return batch.with_values(batch.values * self.factor)

and a description names it by its import path, `class: my.module.Gain`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from latflow.nnet.options import OptionTable
from latflow.nnet.padded import Padded

Options = Mapping[str, Any]


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

    Output frame t sees the input frames stride * t - left ... stride * t + right.

    Attributes:
        left: frames before; None = all.
        right: frames after; None = all.
        stride: input frames an output frame.
    """

    left: int | None = 0
    right: int | None = 0
    stride: int = 1

    def then(self, following: Context) -> Context:
        """The context of two layers, this one first."""
        return Context(
            _reach(self.left, following.left, self.stride),
            _reach(self.right, following.right, self.stride),
            self.stride * following.stride,
        )

    def repeated(self, times: int) -> Context:
        """The context of `times` such layers, one after another."""
        whole = Context()
        for _ in range(times):
            whole = whole.then(self)
        return whole

    def joined(self, other: Context) -> Context:
        """The context of two layers side by side (of equal stride)."""
        return Context(
            _widest(self.left, other.left),
            _widest(self.right, other.right),
            self.stride,
        )


def _reach(first: int | None, second: int | None, stride: int) -> int | None:
    """Frames on one side of two layers in sequence."""
    return None if first is None or second is None else first + stride * second


def _widest(one: int | None, other: int | None) -> int | None:
    """Frames on one side of two layers in parallel."""
    return None if one is None or other is None else max(one, other)


class Layer(nn.Module, ABC):
    """A layer: frames in, frames out.

    A subclass declares `OPTIONS`, takes `(shape, options)` and sets `shape` (what it
    gives) and `context` where they differ from its input's. `forward` must not let
    padding reach a true frame: values beyond the ends are zero when they arrive, and
    `Padded.with_values` makes them zero again. Use of `padding` is needed only where
    zeros are not harmless.

    Class attributes:
        OPTIONS: the options that a description may give.
        COMBINE: how several inputs become one: `concat` (side by side) or `add`.
        STACK: the option that says how many copies stand one after another, if any.
        IS_DEEP: whether layer-wise pretraining counts it as a layer of its own; others
            (a norm, dropout, splicing) come with the layer before them.

    Args:
        shape: the shape of the input.
    """

    OPTIONS: ClassVar[OptionTable] = {}
    COMBINE: ClassVar[str] = "concat"
    STACK: ClassVar[str | None] = None
    IS_DEEP: ClassVar[bool] = True

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.context = Context()

    @abstractmethod
    def forward(self, batch: Padded) -> Padded:
        """Compute the output frames of a batch."""


class LayerError(ValueError):
    """Options that do not fit the input's shape; the network adds the layer's name."""
