"""Scores of chunks for a scheduler: who computes them, and where they go."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from latflow.serving.acoustics import Acoustics, Chunk

#: Takes the scores of a chunk, float32[ceil(n / s), P], or why there are none.
ScoresCallback = Callable[[np.ndarray | Exception], None]


class Observer:
    """Observes a scheduler's work, in its threads; does nothing here."""

    def opened(self) -> None:
        """Observe a new session."""

    def closed(self) -> None:
        """Observe a session's end."""

    def scored(self, chunks: int, seconds: float) -> None:
        """Observe a batch that went through the network."""

    def searched(self, seconds: float) -> None:
        """Observe a step of a session: features, search, or results."""


class ChunkScorer(Protocol):
    """Scores chunks, which one thread gives it."""

    def room(self) -> int:
        """Wait until chunks are taken; return how many, 0 once it is closed."""
        ...

    def score(
        self,
        chunks: Sequence[Chunk],
        callbacks: Sequence[ScoresCallback],
        *,
        are_urgent: bool,
    ) -> None:
        """Score chunks; each callback is called once.

        Args:
            chunks: no more than there was room for.
            callbacks: of each chunk, for its scores or its fault.
            are_urgent: whether they are the ends of sessions.
        """
        ...

    def close(self) -> None:
        """Take no more chunks; no callback is called any more."""
        ...


class LocalScorer:
    """Scores chunks in the calling thread.

    Args:
        acoustics: give the scores.
        max_batch: chunks that go through the network at a time.
        threads: of a call of the network.
        observer: is notified of the batches.
    """

    def __init__(
        self, acoustics: Acoustics, max_batch: int, threads: int, observer: Observer
    ) -> None:
        self._acoustics, self._observer = acoustics, observer
        self._max_batch, self._threads = max_batch, threads

    def room(self) -> int:
        """Return the size of the largest batch."""
        return self._max_batch

    def score(
        self,
        chunks: Sequence[Chunk],
        callbacks: Sequence[ScoresCallback],
        *,
        are_urgent: bool,  # noqa: ARG002 - nothing else is at work
    ) -> None:
        """Score chunks in one call, see `ChunkScorer`."""
        torch.set_num_threads(self._threads)
        found = score_each(self._acoustics.score, chunks, self._observer)
        for callback, rows in zip(callbacks, found, strict=True):
            callback(rows)

    def close(self) -> None:
        """Do nothing: callbacks of what is being scored are called."""


def score_each(
    score: Callable[[Sequence[Chunk]], Sequence[np.ndarray]],
    chunks: Sequence[Chunk],
    observer: Observer,
) -> Sequence[np.ndarray | Exception]:
    """Score chunks in one call; alone where one of them is faulty.

    Returns:
        For each its scores, or the fault.
    """
    began = time.perf_counter()
    try:
        found = score(chunks)
    except Exception as error:  # noqa: BLE001 - passed to its session
        if len(chunks) == 1:
            return [error]
        return [one for c in chunks for one in score_each(score, [c], observer)]
    observer.scored(len(chunks), time.perf_counter() - began)
    return found
