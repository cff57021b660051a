"""Where a training stands: what changes in it beside network and optimiser."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from latflow.training.checkpoint import Position

FRAMES = "frames"
Means = dict[str, float]


@dataclass
class Standing:
    """Where a training stands.

    Attributes:
        position: in the data.
        step: of the optimiser, the last one begun, from 1.
        history: means per frame on dev at the end of each finished epoch.
        last_train: means per frame in training, of the last finished epoch.
        epoch_sums: sums of the current epoch.
        window_sums: sums since the last line of the log.
        log_offset: bytes of the log.
        depth: step of layer-wise pretraining that the network is in.
    """

    position: Position = field(default_factory=Position)
    step: int = 0
    history: list[Means] = field(default_factory=list)
    last_train: Means = field(default_factory=dict)
    epoch_sums: Means = field(default_factory=dict)
    window_sums: Means = field(default_factory=dict)
    log_offset: int = 0
    depth: int = 0

    def state(self) -> dict[str, Any]:
        """All but the position, which is the name of a checkpoint."""
        names = (f.name for f in fields(self) if f.name != "position")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def of(cls, position: Position, state: Mapping[str, Any]) -> Standing:
        """Back from a checkpoint."""
        return cls(position=position, **state)

    def add(self, sums: Mapping[str, float]) -> None:
        """Add the sums of a step."""
        for total in (self.epoch_sums, self.window_sums):
            for name, value in sums.items():
                total[name] = total.get(name, 0.0) + value

    def next_epoch(self) -> None:
        """Stand at the beginning of the next epoch."""
        self.position = Position(self.position.epoch + 1)
        self.epoch_sums, self.window_sums = {}, {}


def means(sums: Mapping[str, float]) -> Means:
    """Sums per frame; `frames` itself stays the sum."""
    frames = sums.get(FRAMES, 0.0)
    if not frames:
        return {}
    by_frame = {name: value / frames for name, value in sums.items() if name != FRAMES}
    return {FRAMES: frames, **by_frame}
