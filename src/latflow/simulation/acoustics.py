"""What rooms can have, without computing their responses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

SPEED_OF_SOUND = 343.0  # m/s, air of 20 degrees Celsius
Array = TypeVar("Array", np.ndarray, "Tensor")


def shortest_decay_time(size: Array) -> Array:
    """Return the shortest reverberation times that rooms are asked for.

    Sabine's formula where walls absorb all; below it a response has too few reflections
    to decay evenly.

    Args:
        size: [..., 3], m.

    Returns:
        [...], s.
    """
    x, y, z = size[..., 0], size[..., 1], size[..., 2]
    walls = 2 * (x * y + y * z + z * x)
    return 24 * math.log(10) / SPEED_OF_SOUND * x * y * z / walls
