"""I-vectors of speech that arrives in pieces: frames in, frames with i-vectors out.

A search may say which of the frames it holds for silence, see `IvectorStream.weigh`:
long pauses would else pass for the speaker.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from latflow.features.cmvn import CmvnState
from latflow.gmm.ivector import IvectorModel, Past, gaussian_posteriors

_RECONSIDERED = 1000  # frames whose weights may change


@dataclass(eq=False)
class _Counted:
    """Frames of a stream that have been counted, but may get other weights.

    Attributes:
        begin: number of the first of them.
        places: frames and Gaussians of the posteriors that are not zero.
        shares: float64, those posteriors.
        frames: float64 [n, D], as they are counted.
        weights: float64 [n], that they have now.
    """

    begin: int
    places: tuple[np.ndarray, ...]
    shares: np.ndarray
    frames: np.ndarray
    weights: np.ndarray


class IvectorState(NamedTuple):
    """Statistics of the frames of a speaker so far, for those to come.

    Attributes:
        past: for i-vectors.
        cmvn: for the frames that Gaussians are chosen on, where these are normalized.
    """

    past: Past
    cmvn: CmvnState | None


class IvectorStream:
    """Frames that arrive in pieces, each followed by the i-vector up to then.

    However they are cut, the result has the same bits; it is that of
    `IvectorModel.online` but for rounding. The i-vector of frame t waits for the frames
    that frame t is spliced with.

    Args:
        model: shared between streams.
        speaker: of the same speaker's frames before.

    Source: Kaldi `online2/online-ivector-feature.h`, its `AdaptationState`.
    """

    def __init__(
        self, model: IvectorModel, speaker: IvectorState | None = None
    ) -> None:
        self._model, self._past = model, model.begin()
        if speaker is not None:
            self._past = replace(speaker.past)
            model.limit(self._past)
        width = 2 * model.projection.context + 1
        self._frames = np.empty((0, len(model.projection.mean) // width), np.float32)
        self._weights = np.ones(1)  # of the first frames; the last is for all others
        self._counted: deque[_Counted] = deque()  # whose weights may change yet
        self._normalizer = model.normalizer(speaker and speaker.cmvn)
        self._normalized = self._frames  # where there is a normalizer
        self._first = 0  # number of the first frame that is kept
        self._num_done = 0
        self._vector = np.empty(0, np.float32)

    @property
    def dim(self) -> int:
        """Features and elements of the i-vector, D + S."""
        return self._frames.shape[1] + self._model.extractor.dim

    @property
    def state(self) -> IvectorState:
        """Return the statistics up to now."""
        normalizer = self._normalizer
        return IvectorState(replace(self._past), normalizer and normalizer.state)

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Take the next frames, float32 [T, D]; return those ready, [T', D + S]."""
        self._frames = np.concatenate([self._frames, frames])
        if self._normalizer is not None:
            normalized = self._normalizer.accept(frames)
            self._normalized = np.concatenate([self._normalized, normalized])
        return self._advance(is_over=False)

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting, float32 [T, D + S]."""
        return self._advance(is_over=True)

    @property
    def weighs_silence(self) -> bool:
        """Return whether `weigh` does anything."""
        return self._model.options.silence_weight != 1

    def weigh(self, is_silence: np.ndarray) -> None:
        """Take what a search holds for silence; later i-vectors are made with it.

        Frames that it has not reached are taken for what its last one is. Before the
        first call nothing is silence.

        Args:
            is_silence: bool [T], T > 0, of the frames so far; those of the last 10 s
                may differ from those of an earlier call.

        Source: Kaldi `OnlineSilenceWeighting::GetDeltaWeights`.
        """
        if not self.weighs_silence:
            return
        self._weights = np.where(is_silence, self._model.options.silence_weight, 1.0)
        for counted in self._counted:
            weights = self._weights_of(counted.begin, len(counted.frames))
            if (weights != counted.weights).any():
                self._count(counted, weights - counted.weights)
                counted.weights = weights

    def _weights_of(self, begin: int, count: int) -> np.ndarray:
        """Return the weights of frames, float64 [count]."""
        last = len(self._weights) - 1
        return self._weights[np.arange(begin, begin + count).clip(max=last)]

    def _count(self, counted: _Counted, weights: np.ndarray) -> None:
        """Add frames to the statistics, with weights, which may be negative."""
        past = self._past
        posteriors = np.zeros((len(weights), len(past.occupancy)))
        posteriors[counted.places] = counted.shares
        posteriors *= weights[:, None]
        past.occupancy = past.occupancy + posteriors.sum(0)
        past.first = past.first + posteriors.T @ counted.frames

    def _advance(self, *, is_over: bool) -> np.ndarray:
        """Return the frames whose i-vector is known, forget what is not needed."""
        period, context = self._model.options.period, self._model.projection.context
        total = self._first + len(self._frames)
        ready = [np.empty((0, self.dim), np.float32)]
        while self._num_done < total:
            if self._num_done % period == 0:
                if not is_over and self._num_done + context >= total:
                    break
                self._update(self._num_done)
            end = min(self._num_done - self._num_done % period + period, total)
            block = self._frames[self._num_done - self._first : end - self._first]
            vectors = np.broadcast_to(self._vector, (len(block), len(self._vector)))
            ready.append(np.hstack((block, vectors)))
            self._num_done = end
        drop = max(0, self._num_done - period - context - self._first)
        self._frames, self._first = self._frames[drop:], self._first + drop
        self._normalized = self._normalized[drop:]
        return np.concatenate(ready)

    def _update(self, last: int) -> None:
        """Count the frames after the last i-vector's up to `last`; make the next."""
        context, model = self._model.projection.context, self._model
        first = max(0, last - model.options.period + 1) if last else 0
        rows = np.arange(first - context, last + context + 1) - self._first
        rows = rows.clip(0, len(self._frames) - 1)
        inner = slice(context, context + last + 1 - first)
        chosen = projected = model.projection(self._frames[rows])[inner]
        if self._normalizer is not None:
            chosen = model.projection(self._normalized[rows])[inner]
        posteriors = gaussian_posteriors(model.ubm, chosen, model.options)
        places = posteriors.nonzero()
        weights = self._weights_of(first, len(chosen))
        new = _Counted(first, places, posteriors[places], projected, weights)
        self._count(new, weights)
        if self.weighs_silence:
            self._counted.append(new)
            if last - self._counted[0].begin > _RECONSIDERED:
                self._counted.popleft()
        past = self._past
        means, _ = model.extractor.posterior(
            past.occupancy[None], past.first[None], model.options.max_count
        )
        means[:, 0] -= model.extractor.offset
        self._vector = means[0].astype(np.float32)
