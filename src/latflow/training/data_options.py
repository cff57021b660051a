"""What the section `data` of a network system says, as typed values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from latflow.training.joining import LengthBounds
from latflow.training.ordering import BatchLimits


@dataclass(frozen=True)
class DataOptions:
    """The section `data` of a network system (`workflow/schemas/nnet_data.yaml`).

    Attributes:
        size: frames that a chunk counts; None = whole utterances.
        step: frames from chunk to chunk; None = size.
        left: frames of context before a chunk.
        right: frames of context behind it.
        order: e.g. `random`, `laplace:20`.
        pool: utterances whose chunks are drawn together; None = all.
        partitions: epochs that one pass over the data is split into.
        limits: of a global batch.
        bounds: of the utterances' lengths.
        shift_frames: whether each pass over the data takes other frames of those that
            a network with subsampling leaves out.
        prefetch: batches that are made ready ahead.
    """

    size: int | None = None
    step: int | None = None
    left: int = 0
    right: int = 0
    order: str = "random"
    pool: int | None = None
    partitions: int = 1
    limits: BatchLimits = field(default_factory=BatchLimits)
    bounds: LengthBounds = field(default_factory=LengthBounds)
    shift_frames: bool = False
    prefetch: int = 4

    @staticmethod
    def from_config(options: Mapping[str, Any]) -> DataOptions:
        """Take them from the section, defaults filled in."""
        sequences = options["sequences"]
        context = sequences.get("context", {"left": 0, "right": 0})
        return DataOptions(
            size=sequences.get("size"),
            step=sequences.get("step"),
            left=context["left"],
            right=context["right"],
            order=options["order"],
            pool=options["pool"],
            partitions=options["partition_epoch"],
            limits=BatchLimits(
                options["max_sequences"], options["max_frames"], options["buckets"]
            ),
            bounds=LengthBounds(
                options["min_length"],
                options["max_length"],
                options["length_tolerance"],
            ),
            shift_frames=options["shift_frames"],
            prefetch=options["prefetch"],
        )

    def for_evaluation(self) -> DataOptions:
        """The same pieces in a fixed order, short ones first, all in one epoch."""
        return replace(self, order="sorted", partitions=1, shift_frames=False)
