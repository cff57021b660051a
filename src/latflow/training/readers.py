"""Read frames of a corpus into the tensors of a batch.

A `BatchSource` reads from a `FrameReader`: `StoreReader` reads a `FrameStore`,
`LiveReader` features that are computed on the fly.
A store is mapped into memory: what it keeps there is the operating system's page cache,
which all ranks of a machine share, which fills what memory is free and gives way where
others need it. A cache of our own would hold the same bytes twice.

Statistics of utterances (for `mean`, `mean_variance`) are made when an utterance is
first touched, and kept in a temporary file that is mapped likewise.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numba import njit

from latflow.errors import UserError
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames
from latflow.features.options import PerturbationDraws
from latflow.features.perturb import Perturbation
from latflow.features.source import Frames, open_frames
from latflow.nnet.normalization import Normalizer
from latflow.simulation.on_the_fly import PassSimulation, SimulationOnTheFly
from latflow.simulation.options import (
    CleanTarget,
    EarlyTarget,
    MaskTarget,
    SimulationDraws,
)
from latflow.training.data_options import BatchOptions, DataOptions


class FrameReader(Protocol):
    """Features of a corpus, by utterance; safe to share between threads.

    Attributes:
        dim: features a frame, D.
        normalizer: what `fill` applies.
        perturbation: speeds and volumes of the utterances, or None; with them labels
            of frame t are those at the time `speed x (t + center) - center`.
        center: see `LiveFrames.center`.
    """

    dim: int
    normalizer: Normalizer
    perturbation: Perturbation | None
    center: float

    @property
    def utt_ids(self) -> list[str]:
        """Utterance ids."""
        ...

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        ...

    @property
    def speakers(self) -> np.ndarray:
        """Number of each utterance's speaker, int32 [N]."""
        ...

    def perturbed(
        self, options: PerturbationDraws, *, seed: int, whole_pass: int
    ) -> FrameReader:
        """Return a reader of the same utterances with drawn speeds and volumes.

        Raises:
            UserError: the features are stored.
        """
        ...

    def simulated(
        self, options: SimulationDraws, *, seed: int, whole_pass: int
    ) -> FrameReader:
        """Return a reader of the same utterances, simulated as drawn for a pass.

        Raises:
            UserError: the features are stored, or nothing can be simulated so.
        """
        ...

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Write the normalized features of pieces; what is beyond their ends is 0.

        Args:
            utterance: int64 [B], numbers of the utterances.
            first: int64 [B], first frame of each piece.
            length: int64 [B], frames of each piece, <= T.
            out: float32 [B, T, D], written as a whole.
        """
        ...


class _Reader:
    """Read features of either kind; see `FrameReader`."""

    def __init__(self, frames: Frames, normalizer: Normalizer | None) -> None:
        self.dim = frames.dim
        self.normalizer = normalizer or Normalizer()
        self.perturbation: Perturbation | None = None
        self.center = 0.0
        self._frames = frames
        self._moments = Moments(len(frames), self.dim, self.normalizer)

    @property
    def utt_ids(self) -> list[str]:
        """Utterance ids, sorted."""
        return self._frames.utt_ids

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        return np.diff(self._frames.begin)

    @property
    def speakers(self) -> np.ndarray:
        """Number of each utterance's speaker, int32 [N]."""
        return self._frames.speaker_codes


class StoreReader(_Reader):
    """Read a `FrameStore`.

    Args:
        store: the frames.
        normalizer: applied to what is read.
    """

    def __init__(self, store: FrameStore, normalizer: Normalizer | None = None) -> None:
        super().__init__(store, normalizer)
        self.store = store
        self._matrix = store["frames"].flat

    def perturbed(
        self,
        options: PerturbationDraws,  # noqa: ARG002 - the form of `FrameReader`
        *,
        seed: int,  # noqa: ARG002
        whole_pass: int,  # noqa: ARG002
    ) -> FrameReader:
        """See `FrameReader.perturbed`."""
        raise UserError(
            "stored features cannot change their speed or volume",
            file=self.store.folder,
            remedy="leave data.perturbation out, or compute features on the fly "
            "(`stored: false`), or store them at several speeds (corpus.perturbed)",
        )

    def simulated(
        self,
        options: SimulationDraws,  # noqa: ARG002 - the form of `FrameReader`
        *,
        seed: int,  # noqa: ARG002
        whole_pass: int,  # noqa: ARG002
    ) -> FrameReader:
        """See `FrameReader.simulated`."""
        raise UserError(
            "stored features cannot be simulated anew",
            file=self.store.folder,
            remedy="leave data.simulation out, or compute features on the fly "
            "(`stored: false`)",
        )

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """See `FrameReader.fill`."""
        moments = np.empty((len(utterance), 2, self.dim), np.float32)
        for row, i in enumerate(utterance):
            moments[row] = self._moments.of(int(i), self.store.frames)
        begin = self.store.begin[utterance] + first
        _assemble(self._matrix, begin, length, moments, out)


class LiveReader(_Reader):
    """Read features that are computed on the fly.

    Args:
        live: the features.
        normalizer: applied to what is read.
        perturbation: speeds and volumes of the utterances; None for their own.
        simulation: what is done to them; None for nothing.
    """

    def __init__(
        self,
        live: LiveFrames,
        normalizer: Normalizer | None = None,
        perturbation: Perturbation | None = None,
        simulation: PassSimulation | None = None,
    ) -> None:
        super().__init__(live, normalizer)
        self.live = live
        self.perturbation, self.simulation = perturbation, simulation
        self._on_the_fly: SimulationOnTheFly | None = None
        self.center = live.center

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        if self.perturbation is None:
            return super().lengths
        return self.live.lengths_at(self.perturbation.speed)

    def perturbed(
        self, options: PerturbationDraws, *, seed: int, whole_pass: int
    ) -> LiveReader:
        """See `FrameReader.perturbed`."""
        drawn = self.live.perturbation(options, seed=seed, whole_pass=whole_pass)
        return LiveReader(self.live, self.normalizer, drawn, self.simulation)

    def simulated(
        self, options: SimulationDraws, *, seed: int, whole_pass: int
    ) -> LiveReader:
        """See `FrameReader.simulated`; to be called with the same options and seed."""
        if (told := options.why_not_of(self.live.channels)) is not None:
            what, remedy = told
            raise UserError(
                f"data.simulation {what}", file=self.live.folder, remedy=remedy
            )
        if self._on_the_fly is None:
            rate = self.live.sample_rate
            self._on_the_fly = SimulationOnTheFly(
                options, self.live, rate=rate, seed=seed
            )
        simulation = self._on_the_fly.in_pass(whole_pass)
        return LiveReader(self.live, self.normalizer, self.perturbation, simulation)

    def learnt(
        self, target: CleanTarget | EarlyTarget | MaskTarget, numbers: Sequence[int]
    ) -> list[np.ndarray]:
        """Return what is to be learnt of simulated utterances.

        Args:
            target: what it is.
            numbers: of the utterances.

        Returns:
            float32 [T, K] each, of the frames that `fill` gives, not normalized.
        """
        assert self.simulation is not None
        wanted = self.simulation.wanted(target)
        if not isinstance(target, MaskTarget):
            return self.live.get(numbers, self.perturbation, wanted)
        return self.live.masks(
            numbers,
            self.perturbation,
            wanted,
            domain=target.domain,
            exponent=target.exponent,
        )

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """See `FrameReader.fill`."""
        numbers = utterance.tolist()
        computed = self.live.get(numbers, self.perturbation, self.simulation)
        frames = dict(zip(numbers, computed, strict=True))
        for row, i in enumerate(numbers):
            last = first[row] + length[row]
            mean, scale = self._moments.of(i, frames.__getitem__)
            out[row, : length[row]] = (frames[i][first[row] : last] - mean) * scale
            out[row, length[row] :] = 0.0


def open_features(frames_dir: str | Path, options: BatchOptions) -> Frames:
    """Open the features of a training.

    Args:
        frames_dir: folder of `normalize_features` or `prepare_live_features`.
        options: `on_the_fly` is for the latter.
    """
    return open_frames(frames_dir, options.on_the_fly)


def estimate_normalizer(frames_dir: str | Path, options: DataOptions) -> Normalizer:
    """Return the normalization that the options name, of the training frames.

    The model keeps it in meta.json (`Normalizer.to_meta`), so that forward and decoding
    do the same to their features.
    """
    features = open_features(frames_dir, options)
    return Normalizer.estimate(options.normalization, features)


def open_reader(frames: Frames, normalizer: Normalizer) -> FrameReader:
    """Return the reader of features for batches."""
    if isinstance(frames, LiveFrames):
        return LiveReader(frames, normalizer)
    return StoreReader(frames, normalizer)


def in_pass(
    reader: FrameReader, options: BatchOptions, seed: int, whole_pass: int
) -> FrameReader:
    """Return the reader of a pass over the data: features changed as drawn for it.

    Raises:
        UserError: the options draw what stored features cannot follow.
    """
    if (draws := options.simulation) is not None:
        reader = reader.simulated(draws, seed=seed, whole_pass=whole_pass)
    if (draws := options.perturbation) is not None:
        reader = reader.perturbed(draws, seed=seed, whole_pass=whole_pass)
    return reader


class Moments:
    """Mean and scale of each utterance, made once.

    Args:
        num_utterances: N.
        dim: D.
        normalizer: what makes them.
    """

    def __init__(self, num_utterances: int, dim: int, normalizer: Normalizer) -> None:
        self._normalizer = normalizer
        self._is_known = np.zeros(num_utterances, np.bool_)
        self._same: np.ndarray | None = None
        self._kept = np.empty((0, 2, dim), np.float32)
        if normalizer.kind in {"none", "global"}:
            self._same = np.stack(normalizer.moments(np.zeros((1, dim), np.float32)))
        elif num_utterances:
            self._kept = _temporary((num_utterances, 2, dim))

    def of(self, i: int, frames: Callable[[int], np.ndarray]) -> np.ndarray:
        """Return those of utterance i, float32 [2, D].

        Two threads may make the same ones at once; both write the same numbers.

        Args:
            i: number of the utterance.
            frames: gives the frames of an utterance, where they are needed.
        """
        if self._same is not None:
            return self._same
        if not self._is_known[i]:
            self._kept[i] = self._normalizer.moments(frames(i))
            self._is_known[i] = True
        return self._kept[i]


def _temporary(shape: tuple[int, ...]) -> np.ndarray:
    """Make a float32 array in a temporary file without a name.

    Its room is taken at once: a disk that fills up later would end the process.
    """
    with tempfile.TemporaryFile(prefix="latflow-moments-") as stream:
        try:
            os.posix_fallocate(stream.fileno(), 0, 4 * math.prod(shape))
        except OSError as error:
            raise UserError(
                f"no room for the means of utterances ({error.strerror})",
                file=tempfile.gettempdir(),
                remedy="free space there, or set TMPDIR to a larger disk",
            ) from error
        return np.memmap(stream, np.float32, "r+", shape=shape)


@njit(cache=True, nogil=True)
def _assemble(
    matrix: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    moments: np.ndarray,
    out: np.ndarray,
) -> None:
    """Set out[b, t] = (matrix[begin[b] + t] - mean) x scale for t < length[b], else 0.

    Args:
        matrix: float32 [sum T, D].
        begin: int64 [B], first row of each piece.
        length: int64 [B], rows of each piece.
        moments: float32 [B, 2, D]: mean and scale.
        out: float32 [B, T, D].
    """
    for b in range(out.shape[0]):
        for t in range(length[b]):
            row = matrix[begin[b] + t]
            for d in range(out.shape[2]):
                out[b, t, d] = (row[d] - moments[b, 0, d]) * moments[b, 1, d]
        out[b, length[b] :] = 0.0
