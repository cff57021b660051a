"""What a training step gets: sequences with their labels, as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from latflow.criteria.packed_graphs import PackedGraphs
from latflow.fst.graph import Graph
from latflow.nnet.draws import RowDraws, mixed_seed


@dataclass(frozen=True)
class Batch:
    """A part of a global batch: B chunks of utterances, padded to T frames.

    Attributes:
        utterances: ids of their utterances.
        features: float32 [B, T, D]; 0 beyond the ends.
        lengths: int64 [B], frames of each chunk, on the CPU.
        targets: by name, int64 [B, T'], T' = ceil(T / subsampling); -1 = not counted:
            padding, context, or without a label. Features as targets: float32
            [B, T', D], NaN = not counted.
        first_frame: int64 [B], where each chunk begins in its utterance, on the CPU.
        indices: int64 [B], numbers of the utterances in the store, on the CPU.
        counted: int64 [B], frames of the output that are counted (that have a label for
            one output at least; all with graphs), on the CPU.
        subsampling: frames of the features for one of the output.
        weight: float32 [B], weights of the chunks; None = 1.
        graphs: of the chunks, whole utterances, where an output learns by CTC.
        keys: int64 [B], of random draws; they follow from the seed, the epoch, the
            utterance and the first frame. None = draws have no keys.
        has_context: whether the features hold the network's frames of context before
            and behind each chunk, which lengths do not count.
        table: int64 [2 or 3, B], on the device of the features: lengths, frames that a
            chunk would have alone, and keys if there are any; None = nowhere else.
    """

    utterances: tuple[str, ...]
    features: Tensor
    lengths: Tensor
    targets: dict[str, Tensor]
    first_frame: Tensor
    indices: Tensor
    counted: Tensor
    subsampling: int = 1
    weight: Tensor | None = None
    has_context: bool = False
    graphs: tuple[Graph, ...] = ()
    keys: Tensor | None = None
    table: Tensor | None = None

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def num_frames(self) -> int:
        """Frames of the output that are counted, of this part."""
        return int(self.counted.sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the batch with features, targets and weights on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            features=moved(self.features),
            targets={name: moved(target) for name, target in self.targets.items()},
            weight=None if self.weight is None else moved(self.weight),
            table=moved(self._table()),
        )

    def _table(self) -> Tensor:
        """Return `table` on the CPU: so little that nobody waits for its copy."""
        # the frames that a chunk is filled up with are those of its batch
        own = self.counted * self.subsampling if self.has_context else self.lengths
        known = [self.lengths, own] + ([] if self.keys is None else [self.keys])
        return torch.stack(known)

    def select(self, rows: Sequence[int]) -> Self:
        """Return some of the chunks, padded to the longest among them.

        Args:
            rows: their positions, not empty.
        """
        index = torch.as_tensor(list(rows))
        there = index.to(self.features.device)
        lengths, width = self._extent(index)
        num_out = -(-int(lengths.max()) // self.subsampling)
        return replace(
            self,
            utterances=tuple(self.utterances[i] for i in rows),
            features=part_of(self.features, there, width),
            lengths=lengths,
            targets={
                name: part_of(target, there, num_out)
                for name, target in self.targets.items()
            },
            first_frame=self.first_frame[index],
            indices=self.indices[index],
            counted=self.counted[index],
            weight=None if self.weight is None else self.weight[there],
            graphs=tuple(self.graphs[i] for i in rows) if self.graphs else (),
            keys=None if self.keys is None else self.keys[index],
            table=None,
        )

    def _extent(self, index: Tensor) -> tuple[Tensor, int]:
        """Return the lengths of some chunks, and the frames that hold them all."""
        lengths = self.lengths[index]
        return lengths, int(lengths.max())

    def with_keys(self, seed: int, epoch: int) -> Batch:
        """Return the batch with the keys of its chunks; see `keys`."""
        chunks = zip(self.utterances, self.first_frame.tolist(), strict=True)
        keys = [mixed_seed(seed, epoch, *chunk) for chunk in chunks]
        return replace(self, keys=torch.tensor(keys))

    def draws(self) -> RowDraws | None:
        """Return the random numbers of the chunks, whatever batch they are in."""
        if self.keys is None:
            return None
        _, own, keys = self._table() if self.table is None else self.table
        return RowDraws(keys, own)

    def lengths_there(self) -> Tensor:
        """Return the lengths on the device of the features."""
        if self.table is None:
            return self.lengths.to(self.features.device)
        return self.table[0]

    def split(self, parts: int) -> list[Batch]:
        """Split into at most `parts` micro-batches, balanced by frames, none empty."""
        if parts == 1 or len(self) == 1:
            return [self]
        shares = share_out(self.lengths.numpy(), min(parts, len(self)))
        return [self.select(rows.tolist()) for rows in shares]


@dataclass(frozen=True)
class SupervisedBatch(Batch):
    """A part of a global batch, with supervision.

    `counted` is the number of frames of the output that each chunk counts: its first
    ones.

    Attributes:
        supervisions: a graph of `counted` frames for each chunk.
        context: frames before and behind that the features hold.
        packed: the supervisions as kernels of a GPU take them, in page-locked memory
            or on the device; None elsewhere.
    """

    supervisions: tuple[Graph, ...] = ()
    context: tuple[int, int] = (0, 0)
    packed: PackedGraphs | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Self:
        """Return the batch on a device, with its supervisions; see `Batch.to`."""
        moved = super().to(device, non_blocking=non_blocking)
        if self.packed is None:
            return moved
        packed = self.packed.to(device, non_blocking=non_blocking)
        return replace(moved, packed=packed)

    def select(self, rows: Sequence[int]) -> Self:
        """Return some of the chunks, filled up to the longest among them."""
        packed = self.packed
        return replace(
            super().select(rows),
            supervisions=tuple(self.supervisions[i] for i in rows),
            packed=None if packed is None else packed.select(torch.tensor(list(rows))),
        )

    def _extent(self, index: Tensor) -> tuple[Tensor, int]:
        """See `Batch._extent`; context and what chunks are filled up with count."""
        lengths = self.lengths[index]
        if self.has_context:
            longest = int(self.counted[index].max())
            lengths = torch.full_like(lengths, longest * self.subsampling)
        return lengths, int(lengths.max()) + sum(self.context)


def part_of(tensor: Tensor, index: Tensor, num_frames: int) -> Tensor:
    """Return some rows of a tensor, and their first frames, in memory of its kind.

    Args:
        tensor: [B, T, ...].
        index: int64 [b], the rows.
        num_frames: T'.

    Returns:
        [b, T', ...], page-locked where the tensor is.
    """
    part = tensor[index, :num_frames]
    return part.pin_memory() if tensor.is_pinned() else part


def share_out(lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Share the sequences of a global batch out over ranks, balanced by frames.

    The longest sequence left goes to the rank with the fewest frames so far (the lower
    rank if equal); within a rank the order of the batch is kept.

    Args:
        lengths: integers [B], frames.
        size: number of ranks.

    Returns:
        Positions in the batch of each rank; empty where none is left.
    """
    if size == 1:
        return [np.arange(len(lengths))]
    owner = np.zeros(len(lengths), np.int64)
    load = [0] * size
    for i in np.argsort(-lengths.astype(np.int64), kind="stable"):
        rank = load.index(min(load))
        owner[i] = rank
        load[rank] += int(lengths[i])
    return [np.flatnonzero(owner == rank) for rank in range(size)]
