"""Log-likelihoods of an utterance's frames, whatever gives them.

Public: `Scorer`, `GmmScorer`, `NetworkScorer`, `load_scorer`, `score_frames`,
`gmm_scores`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from latflow.decode.options import NetworkScoreOptions
from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.source import Frames, open_frames
from latflow.features.transform import FeatureTransform
from latflow.gmm.model import AcousticModel, DiagGmms, GmmSystem
from latflow.gmm.source import SpeakerTransforms
from latflow.graphs.hclg import load_model as load_transitions
from latflow.hmm.transition_model import TransitionModel
from latflow.nnet.model_dir import AcousticNetwork, choose_device, load_model
from latflow.nnet.normalization import Normalizer


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


@dataclass(frozen=True, eq=False)
class NetworkScorer:
    """Scores of a network: its log posteriors less the scaled log priors.

    Of a network whose outputs are log-likelihoods, those.

    Attributes:
        store: the frames.
        network: on its device.
        normalization: of the network's input.
        transitions: of the system whose alignments the network was trained on.
        prior_scale: factor on the log priors.
        acoustic_scale: factor on the scores in the search; None for the options'.
        device: where the network is.
    """

    store: Frames
    network: AcousticNetwork
    normalization: Normalizer
    transitions: TransitionModel
    prior_scale: float
    acoustic_scale: float | None
    device: torch.device

    @classmethod
    def load(
        cls,
        store: Frames,
        model_dir: str | Path,
        options: NetworkScoreOptions,
    ) -> NetworkScorer:
        """Read a network's folder.

        Args:
            store: the frames.
            model_dir: as training wrote it.
            options: what is made of the scores, and the device.

        Raises:
            UserError: a file is missing or broken, or the parts do not fit.
        """
        device = choose_device(options.device)
        network = load_model(model_dir, device)
        _, transitions = load_transitions(model_dir)
        try:
            prior_scale = network.prior_scale(options.prior_scale)
        except UserError as error:
            raise error.at(file=model_dir) from None
        by_kind = 1.0 if network.has_full_scale else None
        return cls(
            store,
            network,
            Normalizer.from_meta(network.meta["normalization"]),
            transitions,
            prior_scale,
            options.acoustic_scale or by_kind,
            device,
        )

    def __post_init__(self) -> None:
        """Check that the parts belong together.

        Raises:
            UserError: features or classes do not fit.
        """
        network = self.network.network
        if network.dim_in != self.store.dim:
            raise UserError(
                f"features have dimension {self.store.dim}, but the network takes "
                f"{network.dim_in}",
                file=self.store.folder,
                remedy="decode with the features that the network was trained on",
            )
        num_classes = next(iter(network.outputs.values())).num_classes
        if num_classes != self.transitions.num_pdfs:
            raise UserError(
                f"the network has {num_classes} classes, the tree "
                f"{self.transitions.num_pdfs} pdfs",
                remedy="tree and network must be of the same training",
            )

    @property
    def subsampling(self) -> int:
        """Frames of the features for one of the scores, s."""
        return self.network.network.subsampling

    @property
    def lattice_scale(self) -> float:
        """Factor of acoustic costs in the lattices that are written."""
        return self.network.lattice_scale

    def log_likes(self, index: int) -> Iterator[np.ndarray]:
        """Yield log-likelihoods of an utterance, float32[ceil(T / s), P] at once."""
        frames = self.normalization(self.store.frames(index))
        yield self._score(frames)

    def warm_up(self) -> np.ndarray:
        """Run the network once; scores of a frame of zeros."""
        return self._score(np.zeros((1, self.store.dim), np.float32))

    def _score(self, frames: np.ndarray) -> np.ndarray:
        """Return float32[ceil(T / s), P] of float32[T, D]."""
        return score_frames(self.network, frames, self.prior_scale, self.device)


def score_frames(
    network: AcousticNetwork,
    frames: np.ndarray,
    prior_scale: float,
    device: torch.device,
) -> np.ndarray:
    """Return a network's scores of a whole utterance, float32[ceil(T / s), P].

    Args:
        network: on its device.
        frames: normalized, float32[T, D].
        prior_scale: factor on the log priors.
        device: where the network is.
    """
    writable = np.require(frames, requirements="W")  # torch refuses others
    batch = torch.from_numpy(writable).to(device).unsqueeze(0)
    lengths = torch.tensor([len(frames)])
    scores, _ = network.log_likelihoods(batch, lengths, prior_scale=prior_scale)
    return scores[0].cpu().numpy()


def load_scorer(
    frames_dir: Path, model_dir: Path, options: NetworkScoreOptions
) -> GmmScorer | NetworkScorer:
    """Return the scorer of a system's folder, GMM or network.

    Args:
        frames_dir: the frames that the system reads.
        model_dir: the system's folder.
        options: of a network.

    Raises:
        UserError: a file is missing or broken, or the parts do not fit.
    """
    if (model_dir / "network.yaml").is_file():
        return NetworkScorer.load(open_frames(frames_dir), model_dir, options)
    return GmmScorer.of(FrameStore.load(frames_dir), GmmSystem.load(model_dir))
