"""Cepstral mean and variance normalization (CMVN), as Kaldi's programs do it.

Statistics are float64 [2, D + 1] in Kaldi's form: sums and the number of frames in the
first row, sums of squares (and a zero) in the second; they add up.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from latflow.corpus.json_lines import CutLine, count_cuts, read_cut_lines
from latflow.errors import UserError
from latflow.features.frames import FrameWriter
from latflow.features.options import (
    CmvnOptions,
    Extraction,
    GlobalCmvn,
    NoCmvn,
    OnlineCmvn,
    SlidingCmvn,
    SpeakerCmvn,
)
from latflow.features.storage_names import IN_MANIFEST
from latflow.features.stored import StoredFeatures
from latflow.files import atomic_directory, reading
from latflow.kaldi.io import read_matrices, write_matrices
from latflow.logs import progress

STATISTICS = "cmvn.ark"  # in a folder of frames
GLOBAL = "global"  # key of the statistics of all speakers
_SMALLEST_VARIANCE = 1e-20  # Kaldi's floors
_SMALLEST_SLIDING_VARIANCE = 1e-10


def normalize(
    frames: np.ndarray, options: CmvnOptions, stats: np.ndarray | None = None
) -> np.ndarray:
    """Normalize the frames [T, D] of an utterance: float32 [T, D].

    Args:
        frames: [T, D].
        stats: of the speaker or the corpus, where `options` is about these; None takes
            the utterance's own, which `online` cannot do with.
    """
    if isinstance(options, NoCmvn):
        return frames
    if isinstance(options, SlidingCmvn):
        return sliding_cmvn(
            frames,
            window=options.window,
            min_window=options.min_window,
            center=options.center,
            norm_vars=options.norm_vars,
        )
    if isinstance(options, OnlineCmvn):
        assert stats is not None
        return OnlineCmvnStream(options, stats).accept(frames)
    if stats is None:
        stats = cmvn_statistics(frames)
    return apply_cmvn(frames, stats, norm_vars=options.norm_vars)


def cmvn_statistics(frames: np.ndarray) -> np.ndarray:
    """Sum up frames [T, D], T >= 0: float64 [2, D + 1].

    Source: Kaldi `transform/cmvn.cc:AccCmvnStats`.
    """
    exact = frames.astype(np.float64)
    stats = np.zeros((2, frames.shape[1] + 1))
    stats[0, :-1] = exact.sum(axis=0)
    stats[0, -1] = len(frames)
    stats[1, :-1] = np.einsum("td,td->d", exact, exact)
    return stats


def apply_cmvn(
    frames: np.ndarray, stats: np.ndarray, *, norm_vars: bool = False
) -> np.ndarray:
    """Subtract the mean, and divide by the standard deviation if asked.

    Args:
        frames: [T, D].
        stats: [2, D + 1], of at least one frame.
        norm_vars: whether variances become one too.

    Returns:
        float32 [T, D].

    Raises:
        UserError: the statistics hold no frame.

    Source: Kaldi `transform/cmvn.cc:ApplyCmvn`; a variance below 1e-20 counts as 1e-20.
    """
    mean, variance = _moments(stats)
    if not norm_vars:
        return frames.astype(np.float32) - mean.astype(np.float32)
    scale = 1.0 / np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))
    scaled = frames.astype(np.float32) * scale.astype(np.float32)
    return scaled - (mean * scale).astype(np.float32)


def _moments(stats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and variance, [D] each, of statistics of at least one frame."""
    count = stats[0, -1]
    if count < 1:
        raise UserError(
            "CMVN statistics of no frames", remedy="check the speaker's utterances"
        )
    mean = stats[0, :-1] / count
    return mean, stats[1, :-1] / count - mean**2


def sliding_cmvn(
    frames: np.ndarray,
    *,
    window: int = 600,
    min_window: int = 100,
    center: bool = False,
    norm_vars: bool = False,
) -> np.ndarray:
    """Normalize each frame by the frames around it, or before it.

    Args:
        frames: [T, D].
        window: frames that mean and variance are taken from, > 0.
        min_window: fewest frames, near the start, if not `center`.
        center: whether the window lies around the frame; else it ends with it. Near the
            edges it is shifted inwards.
        norm_vars: whether variances become one too (a window of one frame gives zero).

    Returns:
        float32 [T, D].

    Source: Kaldi `feat/feature-functions.cc:SlidingWindowCmnInternal`
    (apply-cmvn-sliding); running sums are replaced by differences of cumulative ones.
    """
    exact = frames.astype(np.float64)
    begin, end = _sliding_windows(
        len(frames), window=window, min_window=min_window, center=center
    )
    count = (end - begin)[:, np.newaxis].astype(np.float64)
    origin = exact.mean(axis=0) if len(exact) else 0.0  # keeps cumulative sums small
    exact = exact - origin
    mean = _window_sums(exact, begin, end) / count
    centred = exact - mean
    if norm_vars:
        variance = _window_sums(exact**2, begin, end) / count - mean**2
        centred /= np.sqrt(np.maximum(variance, _SMALLEST_SLIDING_VARIANCE))
        centred[count[:, 0] == 1] = 0.0
    return centred.astype(np.float32)


def _sliding_windows(
    num_frames: int, *, window: int, min_window: int, center: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first frame of each frame's window, and the one after its last."""
    t = np.arange(num_frames)
    if center:
        begin = np.maximum(t - window // 2, 0)
        end = begin + window
    else:
        begin = np.maximum(t - window, 0)
        end = np.maximum(t + 1, min_window)
    overshoot = np.maximum(end - num_frames, 0)
    return np.maximum(begin - overshoot, 0), end - overshoot


def _window_sums(values: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return sums over rows begin[t]..end[t]-1 for every t, [T, D]."""
    sums = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=sums[1:])
    return sums[end] - sums[begin]


class _RunningSums:
    """Sums of frames and of their squares over windows of the frames so far.

    They do not depend on how the frames are cut. Float64 keeps their precision where
    frames are small beside their spread: about an origin.

    Args:
        dim: elements of a frame.
    """

    def __init__(self, dim: int) -> None:
        # [T', 2, D], over the frames before `_first`, before the next one, ...
        self._sums = np.zeros((1, 2, dim))
        self._first = 0

    def add(self, frames: np.ndarray) -> None:
        """Take the next frames, float64 [T, D]."""
        powers = np.stack([frames, frames**2], axis=1)
        sums = np.cumsum(np.concatenate([self._sums[-1:], powers]), axis=0)
        self._sums = np.concatenate([self._sums, sums[1:]])

    def over(self, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return sums over frames begin[t]..end[t]-1 for every t, [T, 2, D]."""
        return self._sums[end - self._first] - self._sums[begin - self._first]

    def forget(self, frame: int) -> None:
        """Drop what only windows that begin before a frame need."""
        drop = max(0, frame - self._first)
        self._sums, self._first = self._sums[drop:], self._first + drop


class SlidingCmvnStream:
    """Sliding normalization of frames that arrive in pieces.

    However they are cut, the result has the same bits; it is that of `sliding_cmvn` but
    for rounding (that one takes the mean of the whole from its sums beforehand). The
    first frames wait until `min_window` are there.

    Args:
        options: of a window that ends with the frame (`center: false`).

    Raises:
        ValueError: the window lies around the frame.
    """

    def __init__(self, options: SlidingCmvn) -> None:
        if options.center:
            raise ValueError("a window around the frame needs frames to come")
        self._options = options
        self._waiting: list[np.ndarray] = []
        self._num_frames = self._num_done = 0
        self._origin: np.ndarray | None = None
        self._sums = _RunningSums(0)
        self._dim = 0

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Take the next frames [T, D]; return those ready, float32 [T', D]."""
        self._dim = frames.shape[1]
        if len(frames):
            self._add(frames.astype(np.float64))
        is_enough = self._num_frames >= self._options.min_window
        return self._advance(self._num_frames if is_enough else 0)

    def finish(self) -> np.ndarray:
        """Return the frames that were waiting, float32 [T, D]."""
        return self._advance(self._num_frames)

    def _add(self, exact: np.ndarray) -> None:
        """Sum up frames."""
        if self._origin is None:
            self._origin, self._sums = exact[0], _RunningSums(self._dim)
        exact = exact - self._origin
        self._sums.add(exact)
        self._waiting.append(exact)
        self._num_frames += len(exact)

    def _advance(self, end: int) -> np.ndarray:
        """Normalize frames up to `end`, forget what is no longer needed."""
        if end <= self._num_done:
            return np.empty((0, self._dim), np.float32)
        options = self._options
        t = np.arange(self._num_done, end)
        behind = np.maximum(t + 1, options.min_window)
        overshoot = np.maximum(behind - self._num_frames, 0)  # of short signals alone
        behind = behind - overshoot
        begin = np.maximum(np.maximum(t - options.window, 0) - overshoot, 0)
        count = (behind - begin)[:, np.newaxis].astype(np.float64)
        sums = self._sums.over(begin, behind)
        mean = sums[:, 0] / count
        centred = np.concatenate(self._waiting) - mean
        if options.norm_vars:
            variance = sums[:, 1] / count - mean**2
            centred /= np.sqrt(np.maximum(variance, _SMALLEST_SLIDING_VARIANCE))
            centred[count[:, 0] == 1] = 0.0
        self._waiting, self._num_done = [], end
        self._sums.forget(end - options.window)
        return centred.astype(np.float32)


class OnlineCmvnStream:
    """Online normalization of frames that arrive in pieces; none waits.

    A frame has the statistics of the last `window` frames up to it. Where there are
    fewer yet, those of the training set are added with the weight of `global_frames`
    frames, or of as many as lack. However frames are cut, the result has the same bits.

    Args:
        options: window and weight.
        stats: of the training set, float64 [2, D + 1].

    Raises:
        UserError: the statistics hold no frame.

    Source: Kaldi `feat/online-feature.cc:OnlineCmvn` (apply-cmvn-online), with no
    statistics of the speaker.
    """

    def __init__(self, options: OnlineCmvn, stats: np.ndarray) -> None:
        self._options = options
        self._origin, self._variance = _moments(stats)
        self._sums = _RunningSums(len(self._origin))
        self._num_frames = 0

    def accept(self, frames: np.ndarray) -> np.ndarray:
        """Normalize the next frames [T, D]: float32 [T, D]."""
        options = self._options
        exact = frames.astype(np.float64) - self._origin
        self._sums.add(exact)
        end = self._num_frames + np.arange(1, len(exact) + 1)
        begin = np.maximum(end - options.window, 0)
        weight = np.minimum(options.window - (end - begin), options.global_frames)
        count = (end - begin + weight)[:, np.newaxis]
        sums = self._sums.over(begin, end)
        mean = sums[:, 0] / count  # about that of the training set, which adds nothing
        normalized = exact - mean
        if options.norm_vars:
            squares = sums[:, 1] + weight[:, np.newaxis] * self._variance
            variance = squares / count - mean**2
            normalized /= np.sqrt(np.maximum(variance, _SMALLEST_VARIANCE))
        self._num_frames += len(exact)
        self._sums.forget(self._num_frames - options.window)
        return normalized.astype(np.float32)

    def finish(self) -> np.ndarray:
        """Return nothing: no frame waits, float32 [0, D]."""
        return np.empty((0, len(self._origin)), np.float32)


def normalize_features(
    cuts: str | Path,
    out_dir: str | Path,
    *,
    cmvn: CmvnOptions,
    extraction: Extraction | None = None,
    training_dir: str | Path | None = None,
) -> None:
    """Normalize stored features and lay them out flat, as a `FrameStore`.

    Two passes over the features where statistics of more than an utterance are needed;
    these are kept in `cmvn.ark`, a Kaldi archive of double matrices [2, D + 1] by
    speaker, or under the key `global`; with `online`, those of the training set.

    Args:
        cuts: `cuts.jsonl.gz` with features, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        extraction: what the features were computed by, for whoever computes others of
            the kind; None where nobody will.
        training_dir: folder with the `cmvn.ark` of the training set, which `online`
            begins with; None where `cuts` are that set.

    Raises:
        UserError: a cut has no features, its stored features cannot be read, there are
            no statistics in `training_dir`, or the disk is full.
    """
    total = count_cuts(cuts)
    with atomic_directory(out_dir) as folder:
        statistics: dict[str, np.ndarray] = {}
        if isinstance(cmvn, OnlineCmvn) and training_dir is not None:
            statistics = {GLOBAL: read_global_statistics(training_dir)}
        elif isinstance(cmvn, SpeakerCmvn | GlobalCmvn | OnlineCmvn):
            bar = progress(read_features(cuts), "CMVN statistics", total=total)
            statistics = _statistics(bar, by_speaker=cmvn.type == "speaker")
        if statistics:
            write_matrices(folder / STATISTICS, sorted(statistics.items()))
        bar = progress(read_features(cuts), "normalize features", total=total)
        _write_frames(bar, folder, cmvn, statistics, extraction)


def read_features(path: str | Path) -> Iterator[tuple[CutLine, np.ndarray]]:
    """Yield cuts with their stored features, float32 [T, D].

    Raises:
        UserError: a cut has no features, or they cannot be read.
    """
    remedy = "run the extract_features stage again"
    dim: int | None = None
    with StoredFeatures() as stored:
        for cut in read_cut_lines(path):
            manifest = cut.values.get("features")
            if not isinstance(manifest, dict):
                raise UserError(
                    "has no features", file=path, utterance=cut.id, remedy=remedy
                )
            is_there = manifest.get("storage_type") in IN_MANIFEST
            place = None if is_there else manifest.get("storage_path")
            what = "stored features cannot be read"
            with reading(place or path, what, remedy, cut.id):
                features = stored.load(manifest)
                dim = features.shape[1] if dim is None else dim
                if features.shape[1:] != (dim,):
                    raise ValueError(f"{features.shape}, not frames of {dim}")
                for field in ("type", "frame_shift", "sampling_rate"):
                    manifest[field]
            yield cut, features


def _statistics(
    items: Iterable[tuple[CutLine, np.ndarray]], *, by_speaker: bool
) -> dict[str, np.ndarray]:
    """Sum up CMVN statistics of each speaker, or of all."""
    statistics: dict[str, np.ndarray] = {}
    for cut, features in items:
        key = cut.speaker if by_speaker else GLOBAL
        stats = cmvn_statistics(features)
        if key in statistics:
            statistics[key] += stats
        else:
            statistics[key] = stats
    return statistics


def read_global_statistics(folder: str | Path) -> np.ndarray:
    """Return the statistics of all speakers in a folder's `cmvn.ark`: [2, D + 1].

    Raises:
        UserError: there are none.
    """
    path = Path(folder) / STATISTICS
    for key, stats in read_matrices(path):
        if key == GLOBAL:
            return stats
    raise UserError(
        f"no statistics of the key {GLOBAL}",
        file=path,
        remedy="normalize the training set with cmvn of type online or global",
    )


def _write_frames(
    items: Iterable[tuple[CutLine, np.ndarray]],
    folder: Path,
    cmvn: CmvnOptions,
    statistics: Mapping[str, np.ndarray],
    extraction: Extraction | None,
) -> None:
    """Write the normalized frames of all utterances."""
    remaining = iter(items)
    first = next(remaining, None)
    if first is None:
        raise UserError(
            "no utterance has features", remedy="see the ledger of features"
        )
    manifest = first[0].values["features"]
    with FrameWriter(
        folder,
        dim=first[1].shape[1],
        frame_shift=manifest["frame_shift"],
        meta={
            "type": manifest["type"],
            "sample_rate": manifest["sampling_rate"],
            "cmvn": cmvn.values(),
            "extraction": None if extraction is None else extraction.values(),
        },
    ) as writer:
        for cut, features in itertools.chain([first], remaining):
            speaker = cut.speaker
            stats = statistics.get(speaker if cmvn.type == "speaker" else GLOBAL)
            frames = normalize(features, cmvn, stats)
            writer.append(cut.id, speaker, cut.text, frames)
