"""The search through one segment of a session: its samples, features and chunks."""

from __future__ import annotations

from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.serving.acoustics import ChunkCutter
from latflow.serving.features import Adaptation
from latflow.serving.package import Model

_SAMPLES = "give one channel of int16, or of float in [-1, 1]"
_BYTES = "np.frombuffer(data, np.int16) makes samples of 16-bit PCM"


def one_channel(samples: Any) -> np.ndarray:
    """Return samples as float32[L], full scale at 1.

    Args:
        samples: an array, a tensor or numbers, [L], [L, 1] or [1, L]: int16, or float
            in [-1, 1].

    Raises:
        UserError: they are of several channels or of another type, or not finite.
    """
    if isinstance(samples, bytes | bytearray):
        raise UserError("bytes are not samples", remedy=_BYTES)
    if hasattr(samples, "detach"):  # a tensor, maybe on a device, maybe of a training
        samples = samples.detach().cpu()
    try:
        wave = np.asarray(samples)
    except ValueError:  # lists of several lengths
        raise UserError("samples of several lengths", remedy=_SAMPLES) from None
    if wave.ndim == 2 and 1 in wave.shape:
        wave = wave.reshape(-1)
    if wave.ndim != 1:
        raise UserError(f"samples of shape {wave.shape}", remedy=_SAMPLES)
    is_int16 = wave.dtype.kind == "i" and wave.dtype.itemsize == 2  # any byte order
    if not is_int16 and wave.dtype.kind != "f":
        # Other integers have other scales, which are unknown.
        raise UserError(f"samples of type {wave.dtype}", remedy=_SAMPLES)
    wave = np.ascontiguousarray(wave, np.float32)
    if is_int16:
        return wave / np.float32(32768)
    if not np.isfinite(wave).all():
        raise UserError("audio with samples that are not finite numbers")
    return wave


class Samples:
    """Samples of a stream that may be needed again."""

    def __init__(self) -> None:
        self._pieces: list[np.ndarray] = []
        self.begin = 0  # the first that is held
        self.end = 0  # behind the last

    def add(self, samples: np.ndarray) -> None:
        """Take the next samples."""
        if len(samples):
            self._pieces.append(samples)
            self.end += len(samples)

    def slice(self, begin: int, end: int) -> np.ndarray:
        """Return samples that are held."""
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces)]
        if begin >= end:
            return np.zeros(0, np.float32)
        return self._pieces[0][begin - self.begin : end - self.begin]

    def drop(self, before: int) -> None:
        """Forget what comes before a sample."""
        before = min(before, self.end)
        if before > self.begin:
            held = self.slice(before, self.end)
            self._pieces = [held] if len(held) else []
            self.begin = before


class SegmentSearch:
    """State of one segment.

    Attributes:
        begin: its first sample, at the model's rate.
        chunks: cuts its frames.
        search: through its frames.
        num_frames: frames of the features that have been searched.
        accepted: the sample behind those that the front end has had.
        adaptation: to the speaker, of the segments before and of this one up to the
            last chunk that was searched, with the frames that it was scored with; so
            it is the same for any pieces in which the audio comes.

    Args:
        model: of the session.
        begin: see above.
        size: frames of a chunk.
        adaptation: to the speaker, of the segments before.
    """

    def __init__(
        self, model: Model, begin: int, size: int, adaptation: Adaptation | None
    ) -> None:
        context = model.acoustics.context
        self.begin, self.num_frames = begin, 0
        self.chunks = ChunkCutter(size, context)
        self.search = model.decoder.session(acoustic_scale=model.acoustic_scale)
        self.adaptation = adaptation
        self._front_end = model.front_end(adaptation)
        if self._front_end.weighs_silence:
            self._front_end.weigh(np.ones(1, np.bool_))  # there is no speech yet
        self._model = model
        self._geometry = model.geometry
        self._size = size
        self.accepted = begin
        self._due = size + (context[1] or 0)  # frames at the end of the next block
        self._has_ended = False

    @property
    def end(self) -> int:
        """The sample behind the frames that have been searched."""
        return self.begin + self.num_frames * self._geometry.shift

    def advance(self, log_likes: np.ndarray) -> None:
        """Search on with the scores of the next chunk.

        Raises:
            UserError: no path is left.
        """
        self.search.advance(log_likes)
        if self._front_end.weighs_silence:
            path = self.search.best_path().transition_ids
            is_silence = self._model.is_silence[path]
            self._front_end.weigh(np.repeat(is_silence, self._model.subsampling))
        self.adaptation = self._front_end.adaptation

    def accept(self, audio: Samples, end: int, *, is_all: bool) -> None:
        """Compute features until a chunk is complete, or there are no more samples.

        They are computed in blocks that end at fixed samples, just where a chunk and
        its context are complete.

        Args:
            audio: the samples so far.
            end: the sample behind the last of them that may be taken.
            is_all: whether no more will come.
        """
        while not self.chunks.is_ready:
            _, length = self._geometry.span(0, self._due)
            if self.begin + length <= end:
                self._accept(audio, self.begin + length)
                self._due += self._size
            elif is_all and not self._has_ended:
                self._has_ended = True
                self._accept(audio, max(end, self.accepted))
                self.chunks.add(self._front_end.finish())
                self.chunks.end()
            else:
                return

    def _accept(self, audio: Samples, end: int) -> None:
        """Give the front end the samples up to `end`."""
        self.chunks.add(self._front_end.accept(audio.slice(self.accepted, end)))
        self.accepted = end
        if self.chunks.is_whole:  # nothing is recognized before the end of the audio
            audio.drop(end)
