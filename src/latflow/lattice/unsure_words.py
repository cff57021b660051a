"""Removal of uncertain words from a lattice.

A word that is added for a session and boosted enough to be found where it was spoken is
also inserted elsewhere. Its posterior separates the two better than the difference of
its cost to that of the best path does: many slightly different paths may speak against
it.

Source: Wessel et al. 2001, "Confidence measures for large vocabulary continuous speech
recognition" (posteriors of words as sums over arcs that overlap).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latflow.lattice.lattice import Lattice
from latflow.lattice.path_sums import forward_backward

_GAP = 4  # frames between ends of arcs that are one occurrence of a word, at most


def without_unsure_words(
    lattice: Lattice,
    words: Sequence[int],
    least: float,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> Lattice:
    """Leave out occurrences of some words whose posterior is too low.

    Args:
        lattice: with a path to a final state.
        words: ids; all others stay.
        least: posterior of an occurrence that stays.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        The lattice of the other paths; the given one if there are none.

    Raises:
        UserError: no path leads to a final state, or a cost is NaN or -inf.
    """
    arcs = np.flatnonzero(np.isin(lattice.word, words))
    if not len(arcs):
        return lattice
    sums = forward_backward(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    frame = lattice.frame[lattice.next_state]
    arcs = arcs[np.lexsort((frame[arcs], lattice.word[arcs]))]
    is_other = np.diff(lattice.word[arcs]) != 0
    begins = np.append(True, is_other | (np.diff(frame[arcs]) > _GAP))
    occurrence = np.cumsum(begins) - 1
    posterior = np.bincount(occurrence, sums.arc_posterior[arcs])
    is_kept = np.ones(lattice.num_arcs, np.bool_)
    is_kept[arcs[posterior[occurrence] < least]] = False
    found = lattice.connected(is_kept)
    return found if found.num_states else lattice
