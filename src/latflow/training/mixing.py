"""Noise that is added to stored features when they are read.

Features that are energies, or their logarithms, of a sum of two signals are nearly the
sums of both signals' energies: what is missing are products of the two, which are as
often positive as negative. So noise can be added without the audio, and in no time
compared with a simulation of waveforms; there are no rooms, and no distortion.

The extractor adds, as Lhotse's `FeatureMixer` has it do (`FeatureExtractor.mix`,
`compute_energy`), after a gain g of the noise with

    10 log10(energy of the utterance / (g x energy of the noise)) = SNR

where energies are sums over the frames and features of the utterance, and of as many
frames of the noise.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from lhotse.features.base import FeatureExtractor

from latflow.array_cache import ArrayCache
from latflow.errors import UserError
from latflow.features.extract import Extractor, KaldiExtractor, make_extractor
from latflow.features.frames import FrameStore
from latflow.features.lhotse_extractors import adds_features
from latflow.features.options import (
    Extraction,
    ExtractionOptions,
    LhotseExtractionOptions,
)
from latflow.options import read_options
from latflow.simulation.distributions import drawn
from latflow.simulation.records import list_audio
from latflow.simulation.simulator import sounding
from latflow.training.data_options import MixingDraws

_DRAWS = zlib.crc32(b"mixing of features")


class _Noise(NamedTuple):
    """A noise that is drawn: its file, where it begins (a share of it), and its SNR."""

    file: str
    begin: float
    snr: float


class FeatureMixing:
    """Noises for the utterances of a store; safe to share between threads.

    Args:
        options: to draw from.
        store: frames as they were extracted, by the extractor that it records.
        seed: of all draws.

    Raises:
        UserError: the store does not record its extractor, that cannot add features, or
            a folder or pattern names no audio.
    """

    def __init__(self, options: MixingDraws, store: FrameStore, *, seed: int) -> None:
        self._options, self._store, self._seed = options, store, seed
        self._extractor = _extractor_of(store)
        self._mixer = _mixer_of(self._extractor, store.folder)
        self._files = {files: list_audio(files) for files in options.files}
        self._cache = ArrayCache(options.cache_mb * 10**6)
        self._energy = np.full(len(store), np.nan)

    def in_pass(self, whole_pass: int) -> PassMixing:
        """Return the noises of a pass over the data."""
        return PassMixing(self, whole_pass)

    def draw(self, i: int, whole_pass: int) -> list[_Noise]:
        """Draw the noises of utterance i in a pass."""
        key = zlib.crc32(self._store.utt_ids[i].encode())
        rng = np.random.default_rng([self._seed, key, whole_pass, _DRAWS])
        if rng.random() >= self._options.probability:
            return []
        found = []
        for noise in self._options.noises.values():
            files = self._files[noise.files]
            is_there = rng.random() < noise.probability
            file, begin = files[int(rng.integers(len(files)))], float(rng.random())
            snr = drawn(noise.snr, rng)
            if is_there:
                found.append(_Noise(file, begin, snr))
        return found

    def gain(self, i: int, noise: _Noise) -> float:
        """Return the gain of the energy of a noise beside utterance i."""
        length = int(np.diff(self._store.begin[i : i + 2])[0])
        if np.isnan(self._energy[i]):
            self._energy[i] = self._mixer.compute_energy(self._store.frames(i))
        of_noise = self._mixer.compute_energy(self.part(noise, 0, length))
        return self._energy[i] / of_noise / 10 ** (noise.snr / 10)

    def part(self, noise: _Noise, first: int, last: int) -> np.ndarray:
        """Return frames of a noise that repeats, counted from where it begins."""
        features = self._features(noise.file)
        times = int(noise.begin * len(features)) + np.arange(first, last)
        return features[times % len(features)]

    def mix(self, frames: np.ndarray, noise: np.ndarray, gain: float) -> np.ndarray:
        """Return the features of a sum, float32 [T, D]."""
        return np.asarray(self._mixer.mix(frames, noise, gain), np.float32)

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of utterance i, without noise."""
        return self._store.frames(i)

    def are_known(self, utterance: np.ndarray) -> np.ndarray:
        """Tell of which utterances the energy is known, bool [B]."""
        return ~np.isnan(self._energy[utterance])

    def _features(self, file: str) -> np.ndarray:
        """Return the features of a recording, without the silence at its ends."""
        found = self._cache.get(file)
        if found is None:
            wave = sounding(file, self._extractor.sample_rate)
            key = zlib.crc32(Path(file).name.encode())
            found = self._extractor.extract_utterance(wave, key)
            if not len(found):
                raise UserError(
                    "is too short for one frame",
                    file=file,
                    remedy="take it out of the folder, or narrow the pattern",
                )
            self._cache.put(file, found)
        return found


class PassMixing:
    """Utterances with the noises that are drawn for a pass over the data.

    Args:
        mixing: draws them.
        whole_pass: from 0.
    """

    def __init__(self, mixing: FeatureMixing, whole_pass: int) -> None:
        self.mixing = mixing
        self._whole_pass = whole_pass
        # the chunks of an utterance come together, with `pool`
        self._noises = lru_cache(maxsize=4096)(self._drawn)

    def frames(self, i: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """Return frames of utterance i, float32 [T, D]; all of them by default."""
        frames = self.mixing.frames(i)[first:last]
        for noise, gain in self._noises(i):
            part = self.mixing.part(noise, first, first + len(frames))
            frames = self.mixing.mix(frames, part, gain)
        return frames

    def _drawn(self, i: int) -> list[tuple[_Noise, float]]:
        """Draw the noises of utterance i, with their gains."""
        noises = self.mixing.draw(i, self._whole_pass)
        return [(noise, self.mixing.gain(i, noise)) for noise in noises]


def _extractor_of(store: FrameStore) -> Extractor:
    extraction = store.meta.get("extraction")
    if extraction is None:
        raise UserError(
            "does not record how its features were computed",
            file=store.folder,
            remedy="take features of nnet.features, stored and without CMVN",
        )
    known = cast("type[ExtractionOptions | LhotseExtractionOptions]", Extraction)
    options = read_options(known, extraction, "features")
    return make_extractor(options.front_end, int(store.meta["sample_rate"]))


def _mixer_of(extractor: Extractor, folder: Path) -> FeatureExtractor:
    """Return what adds features; refuse an extractor whose features do not add up."""
    is_ours = isinstance(extractor, KaldiExtractor)
    mixer = extractor if is_ours else extractor.instance()
    if not adds_features(mixer):
        raise UserError(
            f"features of {extractor.name} do not add up",
            file=folder,
            remedy="leave data.mixing out, or take features of type fbank",
        )
    return mixer
