"""The front end on a stream: samples come in pieces, frames leave as they are ready.

However the signal is cut, even into single samples, the frames are those of the whole
signal. A frame leaves once all samples of its window are there; the frames that reach
over the signal's end (without snip-edges) leave when the stream is closed.
"""

from __future__ import annotations

import numpy as np
import torch

from latflow.features.front_end import KaldiFrontEnd, dither, take


class StreamingFrontEnd:
    """Features of one signal that arrives in pieces; keeps less than two windows of it.

    Args:
        front_end: shared between streams; it holds no state.
        rng: draws the dither, if the options ask for some: one for each signal.

    Source: Kaldi `feat/online-feature.cc:OnlineGenericBaseFeature`.
    """

    def __init__(
        self, front_end: KaldiFrontEnd, rng: np.random.Generator | None = None
    ) -> None:
        if rng is None and front_end.options.dither > 0:
            raise ValueError("dither needs a random generator")
        self.front_end = front_end
        self._rng = rng
        self._pieces: list[np.ndarray] = []
        self._first_kept = 0
        self._num_samples = 0
        self._num_frames = 0
        self._is_closed = False

    @property
    def num_frames(self) -> int:
        """Frames that have left so far."""
        return self._num_frames

    def accept(self, samples: np.ndarray) -> np.ndarray:
        """Take the next samples.

        Args:
            samples: [L], in [-1, 1); L may be 0.

        Returns:
            float32 [T, D]: the frames that are now ready; T may be 0.

        Raises:
            ValueError: the stream is closed.
        """
        if self._is_closed:
            raise ValueError("the stream is closed")
        wave = np.array(samples, np.float32)
        if self._rng is not None:
            wave = dither(wave, self.front_end.options.dither, self._rng)
        self._pieces.append(wave)
        self._num_samples += len(wave)
        return self._advance(
            self.front_end.geometry.num_ready_frames(self._num_samples)
        )

    def finish(self) -> np.ndarray:
        """End the signal; return the frames that were waiting for its end."""
        self._is_closed = True
        return self._advance(self.front_end.num_frames(self._num_samples))

    def _advance(self, num_frames: int) -> np.ndarray:
        """Compute frames up to `num_frames` and drop samples no longer needed."""
        if num_frames <= self._num_frames:
            return np.empty((0, self.front_end.dim), np.float32)
        kept = np.concatenate(self._pieces)
        geometry = self.front_end.geometry
        first, last = geometry.span(self._num_frames, num_frames - self._num_frames)
        signal = torch.as_tensor(kept)
        with torch.no_grad():
            span = take(signal, first, last, offset=self._first_kept)
            features = self.front_end.frame_features(span)
        self._num_frames = num_frames
        needed = min(
            geometry.first_sample(num_frames), self._num_samples - geometry.length
        )
        drop = max(0, needed - self._first_kept)
        self._pieces = [kept[drop:]]
        self._first_kept += drop
        return features.numpy()
