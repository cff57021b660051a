"""Statistics of utterances, kept in a temporary file that is mapped into memory."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from typing import BinaryIO

import numpy as np

from latflow.errors import UserError
from latflow.nnet.normalization import Normalizer

_BLOCK = 1 << 20  # bytes that are written at a time


class Moments:
    """Mean and scale of each utterance, made once.

    Args:
        num_utterances: N.
        dim: D.
        normalizer: what makes them.
    """

    def __init__(self, num_utterances: int, dim: int, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self._is_known = np.zeros(num_utterances, np.bool_)
        self._same: np.ndarray | None = None
        self._kept = np.empty((0, 2, dim), np.float32)
        if normalizer.kind in {"none", "global"}:
            self._same = np.stack(normalizer.moments(np.zeros((1, dim), np.float32)))
        elif num_utterances:
            self._kept = _temporary((num_utterances, 2, dim))

    def are_known(self, utterance: np.ndarray) -> np.ndarray:
        """Tell of which utterances no frames are needed any more, bool [B]."""
        if self._same is not None:
            return np.ones(len(utterance), np.bool_)
        return self._is_known[utterance]

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
            self._kept[i] = self._normalizer.moments(frames(i))
            self._is_known[i] = True
        return self._kept[i]


def _temporary(shape: tuple[int, ...]) -> np.ndarray:
    """Make a float32 array in a temporary file without a name.

    Its room is taken at once: a disk that fills up later would end the process.
    """
    with tempfile.TemporaryFile(prefix="latflow-moments-") as stream:
        try:
            _allocate(stream, 4 * math.prod(shape))
        except OSError as error:
            raise UserError(
                f"no room for the means of utterances ({error.strerror})",
                file=tempfile.gettempdir(),
                remedy="free space there, or set TMPDIR to a larger disk",
            ) from error
        return np.memmap(stream, np.float32, "r+", shape=shape)


def _allocate(stream: BinaryIO, size: int) -> None:
    """Make an empty file this many zeros long, which are on the disk."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, size)
        return
    for start in range(0, size, _BLOCK):
        stream.write(bytes(min(_BLOCK, size - start)))
    stream.flush()
