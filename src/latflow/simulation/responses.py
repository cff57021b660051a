"""Responses of the rooms that records have, kept for their next use.

Stages compute them as they are needed, on the processor, where equal records give equal
bits: a training's few hundred rooms take seconds. Thousands at a time are made on a
device, by `calibrated_rooms`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from latflow.array_cache import ArrayCache
from latflow.simulation.records import Place, RoomDraw
from latflow.simulation.rooms import (
    CalibratedResponses,
    absorbed,
    alike,
    calibrated_responses,
    room_responses,
)

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
        (made,) = calibrated_rooms([room], rate=self._rate)
        if abs(made.decay_time / room.t60 - 1) > 0.1:
            log.warning(
                "room %d: reverberation time %.3f s, not %.3f s",
                *(room.number, made.decay_time, room.t60),
            )
        self._cache.put(_walls(room), made.reflection)
        if room.high_t60 is None:
            key = (*_walls(room), room.source, None)
            self._cache.put(key, made.response)
        return made.reflection


class CalibratedRoom(NamedTuple):
    """What a room was found to be.

    Attributes:
        response: float32 [L], from the speaker's place, the direct path first; of walls
            that absorb all frequencies alike.
        reflection: float64 [1], factor of the amplitude at the walls.
        decay_time: reverberation time that the response has, s.
    """

    response: np.ndarray
    reflection: np.ndarray
    decay_time: float


def calibrated_rooms(
    rooms: Sequence[RoomDraw], *, rate: int, device: str | torch.device = "cpu"
) -> list[CalibratedRoom]:
    """Compute responses of rooms, those of like length together.

    What a room has does not depend on the others, but for rounding.

    Args:
        rooms: with the reverberation times that they are to have.
        rate: Hz.
        device: where they are computed.

    Raises:
        UserError: see `calibrated_responses`.
    """
    found: dict[int, CalibratedRoom] = {}
    lengths = [math.ceil(room.t60 * rate) for room in rooms]
    for rows in alike(lengths, rate):
        made = _calibrated([rooms[i] for i in rows], rate, device)
        responses, reflection = made.responses.cpu(), made.reflection.cpu()
        times = made.decay_time.tolist()
        for n, i in enumerate(rows):
            response = responses[n, : lengths[i]].numpy().copy()
            found[i] = CalibratedRoom(response, reflection[n : n + 1].numpy(), times[n])
    return [found[i] for i in range(len(rooms))]


def _calibrated(
    rooms: Sequence[RoomDraw], rate: int, device: str | torch.device
) -> CalibratedResponses:
    """Compute responses of rooms in one batch."""

    def column(values: Iterable[Place | float]) -> Tensor:
        return torch.tensor([*values], dtype=torch.float64, device=device)

    return calibrated_responses(
        column(room.size for room in rooms),
        column(room.source for room in rooms),
        column(room.microphone for room in rooms),
        column(room.t60 for room in rooms),
        rate=rate,
    )


def _walls(room: RoomDraw) -> tuple[Place | float | None, ...]:
    """Return what the reflection of a room's walls depends on."""
    return room.size, room.microphone, room.source, room.t60, room.high_t60
