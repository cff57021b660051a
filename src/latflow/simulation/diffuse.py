"""Diffuse noise: what several microphones hear of sound from all directions."""

from __future__ import annotations

import numpy as np

from latflow.simulation.acoustics import SPEED_OF_SOUND

_BINS = 512  # of the coherence, up to half the rate; it is smooth between them


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
