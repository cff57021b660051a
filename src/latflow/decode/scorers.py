"""Log-likelihoods of an utterance's frames, whatever gives them.

Those of a network are in `latflow.decode.network_scorer`, which is imported only where
a network decodes: torch's import takes longer than a small job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from latflow.decode.options import NetworkScoreOptions
from latflow.decode.turns import Turn
from latflow.features.frames import FrameStore
from latflow.features.source import Frames, open_frames
from latflow.features.transform import FeatureTransform
from latflow.gmm.model import AcousticModel, DiagGmms, GmmSystem
from latflow.gmm.source import SpeakerTransforms
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

    @property
    def subsampling(self) -> int:
        """Frames of the features for one of the scores."""
        ...

    @property
    def acoustic_scale(self) -> float | None:
        """Factor on the scores in the search; None for what its options say."""
        ...

    @property
    def lattice_scale(self) -> float:
        """Factor of acoustic costs in the lattices that are written."""
        ...

    def log_likes(self, index: int) -> Iterator[np.ndarray]:
        """Yield log-likelihoods of an utterance, float32[some frames, P] at a time."""
        ...

    def turns(self, utterances: Sequence[int]) -> Iterator[Turn]:
        """Yield utterances in order, for threads to score and search.

        Several may be scored together before it is their turn, where it is quicker.
        """
        ...

    def warm_up(self) -> np.ndarray:
        """Load what is compiled or read on first use; scores of a made-up frame."""
        ...


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

    @property
    def subsampling(self) -> int:
        """1: each frame is scored."""
        return 1

    @property
    def acoustic_scale(self) -> float | None:
        """None: the options of the search have it."""
        return None

    @property
    def lattice_scale(self) -> float:
        """1: lattices are written as they are."""
        return 1.0

    @classmethod
    def of(cls, store: FrameStore, system: GmmSystem) -> GmmScorer:
        """Return the scorer of a system, on features that are not adapted to speakers.

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
        """Return the same scorer on features that are adapted to speakers."""
        return replace(self, speaker_transforms=transforms)

    def frames(self, index: int) -> np.ndarray:
        """Return an utterance's features as the model takes them, float32[T, D]."""
        frames = self.transform(self.store.frames(index))
        if self.speaker_transforms is None:
            return frames
        return self.speaker_transforms.apply(self.store.speakers[index], frames)

    def log_likes(self, index: int) -> Iterator[np.ndarray]:
        """Yield log-likelihoods of an utterance, float32[some frames, P] at a time."""
        return gmm_scores(self.model.gmms, self.frames(index))

    def turns(self, utterances: Sequence[int]) -> Iterator[Turn]:
        """Yield utterances in order; each is scored by the thread that takes it."""
        return (Turn(i, partial(self.log_likes, i)) for i in utterances)

    def warm_up(self) -> np.ndarray:
        """Load the compiled kernels; scores of a frame of zeros."""
        some = np.zeros((1, self.store.dim), np.float32)
        return self.model.gmms.log_likelihoods(self.transform(some))


def gmm_scores(gmms: DiagGmms, features: np.ndarray) -> Iterator[np.ndarray]:
    """Yield log-likelihoods of an utterance, float32[some frames, P] at a time.

    Args:
        gmms: the mixtures.
        features: as the model takes them, float32[T, D].
    """
    for first in range(0, len(features), _CHUNK):
        yield gmms.log_likelihoods(features[first : first + _CHUNK])


def load_scorer(
    frames_dir: Path, model_dir: Path, options: NetworkScoreOptions, *, threads: int = 1
) -> Scorer:
    """Return the scorer of a system's folder, GMM or network.

    Args:
        frames_dir: the frames that the system reads.
        model_dir: the system's folder.
        options: of a network.
        threads: that compute features on the fly, where batches are scored.

    Raises:
        UserError: a file is missing or broken, or the parts do not fit.
    """
    if (model_dir / "network.yaml").is_file():
        from latflow.decode.network_scorer import NetworkScorer

        store = open_frames(frames_dir, threads=threads)
        return NetworkScorer.load(store, model_dir, options)
    return GmmScorer.of(FrameStore.load(frames_dir), GmmSystem.load(model_dir))
