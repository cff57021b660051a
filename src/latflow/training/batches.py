"""Batches for training: which pieces of which utterances, and their tensors.

The *global* batches of an epoch follow from (data, options, seed, epoch) alone. A rank
takes its share of each of them, so that all ranks make equally many steps and together
make those that one process would make. A position in an epoch is the number of a batch:
`epoch(e, first_batch=k)` goes on where a training was stopped.

Memory grows with the batch, and with 8 bytes a piece for the order of an epoch; frames
stay on the disk until their batch comes.

Public: `Batch`, `BatchSource`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from latflow.errors import UserError
from latflow.ledger import Ledger
from latflow.parallel import in_order
from latflow.training.cutting import Cutting, Pieces
from latflow.training.data_options import DataOptions
from latflow.training.joining import join
from latflow.training.labels import LabelStore
from latflow.training.ordering import Order, epoch_order, form_batches, share_out
from latflow.training.reading import FrameReader


@dataclass(frozen=True)
class Batch:
    """A part of a global batch: B pieces of utterances, padded to T frames.

    Attributes:
        utterances: ids of their utterances.
        features: float32 [B, T, D]; 0 beyond the ends.
        lengths: int64 [B], frames of each piece, on the CPU.
        targets: by name, int64 [B, T'], T' = ceil(T / subsampling); -1 = not counted:
            padding, context, or without a label.
        first_frame: int64 [B], where each piece begins in its utterance, on the CPU.
        indices: int64 [B], numbers of the utterances in the store, on the CPU.
        counted: int64 [B], frames of the output that are counted (that have a label for
            one output at least), on the CPU.
        subsampling: frames of the features for one of the output.
        weight: float32 [B], weights of the pieces; None = 1.
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

    def __len__(self) -> int:
        return len(self.utterances)

    @property
    def num_frames(self) -> int:
        """Frames of the output that are counted, of this part."""
        return int(self.counted.sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Batch:
        """The batch with features, targets and weights on a device."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=non_blocking)

        return replace(
            self,
            features=moved(self.features),
            targets={name: moved(target) for name, target in self.targets.items()},
            weight=None if self.weight is None else moved(self.weight),
        )

    def select(self, rows: Sequence[int]) -> Batch:
        """Some of the pieces, padded to the longest among them.

        Args:
            rows: their positions, not empty.
        """
        index = torch.as_tensor(list(rows))
        lengths = self.lengths[index]
        longest = int(lengths.max())
        num_out = -(-longest // self.subsampling)
        there = index.to(self.features.device)
        return replace(
            self,
            utterances=tuple(self.utterances[i] for i in rows),
            features=self.features[there, :longest],
            lengths=lengths,
            targets={name: t[there, :num_out] for name, t in self.targets.items()},
            first_frame=self.first_frame[index],
            indices=self.indices[index],
            counted=self.counted[index],
            weight=None if self.weight is None else self.weight[there],
        )

    def split(self, parts: int) -> list[Batch]:
        """Split into at most `parts` micro-batches, balanced by frames, none empty."""
        if parts == 1 or len(self) == 1:
            return [self]
        shares = share_out(self.lengths.numpy(), min(parts, len(self)))
        return [self.select(rows.tolist()) for rows in shares]


@dataclass(frozen=True)
class _Plan:
    """The global batches of an epoch.

    Attributes:
        cutting: how its utterances are cut.
        numbers: int64 [n], the pieces in their order.
        begin: int64 [batches + 1], where each batch begins in `numbers`.
    """

    cutting: Cutting
    numbers: np.ndarray
    begin: np.ndarray

    def __len__(self) -> int:
        return len(self.begin) - 1

    def pieces(self, b: int) -> Pieces:
        """The pieces of batch b."""
        return self.cutting.pieces(self.numbers[self.begin[b] : self.begin[b + 1]])


class BatchSource:
    """Batches of a corpus.

    Args:
        reader: features.
        labels: label stores by the name of the target; empty = features alone.
        options: see `DataOptions`.
        subsampling: of the network.
        seed: of the order.
        ledger: where utterances that cannot be used are recorded.
        pin: whether tensors lie in page-locked memory, for fast copies to a GPU.

    Attributes:
        reader: features.
        options: as given.
        subsampling: as given.
        num_classes: classes of each target, by its name.
        labelled: the utterances that are used.

    Raises:
        UserError: no utterance can be used, or chunks do not fit the subsampling.
    """

    def __init__(
        self,
        reader: FrameReader,
        labels: Mapping[str, LabelStore],
        options: DataOptions,
        *,
        subsampling: int = 1,
        seed: int = 0,
        ledger: Ledger | None = None,
        pin: bool = False,
    ) -> None:
        self.reader = reader
        self.options = options
        self.subsampling = subsampling
        lengths = reader.lengths
        self.labelled = join(
            reader.utt_ids,
            lengths,
            labels,
            options.bounds,
            subsampling=subsampling,
            ledger=ledger,
        )
        self.num_classes = self.labelled.num_classes
        self._lengths = lengths[self.labelled.utterance]
        _check_subsampling(options, subsampling)
        self._order = Order.parse(
            options.order,
            partitions=options.partitions,
            seed=seed,
            pool=options.pool,
        )
        self._pin = pin
        self._lock = threading.Lock()
        self._planned: tuple[int, _Plan] | None = None

    def __len__(self) -> int:
        """Batches of epoch 0; other epochs may have a few more or less."""
        return self.num_batches(0)

    @property
    def num_utterances(self) -> int:
        """Utterances that are used."""
        return len(self._lengths)

    @property
    def num_frames(self) -> int:
        """Frames of the features of the utterances that are used."""
        return int(self._lengths.sum())

    def num_batches(self, epoch: int) -> int:
        """Global batches of an epoch (epochs count from 0)."""
        return len(self._plan(epoch))

    def epoch(
        self, epoch: int, *, first_batch: int = 0, rank: int = 0, size: int = 1
    ) -> Iterator[Batch | None]:
        """Yield a rank's parts of the global batches of an epoch, in order.

        A background thread makes `options.prefetch` batches ready; what it raises is
        raised here, in its turn. Closing the iterator ends the thread.

        Args:
            epoch: from 0.
            first_batch: the batch to begin with.
            rank: 0..size - 1.
            size: number of ranks.

        Yields:
            A part; None where a batch has nothing left for this rank.
        """
        plan = self._plan(epoch)

        def make(b: int) -> Batch | None:
            return self._make(plan.pieces(b), rank, size)

        numbers = range(first_batch, len(plan))
        if self.options.prefetch == 0:
            yield from map(make, numbers)
            return
        with ThreadPoolExecutor(1, thread_name_prefix="batches") as pool:
            yield from in_order(pool, make, numbers, ahead=self.options.prefetch + 1)

    def global_batches(self, epoch: int) -> Iterator[Pieces]:
        """Yield what the batches of an epoch hold, without reading it."""
        plan = self._plan(epoch)
        for b in range(len(plan)):
            yield plan.pieces(b)

    def _plan(self, epoch: int) -> _Plan:
        """The global batches of an epoch; the last epoch's are kept."""
        with self._lock:
            if self._planned is None or self._planned[0] != epoch:
                cutting = self._cut(epoch)
                lengths = cutting.lengths()
                order = epoch_order(lengths, self._order, epoch, cutting.begin)
                positions, begin = form_batches(lengths[order], self.options.limits)
                self._planned = (epoch, _Plan(cutting, order[positions], begin))
            return self._planned[1]

    def _cut(self, epoch: int) -> Cutting:
        """Cut the utterances for an epoch."""
        options, shift = self.options, 0
        if options.shift_frames:
            shift = epoch // options.partitions % self.subsampling
        return Cutting(
            self._lengths,
            options.size,
            options.step,
            left=options.left,
            right=options.right,
            subsampling=self.subsampling,
            shift=shift,
        )

    def _make(self, pieces: Pieces, rank: int, size: int) -> Batch | None:
        """Make a rank's part of a global batch."""
        rows = share_out(pieces.length, size)[rank]
        return self._assemble(pieces.select(rows)) if len(rows) else None

    def _assemble(self, pieces: Pieces) -> Batch:
        """Read the frames and labels of pieces."""
        shape = (len(pieces), int(pieces.length.max()), self.reader.dim)
        features = torch.empty(shape, pin_memory=self._pin)
        utterance = self.labelled.utterance[pieces.utterance]
        self.reader.fill(utterance, pieces.first, pieces.length, features.numpy())
        targets = self._targets(pieces, -(-shape[1] // self.subsampling))
        ids = self.reader.utt_ids
        return Batch(
            utterances=tuple(ids[i] for i in utterance),
            features=features,
            lengths=torch.from_numpy(pieces.length),
            targets=targets,
            first_frame=torch.from_numpy(pieces.first),
            indices=torch.from_numpy(utterance),
            counted=_count(pieces, targets, self.subsampling),
            subsampling=self.subsampling,
        )

    def _targets(self, pieces: Pieces, num_out: int) -> dict[str, Tensor]:
        """The targets of pieces by name, int64 [B, T']."""
        counted = np.stack((pieces.count_from, pieces.count_to), axis=1)
        result = {}
        for name, labels in self.labelled.targets.items():
            shape = (len(pieces), num_out)
            target = torch.empty(shape, dtype=torch.int64, pin_memory=self._pin)
            labels.fill(
                pieces.utterance,
                pieces.first,
                counted,
                self.subsampling,
                target.numpy(),
            )
            result[name] = target
        return result


def _count(pieces: Pieces, targets: Mapping[str, Tensor], subsampling: int) -> Tensor:
    """Frames of the output that each piece counts, int64 [B]."""
    if not targets:
        before = -((pieces.first - pieces.count_from) // subsampling)
        until = -((pieces.first - pieces.count_to) // subsampling)
        return torch.from_numpy(until - before)
    has_label = torch.stack([target >= 0 for target in targets.values()])
    return has_label.any(0).sum(1)


def _check_subsampling(options: DataOptions, subsampling: int) -> None:
    """Refuse chunks that do not fit the network."""
    named = {"size": options.size, "step": options.step, "left": options.left}
    for name, frames in named.items():
        if frames is not None and frames % subsampling:
            raise UserError(
                f"chunks: {name} {frames} is not a multiple of the network's "
                f"subsampling {subsampling}",
                remedy=f"take {-(-frames // subsampling) * subsampling}, for example",
            )
    if options.size and options.step and options.step > options.size:
        raise UserError(
            f"chunks: step {options.step} is more than size {options.size}: frames "
            "between chunks would never be seen",
        )
