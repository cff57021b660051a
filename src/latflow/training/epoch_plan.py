"""The batches of an epoch, and reading what the coming ones need.

Half of a `PageBudget` at most is for batches to come; the rest is for those that were
made last. (RETURNN's `cache_size` is for parts of an epoch that it loads as a whole.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from latflow.criteria.batch import share_out
from latflow.page_cache import PageBudget
from latflow.training.chunks import AnyChunker, Chunks
from latflow.training.readers import FrameReader

# Batches that are asked for while one is made: an epoch begins without waiting for half
# of the bytes.
_STEP = 4


@dataclass(frozen=True)
class EpochPlan:
    """The global batches of an epoch.

    Attributes:
        reader: features, changed as drawn for the epoch.
        chunker: finds chunks by their numbers.
        numbers: int64 [n], the chunks in their order.
        begin: int64 [batches + 1], where each batch begins in `numbers`.
    """

    reader: FrameReader
    chunker: AnyChunker
    numbers: np.ndarray
    begin: np.ndarray

    def __len__(self) -> int:
        return len(self.begin) - 1

    def part(self, b: int, rank: int, size: int) -> Chunks:
        """Return the chunks of batch b that are a rank's."""
        numbers = self.numbers[self.begin[b] : self.begin[b + 1]]
        chunks = self.chunker.chunks(numbers)
        return chunks.select(share_out(chunks.length, size)[rank])


class ReadAhead:
    """Ask for the pages of batches before they are made, in their order.

    Args:
        pages: what they are read into.
        hold: asks for the pages of a batch; returns their bytes.
        first: the batch that is made first.
        num_batches: of the epoch.
    """

    def __init__(
        self,
        pages: PageBudget,
        hold: Callable[[int], int],
        first: int,
        num_batches: int,
    ) -> None:
        self._hold, self._num_batches = hold, num_batches
        self._max_ahead = pages.max_bytes // 2
        self._next = first
        self._ahead: deque[int] = deque()  # bytes of the batches asked for, not made

    def before(self, batch: int) -> None:
        """Ask for what is needed before a batch is made; to be called for each."""
        if self._next == batch:
            self._request_next()
        self._ahead.popleft()
        for _ in range(_STEP):
            if self._next == self._num_batches or sum(self._ahead) >= self._max_ahead:
                break
            self._request_next()

    def _request_next(self) -> None:
        """Ask for the next batch."""
        self._ahead.append(self._hold(self._next))
        self._next += 1
