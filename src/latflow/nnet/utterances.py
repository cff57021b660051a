"""Utterances of a store through a network, in batches of like length.

A window of consecutive utterances, as many as memory may hold scores of, is sorted by
length; what goes through the network together is padded to the longest. Results are in
the order asked for. With a GPU the next window is computed while the scores of one are
used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from latflow.device_copies import HostCopy, pinned, sent
from latflow.errors import is_out_of_memory
from latflow.nnet.normalization import Normalizer
from latflow.parallel import Prefetched
from latflow.ragged import windows

log = logging.getLogger(__name__)

#: (features [B, T, D], lengths [B]) -> scores [B, T', K] and their lengths [B].
Score = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class UtteranceFrames(Protocol):
    """Features of utterances, by their numbers."""

    @property
    def folder(self) -> Path:
        """Return where they are, for messages."""
        ...

    @property
    def dim(self) -> int:
        """Return their dimension, D."""
        ...

    @property
    def begin(self) -> np.ndarray:
        """Return the first frame of each utterance, and the end of the last one.

        Batches are made by these int64[U + 1]; estimates do.
        """
        ...

    def frames(self, i: int, /) -> np.ndarray:
        """Return the frames of an utterance, float32 [T, D]."""
        ...

    def get(self, numbers: Sequence[int], /) -> list[np.ndarray]:
        """Return the frames of several."""
        ...


@dataclass(frozen=True, eq=False)
class ScoredUtterance:
    """Scores of an utterance, which may still be on their way.

    Attributes:
        index: its number.
        seconds: processor time that went into them: features, and the network's where
            it runs on the processor.
    """

    index: int
    seconds: float
    _copy: HostCopy
    _row: int
    _length: int

    def wait(self) -> np.ndarray:
        """Return the scores when they are there, float32 [T', K]."""
        return self._copy.wait()[self._row, : self._length]


@dataclass(frozen=True, eq=False)
class UtteranceBatches:
    """Batches of the utterances of a store.

    Attributes:
        store: the frames.
        normalizer: of the network's features.
        device: of the network.
        max_frames: frames that go through the network at once, padding counted.
    """

    store: UtteranceFrames
    normalizer: Normalizer
    device: torch.device
    max_frames: int

    def windows(self, numbers: Sequence[int], frames: int) -> Iterator[Sequence[int]]:
        """Return consecutive utterances that have this many frames together, or one.

        Args:
            numbers: of the utterances.
            frames: most of a window, if it has several utterances.
        """
        ends = np.cumsum([0, *(self._length(i) for i in numbers)])
        return (numbers[first:last] for first, last in windows(ends, frames))

    def batches(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Yield utterances that go through the network together, short ones first.

        Args:
            numbers: of the utterances.
        """
        batch: list[int] = []
        for i in sorted(numbers, key=self._length):
            if batch and self._length(i) * (len(batch) + 1) > self.max_frames:
                yield batch
                batch = []
            batch.append(i)
        if batch:
            yield batch

    def _length(self, i: int) -> int:
        """Return the frames of an utterance."""
        return int(self.store.begin[i + 1] - self.store.begin[i])

    def padded(self, numbers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the normalized features of some utterances, and their lengths.

        Args:
            numbers: of the utterances.

        Returns:
            float32 [B, T, D] on the network's device, 0 beyond the ends, and int64 [B]
            on the CPU.
        """
        frames = self.store.get(numbers)
        lengths = torch.tensor([len(one) for one in frames])
        shape = len(frames), int(lengths.max()), self.store.dim
        here = pinned(shape, torch.float32, self.device)
        rows = here.numpy()
        for row, one in zip(rows, frames, strict=True):
            row[: len(one)], row[len(one) :] = one, 0.0
        features = here.to(self.device, non_blocking=True)
        if self.normalizer.kind == "none":
            return features, lengths
        moments = np.array([self.normalizer.moments(one) for one in frames])
        mean, scale = sent(moments, self.device).unsqueeze(2).unbind(1)
        time_of = torch.arange(shape[1], device=self.device)
        is_padding = time_of >= sent(lengths.numpy(), self.device)[:, None]
        features.sub_(mean).mul_(scale).masked_fill_(is_padding[..., None], 0.0)
        return features, lengths

    def scored(
        self, score: Score, numbers: Sequence[int], window_frames: int
    ) -> Iterator[ScoredUtterance]:
        """Yield the scores of utterances, in their order.

        Args:
            score: the network.
            numbers: of the utterances.
            window_frames: frames of a window; scores of two are in memory with a GPU,
                else of one.
        """
        # Elsewhere the network would only take the cores from what uses the scores.
        ahead = int(self.device.type == "cuda")
        found = Prefetched(
            lambda window: self._window(score, window),
            self.windows(numbers, window_frames),
            ahead=ahead,
        )
        for window in found:
            window.reverse()
            while window:  # nothing here keeps what has been used
                yield window.pop()

    def _window(self, score: Score, numbers: Sequence[int]) -> list[ScoredUtterance]:
        """Return the scores of some utterances, in their order."""
        found = {
            one.index: one
            for batch in self.batches(numbers)
            for one in self._scored(score, batch)
        }
        return [found[i] for i in numbers]

    def _scored(self, score: Score, batch: list[int]) -> Iterator[ScoredUtterance]:
        """Yield the scores of a batch; of its halves, where memory is short."""
        begun = time.thread_time()
        try:
            scores, ends = score(*self.padded(batch))
            copy = HostCopy(scores)
        except Exception as error:
            if len(batch) == 1 or not is_out_of_memory(error):
                raise
            halves = batch[: len(batch) // 2], batch[len(batch) // 2 :]
        else:
            seconds = (time.thread_time() - begun) / len(batch)
            for row, (i, end) in enumerate(zip(batch, ends.tolist(), strict=True)):
                yield ScoredUtterance(i, seconds, copy, row, end)
            return
        log.info(
            "%d utterances of up to %d frames find no memory on %s together: halved",
            *(len(batch), self._length(batch[-1]), self.device),
        )
        for half in halves:
            yield from self._scored(score, half)
