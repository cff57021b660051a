"""What a file says of a lattice, before it is checked and put in order.

Public: `LatticeParts`, `CompactParts`, `Parts`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from latflow.lattice.compact import CompactLattice, Strings
from latflow.lattice.lattice import Lattice


class LatticeParts(NamedTuple):
    """A state-level lattice; A arcs in any order, S states.

    Attributes:
        arcs: int32[A, 4]: source, target, transition-id, word.
        costs: float32[A, 2]: graph and acoustic.
        final_costs: float32[S, 2]; inf where a state is not final.
        start: the start state.
    """

    arcs: np.ndarray
    costs: np.ndarray
    final_costs: np.ndarray
    start: int

    def build(self) -> Lattice:
        """Make the lattice; raises UserError if it has cycles or uneven paths."""
        return Lattice.from_arcs(*self[:3], start=self.start)


class CompactParts(NamedTuple):
    """A compact lattice; A arcs in any order, S states.

    Attributes:
        arcs: int32[A, 3]: source, target, word.
        costs: float32[A, 2]: graph and acoustic.
        strings: transition-ids of the arcs.
        final_costs: float32[S, 2]; inf where a state is not final.
        final_strings: transition-ids of the states.
        start: the start state.
    """

    arcs: np.ndarray
    costs: np.ndarray
    strings: Strings
    final_costs: np.ndarray
    final_strings: Strings
    start: int

    def build(self) -> CompactLattice:
        """Make the lattice; raises UserError if it has cycles or uneven paths."""
        return CompactLattice.from_arcs(*self[:5], start=self.start)


Parts = LatticeParts | CompactParts
