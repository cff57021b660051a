"""Utterances in the order of a search, whatever gives their log-likelihoods."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, eq=False)
class Turn:
    """An utterance whose turn it is, and what gives its log-likelihoods.

    Attributes:
        index: its number.
        log_likes: gives them, float32[some frames, P] at a time; may be called again.
        seconds: processor time that they have taken already.
    """

    index: int
    log_likes: Callable[[], Iterator[np.ndarray]]
    seconds: float = 0.0
