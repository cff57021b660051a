"""Resampling of a signal that arrives in pieces.

The filter is that of `scipy.signal.resample_poly`, with which Lhotse resamples where it
has no torchaudio: a sinc with ten zeros to a side below the lower of the two Nyquist
frequencies, in a Kaiser window of shape 5. Each output sample is a sum of products in a
fixed order, so that it does not depend on the pieces.

Source: `scipy.signal.resample_poly`; Kaldi `feat/resample.cc` (`LinearResample`) for
the way in which pieces are taken.
"""

from __future__ import annotations

from math import gcd

import numpy as np

from latflow.array_cache import ArrayCache
from latflow.jit import njit

_ZEROS = 10  # of the sinc on each side
_KAISER_SHAPE = 5.0
# Rates without a common divisor have filters of up to 30 MB, which take a second.
_filters = ArrayCache(max_bytes=64 << 20)


class StreamingResampler:
    """Resamples one signal; keeps a few milliseconds of it.

    Output sample m is at the time m / rate_out; of n samples come
    ceil(n rate_out / rate_in), samples beyond the ends counting as 0.

    Args:
        rate_in: Hz.
        rate_out: Hz.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        divisor = gcd(rate_in, rate_out)
        self._up, self._down = rate_out // divisor, rate_in // divisor
        self._filter = _low_pass(self._up, self._down)
        self._held = np.zeros(0, np.float32)
        self._held_from = 0  # number of the first sample that is held
        self._num_out = 0

    def accept(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples, float32 [L]; return those that are ready, float32."""
        if self._up == self._down:
            return samples
        self._held = np.concatenate([self._held, samples])
        num_in = self._held_from + len(self._held)
        # The last input sample that an output sample m sees is (m down + half) // up.
        half = len(self._filter) // 2
        return self._advance(max(0, -(-(num_in * self._up - half) // self._down)))

    def finish(self) -> np.ndarray:
        """End the signal; return its last samples."""
        if self._up == self._down:
            return np.zeros(0, np.float32)
        num_in = self._held_from + len(self._held)
        return self._advance(-(-num_in * self._up // self._down))

    def _advance(self, num_out: int) -> np.ndarray:
        """Compute the samples up to `num_out`; drop those no longer needed."""
        if num_out <= self._num_out:
            return np.zeros(0, np.float32)
        out = np.empty(num_out - self._num_out, np.float32)
        rates = self._up, self._down
        _convolve(self._held, self._held_from, self._filter, rates, self._num_out, out)
        self._num_out = num_out
        half = len(self._filter) // 2
        needed = -((half - num_out * self._down) // self._up)
        drop = min(max(0, needed - self._held_from), len(self._held))
        self._held, self._held_from = self._held[drop:], self._held_from + drop
        return out


def resample(samples: np.ndarray, rate_in: int, rate_out: int) -> np.ndarray:
    """Resample a whole signal, float32 [L] -> float32 [ceil(L rate_out / rate_in)]."""
    resampler = StreamingResampler(rate_in, rate_out)
    pieces = [resampler.accept(np.asarray(samples, np.float32)), resampler.finish()]
    return np.concatenate(pieces)


def _low_pass(up: int, down: int) -> np.ndarray:
    """Return the filter at `up` times the input's rate, float64 [2 H + 1]; shared."""
    found = _filters.get((up, down))
    if found is None:
        found = _made(up, down)
        _filters.put((up, down), found)
    return found


def _made(up: int, down: int) -> np.ndarray:
    """Compute a filter, see `_low_pass`."""
    most = max(up, down)
    half = _ZEROS * most
    times = np.arange(-half, half + 1)
    weights = np.sinc(times / most) * np.kaiser(2 * half + 1, _KAISER_SHAPE)
    return weights * (up / weights.sum())


@njit(cache=True, nogil=True)
def _convolve(
    held: np.ndarray,
    held_from: int,
    weights: np.ndarray,
    rates: tuple[int, int],
    first: int,
    out: np.ndarray,
) -> None:
    """Compute output samples `first` and following into `out`."""
    up, down = rates
    half = len(weights) // 2
    for i in range(len(out)):
        middle = (first + i) * down + half
        begin = max(held_from, -((len(weights) - 1 - middle) // up))
        end = min(held_from + len(held), middle // up + 1)
        total = 0.0
        for k in range(begin, end):
            total += weights[middle - k * up] * held[k - held_from]
        out[i] = total
