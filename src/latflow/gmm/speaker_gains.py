"""Gain of adaptation to speakers: by speaker, and of a set."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import NamedTuple


class SpeakerGain(NamedTuple):
    """Gain of the objective by the transform of a speaker.

    Attributes:
        frames: behind the estimate, weighted.
        gain: increase of the objective over leaving the features alone.
        is_estimated: False where there were too few frames.
    """

    frames: float
    gain: float
    is_estimated: bool


def summarize_gains(gains: Collection[SpeakerGain]) -> dict[str, float]:
    """Return counts for a report; sums are exact, whatever the order of speakers."""
    frames = math.fsum(one.frames for one in gains)
    gain = math.fsum(one.gain for one in gains)
    return {
        "num_speakers": len(gains),
        "num_unadapted": sum(not one.is_estimated for one in gains),
        "num_frames": round(frames, 3),
        "gain_per_frame": gain / frames if frames else 0.0,
    }
