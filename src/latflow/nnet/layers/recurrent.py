"""Recurrent layers: LSTM, GRU, associative LSTM; forward, backward or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.associative import AssociativeLstm
from latflow.nnet.options import NumLayers, Size
from latflow.options import Options, PositiveInt


class RecurrentOptions(Options):
    """Options of `Recurrent`."""

    size: Size
    unit: Literal["lstm", "gru", "associative"] = "lstm"
    """kind of cell; `associative`: LSTM whose memory is read and written by keys"""
    direction: Literal["forward", "backward", "bidirectional"] = "bidirectional"
    """way through time"""
    num_layers: NumLayers = 1
    dropout: Annotated[float, Field(ge=0, le=0.99)] = 0.0
    """share of numbers dropped between the stack's layers"""
    projection: PositiveInt | None = None
    """numbers after a projection (lstm)"""
    copies: PositiveInt | None = None
    """redundant copies of the memory (associative, where null is 4)"""


class Recurrent(Layer):
    """A stack of LSTM, GRU or associative LSTM layers.

    `bidirectional` gives 2 x `size` numbers a frame (forward, then backward). A
    backward pass starts at each sequence's own last frame, never in its padding.

    With `initial_state: <layer>` it begins with the state that another layer of this
    class, of the same unit, sizes, layers and number of directions, ended in, instead
    of zeros: a forward layer ends at a sequence's last frame, a backward one at its
    first. So it sees all frames, and can't be streamed (unit lstm or gru).

    Source: Hochreiter & Schmidhuber 1997 (LSTM, with forget gate), Cho et al. 2014
    (GRU), Danihelka et al. 2016 (`associative`, see `AssociativeLstm`); `projection`:
    Sak, Senior & Beaufays 2014 (LSTMP).
    """

    STACK: ClassVar[str | None] = "num_layers"
    HAS_STATE: ClassVar[bool] = True
    IN_LOOPS: ClassVar[bool] = True
    OPTIONS = RecurrentOptions

    def __init__(self, shape: Shape, options: RecurrentOptions) -> None:
        super().__init__(shape)
        size, projection = options.size, options.projection
        arguments = {"proj_size": projection} if projection else {}
        if projection and (options.unit != "lstm" or projection >= size):
            raise LayerError("projection needs unit lstm and a projection below size")
        if options.copies and options.unit != "associative":
            raise LayerError("copies need unit associative")
        self.is_backward = options.direction == "backward"
        is_both = options.direction == "bidirectional"
        num_layers = options.num_layers
        self.step = 2 if is_both else 1  # directions
        if options.unit == "associative":
            dims = [shape.dim] + [self.step * size] * (num_layers - 1)
            self.dropout, self.rnn = options.dropout, nn.ModuleList()
            for dim in [dim for dim in dims for _ in range(self.step)]:
                self.rnn.append(AssociativeLstm(dim, size, options.copies or 4))
        else:
            # torch drops between the layers only, and warns where there is one layer
            self.dropout = options.dropout if num_layers > 1 else 0.0
            self.rnn = (nn.LSTM if options.unit == "lstm" else nn.GRU)(
                shape.dim,
                size,
                num_layers,
                batch_first=True,
                bidirectional=is_both,
                dropout=self.dropout,
                **arguments,
            )
        self.shape = Shape((projection or size) * (2 if is_both else 1))
        self.context = Context(0 if self.is_backward else None, None)
        if options.direction == "forward":
            self.context = Context(None, 0)

    @property
    def state_form(self) -> str:
        """What a state is of; an associative memory is not handed on."""
        if isinstance(self.rnn, nn.ModuleList):
            return "none"
        kind = "lstm" if isinstance(self.rnn, nn.LSTM) else "gru"
        sizes = f"{self.rnn.num_layers} x {self.step} x {self.rnn.hidden_size}"
        projected = f", projected to {self.rnn.proj_size}" if self.rnn.proj_size else ""
        return f"{kind} {sizes}{projected} (layers, directions, size)"

    def forward(self, batch: Padded, state: Tensor | None = None) -> Padded:
        """Run the stack over each sequence, from a state [B, S] or from zeros."""
        values = batch.values
        if self.is_backward:
            values = reverse(values, batch)
        if values.is_cpu and torch.is_autocast_enabled("cpu"):
            # Only some processors have recurrences in half precision; where they lack
            # them, autocast ends in an error.
            with torch.autocast("cpu", enabled=False):
                values, state = self._run(values.float(), batch, state)
        else:
            values, state = self._run(values, batch, state)
        if self.is_backward:
            values = reverse(values, batch)
        return replace(batch.with_values(values), state=state)

    def _run(
        self, values: Tensor, batch: Padded, state: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Run over [B, T, D]; return what it gives, and its state where it is kept."""
        if state is None and not self.keeps_state:
            return self._run_from_zero(values, batch), None
        rnn = self.rnn
        assert not isinstance(rnn, nn.ModuleList)
        start = None if state is None else self._unpacked(state.to(values.dtype))
        if batch.padding is None:
            result, end = rnn(values, start)
        else:
            packed = pack_padded_sequence(
                values, batch.lengths, batch_first=True, enforce_sorted=False
            )
            result, end = rnn(packed, start)
            total = values.shape[1]
            result, _ = pad_packed_sequence(
                result, batch_first=True, total_length=total
            )
        parts = end if isinstance(end, tuple) else (end,)
        return result, torch.cat([part.movedim(0, 1).flatten(1) for part in parts], 1)

    def _unpacked(self, state: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return a state [B, S] as torch wants it, [layers x directions, B, size]."""
        rnn = self.rnn
        assert not isinstance(rnn, nn.ModuleList)
        size, number = rnn.hidden_size, rnn.num_layers * self.step
        sizes = [size] if isinstance(rnn, nn.GRU) else [rnn.proj_size or size, size]
        parts = state.split([number * part for part in sizes], 1)
        unpacked = [
            part.unflatten(1, (number, -1)).movedim(1, 0).contiguous() for part in parts
        ]
        return unpacked[0] if isinstance(rnn, nn.GRU) else tuple(unpacked)

    def _run_from_zero(self, values: Tensor, batch: Padded) -> Tensor:
        """Run over [B, T, D] in the fastest way that keeps padding out."""
        rnn = self.rnn
        if isinstance(rnn, nn.ModuleList):
            return self._run_padded(values, batch, list(rnn))
        if batch.padding is None:
            return rnn(values)[0]
        if values.is_cpu:
            kernel = partial(_one_direction, rnn, is_training=self.training)
            runs = [partial(kernel, weights) for weights in rnn.all_weights]
            return self._run_padded(values, batch, runs)
        packed = pack_padded_sequence(
            values, batch.lengths, batch_first=True, enforce_sorted=False
        )
        result, _ = rnn(packed)
        total = values.shape[1]
        return pad_packed_sequence(result, batch_first=True, total_length=total)[0]

    def _run_padded(
        self, values: Tensor, batch: Padded, runs: Sequence[Callable[[Tensor], Tensor]]
    ) -> Tensor:
        """Run through the padding, which comes last in either direction.

        On CPUs oneDNN takes no packed sequences, and torch's own loop over them takes
        up to twice the time of a loop over all frames.

        Args:
            values: [B, T, D].
            batch: the lengths.
            runs: from the first frame to the last of layer 0, layer 0 backward, layer
                1, ...
        """
        for first in range(0, len(runs), self.step):
            if first:
                values = functional.dropout(values, self.dropout, self.training)
            outputs = [runs[first](values)]
            if self.step == 2:
                back = runs[first + 1](reverse(values, batch))
                outputs.append(reverse(back, batch))
            values = torch.cat(outputs, 2)
        return values


def _one_direction(
    rnn: nn.LSTM | nn.GRU,
    weights: list[nn.Parameter],
    values: Tensor,
    *,
    is_training: bool,
) -> Tensor:
    """Return one layer from the first frame to the last of [B, T, D]."""
    cell = values.new_zeros(1, len(values), rnn.hidden_size)
    plain = {
        "has_biases": True,
        "num_layers": 1,
        "dropout": 0.0,
        "train": is_training,
        "bidirectional": False,
        "batch_first": True,
    }
    if isinstance(rnn, nn.GRU):
        return torch.gru(values, cell, tuple(weights), **plain)[0]
    state = values.new_zeros(1, len(values), rnn.proj_size or rnn.hidden_size)
    return torch.lstm(values, (state, cell), tuple(weights), **plain)[0]


def reverse(values: Tensor, batch: Padded) -> Tensor:
    """Turn each sequence round in time; its padding stays behind it."""
    if batch.padding is None:
        return values.flip(1)
    times = torch.arange(values.shape[1], device=values.device)
    lengths = batch.lengths_there()[:, None]
    source = torch.where(times < lengths, lengths - 1 - times, times)
    return values.gather(1, source.unsqueeze(2).expand_as(values))
