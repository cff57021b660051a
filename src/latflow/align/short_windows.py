"""Cepstra in short windows, which show boundaries more finely than features do."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
from lhotse import MonoCut

from latflow.align.corpus import AlignmentArchive
from latflow.align.timing import Timer
from latflow.corpus.manifests import samples_or_reason
from latflow.features.extract import make_extractor
from latflow.features.options import FrontEndOptions

FRONT_END = FrontEndOptions(frame_length_ms=15.0, frame_shift_ms=5.0, snip_edges=False)


class ShortWindows:
    """Computes the cepstra of utterances; safe to use from several threads.

    Args:
        sample_rate: of the audio, Hz.

    Attributes:
        sample_rate: as given.
        frame_shift: seconds from frame to frame; the middle of frame t is at
            (t + 0.5) * `frame_shift`.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self._extractor = make_extractor(FRONT_END, sample_rate)
        self.frame_shift = self._extractor.frame_shift

    def cepstra(self, samples: np.ndarray, name: str) -> np.ndarray | str:
        """Return cepstra less their mean, float64[T, D], or why there are none.

        Args:
            samples: float[L].
            name: of the utterance; the dither depends on it.
        """
        if not np.isfinite(samples).all():
            return "samples that are not numbers"
        key = zlib.crc32(name.encode())
        frames = self._extractor.extract_utterance(samples, key).astype(np.float64)
        return frames - frames.mean(0) if len(frames) else "no samples"

    def of_cut(self, cut: MonoCut) -> np.ndarray | str:
        """Return the cepstra of a cut, see `cepstra`."""
        samples = samples_or_reason(cut)
        return samples if isinstance(samples, str) else self.cepstra(samples, cut.id)


def phones_of(
    cut: MonoCut, archive: AlignmentArchive, timer: Timer
) -> tuple[Sequence[str], np.ndarray]:
    """Return names and times of the phones of a cut that is aligned."""
    ids = archive.get(cut.id)
    assert ids is not None
    return timer.phones(ids, cut.duration)
