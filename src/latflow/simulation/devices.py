"""What recording devices do to a signal: gain, band, clipping, telephone lines."""

from __future__ import annotations

import math

import numpy as np

from latflow.simulation.records import DeviceDraw

_TELEPHONE_RATE = 8000
_MU = 255.0


def through_device(wave: np.ndarray, draw: DeviceDraw, rate: int) -> np.ndarray:
    """Return what a device makes of a wave within -1 and 1."""
    if draw.gain is not None:
        wave = np.clip(wave * 10 ** (draw.gain / 20), -1.0, 1.0)
    if draw.low_cut is not None or draw.high_cut is not None:
        low, high = draw.low_cut or 0.0, draw.high_cut or rate / 2
        spectrum = np.fft.rfft(wave)
        spectrum *= _band(np.fft.rfftfreq(len(wave), 1 / rate), low, high)
        wave = np.fft.irfft(spectrum, n=len(wave))
    if draw.clipped:
        level = float(np.quantile(np.abs(wave), 1 - draw.clipped))
        if level > 0.0:  # of what is silent but for less than that share: as it is
            wave = np.clip(wave, -level, level)
    if draw.telephone:
        wave = _over_telephone(wave, rate)
    return np.clip(wave, -1.0, 1.0)


def _band(frequency: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return factors of a band: half a cosine wide, a tenth of each edge, outwards."""
    factor = np.ones_like(frequency)
    if low > 0:
        factor *= np.clip((frequency / low - 0.9) / 0.1, 0, 1)
    if high > 0:
        factor *= np.clip((1.1 - frequency / high) / 0.1, 0, 1)
    return 0.5 - 0.5 * np.cos(np.pi * factor)


def _over_telephone(wave: np.ndarray, rate: int) -> np.ndarray:
    """Return what arrives over a line of 8 kHz, mu-law of 8 bits (ITU-T G.711).

    Lower rates are left unchanged; the others lose what is above 4 kHz.
    """
    line_rate = min(rate, _TELEPHONE_RATE)
    shared = math.gcd(rate, line_rate)
    pieces = -(-len(wave) // (rate // shared))
    whole, on_line = pieces * (rate // shared), pieces * (line_rate // shared)
    spectrum = np.fft.rfft(wave, n=whole)[: on_line // 2 + 1]
    sent = np.clip(np.fft.irfft(spectrum, n=on_line) * (on_line / whole), -1.0, 1.0)
    code = np.round(np.sign(sent) * np.log1p(_MU * np.abs(sent)) / np.log1p(_MU) * 127)
    decoded = np.sign(code) * np.expm1(np.abs(code) / 127 * np.log1p(_MU)) / _MU
    arrived = np.fft.rfft(decoded)
    return np.fft.irfft(arrived, n=whole)[: len(wave)] * (whole / on_line)
