"""Images of a source in a box, as impulses on a grid finer than the samples.

Each image of the source adds an impulse of amplitude `beta**n / (4 pi d)` at the time
d / c, of n reflections and the distance d, shared by the two points of the grid beside
it. On the processor a compiled loop does it, room by room; on a GPU a kernel does, for
all rooms at once; on other devices torch's operations do. Only on the processor equal
arguments give equal bits.

Source: Allen and Berkley 1979.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from latflow.device_copies import sent
from latflow.gpu_kernels import runs_kernels
from latflow.jit import njit

_AT_A_TIME = 1 << 24  # images, on devices


class Boxes(NamedTuple):
    """Rooms, each with a source and a microphone.

    Attributes:
        size: float64 [N, 3], length, width, height, m.
        source: float64 [N, 3], within the room.
        microphone: float64 [N, 3], within the room, not at the source.
        reflection: float64 [N], factor of the amplitude at each wall.
        advance: float64 [N], path by which all sound comes earlier, m.
    """

    size: Tensor
    source: Tensor
    microphone: Tensor
    reflection: Tensor
    advance: Tensor


def lay_images(
    fine: Tensor, boxes: Boxes, limits: Sequence[int], *, unit: float
) -> None:
    """Add the impulses of rooms' images to grids.

    Args:
        fine: float32 [N, P], contiguous.
        boxes: the rooms, on the same device.
        limits: points of each grid that are used.
        unit: points of the grid for a metre.
    """
    if fine.device.type == "cpu":
        for i, limit in enumerate(limits):
            _lay_room(fine[i, :limit].numpy(), Boxes(*(x[i] for x in boxes)), unit)
        return
    ends = sent(np.array(limits), fine.device)
    squared, factors = _axes(boxes, ends, unit)
    early = (boxes.advance * unit).float()
    if runs_kernels(fine):
        from latflow.simulation.images_triton import add_impulses

        add_impulses(fine, ends, squared, factors, early)
        return
    for i, limit in enumerate(limits):
        _add_on_device(fine[i, :limit], squared[i], factors[i], float(early[i]))


def _lay_room(fine: np.ndarray, box: Boxes, unit: float) -> None:
    """Add the impulses of one room, whose attributes have no axis N."""
    early, log_reflection = float(box.advance) * unit, math.log(float(box.reflection))
    places = zip(
        *(box.size.tolist(), box.source.tolist(), box.microphone.tolist()), strict=True
    )
    axes = [_axis(*place, (len(fine) + early) / unit) for place in places]
    squared = [np.square(x * unit).astype(np.float32) for x, _ in axes]
    factors = [np.exp(n * log_reflection).astype(np.float32) for _, n in axes]
    factors[0] *= np.float32(unit / (4 * math.pi))
    _add_impulses(fine, tuple(squared), tuple(factors), early)


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


def _axes(boxes: Boxes, limits: Tensor, unit: float) -> tuple[Tensor, Tensor]:
    """Do the same as `_axis` for rooms on a device.

    Returns:
        float32 [N, 3, K], squared offsets in points, near ones first and infinite where
        a room has no more; float32 [N, 3, K], factors of the amplitude.
    """
    reach = (limits / unit + boxes.advance)[:, None]
    last = int((reach / (2 * boxes.size)).max()) + 1
    n = torch.arange(-last, last + 1, device=limits.device)
    reflections = torch.cat((2 * n.abs(), n.abs() + (n - 1).abs()))
    along, source = 2 * n * boxes.size[..., None], boxes.source[..., None]
    offset = torch.cat((along + source, along - source), -1)
    offset = (offset - boxes.microphone[..., None]).abs()
    is_in_reach = offset <= reach[..., None]
    offset, order = offset.masked_fill(~is_in_reach, torch.inf).sort(-1)
    most = int(is_in_reach.sum(-1).max())
    offset, order = offset[..., :most], order[..., :most]
    log_reflection = boxes.reflection.log()[:, None, None]
    factors = (reflections[order] * log_reflection).exp().float()
    factors[:, 0] *= unit / (4 * math.pi)
    return (offset * unit).square().float().contiguous(), factors.contiguous()


def _add_on_device(
    fine: Tensor, squared: Tensor, factors: Tensor, early: float
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
        if y == 0 or z == 0:  # nor is any after it in reach
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
