"""Features and masks as targets: what outputs with a squared error learn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames
from latflow.nnet.normalization import Normalizer
from latflow.simulation.options import CleanTarget, EarlyTarget, MaskTarget
from latflow.training.chunks import Chunks
from latflow.training.data_options import BatchOptions
from latflow.training.readers import FrameReader, LiveReader, StoreReader


class FrameTargets(ABC):
    """Numbers to learn for each frame of utterances.

    Attributes:
        dim: numbers a frame, D.
        normalizer: what is applied to them.
    """

    dim: int
    normalizer: Normalizer

    @abstractmethod
    def places(
        self, features: FrameReader, utterance: np.ndarray, options: BatchOptions
    ) -> np.ndarray:
        """Return the numbers by which utterances are read.

        Args:
            features: that targets are learnt from.
            utterance: int64 [n], numbers of utterances there.
            options: what is done to the features.

        Returns:
            int64 [n]; -1 for those without targets, or with targets of another length.

        Raises:
            UserError: the targets cannot follow the features.
        """

    @abstractmethod
    def fill(
        self,
        features: FrameReader,
        utterance: np.ndarray,
        chunks: Chunks,
        out: np.ndarray,
    ) -> None:
        """Write the targets of chunks.

        Args:
            features: of the pass.
            utterance: int64 [B], see `places`.
            chunks: of the features.
            out: float32 [B, T, D].
        """

    def read(
        self,
        features: FrameReader,
        utterance: np.ndarray,
        chunks: Chunks,
        subsampling: int,
    ) -> np.ndarray:
        """Return the targets of chunks, float32 [B, T', D]; NaN where not counted.

        Args:
            features: of the pass.
            utterance: int64 [B], see `places`.
            chunks: of the features.
            subsampling: frames of the features for one of the output.
        """
        frames = np.empty((len(chunks), int(chunks.length.max()), self.dim), np.float32)
        self.fill(features, utterance, chunks, frames)
        targets = np.ascontiguousarray(frames[:, ::subsampling])
        times = np.arange(targets.shape[1]) * subsampling + chunks.first[:, None]
        is_counted = (chunks.count_from[:, None] <= times) & (
            times < chunks.count_to[:, None]
        )
        targets[~is_counted] = np.nan
        return targets


class StoredTargets(FrameTargets):
    """Stored features, normalized to mean 0 and variance 1 over the training set.

    Args:
        store: the features of a split.
        normalizer: of the training set.
    """

    def __init__(self, store: FrameStore, normalizer: Normalizer) -> None:
        self._store = store
        self._reader = StoreReader(store, normalizer)
        self.dim, self.normalizer = store.dim, normalizer

    @classmethod
    def open(cls, train: Path, dev: Path) -> dict[str, FrameTargets]:
        """Open the features of the splits `train` and `dev`.

        Raises:
            UserError: one is not a frame store.
        """
        stores = {"train": FrameStore.load(train), "dev": FrameStore.load(dev)}
        normalizer = Normalizer.estimate("global", stores["train"])
        return {split: cls(store, normalizer) for split, store in stores.items()}

    def places(
        self, features: FrameReader, utterance: np.ndarray, options: BatchOptions
    ) -> np.ndarray:
        """See `FrameTargets.places`."""
        if options.perturbation is not None:
            raise UserError(
                "stored features as targets do not follow data.perturbation",
                remedy="leave it out, or take a training_set of corpus.perturbed",
            )
        ids, lengths = features.utt_ids, features.lengths[utterance]
        index = self._store.positions([ids[i] for i in utterance])
        found = np.append(self._reader.lengths, -1)[index]
        return np.where(found == lengths, index, -1)

    def fill(
        self,
        features: FrameReader,  # noqa: ARG002 - the form of `FrameTargets`
        utterance: np.ndarray,
        chunks: Chunks,
        out: np.ndarray,
    ) -> None:
        """See `FrameTargets.fill`."""
        self._reader.fill(utterance, chunks.first, chunks.length, out)


class SimulatedTargets(FrameTargets):
    """What simulation knows of the utterances of a pass: wanted features, or masks.

    Features are normalized by mean and variance of the clean ones over the training
    set, masks are left unchanged.

    Args:
        target: what is learnt.
        clean: the features of the training split, as they are without simulation.
        known: a normalization of them, taken over where it is `global`.
    """

    def __init__(
        self,
        target: CleanTarget | EarlyTarget | MaskTarget,
        clean: LiveFrames,
        known: Normalizer,
    ) -> None:
        self._target = target
        if isinstance(target, MaskTarget):
            self.dim, self.normalizer = clean.num_bins(target.domain), Normalizer()
            return
        self.dim, self.normalizer = clean.dim, known
        if known.kind != "global":
            self.normalizer = Normalizer.estimate("global", clean)

    def places(
        self, features: FrameReader, utterance: np.ndarray, options: BatchOptions
    ) -> np.ndarray:
        """See `FrameTargets.places`."""
        if options.simulation is None or not isinstance(features, LiveReader):
            raise UserError(
                "targets of simulation, and the features are not simulated",
                remedy="compute features on the fly (`stored: false`)",
            )
        return utterance

    def fill(
        self,
        features: FrameReader,
        utterance: np.ndarray,
        chunks: Chunks,
        out: np.ndarray,
    ) -> None:
        """See `FrameTargets.fill`."""
        assert isinstance(features, LiveReader)
        computed = features.learnt(self._target, utterance.tolist())
        out[:] = 0.0
        for row, frames in enumerate(computed):
            first, length = int(chunks.first[row]), int(chunks.length[row])
            mean, scale = self.normalizer.moments(frames)
            out[row, :length] = (frames[first : first + length] - mean) * scale


def is_counted(target: Tensor) -> Tensor:
    """Return which frames of a target are counted, bool [B, T'].

    Args:
        target: labels, or features, see `Batch.targets`.
    """
    return target >= 0 if target.dim() == 2 else ~target[..., 0].isnan()


def count_frames(
    chunks: Chunks, targets: Mapping[str, Tensor], subsampling: int
) -> Tensor:
    """Return the frames of the output that each chunk counts, int64 [B].

    Args:
        chunks: of the features.
        targets: see `Batch.targets`; frames count that one of them has. None: all.
        subsampling: frames of the features for one of the output.
    """
    if not targets:
        before = -((chunks.first - chunks.count_from) // subsampling)
        until = -((chunks.first - chunks.count_to) // subsampling)
        return torch.from_numpy(until - before)
    has_label = torch.stack([is_counted(target) for target in targets.values()])
    return has_label.any(0).sum(1)
