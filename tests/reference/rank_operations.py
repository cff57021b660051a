"""What ranks do together, on a device: each operation, and its result in a file."""

from __future__ import annotations

import torch

from latflow.logs import progress
from latflow.training.distributed import Backend
from latflow.training.task import place_rank


def operate_as_rank(backend: Backend, *, device: str, out: str) -> None:
    """Job of a rank; rank 0 writes the results.

    Args:
        backend: the other ranks.
        device: of the tensors.
        out: a file.
    """
    place = place_rank(device, backend)
    kinds = torch.float32, torch.float64, torch.int64
    sums = [torch.full((5,), backend.rank + 1, dtype=kind).to(place) for kind in kinds]
    backend.all_reduce_(sums)
    copied = torch.arange(4.0, device=place) * (backend.rank + 1)
    backend.broadcast_([copied], root=backend.size - 1)
    results = {
        "sums": [values.cpu() for values in sums],
        "copied": copied.cpu(),
        "numbers": backend.all_reduce_numbers([1.0, backend.rank]),
        "gathered": backend.gather({"rank": backend.rank, "device": place.type}),
        "shared": backend.broadcast_object(f"of rank {backend.rank}"),
    }
    backend.barrier()
    if backend.is_main:
        torch.save(results, out)
    backend.barrier()


def work_as_rank(backend: Backend, *, device: str) -> None:
    """Job of a rank: some work with a progress bar.

    Args:
        backend: the other ranks.
        device: unused.
    """
    del backend, device
    for _ in progress(range(3), "some work"):
        pass
