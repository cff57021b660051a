"""Rules of lattice generation that look beyond one utterance.

A lattice beam that is right at the start is wrong later: the surer a network becomes,
the fewer paths lie within the beam, until a lattice holds one path and teaches nothing.
`BeamPolicy` follows a wanted depth instead. `FailureBound` ends a training whose
utterances fail too often.

Both decide from sums over all ranks, so that all ranks decide alike and any number of
ranks trains the same; where ranks train alone (`parameter_averaging`), whenever their
parameters are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from latflow.criteria.sequence.options import LatticeSearchOptions
from latflow.errors import UserError

_STEP = 0.125  # lattice beams are multiples of this: a decoder is made for each
_MAX_CHANGE = 1.25  # of the beam from step to step, as a factor
_PATIENCE = 100  # utterances before failures are judged by their share


class BeamPolicy:
    """The lattice beam, which may follow a wanted depth of the lattices.

    After each step the beam is multiplied by (wanted depth / depth of the step's
    lattices) ^ rate, at most by a quarter, and kept within its limits.

    Args:
        options: the beam at the start, and how it follows. Depth grows about
            exponentially with the beam, so that small rates are needed for the beam
            to come to rest.

    Raises:
        UserError: the beam at the start is outside its limits.
    """

    def __init__(self, options: LatticeSearchOptions) -> None:
        self._beam, self._depth = options.lattice_beam, options.depth
        low, high = self._depth.min_lattice_beam, self._depth.max_lattice_beam
        if self._depth.target is not None and not low <= self._beam <= high:
            raise UserError(
                f"a lattice beam of {self._beam:g}, outside its limits {low:g} to "
                f"{high:g}",
                remedy="fix lattices.lattice_beam or the limits in lattices.depth",
            )

    @property
    def lattice_beam(self) -> float:
        """The beam to use now; where it follows a depth, a multiple of 1/8."""
        if self._depth.target is None:
            return self._beam
        return max(_STEP, round(self._beam / _STEP) * _STEP)

    def update(self, depth: float) -> None:
        """Take the mean depth of the lattices of a step, or since the last average.

        Args:
            depth: arcs a frame, over all ranks; 0 or NaN changes nothing.
        """
        if self._depth.target is None or not depth > 0 or math.isinf(depth):
            return
        change = (self._depth.target / depth) ** self._depth.rate
        change = min(max(change, 1 / _MAX_CHANGE), _MAX_CHANGE)
        low, high = self._depth.min_lattice_beam, self._depth.max_lattice_beam
        self._beam = min(max(self._beam * change, low), high)

    def state(self) -> dict[str, float]:
        """Return what a checkpoint keeps."""
        return {"lattice_beam": self._beam}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from a checkpoint; a beam that is fixed stays as configured."""
        if self._depth.target is not None:
            self._beam = float(state["lattice_beam"])


class FailureBound:
    """Ends a training of which too many utterances have come to nothing.

    Args:
        max_fraction: share of the utterances that may be skipped.
    """

    def __init__(self, max_fraction: float) -> None:
        self.max_fraction = max_fraction
        self.num_utterances = 0
        self.num_skipped = 0

    def add(self, num_utterances: int, num_skipped: int) -> None:
        """Count the utterances of a step, over all ranks.

        Raises:
            UserError: the share of skipped ones is above the bound; below 100
                utterances it is taken of 100.
        """
        self.num_utterances += num_utterances
        self.num_skipped += num_skipped
        allowed = self.max_fraction * max(self.num_utterances, _PATIENCE)
        if self.num_skipped > allowed:
            raise UserError(
                f"{self.num_skipped} of {self.num_utterances} utterances gave no "
                f"lattice or alignment (allowed share {self.max_fraction:g})",
                remedy="see the log for reasons; widen lattices.beam or "
                "alignments.retry_beam, or raise lattices.max_failed_fraction",
            )

    def state(self) -> dict[str, int]:
        """Return what a checkpoint keeps."""
        return {
            "num_utterances": self.num_utterances,
            "num_skipped": self.num_skipped,
        }

    def load_state(self, state: Mapping[str, int]) -> None:
        """Go on from a checkpoint."""
        self.num_utterances = int(state["num_utterances"])
        self.num_skipped = int(state["num_skipped"])
