"""The decoder of an encoder-decoder network: an LSTM that attends to the encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Layer, LayerError, Padded, Shape
from latflow.nnet.options import Dropout, NumLayers
from latflow.options import Options, PositiveInt

END = 0  # the unit that ends a sequence, and that stands before the first


class Memory(NamedTuple):
    """What N decoders attend to: T frames of D numbers each.

    Attributes:
        values: [N, T, D], the encoder's frames; with several heads projected, a part of
            the D numbers for each.
        keys: [N, T, A], projected for the energies.
        padding: bool [N, T], true beyond the ends.
    """

    values: Tensor
    keys: Tensor
    padding: Tensor

    def take(self, rows: Tensor) -> Memory:
        """Return that of some decoders, int64 [M]."""
        return Memory(*(tensor[rows] for tensor in self))


class DecoderState(NamedTuple):
    """The state of N decoders between two units; L layers of U cells, H heads.

    Attributes:
        hidden, cell: [L, N, U].
        context: [N, D], mean of the memory under the weights.
        weights: [N, H, T], of the last attention, with sum 1 over the frames; 0 before
            the first unit.
    """

    hidden: Tensor
    cell: Tensor
    context: Tensor
    weights: Tensor

    @property
    def attention(self) -> Tensor:
        """The mean of the heads' weights, [N, T]."""
        return self.weights.mean(1)

    def take(self, rows: Tensor) -> DecoderState:
        """Return that of some decoders, int64 [M]."""
        return DecoderState(
            self.hidden[:, rows],
            self.cell[:, rows],
            self.context[rows],
            self.weights[rows],
        )


class AttentionDecoderOptions(Options):
    """Options of `AttentionDecoder`."""

    units: PositiveInt = 256
    """cells of each LSTM layer"""
    num_layers: NumLayers = 1
    embedding: PositiveInt = 64
    """numbers that stand for the unit before"""
    attention: Literal["location", "content"] = "location"
    """what energies depend on beside the decoder's state: the frames (`content`), or
    also where the attention was before (`location`)"""
    heads: PositiveInt = 1
    """heads, each of which attends to its own frames; they share `attention_size` and
    the numbers of a frame evenly"""
    attention_size: PositiveInt = 128
    """numbers that energies are made of"""
    filters: PositiveInt = 10
    """filters over the weights before (location)"""
    reach: PositiveInt = 10
    """frames that a filter sees to each side (location)"""
    dropout: Dropout = 0.0
    sampling: Annotated[float, Field(ge=0, le=1)] = 0.0
    """share of the units in training that follow the decoder's own best guess instead
    of the true unit"""


class AttentionDecoder(Layer):
    """Tell a sequence of units, one after another, from all frames (attention).

    The decoder of "Listen, attend and spell"; it needs `loss: attention`. An LSTM reads
    the unit before and the frames that it attended to, attends to the frames again with
    its new state s, and predicts the next unit or the end of the sequence from both:

        energy(t) = v . tanh(W s + V h(t) + U f(t) + b),  weights = softmax(energy)

    where h(t) is a frame of the input, and f(t), of `location` alone, what filters see
    in the weights before. With several heads each has its part of these numbers,
    weights of its own, and its part of what the frames are then projected to. In
    training the unit before is the true one, but for `sampling`. In a network the layer
    gives its input, which search and loss continue with.

    Source: Chorowski et al. 2015, "Attention-based models for speech recognition"
    (equations 6 to 9); Chan et al. 2016, "Listen, attend and spell"; Bengio et al.
    2015, "Scheduled sampling"; Chiu et al. 2018, "State-of-the-art speech recognition
    with sequence-to-sequence models", section 2.2.1 (heads).
    """

    OPTIONS = AttentionDecoderOptions
    HAS_CLASSES: ClassVar[bool] = True

    def __init__(
        self, shape: Shape, options: AttentionDecoderOptions, num_classes: int
    ) -> None:
        super().__init__(shape)
        size, inner, heads = options.units, options.attention_size, options.heads
        for what, number in (("attention_size", inner), ("the input size", shape.dim)):
            if number % heads:
                raise LayerError(f"{heads} heads do not divide {what} {number}")
        self.heads = heads
        self.sampling = options.sampling
        self.embedding = nn.Embedding(num_classes, options.embedding)
        inputs = [options.embedding + shape.dim] + [size] * (options.num_layers - 1)
        self.cells = nn.ModuleList(nn.LSTMCell(dim, size) for dim in inputs)
        self.query = nn.Linear(size, inner)
        self.key = nn.Linear(shape.dim, inner, bias=False)
        self.value: nn.Linear | None = None
        if heads > 1:
            self.value = nn.Linear(shape.dim, shape.dim, bias=False)
        self.energy = nn.Linear(inner, 1, bias=False)
        self.reach = options.reach
        self.filters: nn.Linear | None = None
        self.location: nn.Linear | None = None
        if options.attention == "location":
            seen = 2 * options.reach + 1
            self.filters = nn.Linear(seen, options.filters, bias=False)
            self.location = nn.Linear(options.filters, inner // heads, bias=False)
        self.joined = nn.Linear(size + shape.dim, size)
        self.dropout = nn.Dropout(options.dropout)
        self.output = nn.Linear(size, num_classes)

    def forward(self, batch: Padded) -> Padded:
        """Return the input: what `memory` is made of."""
        return batch

    def memory(self, values: Tensor, lengths: Tensor) -> Memory:
        """Prepare the encoder's frames.

        Args:
            values: [N, T, D].
            lengths: int64 [N], frames of each sequence.
        """
        times = torch.arange(values.shape[1], device=values.device)
        there = lengths.to(values.device, non_blocking=True)
        padding = times >= there[:, None]
        projected = values if self.value is None else self.value(values)
        return Memory(projected, self.key(values), padding)

    def start(self, memory: Memory) -> DecoderState:
        """Return the state before the first unit."""
        values, (number, num_frames, dim) = memory.values, memory.values.shape
        size = (len(self.cells), number, self.output.in_features)
        return DecoderState(
            values.new_zeros(size),
            values.new_zeros(size),
            values.new_zeros(number, dim),
            values.new_zeros(number, self.heads, num_frames),
        )

    def step(
        self, units: Tensor, state: DecoderState, memory: Memory
    ) -> tuple[Tensor, DecoderState]:
        """Score the next unit.

        Args:
            units: int64 [N], the units before; `END` at the start.
            state: of the decoders.
            memory: what they attend to.

        Returns:
            (scores before the softmax [N, K], the state after; its weights are those
            that the scores were made with).
        """
        values = torch.cat((self.embedding(units), state.context), 1)
        hidden: list[Tensor] = []
        cells: list[Tensor] = []
        before = zip(state.hidden, state.cell, strict=True)
        for layer, pair in zip(self.cells, before, strict=True):
            values, cell = layer(self.dropout(values), pair)
            hidden.append(values)
            cells.append(cell)
        weights = self.attend(values, state.weights, memory)
        parts = memory.values.unflatten(2, (self.heads, -1))
        context = torch.einsum("nht,nthd->nhd", weights, parts).flatten(1)
        joined = torch.tanh(self.joined(torch.cat((values, context), 1)))
        logits = self.output(self.dropout(joined))
        stacked = torch.stack(hidden), torch.stack(cells)
        return logits, DecoderState(*stacked, context, weights)

    def attend(self, query: Tensor, before: Tensor, memory: Memory) -> Tensor:
        """Return the weights of the frames, [N, H, T]; 0 beyond the ends.

        Args:
            query: [N, U], the decoder's states.
            before: [N, H, T], the weights of the last attention.
            memory: the frames.
        """
        inner = memory.keys + self.query(query).unsqueeze(1)
        inner = inner.unflatten(2, (self.heads, -1)).transpose(1, 2)
        if self.filters is not None and self.location is not None:
            reach = (self.reach, self.reach)
            windows = functional.pad(before, reach).unfold(2, 2 * self.reach + 1, 1)
            inner = inner + self.location(self.filters(windows))
        directions = self.energy.weight.view(self.heads, -1, 1)
        energies = (torch.tanh(inner) @ directions).squeeze(3)
        energies = energies.masked_fill(memory.padding.unsqueeze(1), -torch.inf)
        return torch.softmax(energies, 2)

    def teach(self, memory: Memory, units: Tensor) -> Tensor:
        """Score each unit of given sequences, after those before it.

        Args:
            memory: of N sequences.
            units: int64 [N, M], the sequences; what is beyond their ends may be
                anything that is a unit.

        Returns:
            [N, M + 1, K], scores before the softmax; of the unit behind all M last.
        """
        state, logits = self.start(memory), []
        is_drawn = self.training and self.sampling > 0
        before = units.new_full((len(units),), END)
        for position in range(units.shape[1] + 1):
            scores, state = self.step(before, state, memory)
            logits.append(scores)
            if position == units.shape[1]:
                break
            before = units[:, position]
            if is_drawn:
                is_own = torch.rand(len(before), device=before.device) < self.sampling
                before = torch.where(is_own, scores.detach().argmax(1), before)
        return torch.stack(logits, 1)


def padded(
    sequences: Sequence[Sequence[int]], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return sequences of units side by side, and their lengths.

    Returns:
        (int64 [N, M], `END` beyond the ends; int64 [N]).
    """
    lengths = torch.tensor([len(one) for one in sequences])
    units = torch.full((len(sequences), int(lengths.max())), END)
    for row, one in zip(units, sequences, strict=True):
        row[: len(one)] = torch.as_tensor(one)
    there = units.to(device, non_blocking=True)
    return there, lengths.to(device, non_blocking=True)
