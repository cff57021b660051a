"""Two-dimensional LSTM, cell by cell: the twin of `latflow.nnet.layers.MdLstm`."""

from __future__ import annotations

import torch
from torch import Tensor


def mdlstm(layer, values: Tensor, length: int) -> Tensor:
    """Run over one sequence [T, C F]; returns [length, maps F]."""
    plane = values[:length].unflatten(1, (layer.channels, -1))  # [T, C, F]
    found = []
    for r, (in_time, in_frequency) in enumerate(layer.corners):
        axes = [axis for axis, turn in ((0, in_time), (2, in_frequency)) if turn]
        out = _from_first(layer, r, plane.flip(axes))
        found.append(out.flip(axes).flatten(1))
    return torch.stack(found).mean(0) if layer.is_mean else torch.cat(found, 1)


def _from_first(layer, r: int, plane: Tensor) -> Tensor:
    """Run from the first cell of a plane [T, C, F]; returns [T, H, F]."""
    frames, _, height = plane.shape
    nothing = plane.new_zeros(layer.size)
    state, cell = {}, {}
    for t in range(frames):
        for f in range(height):
            before, below = (t - 1, f), (t, f - 1)
            seen = torch.cat([state.get(before, nothing), state.get(below, nothing)])
            gates = plane[t, :, f] @ layer.input[r] + seen @ layer.recurrent[r]
            i, forget, o, share, g = (gates + layer.bias[r]).chunk(5)
            share = share.sigmoid()
            kept = share * cell.get(before, nothing)
            kept = kept + (1.0 - share) * cell.get(below, nothing)
            cell[t, f] = forget.sigmoid() * kept + i.sigmoid() * g.tanh()
            state[t, f] = o.sigmoid() * cell[t, f].tanh()
    rows = [torch.stack([state[t, f] for f in range(height)], 1) for t in range(frames)]
    return torch.stack(rows)
