"""Chunks of a segment's frames, for networks that see some frames around each.

The frames of a segment are cut at fixed positions, whatever pieces they come in. A
chunk has the frames around it that its scores depend on, as far as the segment has
them; what lies in the context is computed again for each chunk. So the scores of the
chunks are those of the whole segment (to float rounding), and the same bits for any
pieces.

Public: `ChunkCutter`.

Source: Kaldi `nnet3/nnet-am-decodable-simple.cc` (`frames-per-chunk`).
"""

from __future__ import annotations

import numpy as np

from latflow.serving.acoustics import Chunk


class ChunkCutter:
    """Cuts the frames of one segment into chunks.

    Attributes:
        is_whole: whether the whole segment is one chunk.

    Args:
        size: frames of a chunk, a multiple of the subsampling.
        context: frames before (a multiple of the subsampling) and behind that scores
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
        """Learn that there are no more frames."""
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
        return Chunk(kept[: last - first], begin - first, last - end)
