"""Log-likelihoods of a GMM system.

Public: `GmmScorer`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from latflow.features.frames import FrameStore
from latflow.features.transform import FeatureTransform
from latflow.gmm.model import AcousticModel
from latflow.gmm.speaker_transforms import SpeakerTransforms
from latflow.gmm.system import GmmSystem
from latflow.hmm.transition_model import TransitionModel

_CHUNK = 500  # frames whose log-likelihoods are computed at a time


@dataclass(frozen=True, eq=False)
class GmmScorer:
    """Scores of a GMM system.

    Attributes:
        store: the frames.
        transform: what the model's features are made of them.
        model: gives the log-likelihoods.
        speaker_transforms: what comes after `transform`, by speaker.
    """

    store: FrameStore
    transform: FeatureTransform
    model: AcousticModel
    speaker_transforms: SpeakerTransforms | None = None

    @classmethod
    def of(cls, store: FrameStore, system: GmmSystem) -> GmmScorer:
        """The scorer of a system, on features that are not adapted to speakers.

        Raises:
            UserError: the frames are not of the model's dimension.
        """
        system.model.gmms.check_dim(system.transform.dim_out(store.dim))
        return cls(store, system.transform, system.model)

    @property
    def transitions(self) -> TransitionModel:
        """The model's transitions."""
        return self.model.transitions

    def adapted(self, transforms: SpeakerTransforms) -> GmmScorer:
        """The same scorer on features that are adapted to speakers."""
        return replace(self, speaker_transforms=transforms)

    def frames(self, index: int) -> np.ndarray:
        """Features of an utterance as the model takes them, float32[T, D]."""
        frames = self.transform(self.store.frames(index))
        if self.speaker_transforms is None:
            return frames
        return self.speaker_transforms.apply(self.store.speakers[index], frames)

    def log_likes(self, index: int) -> Iterator[np.ndarray]:
        """Log-likelihoods of an utterance, float32[some frames, P] at a time."""
        frames = self.frames(index)
        for first in range(0, len(frames), _CHUNK):
            yield self.model.gmms.log_likelihoods(frames[first : first + _CHUNK])

    def warm_up(self) -> np.ndarray:
        """Load the compiled kernels; scores of a frame of zeros."""
        some = np.zeros((1, self.store.dim), np.float32)
        return self.model.gmms.log_likelihoods(self.transform(some))
