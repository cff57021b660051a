"""Progress of a training: `log.jsonl`, TensorBoard, and shares of the time.

Lines of `log.jsonl` have a `kind`:

* `step`: share of all epochs that is done (`progress`), means per frame since the line
  before, learning rate, gradient norm, frames per second, and shares of the time; on a
  GPU `gpu_share`, that in which it was busy (sampled every five seconds);
* `dev`: means per frame on dev within an epoch;
* `outlier`: loss per frame, gradient norm and utterances of a step that was skipped or
  clipped;
* `epoch`: `progress`, means of training and of dev at the end of an epoch; with
  `data.cache_mb` also `cache`: pieces of stored data that rank 0 asked for, the share
  of them that was held already, MB read and dropped; with `data.simulation` also
  `simulation`: utterances that rank 0 read, how many of them were simulated, with what,
  noises that repeated or began elsewhere, rooms in use, and rooms drawn before them;
* `final`: those of dev with the parameters that were chosen, and their `epochs`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from latflow.files import writing

_PLACES = ("step", "epoch", "batch", "progress")
PARTS = ("data", "forward", "criterion", "backward", "reduce", "update")


class TrainingLog:
    """The log of a training, which can continue where a checkpoint left it.

    Args:
        path: `log.jsonl`.
        offset: bytes of it that hold; the rest is of steps that will be made again.
        tensorboard: folder for TensorBoard's events; None for none.
        step: steps that are done.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        offset: int = 0,
        tensorboard: str | Path | None = None,
        step: int = 0,
    ) -> None:
        path = Path(path)
        self._path = path
        with writing(path):
            path.touch()
            os.truncate(path, min(offset, path.stat().st_size))
            self._stream = path.open("ab")
        self._writer: Any = None
        if tensorboard is not None and importlib.util.find_spec("tensorboard"):
            module = importlib.import_module("torch.utils.tensorboard")
            self._writer = module.SummaryWriter(str(tensorboard), purge_step=step + 1)

    @property
    def offset(self) -> int:
        """Bytes written so far, on their way to the disk."""
        self._stream.flush()
        return self._stream.tell()

    def write(self, record: Mapping[str, Any]) -> None:
        """Add a line; numbers go to TensorBoard under `<kind>/<name>`.

        Raises:
            UserError: the disk is full.
        """
        line = json.dumps(dict(record), ensure_ascii=False)
        with writing(self._path):
            self._stream.write(line.encode("utf-8") + b"\n")
            self._stream.flush()
        if self._writer is not None:
            for name, value in _numbers(record, str(record["kind"])):
                self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Close the files."""
        self._stream.close()
        if self._writer is not None:
            self._writer.close()


def _numbers(record: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """Yield the numbers of a record with their paths."""
    for key, value in record.items():
        path = f"{prefix}/{key}"
        if isinstance(value, Mapping):
            yield from _numbers(value, path)
        elif isinstance(value, (int, float)) and key not in _PLACES:
            yield path, float(value)


class Clock:
    """Shares of the time; on a GPU, where the processor waits or hands out work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PARTS, 0.0)
        self._since = time.perf_counter()

    @contextmanager
    def during(self, part: str) -> Iterator[None]:
        """Count the time of a block for a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    def read(self) -> tuple[float, dict[str, float]]:
        """Return seconds since the last call, and the parts' shares; start again."""
        now = time.perf_counter()
        total = max(now - self._since, 1e-9)
        shares = {part: round(s / total, 4) for part, s in self.seconds.items()}
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._since = now
        return total, shares
