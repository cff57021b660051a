"""Zipformer layers: attention shared by several parts, at lower frame rates."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape, zero
from latflow.nnet.layers.attention import (
    StackOptions,
    attention_context,
    attention_mask,
    place_scores,
)
from latflow.nnet.layers.convolution import reach
from latflow.nnet.layers.simple import BiasNormalization, swoosh_l, swoosh_r
from latflow.options import PositiveInt

_LEAST = 0.2  # share of what a block gives, beside its input


class ZipformerOptions(StackOptions):
    """Options of `Zipformer`."""

    size: PositiveInt | None = None
    """numbers a frame that the layer gives: the input's, of which the last are left
    out, or which zeros follow; null: as many as the input has"""
    downsampling: PositiveInt = 1
    """frames that the blocks see as one"""
    query: PositiveInt = 32
    """numbers of a head's query"""
    place: PositiveInt = 4
    """numbers of a head that distances are compared with"""
    value: PositiveInt = 12
    """numbers of a head's value"""
    kernel: PositiveInt = 31
    """frames of the convolutions, an odd number"""
    causal: bool = False
    """let convolutions see earlier frames alone"""


class Zipformer(Layer):
    """A stack of zipformer blocks, which may see fewer frames than come in.

    A block computes the weights of its attention once, for three parts: a gated mean of
    one head, and self-attention twice, in each half of the block. Between them stand
    feed-forward parts and convolutions; at the middle and at the end a share of the
    block's input, learnt for each number, takes the place of a part of the result.

    With `downsampling` d the blocks see means of d frames, of learnt weights; their
    results are repeated d times, and go beside the stack's input by such shares. The
    frame rate outside stays what it is; stacks of several d, one after another, are
    the paper's network.

    `chunk`, `left_chunks` and `causal` are as those of `conformer`; chunks are of the
    blocks' frames. Left out of the paper's are dropped blocks and what keeps statistics
    in bounds (balancer, whitener).

    Source: Yao et al. 2024 (Zipformer), sections 3.1 to 3.4.
    """

    STACK: ClassVar[str | None] = "num_layers"
    OPTIONS = ZipformerOptions

    def __init__(self, shape: Shape, options: ZipformerOptions) -> None:
        super().__init__(shape)
        if options.kernel % 2 == 0 and not options.causal:
            raise LayerError(f"kernel must be odd, or causal true: {options.kernel}")
        dim = options.size or shape.dim
        self.shape, self.factor = Shape(dim), options.downsampling
        self.blocks = nn.ModuleList(
            [_Block(dim, options) for _ in range(options.num_layers)]
        )
        self.slower = _Slower(dim, self.factor) if self.factor > 1 else None
        self.attention_context = attention_context(options)
        edges = Context(*reach(options.kernel, 1, causal=options.causal))
        attention = self.attention_context
        one = attention.repeated(2).then(edges).then(attention).then(edges)
        self.context = _repeated(one.repeated(options.num_layers), self.factor)

    def forward(self, batch: Padded) -> Padded:
        """Run the stack: [B, T, D] -> [B, T, size]."""
        dim, factor = self.shape.dim, self.factor
        values = functional.pad(batch.values, (0, dim - batch.values.shape[2]))
        slow = batch.with_values(values)
        if self.slower is not None:
            slow = batch.strided(self.slower(slow), factor)
        mask = attention_mask(slow, self.attention_context)
        for block in self.blocks:
            slow = slow.with_values(block(slow.values, mask, slow.padding))
        if self.slower is None:
            return slow
        found = slow.values.repeat_interleave(factor, 1)[:, : values.shape[1]]
        return batch.with_values(self.slower.bypass(values, found))


class _Slower(nn.Module):
    """Means of d frames by learnt weights, or of fewer at the end; and the way back."""

    def __init__(self, dim: int, factor: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(factor))
        self.bypass = _Bypass(dim)

    def forward(self, batch: Padded) -> Tensor:
        """Map [B, T, D] to [B, ceil(T / d), D]."""
        factor = len(self.weights)
        missing = -batch.values.shape[1] % factor
        there = torch.ones_like(batch.values[:, :, :1])
        weights = self.weights.softmax(0)[:, None]
        total, weight = (
            (
                functional.pad(x, (0, 0, 0, missing)).unflatten(1, (-1, factor))
                * weights
            ).sum(2)
            for x in (batch.values, zero(there, batch.padding))
        )
        # beyond the ends are not frames at all: what is there is masked afterwards
        return total / weight.clamp(min=torch.finfo(weight.dtype).tiny)


def _repeated(context: Context, factor: int) -> Context:
    """Return the context of what sees means of `factor` frames, and is repeated."""
    left, right = (
        None if side is None else side * factor
        for side in (context.left, context.right)
    )
    # all see alike where all is seen
    period = 1 if left is right is None else context.period * factor
    return Context(left, right, period=period)


class _Block(nn.Module):
    """One block; see `Zipformer`."""

    def __init__(self, dim: int, options: ZipformerOptions) -> None:
        super().__init__()
        wide, dropout = options.feed_forward, options.dropout
        self.weights = _AttentionWeights(dim, options)
        self.gated = _GatedMean(dim)
        # the paper's: 3/4, 1 and 5/4 as wide
        self.feed_forward = nn.ModuleList(
            [_FeedForward(dim, n * wide // 4, dropout) for n in (3, 4, 5)]
        )
        self.attention = nn.ModuleList([_Attention(dim, options) for _ in range(2)])
        self.convolution = nn.ModuleList([_Convolution(dim, options) for _ in range(2)])
        self.norm = BiasNormalization(dim)
        self.bypass = nn.ModuleList([_Bypass(dim) for _ in range(2)])
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, values: Tensor, mask: Tensor | None, padding: Tensor | None
    ) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        start, weights = values, self.weights(values, mask)
        for half in range(2):
            if half == 0:
                values = values + self.feed_forward[0](values)
                values = values + self.dropout(self.gated(values, weights[:, :1]))
            attended = self.attention[half](values, weights)
            values = values + self.dropout(attended)
            mixed = self.convolution[half](values, padding)
            values = values + self.dropout(mixed)
            values = values + self.feed_forward[half + 1](values)
            if half == 0:
                values = self.bypass[0](start, values)
        return self.bypass[1](start, self.norm(values))


class _AttentionWeights(nn.Module):
    """Weights of all heads, which several parts use.

    Of frame i for j, each head: softmax of q_i . k_j / sqrt(query) + p_i . P r_(i-j) /
    sqrt(place), r_d sines and cosines of the distance.
    """

    def __init__(self, dim: int, options: ZipformerOptions) -> None:
        super().__init__()
        self.heads, self.dropout = options.heads, options.dropout
        self.sizes = [options.query, options.query]
        self.distances = None
        if options.positions == "relative":
            self.sizes.append(options.place)
            self.distances = nn.Linear(dim, options.heads * options.place, bias=False)
        self.inputs = nn.Linear(dim, options.heads * sum(self.sizes))

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Return weights [B, heads, T, T] of [B, T, D]; see `attention_mask`."""
        split = self.inputs(values).unflatten(2, (self.heads, -1)).transpose(1, 2)
        query, key, *place = split.split(self.sizes, 3)
        scores = query @ key.mT * self.sizes[0] ** -0.5
        if self.distances is not None:
            scores = scores + place_scores(place[0], self.distances, key.shape[2])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        weights = scores.softmax(3)
        return functional.dropout(weights, self.dropout, self.training)


class _Attention(nn.Module):
    """Means of values by given weights, of each head."""

    def __init__(self, dim: int, options: ZipformerOptions) -> None:
        super().__init__()
        self.heads = options.heads
        self.inputs = nn.Linear(dim, options.heads * options.value)
        self.output = nn.Linear(options.heads * options.value, dim)

    def forward(self, values: Tensor, weights: Tensor) -> Tensor:
        """Map [B, T, D] to [B, T, D], by weights [B, heads, T, T]."""
        split = self.inputs(values).unflatten(2, (self.heads, -1)).transpose(1, 2)
        return self.output((weights @ split).transpose(1, 2).flatten(2))


class _GatedMean(nn.Module):
    """The paper's non-linear attention: y * mean(x * tanh(s)), of 3/4 the size."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        inside = max(1, 3 * dim // 4)
        self.inputs = nn.Linear(dim, 3 * inside)
        self.output = nn.Linear(inside, dim)

    def forward(self, values: Tensor, weights: Tensor) -> Tensor:
        """Map [B, T, D] to [B, T, D], by weights [B, 1, T, T]."""
        scale, inner, gate = self.inputs(values).chunk(3, 2)
        mean = weights[:, 0] @ (inner * scale.tanh())
        return self.output(gate * mean)


class _FeedForward(nn.Sequential):
    """Widen, SwooshL, narrow: frame by frame."""

    def __init__(self, dim: int, wide: int, dropout: float) -> None:
        super().__init__(
            nn.Linear(dim, wide), _SwooshL(), nn.Dropout(dropout), nn.Linear(wide, dim)
        )


class _SwooshL(nn.Module):
    """The function as a module."""

    def forward(self, values: Tensor) -> Tensor:
        """Apply it."""
        return swoosh_l(values)


class _Convolution(nn.Module):
    """Gated linear unit, convolution of each number over time, SwooshR, linear."""

    def __init__(self, dim: int, options: ZipformerOptions) -> None:
        super().__init__()
        self.edges = reach(options.kernel, 1, causal=options.causal)
        self.gated = nn.Linear(dim, 2 * dim)
        self.conv = nn.Conv1d(dim, dim, options.kernel, groups=dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, values: Tensor, padding: Tensor | None) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        gated = zero(functional.glu(self.gated(values), -1), padding)
        mixed = self.conv(functional.pad(gated.transpose(1, 2), self.edges))
        return self.output(swoosh_r(mixed.transpose(1, 2)))


class _Bypass(nn.Module):
    """(1 - c) x + c y, number by number; c is learnt, and held in 0.2 ... 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((dim,), 0.5))

    def forward(self, values: Tensor, found: Tensor) -> Tensor:
        """Return [B, T, D] between `values` and `found`."""
        return values + (found - values) * self.scale.clamp(_LEAST, 1.0)
