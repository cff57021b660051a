"""Features of another stream as targets: what outputs with a squared error learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from latflow.features.frames import FrameStore
from latflow.nnet.normalization import Normalizer
from latflow.training.chunks import Chunks
from latflow.training.readers import StoreReader


class FrameTargets:
    """Stored features, normalized to mean 0 and variance 1 over the training set.

    Args:
        store: the features of a split.
        normalizer: of the training set; see `estimate`.

    Attributes:
        dim: numbers a frame, D.
        normalizer: as given.
    """

    def __init__(self, store: FrameStore, normalizer: Normalizer) -> None:
        self._store = store
        self._reader = StoreReader(store, normalizer)
        self.dim, self.normalizer = store.dim, normalizer

    @classmethod
    def open(cls, train: Path, dev: Path) -> dict[str, FrameTargets]:
        """Open the features of the splits `train` and `dev`.

        Raises:
            UserError: one is no frame store.
        """
        stores = {"train": FrameStore.load(train), "dev": FrameStore.load(dev)}
        normalizer = Normalizer.estimate("global", stores["train"])
        return {split: cls(store, normalizer) for split, store in stores.items()}

    def places(self, utt_ids: Sequence[str], lengths: np.ndarray) -> np.ndarray:
        """Return the numbers of utterances in the store, int64 [n].

        Args:
            utt_ids: n ids.
            lengths: int64 [n], frames that each must have; others give -1.
        """
        index = self._store.positions(utt_ids)
        found = np.append(self._reader.lengths, -1)[index]
        return np.where(found == lengths, index, -1)

    def read(
        self, utterance: np.ndarray, chunks: Chunks, subsampling: int
    ) -> np.ndarray:
        """Return the targets of chunks, float32 [B, T', D]; NaN where not counted.

        Args:
            utterance: int64 [B], numbers of the utterances in the store.
            chunks: of the features.
            subsampling: frames of the features for one of the output.
        """
        frames = np.empty((len(chunks), int(chunks.length.max()), self.dim), np.float32)
        self._reader.fill(utterance, chunks.first, chunks.length, frames)
        targets = np.ascontiguousarray(frames[:, ::subsampling])
        times = np.arange(targets.shape[1]) * subsampling + chunks.first[:, None]
        is_counted = (chunks.count_from[:, None] <= times) & (
            times < chunks.count_to[:, None]
        )
        targets[~is_counted] = np.nan
        return targets


def is_counted(target: Tensor) -> Tensor:
    """Return which frames of a target are counted, bool [B, T'].

    Args:
        target: labels, or features, see `Batch.targets`.
    """
    return target >= 0 if target.dim() == 2 else ~target[..., 0].isnan()
