"""Frames of training, transformed, in chunks of bounded size; speaker transforms.

A `FrameSource` gives the frames of some utterances of a `FrameStore` after a feature
transform (deltas, splicing, LDA) and after those of the speakers, which fMLLR estimates
(Kaldi's `trans.*`, archives of matrices with speakers as keys). Chunks hold whole
utterances and depend on sizes alone, never on the number of threads, so that sums over
chunks are always the same. The first chunks stay in memory up to a fixed number of
bytes; the others are made again whenever they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform, project
from latflow.kaldi.io import read_matrices, write_matrices

CHUNK_BYTES = 64 << 20  # of transformed frames worked on together
CACHE_BYTES = 128 << 20  # of transformed frames kept in memory
_PIECE_FRAMES = 20_000  # transformed by one thread at a time


class SpeakerTransforms:
    """An affine transform a speaker; the identity for speakers without one.

    Args:
        matrices: float32[D, D + 1] by speaker, the offset in the last column.

    Raises:
        UserError: the matrices differ in size, or one is not D x (D + 1).
    """

    def __init__(self, matrices: Mapping[str, np.ndarray]) -> None:
        self.matrices = {
            speaker: np.ascontiguousarray(matrix, np.float32)
            for speaker, matrix in matrices.items()
        }
        shapes = sorted({matrix.shape for matrix in self.matrices.values()})
        if len(shapes) > 1 or any(columns != rows + 1 for rows, columns in shapes):
            raise UserError(
                f"speaker transforms of shapes {shapes}, where D x (D + 1) is needed",
                remedy="estimate them again, all on the same features",
            )

    def __len__(self) -> int:
        """Return the number of speakers that have a transform."""
        return len(self.matrices)

    def apply(self, speaker: str, frames: np.ndarray) -> np.ndarray:
        """Transform frames of a speaker, float32[T, D] -> float32[T, D].

        Raises:
            UserError: the frames have another dimension than the transforms.
        """
        matrix = self.matrices.get(speaker)
        if matrix is None:
            return frames
        dim = len(matrix)
        if frames.shape[1] != dim:
            raise UserError(
                f"frames of dimension {frames.shape[1]}, but the transform of speaker "
                f"{speaker} takes {dim}",
                remedy="estimate the transforms on these features",
            )
        return project(frames, matrix[:, :dim], matrix[:, dim])

    def after(self, first: SpeakerTransforms) -> SpeakerTransforms:
        """Combine two rounds: `first`, then these (Kaldi's compose-transforms)."""
        speakers = sorted(self.matrices.keys() | first.matrices.keys())
        return SpeakerTransforms(
            {
                speaker: _product(
                    self.matrices.get(speaker), first.matrices.get(speaker)
                )
                for speaker in speakers
            }
        )

    def check_dim(self, dim: int, path: str | Path) -> None:
        """Refuse transforms of another dimension than a model's.

        Args:
            dim: dimension of the model's features.
            path: where the transforms come from.

        Raises:
            UserError: they differ.
        """
        for speaker, matrix in self.matrices.items():
            if len(matrix) != dim:
                raise UserError(
                    f"the transform of speaker {speaker} is for dimension "
                    f"{len(matrix)}, the model is of {dim}",
                    file=path,
                    remedy="take transforms that were estimated with this model",
                )

    @classmethod
    def load(cls, path: str | Path) -> SpeakerTransforms:
        """Read an archive of matrices, binary or text, gunzipped if `.gz`.

        Raises:
            UserError: the file is missing or garbled, or the matrices do not fit.
        """
        try:
            return cls(dict(read_matrices(path)))
        except UserError as error:
            raise error.at(file=error.file or path) from None

    def save(self, path: str | Path) -> None:
        """Atomically write a binary archive, speakers sorted."""
        write_matrices(path, sorted(self.matrices.items()))


def _product(second: np.ndarray | None, first: np.ndarray | None) -> np.ndarray:
    """Return the transform that does `first`, then `second`; None: the identity."""
    if second is None or first is None:
        known = first if second is None else second
        assert known is not None  # a speaker comes from one of the two
        return known
    dim = len(first)
    square = second[:, :dim].astype(np.float64)
    product = square @ first.astype(np.float64)
    product[:, dim] += second[:, dim]
    return product.astype(np.float32)


@dataclass(frozen=True)
class Chunk:
    """Utterances first ... last - 1 of a source."""

    first: int
    last: int


class FrameSource:
    """Frames of some utterances, transformed; safe to use from several threads.

    Args:
        store: the base features.
        transform: what is made of them.
        utterances: int64[U], which utterances of the store, in ascending order.
        chunk_bytes: size of a chunk; a longer utterance is its own chunk.
        cache_bytes: memory for chunks that are kept.
        speaker_transforms: what comes after `transform`, by speaker.

    Attributes:
        begin: int64[U + 1], first frame of each utterance of this source.
        dim: D, after the transform.
        chunks: all utterances, in order.
    """

    def __init__(
        self,
        store: FrameStore,
        transform: FeatureTransform,
        utterances: np.ndarray,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        cache_bytes: int = CACHE_BYTES,
        speaker_transforms: SpeakerTransforms | None = None,
    ) -> None:
        self.store = store
        self.speaker_transforms = speaker_transforms
        self._chunk_bytes, self._cache_bytes = chunk_bytes, cache_bytes
        self.transform = transform
        self.utterances = np.asarray(utterances, np.int64)
        lengths = np.diff(store.begin)[self.utterances]
        self.begin = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self.dim = transform.dim_out(store.dim)
        most = max(1, chunk_bytes // (4 * self.dim))
        self.chunks = self._split(0, len(self.utterances), most)
        self._cache: dict[Chunk, np.ndarray] = {}
        self._free_frames = cache_bytes // (4 * self.dim)  # frames

    def __len__(self) -> int:
        """Return U, the number of utterances."""
        return len(self.utterances)

    @property
    def num_frames(self) -> int:
        """Frames of all utterances."""
        return int(self.begin[-1])

    def utt_id(self, u: int) -> str:
        """Return the id of utterance u of this source."""
        return self.store.utt_ids[self.utterances[u]]

    def text(self, u: int) -> str:
        """Return the transcript of utterance u of this source."""
        return self.store.texts[self.utterances[u]]

    def speaker(self, u: int) -> str:
        """Return the speaker of utterance u of this source."""
        return self.store.speakers[self.utterances[u]]

    def with_speaker_transforms(
        self, transforms: SpeakerTransforms | None
    ) -> FrameSource:
        """Return the same utterances and chunks, with other speaker transforms."""
        return FrameSource(
            self.store,
            self.transform,
            self.utterances,
            chunk_bytes=self._chunk_bytes,
            cache_bytes=self._cache_bytes,
            speaker_transforms=transforms,
        )

    def frames(self, u: int) -> np.ndarray:
        """Return the transformed frames of utterance u, float32[T_u, D]."""
        for chunk, kept in self._cache.items():
            if chunk.first <= u < chunk.last:
                first = self.begin[chunk.first]
                return kept[self.begin[u] - first : self.begin[u + 1] - first]
        return self._make(Chunk(u, u + 1))

    def chunk(self, chunk: Chunk, pool: Executor) -> np.ndarray:
        """Return transformed frames of a chunk, float32[n, D], not to be changed."""
        if chunk in self._cache:
            return self._cache[chunk]
        pieces = self._split(chunk.first, chunk.last, _PIECE_FRAMES)
        made = list(pool.map(self._make, pieces))
        frames = made[0] if len(made) == 1 else np.concatenate(made)
        if len(frames) <= self._free_frames:
            self._free_frames -= len(frames)
            self._cache[chunk] = frames
        return frames

    def aligned_chunks(
        self, alignment: np.ndarray, pool: Executor
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Go through all frames with their alignment, a chunk at a time.

        Args:
            alignment: int32[sum T], transition-ids; 0 where a frame is not aligned.

        Yields:
            (frames float32[n, D], transition-ids int32[n]).
        """
        for chunk in self.chunks:
            first, last = self.begin[chunk.first], self.begin[chunk.last]
            yield self.chunk(chunk, pool), alignment[first:last]

    def _make(self, piece: Chunk) -> np.ndarray:
        """Transform the frames of some utterances."""
        wanted = self.utterances[piece.first : piece.last]
        begin = self.begin[piece.first : piece.last + 1] - self.begin[piece.first]
        if wanted[-1] - wanted[0] == len(wanted) - 1:
            base = self.store.block(int(wanted[0]), int(wanted[-1]) + 1)
        else:
            base = np.concatenate([self.store.frames(i) for i in wanted.tolist()])
        frames = self.transform.apply(base, begin)
        if self.speaker_transforms is not None:
            for u, utterance in enumerate(wanted.tolist()):
                mine = frames[begin[u] : begin[u + 1]]
                mine[:] = self.speaker_transforms.apply(
                    self.store.speakers[utterance], mine
                )
        return frames

    def _split(self, first: int, last: int, most: int) -> tuple[Chunk, ...]:
        """Cut utterances first ... last - 1 into runs of at most `most` frames."""
        chunks = []
        while first < last:
            end = int(np.searchsorted(self.begin, self.begin[first] + most, "right"))
            end = min(max(end - 1, first + 1), last)
            chunks.append(Chunk(first, end))
            first = end
        return tuple(chunks)
