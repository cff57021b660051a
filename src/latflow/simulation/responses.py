"""Responses of the rooms that records have, kept for their next use.

Public: `RoomResponses`.
"""

from __future__ import annotations

import logging
import math

import numpy as np
import torch

from latflow.array_cache import ArrayCache
from latflow.simulation.records import Place, RoomDraw
from latflow.simulation.rooms import absorbed, calibrated_responses, room_responses

log = logging.getLogger(__name__)


class RoomResponses:
    """Compute responses of rooms; safe to share between threads.

    Args:
        rate: Hz.
        cache: keeps them.
    """

    def __init__(self, rate: int, cache: ArrayCache) -> None:
        self._rate, self._cache = rate, cache

    def of_place(
        self, room: RoomDraw, place: Place, array: tuple[Place, ...] | None
    ) -> np.ndarray:
        """Return the response of a room from a place, the direct path first.

        Returns:
            [R], or of an array [C, R]: the direct path to the nearest microphone first.
        """
        self._reflection(room)  # finds that of the speaker, too
        key = (*_walls(room), place, array)
        found = self._cache.get(key)
        if found is None:
            found = self.computed(room, np.array(place), array)
            self._cache.put(key, found)
        return found

    def computed(
        self, room: RoomDraw, place: np.ndarray, array: tuple[Place, ...] | None
    ) -> np.ndarray:
        """See `of_place`; the place is float64 [3], and nothing is kept."""
        microphones = np.add(room.microphone, array or ((0.0, 0.0, 0.0),))
        points = torch.from_numpy(microphones)
        there = torch.from_numpy(place).expand(len(points), 3)
        nearest = (there - points).norm(dim=1).min()
        responses = room_responses(
            torch.tensor([room.size], dtype=torch.float64).expand(len(points), 3),
            there,
            points,
            torch.from_numpy(self._reflection(room)).expand(len(points)),
            rate=self._rate,
            num_samples=math.ceil(room.t60 * self._rate),
            advance=nearest.expand(len(points)),
        )
        response = absorbed(responses, room.t60, room.high_t60, rate=self._rate).numpy()
        return response[0] if array is None else response

    def _reflection(self, room: RoomDraw) -> np.ndarray:
        """Return the reflection of a room's walls, float64 [1].

        The response from the speaker to a microphone is kept too, where it is final.
        """
        found = self._cache.get(_walls(room))
        if found is not None:
            return found
        size, microphone, source = (
            torch.tensor([point], dtype=torch.float64)
            for point in (room.size, room.microphone, room.source)
        )
        made = calibrated_responses(
            size,
            source,
            microphone,
            torch.tensor([room.t60], dtype=torch.float64),
            rate=self._rate,
        )
        measured = float(made.decay_time[0])
        if abs(measured / room.t60 - 1) > 0.1:
            log.warning(
                "room %d: reverberation time %.3f s, not %.3f s",
                *(room.number, measured, room.t60),
            )
        reflection = made.reflection.numpy()
        self._cache.put(_walls(room), reflection)
        if room.high_t60 is None:
            heard = (*_walls(room), room.source, None)
            self._cache.put(heard, made.responses[0].numpy())
        return reflection


def _walls(room: RoomDraw) -> tuple[Place | float | None, ...]:
    """Return what the reflection of a room's walls depends on."""
    return room.size, room.microphone, room.source, room.t60, room.high_t60
