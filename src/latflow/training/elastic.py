"""Training that outlives its ranks: Horovod's elastic mode on our checkpoints.

When a rank dies, the operation that the others are in fails. They meet anew, without
it, and the training's function is called again: it goes on from the newest checkpoint,
with fewer ranks and the same steps (to rounding). Ranks that come back are let in after
the next checkpoint. So what a death costs is the time since the last checkpoint.

The checkpoints must be in a folder that all machines see. Horovod excludes a machine on
which a rank has died, by name; `launch` gives this machine two names.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from latflow.training.distributed import Backend, HorovodBackend


def run_elastic(train: Callable[[Backend], None]) -> None:
    """Call a training's function, again each time the ranks have changed.

    Args:
        train: goes on from the newest checkpoint each time it is called.
    """
    backend = HorovodBackend()
    elastic: Any = importlib.import_module("horovod.torch.elastic")
    common: Any = importlib.import_module("horovod.common.elastic")

    class OnDisk(common.State):
        """What ranks share is in the checkpoints: nothing is to be saved or sent."""

        def save(self) -> None:
            """Nothing: the trainer has written a checkpoint."""

        def restore(self) -> None:
            """Nothing: the trainer reads it."""

        def sync(self) -> None:
            """Nothing: the trainer's first operation shares it."""

    state = OnDisk(backend.share, lambda: backend.rank)

    @elastic.run
    def attempt(state: Any) -> None:
        backend.renew()
        backend.on_admit = state.check_host_updates
        train(backend)

    attempt(state)
    backend.close()
