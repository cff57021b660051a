"""How much of what was said is among the hypotheses of a lattice.

Public: `held_frames`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from latflow.lattice.lattice import Lattice


def held_frames(lattice: Lattice, pdfs: np.ndarray, pdf_of_id: np.ndarray) -> int:
    """Number of frames in which some path of the lattice has the aligned pdf.

    Where there is none, the numerator of MMI pulls at a pdf that the denominator
    cannot hold; frame rejection drops such frames.

    Args:
        lattice: of T frames.
        pdfs: int32[T], of the alignment.
        pdf_of_id: int32[ids + 1], pdf of each transition-id.
    """
    return int(
        _held_frames(
            lattice.arc_begin, lattice.frame, lattice.transition_id, pdfs, pdf_of_id
        )
    )


@njit(cache=True, nogil=True)
def _held_frames(
    arc_begin: np.ndarray,
    frame: np.ndarray,
    transition_id: np.ndarray,
    pdfs: np.ndarray,
    pdf_of_id: np.ndarray,
) -> int:
    """See `held_frames`; arrays are those of `Lattice`."""
    is_held = np.zeros(len(pdfs), np.bool_)
    for s in range(len(frame)):
        t = frame[s]
        if t >= len(pdfs) or is_held[t]:
            continue
        for arc in range(arc_begin[s], arc_begin[s + 1]):
            id_ = transition_id[arc]
            if id_ != 0 and pdf_of_id[id_] == pdfs[t]:
                is_held[t] = True
    return is_held.sum()
