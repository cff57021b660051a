"""The trainer's protocol of a criterion, whatever it computes.

A criterion takes the network's outputs for a part of a batch and gives a *sum* over the
part's frames. The trainer adds up the parts of all micro-batches and ranks and divides
by the frames of them all, so that neither changes a step of the optimizer.

Work that needs no network (lattices, in other threads) is begun by `begin` and awaited
by the function that it returns. The trainer keeps up to `max_pending` parts between the
two: the forward pass of the next parts runs while the lattices of the first are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from latflow.criteria.batch import Batch
from latflow.device_copies import HostCopy
from latflow.nnet.network import Output


@dataclass(frozen=True)
class Loss:
    """The criterion of a part of a batch.

    Attributes:
        value: scalar, the sum over the part's frames, to be minimized; its gradient
            is what the trainer uses, and it is the gradient of this very number.
        num_frames: frames that the sum runs over.
        statistics: further sums over frames, by the names in `Criterion.statistics`;
            those left out are 0. They are logged divided by the number of frames.
            Scalars on the device are welcome: nobody waits for them here.
        by_sequence: [B], the value of each sequence, if known; shows which one is at
            fault when the value is not finite.
    """

    value: Tensor
    num_frames: int
    statistics: Mapping[str, float | Tensor] = field(default_factory=dict)
    by_sequence: Tensor | None = None


#: Waits for what other threads do, and gives the loss; called once.
Pending = Callable[[], Loss]


class Criterion(ABC):
    """A training criterion.

    Attributes:
        name: for logs and model folders.
        max_pending: parts that may be begun and not awaited; at least 1.
        statistics: names of what `Loss.statistics` may hold; the same on all ranks,
            which add them up.
    """

    name: str = ""
    max_pending: int = 1
    statistics: tuple[str, ...] = ()

    @abstractmethod
    def begin(self, outputs: Mapping[str, Output], batch: Batch) -> Pending:
        """Start on a part of a batch.

        Args:
            outputs: of the network, by name, with gradients where it is training.
            batch: the part, on the outputs' device.
        """

    def stepped(self, totals: Mapping[str, float]) -> None:  # noqa: B027 - optional
        """Receive the sums of a step over all parts and ranks, the same on each rank.

        Where parameters are averaged, sums of all steps since the last average.

        Args:
            totals: `frames`, `loss` and the criterion's statistics.
        """

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold for the criterion to continue.

        Plain values (numbers, strings, lists, mappings) and tensors, of this rank.
        """
        return {}

    def load_states(  # noqa: B027 - optional
        self, states: Sequence[Mapping[str, Any]], *, is_main: bool
    ) -> None:
        """Go on from a checkpoint.

        Args:
            states: `state` of all ranks that wrote it, perhaps more or fewer than now.
            is_main: whether this is rank 0, which takes what is to be added up.
        """

    def failures(self) -> Set[str]:
        """Return the utterances of this rank that had no path, at any time."""
        return frozenset()

    def close(self) -> None:  # noqa: B027 - optional
        """End threads and files."""


class GraphCriterion(Criterion):
    """A criterion over graphs of sequences, worked on in threads; some have no path.

    Args:
        threads: sequences worked on at a time.
    """

    def __init__(self, threads: int) -> None:
        self._failed: set[str] = set()
        self._pool = ThreadPoolExecutor(max(1, threads), self.name)
        self._in_transfer: deque[tuple[HostCopy, Batch]] = deque()

    def note_failures(self, failed: Tensor, batch: Batch) -> None:
        """Remember the utterances of a part that failed; nobody waits for a GPU here.

        Args:
            failed: bool [B].
            batch: the part.
        """
        self._in_transfer.append((HostCopy(failed), batch))
        self._collect_failures()

    def _collect_failures(self, *, waits: bool = False) -> None:
        """Take what has come from the device, or all, which may be waited for."""
        while self._in_transfer and (waits or self._in_transfer[0][0].has_arrived()):
            failed, batch = self._in_transfer.popleft()
            rows = np.flatnonzero(failed.wait()).tolist()
            self._failed |= {batch.utterances[b] for b in rows}

    def state(self) -> dict[str, Any]:
        """Return the utterances that failed."""
        return {"failed": sorted(self.failures())}

    def load_states(
        self, states: Sequence[Mapping[str, Any]], *, is_main: bool
    ) -> None:
        """Go on with those of all ranks."""
        if is_main:
            self._failed = {name for state in states for name in state["failed"]}

    def failures(self) -> Set[str]:
        """Return the utterances that failed; see `Criterion.failures`."""
        self._collect_failures(waits=True)
        return self._failed

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)
