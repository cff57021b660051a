"""Two-dimensional LSTM: recurrence over time and frequency (or rows of an image)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import Context, Layer, LayerError, Padded, Shape
from latflow.nnet.layers.recurrent import reverse
from latflow.options import Options, PositiveInt

_GATES = 5  # input, forget, output, share of the frame before, candidate
_FORGET = 1  # place of the forget gate


class MdLstmOptions(Options):
    """Options of `MdLstm`."""

    size: PositiveInt
    """numbers (maps) that each direction gives at each frequency"""
    directions: Literal[1, 2, 4] = 4
    """corners that it starts from: 1 the first frame's first frequency, 2 that of the
    last frame too, 4 all"""
    combine: Literal["mean", "concat"] = "mean"
    """what becomes of the directions (RETURNN: average, concat)"""
    channels: PositiveInt | None = None
    """maps of the input where it does not say (an image has 1; frames are its columns)
    """


class MdLstm(Layer):
    """LSTM over time and frequency at once (multidimensional LSTM, RETURNN's `mdlstm`).

    The numbers of a frame are `[channels, frequencies]`; the output's are `[size,
    frequencies]` (with `concat` of n directions `[n size, frequencies]`). The cell at
    frame t and frequency f sees those at (t - 1, f) and (t, f - 1), in the stable form
    whose memory is a mean of theirs:

        c = forget * (share * c(t - 1, f) + (1 - share) * c(t, f - 1)) + input * g
        h = output * tanh(c)

    All gates are sigmoids, and g a tanh, of what is linear in x(t, f), h(t - 1, f) and
    h(t, f - 1). A direction from the last frame starts at each sequence's own.

    Source: Graves, Fernandez & Schmidhuber 2007; the stable cell: Leifert et al. 2016,
    Voigtlaender, Doetsch & Ney 2016 (also the order of work by diagonals).
    """

    OPTIONS = MdLstmOptions

    def __init__(self, shape: Shape, options: MdLstmOptions) -> None:
        super().__init__(shape)
        self.channels = options.channels or shape.channels
        if shape.dim % self.channels:
            raise LayerError(f"{shape.dim} numbers are not {self.channels} equal maps")
        count, size = options.directions, options.size
        self.size, self.is_mean = size, options.combine == "mean"
        # whether time and frequency run backward
        corners = [(False, False), (True, False), (False, True), (True, True)]
        self.corners = corners[:count]
        width = _GATES * size
        self.input = nn.Parameter(torch.empty(count, self.channels, width))
        self.recurrent = nn.Parameter(torch.empty(count, 2 * size, width))
        self.bias = nn.Parameter(torch.zeros(count, width))
        with torch.no_grad():
            for weights in (self.input, self.recurrent):
                # as Glorot & Bengio 2010, each gate by itself
                bound = (6.0 / (weights.shape[1] + size)) ** 0.5
                weights.uniform_(-bound, bound)
            self.bias[:, _FORGET * size : (_FORGET + 1) * size] = 1.0
        maps = size if self.is_mean else count * size
        self.shape = Shape(maps * (shape.dim // self.channels), maps)
        self.context = Context(None, 0 if count == 1 else None)

    def forward(self, batch: Padded) -> Padded:
        """Run over the plane from each corner: [B, T, C F] -> [B, T, maps F]."""
        turned = [self._turned(batch.values, batch, c) for c in self.corners]
        planes = torch.stack(turned).unflatten(3, (self.channels, -1))
        found = self._run(planes.transpose(3, 4)).transpose(3, 4).flatten(3)
        pairs = zip(found, self.corners, strict=True)
        outputs = [self._turned(values, batch, corner) for values, corner in pairs]
        if not self.is_mean:
            return batch.with_values(torch.cat(outputs, 2))
        return batch.with_values(torch.stack(outputs).mean(0))

    def _turned(
        self, values: Tensor, batch: Padded, corner: tuple[bool, bool]
    ) -> Tensor:
        """Turn sequences [B, T, C F] round in time, in frequency, or both."""
        in_time, in_frequency = corner
        if in_time:
            values = reverse(values, batch)
        if in_frequency:
            num_frequencies = self.shape.dim // self.shape.channels
            values = values.unflatten(2, (-1, num_frequencies)).flip(3).flatten(2)
        return values

    def _run(self, planes: Tensor) -> Tensor:
        """Run from the first cell: [R, B, T, F, C] of R corners -> [R, B, T, F, H].

        The cells of a diagonal t + f = d depend on the one before alone, and are one
        matrix product. Cells before the first frame, which diagonals have too, get
        zeros, and with no state and no bias they stay zero.
        """
        count, batch, frames, height, channels = planes.shape
        flat = planes.reshape(count, -1, channels)
        gates = torch.baddbmm(self.bias[:, None], flat, self.input)
        gates = gates.view(count, batch, frames, height, -1)
        diagonals = skewed(gates.transpose(2, 3)).unbind(3)  # each [R, B, F, 5 H]
        state = planes.new_zeros(count, batch, height, self.size)
        cell, outputs = state, []
        for diagonal in diagonals:
            seen = torch.cat([state, _below(state)], 3).flatten(1, 2)
            summed = torch.baddbmm(diagonal.flatten(1, 2), seen, self.recurrent)
            summed = summed.to(cell.dtype).view(count, batch, height, -1)
            sigmoids = torch.sigmoid(summed[..., : 4 * self.size])
            entering, forget, leaving, share = sigmoids.chunk(4, 3)
            candidate = torch.tanh(summed[..., 4 * self.size :])
            kept = torch.lerp(_below(cell), cell, share)
            cell = forget * kept + entering * candidate
            state = leaving * torch.tanh(cell)
            outputs.append(state)
        return unskewed(torch.stack(outputs, 3), frames).transpose(2, 3)


def _below(values: Tensor) -> Tensor:
    """Return what stands one frequency lower, zero below the lowest: [..., F, H]."""
    return functional.pad(values, (0, 0, 1, -1))


def skewed(rows: Tensor) -> Tensor:
    """Shift row f by f: [R, B, F, T, K] -> [R, B, F, T + F - 1, K], zeros around."""
    height, frames = rows.shape[2:4]
    flat = functional.pad(rows, (0, 0, 0, height)).flatten(2, 3)
    return flat[:, :, : height * (frames + height - 1)].unflatten(2, (height, -1))


def unskewed(rows: Tensor, frames: int) -> Tensor:
    """Undo `skewed`: [R, B, F, T + F - 1, K] -> [R, B, F, T, K]."""
    height = rows.shape[2]
    flat = functional.pad(rows.flatten(2, 3), (0, 0, 0, height))
    return flat.unflatten(2, (height, -1))[:, :, :, :frames]
