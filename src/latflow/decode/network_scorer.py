"""Log-likelihoods of utterances' frames by a network.

On the processor each thread scores its own utterance; on a device batches of like
length are scored, while others are searched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from latflow.decode.options import NetworkScoreOptions
from latflow.decode.turns import Turn
from latflow.errors import UserError
from latflow.graphs.hclg import load_model as load_transitions
from latflow.hmm.transition_model import TransitionModel
from latflow.nnet.model_dir import AcousticNetwork, choose_device, load_model
from latflow.nnet.normalization import Normalizer
from latflow.nnet.options import Precision
from latflow.nnet.precision import passes_in
from latflow.nnet.utterances import (
    ScoredUtterance,
    UtteranceBatches,
    UtteranceFrames,
)

_WINDOW_BYTES = 1 << 29  # scores of a window, of which two are in memory


Store = TypeVar("Store", bound=UtteranceFrames)


@dataclass(frozen=True, eq=False)
class NetworkScorer(Generic[Store]):
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
        max_frames: frames that go through the network at once on a device other than
            the processor, padding counted.
        precision: numbers of the forward pass.
    """

    store: Store
    network: AcousticNetwork
    normalization: Normalizer
    transitions: TransitionModel
    prior_scale: float
    acoustic_scale: float | None
    device: torch.device
    max_frames: int = 16000
    precision: Precision = "float32"

    @classmethod
    def load(
        cls,
        store: Store,
        model_dir: str | Path,
        options: NetworkScoreOptions,
    ) -> NetworkScorer[Store]:
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
            normalizer = network.normalizer
        except UserError as error:
            raise error.at(file=model_dir) from None
        by_kind = 1.0 if network.has_full_scale else None
        return cls(
            store,
            network,
            normalizer,
            transitions,
            prior_scale,
            options.acoustic_scale or by_kind,
            device,
            precision=options.precision,
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

    def turns(self, utterances: Sequence[int]) -> Iterator[Turn]:
        """Yield utterances in order; on a device, with scores that are on their way."""
        if self.device.type == "cpu":
            return (Turn(i, partial(self.log_likes, i)) for i in utterances)
        return map(_turn, self.scored(utterances))

    def scored(self, utterances: Sequence[int]) -> Iterator[ScoredUtterance]:
        """Yield the log-likelihoods of utterances in order, scored in batches."""
        batches = UtteranceBatches(
            self.store, self.normalization, self.device, self.max_frames
        )
        window = self.subsampling * _WINDOW_BYTES // (4 * self.transitions.num_pdfs)

        def score(features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
            with passes_in(self.precision, self.device):
                return self.network.log_likelihoods(
                    features, lengths, prior_scale=self.prior_scale
                )

        return batches.scored(score, utterances, max(window, self.max_frames))

    def warm_up(self) -> np.ndarray:
        """Run the network once; scores of a frame of zeros."""
        return self._score(np.zeros((1, self.store.dim), np.float32))

    def _score(self, frames: np.ndarray) -> np.ndarray:
        """Return float32[ceil(T / s), P] of float32[T, D]."""
        with passes_in(self.precision, self.device):
            return score_frames(self.network, frames, self.prior_scale, self.device)


def _turn(scored: ScoredUtterance) -> Turn:
    """Return the turn of an utterance that has been scored."""

    def log_likes() -> Iterator[np.ndarray]:
        yield scored.wait()

    return Turn(scored.index, log_likes, scored.seconds)


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
