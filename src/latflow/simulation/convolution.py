"""Convolution of long signals with responses of rooms, block by block."""

from __future__ import annotations

import numpy as np
import torch


def convolved(wave: np.ndarray, response: np.ndarray) -> np.ndarray:
    """Return the convolution of a wave with a response, or with each row of some.

    By overlap-add: a batch of short transforms in float32 takes a fraction of the time
    of one long transform.

    Args:
        wave: [L].
        response: [R] or [C, R].

    Returns:
        float64 [L + R - 1] or [C, L + R - 1].
    """
    filters = np.atleast_2d(response)
    rows, taps = filters.shape
    points, step, number = _blocks(len(wave), taps)
    laid = torch.zeros(number + rows, points)
    padded = torch.zeros(number * step)
    padded[: len(wave)] = torch.from_numpy(wave)
    laid[:number, :step] = padded.view(number, step)
    laid[number:, :taps] = torch.from_numpy(np.ascontiguousarray(filters))
    spectra = torch.fft.rfft(laid)
    blocks = torch.fft.irfft(spectra[number:, None] * spectra[:number], n=points)
    result = np.zeros((rows, number * step + taps - 1))
    for k in range(number):
        result[:, k * step : k * step + points] += blocks[:, k].numpy()
    result = result[:, : len(wave) + taps - 1]
    return result if response.ndim > 1 else result[0]


def _blocks(length: int, taps: int) -> tuple[int, int, int]:
    """Return points of a transform, samples of a block, and how many blocks.

    Transforms have a power of two of points: that with which there are the fewest in
    all, forward (with the response) and back.
    """
    points = 1 << taps.bit_length()
    choices = []
    while True:
        step = points - taps + 1
        number = -(-length // step)
        choices.append(((2 * number + 1) * points, (points, step, number)))
        points *= 2
        if number <= 2:
            return min(choices)[1]
