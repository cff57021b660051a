"""Frames of a corpus, put into the tensors of a batch.

`FrameReader` is what a `BatchSource` reads from: `StoreReader` reads a `FrameStore`,
`LiveReader` features that are computed on the fly.
A store is mapped into memory: what it keeps there is the operating system's page cache,
which all ranks of a machine share, which fills what memory is free and gives way where
others need it. A cache of our own would hold the same bytes twice.

Statistics of utterances (for `mean`, `mean_variance`) are made when an utterance is
first touched, and kept in a temporary file that is mapped likewise.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames
from latflow.training.normalisation import Normaliser


class FrameReader(Protocol):
    """Features of a corpus, by utterance; safe to share between threads.

    Attributes:
        dim: features a frame, D.
        normaliser: what `fill` applies.
    """

    dim: int
    normaliser: Normaliser

    @property
    def utt_ids(self) -> list[str]:
        """Utterance ids."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        ...

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write the normalised features of pieces; what is beyond their ends is 0.

        Args:
            utterance: int64 [B], numbers of the utterances.
            first: int64 [B], first frame of each piece.
            length: int64 [B], frames of each piece, <= T.
            out: float32 [B, T, D], written as a whole.
        """
        ...


class StoreReader:
    """Read a `FrameStore`.

    Args:
        store: the frames.
        normaliser: applied to what is read.
    """

    def __init__(self, store: FrameStore, normaliser: Normaliser | None = None) -> None:
        self.store = store
        self.dim = store.dim
        self.normaliser = normaliser or Normaliser()
        self._matrix = store.block(0, len(store)).view()
        self._matrix.flags.writeable = False
        self._moments = Moments(len(store), self.dim, self.normaliser)

    @property
    def utt_ids(self) -> list[str]:
        """Utterance ids, sorted."""
        return self.store.utt_ids

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        return np.diff(self.store.begin)

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """See `FrameReader.fill`."""
        moments = np.empty((len(utterance), 2, self.dim), np.float32)
        for row, i in enumerate(utterance):
            moments[row] = self._moments.of(int(i), self.store.frames)
        begin = self.store.begin[utterance] + first
        _assemble(self._matrix, begin, length, moments, out)


class LiveReader:
    """Read features that are computed on the fly.

    Args:
        live: the features.
        normaliser: applied to what is read.
    """

    def __init__(self, live: LiveFrames, normaliser: Normaliser | None = None) -> None:
        self.live = live
        self.dim = live.dim
        self.normaliser = normaliser or Normaliser()
        self._moments = Moments(len(live), live.dim, self.normaliser)

    @property
    def utt_ids(self) -> list[str]:
        """Utterance ids, sorted."""
        return self.live.utt_ids

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        return np.diff(self.live.begin)

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """See `FrameReader.fill`."""
        numbers = utterance.tolist()
        frames = dict(zip(numbers, self.live.get(numbers), strict=True))
        for row, i in enumerate(numbers):
            last = first[row] + length[row]
            mean, scale = self._moments.of(i, frames.__getitem__)
            out[row, : length[row]] = (frames[i][first[row] : last] - mean) * scale
            out[row, length[row] :] = 0.0


class Moments:
    """Mean and scale of each utterance, made once.

    Args:
        num_utterances: N.
        dim: D.
        normaliser: what makes them.
    """

    def __init__(self, num_utterances: int, dim: int, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._is_known = np.zeros(num_utterances, np.bool_)
        self._same: np.ndarray | None = None
        self._kept = np.empty((0, 2, dim), np.float32)
        if normaliser.kind in {"none", "global"}:
            self._same = np.stack(normaliser.moments(np.zeros((1, dim), np.float32)))
        elif num_utterances:
            self._kept = _temporary((num_utterances, 2, dim))

    def of(self, i: int, frames: Callable[[int], np.ndarray]) -> np.ndarray:
        """Return those of utterance i, float32 [2, D].

        Two threads may make the same ones at once; both write the same numbers.

        Args:
            i: number of the utterance.
            frames: gives the frames of an utterance, where they are needed.
        """
        if self._same is not None:
            return self._same
        if not self._is_known[i]:
            self._kept[i] = self._normaliser.moments(frames(i))
            self._is_known[i] = True
        return self._kept[i]


def _temporary(shape: tuple[int, ...]) -> np.ndarray:
    """Make a float32 array in a temporary file without a name.

    Its room is taken at once: a disk that fills up later would end the process.
    """
    with tempfile.TemporaryFile(prefix="latflow-moments-") as stream:
        try:
            os.posix_fallocate(stream.fileno(), 0, 4 * math.prod(shape))
        except OSError as error:
            raise UserError(
                f"no room for the means of utterances ({error.strerror})",
                file=tempfile.gettempdir(),
                remedy="free space there, or set TMPDIR to a larger disk",
            ) from error
        return np.memmap(stream, np.float32, "r+", shape=shape)


@njit(cache=True, nogil=True)
def _assemble(
    matrix: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    moments: np.ndarray,
    out: np.ndarray,
) -> None:
    """out[b, t] = (matrix[begin[b] + t] - mean) x scale for t < length[b], else 0.

    Args:
        matrix: float32 [sum T, D].
        begin: int64 [B], first row of each piece.
        length: int64 [B], rows of each piece.
        moments: float32 [B, 2, D]: mean and scale.
        out: float32 [B, T, D].
    """
    for b in range(out.shape[0]):
        for t in range(length[b]):
            row = matrix[begin[b] + t]
            for d in range(out.shape[2]):
                out[b, t, d] = (row[d] - moments[b, 0, d]) * moments[b, 1, d]
        out[b, length[b] :] = 0.0
