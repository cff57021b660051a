"""Feature frames of a corpus, flat and memory-mapped.

A `FrameStore` is a `latflow.ragged` store with the column `frames` (float32) and, by
utterance, speaker and text. Utterances are sorted by id (byte order).

Features of audio are stored once, before CMVN (`FeatureStore`), with the statistics
that CMVN takes. What systems read is a folder without frames (`NormalizedFrames`) that
names these features and their normalization, which is done when frames are read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn import (
    ALL,
    GLOBAL,
    STATISTICS,
    SetCmvn,
    cmvn_statistics,
)
from latflow.features.cmvn_options import CmvnOptions
from latflow.files import reading
from latflow.kaldi.io import read_matrices
from latflow.options import read_options
from latflow.ragged import META, RaggedStore, RaggedWriter, pack

CUTS = "cuts.jsonl"  # in a folder of features that are computed when read


def _seconds(value: Any) -> float:
    """Return the frame shift of a store's description.

    Raises:
        ValueError: it cannot be one.
    """
    if not 0 < float(value) <= 1:
        raise ValueError(f"frame_shift is {value}")
    return float(value)


class FrameStore(RaggedStore):
    """Frames of a corpus, read only; open one, of whichever kind, with `load`.

    Attributes:
        cmvn: normalization that `frames` and `block` apply; None for none.
    """

    FORMAT = "latflow-frames-1"
    KIND = "frame store"
    REMEDY = "extract the features again"
    COLUMNS: ClassVar = {"frames": ("<f4", 2)}
    SORTED = True
    FACTS: ClassVar = {"frame_shift": _seconds, "num_speakers": int}

    cmvn: SetCmvn | None = None

    @classmethod
    def load(cls, folder: str | Path) -> FrameStore:
        """Open stored frames, stored features, or features to be normalized.

        Raises:
            UserError: there are none, or their files do not fit each other.
        """
        kinds = {kind.FORMAT: kind for kind in (FeatureStore, NormalizedFrames)}
        with reading(folder, f"not a readable {cls.KIND}", cls.REMEDY):
            text = (Path(folder) / META).read_text(encoding="utf-8")
            kind = kinds.get(str(json.loads(text)["format"]), FrameStore)
        return kind.open(folder)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open a folder of this kind alone; raises as `load`."""
        return super().load(folder)

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

    def frames(self, i: int, part: slice = ALL) -> np.ndarray:
        """Return frames of utterance i, by default all: float32 [T_i, D], read only."""
        frames = self["frames"][i]
        return frames[part] if self.cmvn is None else self.cmvn.one(i, frames, part)

    def get(self, numbers: Sequence[int]) -> list[np.ndarray]:
        """Return the frames of some utterances, see `frames`."""
        return [self.frames(i) for i in numbers]

    def block(self, first: int, last: int) -> np.ndarray:
        """Return the frames of utterances first..last-1 below each other."""
        frames = self["frames"].block(first, last)
        if self.cmvn is None:
            return frames
        begin = self.begin[first : last + 1] - self.begin[first]
        return self.cmvn.block(frames, begin, first)


class FeatureStore(FrameStore):
    """Features as they were extracted, with the CMVN statistics of each utterance."""

    FORMAT = "latflow-features-1"
    COLUMNS: ClassVar = {"frames": ("<f4", 2), "statistics": ("<f8", 3)}

    @property
    def statistics(self) -> np.ndarray:
        """Sums, squares and counts of each utterance, float64 [N, 2, D + 1]."""
        return self["statistics"].flat

    def summed(self, groups: np.ndarray, count: int) -> np.ndarray:
        """Return the statistics of groups of utterances, [count, 2, D + 1].

        Args:
            groups: int [N], 0..count - 1, of each utterance.
        """
        sums = np.zeros((count, 2, self.dim + 1))
        np.add.at(sums, groups, self.statistics)
        return sums


class NormalizedFrames(FrameStore):
    """Stored features, normalized when they are read.

    `latflow.features.normalization` writes the folder, which has no frames: `meta.json`
    names those of the features, `cmvn.ark` has the statistics of speakers or of all.

    Attributes:
        description: that folder; `folder` is that of the features.
    """

    FORMAT = "latflow-normalized-frames-1"

    description: Path

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """See `FrameStore.open`."""
        description = Path(folder)
        with reading(description, f"not a readable {cls.KIND}", cls.REMEDY):
            meta = json.loads((description / META).read_text(encoding="utf-8"))
            features = FeatureStore.open(description / meta["features"])
            if meta["num_frames"] != features.num_frames:
                raise ValueError("its features are others than when it was made")
            options = read_options(cast("type", CmvnOptions), meta["cmvn"], "cmvn")
            store = cls(features.folder, features._columns, features._packed_ids, meta)
            store.description = description
            store.cmvn = _open_cmvn(options, features, description / STATISTICS)
        return store

    def __reduce__(self) -> tuple[Any, ...]:
        return FrameStore.load, (self.description,)


def _open_cmvn(
    options: CmvnOptions, features: FeatureStore, path: Path
) -> SetCmvn | None:
    """Return the normalization of features; None where there is none.

    Args:
        options: of the normalization.
        features: their statistics by utterance, and their speakers.
        path: statistics of speakers, or of all.
    """
    if options.type == "none":
        return None
    if options.statistics == "utterance":
        return SetCmvn(options, features.statistics, np.arange(len(features)))
    known = dict(read_matrices(path))
    is_by_speaker = options.statistics == "speaker"
    keys = features.speaker_names if is_by_speaker else [GLOBAL]
    statistics = np.stack([known[key] for key in keys])
    if statistics.shape != (len(keys), 2, features.dim + 1):
        raise ValueError(f"{path.name}: statistics of another dimension")
    no_groups = np.zeros(len(features), np.int32)
    group = features.speaker_codes if is_by_speaker else no_groups
    return SetCmvn(options, statistics, group)


class FrameWriter(RaggedWriter):
    """Write a `FrameStore`, an utterance at a time; see `RaggedWriter`.

    Args:
        folder: made if absent.
        dim: features per frame, D.
        frame_shift: time from one frame to the next, seconds.
        meta: further JSON values to keep with the frames.
        kind: `FeatureStore` gets the statistics of each utterance, too.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dim: int,
        frame_shift: float = 0.01,
        meta: Mapping[str, Any] | None = None,
        kind: type[FrameStore] = FrameStore,
    ) -> None:
        super().__init__(
            folder,
            kind,
            row_shapes={"frames": (dim,), "statistics": (2, dim + 1)},
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
        columns = [np.asarray(frames, np.float32)]
        if self.kind is FeatureStore:
            columns.append(cmvn_statistics(columns[0])[np.newaxis])
        self.write(utt_id, *columns)
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
