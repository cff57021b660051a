"""Memory of a training: how much it takes, and one line where there is not enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from latflow.criteria.batch import Batch
from latflow.errors import UserError, is_out_of_memory
from latflow.nnet.footprint import Footprint
from latflow.training.data_options import BatchOptions, ChunkOptions, EvenChunkOptions
from latflow.training.optimizer_options import OptimizerOptions
from latflow.training.options import TrainingOptions

_FLOAT_BYTES = 4
_MOMENTS = {
    "adam": 2,
    "adamw": 2,
    "adagrad": 1,
    "rmsprop": 1,
    "nadam": 2,
    "radam": 2,
    "adadelta": 2,
    "adamax": 2,
    "scaled_adam": 2,
}


class TrainingMemory(NamedTuple):
    """What a training keeps in the memory of its device, at least.

    Attributes:
        parameters: of the network, their number.
        state: bytes of parameters, gradient, and the optimizer's numbers.
        batch: bytes that the largest pass keeps for the backward pass.
    """

    parameters: int
    state: float
    batch: float

    @property
    def total(self) -> float:
        """Bytes of all of it."""
        return self.state + self.batch

    def times(self, networks: int) -> TrainingMemory:
        """Return what an ensemble keeps that is trained side by side."""
        return TrainingMemory(
            networks * self.parameters, networks * self.state, networks * self.batch
        )


def memory_of(
    footprint: Footprint, training: TrainingOptions, data: BatchOptions, longest: int
) -> TrainingMemory:
    """Return what a training on one rank takes.

    Args:
        footprint: of its network.
        training: its options.
        data: its batches.
        longest: frames of the longest utterance.
    """
    copies = 2 + num_moments(training.optimizer) + (training.ema is not None)
    state = float(copies * _FLOAT_BYTES * footprint.parameters)
    sequences, frames = _largest_pass(training, data, longest)
    views = 2 if training.consistency else 1
    batch = footprint.kept(views * sequences, frames)
    return TrainingMemory(footprint.parameters, state, batch)


def num_moments(options: OptimizerOptions) -> int:
    """Return the numbers that an optimizer keeps of each parameter."""
    has_momentum = bool(getattr(options, "momentum", 0.0))
    has_greatest = bool(getattr(options, "amsgrad", False))
    return _MOMENTS.get(options.type, 0) + has_momentum + has_greatest


def _largest_pass(
    training: TrainingOptions, data: BatchOptions, longest: int
) -> tuple[int, int]:
    """Return sequences and frames of the largest pass through the network."""
    frames = min(longest, data.max_length or longest)
    match data.sequences:
        case ChunkOptions(size=size, context=context):
            frames = min(frames, context.left + size + context.right)
        case EvenChunkOptions(size=size):
            frames = min(frames, size * 3 // 2)
        case _:
            pass
    sequences = data.max_sequences
    if data.max_frames is not None:
        square = frames / data.quadratic_frames if data.quadratic_frames else 0.0
        sequences = min(sequences, int(data.max_frames / (frames * (1 + square))))
    sequences = min(sequences, training.micro_sequences or sequences)
    return max(1, sequences), frames


@contextmanager
def enough_memory(what: str, remedy: str) -> Iterator[None]:
    """Make a lack of memory, of the machine or a GPU, one clear line.

    Args:
        what: that is made there.
        remedy: what the user can do about it.

    Raises:
        UserError: there is not enough.
    """
    with _enough(lambda: UserError(f"out of memory: {what}", remedy=remedy)):
        yield


@contextmanager
def enough_for_pass(batch: Batch) -> Iterator[None]:
    """Make a lack of memory while a batch passes one line, with the largest utterance.

    Raises:
        UserError: there is not enough.
    """
    with _enough(lambda: _too_large(batch)):
        yield


@contextmanager
def _enough(error_of: Callable[[], UserError]) -> Iterator[None]:
    """Raise another error where memory runs out."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise error_of() from error


def _too_large(batch: Batch) -> UserError:
    """Return the error of a batch that finds no memory."""
    frames, count = int(batch.lengths.max()), len(batch)
    sizes = f"{count} sequences of up to {frames} frames on {batch.features.device}"
    smaller = (
        f"set training.micro_sequences below {count} (steps stay), or lower "
        "data.max_frames or data.max_sequences"
        if count > 1
        else f"set data.max_length below {frames}, or train on chunks "
        "(data.max_frames and training.micro_sequences have no part in it)"
    )
    return UserError(
        f"out of memory in a pass over {sizes}; the largest is this utterance",
        utterance=batch.utterances[int(batch.lengths.argmax())],
        remedy=f"{smaller}; latflow plan shows what a network takes",
    )
