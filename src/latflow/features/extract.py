"""The feature stages: samples to stored features, and those to normalised frames.

    extract_features     cuts -> the same cuts with features attached
    normalise_features   those cuts -> a `FrameStore` with CMVN applied

Both stream: memory holds a few batches of utterances, however large the corpus. Worker
threads decode and compute (soundfile and torch let go of the interpreter's lock); the
main thread reads and writes in order, so their number never changes an output.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from lhotse import Features, MonoCut
from lhotse.audio import AudioLoadingError, DurationMismatchError
from lhotse.features.io import close_cached_file_handles
from lhotse.utils import fastcopy

from latflow.errors import UserError
from latflow.features.cmvn import apply_cmvn, cmvn_statistics, sliding_cmvn
from latflow.features.extractor import KaldiFbank, KaldiMfcc, make_extractor
from latflow.features.frames import FrameWriter
from latflow.features.manifests import (
    CutWriter,
    FeatureStorage,
    count_cuts,
    cut_writer,
    read_cuts,
    speaker_of,
    text_of,
)
from latflow.features.options import FrontEndOptions
from latflow.files import atomic_directory
from latflow.kaldi_io import KaldiWriter
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import map_in_order

BATCH_CUTS, BATCH_SECONDS = 16, 60.0  # a batch ends with either
GLOBAL = "global"
_UNREADABLE = (
    AudioLoadingError,
    DurationMismatchError,
    AssertionError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
)

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class _Outcome:
    """One utterance: its features [T, D], or why there are none."""

    cut: MonoCut
    features: np.ndarray | None
    reason: str = ""


def extract_features(
    cuts: str | Path,
    out_dir: str | Path,
    *,
    options: Mapping[str, Any],
    threads: int,
    max_skipped_fraction: float,
) -> None:
    """Compute the features of a split and store them.

    Writes `cuts.jsonl.gz` (the cuts with features attached, without those skipped),
    `storage/` (the features, where the manifest says: relative to the working folder if
    `out_dir` is) and `ledger.jsonl`. With snip-edges a features manifest's duration is
    the time of its frames, which is less than the cut's.

    Args:
        cuts: the split's `cuts.jsonl.gz`, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        options: the `features` section of the configuration.
        threads: worker threads, >= 1.
        max_skipped_fraction: share of utterances that may be skipped (unreadable,
            empty, shorter than a frame).

    Raises:
        UserError: an audio file is missing, too many utterances had to be skipped,
            sample rates differ, options do not fit the rate, or the disk is full.
    """
    ledger = Ledger("extract_features")
    target = Path(out_dir)
    front_end = FrontEndOptions.from_config(options)
    with atomic_directory(target) as folder:
        storage = FeatureStorage(
            options["storage"], folder / "storage", target / "storage"
        )
        with closing(storage), cut_writer(folder / "cuts.jsonl.gz") as writer:
            source, extractor = _prepare(cuts, front_end, options["sample_rate"])
            results = map_in_order(
                lambda batch: [_compute(cut, extractor) for cut in batch],
                _batches(source),
                threads,
            )
            outcomes = itertools.chain.from_iterable(results)
            bar = progress(outcomes, "extract features", total=count_cuts(cuts))
            num_cuts = 0
            for outcome in bar:
                num_cuts += 1
                _keep(outcome, extractor, storage, writer, ledger)
        ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")


def _prepare(
    path: str | Path, options: FrontEndOptions, sample_rate: int | None
) -> tuple[Iterator[MonoCut], KaldiMfcc | KaldiFbank]:
    """Make the extractor, and the cuts at its sample rate.

    Where none is configured, the first cut's rate is taken, and binds all.
    """
    cuts = read_cuts(path)
    first = next(cuts, None)
    if first is None:
        raise UserError(
            "holds no utterances", file=path, remedy="check the corpus settings"
        )
    rate = int(sample_rate or first.sampling_rate)
    all_cuts = _at_rate(
        itertools.chain([first], cuts),
        rate,
        first,
        may_resample=sample_rate is not None,
    )
    return all_cuts, make_extractor(options, rate)


def _at_rate(
    cuts: Iterable[MonoCut], rate: int, first: MonoCut, *, may_resample: bool
) -> Iterator[MonoCut]:
    """Yield the cuts, those with another sample rate to be resampled on reading."""
    for cut in cuts:
        if cut.sampling_rate == rate:
            yield cut
        elif may_resample:
            yield cast("MonoCut", cut.resample(rate))
        else:
            raise UserError(
                f"sample rate {cut.sampling_rate} Hz, but {first.id} has {rate} Hz",
                file=_file_of(cut),
                utterance=cut.id,
                remedy="set features.sample_rate: recordings are then resampled to it",
            )


def _batches(cuts: Iterable[MonoCut]) -> Iterator[list[MonoCut]]:
    """Group consecutive cuts, by number and by duration."""
    batch: list[MonoCut] = []
    seconds = 0.0
    for cut in cuts:
        batch.append(cut)
        seconds += cut.duration
        if len(batch) == BATCH_CUTS or seconds >= BATCH_SECONDS:
            yield batch
            batch, seconds = [], 0.0
    if batch:
        yield batch


def _compute(cut: MonoCut, extractor: KaldiMfcc | KaldiFbank) -> _Outcome:
    """Read one utterance and compute its features; runs in a worker thread."""
    wave = _load(cut)
    if isinstance(wave, str):
        return _Outcome(cut, None, wave)
    if not np.isfinite(wave).all():
        return _Outcome(cut, None, f"{_file_of(cut)}: samples that are not numbers")
    features = extractor.extract_utterance(wave, zlib.crc32(cut.id.encode()))
    if len(features) == 0:
        milliseconds = 1000 * len(wave) / cut.sampling_rate
        reason = f"{_file_of(cut)}: {milliseconds:.1f} ms are too short for one frame"
        return _Outcome(cut, None, reason)
    return _Outcome(cut, features)


def _load(cut: MonoCut) -> np.ndarray | str:
    """Samples of a cut, float32 [L], or why they cannot be read.

    Raises:
        UserError: a file is missing.
    """
    recording = cut.recording
    assert recording is not None
    for source in recording.sources:
        if source.type != "file":
            continue
        path = Path(str(source.source))
        if not path.is_file():
            raise UserError(
                "audio file is missing",
                file=path,
                utterance=cut.id,
                remedy="restore it, or prepare the corpus again",
            )
        if path.stat().st_size == 0:
            return f"{path}: audio file of no bytes"
    try:
        audio = recording.load_audio(
            channels=cut.channel, offset=cut.start, duration=cut.duration
        )
    except _UNREADABLE as error:
        return f"{_file_of(cut)}: unreadable audio ({type(error).__name__})"
    return audio[0]


def _file_of(cut: MonoCut) -> str:
    """The first source of a cut's recording, for messages."""
    recording = cut.recording
    assert recording is not None
    return str(recording.sources[0].source) if recording.sources else recording.id


def _keep(
    outcome: _Outcome,
    extractor: KaldiMfcc | KaldiFbank,
    storage: FeatureStorage,
    writer: CutWriter,
    ledger: Ledger,
) -> None:
    """Store one utterance's features and write its cut, or put it in the ledger."""
    cut, features = outcome.cut, outcome.features
    if features is None:
        ledger.record(cut.id, outcome.reason)
        return
    is_snipped = extractor.config.options.snip_edges
    covered = round(len(features) * extractor.frame_shift, 8)
    manifest = Features(
        type=extractor.name,
        num_frames=len(features),
        num_features=features.shape[1],
        frame_shift=extractor.frame_shift,
        sampling_rate=extractor.config.sampling_rate,
        start=cut.start,
        duration=covered if is_snipped else cut.duration,
        storage_type=storage.kind,
        storage_path=storage.path,
        storage_key=storage.write(cut.id, features),
        recording_id=cut.recording_id,
        channels=cut.channel,
    )
    writer.write(fastcopy(cut, features=manifest))


def normalise_features(
    cuts: str | Path, out_dir: str | Path, *, options: Mapping[str, Any]
) -> None:
    """Normalise stored features and lay them out flat, as a `FrameStore`.

    Two passes over the features where statistics of more than an utterance are needed;
    these are kept in `cmvn.ark`, a Kaldi archive of double matrices [2, D + 1] by
    speaker, or under the key `global`.

    Args:
        cuts: `cuts.jsonl.gz` with features, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        options: the key `cmvn` of the `features` section is used.

    Raises:
        UserError: a cut has no features, its stored features cannot be read, or the
            disk is full.
    """
    cmvn = dict(options["cmvn"])
    kind = cmvn.pop("type")
    total = count_cuts(cuts)
    with atomic_directory(out_dir) as folder:
        try:
            statistics: dict[str, np.ndarray] = {}
            if kind in {"speaker", GLOBAL}:
                bar = progress(read_features(cuts), "CMVN statistics", total=total)
                statistics = _statistics(bar, by_speaker=kind == "speaker")
                _write_statistics(folder / "cmvn.ark", statistics)
            bar = progress(read_features(cuts), "normalise features", total=total)
            _write_frames(bar, folder, _normaliser(kind, cmvn, statistics), options)
        finally:
            close_cached_file_handles()


def read_features(path: str | Path) -> Iterator[tuple[MonoCut, np.ndarray]]:
    """Yield cuts with their stored features, float32 [T, D].

    Raises:
        UserError: a cut has no features, or they cannot be read.
    """
    for cut in read_cuts(path):
        remedy = "run the extract_features stage again"
        if cut.features is None:
            raise UserError(
                "has no features", file=path, utterance=cut.id, remedy=remedy
            )
        try:
            features = cut.features.load()
        except (OSError, KeyError, ValueError, RuntimeError) as error:
            raise UserError(
                f"stored features cannot be read ({type(error).__name__})",
                file=cut.features.storage_path,
                utterance=cut.id,
                remedy=remedy,
            ) from error
        yield cut, features


def _statistics(
    items: Iterable[tuple[MonoCut, np.ndarray]], *, by_speaker: bool
) -> dict[str, np.ndarray]:
    """CMVN statistics of each speaker, or of all."""
    statistics: dict[str, np.ndarray] = {}
    for cut, features in items:
        key = speaker_of(cut) if by_speaker else GLOBAL
        stats = cmvn_statistics(features)
        if key in statistics:
            statistics[key] += stats
        else:
            statistics[key] = stats
    return statistics


def _write_statistics(path: Path, statistics: Mapping[str, np.ndarray]) -> None:
    """Write a Kaldi archive of statistics, sorted by key."""
    with path.open("wb") as stream:
        for key, stats in sorted(statistics.items()):
            stream.write(key.encode() + b" ")
            KaldiWriter(stream).write_float_matrix(stats)


def _normaliser(
    kind: str, arguments: Mapping[str, Any], statistics: Mapping[str, np.ndarray]
) -> Callable[[MonoCut, np.ndarray], np.ndarray]:
    """Choose the function that normalises an utterance."""
    match kind:
        case "none":
            return lambda _, features: features
        case "sliding":
            return lambda _, features: sliding_cmvn(features, **arguments)
        case "utterance":
            return lambda _, features: apply_cmvn(
                features, cmvn_statistics(features), **arguments
            )
        case "speaker":
            return lambda cut, features: apply_cmvn(
                features, statistics[speaker_of(cut)], **arguments
            )
    return lambda _, features: apply_cmvn(features, statistics[GLOBAL], **arguments)


def _write_frames(
    items: Iterable[tuple[MonoCut, np.ndarray]],
    folder: Path,
    normalise: Callable[[MonoCut, np.ndarray], np.ndarray],
    options: Mapping[str, Any],
) -> None:
    """Write the normalised frames of all utterances."""
    remaining = iter(items)
    first = next(remaining, None)
    if first is None:
        raise UserError(
            "no utterance has features", remedy="see the ledger of features"
        )
    manifest = first[0].features
    assert manifest is not None
    with FrameWriter(
        folder,
        dim=first[1].shape[1],
        frame_shift=manifest.frame_shift,
        meta={"type": manifest.type, "cmvn": dict(options["cmvn"])},
    ) as writer:
        for cut, features in itertools.chain([first], remaining):
            frames = normalise(cut, features)
            writer.append(cut.id, speaker_of(cut), text_of(cut), frames)
