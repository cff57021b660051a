"""Normalization of a network's features: the same in training, forward and serving.

    none                 as they are
    mean                 minus the utterance's mean (PyKaldi2's code)
    mean_variance        and divided by its standard deviation (PyKaldi2's paper)
    global               with mean and standard deviation of all training frames

The statistics of `global` travel in the model's meta.json (`to_meta`, `from_meta`);
`Normalizer.__call__` is all that forward, decoding and serving need. Statistics are of
the whole utterance, also where training sees a chunk of it.

Standard deviations count as 0.01 at least (as PyKaldi2's), so that a filter that hears
nothing gives zeros, not noise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit

KINDS = ("none", "mean", "mean_variance", "global")
STD_FLOOR = 1e-2


class Frames(Protocol):
    """Frames of a corpus, e.g. a `FrameStore`."""

    @property
    def dim(self) -> int:
        """Features a frame, D."""
        ...

    def __len__(self) -> int:
        """Return the number of utterances."""
        ...

    def frames(self, i: int, /) -> np.ndarray:
        """Return the frames of utterance i, float32 [T_i, D]."""
        ...


@dataclass(frozen=True)
class Normalizer:
    """A normalization, ready for use.

    Attributes:
        kind: none, mean, mean_variance or global.
        mean: float32 [D], of `global`; None otherwise.
        scale: float32 [D], 1 / standard deviation, of `global`; None otherwise.
    """

    kind: str = "none"
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None

    @staticmethod
    def estimate(kind: str, training: Frames) -> Normalizer:
        """Make it; `global` reads all training frames once."""
        if kind not in KINDS:
            raise ValueError(f"no such normalization: {kind}")
        if kind != "global":
            return Normalizer(kind)
        sums = np.zeros((2, training.dim))
        num_frames = 0
        for i in range(len(training)):
            frames = _read_only(training.frames(i))
            _add_sums(frames, sums)
            num_frames += len(frames)
        mean, scale = _shape(sums, num_frames)
        return Normalizer(kind, mean, scale)

    def moments(self, frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and scale that an utterance is normalized with.

        Args:
            frames: float32 [T, D], the whole utterance, T >= 1.

        Returns:
            (mean, scale), float32 [D] each: the result is (frames - mean) x scale.
        """
        dim = frames.shape[1]
        if self.kind == "none":
            return np.zeros(dim, np.float32), np.ones(dim, np.float32)
        if self.mean is not None and self.scale is not None:
            return self.mean, self.scale
        sums = np.zeros((2, dim))
        _add_sums(_read_only(frames), sums)
        mean, scale = _shape(sums, len(frames))
        return mean, scale if self.kind == "mean_variance" else np.ones_like(scale)

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Normalize one whole utterance, float32 [T, D] -> float32 [T, D]."""
        if self.kind == "none" or not len(frames):
            return frames
        mean, scale = self.moments(frames)
        return (frames - mean) * scale

    def to_meta(self) -> dict[str, Any]:
        """Return the values for meta.json."""
        if self.mean is None or self.scale is None:
            return {"type": self.kind}
        scales = {"mean": self.mean.tolist(), "scale": self.scale.tolist()}
        return {"type": self.kind, **scales}

    @staticmethod
    def from_meta(meta: object) -> Normalizer:
        """Back from the values of meta.json.

        Raises:
            UserError: a kind that there is not, or statistics that do not fit.
        """
        given = meta if isinstance(meta, Mapping) else {}
        kind = given.get("type")
        if kind not in KINDS:
            raise UserError(
                f"the model's meta.json has an unknown normalization: {kind!r}",
                remedy=f"set normalization.type there to one of {', '.join(KINDS)}",
            )
        if kind != "global":
            return Normalizer(kind)
        try:
            mean = np.array(given.get("mean"), np.float32)
            scale = np.array(given.get("scale"), np.float32)
        except (TypeError, ValueError):
            mean = scale = np.empty(())
        if mean.ndim != 1 or mean.shape != scale.shape:
            raise UserError("statistics of the global normalization are missing")
        return Normalizer(kind, mean, scale)


def _shape(sums: np.ndarray, num_frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and 1 / standard deviation of the sums of x and x^2, [2, D]."""
    mean = sums[0] / max(1, num_frames)
    variance = np.maximum(sums[1] / max(1, num_frames) - mean**2, 0.0)
    scale = 1.0 / np.maximum(np.sqrt(variance), STD_FLOOR)
    return mean.astype(np.float32), scale.astype(np.float32)


def _read_only(frames: np.ndarray) -> np.ndarray:
    """Return the array as a read-only one, so that kernels compile once."""
    view = frames.view()
    view.flags.writeable = False
    return view


@njit(cache=True, nogil=True)
def _add_sums(frames: np.ndarray, sums: np.ndarray) -> None:
    """Add the sums of x and x^2 over frames [T, D] to `sums`, float64 [2, D]."""
    for t in range(frames.shape[0]):
        for d in range(frames.shape[1]):
            x = np.float64(frames[t, d])
            sums[0, d] += x
            sums[1, d] += x * x
