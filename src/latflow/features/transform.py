"""Features made of stored ones when frames are read: deltas, splicing, projections.

Stored frames stay small (13 coefficients, not 39): a `FeatureTransform` makes the rest
at tens of millions of frames a second, without the interpreter's lock.

    Identity     the frames unchanged
    Deltas       Kaldi's add-deltas
    Splice       Kaldi's splice-feats
    Linear       Kaldi's transform-feats: LDA, MLLT, fMLLR
    Chain        one after another

Deltas and splicing repeat an utterance's first and last frame beyond its edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.jit import njit

_TILE = 4096  # numbers worked on together: they fit the first-level cache
_MAX_CONTEXT = 1000  # frames on a side: more is a mistake that takes all memory


class FeatureTransform(ABC):
    """Callable on the frames of one utterance, [T, D] -> float32 [T, dim_out(D)].

    The result is a new, contiguous array; the input is never changed.
    """

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Transform the frames of one utterance."""
        return self.apply(frames, np.array([0, len(frames)], np.int64))

    @abstractmethod
    def apply(self, frames: np.ndarray, begin: np.ndarray) -> np.ndarray:
        """Transform the frames of several utterances at once.

        Args:
            frames: [sum T, D], utterances below each other.
            begin: int64[U + 1], first row of each utterance; the last is sum T.

        Returns:
            float32 [sum T, dim_out(D)].
        """

    @property
    def context(self) -> tuple[int, int]:
        """Frames before and behind that a frame is made of."""
        return 0, 0

    @abstractmethod
    def dim_out(self, dim_in: int) -> int:
        """Return how many features per frame has afterwards, of `dim_in` before."""

    @abstractmethod
    def to_config(self) -> dict[str, Any]:
        """Describe the transform as configuration that `from_config` reads."""

    @staticmethod
    def from_config(config: Mapping[str, Any]) -> FeatureTransform:
        """Make the transform that a configuration describes.

        Args:
            config: `type` and the arguments of that type, e.g.
                `{"type": "deltas", "order": 2, "window": 2}`.

        Raises:
            ValueError: unknown type.
        """
        arguments = {key: value for key, value in config.items() if key != "type"}
        match config["type"]:
            case "none":
                return Identity(**arguments)
            case "deltas":
                return Deltas(**arguments)
            case "splice":
                return Splice(**arguments)
            case "linear":
                return Linear(**arguments)
            case "chain":
                parts = arguments.pop("transforms")
                return Chain([FeatureTransform.from_config(p) for p in parts])
        raise ValueError(f"unknown transform {config['type']!r}")


class Identity(FeatureTransform):
    """The unchanged frames (copied)."""

    def apply(self, frames: np.ndarray, begin: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Copy the frames; see `FeatureTransform.apply`."""
        return np.array(frames, np.float32, order="C")

    def dim_out(self, dim_in: int) -> int:
        """Return `dim_in`."""
        return dim_in

    def to_config(self) -> dict[str, Any]:
        """Describe itself."""
        return {"type": "none"}


class Deltas(FeatureTransform):
    """Append time derivatives: features, deltas, delta-deltas, ...

    A delta is the slope of the straight line fitted to 2 `window` + 1 frames:
    d[t] = sum_j j x[t+j] / sum_j j^2, j = -window..window. Higher orders apply the same
    filter again, as one longer filter on x: edges are repeated once, for x, not for
    each order.

    Args:
        order: highest derivative, >= 0.
        window: half width of one filter, frames, >= 1.

    Source: Kaldi `feat/feature-functions.cc:DeltaFeatures` (add-deltas).
    """

    def __init__(self, order: int = 2, window: int = 2) -> None:
        if order < 0 or window < 1 or max(1, order) * window > _MAX_CONTEXT:
            raise ValueError(
                f"deltas need order >= 0, window >= 1, order x window <= "
                f"{_MAX_CONTEXT}: {order}, {window}"
            )
        self.order, self.window = order, window
        self.filters = _delta_filters(order, window)

    @property
    def context(self) -> tuple[int, int]:
        """The reach of the highest derivative."""
        return self.order * self.window, self.order * self.window

    def apply(self, frames: np.ndarray, begin: np.ndarray) -> np.ndarray:
        """Append derivatives; see `FeatureTransform.apply`."""
        frames = np.ascontiguousarray(frames, np.float32)
        out = np.empty((len(frames), self.dim_out(frames.shape[1])), np.float32)
        _filter_frames(frames, np.asarray(begin, np.int64), self.filters, out)
        return out

    def dim_out(self, dim_in: int) -> int:
        """Return `dim_in` (order + 1)."""
        return dim_in * (self.order + 1)

    def to_config(self) -> dict[str, Any]:
        """Describe itself."""
        return {"type": "deltas", "order": self.order, "window": self.window}


class Splice(FeatureTransform):
    """Put the neighbours' features beside each other: x[t-left], ..., x[t+right].

    Args:
        left: frames before, >= 0.
        right: frames after, >= 0.

    Source: Kaldi `feat/feature-functions.cc:SpliceFrames` (splice-feats).
    """

    def __init__(self, left: int = 4, right: int = 4) -> None:
        if not (0 <= left <= _MAX_CONTEXT and 0 <= right <= _MAX_CONTEXT):
            raise ValueError(
                f"splice needs left, right >= 0, <= {_MAX_CONTEXT}: {left}, {right}"
            )
        self.left, self.right = left, right

    @property
    def context(self) -> tuple[int, int]:
        """The neighbours."""
        return self.left, self.right

    def apply(self, frames: np.ndarray, begin: np.ndarray) -> np.ndarray:
        """Put neighbours beside each other; see `FeatureTransform.apply`."""
        frames = np.ascontiguousarray(frames, np.float32)
        out = np.empty((len(frames), self.dim_out(frames.shape[1])), np.float32)
        _splice_frames(frames, np.asarray(begin, np.int64), self.left, out)
        return out

    def dim_out(self, dim_in: int) -> int:
        """Return `dim_in` (left + 1 + right)."""
        return dim_in * (self.left + 1 + self.right)

    def to_config(self) -> dict[str, Any]:
        """Describe itself."""
        return {"type": "splice", "left": self.left, "right": self.right}


class Linear(FeatureTransform):
    """A matrix times each frame, with an offset if the matrix has one column more.

    Args:
        matrix: [D', D], or [D', D + 1] with the offset in the last column.

    Source: Kaldi `featbin/transform-feats.cc`.
    """

    def __init__(self, matrix: np.ndarray | Sequence[Sequence[float]]) -> None:
        self.matrix = np.array(matrix, np.float32, ndmin=2)

    def apply(self, frames: np.ndarray, begin: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Project each frame; see `FeatureTransform.apply`.

        Raises:
            UserError: the frames have another dimension than the matrix takes.
        """
        self.dim_out(frames.shape[1])
        dim = frames.shape[1]
        offset = self.matrix[:, dim] if self.matrix.shape[1] > dim else None
        return project(frames, self.matrix[:, :dim], offset)

    def dim_out(self, dim_in: int) -> int:
        """Return D'.

        Raises:
            UserError: the matrix takes frames of another dimension.
        """
        rows, columns = self.matrix.shape
        if dim_in not in (columns, columns - 1):
            raise UserError(
                f"frames of dimension {dim_in}, but a transform of {rows} x {columns}",
                remedy="use the features that the transform was estimated on",
            )
        return rows

    def to_config(self) -> dict[str, Any]:
        """Describe itself, with the numbers of the matrix."""
        return {"type": "linear", "matrix": self.matrix.tolist()}


def project(
    frames: np.ndarray, matrix: np.ndarray, offset: np.ndarray | None
) -> np.ndarray:
    """Multiply each frame by a matrix and add an offset, float32[T, D'].

    Args:
        frames: [T, D].
        matrix: float32[D', D].
        offset: float32[D'], if there is one.
    """
    out = np.zeros((len(frames), len(matrix)), np.float32)
    if offset is not None:
        out += offset
    columns = np.ascontiguousarray(np.asarray(matrix, np.float32).T)
    _add_products(np.ascontiguousarray(frames, np.float32), columns, out)
    return out


@njit(cache=True, nogil=True)
def _add_products(frames: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Add frames [T, D] times columns [D, D'] to out [T, D'], all float32.

    Sums are made in the order of D, so that a frame has the same bits whatever stands
    beside it; those of a BLAS depend on the frames and on its threads.
    """
    for t in range(len(frames)):
        row = out[t]
        for d in range(frames.shape[1]):
            value = frames[t, d]
            for e in range(len(row)):
                row[e] += value * columns[d, e]


class Chain(FeatureTransform):
    """Transforms one after another.

    Args:
        transforms: the first is applied first.
    """

    def __init__(self, transforms: Sequence[FeatureTransform]) -> None:
        self.transforms = tuple(transforms)

    @property
    def context(self) -> tuple[int, int]:
        """That of all together."""
        contexts = [transform.context for transform in self.transforms]
        return sum(left for left, _ in contexts), sum(right for _, right in contexts)

    def apply(self, frames: np.ndarray, begin: np.ndarray) -> np.ndarray:
        """Apply all in turn; see `FeatureTransform.apply`."""
        out = frames
        for transform in self.transforms or (Identity(),):
            out = transform.apply(out, begin)
        return out

    def dim_out(self, dim_in: int) -> int:
        """Return the dimension after all of them."""
        for transform in self.transforms:
            dim_in = transform.dim_out(dim_in)
        return dim_in

    def to_config(self) -> dict[str, Any]:
        """Describe itself."""
        return {"type": "chain", "transforms": [t.to_config() for t in self.transforms]}


def _delta_filters(order: int, window: int) -> np.ndarray:
    """Filter taps of each order, float32 [order + 1, 2 order window + 1], centred."""
    slope = np.arange(-window, window + 1, dtype=np.float64)
    slope /= np.sum(slope**2)
    half = order * window
    filters = np.zeros((order + 1, 2 * half + 1), np.float32)
    taps = np.ones(1)
    for i in range(order + 1):
        reach = i * window
        filters[i, half - reach : half + reach + 1] = taps
        taps = np.convolve(taps, slope)
    return filters


@njit(cache=True, nogil=True)
def _copy_window(frames, first, rows, bounds, out):
    """Copy rows first..first + rows - 1, those beyond the utterance repeat its edge.

    Args:
        frames: float32 [sum T, D].
        first: may lie before the utterance.
        rows: how many; they may go beyond its end.
        bounds: int64[2], first row of the utterance and of the next one.
        out: float32, filled with rows D numbers.
    """
    dim = frames.shape[1]
    for r in range(rows):
        row = min(max(first + r, bounds[0]), bounds[1] - 1)
        for d in range(dim):
            out[r * dim + d] = frames[row, d]


@njit(cache=True, nogil=True)
def _filter_frames(frames, begin, filters, out):
    """Filter each feature along time with every row of `filters`.

    Away from the edges, the rows of an utterance are one long vector x, and tap j of a
    filter multiplies x shifted by j D: long inner loops over neighbours in memory.

    Args:
        frames: float32 [sum T, D].
        begin: int64[U + 1].
        filters: float32 [K, 2 half + 1]; filter k makes columns k D..(k + 1) D - 1.
        out: float32 [sum T, K D], filled.
    """
    dim = frames.shape[1]
    half = filters.shape[1] // 2
    tile_rows = max(1, _TILE // max(1, dim))
    padded = np.empty((tile_rows + 2 * half) * dim, np.float32)
    filtered = np.empty(tile_rows * dim, np.float32)
    for u in range(len(begin) - 1):
        for first in range(begin[u], begin[u + 1], tile_rows):
            rows = min(tile_rows, begin[u + 1] - first)
            _copy_window(
                frames, first - half, rows + 2 * half, begin[u : u + 2], padded
            )
            for k in range(filters.shape[0]):
                filtered[: rows * dim] = np.float32(0.0)
                for j in range(filters.shape[1]):
                    tap = filters[k, j]
                    if tap != 0:
                        for i in range(rows * dim):
                            filtered[i] += tap * padded[j * dim + i]
                for r in range(rows):
                    for d in range(dim):
                        out[first + r, k * dim + d] = filtered[r * dim + d]


@njit(cache=True, nogil=True)
def _splice_frames(frames, begin, left, out):
    """Copy each frame's neighbours beside each other, see `Splice`.

    Args:
        frames: float32 [sum T, D].
        begin: int64[U + 1].
        left: neighbours before.
        out: float32 [sum T, W D], filled; W is the width of the window.
    """
    dim = frames.shape[1]
    width = out.shape[1] // max(1, dim)
    for u in range(len(begin) - 1):
        for t in range(begin[u], begin[u + 1]):
            for w in range(width):
                row = min(max(t + w - left, begin[u]), begin[u + 1] - 1)
                for d in range(dim):
                    out[t, w * dim + d] = frames[row, d]
