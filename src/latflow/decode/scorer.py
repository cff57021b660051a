"""What gives the log-likelihoods of an utterance's frames, whatever kind it is.

Public: `Scorer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from latflow.features.live import Frames
from latflow.hmm.transition_model import TransitionModel


class Scorer(Protocol):
    """Scores the utterances of a frame store; shared by threads."""

    @property
    def store(self) -> Frames:
        """The frames."""
        ...

    @property
    def transitions(self) -> TransitionModel:
        """Tells which column of the scores a transition-id takes."""
        ...

    def log_likes(self, index: int) -> Iterator[np.ndarray]:
        """Log-likelihoods of an utterance, float32[some frames, P] at a time."""
        ...

    def warm_up(self) -> np.ndarray:
        """Load what is compiled or read on first use; scores of a made-up frame."""
        ...
