"""The two-dimensional LSTM by diagonals, and cell by cell, forward and backward.

The naive peer loops over the cells of the plane as a torch program without kernels of
its own would (one matrix product a cell, for all sequences of the batch and corners);
there is no MDLSTM for PyTorch to compare with. Prints JSON.

    python benchmarks/mdlstm.py --frames 100 --frequencies 40
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
from timing import Stopwatch
from torch import Tensor

from latflow.nnet.layer import Padded, Shape
from latflow.nnet.layers.multidimensional import MdLstm, MdLstmOptions


def cell_by_cell(layer: MdLstm, values: Tensor) -> Tensor:
    """Run over sequences of one length [B, T, F] (one map), as the layer does."""
    corners = []
    for r, (in_time, in_frequency) in enumerate(layer.corners):
        axes = [axis for axis, turn in ((1, in_time), (2, in_frequency)) if turn]
        plane = values.flip(axes)
        nothing = plane.new_zeros(len(plane), layer.size)
        states: dict[tuple[int, int], Tensor] = {}
        cells: dict[tuple[int, int], Tensor] = {}
        for t in range(plane.shape[1]):
            for f in range(plane.shape[2]):
                before, below = (t - 1, f), (t, f - 1)
                seen = torch.cat(
                    [states.get(before, nothing), states.get(below, nothing)], 1
                )
                gates = torch.addmm(layer.bias[r], seen, layer.recurrent[r])
                gates = gates + plane[:, t, f, None] * layer.input[r]
                entering, forget, leaving, share, new = gates.chunk(5, 1)
                kept = torch.lerp(
                    cells.get(below, nothing),
                    cells.get(before, nothing),
                    share.sigmoid(),
                )
                cell = forget.sigmoid() * kept + entering.sigmoid() * new.tanh()
                cells[t, f], states[t, f] = cell, leaving.sigmoid() * cell.tanh()
        rows = [
            torch.stack([states[t, f] for f in range(plane.shape[2])], 2)
            for t in range(plane.shape[1])
        ]
        corners.append(torch.stack(rows, 1).flip([a + (a == 2) for a in axes]))
    return torch.stack(corners).mean(0).flatten(2)


def seconds(run: Callable[[], Tensor], repeats: int, device: torch.device) -> float:
    """Time forward and backward passes, the fastest of some."""
    found = []
    for _ in range(repeats):
        with Stopwatch() as spent:
            run().square().sum().backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
        found.append(spent.wall)
    return min(found)


def main() -> None:
    """Time both, and compare their results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--frames", type=int, default=100)
    parser.add_argument("--frequencies", type=int, default=40)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--directions", type=int, default=4, choices=(1, 2, 4))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    torch.manual_seed(1)
    options = MdLstmOptions.model_validate(
        {"size": arguments.size, "directions": arguments.directions}
    )
    layer = MdLstm(Shape(arguments.frequencies), options).to(device)
    values = torch.randn(
        arguments.batch, arguments.frames, arguments.frequencies, device=device
    )
    lengths = torch.full((arguments.batch,), arguments.frames)
    batch = Padded.of(values, lengths)
    with torch.no_grad():
        difference = layer(batch).values - cell_by_cell(layer, values)
    ours = seconds(lambda: layer(batch).values, arguments.repeats, device)
    naive = seconds(lambda: cell_by_cell(layer, values), 1, device)
    result = {
        **vars(arguments),
        "threads": torch.get_num_threads(),
        "seconds": round(ours, 4),
        "naive_seconds": round(naive, 4),
        "times_faster": round(naive / ours, 1),
        "greatest_deviation": float(difference.abs().max()),
    }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
