"""Faults of a recording that its samples show: silence, clipping, offset, cut ends."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import numpy as np

CONSTANT_S = 0.02  # shortest run of one value that no microphone gives
EDGE_S = 0.03
_CLIPPED_RUN = 3  # samples beside each other at the peak


class SignalMeasures(NamedTuple):
    """Describe an utterance by its samples.

    Attributes:
        silence: share of samples in runs of one value that last `CONSTANT_S`, in [0,
            1].
        clipping: share of samples that are at the peak, `_CLIPPED_RUN` or more beside
            each other.
        offset: absolute mean, over the standard deviation.
        start_db: level of the first `EDGE_S` over that of loud parts (the 95 %
            quantile), dB.
        end_db: that of the last.
        digest: of samples and their number; equal for equal signals.
    """

    silence: float
    clipping: float
    offset: float
    start_db: float
    end_db: float
    digest: int


def measure_signal(samples: np.ndarray, sample_rate: int) -> SignalMeasures:
    """Measure an utterance.

    Args:
        samples: float32[L], one channel, L > 0.
        sample_rate: Hz.
    """
    signal = np.asarray(samples, np.float32)
    digest = hashlib.blake2b(signal.tobytes(), digest_size=8).digest()
    constant = _in_runs(np.diff(signal) == 0.0, round(CONSTANT_S * sample_rate))
    peak = float(np.abs(signal).max())
    at_peak = np.abs(signal) >= 0.999 * peak if peak > 0.0 else np.zeros(0, np.bool_)
    clipped = _in_runs(at_peak[1:] & at_peak[:-1], _CLIPPED_RUN)
    deviation = float(signal.std(dtype=np.float64))
    mean = abs(float(signal.mean(dtype=np.float64)))
    width = min(len(signal), max(1, round(EDGE_S * sample_rate)))
    levels = _levels(signal, width)
    loud = float(np.quantile(levels, 0.95))
    return SignalMeasures(
        silence=constant / len(signal),
        clipping=clipped / len(signal) if constant < len(signal) else 0.0,
        offset=mean / deviation if deviation > 0.0 else 0.0,
        start_db=float(levels[0]) - loud,
        end_db=float(_levels(signal[-width:], width)[0]) - loud,
        digest=int.from_bytes(digest, "little"),
    )


def _in_runs(is_equal: np.ndarray, shortest: int) -> int:
    """Count samples in runs of at least `shortest`.

    Args:
        is_equal: bool[L - 1], whether a sample belongs to the run of the next one.
        shortest: samples.
    """
    padded = np.concatenate([[False], is_equal, [False]])
    turns = np.flatnonzero(padded[1:] != padded[:-1])
    lengths = turns[1::2] - turns[::2] + 1
    return int(lengths[lengths >= max(2, shortest)].sum())


def _levels(signal: np.ndarray, width: int) -> np.ndarray:
    """Return levels of pieces beside each other, dB, without the rest at the end."""
    pieces = signal[: len(signal) // width * width].reshape(-1, width)
    power = np.mean(np.square(pieces, dtype=np.float64), axis=1)
    return 10.0 * np.log10(power + 1e-12)
