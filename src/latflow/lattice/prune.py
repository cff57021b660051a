"""Pruning: leave out what no good path needs; and how deep a lattice is.

An arc stays if the best path over it costs at most `beam` more than the best path of
all, costs being

    lm_scale * graph cost + acoustic_scale * acoustic cost.

Source: Kaldi `lat/lattice-functions.cc` (`PruneLattice`,
`CompactLatticeDepthPerFrame`), `latbin/lattice-prune.cc`,
`latbin/lattice-depth-per-frame.cc`.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from latflow.errors import UserError
from latflow.lattice.lattice import CompactLattice, Lattice
from latflow.lattice.path_sums import best_costs, costs_to_end, scaled_arcs

Kind = TypeVar("Kind", Lattice, CompactLattice)


def prune(
    lattice: Kind, beam: float, *, lm_scale: float = 1.0, acoustic_scale: float = 1.0
) -> Kind:
    """Leave out arcs, states and ends that only paths outside the beam take.

    Args:
        lattice: raw or compact, with a path to a final state.
        beam: above 0, on scaled costs; inf leaves out impossible arcs and dead ends.
        lm_scale: factor on graph costs.
        acoustic_scale: factor on acoustic costs.

    Returns:
        A lattice whose states and arcs are in the same order; costs are as they were
        (Kaldi's program scales them and back, which moves their last digits).

    Raises:
        UserError: no path leads to a final state, a cost is NaN or -inf, or the beam is
            not above 0.
    """
    if not beam > 0.0:
        raise UserError(f"a beam of {beam}", remedy="set the beam above 0")
    by_arc, by_end, best = costs_through(
        lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale
    )
    cutoff = min(best + beam, np.finfo(np.float64).max)
    return lattice.connected(by_arc <= cutoff, by_end <= cutoff)


def costs_through(
    lattice: Lattice | CompactLattice,
    *,
    lm_scale: float = 1.0,
    acoustic_scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return what the best paths cost over each arc and to each end.

    Returns:
        Costs by arc, float64[A], and by the state that the path ends in, float64[S];
        inf where there is no path. The cost of the best path of all.

    Raises:
        UserError: no path leads to a final state, or a cost is NaN or -inf.
    """
    arcs = scaled_arcs(lattice, lm_scale=lm_scale, acoustic_scale=acoustic_scale)
    best, to_end = best_costs(arcs), costs_to_end(arcs)
    through = best[lattice.source()] + (arcs.cost + to_end[lattice.next_state])
    return through, best[:-1] + arcs.final_cost, float(best[-1])


def depth_per_frame(lattice: Lattice | CompactLattice) -> np.ndarray:
    """Count the arcs that cross each frame, int32[T]; their mean is `lattice.depth`.

    Args:
        lattice: raw (arcs with a transition-id count) or compact (an arc counts for
            each frame of its string, as do strings of final states).

    Source: Kaldi `lat/lattice-functions.cc` (`CompactLatticeDepthPerFrame`).
    """
    num_frames = lattice.num_frames
    if isinstance(lattice, Lattice):
        frames = lattice.frame[lattice.source()[lattice.transition_id != 0]]
        return np.bincount(frames, minlength=num_frames)[:num_frames].astype(np.int32)
    start = np.concatenate([lattice.frame[lattice.source()], lattice.frame])
    lengths = lattice.strings.lengths, lattice.final_strings.lengths
    stop = start + np.concatenate(lengths)
    size = max(num_frames, int(stop.max(initial=0))) + 1
    change = np.bincount(start, minlength=size) - np.bincount(stop, minlength=size)
    return np.cumsum(change)[:num_frames].astype(np.int32)
