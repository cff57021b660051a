"""Feature frames of a corpus, flat and memory-mapped.

A `FrameStore` is a `latflow.ragged` store with the column `frames` (float32) and, by
utterance, speaker and text. Utterances are sorted by id (byte order).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from latflow.errors import UserError
from latflow.ragged import RaggedStore, RaggedWriter, pack

CUTS = "cuts.jsonl"  # in a folder of features that are computed when read


def _seconds(value: Any) -> float:
    """Return a frame shift that a store tells.

    Raises:
        ValueError: it cannot be one.
    """
    if not 0 < float(value) <= 1:
        raise ValueError(f"frame_shift is {value}")
    return float(value)


class FrameStore(RaggedStore):
    """Frames of a corpus, read only; open one with `FrameStore.load`."""

    FORMAT = "latflow-frames-1"
    KIND = "frame store"
    REMEDY = "run the normalize_features stage again"
    COLUMNS: ClassVar = {"frames": ("<f4", 2)}
    SORTED = True
    FACTS: ClassVar = {"frame_shift": _seconds, "num_speakers": int}

    @property
    def dim(self) -> int:
        """Features a frame, D."""
        return int(self["frames"].flat.shape[1])

    @property
    def frame_shift(self) -> float:
        """Time from one frame to the next, seconds."""
        return float(self.meta["frame_shift"])

    @property
    def num_frames(self) -> int:
        """Frames of all utterances together."""
        return int(self.begin[-1])

    @cached_property
    def speakers(self) -> list[str]:
        """Speaker of each utterance."""
        names = self.speaker_names
        return [names[code] for code in self.speaker_codes]

    @cached_property
    def speaker_names(self) -> list[str]:
        """The distinct speakers, in order of first appearance."""
        return self.strings("speaker_names", int(self.meta["num_speakers"]))

    @cached_property
    def speaker_codes(self) -> np.ndarray:
        """int32[N]: index of each utterance's speaker in `speaker_names`."""
        found = self.index("speaker_codes")
        if len(found) and not 0 <= found.min() <= found.max() < len(self.speaker_names):
            what = "speaker_codes and speaker_names differ"
            raise UserError(what, file=self.folder, remedy=self.REMEDY)
        return found

    @cached_property
    def texts(self) -> list[str]:
        """Transcript of each utterance, words separated by blanks."""
        return self.strings("texts", len(self))

    def frames(self, i: int) -> np.ndarray:
        """Return the frames of utterance i, float32 [T_i, D], a read-only view."""
        return self["frames"][i]

    def get(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the frames of some utterances, see `frames`."""
        return [self.frames(i) for i in numbers]

    def block(self, first: int, last: int) -> np.ndarray:
        """Return the frames of utterances first..last-1 below each other."""
        return self["frames"].block(first, last)


class FrameWriter(RaggedWriter):
    """Write a `FrameStore`, an utterance at a time; see `RaggedWriter`.

    Args:
        folder: made if absent.
        dim: features per frame, D.
        frame_shift: time from one frame to the next, seconds.
        meta: further JSON values to keep with the frames.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dim: int,
        frame_shift: float = 0.01,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            folder,
            FrameStore,
            row_shapes={"frames": (dim,)},
            meta={**(meta or {}), "frame_shift": frame_shift, "dim": dim},
        )
        self._texts: list[str] = []
        self._codes: list[int] = []
        self._speakers: dict[str, int] = {}
        self._num_frames = 0

    def append(self, utt_id: str, speaker: str, text: str, frames: np.ndarray) -> None:
        """Add one utterance; ids must come sorted (byte order), each once.

        Args:
            frames: [T, D], stored as float32.

        Raises:
            ValueError: ids out of order, a line break in a string, or a wrong D.
        """
        if self.utt_ids and utt_id <= self.utt_ids[-1]:
            raise ValueError(f"{utt_id!r} comes after {self.utt_ids[-1]!r}")
        if "\n" in speaker or "\n" in text:
            raise ValueError(f"{utt_id!r}: line break in speaker or text")
        self.write(utt_id, frames)
        self._texts.append(text)
        self._codes.append(self._speakers.setdefault(speaker, len(self._speakers)))
        self._num_frames += len(frames)

    def close(self) -> None:
        """Write the final header, the index and `meta.json`."""
        self.index.update(
            texts=pack(self._texts),
            speaker_names=pack(list(self._speakers)),
            speaker_codes=np.array(self._codes, np.int32),
        )
        self.meta.update(num_speakers=len(self._speakers), num_frames=self._num_frames)
        super().close()
