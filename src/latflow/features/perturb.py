"""Speeds and volumes of utterances whose features are computed when they are read."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from lhotse.augmentation import Speed
from lhotse.utils import perturb_num_samples

from latflow.features.options import PerturbationDraws

_KEY = zlib.crc32(b"speed and volume")


@dataclass(frozen=True)
class Perturbation:
    """Speed and volume of each utterance of a corpus, in one pass over it.

    Attributes:
        speed: float64 [N], factor of frequencies, and of the inverse of durations.
        volume: float64 [N], factor of samples.
    """

    speed: np.ndarray
    volume: np.ndarray

    @classmethod
    def draw(
        cls,
        utt_ids: Sequence[str],
        options: PerturbationDraws,
        *,
        seed: int,
        whole_pass: int,
    ) -> Perturbation:
        """Draw them for a pass; those of an utterance depend on no other.

        Args:
            utt_ids: ids of the utterances.
            options: speeds, and the range of volumes.
            seed: of the training.
            whole_pass: number of the pass over the corpus, from 0.
        """
        speeds = np.array(options.speeds)
        low, high = options.volume or (1.0, 1.0)
        draws = np.empty((2, len(utt_ids)))
        for i, utt_id in enumerate(utt_ids):
            key = zlib.crc32(utt_id.encode())
            rng = np.random.default_rng([seed, key, whole_pass, _KEY])
            draws[:, i] = rng.random(2)
        chosen = (draws[0] * len(speeds)).astype(np.int64)
        return cls(speeds[chosen], low + draws[1] * (high - low))


class Simulation(Protocol):
    """Changes the samples of the utterances of a pass, but not their number."""

    def draws(self, i: int) -> Hashable:
        """Tell the draws of utterance i apart; equal in passes that share them.

        They are also equal in all passes that leave the utterance alone.
        """
        ...

    def __call__(self, i: int, samples: np.ndarray) -> np.ndarray:
        """Return the samples of utterance i (of a corpus), float32 [L], simulated.

        They are [C, L] where C microphones are simulated.
        """
        ...


def num_samples_at(num_samples: int, speed: float) -> int:
    """Return the samples that a signal has at a speed."""
    return num_samples if speed == 1.0 else perturb_num_samples(num_samples, speed)


def change_speed(wave: np.ndarray, rate: int, speed: float) -> np.ndarray:
    """Return a signal at another speed (resampled, and taken at the same rate).

    Args:
        wave: float32 [L] or [C, L].
        rate: Hz, see `latflow.corpus.perturb.check_speed`.
        speed: factor of frequencies, and of the inverse of the duration.

    Returns:
        float32 [num_samples_at(L, speed)], or of each channel.

    Source: `sox speed`; Ko et al. 2015.
    """
    if speed == 1.0:
        return wave
    wanted = num_samples_at(wave.shape[-1], speed)
    changed = Speed(speed)(np.atleast_2d(wave), rate)[:, :wanted]
    missing = max(0, wanted - changed.shape[1])
    return np.pad(changed, ((0, 0), (0, missing))).reshape(*wave.shape[:-1], wanted)
