"""Conformer layers."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, Padded, Shape, zero
from latflow.nnet.layers.attention import (
    MultiHead,
    StackOptions,
    attention_context,
    attention_mask,
)
from latflow.nnet.layers.convolution import reach
from latflow.nnet.layers.simple import MaskedBatchNorm
from latflow.nnet.streams import Piece
from latflow.options import PositiveInt


class ConformerOptions(StackOptions):
    """Options of `Conformer`."""

    kernel: PositiveInt = 15
    """frames of the convolution"""
    causal: bool = False
    """let the convolution see earlier frames alone"""
    norm: Literal["batch", "layer"] = "batch"
    """norm inside the convolution's part; `layer` makes the passes of a batch
    independent of each other"""


class Conformer(Layer):
    """A stack of conformer blocks.

    Half a feed-forward part, attention, convolution, half a feed-forward part, each
    with its norm before and a residual around, and a norm at the end. The paper's
    attention knows distances: `positions: relative`. Without it positions come from the
    convolution, and from a `positional_encoding` layer before, where wanted.

    To be streamed it has `chunk`, `left_chunks` and `causal: true`: frames see their
    own chunk as a whole, however many blocks there are, and nothing later. Chunks count
    from the first frame.

    Source: Gulati et al. 2020, section 2.
    """

    STACK: ClassVar[str | None] = "num_layers"
    OPTIONS = ConformerOptions

    def __init__(self, shape: Shape, options: ConformerOptions) -> None:
        super().__init__(shape)
        count = options.num_layers
        self.blocks = nn.ModuleList(
            [_ConformerBlock(shape.dim, options) for _ in range(count)]
        )
        self.attention_context = attention_context(options)
        edges = reach(options.kernel, 1, causal=options.causal)
        self.context = self.attention_context.then(Context(*edges)).repeated(count)

    def forward(self, batch: Padded) -> Padded:
        """Run the stack."""
        mask = attention_mask(batch, self.attention_context)
        for block in self.blocks:
            batch = batch.with_values(block(batch.values, mask, batch.padding))
        return batch

    def can_stream(self, *, has_context: bool) -> bool:  # noqa: ARG002
        """Return whether what attention sees is limited."""
        return None not in (self.attention_context.left, self.attention_context.right)

    def stream(self, piece: Piece) -> Piece:
        """Run the stack, each block of which keeps what it has computed."""
        for block in self.blocks:
            assert isinstance(block, _ConformerBlock)
            piece = block.stream(piece, self.attention_context)
        return piece


class _ConformerBlock(nn.Module):
    """One block; see `Conformer`."""

    def __init__(self, dim: int, options: ConformerOptions) -> None:
        super().__init__()
        dropout, wide = options.dropout, options.feed_forward
        self.feed_forward = nn.ModuleList(
            [_feed_forward(dim, wide, dropout) for _ in range(2)]
        )
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = MultiHead(dim, options)
        self.convolution = _ConformerConvolution(dim, options)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, values: Tensor, mask: Tensor | None, padding: Tensor | None
    ) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        first, second = self.feed_forward
        values = values + 0.5 * first(values)
        attended = self.attention(self.attention_norm(values), mask)
        values = values + self.dropout(attended)
        values = values + self.dropout(self.convolution(values, padding))
        return self.norm(values + 0.5 * second(values))

    def stream(self, piece: Piece, context: Context) -> Piece:
        """Map the frames of streams whose context has come."""
        first, second = self.feed_forward
        values = piece.values
        piece = piece.with_values(values + 0.5 * first(values))
        normed = piece.with_values(self.attention_norm(piece.values))
        piece = piece.plus(self.attention.stream(normed, context))
        piece = piece.plus(self.convolution.stream(piece))
        values = piece.values
        return piece.with_values(self.norm(values + 0.5 * second(values)))


def _feed_forward(dim: int, wide: int, dropout: float) -> nn.Sequential:
    """Return the feed-forward part of a conformer block."""
    return nn.Sequential(
        nn.LayerNorm(dim),
        nn.Linear(dim, wide),
        nn.SiLU(),
        nn.Dropout(dropout),
        nn.Linear(wide, dim),
        nn.Dropout(dropout),
    )


class _ConformerConvolution(nn.Module):
    """Gated linear unit, convolution of each number over time, norm, SiLU, linear."""

    def __init__(self, dim: int, options: ConformerOptions) -> None:
        super().__init__()
        self.first_norm = nn.LayerNorm(dim)
        self.gated = nn.Linear(dim, 2 * dim)
        self.edges = reach(options.kernel, 1, causal=options.causal)
        self.conv = nn.Conv1d(dim, dim, options.kernel, groups=dim)
        by_batch = options.norm == "batch"
        self.norm = MaskedBatchNorm(dim) if by_batch else nn.LayerNorm(dim)
        self.output = nn.Linear(dim, dim)

    def forward(self, values: Tensor, padding: Tensor | None) -> Tensor:
        """Map [B, T, D] to [B, T, D]."""
        gated = self._gate(values)
        # norms and offsets have filled the padding: zero it before frames are mixed
        gated = functional.pad(zero(gated, padding).transpose(1, 2), self.edges)
        return self._mix(gated, padding)

    def stream(self, piece: Piece) -> Piece:
        """Map the frames of streams whose context has come."""
        gated = piece.with_values(self._gate(piece.values))
        seen, count = gated.window(*self.edges, 1)
        if not count:
            return seen
        return seen.with_values(self._mix(seen.values.transpose(1, 2), None))

    def _gate(self, values: Tensor) -> Tensor:
        """Return what the convolution sees, [B, T, D]."""
        return functional.glu(self.gated(self.first_norm(values)), -1)

    def _mix(self, gated: Tensor, padding: Tensor | None) -> Tensor:
        """Return what is made of [B, D, T + kernel - 1]: [B, T, D]."""
        mixed = self.conv(gated).transpose(1, 2)
        if isinstance(self.norm, MaskedBatchNorm):
            mixed = self.norm(mixed, padding)
        else:
            mixed = self.norm(mixed)
        return self.output(functional.silu(mixed))
