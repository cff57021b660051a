"""Features of a segment that arrives in pieces, as a packaged model takes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from latflow.features.cmvn import CmvnState, CmvnStream, normalize
from latflow.features.cmvn_options import CmvnOptions, GlobalCmvn, WindowedCmvn
from latflow.features.front_end import KaldiFrontEnd, StreamingFrontEnd
from latflow.features.lhotse_extractors import LhotseExtractor
from latflow.features.options import FrontEnd, FrontEndOptions
from latflow.gmm.ivector import IvectorModel
from latflow.gmm.ivector_stream import IvectorState, IvectorStream


def make_front_end(
    options: FrontEnd, sample_rate: int | None
) -> KaldiFrontEnd | LhotseExtractor:
    """Make what computes features of samples.

    Args:
        options: of the front end.
        sample_rate: of the samples, Hz; None, for Lhotse's extractors, for their own.

    Raises:
        UserError: the options do not fit the sample rate, or are of an extractor that
            cannot be had.
    """
    if isinstance(options, FrontEndOptions):
        assert sample_rate is not None
        return KaldiFrontEnd(options, sample_rate)
    return LhotseExtractor(options, sample_rate)


class _Stage(Protocol):
    """Frames in, frames out."""

    def accept(self, frames: np.ndarray, /) -> np.ndarray:
        """Take the next frames; return those that are ready."""
        ...

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting for the end."""
        ...


@dataclass(frozen=True, eq=False)
class Adaptation:
    """Statistics of the segments of a session so far, for those to come.

    Attributes:
        cmvn: for `online` normalization.
        ivectors: for i-vectors.
    """

    cmvn: CmvnState | None = None
    ivectors: IvectorState | None = None


class FeatureStream:
    """Features of one segment; in any pieces the same but for rounding.

    Normalization by speaker or utterance has the statistics of the segment; all frames
    then leave at its end.

    Args:
        front_end: shared between streams.
        cmvn: normalization of the features.
        statistics: of the training set, float64 [2, D + 1], for normalization by
            `global` or `online`.
        ivectors: what gives the i-vectors that follow each frame, if they do.
        adaptation: to the same speaker, of the segments before.
    """

    def __init__(
        self,
        front_end: KaldiFrontEnd | LhotseExtractor,
        cmvn: CmvnOptions,
        statistics: np.ndarray | None = None,
        ivectors: IvectorModel | None = None,
        adaptation: Adaptation | None = None,
    ) -> None:
        known = adaptation or Adaptation()
        # A segment has no id: the noise of all begins alike.
        self._front_end = (
            _WholeSignal(front_end)
            if isinstance(front_end, LhotseExtractor)
            else StreamingFrontEnd(front_end)
        )
        self._stages = _stages(front_end.dim, cmvn, statistics, known.cmvn)
        self._ivectors = ivectors and IvectorStream(ivectors, known.ivectors)
        if self._ivectors is not None:
            self._stages.append(self._ivectors)

    @property
    def adaptation(self) -> Adaptation:
        """Return the statistics of the speaker from the frames up to now."""
        streams = (stage for stage in self._stages if isinstance(stage, CmvnStream))
        cmvn = next(streams, None)
        return Adaptation(cmvn and cmvn.state, self._ivectors and self._ivectors.state)

    @property
    def weighs_silence(self) -> bool:
        """Return whether `weigh` does anything."""
        return self._ivectors is not None and self._ivectors.weighs_silence

    def weigh(self, is_silence: np.ndarray) -> None:
        """Take what a search holds for silence, see `IvectorStream.weigh`."""
        if self._ivectors is not None:
            self._ivectors.weigh(is_silence)

    def accept(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples, float32 in [-1, 1) at the model's sample rate.

        Returns:
            float32 [T, D]: the frames that are now ready; T may be 0.
        """
        frames = self._front_end.accept(samples)
        for stage in self._stages:
            frames = stage.accept(frames)
        return frames

    def finish(self) -> np.ndarray:
        """End the segment; return the frames that were waiting for its end."""
        frames = self._front_end.finish()
        for stage in self._stages:
            frames = np.concatenate([stage.accept(frames), stage.finish()])
        return frames


class _WholeSignal:
    """Computes the features of a signal as a whole, at its end.

    Args:
        extractor: shared between signals.
    """

    def __init__(self, extractor: LhotseExtractor) -> None:
        self._extractor = extractor
        self._pieces = [np.empty(0, np.float32)]

    def accept(self, wave: np.ndarray) -> np.ndarray:
        """Keep samples; no frame is ready."""
        self._pieces.append(wave)
        return np.empty((0, self._extractor.dim), np.float32)

    def finish(self) -> np.ndarray:
        """Return all frames."""
        wave = np.concatenate(self._pieces)
        if self._extractor.geometry.num_frames(len(wave)) < 1:
            return np.empty((0, self._extractor.dim), np.float32)
        return self._extractor.extract_utterance(wave, 0)


def _stages(
    dim: int,
    cmvn: CmvnOptions,
    statistics: np.ndarray | None,
    speaker: CmvnState | None,
) -> list[_Stage]:
    """Return what the frames of the front end go through."""
    stages: list[_Stage] = []
    if isinstance(cmvn, GlobalCmvn):
        assert statistics is not None
        stages.append(_Global(cmvn, statistics))
    elif not cmvn.is_causal:
        stages.append(_Whole(dim, cmvn))
    elif isinstance(cmvn, WindowedCmvn):
        stages.append(CmvnStream(cmvn, statistics, speaker))
    return stages


class _Global:
    """Normalizes with given statistics."""

    def __init__(self, cmvn: GlobalCmvn, statistics: np.ndarray) -> None:
        self._cmvn, self._statistics = cmvn, statistics

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Normalize frames."""
        return normalize(frames, self._cmvn, self._statistics)

    def finish(self) -> np.ndarray:
        """Return nothing: no frame waits."""
        return np.empty((0, self._statistics.shape[1] - 1), np.float32)


class _Whole:
    """Normalizes a segment as a whole, at its end."""

    def __init__(self, dim: int, cmvn: CmvnOptions) -> None:
        self._cmvn = cmvn
        self._frames = [np.empty((0, dim), np.float32)]

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Keep frames; none is ready."""
        self._frames.append(frames)
        return frames[:0]

    def finish(self) -> np.ndarray:
        """Return all frames, normalized."""
        frames = np.concatenate(self._frames)
        return normalize(frames, self._cmvn) if len(frames) else frames
