"""Lhotse storages that keep features in the manifest itself: one file holds it all.

Lhotse's own `memory_lilcom` and `memory_raw` put bytes into the manifest, which JSON
cannot hold; these put them there as text (base64). Importing this module registers
`manifest_lilcom` and `manifest_numpy` with Lhotse.
"""

from __future__ import annotations

import base64
import io
from abc import abstractmethod
from typing import Any

import numpy as np
from lhotse.features.io import (
    FeaturesReader,
    FeaturesWriter,
    register_reader,
    register_writer,
)

LILCOM, NUMPY = "manifest_lilcom", "manifest_numpy"


class _Writer(FeaturesWriter):
    """Give the text of a matrix as its key."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take the path that other storages lie at; nothing is written there."""

    @property
    def storage_path(self) -> str:
        """Nowhere."""
        return ""

    def write(self, key: str, value: np.ndarray) -> str:  # noqa: ARG002 - Lhotse's form
        """Return a matrix [T, D] as text."""
        return base64.b64encode(self.packed(value)).decode("ascii")

    @abstractmethod
    def packed(self, value: np.ndarray) -> bytes:
        """Return a matrix as bytes."""

    def close(self) -> None:
        """Do nothing."""


class _Reader(FeaturesReader):
    """Read a matrix from its key."""

    def __init__(self, *_: Any) -> None:
        """Take a storage's path, of which nothing is read."""

    def read(
        self,
        key: str,
        left_offset_frames: int = 0,
        right_offset_frames: int | None = None,
    ) -> np.ndarray:
        """Return frames of a matrix.

        Raises:
            ValueError: the key is damaged.
        """
        matrix = self.unpacked(base64.b64decode(key, validate=True))
        return matrix[left_offset_frames:right_offset_frames]

    @abstractmethod
    def unpacked(self, packed: bytes) -> np.ndarray:
        """Return the matrix of bytes."""


@register_writer
class LilcomWriter(_Writer):
    """Round to multiples of 1/32, as Lhotse's lilcom storages do."""

    name = LILCOM  # pyright: ignore

    def packed(self, value: np.ndarray) -> bytes:
        """See `_Writer.packed`."""
        import lilcom  # as Lhotse does: most jobs and environments are without it

        return lilcom.compress(value, tick_power=-5)


@register_reader
class LilcomReader(_Reader):
    """Read what `LilcomWriter` wrote."""

    name = LILCOM  # pyright: ignore

    def unpacked(self, packed: bytes) -> np.ndarray:
        """See `_Reader.unpacked`."""
        import lilcom

        return lilcom.decompress(packed)


@register_writer
class NumpyWriter(_Writer):
    """Keep every bit."""

    name = NUMPY  # pyright: ignore

    def packed(self, value: np.ndarray) -> bytes:
        """See `_Writer.packed`."""
        stream = io.BytesIO()
        np.save(stream, value, allow_pickle=False)
        return stream.getvalue()


@register_reader
class NumpyReader(_Reader):
    """Read what `NumpyWriter` wrote."""

    name = NUMPY  # pyright: ignore

    def unpacked(self, packed: bytes) -> np.ndarray:
        """See `_Reader.unpacked`."""
        return np.load(io.BytesIO(packed), allow_pickle=False)
