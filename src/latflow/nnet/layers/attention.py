"""Self-attention and transformer layers."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.convolution import reach
from latflow.nnet.layers.simple import ACTIVATIONS
from latflow.nnet.options import Activation, Dropout, NumLayers
from latflow.nnet.streams import Piece, after
from latflow.options import NonNegativeFloat, NonNegativeInt, Options, PositiveInt


class AttentionOptions(Options):
    """Options of `SelfAttention`, and of all layers with attention."""

    heads: PositiveInt = 4
    """attention heads"""
    dropout: Dropout = 0.0
    look_ahead: Annotated[int, Field(ge=-1)] = -1
    """later frames attended to; -1: all"""
    look_back: Annotated[int, Field(ge=-1)] = -1
    """earlier frames attended to; -1: all"""
    chunk: NonNegativeInt = 0
    """frames of a chunk, which see each other, instead of `look_ahead` and
    `look_back`; 0: none"""
    left_chunks: Annotated[int, Field(ge=-1)] = -1
    """earlier chunks that the frames of a chunk see too; -1: all"""
    positions: Literal["none", "relative"] = "none"
    """what attention knows of places: nothing, or the distance of two frames"""


class StackOptions(AttentionOptions):
    """Options of stacks of layers with attention."""

    num_layers: NumLayers = 1
    feed_forward: PositiveInt = 2048
    """numbers inside the feed-forward"""


def attention_context(options: AttentionOptions) -> Context:
    """Return the frames that one attention sees.

    Raises:
        LayerError: chunks, and a number of frames too.
    """
    if options.chunk:
        if options.look_back >= 0 or options.look_ahead >= 0:
            raise LayerError("chunk takes the place of look_ahead and look_back")
        chunks, size = options.left_chunks, options.chunk
        return Context(None if chunks < 0 else chunks * size, 0, period=size)
    if options.left_chunks >= 0:
        raise LayerError("left_chunks without a chunk")
    back, ahead = options.look_back, options.look_ahead
    return Context(None if back < 0 else back, None if ahead < 0 else ahead)


def attention_mask(batch: Padded, context: Context) -> Tensor | None:
    """Return which frames a frame may see: bool [B or 1, 1, T, T]; None = all.

    Every frame sees itself, padding too: a softmax over nothing would be NaN.
    """
    mask = None
    num_frames, device = batch.values.shape[1], batch.values.device
    if batch.padding is not None:
        mask = ~batch.padding.transpose(1, 2).unsqueeze(1)
    if context.left is not None or context.right is not None:
        times = torch.arange(num_frames, device=device)
        near = _near(times, times, context)
        mask = near if mask is None else mask & near
    if mask is None:
        return None
    itself = torch.eye(num_frames, dtype=torch.bool, device=device)
    return (mask | itself).reshape(-1, 1, num_frames, num_frames)


def _near(times: Tensor, seen: Tensor, context: Context) -> Tensor:
    """Return which frames of the times [S] those of the times [T] see: bool [T, S]."""
    begin = times // context.period * context.period  # of each frame's chunk
    distance = seen[None, :] - begin[:, None]
    near = torch.ones_like(distance, dtype=torch.bool)
    if context.left is not None:
        near &= distance >= -context.left
    if context.right is not None:
        near &= distance < context.period + context.right
    return near


class MultiHead(nn.Module):
    """Scaled dot-product self-attention with several heads.

    With relative positions the score of frame i for frame j is, of each head,

        ((q_i + u) . k_j + (q_i + v) . P r_(i - j)) / sqrt(D / heads),

    where r_d are sines and cosines of the distance d, P a linear map, and u and v are
    learnt.

    Source: Vaswani et al. 2017, section 3.2; relative positions: Dai et al. 2019
    (Transformer-XL), section 3.3, in both directions as in Gulati et al. 2020.
    """

    def __init__(self, dim: int, options: AttentionOptions) -> None:
        super().__init__()
        heads = options.heads
        if dim % heads:
            raise LayerError(f"{heads} heads do not divide the input size {dim}")
        self.heads, self.dropout = heads, options.dropout
        self.inputs = nn.Linear(dim, 3 * dim)
        self.output = nn.Linear(dim, dim)
        self.distances = None
        if options.positions == "relative":
            self.distances = nn.Linear(dim, dim, bias=False)  # P
            self.content = nn.Parameter(torch.zeros(heads, 1, dim // heads))  # u
            self.place = nn.Parameter(torch.zeros(heads, 1, dim // heads))  # v

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attend within each sequence of [B, T, D]; `mask` as `attention_mask`'s."""
        return self._attend(*self._split(values), mask)

    def stream(self, piece: Piece, context: Context) -> Piece:
        """Attend from the frames of streams whose context has come.

        Of all that they see, and that frames to come will see, keys and values are
        kept.

        Args:
            piece: the next frames.
            context: that a frame attends to, not unlimited.
        """
        left, right, period = context.left, context.right, context.period
        assert left is not None
        assert right is not None
        query, key, value = self._split(piece.values)
        kept = piece.run.recall()
        if kept is not None:
            query, key, value = (
                after(*pair, dim=2)
                for pair in zip(kept, (query, key, value), strict=True)
            )
        # What is kept begins with a chunk: times are counted from there.
        end = key.shape[2]
        first = end - query.shape[2]
        ready = end
        if not piece.run.is_last:
            ready = max(first, (end - right) // period * period)
        drop = max(0, ready - left)
        piece.run.keep(
            query[:, :, ready - first :], key[:, :, drop:], value[:, :, drop:]
        )
        if ready == first:
            return piece.with_values(piece.values[:, :0])
        times = torch.arange(end, device=key.device)
        mask = _near(times[first:ready], times, context)
        return piece.with_values(
            self._attend(query[:, :, : ready - first], key, value, mask, first)
        )

    def _split(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, [B, heads, T, D / heads] each."""
        split = self.inputs(values).unflatten(2, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)
        return query, key, value

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        first: int = 0,
    ) -> Tensor:
        """Return the results of T queries, of which number 0 is at the key `first`.

        Args:
            query: [B, heads, T, D / heads].
            key: [B, heads, S, D / heads].
            value: likewise.
            mask: bool, [..., T, S], which keys a query sees; None for all.
            first: see above.
        """
        if self.distances is not None:
            place, content = (v.to(query.dtype) for v in (self.place, self.content))
            places = place_scores(query + place, self.distances, key.shape[2], first)
            if mask is not None:
                places = places.masked_fill(~mask, -math.inf)
            query, mask = query + content, places
        result = functional.scaled_dot_product_attention(
            query, key, value, mask, self.dropout if self.training else 0.0
        )
        return self.output(result.transpose(1, 2).flatten(2))


def place_scores(
    query: Tensor, distances: nn.Linear, num_keys: int, first: int = 0
) -> Tensor:
    """Return the part of scores that depends on distances: q_i . P r_(i - j) / sqrt(D).

    Args:
        query: [B, heads, T, D], number 0 of which is at the key `first`.
        distances: P, of sines and cosines to heads x D numbers.
        num_keys: S.
        first: see above.

    Returns:
        [B, heads, T, S].
    """
    heads, num_frames = query.shape[1:3]
    # of the last query from the first key, ..., of the first from the last
    times = torch.arange(
        first + num_frames - 1, first - num_keys, -1, device=query.device
    )
    places = distances(sinusoids(times, distances.in_features).to(query.dtype))
    places = places.unflatten(1, (heads, -1)).permute(1, 2, 0)
    scores = query @ places * query.shape[3] ** -0.5  # [B, heads, T, T + S - 1]
    # row i begins with its distance from the first key, in column T - 1 - i: read
    # rows one shorter
    flat = functional.pad(scores, (1, 0)).flatten(2)[..., num_frames:]
    shifted = flat.unflatten(2, (num_frames, num_frames + num_keys - 1))
    return shifted[..., :num_keys]


class SelfAttention(Layer):
    """Multi-head self-attention alone, without norm or residual (see `add`)."""

    OPTIONS = AttentionOptions

    def __init__(self, shape: Shape, options: AttentionOptions) -> None:
        super().__init__(shape)
        self.attention = MultiHead(shape.dim, options)
        self.context = attention_context(options)

    def forward(self, batch: Padded) -> Padded:
        """Attend within each sequence."""
        mask = attention_mask(batch, self.context)
        return batch.with_values(self.attention(batch.values, mask))

    def can_stream(self, *, has_context: bool) -> bool:  # noqa: ARG002
        """Return whether what attention sees is limited."""
        return None not in (self.context.left, self.context.right)

    def stream(self, piece: Piece) -> Piece:
        """Attend from the frames whose context has come."""
        return self.attention.stream(piece, self.context)


class PositionalEncodingOptions(Options):
    """Options of `PositionalEncoding`."""

    dropout: Dropout = 0.0
    scale: NonNegativeFloat = 1.0
    """factor of the sines and cosines"""


class PositionalEncoding(Layer):
    """Add sines and cosines of the frame's number.

    Source: Vaswani et al. 2017, section 3.5.
    """

    IS_DEEP: ClassVar[bool] = False
    OPTIONS = PositionalEncodingOptions

    def __init__(self, shape: Shape, options: PositionalEncodingOptions) -> None:
        super().__init__(shape)
        self.scale = options.scale
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, batch: Padded) -> Padded:
        """Add the encoding."""
        _, num_frames, dim = batch.values.shape
        times = torch.arange(num_frames, device=batch.values.device)
        encoding = self.scale * sinusoids(times, dim)
        values = batch.values + encoding.to(batch.values.dtype)
        return batch.with_values(self.dropout(values))


def sinusoids(times: Tensor, dim: int) -> Tensor:
    """Return the sines and cosines of times, which may be below 0.

    Args:
        times: integers [T].
        dim: numbers a time, D.

    Returns:
        float32 [T, D]: sin, cos of t / 10000^(2i / D) in columns 2i, 2i + 1.
    """
    even = torch.arange(0, dim, 2, dtype=torch.float32, device=times.device)
    angles = times.float()[:, None] * torch.exp(even * (-math.log(10000.0) / dim))
    return torch.stack((angles.sin(), angles.cos()), 2).flatten(1)[:, :dim]


class TransformerOptions(StackOptions):
    """Options of `Transformer`."""

    kernel: NonNegativeInt = 3
    """frames of the convolution; 0: none"""
    pre_norm: bool = False
    """norms before the parts, not after"""
    activation: Activation = "relu"


class Transformer(Layer):
    """A stack of encoder layers, each followed by a convolution over time.

    As PyKaldi2's `TransformerAM`: norms after the sums, then ReLU of a convolution of
    `kernel` frames (0: none), no position encoding. The input's size is the model's; a
    `linear` layer before, and a `layer_norm` behind, are layers of the description. Of
    n layers, look-ahead is n (`look_ahead` + kernel // 2) frames.

    Source: Vaswani et al. 2017, section 3.1; PyKaldi2 `models/transformer.py`.
    """

    STACK: ClassVar[str | None] = "num_layers"
    OPTIONS = TransformerOptions

    def __init__(self, shape: Shape, options: TransformerOptions) -> None:
        super().__init__(shape)
        count, kernel = options.num_layers, options.kernel
        encoders = [_EncoderLayer(shape.dim, options) for _ in range(count)]
        self.encoders = nn.ModuleList(encoders)
        self.edges = reach(max(1, kernel), 1, causal=False)
        self.convolutions = nn.ModuleList(
            [
                nn.Conv1d(shape.dim, shape.dim, kernel)
                for _ in range(count if kernel else 0)
            ]
        )
        self.attention_context = attention_context(options)
        one = self.attention_context.then(Context(*self.edges))
        self.context = one.repeated(count)

    def forward(self, batch: Padded) -> Padded:
        """Run the stack."""
        mask = attention_mask(batch, self.attention_context)
        for index, encoder in enumerate(self.encoders):
            batch = batch.with_values(encoder(batch.values, mask))
            if self.convolutions:
                values = functional.pad(batch.values.transpose(1, 2), self.edges)
                values = functional.relu(self.convolutions[index](values))
                batch = batch.with_values(values.transpose(1, 2))
        return batch


class _EncoderLayer(nn.Module):
    """Attention and feed-forward, each with residual and norm."""

    def __init__(self, dim: int, options: TransformerOptions) -> None:
        super().__init__()
        self.pre_norm = options.pre_norm
        self.attention = MultiHead(dim, options)
        self.wide = nn.Linear(dim, options.feed_forward)
        self.back = nn.Linear(options.feed_forward, dim)
        self.activation = ACTIVATIONS[options.activation]
        self.norms = nn.ModuleList([nn.LayerNorm(dim), nn.LayerNorm(dim)])
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, values: Tensor, mask: Tensor | None) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        first, second = self.norms
        if self.pre_norm:
            values = values + self.dropout(self.attention(first(values), mask))
            return values + self.dropout(self._feed_forward(second(values)))
        values = first(values + self.dropout(self.attention(values, mask)))
        return second(values + self.dropout(self._feed_forward(values)))

    def _feed_forward(self, values: Tensor) -> Tensor:
        """Widen, activate, narrow: frame by frame."""
        return self.back(self.dropout(self.activation(self.wide(values))))
