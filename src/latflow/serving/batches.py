"""Batches of chunks on a GPU: few shapes, memory that is copied without waiting.

The chunks of a batch are copied into pinned memory, over to the GPU, through the
network, and back, all behind each other in a queue of the GPU's, so that the next batch
is made ready while one is computed. A batch is filled up to one of few sizes: its
launches are recorded once as a CUDA graph, and replayed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from latflow.device_copies import pinned
from latflow.serving.acoustics import Acoustics, Chunk, NetworkAcoustics
from latflow.serving.scoring import Observer, score_each

log = logging.getLogger("latflow")
#: Waits for a batch; gives the scores of each chunk, or its fault.
Flight = Callable[[], Sequence[np.ndarray | Exception]]
_WARM_UP_PASSES = 3  # before launches are recorded; libraries choose their ways in them


class ChunkBatches(Protocol):
    """Takes batches of chunks through a network.

    Attributes:
        depth: batches that may be begun before the first of them is waited for.
    """

    depth: int

    def begin(self, chunks: Sequence[Chunk]) -> Flight:
        """Begin with a batch."""
        ...


class LocalBatches:
    """Computes a batch at once, see `ChunkBatches`.

    Args:
        acoustics: give the scores.
        observer: is notified of the batches.
    """

    depth = 1

    def __init__(self, acoustics: Acoustics, observer: Observer) -> None:
        self._acoustics, self._observer = acoustics, observer

    def begin(self, chunks: Sequence[Chunk]) -> Flight:
        """Score a batch."""
        found = score_each(self._acoustics.score, chunks, self._observer)
        return lambda: found


class _Shape:
    """Batches of one size on the device, and their memory here.

    Args:
        forward: scores of inputs on the device.
        shape: [B, T, D].
        device: of the network.
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Tensor],
        shape: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        self._forward = forward
        self._inputs = torch.zeros(shape, device=device)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._scores = forward(self._inputs)
        # Two of each: one is filled while the other may still be read.
        self.here, self.there = (
            [pinned(tensor.shape, torch.float32, device).zero_() for _ in range(2)]
            for tensor in (self._inputs, self._scores)
        )
        self._turn = 0

    def record(self) -> None:
        """Record the launches of a batch; raises what CUDA refuses."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_PASSES):
                self._forward(self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._scores = self._forward(self._inputs)
        self._graph = graph

    def begin(self, arrays: Sequence[np.ndarray]) -> Callable[[], np.ndarray]:
        """Begin with a batch; what is returned waits for its scores."""
        self._turn ^= 1
        here, there = self.here[self._turn], self.there[self._turn]
        for row, array in zip(here.numpy(), arrays, strict=False):
            row[: len(array)] = array
            row[len(array) :] = 0.0
        self._inputs.copy_(here, non_blocking=True)
        if self._graph is None:
            self._scores = self._forward(self._inputs)
        else:
            self._graph.replay()
        there.copy_(self._scores, non_blocking=True)
        if self._inputs.device.type != "cuda":
            return there.numpy
        done = torch.cuda.Event(blocking=True)  # no core is kept busy by waiting
        done.record()

        def wait() -> np.ndarray:
            done.synchronize()
            return there.numpy()

        return wait


def _sizes(most: int) -> list[int]:
    """Return the sizes that batches are filled up to, the largest last."""
    sizes = [most]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 4 or 1)
    return sizes[::-1]


class Batches:
    """Takes batches through a network on a GPU, see `ChunkBatches`.

    What is returned for a batch must be read before the next but one is begun.

    Args:
        acoustics: give the scores.
        frames: of a chunk, as a session cuts them in the middle of a segment.
        max_batch: chunks of a batch, at most.
        observer: is notified of the batches.
    """

    depth = 2

    def __init__(
        self,
        acoustics: NetworkAcoustics,
        frames: int,
        max_batch: int,
        observer: Observer,
    ) -> None:
        self._acoustics, self._observer = acoustics, observer
        left, right = acoustics.context
        if acoustics.has_context:  # exactly what the network needs of it
            left, right = acoustics.network.network.context
        self._shapes: dict[int, _Shape] = {}
        self._length = 0
        if None not in acoustics.context:
            self._length = (left or 0) + frames + (right or 0)
            for size in _sizes(max_batch):
                self._shapes[size] = self._shape(size)
            self._record()

    def _shape(self, size: int) -> _Shape:
        """Make ready for batches of a size."""
        length = self._length
        lengths = torch.full((size,), length)
        shape = size, length, self._acoustics.network.network.dim_in
        device = self._acoustics.device
        there = lengths.to(device)  # a graph cannot hold a copy of them
        forward = self._acoustics.forward
        return _Shape(lambda x: forward(x, lengths, there), shape, device)

    def _record(self) -> None:
        """Record the launches of all sizes, where there is CUDA and it can."""
        if self._acoustics.device.type != "cuda":
            return
        try:
            for shape in self._shapes.values():
                shape.record()
        except RuntimeError as error:
            log.warning("the network runs without a CUDA graph: %s", error)
        torch.cuda.synchronize()

    def begin(self, chunks: Sequence[Chunk]) -> Flight:
        """Begin with a batch; what has no usual length, and faults, are computed alone.

        Frames beyond the end of a shorter input do not reach its own scores where it
        has all the context; without, the network must know where it ends.
        """
        began = perf_counter()
        usual = [i for i, chunk in enumerate(chunks) if self._is_usual(chunk)]
        other = sorted(set(range(len(chunks))).difference(usual))
        score, observer = self._acoustics.score, self._observer
        picked = [chunks[i] for i in usual]
        try:
            wait = self._launch(picked) if picked else None
        except Exception:  # noqa: BLE001 - found out by each chunk alone, below
            wait, usual, other = None, [], list(range(len(chunks)))

        def land() -> Sequence[np.ndarray | Exception]:
            found: dict[int, np.ndarray | Exception] = {}
            if wait is not None:
                rows = self._acoustics.rows_of(wait(), picked)
                observer.scored(len(picked), perf_counter() - began)
                found.update(zip(usual, rows, strict=True))
            if other:
                rest = score_each(score, [chunks[i] for i in other], observer)
                found.update(zip(other, rest, strict=True))
                if any(isinstance(one, Exception) for one in rest):
                    self._check_device()
            return [found[i] for i in range(len(chunks))]

        return land

    def _check_device(self) -> None:
        """Raise, which ends the process, where the GPU takes nothing any more."""
        if self._acoustics.device.type == "cuda":
            torch.cuda.synchronize()

    def _is_usual(self, chunk: Chunk) -> bool:
        """Return whether a chunk is of the length that batches are made for."""
        if not self._shapes:
            return False
        if self._acoustics.has_context:
            left, right = self._acoustics.network.network.context
            return left + chunk.num_frames + right <= self._length
        return len(chunk.frames) == self._length

    def _launch(self, chunks: Sequence[Chunk]) -> Callable[[], np.ndarray]:
        """Begin with chunks of the usual length."""
        size = min(size for size in self._shapes if size >= len(chunks))
        return self._shapes[size].begin(self._acoustics.inputs(chunks))
