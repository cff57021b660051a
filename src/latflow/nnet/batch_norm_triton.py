"""ReLU, batch normalization and bypass in one on a GPU, in Triton.

    y = (r - mean r) / sqrt(var r + epsilon) + factor x present,  r = relu(x) or x

Mean and variance are over the true frames of a batch. What is read and written of wide
frames is what limits a network there: forward they are read twice and written once,
backward likewise; operation by operation it is three times as much.

Moments of tiles are put together in their order: equal arguments give equal bits.

Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for
computing sample variances".
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS, _COLUMNS = 32, 64  # of a tile
_SPLITS = 64  # programs that share out the frames; a power of 2


def _kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel; not again for each number of frames."""
    known = inspect.signature(function).parameters
    frames = [name for name in ("num_rows", "frames") if name in known]
    return triton.jit(function, do_not_specialize=frames)


@triton.jit
def _tile(
    values, mask, row, column, num_rows, size,
    HAS_MASK: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """Load a tile, float32 [ROWS, COLUMNS]; which rows count; what is in the array."""
    is_row = row < num_rows
    both = is_row[:, None] & (column < size)[None, :]
    if HAS_MASK:
        is_row &= tl.load(mask + row, mask=is_row, other=1) == 0
    found = tl.load(values + row[:, None] * size + column[None, :], mask=both, other=0)
    found = found.to(tl.float32)
    return tl.maximum(found, 0.0) if RELU else found, is_row, both


@_kernel
def _moments(
    values, mask, parts, num_rows, size,
    HAS_MASK: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Write count, mean and sum of squares about it of a share of the rows."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1)
    count = tl.zeros((COLUMNS,), tl.float32)
    mean, squares = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    for first in range(split * ROWS, num_rows, SPLITS * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        own, is_row, _ = _tile(
            values, mask, row, column, num_rows, size, HAS_MASK, RELU
        )
        own = tl.where(is_row[:, None], own, 0.0)
        more = tl.sum(is_row.to(tl.float32), axis=0)
        centre = tl.sum(own, axis=0) / tl.maximum(more, 1.0)
        about = tl.where(is_row[:, None], own - centre[None, :], 0.0)
        apart, whole = centre - mean, tl.maximum(count + more, 1.0)
        squares += tl.sum(about * about, axis=0) + apart * apart * count * more / whole
        mean += apart * more / whole
        count += more
    place = parts + split * 3 * size + column
    tl.store(place, count, mask=column < size)
    tl.store(place + size, mean, mask=column < size)
    tl.store(place + 2 * size, squares, mask=column < size)


@_kernel
def _whole(
    parts, running_mean, running_variance, found, size, momentum, epsilon,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Put moments together: mean, 1 / deviation and count; move the running ones."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    is_there = column < size
    split = tl.arange(0, SPLITS)
    place = parts + split[:, None] * 3 * size + column[None, :]
    both = (split >= 0)[:, None] & is_there[None, :]
    count = tl.load(place, mask=both, other=0.0)
    means = tl.load(place + size, mask=both, other=0.0)
    squares = tl.load(place + 2 * size, mask=both, other=0.0)
    total = tl.maximum(tl.sum(count, axis=0), 1.0)
    mean = tl.sum(means * count, axis=0) / total
    apart = means - mean[None, :]
    variance = tl.sum(squares + apart * apart * count, axis=0) / total
    tl.store(found + column, mean, mask=is_there)
    tl.store(found + size + column, 1.0 / tl.sqrt(variance + epsilon), mask=is_there)
    tl.store(found + 2 * size + column, total, mask=is_there)
    before = tl.load(running_mean + column, mask=is_there, other=0.0)
    tl.store(running_mean + column, before + momentum * (mean - before), mask=is_there)
    unbiased = variance * total / tl.maximum(total - 1.0, 1.0)
    before = tl.load(running_variance + column, mask=is_there, other=0.0)
    after = before + momentum * (unbiased - before)
    tl.store(running_variance + column, after, mask=is_there)


@_kernel
def _normalize(
    values, mask, present, found, out, num_rows, size, frames, present_batch,
    present_frame, factor,
    HAS_MASK: tl.constexpr, RELU: tl.constexpr, HAS_BYPASS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write y."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    own, _, both = _tile(values, mask, row, column, num_rows, size, HAS_MASK, RELU)
    mean = tl.load(found + column, mask=column < size, other=0.0)
    scale = tl.load(found + size + column, mask=column < size, other=0.0)
    result = (own - mean[None, :]) * scale[None, :]
    if HAS_BYPASS:
        at = (row // frames) * present_batch + (row % frames) * present_frame
        passed = tl.load(present + at[:, None] + column[None, :], mask=both, other=0)
        result += factor * passed.to(tl.float32)
    place = out + row[:, None] * size + column[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=both)


@_kernel
def _gradient_sums(
    values, mask, gradient, found, parts, num_rows, size,
    HAS_MASK: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Write sums of derivatives, and of these times the normalized values."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    split = tl.program_id(1)
    mean = tl.load(found + column, mask=column < size, other=0.0)
    scale = tl.load(found + size + column, mask=column < size, other=0.0)
    plain, times = tl.zeros((COLUMNS,), tl.float32), tl.zeros((COLUMNS,), tl.float32)
    for first in range(split * ROWS, num_rows, SPLITS * ROWS):
        row = (first + tl.arange(0, ROWS)).to(tl.int64)
        own, _, both = _tile(values, mask, row, column, num_rows, size, HAS_MASK, RELU)
        place = gradient + row[:, None] * size + column[None, :]
        given = tl.load(place, mask=both, other=0).to(tl.float32)
        plain += tl.sum(given, axis=0)
        times += tl.sum(given * (own - mean[None, :]) * scale[None, :], axis=0)
    place = parts + split * 2 * size + column
    tl.store(place, plain, mask=column < size)
    tl.store(place + size, times, mask=column < size)


@_kernel
def _derive(
    values, mask, gradient, found, parts, out, num_rows, size,
    HAS_MASK: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Write derivatives to x."""
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_there = column < size
    split = tl.arange(0, SPLITS)
    place = parts + split[:, None] * 2 * size + column[None, :]
    all_of_them = (split >= 0)[:, None] & is_there[None, :]
    total = tl.load(found + 2 * size + column, mask=is_there, other=1.0)
    plain = tl.sum(tl.load(place, mask=all_of_them, other=0.0), axis=0) / total
    times = tl.sum(tl.load(place + size, mask=all_of_them, other=0.0), axis=0) / total
    mean = tl.load(found + column, mask=is_there, other=0.0)
    scale = tl.load(found + size + column, mask=is_there, other=0.0)
    own, is_row, both = _tile(values, mask, row, column, num_rows, size, HAS_MASK, RELU)
    at = row[:, None] * size + column[None, :]
    given = tl.load(gradient + at, mask=both, other=0).to(tl.float32)
    centred = (own - mean[None, :]) * scale[None, :]
    # mean and variance come of the rows that count
    shift = tl.where(is_row[:, None], plain[None, :] + centred * times[None, :], 0.0)
    result = scale[None, :] * (given - shift)
    if RELU:
        result = tl.where(own > 0.0, result, 0.0)
    tl.store(out + at, result.to(out.dtype.element_ty), mask=both)


class _Normalized(torch.autograd.Function):
    """Values with mean 0 and variance 1, plus a bypass."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        present: Tensor | None,
        mask: Tensor | None,
        running: tuple[Tensor, Tensor],
        momentum: float,
        epsilon: float,
        factor: float,
        relu: bool,  # noqa: FBT001
    ) -> Tensor:
        """Normalize."""
        size = values.shape[2]
        values = values if values.is_contiguous() else values.contiguous()
        num_rows = values.shape[0] * values.shape[1]
        wide = triton.cdiv(size, _COLUMNS)
        mask = None if mask is None else mask.contiguous()
        marks = values if mask is None else mask
        kinds = {"HAS_MASK": mask is not None, "RELU": relu}
        kinds |= {"ROWS": _ROWS, "COLUMNS": _COLUMNS}
        parts = values.new_empty(_SPLITS, 3, size, dtype=torch.float32)
        _moments[wide, _SPLITS](
            values, marks, parts, num_rows, size, **kinds, SPLITS=_SPLITS
        )
        found = values.new_empty(3, size, dtype=torch.float32)
        _whole[wide,](
            parts, *running, found, size, momentum, epsilon,
            COLUMNS=_COLUMNS, SPLITS=_SPLITS,
        )  # fmt: skip
        out = torch.empty_like(values)
        passed = values if present is None else present
        if passed.stride(2) != 1:
            passed = passed.contiguous()
        _normalize[triton.cdiv(num_rows, _ROWS), wide](
            values, marks, passed, found, out, num_rows, size, values.shape[1],
            passed.stride(0), passed.stride(1), factor,
            **kinds, HAS_BYPASS=present is not None,
        )  # fmt: skip
        ctx.save_for_backward(values, found, mask)
        ctx.relu, ctx.factor, ctx.has_bypass = relu, factor, present is not None
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return derivatives to the values and to what passes by."""
        values, found, mask = ctx.saved_tensors
        (gradient,) = gradients
        gradient = gradient.contiguous()
        size = values.shape[2]
        num_rows = values.shape[0] * values.shape[1]
        wide = triton.cdiv(size, _COLUMNS)
        marks = values if mask is None else mask
        kinds = {"HAS_MASK": mask is not None, "RELU": ctx.relu, "SPLITS": _SPLITS}
        kinds |= {"ROWS": _ROWS, "COLUMNS": _COLUMNS}
        parts = values.new_empty(_SPLITS, 2, size, dtype=torch.float32)
        _gradient_sums[wide, _SPLITS](
            values, marks, gradient, found, parts, num_rows, size, **kinds
        )
        out = torch.empty_like(values)
        _derive[triton.cdiv(num_rows, _ROWS), wide](
            values, marks, gradient, found, parts, out, num_rows, size, **kinds
        )
        passed = None
        if ctx.has_bypass:
            passed = gradient * ctx.factor
        return out, passed, *[None] * 6


def normalized(
    values: Tensor,
    padding: Tensor | None,
    running: tuple[Tensor, Tensor],
    *,
    momentum: float,
    epsilon: float,
    relu: bool = False,
    present: Tensor | None = None,
    factor: float = 1.0,
) -> Tensor:
    """Normalize frames by the mean and variance of a batch; see the module.

    Args:
        values: [B, T, D], float32 or bf16.
        padding: bool [B, T, 1], frames that do not count in the moments; None for none.
        running: float32 [D], mean and variance, which move towards the batch's.
        momentum: their step.
        epsilon: added to the variance.
        relu: whether negative numbers are 0 before.
        present: [B, T, D], what is added, of the same type; None for nothing.
        factor: of that.
    """
    if present is not None and present.dtype != values.dtype:
        present = present.to(values.dtype)
    return _Normalized.apply(
        values, present, padding, running, momentum, epsilon, factor, relu
    )
