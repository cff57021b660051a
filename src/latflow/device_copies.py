"""Numbers on their way between the processor and a device, while both continue.

On CUDA they lie in pinned memory, which torch keeps for its next use, and come to the
processor on their own stream: what is queued on the device behind them does not hold
them up. Elsewhere copies are made at once, and on the processor none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


class HostCopy:
    """A tensor's numbers on their way to the processor; safe to share by threads.

    Args:
        values: detached. On the processor they are not copied, if they are contiguous.
    """

    def __init__(self, values: Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        values = values.contiguous()
        if values.device.type != "cuda":
            self._host = values.cpu()
            return
        self._host = pinned(values.shape, values.dtype, values.device)
        stream = _stream(values.device)
        stream.wait_stream(torch.cuda.current_stream(values.device))
        with torch.cuda.stream(stream):
            self._host.copy_(values, non_blocking=True)
            # Threads that wait sleep: the cores are for those that search.
            self._arrived = torch.cuda.Event(blocking=True)
            self._arrived.record()
        values.record_stream(stream)  # its memory is not reused before

    def has_arrived(self) -> bool:
        """Return whether the numbers are there."""
        return self._arrived is None or self._arrived.query()

    def wait(self) -> np.ndarray:
        """Return the numbers when they are there; other threads continue meanwhile."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.numpy()


def pinned(
    shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return memory of the processor that is quickly copied to or from a device.

    Returns:
        [shape], not filled; pinned where the device is one of CUDA.
    """
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")


def sent(values: np.ndarray, device: torch.device) -> Tensor:
    """Return an array on a device, without waiting for what is queued there."""
    there = torch.from_numpy(values)
    if device.type != "cuda":
        return there.to(device)
    return there.pin_memory().to(device, non_blocking=True)


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which a device's numbers come to the processor."""
    return torch.cuda.Stream(device)
