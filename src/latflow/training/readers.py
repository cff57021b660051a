"""Read frames of a corpus into the tensors of a batch.

A `BatchSource` reads from a `FrameReader`: `StoreReader` reads a `FrameStore`,
`LiveReader` features that are computed on the fly.
A store is mapped into memory: what it keeps there is the operating system's page cache,
which all ranks of a machine share, which fills what memory is free and gives way where
others need it. A cache of our own would hold the same bytes twice: what `cache_mb`
bounds and reads ahead is pages of that cache (`latflow.page_cache`).

Statistics of utterances (for `mean`, `mean_variance`) are made when an utterance is
first touched (`latflow.training.moments`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latflow.errors import UserError
from latflow.features.cmvn_kernels import affine_of
from latflow.features.frames import FrameStore
from latflow.features.live import LiveFrames
from latflow.features.options import PerturbationDraws
from latflow.features.perturb import Perturbation, num_samples_at
from latflow.features.source import Frames, open_frames
from latflow.jit import njit
from latflow.nnet.normalization import Normalizer
from latflow.page_cache import PageBudget
from latflow.simulation.on_the_fly import PassSimulation, SimulationOnTheFly
from latflow.simulation.options import (
    CleanTarget,
    EarlyTarget,
    MaskTarget,
    SimulationDraws,
)
from latflow.training.data_options import BatchOptions, DataOptions, MixingDraws
from latflow.training.mixing import FeatureMixing, PassMixing
from latflow.training.moments import Moments

_OF_STORED, _OF_LIVE = ("mixing", "cache_mb"), ("simulation", "perturbation")


class FrameReader(ABC):
    """Features of a corpus, by utterance; safe to share between threads.

    Args:
        frames: the features.
        normalizer: applied to what is read.

    Attributes:
        dim: features per frame, D.
        normalizer: what `fill` applies.
        perturbation: speeds and volumes of the utterances, or None; with them labels
            of frame t are those at the time `speed x (t + center) - center`.
        center: see `LiveFrames.center`.
    """

    def __init__(self, frames: Frames, normalizer: Normalizer | None) -> None:
        self.dim = frames.dim
        self.normalizer = normalizer or Normalizer()
        self.perturbation: Perturbation | None = None
        self.center = 0.0
        self._frames = frames
        self._moments = Moments(len(frames), self.dim, self.normalizer)

    @property
    def folder(self) -> Path:
        """Folder of the features."""
        return self._frames.folder

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

    def pop_statistics(self) -> dict[str, Any]:
        """Return what was read since the last call, for a log: what is drawn here."""
        return {}

    @abstractmethod
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


class StoreReader(FrameReader):
    """Read a `FrameStore`.

    Args:
        store: the frames.
        normalizer: applied to what is read.
        mixing: noises that are added to them; None for none.
    """

    def __init__(
        self,
        store: FrameStore,
        normalizer: Normalizer | None = None,
        mixing: PassMixing | None = None,
    ) -> None:
        super().__init__(store, normalizer)
        self.store, self.mixing = store, mixing
        self._matrix = store["frames"].flat
        self._is_windowed = store.cmvn is not None and store.cmvn.windows is not None
        self._noises: FeatureMixing | None = None

    def mixed(self, options: MixingDraws, *, seed: int, whole_pass: int) -> StoreReader:
        """Return a reader of the same utterances, with noises as drawn for a pass.

        To be called with the same options and seed.

        Raises:
            UserError: the features do not add up.
        """
        if self._noises is None:
            self._noises = FeatureMixing(options, self.store, seed=seed)
        noises = self._noises.in_pass(whole_pass)
        return StoreReader(self.store, self.normalizer, noises)

    def hold(
        self,
        pages: PageBudget,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
    ) -> int:
        """Ask for the pages of what `fill` will read; returns their bytes.

        That is the whole of utterances whose statistics are not known, or that are
        normalized by windows.
        """
        begin, end = self.store.begin[utterance], self.store.begin[utterance + 1]
        is_known = self._moments.are_known(utterance)
        if self.mixing is not None:
            is_known &= self.mixing.mixing.are_known(utterance)
        is_known &= not self._is_windowed
        last = np.where(is_known, begin + first + length, end)
        return pages.hold(self._matrix, np.where(is_known, begin + first, begin), last)

    def fill(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """See `FrameReader.fill`."""
        if self.mixing is not None or self._is_windowed:
            self._fill_by_utterance(utterance, first, length, out)
            return
        moments = np.empty((len(utterance), 2, self.dim), np.float32)
        for row, i in enumerate(utterance):
            moments[row] = self._moments.of(int(i), self.store.frames)
        begin = self.store.begin[utterance] + first
        cmvn = self.store.cmvn
        if cmvn is None:  # means of zero
            statistics = np.zeros((len(utterance), 2, self.dim + 1))
            statistics[:, 0, -1], is_scaled = 1.0, False
        else:
            statistics, is_scaled = cmvn.statistics_of(utterance), cmvn.is_scaled
        _assemble(self._matrix, begin, length, statistics, is_scaled, moments, out)

    def _fill_by_utterance(
        self,
        utterance: np.ndarray,
        first: np.ndarray,
        length: np.ndarray,
        out: np.ndarray,
    ) -> None:
        """Do what `fill` does, with noises, or CMVN by frames around each frame."""
        for row, i in enumerate(utterance.tolist()):
            mean, scale = self._moments.of(i, self._frames_of)
            begin, count = int(first[row]), int(length[row])
            frames = self._frames_of(i, begin, begin + count)
            out[row, :count] = (frames - mean) * scale
            out[row, count:] = 0.0

    def _frames_of(self, i: int, first: int = 0, last: int | None = None) -> np.ndarray:
        """Return frames of utterance i, with its noises; all of them by default."""
        if self.mixing is not None:
            return self.mixing.frames(i, first, last)
        return self.store.frames(i, slice(first, last))


class LiveReader(FrameReader):
    """Read features that are computed on the fly.

    Args:
        live: the features.
        normalizer: applied to what is read.
        perturbation: speeds and volumes of the utterances; None for their own.
        simulation: what is done to them; None for nothing.
        purpose: of simulated rooms: those of training and of dev differ.
    """

    def __init__(
        self,
        live: LiveFrames,
        normalizer: Normalizer | None = None,
        perturbation: Perturbation | None = None,
        simulation: PassSimulation | None = None,
        *,
        purpose: str = "training",
    ) -> None:
        super().__init__(live, normalizer)
        self.live, self._purpose = live, purpose
        self.perturbation, self.simulation = perturbation, simulation
        self._on_the_fly: SimulationOnTheFly | None = None
        self.center = live.center

    @property
    def lengths(self) -> np.ndarray:
        """Frames of each utterance, int64 [N]."""
        if self.perturbation is None:
            return super().lengths
        return self.live.lengths_at(self.perturbation.speed)

    def num_samples(self, i: int) -> int:
        """Return the samples of utterance i, at the speed that it has here."""
        own = self.live.num_samples(i)
        if self.perturbation is None:
            return own
        return num_samples_at(own, float(self.perturbation.speed[i]))

    def perturbed(
        self, options: PerturbationDraws, *, seed: int, whole_pass: int
    ) -> LiveReader:
        """Return a reader of the same utterances with drawn speeds and volumes."""
        drawn = self.live.perturbation(options, seed=seed, whole_pass=whole_pass)
        return LiveReader(self.live, self.normalizer, drawn, self.simulation)

    def simulated(
        self, options: SimulationDraws, *, seed: int, whole_pass: int
    ) -> LiveReader:
        """Return a reader of the same utterances, simulated as drawn for a pass.

        To be called with the same options and seed.

        Raises:
            UserError: nothing can be simulated so.
        """
        if (refusal := options.why_not_of(self.live.channels)) is not None:
            what, remedy = refusal
            raise UserError(
                f"data.simulation {what}", file=self.live.folder, remedy=remedy
            )
        if self._on_the_fly is None:
            self._on_the_fly = SimulationOnTheFly(
                options,
                self.live,
                rate=self.live.sample_rate,
                seed=seed,
                purpose=self._purpose,
            )
        simulation = self._on_the_fly.in_pass(whole_pass)
        return LiveReader(self.live, self.normalizer, self.perturbation, simulation)

    def pop_statistics(self) -> dict[str, Any]:
        """See `FrameReader.pop_statistics`."""
        if self._on_the_fly is None:
            return {}
        return {"simulation": self._on_the_fly.take_counts()}

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
        frames_dir: folder of `compute_cmvn` or `prepare_live_features`.
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


def open_reader(
    frames: Frames, normalizer: Normalizer, *, is_training: bool = True
) -> FrameReader:
    """Return the reader of features for batches: of training, or of dev."""
    if isinstance(frames, LiveFrames):
        purpose = "training" if is_training else "dev"
        return LiveReader(frames, normalizer, purpose=purpose)
    return StoreReader(frames, normalizer)


def in_pass(
    reader: FrameReader, options: BatchOptions, seed: int, whole_pass: int
) -> FrameReader:
    """Return the reader of a pass over the data: features changed as drawn for it.

    Raises:
        UserError: the options draw what the features cannot follow.
    """
    is_live = isinstance(reader, LiveReader)
    for name in _OF_STORED if is_live else _OF_LIVE:
        if getattr(options, name) is not None:
            kind = "stored" if is_live else "computed on the fly (`stored: false`)"
            raise UserError(
                f"data.{name} is for features that are {kind}",
                file=reader.folder,
                remedy="leave it out, or take such features",
            )
    drawn = {"seed": seed, "whole_pass": whole_pass}
    if isinstance(reader, LiveReader):
        if options.simulation is not None:
            reader = reader.simulated(options.simulation, **drawn)
        if options.perturbation is not None:
            reader = reader.perturbed(options.perturbation, **drawn)
    elif isinstance(reader, StoreReader) and options.mixing is not None:
        reader = reader.mixed(options.mixing, **drawn)
    return reader


@njit(cache=True, nogil=True)
def _assemble(
    matrix: np.ndarray,
    begin: np.ndarray,
    length: np.ndarray,
    statistics: np.ndarray,
    is_scaled: bool,  # noqa: FBT001 - of a kernel
    moments: np.ndarray,
    out: np.ndarray,
) -> None:
    """Set out[b, t] = (x - mean) x scale for t < length[b], else 0.

    Args:
        matrix: float32 [sum T, D].
        begin: int64 [B], first row of each piece.
        length: int64 [B], rows of each piece.
        statistics: float64 [B, 2, D + 1], which make x of rows, see `affine_of`.
        is_scaled: see there.
        moments: float32 [B, 2, D]: mean and scale.
        out: float32 [B, T, D].
    """
    affine = np.empty((2, out.shape[2]), np.float32)
    for b in range(out.shape[0]):
        affine_of(statistics[b], is_scaled, affine)
        for t in range(length[b]):
            row = matrix[begin[b] + t]
            for d in range(out.shape[2]):
                x = row[d] * affine[0, d] - affine[1, d]
                out[b, t, d] = (x - moments[b, 0, d]) * moments[b, 1, d]
        out[b, length[b] :] = 0.0
