"""A picture of one utterance: spectrogram, phones and words under one time axis.

Public: `Tier`, `draw`, `log_spectrum`, `AXIS_LEFT`, `AXIS_WIDTH`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from latflow.report.svg import INK, LINE, MUTED, canvas, render, series_colour

# Where the time axis lies, in per cent of the picture's width.
AXIS_LEFT, AXIS_WIDTH = 8.5, 90.0
WINDOW_S, SHIFT_S, RANGE_DB = 0.025, 0.010, 65.0
_SIZE_PT = 8.5

Span = tuple[float, float, str]


@dataclass(frozen=True)
class Tier:
    """One row of labels.

    Attributes:
        name: what the labels are.
        spans: (start, end, label), seconds.
    """

    name: str
    spans: Sequence[Span]


def log_spectrum(samples: np.ndarray, sample_rate: int) -> np.ndarray:
    """Short-time log power spectrum for looking at.

    Args:
        samples: float [L], one channel.
        sample_rate: Hz.

    Returns:
        float32 [F, T], decibels below the loudest point, floored at `-RANGE_DB`; Hann
        windows of 25 ms every 10 ms.
    """
    length = max(2, round(WINDOW_S * sample_rate))
    shift = max(1, round(SHIFT_S * sample_rate))
    padded = np.pad(samples, (length // 2, length // 2 + 1))
    frames = np.lib.stride_tricks.sliding_window_view(padded, length)[::shift]
    power = np.abs(np.fft.rfft(frames * np.hanning(length), axis=1)) ** 2
    decibels = 10.0 * np.log10(np.maximum(power, 1e-12))
    return np.maximum(decibels - decibels.max(), -RANGE_DB).T.astype(np.float32)


def draw(samples: np.ndarray, sample_rate: int, tiers: Sequence[Tier]) -> str:
    """Draw one utterance.

    Args:
        samples: float [L], one channel.
        sample_rate: Hz.
        tiers: rows of labels below the spectrogram.

    Returns:
        Inline SVG whose time axis starts at `AXIS_LEFT` and is `AXIS_WIDTH` wide.
    """
    duration = len(samples) / sample_rate
    with canvas(9.0, 2.3 + 0.3 * len(tiers)) as figure:
        figure.set_layout_engine("none")
        row = 0.3 / (2.3 + 0.3 * len(tiers))
        bottom = 0.5 / (2.3 + 0.3 * len(tiers))
        tiers_height = row * len(tiers)
        left, width = AXIS_LEFT / 100, AXIS_WIDTH / 100
        labels = figure.add_axes((left, bottom, width, tiers_height))
        image = figure.add_axes(
            (left, bottom + tiers_height, width, 0.97 - bottom - tiers_height)
        )
        image.imshow(
            log_spectrum(samples, sample_rate),
            origin="lower",
            aspect="auto",
            cmap="magma",
            extent=(0, duration, 0, sample_rate / 2000),
            interpolation="nearest",
        )
        image.set_ylabel("frequency (kHz)")
        image.set_xlim(0, duration)
        image.tick_params(labelbottom=False, length=0)
        image.grid(visible=False)
        _draw_tiers(labels, tiers, duration)
        return render(figure, "Spectrogram with phones and words")


def _draw_tiers(axes: Axes, tiers: Sequence[Tier], duration: float) -> None:
    """Draw rows of labels between thin walls, the first row on top."""
    points_per_second = 9.0 * 72 * AXIS_WIDTH / 100 / duration
    for i, tier in enumerate(tiers):
        bottom = len(tiers) - 1 - i
        for start, end, label in tier.spans:
            axes.plot([start, start], [bottom, bottom + 1], color=MUTED, linewidth=0.7)
            axes.plot([end, end], [bottom, bottom + 1], color=MUTED, linewidth=0.7)
            room = (end - start) * points_per_second
            size = min(_SIZE_PT, room / (0.62 * max(1, len(label))))
            if size < 4.5:
                continue
            axes.text(
                (start + end) / 2,
                bottom + 0.47,
                label,
                ha="center",
                va="center",
                fontsize=size,
                color=series_colour(0) if i else INK,
            )
        axes.axhline(bottom, color=LINE, linewidth=0.8)
    positions = [len(tiers) - 0.5 - i for i in range(len(tiers))]
    axes.set_yticks(positions, [tier.name for tier in tiers])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, max(1, len(tiers)))
    axes.set_xlim(0, duration)
    axes.set_xlabel("time (s)")
    axes.grid(visible=False)
    for name in ("top", "right", "left"):
        axes.spines[name].set_visible(False)
