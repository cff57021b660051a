"""Constants of the front end: window function, mel filters, cosine transform.

All in float64 numpy; `front_end` casts them. Frequencies are in Hz, mel as in HTK and
Kaldi: mel(f) = 1127 ln(1 + f / 700).
"""

from __future__ import annotations

import numpy as np

from latflow.errors import UserError

BLACKMAN_COEFFICIENT = 0.42


def window_function(kind: str, length: int) -> np.ndarray:
    """Return the window's weights, float64 [length], symmetric.

    Source: Kaldi `feat/feature-window.cc:FeatureWindowFunction`.
    """
    angle = 2 * np.pi * np.arange(length) / (length - 1)
    match kind:
        case "hanning":
            return 0.5 - 0.5 * np.cos(angle)
        case "sine":
            return np.sin(0.5 * angle)
        case "hamming":
            return 0.54 - 0.46 * np.cos(angle)
        case "povey":  # like Hamming's, but zero at the ends
            return (0.5 - 0.5 * np.cos(angle)) ** 0.85
        case "rectangular":
            return np.ones(length)
        case "blackman":
            rest = 0.5 - BLACKMAN_COEFFICIENT
            return BLACKMAN_COEFFICIENT - 0.5 * np.cos(angle) + rest * np.cos(2 * angle)
    raise ValueError(f"unknown window {kind!r}")


def mel(frequency: np.ndarray | float) -> np.ndarray:
    """Mel of a frequency in Hz."""
    return 1127.0 * np.log1p(np.asarray(frequency, np.float64) / 700.0)


def mel_filters(
    num_bins: int,
    fft_length: int,
    sample_rate: int,
    *,
    low_freq: float,
    high_freq: float,
) -> np.ndarray:
    """Triangles, equally wide on the mel scale, each reaching its neighbours' centres.

    Args:
        num_bins: how many, M.
        fft_length: even.
        sample_rate: Hz.
        low_freq: lower edge of the first triangle, Hz.
        high_freq: upper edge of the last, Hz; <= 0 is added to the Nyquist frequency.

    Returns:
        float64 [fft_length / 2 + 1, M], weights on the power spectrum; the last row,
        the Nyquist frequency, is zero.

    Raises:
        UserError: the edges are out of order or beyond Nyquist, or a triangle is so
            narrow that it holds no line of the spectrum.

    Source: Kaldi `feat/mel-computations.cc:MelBanks`.
    """
    nyquist = 0.5 * sample_rate
    top = high_freq if high_freq > 0 else nyquist + high_freq
    if not 0 <= low_freq < top <= nyquist:
        raise UserError(
            f"mel filters from {low_freq:g} Hz to {top:g} Hz do not fit between 0 and "
            f"{nyquist:g} Hz, half the sample rate",
            remedy="set features.low_freq and features.high_freq (<= 0 counts down "
            "from half the sample rate)",
        )
    edges = np.linspace(mel(low_freq), mel(top), num_bins + 2)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    lines = mel(np.arange(fft_length // 2) * (sample_rate / fft_length))[:, np.newaxis]
    rising = (lines - left) / (centre - left)
    falling = (right - lines) / (right - centre)
    weights = np.maximum(0.0, np.minimum(rising, falling))
    empty = np.flatnonzero(weights.sum(axis=0) == 0)
    if len(empty):
        raise UserError(
            f"mel filter {empty[0] + 1} of {num_bins} is narrower than a line of the "
            f"spectrum ({sample_rate / fft_length:g} Hz)",
            remedy="lower features.num_mel_bins, or raise features.frame_length_ms",
        )
    return np.vstack([weights, np.zeros(num_bins)])


def cepstral_matrix(num_bins: int, num_ceps: int, lifter: float) -> np.ndarray:
    """Cosine transform with liftering, float64 [M, C]: cepstra = log_mel @ matrix.

    Column n of the orthonormal DCT-II, times 1 + lifter/2 sin(pi n / lifter).

    Source: Kaldi `matrix/matrix-functions.cc:ComputeDctMatrix`,
    `feat/mel-computations.cc:ComputeLifterCoeffs`.
    """
    n = np.arange(num_ceps)
    angle = np.pi / num_bins * (np.arange(num_bins)[:, np.newaxis] + 0.5) * n
    matrix = np.sqrt(2.0 / num_bins) * np.cos(angle)
    matrix[:, 0] = np.sqrt(1.0 / num_bins)
    if lifter == 0:
        return matrix
    return matrix * (1.0 + 0.5 * lifter * np.sin(np.pi * n / lifter))
