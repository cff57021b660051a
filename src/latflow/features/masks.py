"""Ratio masks: the share of a mixture that is wanted, in each bin of each frame."""

from __future__ import annotations

import numpy as np

from latflow.features.front_end import Domain, KaldiFrontEnd


def ratio_mask(
    front_end: KaldiFrontEnd,
    speech: np.ndarray,
    rest: np.ndarray,
    domain: Domain,
    *,
    exponent: float,
) -> np.ndarray:
    """Return the ideal ratio mask (S / (S + R)) ** exponent.

    S and R are the powers of both signals in a bin; without a rest the mask is 1.

    Args:
        front_end: whose frames and bins are taken.
        speech: float32 [L], what is wanted.
        rest: float32 [L], all else.
        domain: `mel`: bins are the mel filters; `stft`: the lines of the spectrum.
        exponent: 0.5 in the source.

    Returns:
        float32 [T, K], from 0 to 1.

    Source: Wang, Narayanan and Wang 2014, "On training targets for supervised speech
    separation" (the ideal ratio mask).
    """
    wanted = front_end.powers(speech, domain).astype(np.float64)
    other = front_end.powers(rest, domain)
    share = np.ones_like(wanted)
    np.divide(wanted, wanted + other, out=share, where=other > 0)
    return (share**exponent).astype(np.float32)
