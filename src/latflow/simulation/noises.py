"""Noises: parts of recordings, stationary ones with a spectrum, diffuse fields."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.simulation.acoustics import SPEED_OF_SOUND

_FADE = 0.01  # with which a noise that repeats fades into itself, s
_QUIET = 1e-3  # power over that of the recording, below which a part is silence
_NEXT_BEGIN = 0.618  # steps that visit all of the recording evenly
_MAX_BEGINS = 10
_BINS = 512  # of a diffuse field's coherence, up to half the rate; smooth between them
# Hoth's noise: level in a band of 1 Hz (dB) at centres of thirds of an octave (Hz);
# ITU-T P.800, annex B.
_HOTH_HZ = (
    *(100, 125, 160, 200, 250, 315, 400, 500, 630, 800, 1000, 1250, 1600, 2000, 2500),
    *(3150, 4000, 5000, 6300, 8000),
)
_HOTH_DB = (
    *(32.4, 30.9, 29.1, 27.6, 26.0, 24.4, 22.7, 21.1, 19.5, 17.8, 16.2, 14.6, 12.9),
    *(11.3, 9.6, 7.8, 5.4, 2.6, -1.3, -6.6),
)


class NoisePart(NamedTuple):
    """A part of a recording.

    Attributes:
        samples: float64 [C, L], of each microphone.
        repeats: whether the recording is too short, and repeats.
        is_moved: whether it was quiet where it was to begin, and begins elsewhere.
    """

    samples: np.ndarray
    repeats: bool
    is_moved: bool


def cut_noise(
    noise: np.ndarray, begin: float, length: int, *, number: int, lead: int, rate: int
) -> NoisePart:
    """Cut a part out of a noise for each microphone, which begin at equal distances.

    A noise that is long enough is cut where it need not repeat. One that is not fades
    into its beginning within 10 ms. A part whose power is less than -30 dB of that of
    the recording is taken for silence, and another begin is tried; after ten the part
    with the loudest sample is taken.

    Args:
        noise: float32 [N], not silent.
        begin: share of the places where it can begin, in [0, 1).
        length: samples of a part, L, with the lead.
        number: of parts, C.
        lead: samples of a part before its audible ones.
        rate: Hz.
    """
    starts = len(noise) - length + 1
    repeats = starts < (1 if number == 1 else number * (length - lead))
    if repeats:
        noise = _looped(noise, round(_FADE * rate))
        starts = len(noise)

    def part(share: float) -> np.ndarray:
        first = (int(share * starts) + starts * np.arange(number) // number) % starts
        at = first[:, None] + np.arange(length)
        return np.take(noise, at, mode="wrap").astype(np.float64)

    least = _QUIET * float(np.square(noise, dtype=np.float64).mean())
    for k in range(_MAX_BEGINS):
        samples = part((begin + k * _NEXT_BEGIN) % 1.0)
        if np.square(samples[:, lead:]).mean() >= least:
            return NoisePart(samples, repeats, k > 0)
    loudest = int(np.abs(noise).argmax()) - (length + lead) // 2
    first = loudest % starts if repeats else min(max(loudest, 0), starts - 1)
    return NoisePart(part((first + 0.5) / starts), repeats, is_moved=True)


def _looped(noise: np.ndarray, fade: int) -> np.ndarray:
    """Return a noise whose end fades into its beginning: no click where it repeats."""
    fade = min(fade, len(noise) // 2)
    if fade < 1:
        return noise
    angle = np.pi / 2 * (np.arange(fade) + 0.5) / fade
    seam = noise[-fade:] * np.cos(angle) + noise[:fade] * np.sin(angle)
    return np.concatenate((seam, noise[fade:-fade])).astype(noise.dtype)


def noise_with_spectrum(
    spectrum: str, seed: int, shape: tuple[int, int], rate: int
) -> np.ndarray:
    """Return stationary noises with a spectrum, [C, L], at any level."""
    noise = np.random.default_rng([seed]).standard_normal(shape)
    if spectrum == "white":
        return noise
    length = shape[1]
    frequency = np.maximum(np.fft.rfftfreq(length, 1 / rate), 20.0)
    if spectrum == "pink":
        factor = frequency**-0.5
    else:
        level = np.interp(np.log(frequency), np.log(_HOTH_HZ), _HOTH_DB)
        factor = 10 ** (level / 20)
    return np.fft.irfft(np.fft.rfft(noise) * factor, n=length)


def diffuse_coherence(microphones: np.ndarray, frequency: np.ndarray) -> np.ndarray:
    """Return the coherence of a spherically isotropic sound field.

    Args:
        microphones: [C, 3], places, m.
        frequency: [F], Hz.

    Returns:
        float64 [F, C, C], sin(x) / x of x = 2 pi f d / c and the distance d.

    Source: Habets, Cohen and Gannot 2008, equation 4.
    """
    distance = np.linalg.norm(microphones[:, None] - microphones, axis=-1)
    # NumPy's sinc has the factor pi.
    return np.sinc(2 * frequency[:, None, None] * distance / SPEED_OF_SOUND)


def diffuse_noise(
    independent: np.ndarray, microphones: np.ndarray, rate: int
) -> np.ndarray:
    """Mix independent noises so that they have the coherence of a diffuse field.

    The mixture is the symmetric square root of the coherence at each frequency: a
    filter no longer than sound takes through the array, but for what is negligible. All
    microphones have the same power, and the noise keeps its spectrum and its course.

    Args:
        independent: [C, L], of one spectrum; their powers are made equal.
        microphones: [C, 3], places, m.
        rate: Hz.

    Returns:
        float64 [C, L].

    Source: Habets, Cohen and Gannot 2008, section III (eigenvalue decomposition; they
        mix frames of a short-time transform, here the whole noise is filtered).
    """
    channels, length = independent.shape
    grid = np.linspace(0.0, rate / 2, _BINS + 1)
    values, vectors = np.linalg.eigh(diffuse_coherence(microphones, grid))
    roots = np.sqrt(values.clip(min=0.0))  # rounding puts some below 0
    mixing = (vectors * roots[:, None]) @ vectors.swapaxes(1, 2)
    power = np.square(independent).mean(1, keepdims=True)
    scaled = independent * np.sqrt(power.mean() / power)
    # The ends wrap around: no matter to noise.
    sources = np.fft.rfft(scaled)
    frequency = np.fft.rfftfreq(length, 1 / rate)
    mixed = np.zeros_like(sources)
    for i in range(channels):
        for j in range(channels):
            mixed[i] += np.interp(frequency, grid, mixing[:, i, j]) * sources[j]
    return np.fft.irfft(mixed, n=length)
