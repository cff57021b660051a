"""Frames of training, transformed, in chunks of bounded size.

A `FrameSource` gives the frames of some utterances of a `FrameStore` after a feature
transform (deltas, splicing, LDA) and after those of the speakers. Chunks hold whole
utterances and depend on sizes alone, never on the number of threads, so that sums over
chunks are always the same. The first chunks stay in memory up to a fixed number of
bytes; the others are made again whenever they are asked for.
"""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.gmm.speaker_transforms import SpeakerTransforms

CHUNK_BYTES = 64 << 20  # of transformed frames worked on together
CACHE_BYTES = 128 << 20  # of transformed frames kept in memory
_PIECE_FRAMES = 20_000  # transformed by one thread at a time


@dataclass(frozen=True)
class Chunk:
    """Utterances first ... last - 1 of a source."""

    first: int
    last: int


class FrameSource:
    """Frames of some utterances, transformed; safe to use from several threads.

    Args:
        store: where the base features are.
        transform: what is made of them.
        utterances: int64[U], which utterances of the store, in ascending order.
        chunk_bytes: size of a chunk; a longer utterance is a chunk of its own.
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
        self._room = cache_bytes // (4 * self.dim)  # frames

    def __len__(self) -> int:
        """U, the number of utterances."""
        return len(self.utterances)

    @property
    def num_frames(self) -> int:
        """Frames of all utterances."""
        return int(self.begin[-1])

    def utt_id(self, u: int) -> str:
        """Id of utterance u of this source."""
        return self.store.utt_ids[self.utterances[u]]

    def speaker(self, u: int) -> str:
        """Speaker of utterance u of this source."""
        return self.store.speakers[self.utterances[u]]

    def with_speaker_transforms(
        self, transforms: SpeakerTransforms | None
    ) -> FrameSource:
        """The same utterances in the same chunks, with other speaker transforms."""
        return FrameSource(
            self.store,
            self.transform,
            self.utterances,
            chunk_bytes=self._chunk_bytes,
            cache_bytes=self._cache_bytes,
            speaker_transforms=transforms,
        )

    def frames(self, u: int) -> np.ndarray:
        """Transformed frames of utterance u, float32[T_u, D]."""
        for chunk, kept in self._cache.items():
            if chunk.first <= u < chunk.last:
                first = self.begin[chunk.first]
                return kept[self.begin[u] - first : self.begin[u + 1] - first]
        return self._make(Chunk(u, u + 1))

    def chunk(self, chunk: Chunk, pool: Executor) -> np.ndarray:
        """Transformed frames of a chunk, float32[n, D], not to be changed."""
        if chunk in self._cache:
            return self._cache[chunk]
        pieces = self._split(chunk.first, chunk.last, _PIECE_FRAMES)
        made = list(pool.map(self._make, pieces))
        frames = made[0] if len(made) == 1 else np.concatenate(made)
        if len(frames) <= self._room:
            self._room -= len(frames)
            self._cache[chunk] = frames
        return frames

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
