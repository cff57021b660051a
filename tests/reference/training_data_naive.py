"""Obvious twins of the data kernels: chunks by a loop, targets frame by frame."""

from typing import Any

import numpy as np

from latflow.training.data_options import ChunkOptions, DataOptions, UtteranceOptions


def data_of(
    size: int | None = None,
    step: int | None = None,
    left: int = 0,
    right: int = 0,
    **others: Any,
) -> DataOptions:
    """Data in chunks of a size, or of whole utterances."""
    sequences: Any = UtteranceOptions()
    if size is not None:
        context = {"left": left, "right": right}
        values = {"size": size, "step": step, "context": context}
        sequences = ChunkOptions.model_validate(values)
    return DataOptions(sequences=sequences, **{"shift_frames": False, **others})


def chunks(length: int, size: int, step: int) -> list[tuple[int, int]]:
    """(first, one after the last) counted frame of each chunk of an utterance."""
    result, begin = [], 0
    while True:
        result.append((begin, min(begin + size, length)))
        if begin + size >= length:
            return result
        begin += step


def targets(
    labels: np.ndarray, first: int, length: int, counted: tuple[int, int], stride: int
) -> list[int]:
    """Target of each output frame of a piece; labels are one for an input frame."""
    result = []
    for frame in range(first, first + length, stride):
        is_counted = counted[0] <= frame < counted[1] and frame < len(labels)
        result.append(int(labels[frame]) if is_counted else -1)
    return result


def normalize(frames: np.ndarray, kind: str, training: list[np.ndarray]) -> np.ndarray:
    """Normalized features of an utterance, float64."""
    frames = frames.astype(np.float64)
    over = np.concatenate(training).astype(np.float64) if kind == "global" else frames
    if kind == "none":
        return frames
    centred = frames - over.mean(0)
    return centred if kind == "mean" else centred / np.maximum(over.std(0), 0.01)


def batches(lengths: list[int], max_sequences: int, max_frames: int) -> list[list[int]]:
    """Positions of each batch, without buckets."""
    result: list[list[int]] = []
    for i in range(len(lengths)):
        grown = [*result[-1], i] if result else [i]
        padded = len(grown) * max(lengths[j] for j in grown)
        if result and len(grown) <= max_sequences and padded <= max_frames:
            result[-1] = grown
        else:
            result.append([i])
    return result
