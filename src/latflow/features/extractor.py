"""The front end as Lhotse's feature extractors: `latflow-mfcc` and `latflow-fbank`.

Importing this module registers both with Lhotse, so that a CutSet can compute features
with them (`cuts.compute_and_store_features(KaldiMfcc(config), ...)`), and features be
mixed. `latflow.features.extract` writes their names into its manifests.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from lhotse.features.base import FeatureExtractor, register_extractor

from latflow.features.front_end import ENERGY_FLOOR, KaldiFrontEnd, dither
from latflow.features.options import FrontEndOptions


@dataclass
class KaldiFrontEndConfig:
    """Settings of the extractors: the front end's options and the sample rate.

    Attributes:
        sampling_rate: Hz.
        options: see `latflow.features.options`.
    """

    sampling_rate: int = 16000
    options: FrontEndOptions = field(default_factory=FrontEndOptions)

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> KaldiFrontEndConfig:
        """Back from plain values."""
        return KaldiFrontEndConfig(
            data["sampling_rate"], FrontEndOptions(**data["options"])
        )


class _KaldiExtractor(FeatureExtractor):
    """What both extractors share; `extract` may run in several threads at once."""

    config_type = KaldiFrontEndConfig
    config: KaldiFrontEndConfig

    def __init__(self, config: KaldiFrontEndConfig) -> None:
        super().__init__(config=config)
        self.front_end = KaldiFrontEnd(config.options, config.sampling_rate)

    @property
    def frame_shift(self) -> float:
        """Time from one frame to the next, seconds."""
        return self.front_end.frame_shift

    def feature_dim(self, sampling_rate: int) -> int:  # noqa: ARG002 - Lhotse's form
        """Features a frame."""
        return self.front_end.dim

    def extract(
        self, samples: np.ndarray | torch.Tensor, sampling_rate: int
    ) -> np.ndarray:
        """Compute the features of one signal.

        Without an utterance's id, dither is seeded by the samples themselves.

        Args:
            samples: [L] or [1, L], in [-1, 1).
            sampling_rate: must be the configured one.

        Returns:
            float32 [T, D].

        Raises:
            ValueError: another sample rate, or several channels.
        """
        if sampling_rate != self.config.sampling_rate:
            raise ValueError(f"{sampling_rate} Hz, not {self.config.sampling_rate} Hz")
        wave = np.atleast_2d(np.asarray(samples, np.float32))
        if len(wave) != 1:
            raise ValueError(f"{len(wave)} channels, not one")
        return self.extract_utterance(wave[0], zlib.crc32(wave.tobytes()))

    def extract_utterance(self, wave: np.ndarray, key: int) -> np.ndarray:
        """Compute the features of one utterance, float32 [T, D].

        Args:
            wave: [L], in [-1, 1).
            key: with `dither_seed` it chooses the dither: the CRC-32 of the id.
        """
        options = self.config.options
        rng = np.random.default_rng([options.dither_seed, key])
        return self.front_end.extract(dither(wave, options.dither, rng))


@register_extractor
class KaldiMfcc(_KaldiExtractor):
    """MFCC with Kaldi's numbers."""

    name = "latflow-mfcc"


@register_extractor
class KaldiFbank(_KaldiExtractor):
    """Log-mel energies with Kaldi's numbers; Lhotse can mix them without the audio."""

    name = "latflow-fbank"

    @staticmethod
    def mix(
        features_a: np.ndarray, features_b: np.ndarray, energy_scaling_factor_b: float
    ) -> np.ndarray:
        """Log of the sum of both signals' energies, the second scaled."""
        total = np.exp(features_a) + energy_scaling_factor_b * np.exp(features_b)
        return np.log(np.maximum(ENERGY_FLOOR, total))

    @staticmethod
    def compute_energy(features: np.ndarray) -> float:
        """Sum of the energies of all frames and filters."""
        return float(np.sum(np.exp(features)))

    @staticmethod
    def scale(features: np.ndarray, energy_scaling_factor: float) -> np.ndarray:
        """Features of the signal with its energy scaled."""
        return features + np.log(energy_scaling_factor)


def make_extractor(
    options: FrontEndOptions, sample_rate: int
) -> KaldiMfcc | KaldiFbank:
    """Make the extractor of the options' type.

    Raises:
        UserError: the options do not fit the sample rate.
    """
    config = KaldiFrontEndConfig(sample_rate, options)
    return KaldiMfcc(config) if options.type == "mfcc" else KaldiFbank(config)
