"""Log-likelihoods of frames as they come: chunks of many sessions at a time.

A segment is scored in chunks, each with the frames around it that its scores depend on.
A chunk begins at a multiple of the frame subsampling, counted from the beginning of its
segment; then its scores are those of the same frames in the whole segment, but for
rounding in products of matrices of other shapes. Positions of chunks are fixed, so that
the scores are the same bits for any pieces in which the frames come.

Source: Kaldi `nnet3/nnet-am-decodable-simple.cc` (`frames-per-chunk`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from latflow.decode.network_scorer import score_frames
from latflow.decode.scorers import gmm_scores
from latflow.errors import UserError
from latflow.features.transform import FeatureTransform
from latflow.gmm.model import DiagGmms
from latflow.nnet.model_dir import AcousticNetwork
from latflow.nnet.normalization import Normalizer
from latflow.nnet.streams import Memory


@dataclass(eq=False)
class Stream:
    """What a network keeps of a segment from one chunk to the next.

    Attributes:
        memory: of the network.
        begin: first frame of the chunk that it is for; others are scored without it.
        seen: frames of the segment that the network has taken.
        number: its own in this process, 1 or more.
    """

    memory: Memory = field(default_factory=Memory)
    begin: int = 0
    seen: int = 0
    number: int = field(default_factory=count(1).__next__)


@dataclass(frozen=True, eq=False)
class Chunk:
    """A piece of a segment's features, with the frames around it.

    Attributes:
        frames: float32[left + n + right, D], as a `FeatureStream` gives them.
        left: frames before the piece: those of the acoustics' context, or as many as
            there are where the segment has begun.
        right: frames behind the piece: likewise, where the segment has ended.
        begin: number of the piece's first frame in the segment.
        is_last: whether no frame of the segment follows these.
        stream: of the segment; None: each chunk is scored by its frames alone.
    """

    frames: np.ndarray
    left: int
    right: int
    begin: int = 0
    is_last: bool = False
    stream: Stream | None = None

    @property
    def num_frames(self) -> int:
        """Frames of the piece itself, n."""
        return len(self.frames) - self.left - self.right


def num_rows(chunk: Chunk, subsampling: int) -> int:
    """Return the number of scores of a chunk."""
    return -(-chunk.num_frames // subsampling)


class ChunkCutter:
    """Cuts the frames of one segment into chunks.

    Attributes:
        is_whole: whether the whole segment is one chunk.

    Args:
        size: frames of a chunk, a multiple of the period.
        context: frames before (a multiple of the period) and behind that scores
            depend on; None for all: then the whole segment is one chunk.
    """

    def __init__(self, size: int, context: tuple[int | None, int | None]) -> None:
        left, right = context
        self.is_whole = left is None or right is None
        self._size = size
        self._left, self._right = left or 0, right or 0
        self._pieces: list[np.ndarray] = []
        self._kept_from = 0  # first frame that is held
        self._num_frames = 0  # frames that have come
        self._next = 0  # first frame of the next chunk
        self._has_ended = False
        self._stream = Stream()

    @property
    def is_done(self) -> bool:
        """Return whether the segment has ended and all its frames have left."""
        return self._has_ended and self._next == self._num_frames

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames, float32[T, D]; T may be 0."""
        if len(frames):
            self._pieces.append(frames)
            self._num_frames += len(frames)

    def end(self) -> None:
        """Note that there are no more frames."""
        self._has_ended = True

    @property
    def is_ready(self) -> bool:
        """Return whether there is a chunk to be taken."""
        if self._has_ended:
            return not self.is_done
        wanted = self._next + self._size + self._right
        return not self.is_whole and wanted <= self._num_frames

    def take(self) -> Chunk | None:
        """Return the next chunk, if its frames and their context are there."""
        if not self.is_ready:
            return None
        begin = self._next
        end = self._num_frames if self.is_whole else begin + self._size
        end = min(end, self._num_frames)
        first = max(0, begin - self._left)
        last = min(end + self._right, self._num_frames)
        kept = np.concatenate(self._pieces)[first - self._kept_from :]
        self._pieces, self._kept_from, self._next = [kept], first, end
        is_last = self._has_ended and last == self._num_frames
        frames, left, right = kept[: last - first], begin - first, last - end
        return Chunk(frames, left, right, begin, is_last, self._stream)


class Acoustics(Protocol):
    """Gives log-likelihoods; shared by threads."""

    @property
    def context(self) -> tuple[int | None, int | None]:
        """Frames before and behind that a score depends on; None for all.

        That before is a multiple of the period.
        """
        ...

    @property
    def period(self) -> int:
        """Frames of which a chunk has a multiple, one of the subsampling too."""
        ...

    @property
    def subsampling(self) -> int:
        """Frames of the features for one of the scores, s."""
        ...

    @property
    def has_full_scale(self) -> bool:
        """Return whether scores of frames may be added up, as LF-MMI trains them."""
        ...

    @property
    def num_pdfs(self) -> int:
        """Columns of the scores, P."""
        ...

    def check_dim(self, dim: int) -> None:
        """Refuse features of another dimension.

        Raises:
            UserError: they are.
        """
        ...

    def log_likes(self, frames: np.ndarray) -> np.ndarray:
        """Score a whole segment: float32[ceil(T / s), P] of float32[T, D]."""
        ...

    def score(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        """Score chunks of any number of segments at once.

        Each must be a whole segment if the context is unlimited.

        Returns:
            For each, float32[ceil(n / s), P].
        """
        ...


@dataclass(frozen=True, eq=False)
class NetworkAcoustics:
    """Scores of a network; see `latflow.decode.network_scorer.NetworkScorer`.

    Threads of torch are those that the caller has set.

    Attributes:
        network: on its device.
        normalization: of the network's input.
        prior_scale: factor on the log priors.
        device: where the network is.
    """

    network: AcousticNetwork
    normalization: Normalizer
    prior_scale: float
    device: torch.device

    @property
    def context(self) -> tuple[int | None, int | None]:
        """Frames before and behind that a score depends on; None for all."""
        left, right = self.network.network.receptive_field
        if self.normalization.kind not in {"none", "global"}:
            return None, None
        if left is not None:
            left = -(-left // self.period) * self.period
        return left, right

    @property
    def subsampling(self) -> int:
        """Frames of the features for one of the scores, s."""
        return self.network.network.subsampling

    @property
    def period(self) -> int:
        """Frames of which a chunk has a multiple; see `Network.period`."""
        return self.network.network.period

    @property
    def has_full_scale(self) -> bool:
        """Return whether LF-MMI or CTC trained the network."""
        return self.network.has_full_scale

    @property
    def num_pdfs(self) -> int:
        """Columns of the scores, P."""
        return next(iter(self.network.network.outputs.values())).num_classes

    def check_dim(self, dim: int) -> None:
        """Refuse features of another dimension, see `Acoustics`."""
        wanted = self.network.network.dim_in
        if dim != wanted:
            what = f"the features have dimension {dim}, the network takes {wanted}"
            raise UserError(what)

    def log_likes(self, frames: np.ndarray) -> np.ndarray:
        """Score a whole segment, see `Acoustics`."""
        if not len(frames):
            return np.empty((0, self.num_pdfs), np.float32)
        return score_frames(
            self.network, self.normalization(frames), self.prior_scale, self.device
        )

    def score(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        """Score chunks in few passes of the network, see `Acoustics`."""
        if None in self.context:
            return [self.log_likes(chunk.frames) for chunk in chunks]
        if not chunks:
            return []
        groups: dict[Hashable, list[int]] = {}
        for index, chunk in enumerate(chunks):
            groups.setdefault(self._form(chunk), []).append(index)
        # Streams continue when all is scored: what fails is scored again.
        found: dict[int, np.ndarray] = {}
        memories: dict[int, Memory] = {}
        for form, group in groups.items():
            picked = [chunks[index] for index in group]
            if form is None:
                found.update(zip(group, self._score_alone(picked), strict=True))
                continue
            scores, kept = self._go_on(picked)
            found.update(zip(group, scores, strict=True))
            memories.update(zip(group, kept, strict=True))
        for index, memory in memories.items():
            chunk, stream = chunks[index], chunks[index].stream
            assert stream is not None
            stream.memory, stream.begin = memory, chunk.begin + chunk.num_frames
            stream.seen = stream.begin + chunk.right
        return [found[index] for index in range(len(chunks))]

    def _form(self, chunk: Chunk) -> Hashable:
        """Return what is equal of chunks whose streams can go side by side.

        None for a chunk that has no memory of those before: it is scored by its frames.
        """
        stream = chunk.stream
        if stream is None or stream.begin != chunk.begin:
            return None
        if not self.network.network.can_stream:
            return None
        frames = chunk.begin + chunk.num_frames + chunk.right - stream.seen
        rows = num_rows(chunk, self.subsampling)
        return frames, rows, chunk.is_last, stream.memory.form

    def _go_on(self, chunks: Sequence[Chunk]) -> tuple[list[np.ndarray], list[Memory]]:
        """Score chunks of one form; return their memories, too."""
        arrays, memories = [], []
        for chunk in chunks:
            assert chunk.stream is not None
            seen = chunk.stream.seen - (chunk.begin - chunk.left)
            arrays.append(self.normalization(chunk.frames[seen:]))
            memories.append(chunk.stream.memory)
        batch = torch.from_numpy(np.stack(arrays)).to(self.device)
        with torch.inference_mode():
            scores, memory = self.network.stream(
                batch,
                Memory.joined(memories),
                num_rows(chunks[0], self.subsampling),
                is_last=chunks[0].is_last,
                prior_scale=self.prior_scale,
            )
            kept = memory.parted(len(chunks))
        return [*scores.cpu().numpy()], kept

    def _score_alone(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        """Score chunks in one pass, each by the frames around it."""
        arrays = self.inputs(chunks)
        lengths = torch.tensor([len(array) for array in arrays])
        shape = len(arrays), int(lengths.max()), arrays[0].shape[1]
        batch = np.zeros(shape, np.float32)
        for row, array in zip(batch, arrays, strict=True):
            row[: len(array)] = array
        scores = self.forward(torch.from_numpy(batch).to(self.device), lengths)
        return self.rows_of(scores.cpu().numpy(), chunks)

    @property
    def has_context(self) -> bool:
        """Return whether inputs have the network's context, copies at the edges."""
        return self.network.network.description.repeats_edges

    def inputs(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        """Return what the network takes of each chunk, float32[n', D]."""
        with_edges = self._with_edges if self.has_context else lambda c: c.frames
        return [self.normalization(with_edges(chunk)) for chunk in chunks]

    def forward(
        self, batch: Tensor, lengths: Tensor, there: Tensor | None = None
    ) -> Tensor:
        """Return the scores of inputs, float32[B, T', P].

        Args:
            batch: [B, T, D], on the device.
            lengths: integers [B], of the inputs with their context.
            there: the same on the device, where they are there already.
        """
        if self.has_context:
            around = sum(self.network.network.context)
            lengths = lengths - around
            there = None if there is None else there - around
        with torch.inference_mode():
            scores, _ = self.network.log_likelihoods(
                batch,
                lengths,
                prior_scale=self.prior_scale,
                has_context=self.has_context,
                lengths_there=there,
            )
        return scores

    def rows_of(self, scores: np.ndarray, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        """Return each chunk's own scores of those of its input."""
        factor = self.subsampling
        first = [0 if self.has_context else chunk.left // factor for chunk in chunks]
        return [
            row[begin : begin + num_rows(chunk, factor)]
            for row, chunk, begin in zip(scores, chunks, first, strict=False)
        ]

    def _with_edges(self, chunk: Chunk) -> np.ndarray:
        """Return a chunk's frames with exactly the network's context around them.

        Edges of the segment are repeated where the chunk has less.
        """
        left, right = self.network.network.context
        first = chunk.left - left
        last = chunk.left + chunk.num_frames + right
        if first >= 0 and last <= len(chunk.frames):
            return chunk.frames[first:last]
        return chunk.frames[np.arange(first, last).clip(0, len(chunk.frames) - 1)]


@dataclass(frozen=True, eq=False)
class GmmAcoustics:
    """Scores of a GMM system; see `latflow.decode.scorers.GmmScorer`.

    Attributes:
        transform: what the model's features are made of the frames.
        gmms: the mixtures.
    """

    transform: FeatureTransform
    gmms: DiagGmms

    @property
    def context(self) -> tuple[int | None, int | None]:
        """Frames before and behind that a score depends on."""
        return self.transform.context

    @property
    def period(self) -> int:
        """Frames of which a chunk has a multiple: any number."""
        return 1

    @property
    def subsampling(self) -> int:
        """1: each frame is scored."""
        return 1

    @property
    def has_full_scale(self) -> bool:
        """Return false: neighbouring frames say the same again."""
        return False

    @property
    def num_pdfs(self) -> int:
        """Columns of the scores, P."""
        return self.gmms.num_pdfs

    def check_dim(self, dim: int) -> None:
        """Refuse features of another dimension, see `Acoustics`."""
        self.gmms.check_dim(self.transform.dim_out(dim))

    def log_likes(self, frames: np.ndarray) -> np.ndarray:
        """Score a whole segment, see `Acoustics`."""
        pieces = gmm_scores(self.gmms, self.transform(frames))
        return np.concatenate([np.empty((0, self.num_pdfs), np.float32), *pieces])

    def score(self, chunks: Sequence[Chunk]) -> list[np.ndarray]:
        """Score chunks in one pass over the mixtures, see `Acoustics`."""
        if not chunks:
            return []
        begin = np.cumsum([0, *(len(chunk.frames) for chunk in chunks)])
        features = self.transform.apply(
            np.concatenate([chunk.frames for chunk in chunks]), begin
        )
        pieces = [
            features[first + chunk.left : first + chunk.left + chunk.num_frames]
            for first, chunk in zip(begin.tolist(), chunks, strict=False)
        ]
        scores = self.gmms.log_likelihoods(np.concatenate(pieces))
        ends = np.cumsum([len(piece) for piece in pieces])[:-1]
        return np.split(scores, ends)
