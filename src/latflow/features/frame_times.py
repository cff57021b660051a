"""Times and numbers of the frames of a front end, known without reading them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from latflow.features.options import (
    ExtractionOptions,
    FrontEnd,
    FrontEndOptions,
    LhotseExtractionOptions,
)
from latflow.files import read_json

Amount = tuple[float, int | None]  # hours, utterances


@dataclass(frozen=True)
class FrameTimes:
    """Position of frames in a signal, in milliseconds.

    Attributes:
        length_ms: of the analysis window.
        shift_ms: from one frame to the next.
        snip_edges: see `FrontEndOptions`.
    """

    length_ms: float
    shift_ms: float
    snip_edges: bool

    @classmethod
    def of(cls, options: FrontEnd, sample_rate: int | None = None) -> FrameTimes:
        """Return the times of a front end.

        Args:
            options: of the front end.
            sample_rate: of the samples, for Lhotse's extractors; None for their own.

        Raises:
            UserError: the extractor cannot be made.
        """
        if isinstance(options, FrontEndOptions):
            length, shift = options.frame_length_ms, options.frame_shift_ms
            return cls(length, shift, options.snip_edges)
        # Imported here: it brings Lhotse and torch, which most callers start without.
        from latflow.features.lhotse_extractors import LhotseExtractor

        extractor = LhotseExtractor(options, sample_rate)
        geometry = extractor.geometry
        per_sample = 1000 / extractor.sample_rate
        shift = 1000 * extractor.frame_shift
        return cls(geometry.length * per_sample, shift, geometry.snip_edges)

    @property
    def first_middle(self) -> float:
        """Middle of the first frame's window, seconds."""
        return (self.length_ms if self.snip_edges else self.shift_ms) / 2000

    def num_frames(self, duration: float) -> int:
        """Count the frames of this many seconds, as Kaldi's NumFrames does."""
        total_ms = round(duration * 1000, 6)
        if not self.snip_edges:
            return int(total_ms / self.shift_ms + 0.5)
        if total_ms < self.length_ms:
            return 0
        return 1 + int((total_ms - self.length_ms) / self.shift_ms)


def feature_dim(options: ExtractionOptions | LhotseExtractionOptions) -> int:
    """Return the features per frame of one channel.

    Raises:
        UserError: the extractor cannot be made.
    """
    if isinstance(options, FrontEndOptions):
        return options.dim
    from latflow.features.lhotse_extractors import LhotseExtractor

    return LhotseExtractor(options, options.sample_rate).dim


def frames_amount(path: Path) -> Amount:
    """Return hours and utterances of a frame store by its `meta.json`.

    Raises:
        UserError: it does not contain them.
    """

    def amount(meta: dict[str, Any]) -> Amount:
        hours = float(meta["num_frames"]) * float(meta["frame_shift"]) / 3600
        utterances = meta.get("num_utterances")
        return hours, None if utterances is None else int(utterances)

    remedy = "extract the features again"
    return read_json(path, amount, "of a frame store", remedy)
