"""Images of a source in a box, as impulses on a grid finer than the samples.

Each image of the source adds an impulse of amplitude `beta**n / (4 pi d)` at the time
d / c, of n reflections and the distance d, shared by the two points of the grid beside
it. On the processor a compiled loop does it, on other devices torch, for many images
at a time.

Public: `lay_images`.

Source: Allen and Berkley 1979.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from latflow.jit import njit

_AT_A_TIME = 1 << 24  # images, on devices


def lay_images(
    fine: Tensor,
    size: list[float],
    source: list[float],
    microphone: list[float],
    *,
    log_reflection: float,
    advance: float,
    unit: float,
) -> None:
    """Add the impulses of a room's images to a grid.

    Args:
        fine: float32 [P], contiguous.
        size: length, width, height of the room, m.
        source: within the room.
        microphone: within the room, not at the source.
        log_reflection: logarithm of the factor of the amplitude at each wall.
        advance: path by which all sound comes earlier, m.
        unit: points of the grid for a metre.
    """
    limit, early = len(fine), advance * unit
    places = zip(size, source, microphone, strict=True)
    axes = [_axis(*place, (limit + early) / unit) for place in places]
    squared = [np.square(x * unit).astype(np.float32) for x, _ in axes]
    factors = [np.exp(n * log_reflection).astype(np.float32) for _, n in axes]
    factors[0] *= np.float32(unit / (4 * math.pi))
    if fine.device.type == "cpu":
        _add_impulses(fine.numpy(), tuple(squared), tuple(factors), early)
    else:
        on_device = [
            [torch.from_numpy(x).to(fine) for x in part] for part in (squared, factors)
        ]
        _add_on_device(fine, on_device[0], on_device[1], early)


def _axis(
    size: float, source: float, microphone: float, reach: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets of the images along an axis, near ones first, and reflections."""
    last = int(reach / (2 * size)) + 1
    n = np.arange(-last, last + 1)
    offset = np.concatenate((2 * n * size + source, 2 * n * size - source)) - microphone
    reflections = np.concatenate((2 * np.abs(n), np.abs(n) + np.abs(n - 1)))
    order = np.argsort(np.abs(offset), kind="stable")
    order = order[: np.count_nonzero(np.abs(offset) <= reach)]
    return offset[order], reflections[order]


@njit(cache=True, nogil=True, error_model="numpy")
def _add_impulses(fine, squared, factors, early):
    """Add impulses to a grid.

    Args:
        fine: float32 [P].
        squared: of each axis float32 [K], squared offsets in points, rising.
        factors: of each axis float32 [K], factors of the amplitude.
        early: by which all come earlier, points.
    """
    limit, early = len(fine), np.float32(early)
    bound = (np.float32(limit) + early) ** 2
    along_x, along_y, along_z = squared
    of_x, of_y, of_z = factors
    place = np.empty(len(along_z), np.float32)
    amplitude = np.empty(len(along_z), np.float32)
    for i in range(len(along_x)):
        count = len(along_z)
        for j in range(len(along_y)):
            flat, factor = along_x[i] + along_y[j], of_x[i] * of_y[j]
            while count > 0 and flat + along_z[count - 1] >= bound:
                count -= 1
            if count == 0:
                break
            for k in range(count):  # in vectors
                distance = np.sqrt(flat + along_z[k])
                place[k] = max(distance - early, np.float32(0))
                amplitude[k] = factor * of_z[k] / distance
            for k in range(count):
                point = int(place[k])
                behind = (place[k] - np.float32(point)) * amplitude[k]
                if point < limit:
                    fine[point] += amplitude[k] - behind
                if point + 1 < limit:
                    fine[point + 1] += behind


def _add_on_device(
    fine: Tensor, squared: list[Tensor], factors: list[Tensor], early: float
) -> None:
    """Do the same as `_add_impulses` by operations of torch."""
    limit = len(fine)
    # The part of an impulse for the point before it, and for the point behind it.
    parts = fine.new_zeros(2, limit + 1)
    along_x = squared[0].tolist()
    first = 0
    while first < len(along_x):
        rest = fine.new_tensor((limit + early) ** 2 - along_x[first])
        y, z = (int(torch.searchsorted(squared[k], rest)) for k in (1, 2))
        if y == 0 or z == 0:
            break
        last = first + max(1, _AT_A_TIME // (y * z))
        x = slice(first, last)
        distance = squared[0][x, None, None] + squared[1][:y, None] + squared[2][:z]
        distance = distance.flatten().sqrt_()
        amplitude = (factors[0][x, None] * factors[1][:y])[..., None] * factors[2][:z]
        amplitude = amplitude.flatten().div_(distance)
        point = distance.sub_(early).clamp_(0, limit)
        index = point.long()
        behind = point.sub_(index).mul_(amplitude)
        parts[1].index_add_(0, index, behind)
        parts[0].index_add_(0, index, amplitude.sub_(behind))
        first = last
    fine += parts[0, :limit]
    fine[1:] += parts[1, : limit - 1]
