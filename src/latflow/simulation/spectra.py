"""Stationary noise with a spectrum: white, pink, that of a room."""

from __future__ import annotations

import numpy as np

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
