"""Batches for LF-MMI: chunks of utterances, each with the graph that supervises it.

An utterance is cut into round(frames / size) pieces of nearly equal length (at least
one), so that each of its frames counts once. Where a network's description says
`edges: repeat`, it sees the utterance's own frames around a chunk, and copies of the
first and the last frame beyond the utterance's ends; other networks see zeros around
each chunk.

In a batch of a network that sees context, chunks are filled up to the longest one with
the frames that follow: nothing is padded, and nothing has to be masked. These frames
are not counted, but are part of the statistics of batch normalization.

Where an epoch is *shifted*, all features come this many frames later, against the same
supervision: 0, 1, -1, 0, ... frames for a subsampling of 3, so that on average none are
(Kaldi `nnet3/nnet-chain-example.cc`, `ShiftChainExampleTimes`).

Supervision from transcripts alone (flat start) has no times, and cannot be cut: there a
chunk is a whole utterance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from latflow.align.flat_start import FlatStartSupervisions
from latflow.align.supervision_store import NORMALIZATION, Supervisions
from latflow.align.transcript_graphs import TranscriptGraphs
from latflow.criteria.batch import SupervisedBatch
from latflow.criteria.packed_graphs import PackedGraphs
from latflow.ledger import Ledger
from latflow.training.batches import BatchSource, Targets
from latflow.training.chunks import Cause, Chunks, Labelled, none_usable
from latflow.training.data_options import LfmmiDataOptions
from latflow.training.labels import LabelStore
from latflow.training.readers import FrameReader

AnySupervisions: TypeAlias = Supervisions | FlatStartSupervisions


def open_supervisions(folder: Path) -> AnySupervisions:
    """Open the supervision of a split, from alignments or from transcripts alone.

    Raises:
        UserError: the folder is of neither kind.
    """
    is_flat_start = not (folder / NORMALIZATION).is_file()
    return (FlatStartSupervisions if is_flat_start else Supervisions).load(folder)


class EvenChunker:
    """All chunks of a corpus, numbered through; see the module.

    Args:
        lengths: int64 [N], frames of the output of each utterance, >= 1.
        size: frames of the output that a chunk should have; None = whole utterances.
        subsampling: frames of the features for one of the output.
        shift: frames by which the features come later; negative for earlier.

    Attributes:
        begin: int64 [N + 1], first chunk of each utterance.
    """

    def __init__(
        self, lengths: np.ndarray, size: int | None, *, subsampling: int, shift: int = 0
    ) -> None:
        self._lengths, self._subsampling, self._shift = lengths, subsampling, shift
        pieces = np.ones(len(lengths), np.int64)
        if size is not None:
            # half a chunk and more is one of its own
            pieces = np.maximum(1, (2 * lengths + size) // (2 * size))
        self.begin = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(pieces, out=self.begin[1:])

    def chunks(self, numbers: np.ndarray) -> Chunks:
        """Find chunks by their numbers, int64 [n]; frames are those of the features."""
        utterance = np.searchsorted(self.begin, numbers, side="right") - 1
        total = self._lengths[utterance]
        pieces = self.begin[utterance + 1] - self.begin[utterance]
        piece = numbers - self.begin[utterance]
        first = piece * total // pieces * self._subsampling
        last = (piece + 1) * total // pieces * self._subsampling
        return Chunks(utterance, first + self._shift, last - first, first, last)

    def lengths(self) -> np.ndarray:
        """Return the frames of the features that each chunk counts, int32."""
        numbers = np.arange(self.begin[-1])
        return self.chunks(numbers).length.astype(np.int32)


class SupervisedSource(BatchSource):
    """Batches of a corpus with supervision; see `BatchSource`.

    Args:
        reader: the features.
        supervisions: of the utterances.
        options: of the data.
        context: frames before and behind that the network wants to have; None where it
            sees zeros around each chunk.
        subsampling: frames of the features for one of the output.
        seed: of the order.
        ledger: gets utterances without supervision, and those whose supervision is of
            another length.
        graphs: of the transcripts of whole utterances, where an output learns by CTC.

    Raises:
        UserError: no utterance can be used.
    """

    options: LfmmiDataOptions  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        reader: FrameReader,
        supervisions: AnySupervisions,
        options: LfmmiDataOptions,
        *,
        context: tuple[int, int] | None,
        subsampling: int,
        seed: int = 0,
        ledger: Ledger | None = None,
        graphs: TranscriptGraphs | None = None,
    ) -> None:
        self._supervisions, self._context = supervisions, context
        super().__init__(
            reader,
            Targets(graphs=graphs),
            options,
            subsampling=subsampling,
            seed=seed,
            ledger=ledger,
            pin=torch.cuda.is_available(),
        )

    def _match(
        self, labels: Mapping[str, LabelStore], ledger: Ledger | None
    ) -> Labelled:
        """Find the utterances that have a supervision of their length."""
        within = super()._match(labels, ledger)
        ids, lengths = self.reader.utt_ids, self.reader.lengths
        known = self._supervisions
        index = known.positions(ids)
        frames = np.append(known.num_frames, 0)[index]
        expected = -(-lengths // self.subsampling)
        fits = np.abs(frames - expected) <= self.options.length_tolerance
        is_used = fits & (frames > 0) & (index >= 0)
        is_left = np.zeros(len(ids), np.bool_)
        is_left[within.utterance] = True
        unfit = is_left & ~is_used

        def reason(i: int) -> str:
            if index[i] < 0:
                return "has no supervision"
            return f"has a supervision of {frames[i]} frames, not {expected[i]}"

        if ledger is not None:
            for i in np.flatnonzero(unfit).tolist():
                ledger.record(ids[i], reason(i))
        utterance = np.flatnonzero(is_left & is_used)
        if not len(utterance):
            causes = [
                Cause.of(
                    unfit & (index < 0),
                    ids,
                    reason,
                    "make features and supervisions of the same split",
                ),
                Cause.of(
                    unfit & (index >= 0),
                    ids,
                    reason,
                    "make both of features with the same frame shift",
                ),
                within.outside,
            ]
            raise none_usable(len(ids), causes, self.reader.folder)
        self._of, self._frames = index[utterance], frames[utterance]
        is_kept = np.isin(within.utterance, utterance)
        self._places = {name: at[is_kept] for name, at in self._places.items()}
        return replace(within, utterance=utterance)

    def _shift(self, epoch: int) -> int:
        """Return the frames by which the features of an epoch come later."""
        shift = super()._shift(epoch)
        return shift if 2 * shift <= self.subsampling else shift - self.subsampling

    def _chunker(
        self,
        epoch: int,
        lengths: np.ndarray,  # noqa: ARG002 - those of the supervision count
    ) -> EvenChunker:
        size = self.options.chunk_size
        return EvenChunker(
            self._frames,
            None if size is None else max(1, size // self.subsampling),
            subsampling=self.subsampling,
            shift=self._shift(epoch),
        )

    def _assemble(self, reader: FrameReader, chunks: Chunks) -> SupervisedBatch:
        """Read the frames of chunks, and cut out their supervision."""
        step = self.subsampling
        counted = chunks.length // step
        length = chunks.length
        if self._context is not None:
            length = np.full_like(length, length.max())
        first = chunks.count_from // step
        of = self._of[chunks.utterance]
        ids = self.reader.utt_ids
        utterance = self.labelled.utterance[chunks.utterance]
        pieces = np.stack((of, first, counted), 1).tolist()
        supervisions = tuple(self._supervisions.chunk(*piece) for piece in pieces)
        return SupervisedBatch(
            utterances=tuple(ids[i] for i in utterance),
            features=self._features(reader, chunks.first, utterance, int(length.max())),
            lengths=torch.from_numpy(length),
            targets={},
            first_frame=torch.from_numpy(chunks.first),
            indices=torch.from_numpy(utterance),
            counted=torch.from_numpy(counted),
            subsampling=step,
            has_context=self._context is not None,
            graphs=self._graphs_of(chunks),
            supervisions=supervisions,
            context=self._context or (0, 0),
            packed=PackedGraphs.of(supervisions, pin=True) if self._pin else None,
        )

    def _pieces(
        self, reader: FrameReader, chunks: Chunks
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the first frame of each chunk that is read, and how many: [B]."""
        left, right = self._context or (0, 0)
        last = reader.lengths[self.labelled.utterance[chunks.utterance]] - 1
        end = chunks.first + chunks.length.max(initial=0) + right - 1
        begin = np.clip(chunks.first - left, 0, last)
        return begin, np.clip(end, 0, last) - begin + 1

    def _features(
        self,
        reader: FrameReader,
        first: np.ndarray,
        utterance: np.ndarray,
        num_frames: int,
    ) -> torch.Tensor:
        """Read frames and the context around them; edges are repeated.

        Args:
            reader: of the epoch.
            first: int64 [B], first frame of each chunk; may be beyond the last one.
            utterance: int64 [B].
            num_frames: T.

        Returns:
            float32 [B, left + T + right, D].
        """
        left, right = self._context or (0, 0)
        num_frames += left + right
        last = reader.lengths[utterance] - 1
        times = first[:, None] - left + np.arange(num_frames)
        times = np.clip(times, 0, last[:, None])
        begin, count = times[:, 0], times[:, -1] - times[:, 0] + 1
        shape = (len(first), int(count.max()), reader.dim)
        read = np.empty(shape, np.float32)
        reader.fill(utterance, begin, count, read)
        shape = (len(first), num_frames, reader.dim)
        features = torch.empty(shape, pin_memory=self._pin)
        rows = np.arange(len(first))[:, None]
        features.numpy()[:] = read[rows, times - begin[:, None]]
        return features
