"""Cut utterances into the pieces that a network is trained on: chunks, or all of them.

A chunk has frames that are *counted* (they have targets) and, where wanted, frames of
*context* around them that the network sees and that are not counted. With chunks of
`size` frames every `step` frames (step <= size), chunk k of an utterance of T frames
counts the frames [k step, min(k step + size, T)), and the last chunk is the first one
that reaches T. So a frame counts once where step = size, and once for each chunk that
it lies in where chunks overlap (as RETURNN counts); overlap that is to be seen but not
counted is what `context` is for.

The last chunk of an utterance is mostly shorter. It would be padded to the length of
the others; instead it reaches back over frames that the chunk before has counted, which
cost as much as padding and are context here.

With a subsampling factor s of the network, all chunks begin at multiples of s, so that
the frames of the output are the same as those of the whole utterance. The network then
has an output for one frame of s only; a *shift* of 0..s-1 frames, which leaves out so
many at the start of each utterance, chooses which (Kaldi's chain training shifts too).

Nothing is held per chunk: pieces are numbered through, and found by their number.

Public: `Cutting`, `Pieces`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

_BLOCK = 1 << 16  # pieces that are looked at together


@dataclass(frozen=True)
class Pieces:
    """Pieces of utterances; all fields are int64 [n], frames count from 0.

    Attributes:
        utterance: number of the utterance.
        first: its first frame that the piece holds.
        length: frames that it holds.
        count_from: first frame of the utterance that is counted.
        count_to: the one after the last.
    """

    utterance: np.ndarray
    first: np.ndarray
    length: np.ndarray
    count_from: np.ndarray
    count_to: np.ndarray

    def __len__(self) -> int:
        return len(self.utterance)

    def select(self, rows: np.ndarray) -> Pieces:
        """Some of the pieces."""
        return Pieces(
            self.utterance[rows],
            self.first[rows],
            self.length[rows],
            self.count_from[rows],
            self.count_to[rows],
        )


class Cutting:
    """All pieces of a corpus.

    Args:
        lengths: int64 [N], frames of each utterance, >= 1.
        size: frames that a chunk counts; None = whole utterances.
        step: frames from one chunk to the next, 1 <= step <= size.
        left: frames of context before.
        right: frames of context behind.
        subsampling: s; size, step and left must be multiples of it.
        shift: frames left out at the start; all but the last of a shorter utterance.

    Attributes:
        begin: int64 [N + 1], first piece of each utterance.
        num_pieces: how many there are.

    Raises:
        ValueError: numbers outside of these bounds.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        size: int | None = None,
        step: int | None = None,
        *,
        left: int = 0,
        right: int = 0,
        subsampling: int = 1,
        shift: int = 0,
    ) -> None:
        self._shift = np.minimum(shift, lengths - 1)
        self._lengths = lengths = lengths - self._shift
        self._size = int(lengths.max(initial=1)) if size is None else size
        self._step = self._size if step is None else step
        self._left, self._right, self._subsampling = left, right, subsampling
        if not 1 <= self._step <= self._size:
            raise ValueError(f"step {self._step} is not in 1..{self._size}")
        if size is not None and (size % subsampling or self._step % subsampling):
            raise ValueError(f"{size} and {self._step}: multiples of {subsampling}?")
        if left % subsampling:
            raise ValueError(f"{left} is not a multiple of {subsampling}")
        beyond = np.maximum(lengths - self._size, 0)
        self.begin = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(1 - (-beyond // self._step), out=self.begin[1:])

    @property
    def num_pieces(self) -> int:
        """Pieces of all utterances."""
        return int(self.begin[-1])

    def pieces(self, numbers: np.ndarray) -> Pieces:
        """Find pieces by their numbers, int64 [n] in 0..num_pieces - 1."""
        utterance = np.searchsorted(self.begin, numbers, side="right") - 1
        total = self._lengths[utterance]
        count_from = (numbers - self.begin[utterance]) * self._step
        count_to = np.minimum(count_from + self._size, total)
        # only the last chunk begins behind the last place where a whole one fits
        fits = np.maximum(total - self._size, 0)
        fits -= fits % self._subsampling
        first = np.maximum(np.minimum(count_from, fits) - self._left, 0)
        length = np.minimum(count_to + self._right, total) - first
        shift = self._shift[utterance]
        return Pieces(
            utterance, first + shift, length, count_from + shift, count_to + shift
        )

    def lengths(self) -> np.ndarray:
        """Frames that each piece holds, int32 [num_pieces]."""
        result = np.empty(self.num_pieces, np.int32)
        for at in range(0, self.num_pieces, _BLOCK):
            numbers = np.arange(at, min(at + _BLOCK, self.num_pieces))
            result[numbers] = self.pieces(numbers).length
        return result
