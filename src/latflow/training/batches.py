"""Batches for training: which chunks of which utterances, and their tensors.

The *global* batches of an epoch follow from (data, options, seed, epoch) alone. A rank
takes its share of each of them, so that all ranks make equally many steps and together
make those that one process would make. A position in an epoch is the number of a batch:
`epoch(e, first_batch=k)` continues where a training was stopped.

Memory grows with the batch, and with 8 bytes a chunk for the order of an epoch; frames
stay on the disk until their batch comes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from latflow.align.transcript_graphs import TranscriptGraphs
from latflow.criteria.batch import Batch
from latflow.errors import UserError
from latflow.fst.graph import Graph
from latflow.ledger import Ledger
from latflow.nnet.normalization import Normalizer
from latflow.page_cache import PageBudget
from latflow.parallel import Prefetched
from latflow.training.chunks import (
    AnyChunker,
    Cause,
    Chunker,
    Chunks,
    Labelled,
    Times,
    match_labels,
    none_usable,
)
from latflow.training.data_options import BatchOptions, UtteranceOptions
from latflow.training.epoch_plan import EpochPlan, ReadAhead
from latflow.training.frame_targets import FrameTargets, count_frames
from latflow.training.labels import LabelStore
from latflow.training.ordering import epoch_order, form_batches
from latflow.training.readers import (
    FrameReader,
    StoreReader,
    in_pass,
    open_features,
    open_reader,
)
from latflow.training.sampling import UtteranceWeights

_GRAPH = "a graph of its transcript"
_THREADS = 3  # that make batches for a GPU


@dataclass(frozen=True)
class Targets:
    """What is learnt of a corpus; by default nothing: its features alone are read."""

    labels: Mapping[str, LabelStore] = field(default_factory=dict)
    """Label stores by the name of the target."""
    graphs: TranscriptGraphs | None = None
    """Of the transcripts, for CTC; utterances without one are not used."""
    frames: Mapping[str, FrameTargets] = field(default_factory=dict)
    """Features or masks, by name; the same holds."""


class BatchSource:
    """Batches of a corpus.

    Args:
        reader: features.
        targets: what is learnt.
        options: order, lengths and limits of batches.
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
        weights: how often passes take them; None for once.
        pages: what of the stored data is held; None where the system decides.

    Raises:
        UserError: no utterance can be used, or chunks do not fit the subsampling.
    """

    def __init__(
        self,
        reader: FrameReader,
        targets: Targets,
        options: BatchOptions,
        *,
        subsampling: int = 1,
        seed: int = 0,
        ledger: Ledger | None = None,
        pin: bool = False,
    ) -> None:
        self.reader = reader
        self._graphs, self._frames = targets.graphs, targets.frames
        self._places: dict[str, np.ndarray] = {}
        self.options = options
        self.pages = None
        if options.cache_mb is not None:
            self.pages = PageBudget(options.cache_mb * 10**6)
        self.subsampling = subsampling
        self.labelled = self._match(targets.labels, ledger)
        self.num_classes = self.labelled.num_classes
        self._lengths = reader.lengths[self.labelled.utterance]
        self._seed = seed
        self._pin = pin
        used = self.labelled.utterance
        self.weights = UtteranceWeights.of(reader, used, options, seed)
        self._chunker(0, self._lengths)  # refuses sizes that do not fit
        self._lock = threading.Lock()
        self._planned: tuple[int, EpochPlan] | None = None

    def _match(
        self, labels: Mapping[str, LabelStore], ledger: Ledger | None
    ) -> Labelled:
        """Find the utterances that can be used."""
        found = match_labels(
            self.reader.utt_ids,
            self.reader.lengths,
            labels,
            self.options,
            subsampling=self.subsampling,
            ledger=ledger,
            file=self.reader.folder,
        )
        ids = self.reader.utt_ids
        if self._graphs is not None:
            _check_graphs(self._graphs, self.options, self.subsampling)
            index = self._graphs.positions([ids[i] for i in found.utterance])
            found = self._keep(found, _GRAPH, index, ledger)
        for name, frames in self._frames.items():
            index = frames.places(self.reader, found.utterance, self.options)
            found = self._keep(found, name, index, ledger)
        return found

    def _keep(
        self, found: Labelled, what: str, index: np.ndarray, ledger: Ledger | None
    ) -> Labelled:
        """Return the utterances that have a target, and note where theirs is.

        Args:
            found: n utterances.
            what: the target.
            index: int64 [n], where it is; -1 without one.
            ledger: gets the others.
        """
        is_there, ids = index >= 0, self.reader.utt_ids
        for i in found.utterance[~is_there]:
            if ledger is not None:
                ledger.record(ids[i], f"has not {what}, or of another length")
        if not is_there.any():
            lacking = Cause(
                len(is_there),
                f"have not {what}, or of another length, like "
                f"{ids[found.utterance[0]]}",
                "make features and targets of the same split, with one frame shift",
            )
            others = Cause(
                len(ids) - len(is_there),
                "have no fitting labels, or are too short or too long",
                "check labels, data.min_length and data.max_length",
            )
            raise none_usable(len(ids), [lacking, others], self.reader.folder)
        places = {**self._places, what: index}
        self._places = {name: place[is_there] for name, place in places.items()}
        return found.select(is_there)

    def __len__(self) -> int:
        """Return the batches of epoch 0; other epochs may have a few more or less."""
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
        """Return the global batches of an epoch (epochs count from 0)."""
        return len(self._plan(epoch))

    def epoch(
        self, epoch: int, *, first_batch: int = 0, rank: int = 0, size: int = 1
    ) -> Prefetched[Batch | None]:
        """Iterate over a rank's parts of the global batches of an epoch, in order.

        Background threads make `options.prefetch` batches ready; what they raise is
        raised here, in its turn. Close the iterator before what is read.

        Args:
            epoch: from 0.
            first_batch: the batch to begin with.
            rank: 0..size - 1.
            size: number of ranks.

        Returns:
            The parts; None where a batch has nothing left for this rank.
        """
        plan = self._plan(epoch)

        def hold(b: int) -> int:
            return self._hold(plan.reader, plan.part(b, rank, size))

        def make(b: int) -> Batch | None:
            if read_ahead is not None:
                read_ahead.before(b)
            part = plan.part(b, rank, size)
            if not len(part):
                return None
            return self._assemble(plan.reader, part).with_keys(self._seed, epoch)

        read_ahead = None
        if self.pages is not None:
            read_ahead = ReadAhead(self.pages, hold, first_batch, len(plan))
        ahead = self.options.prefetch
        # a GPU takes batches faster than a thread makes them; what is read ahead comes
        # in the order of the batches
        threads = min(_THREADS, max(1, ahead)) if self._pin and not self.pages else 1
        items = range(first_batch, len(plan))
        return Prefetched(make, items, ahead=ahead, threads=threads)

    def pop_statistics(self) -> dict[str, Any]:
        """Return what cache and simulation did since the last call, for a log."""
        cache = {} if self.pages is None else {"cache": self.pages.take_counts()}
        return {**cache, **self.reader.pop_statistics()}

    def _plan(self, epoch: int) -> EpochPlan:
        """Return the global batches of an epoch; the last epoch's are kept."""
        with self._lock:
            if self._planned is None or self._planned[0] != epoch:
                reader = self._reader(epoch)
                used = reader.lengths[self.labelled.utterance]
                chunker = self._chunker(epoch, used)
                lengths = chunker.lengths()
                weights, whole_pass = self.weights, self.options.pass_of(epoch)
                order = epoch_order(
                    lengths,
                    self.options,
                    epoch,
                    seed=self._seed,
                    begin=chunker.begin,
                    copies=None if weights is None else weights.copies(whole_pass),
                )
                if not len(order):
                    raise self._nothing_in(epoch)
                positions, begin = form_batches(lengths[order], self.options)
                plan = EpochPlan(reader, chunker, order[positions], begin)
                self._planned = (epoch, plan)
            return self._planned[1]

    def _nothing_in(self, epoch: int) -> UserError:
        """Return the error of an epoch without sequences, which would train nothing."""
        return UserError(
            f"epoch {epoch + 1} has none of {self.num_utterances} utterances: "
            f"data.partition_epoch cuts each pass into {self.options.partition_epoch}",
            file=self.reader.folder,
            remedy="make it smaller than the utterances of a pass (data.subsets, "
            "data.source_weights)",
        )

    def _reader(self, epoch: int) -> FrameReader:
        """Return the features of an epoch; all epochs of a pass have the same draws."""
        whole_pass = self.options.pass_of(epoch)
        return in_pass(self.reader, self.options, self._seed, whole_pass)

    def _chunker(self, epoch: int, lengths: np.ndarray) -> AnyChunker:
        """Return the chunks of an epoch, of utterances with lengths in frames."""
        return Chunker(
            lengths,
            self.options.chunks,
            subsampling=self.subsampling,
            shift=self._shift(epoch),
        )

    def _shift(self, epoch: int) -> int:
        """Return the frames by which the utterances of an epoch begin later."""
        is_shifted = self.options.shift_frames
        return self.options.pass_of(epoch) % self.subsampling if is_shifted else 0

    def _pieces(
        self,
        reader: FrameReader,  # noqa: ARG002 - for subclasses
        chunks: Chunks,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first frame of each chunk that is read, and how many: [B]."""
        return chunks.first, chunks.length

    def _hold(self, reader: FrameReader, chunks: Chunks) -> int:
        """Ask for the pages of chunks; returns their bytes."""
        assert self.pages is not None
        assert isinstance(reader, StoreReader)
        utterance = self.labelled.utterance[chunks.utterance]
        num_bytes = reader.hold(self.pages, utterance, *self._pieces(reader, chunks))
        for labels in self.labelled.targets.values():
            num_bytes += labels.hold(self.pages, chunks)
        return num_bytes

    def _assemble(self, reader: FrameReader, chunks: Chunks) -> Batch:
        """Read the frames and labels of chunks."""
        shape = (len(chunks), int(chunks.length.max()), self.reader.dim)
        features = torch.empty(shape, pin_memory=self._pin)
        utterance = self.labelled.utterance[chunks.utterance]
        reader.fill(utterance, chunks.first, chunks.length, features.numpy())
        times = self._times(reader, chunks)
        targets = self._targets(reader, chunks, -(-shape[1] // self.subsampling), times)
        needed = {} if self._graphs else targets
        ids = self.reader.utt_ids
        return Batch(
            utterances=tuple(ids[i] for i in utterance),
            features=features,
            lengths=torch.from_numpy(chunks.length),
            targets=targets,
            first_frame=torch.from_numpy(chunks.first),
            indices=torch.from_numpy(utterance),
            counted=count_frames(chunks, needed, self.subsampling),
            subsampling=self.subsampling,
            graphs=self._graphs_of(chunks),
        )

    def _graphs_of(self, chunks: Chunks) -> tuple[Graph, ...]:
        """Return the graphs of whole utterances, where there are any."""
        graphs = self._graphs
        if graphs is None:
            return ()
        places = self._places[_GRAPH][chunks.utterance]
        return tuple(map(graphs.graph, places.tolist()))

    def _times(self, reader: FrameReader, chunks: Chunks) -> Times | None:
        """Return the times of the chunks' frames, where speeds are drawn."""
        if reader.perturbation is None:
            return None
        utterance = self.labelled.utterance[chunks.utterance]
        return Times(
            reader.perturbation.speed[utterance],
            self._lengths[chunks.utterance],
            reader.center,
        )

    def _targets(
        self, reader: FrameReader, chunks: Chunks, num_out: int, times: Times | None
    ) -> dict[str, Tensor]:
        """Return the targets of chunks by name; see `Batch.targets`."""
        counted = np.stack((chunks.count_from, chunks.count_to), axis=1)
        result = {}
        for name, labels in self.labelled.targets.items():
            shape = (len(chunks), num_out)
            target = torch.empty(shape, dtype=torch.int64, pin_memory=self._pin)
            labels.fill(
                chunks.utterance,
                chunks.first,
                counted,
                self.subsampling,
                target.numpy(),
                times,
            )
            result[name] = target
        for name, frames in self._frames.items():
            places = self._places[name][chunks.utterance]
            read = frames.read(reader, places, chunks, self.subsampling)
            target = torch.from_numpy(read)
            result[name] = target.pin_memory() if self._pin else target
        return result


def _check_graphs(
    graphs: TranscriptGraphs, options: BatchOptions, subsampling: int
) -> None:
    """Refuse graphs of another frame rate, and pieces of utterances."""
    if not isinstance(options.sequences, UtteranceOptions):
        raise UserError(
            "transcripts are learnt from whole utterances",
            remedy="set data.sequences to {type: utterances}",
        )
    if graphs.subsampling != subsampling:
        raise UserError(
            f"graphs are of one frame in {graphs.subsampling}, the network scores "
            f"one in {subsampling}",
            file=graphs.folder,
            remedy="make them again",
        )


def open_batches(
    frames_dir: str | Path,
    targets: Targets,
    options: BatchOptions,
    *,
    normalizer: Normalizer,
    subsampling: int = 1,
    seed: int = 0,
    ledger: Ledger | None = None,
    is_training: bool = True,
) -> BatchSource:
    """Open features and labels as batches, in page-locked memory where there is a GPU.

    Args:
        frames_dir: features, see `open_features`.
        targets: what is learnt.
        options: see `BatchSource`.
        normalizer: of the features; see `Normalizer.estimate`.
        subsampling: frames of the features for one of the network's output.
        seed: of the order.
        ledger: gets the utterances that cannot be used.
        is_training: false for the dev set: a fixed order, all in one epoch.

    Raises:
        UserError: no such store, no utterance that can be used, or chunks that do not
            fit the subsampling.
    """
    return BatchSource(
        open_reader(
            open_features(frames_dir, options), normalizer, is_training=is_training
        ),
        targets,
        options if is_training else options.for_evaluation(),
        subsampling=subsampling,
        seed=seed,
        ledger=ledger,
        pin=torch.cuda.is_available(),
    )
