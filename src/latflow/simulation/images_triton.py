"""Kernel that lays the images of many rooms on their grids, for GPUs, in Triton.

A program takes one image along the length of a room, some along its width, and goes
through those along its height, some at a time, until they are too far away.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_WIDE, _HIGH = 16, 64  # images of a program at a time: along the width, the height


def add_impulses(
    fine: Tensor, limits: Tensor, squared: Tensor, factors: Tensor, early: Tensor
) -> None:
    """Add impulses to grids; see `latflow.simulation.images`.

    Atomic operations add up in any order: equal arguments give numbers that differ by
    rounding.

    Args:
        fine: float32 [N, P], contiguous, of less than 2^31 points.
        limits: int64 [N], points of each grid that are used.
        squared: float32 [N, 3, K], squared offsets of the images along the axes in
            points, rising; infinite where there are no more.
        factors: float32 [N, 3, K], of the amplitude.
        early: float32 [N], by which all come earlier, points.
    """
    number, _, count = squared.shape
    if not count:
        return  # none is in reach
    grid = number * count, triton.cdiv(count, _WIDE)
    _add[grid](
        *(fine, limits.to(torch.int32), squared, factors, early),
        *(fine.shape[1], count),
        WIDE=_WIDE,
        HIGH=_HIGH,
    )


def _kernel(function: Callable[..., None]) -> Any:
    """Compile a kernel; not for each size of grids again."""
    return triton.jit(function, do_not_specialize=["points", "count"])


@_kernel
def _add(
    fine, limits, squared, factors, early, points, count,
    WIDE: tl.constexpr, HIGH: tl.constexpr,
):  # fmt: skip
    """Add the images of a room at one place along its length."""
    room, x = tl.program_id(0) // count, tl.program_id(0) % count
    fine += room * points
    squared += room * 3 * count
    factors += room * 3 * count
    limit, sooner = tl.load(limits + room), tl.load(early + room)
    bound = limit.to(tl.float32) + sooner
    bound = bound * bound
    y = tl.program_id(1) * WIDE + tl.arange(0, WIDE)
    flat = tl.load(squared + count + y, mask=y < count, other=float("inf"))
    flat += tl.load(squared + x)
    factor = tl.load(factors + count + y, mask=y < count, other=0.0)
    factor *= tl.load(factors + x)
    nearest = tl.min(flat, axis=0)
    first = 0
    depth = tl.load(squared + 2 * count)
    while nearest + depth < bound:
        z = first + tl.arange(0, HIGH)
        high = tl.load(squared + 2 * count + z, mask=z < count, other=float("inf"))
        of_high = tl.load(factors + 2 * count + z, mask=z < count, other=0.0)
        far = flat[:, None] + high[None, :]
        is_in_reach = far < bound
        distance = tl.sqrt_rn(tl.where(is_in_reach, far, 1.0))
        amplitude = tl.div_rn(factor[:, None] * of_high[None, :], distance)
        place = tl.maximum(distance - sooner, 0.0)
        point = place.to(tl.int32)
        behind = (place - point.to(tl.float32)) * amplitude
        tl.atomic_add(
            fine + point, amplitude - behind, mask=is_in_reach & (point < limit),
            sem="relaxed",
        )  # fmt: skip
        tl.atomic_add(
            fine + point + 1, behind, mask=is_in_reach & (point + 1 < limit),
            sem="relaxed",
        )  # fmt: skip
        first += HIGH
        depth = tl.load(
            squared + 2 * count + first, mask=first < count, other=float("inf")
        )
