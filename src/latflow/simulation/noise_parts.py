"""Parts of recorded noises: where they begin, and what is done if they are short."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_FADE = 0.01  # with which a noise that repeats fades into itself, s
_QUIET = 1e-3  # power over that of the recording, below which a part is silence
_NEXT_BEGIN = 0.618  # steps that visit all of the recording evenly
_MAX_BEGINS = 10


class NoisePart(NamedTuple):
    """A part of a recording.

    Attributes:
        samples: float64 [C, L], of each microphone.
        repeats: whether the recording is too short, and repeats.
        is_moved: whether it was quiet where it was to begin, and begins elsewhere.
    """

    samples: np.ndarray
    repeats: bool
    is_moved: bool


def cut_noise(
    noise: np.ndarray, begin: float, length: int, *, number: int, lead: int, rate: int
) -> NoisePart:
    """Cut a part out of a noise for each microphone, which begin at equal distances.

    A noise that is long enough is cut where it need not repeat. One that is not fades
    into its beginning within 10 ms. A part whose power is less than -30 dB of that of
    the recording is taken for silence, and another begin is tried; after ten the part
    with the loudest sample is taken.

    Args:
        noise: float32 [N], not silent.
        begin: share of the places where it can begin, in [0, 1).
        length: samples of a part, L, with the lead.
        number: of parts, C.
        lead: samples of a part that come before what is heard.
        rate: Hz.
    """
    starts = len(noise) - length + 1
    repeats = starts < (1 if number == 1 else number * (length - lead))
    if repeats:
        noise = _looped(noise, round(_FADE * rate))
        starts = len(noise)

    def part(share: float) -> np.ndarray:
        first = (int(share * starts) + starts * np.arange(number) // number) % starts
        at = first[:, None] + np.arange(length)
        return np.take(noise, at, mode="wrap").astype(np.float64)

    least = _QUIET * float(np.square(noise, dtype=np.float64).mean())
    for k in range(_MAX_BEGINS):
        samples = part((begin + k * _NEXT_BEGIN) % 1.0)
        if np.square(samples[:, lead:]).mean() >= least:
            return NoisePart(samples, repeats, k > 0)
    loudest = int(np.abs(noise).argmax()) - (length + lead) // 2
    first = loudest % starts if repeats else min(max(loudest, 0), starts - 1)
    return NoisePart(part((first + 0.5) / starts), repeats, is_moved=True)


def _looped(noise: np.ndarray, fade: int) -> np.ndarray:
    """Return a noise whose end fades into its beginning: no click where it repeats."""
    fade = min(fade, len(noise) // 2)
    if fade < 1:
        return noise
    angle = np.pi / 2 * (np.arange(fade) + 0.5) / fade
    seam = noise[-fade:] * np.cos(angle) + noise[:fade] * np.sin(angle)
    return np.concatenate((seam, noise[fade:-fade])).astype(noise.dtype)
