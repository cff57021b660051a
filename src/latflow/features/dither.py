"""Dither: weak white noise, which keeps digital silence off the logarithm's floor.

The noise of a sample follows from the seed, the key of its utterance and its place
alone (a counter-based generator). Any pieces of a signal, threads, and front ends thus
have the same noise, and no state goes along.
"""

from __future__ import annotations

import numpy as np

from latflow.jit import njit

_SAMPLE_STEP = 1 / 32768  # of 16-bit audio in [-1, 1)
_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLIER_1, _MULTIPLIER_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1
# Of the sum of four 16-bit numbers, each as likely as any other.
_MEAN = 2 * 65535
_DEVIATION = ((65536**2 - 1) / 3) ** 0.5


def dither(
    wave: np.ndarray, amount: float, seed: int, key: int, *, first: int = 0
) -> np.ndarray:
    """Add white noise to a signal.

    Kaldi draws new noise for each window; here it is drawn once for the signal, so that
    overlapping windows agree and pieces of a stream get what the whole would. A sample
    of the noise is the sum of four uniform numbers: nearly Gaussian, and drawn in a
    tenth of the time.

    Args:
        wave: float32 [L] or [C, L], in [-1, 1).
        amount: standard deviation in units of a 16-bit sample; 0 changes nothing.
        seed: of all utterances.
        key: of this utterance, 0 or more.
        first: place of the first sample in the whole signal.

    Returns:
        float32, of the shape of `wave`.

    Source of the generator: SplitMix64 (Steele, Lea and Flood 2014, Figure 13), its
    state being the sample's place.
    """
    if amount == 0:
        return wave
    scale = np.float32(amount * _SAMPLE_STEP / _DEVIATION)
    length = wave.shape[-1]
    channels = [
        _noise(length, _state(seed, key, channel), first, scale)
        for channel in range(len(np.atleast_2d(wave)))
    ]
    noise = channels[0] if wave.ndim == 1 else np.stack(channels)
    noise += wave
    return noise


def _state(*parts: int) -> np.uint64:
    """Return a state of the generator that depends on every bit of some numbers."""
    state = 0
    for part in parts:
        state = _mixed(state ^ _mixed(part & _WORD))
    return np.uint64(state)


def _mixed(value: int) -> int:
    """Return the number that SplitMix64 gives in a state."""
    value = (value + _GOLDEN) & _WORD
    value = (value ^ (value >> 30)) * _MULTIPLIER_1 & _WORD
    value = (value ^ (value >> 27)) * _MULTIPLIER_2 & _WORD
    return value ^ (value >> 31)


@njit(cache=True, nogil=True)
def _noise(length: int, state: np.uint64, first: int, scale: np.float32) -> np.ndarray:
    """Draw noise of standard deviation `scale` * 37837; float32 [length].

    Args:
        length: samples.
        state: of the generator at the signal's begin.
        first: place of the first sample in the signal.
        scale: factor of the sums of four 16-bit numbers.
    """
    noise = np.empty(length, np.float32)
    low = np.uint64(0xFFFF)
    for i in range(length):
        # All operands are uint64: Numba makes floats of uint64 and int64.
        value = state + np.uint64(first + i + 1) * np.uint64(_GOLDEN)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(_MULTIPLIER_1)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(_MULTIPLIER_2)
        value ^= value >> np.uint64(31)
        total = np.int32(value & low) + np.int32((value >> np.uint64(16)) & low)
        total += np.int32((value >> np.uint64(32)) & low)
        total += np.int32(value >> np.uint64(48))
        noise[i] = scale * np.float32(total - _MEAN)
    return noise
