"""The stage that computes and stores features; the front end as Lhotse's extractors.

Features of type `lhotse` are those of `latflow.features.lhotse_extractors`.

It streams: memory holds a few batches of utterances, however large the corpus. Worker
threads decode and compute (soundfile and torch let go of the interpreter's lock), or
Dask's workers (`latflow.parallel.cluster_pool`); the main thread reads and writes in
order, so their number never changes an output.

Importing this module registers `latflow-mfcc`, `latflow-fbank` and `latflow-waveform`
with Lhotse, so that a CutSet can compute features with them
(`cuts.compute_and_store_features(KaldiMfcc(config), ...)`), and features be mixed.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from lhotse import MonoCut
from lhotse.features.base import FeatureExtractor, register_extractor

from latflow.corpus.json_lines import count_cuts
from latflow.corpus.manifests import (
    at_rate,
    file_of,
    read_cuts,
    samples_or_reason,
    speaker_of,
    text_of,
    volume_of,
)
from latflow.errors import UserError
from latflow.features.dither import dither
from latflow.features.frames import FeatureStore, FrameWriter
from latflow.features.front_end import ENERGY_FLOOR, KaldiFrontEnd
from latflow.features.lhotse_extractors import (
    OURS,
    ExtractionError,
    LhotseExtractor,
)
from latflow.features.options import (
    Extraction,
    FrameGeometry,
    FrontEnd,
    FrontEndOptions,
    LhotseFrontEndOptions,
)
from latflow.files import atomic_directory
from latflow.ledger import Ledger
from latflow.logs import progress
from latflow.parallel import cluster_pool, in_order
from latflow.parts import utterances_of

BATCH_CUTS, BATCH_SECONDS = 16, 60.0  # a batch ends with either


@dataclass(frozen=True)
class Outcome:
    """One utterance: its features [T, D], or why there are none."""

    cut: MonoCut
    features: np.ndarray | None
    reason: str = ""


def extract_features(
    cuts: str | Path,
    out_dir: str | Path,
    *,
    options: Extraction,
    threads: int,
    max_skipped_fraction: float,
    volumes: bool = False,
    part: str | None = None,
) -> None:
    """Compute the features of a split and store them.

    Writes a `FeatureStore`, whose `meta.json` names extractor, sample rate and options,
    and `ledger.jsonl`. A part of the split is written alike, to be joined with others
    (`latflow.features.joining`).

    Args:
        cuts: the split's `cuts.jsonl.gz`, sorted by id.
        out_dir: replaced as a whole, or left as it was on an error.
        options: front end and sample rate.
        max_skipped_fraction: share of utterances that may be skipped (unreadable,
            empty, shorter than a frame).
        volumes: whether samples are multiplied by the volumes that `perturb_corpus`
            drew, where it made the split.
        part: the part of the split to compute (`latflow.parts`); None for all of it.

    Raises:
        UserError: an audio file is missing, too many utterances had to be skipped,
            sample rates differ, options do not fit the rate, or the disk is full.
    """
    source, extractor = prepare(cuts, options)
    total = num_cuts = count_cuts(cuts)
    if part is not None:
        wanted = _numbers_of(part, cuts)
        source = (cut for number, cut in enumerate(source) if number in wanted)
        total = len(wanted)
    ledger = Ledger("extract_features")
    work = partial(_compute_all, extractor=extractor, options=options, volumes=volumes)
    with (
        atomic_directory(out_dir) as folder,
        cluster_pool(threads) as (pool, number),
        FrameWriter(
            folder,
            kind=FeatureStore,
            dim=extractor.dim * len(options.channels or [0]),
            frame_shift=extractor.frame_shift,
            meta=_facts(extractor, options),
        ) as writer,
    ):
        results = in_order(pool, work, _batches(source), ahead=2 * number)
        outcomes = itertools.chain.from_iterable(results)
        for outcome in progress(outcomes, "extract features", total=total):
            cut, features = outcome.cut, outcome.features
            if features is None:
                ledger.record(cut.id, outcome.reason)
            else:
                writer.append(cut.id, speaker_of(cut), text_of(cut), features)
        # A part alone ends the run where it has too many for the whole split.
        ledger.check(num_cuts, max_skipped_fraction=max_skipped_fraction)
        ledger.write(folder / "ledger.jsonl")


def _facts(extractor: Extractor, options: Extraction) -> dict[str, Any]:
    """Return the description of a store's features."""
    return {
        "type": extractor.name,
        "sample_rate": extractor.sample_rate,
        "snip_edges": extractor.geometry.snip_edges,
        "extraction": options.extraction.values(),
    }


def _numbers_of(part: str, cuts: str | Path) -> set[int]:
    milliseconds = [round(1000 * cut.duration) for cut in read_cuts(cuts)]
    begin = np.concatenate([[0], np.cumsum(milliseconds, dtype=np.int64)])
    return set(utterances_of(part, begin).tolist())


def prepare(
    path: str | Path, options: Extraction
) -> tuple[Iterator[MonoCut], Extractor]:
    """Return the cuts at the sample rate of the features, and the extractor.

    Raises:
        UserError: there are no cuts, or options do not fit their sample rate.
    """
    cuts = read_cuts(path)
    first = next(cuts, None)
    if first is None:
        raise UserError(
            "holds no utterances", file=path, remedy="check the corpus settings"
        )
    extractor, may_resample = extractor_of(options, int(first.sampling_rate))
    all_cuts = at_rate(
        itertools.chain([first], cuts),
        extractor.sample_rate,
        may_resample=may_resample,
    )
    return all_cuts, extractor


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


def _compute_all(
    cuts: Sequence[MonoCut],
    extractor: Extractor,
    options: Extraction,
    *,
    volumes: bool,
) -> list[Outcome]:
    """Compute the features of a batch, in a worker's thread."""
    return [_compute(cut, extractor, options, volumes=volumes) for cut in cuts]


def _compute(
    cut: MonoCut,
    extractor: Extractor,
    options: Extraction,
    *,
    volumes: bool,
) -> Outcome:
    """Read one utterance and compute its features."""
    repeat = options.single_channel == "repeat"
    wave = samples_or_reason(cut, options.channels, repeat=repeat)
    if isinstance(wave, str):
        return Outcome(cut, None, wave)
    if volumes:
        wave = wave * np.float32(volume_of(cut))
    if not np.isfinite(wave).all():
        return Outcome(cut, None, f"{file_of(cut)}: samples that are not numbers")
    try:
        features = extractor.extract_utterance(wave, zlib.crc32(cut.id.encode()))
    except ExtractionError as error:
        return Outcome(cut, None, f"{file_of(cut)}: {error.what}")
    if len(features) == 0:
        milliseconds = 1000 * wave.shape[-1] / cut.sampling_rate
        reason = f"{file_of(cut)}: {milliseconds:.1f} ms are too short for one frame"
        return Outcome(cut, None, reason)
    return Outcome(cut, features)


@dataclass
class KaldiFrontEndConfig:
    """Settings of the extractors: the front end's options and the sample rate.

    Attributes:
        sampling_rate: Hz.
        options: see `latflow.features.options`.
    """

    sampling_rate: int = 16000
    options: FrontEndOptions = field(default_factory=FrontEndOptions)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "sampling_rate": self.sampling_rate,
            "options": self.options.values(),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> KaldiFrontEndConfig:
        """Make the settings of plain values."""
        return KaldiFrontEndConfig(
            data["sampling_rate"], FrontEndOptions(**data["options"])
        )


class KaldiExtractor(FeatureExtractor):
    """Base of the extractors; `extract` may run in several threads at once.

    Args:
        config: settings; None for those of the type with a frame for each frame shift
            (`snip_edges: false`), by which Lhotse counts frames.

    Raises:
        ValueError: the settings are of another type.
    """

    name: str  # pyright: ignore[reportIncompatibleVariableOverride]
    config_type = KaldiFrontEndConfig
    config: KaldiFrontEndConfig

    def __init__(self, config: KaldiFrontEndConfig | None = None) -> None:
        kind = self.name.removeprefix(OURS)
        if config is None:
            options = FrontEndOptions.model_validate(
                {"type": kind, "snip_edges": False}
            )
            config = KaldiFrontEndConfig(options=options)
        if config.options.type != kind:
            raise ValueError(f"options of {config.options.type} for {self.name}")
        super().__init__(config=config)
        self.front_end = KaldiFrontEnd(config.options, config.sampling_rate)

    @property
    def sample_rate(self) -> int:
        """Sample rate, Hz."""
        return self.config.sampling_rate

    @property
    def geometry(self) -> FrameGeometry:
        """Position of frames in the samples."""
        return self.front_end.geometry

    @property
    def frame_shift(self) -> float:
        """Time from one frame to the next, seconds."""
        return self.front_end.frame_shift

    @property
    def dim(self) -> int:
        """Features a frame of one channel."""
        return self.front_end.dim

    def feature_dim(self, sampling_rate: int) -> int:  # noqa: ARG002 - Lhotse's form
        """Return the features per frame."""
        return self.front_end.dim

    def extract(
        self, samples: np.ndarray | torch.Tensor, sampling_rate: int
    ) -> np.ndarray:
        """Compute the features of one signal.

        Without an utterance's id, dither is seeded by the samples themselves.

        Args:
            samples: [L] or [1, L], in [-1, 1).
            sampling_rate: must be the configured one.

        Returns:
            float32 [T, D].

        Raises:
            ValueError: another sample rate, or several channels.
        """
        if sampling_rate != self.config.sampling_rate:
            raise ValueError(f"{sampling_rate} Hz, not {self.config.sampling_rate} Hz")
        wave = np.atleast_2d(np.asarray(samples, np.float32))
        if len(wave) != 1:
            raise ValueError(f"{len(wave)} channels, not one")
        return self.extract_utterance(wave[0], zlib.crc32(wave.tobytes()))

    def extract_utterance(self, wave: np.ndarray, key: int) -> np.ndarray:
        """Compute the features of one utterance, float32 [T, D] or [T, C D].

        Args:
            wave: [L] or, of several channels, [C, L], in [-1, 1).
            key: with `dither_seed` it chooses the dither: the CRC-32 of the id.
        """
        options = self.config.options
        noisy = dither(wave, options.dither, options.dither_seed, key)
        channels = [self.front_end.extract(one) for one in np.atleast_2d(noisy)]
        return channels[0] if wave.ndim == 1 else np.concatenate(channels, axis=1)


@register_extractor
class KaldiMfcc(KaldiExtractor):
    """MFCC with Kaldi's numbers."""

    name = "latflow-mfcc"


@register_extractor
class KaldiFbank(KaldiExtractor):
    """Log-mel energies with Kaldi's numbers; Lhotse can mix them without the audio."""

    name = "latflow-fbank"

    @staticmethod
    def mix(
        features_a: np.ndarray, features_b: np.ndarray, energy_scaling_factor_b: float
    ) -> np.ndarray:
        """Log of the sum of both signals' energies, the second scaled."""
        total = np.exp(features_a) + energy_scaling_factor_b * np.exp(features_b)
        return np.log(np.maximum(ENERGY_FLOOR, total))

    @staticmethod
    def compute_energy(features: np.ndarray) -> float:
        """Sum of the energies of all frames and filters."""
        return float(np.sum(np.exp(features)))

    @staticmethod
    def scale(features: np.ndarray, energy_scaling_factor: float) -> np.ndarray:
        """Return the features of the signal with its energy scaled."""
        return features + np.log(energy_scaling_factor)


@register_extractor
class Waveform(KaldiExtractor):
    """The unchanged samples of each window."""

    name = "latflow-waveform"


_EXTRACTORS: dict[str, type[KaldiExtractor]] = {
    "mfcc": KaldiMfcc,
    "fbank": KaldiFbank,
    "waveform": Waveform,
}


#: Computes the features of utterances.
Extractor: TypeAlias = KaldiExtractor | LhotseExtractor


def make_extractor(options: FrontEnd, sample_rate: int) -> Extractor:
    """Make the extractor of the options' type.

    Raises:
        UserError: the options do not fit the sample rate, or are of an extractor that
            cannot be had.
    """
    if isinstance(options, LhotseFrontEndOptions):
        return LhotseExtractor(options, sample_rate)
    config = KaldiFrontEndConfig(sample_rate, options)
    return _EXTRACTORS[options.type](config)


def extractor_of(options: Extraction, recorded_rate: int) -> tuple[Extractor, bool]:
    """Return the extractor of a split, and whether recordings may be resampled.

    Where no sample rate is configured, the recordings' is taken, and binds all; of
    Lhotse's extractors their own.

    Args:
        options: of the features.
        recorded_rate: sample rate of the first recording, Hz.

    Raises:
        UserError: see `make_extractor`.
    """
    rate = options.sample_rate
    if isinstance(options, LhotseFrontEndOptions):
        return LhotseExtractor(options.front_end, rate), True
    return make_extractor(options.front_end, rate or recorded_rate), rate is not None


def on_device(
    extractor: KaldiExtractor,
    waves: Sequence[tuple[np.ndarray, int]],
) -> list[np.ndarray]:
    """Compute the features of several utterances in one pass of the front end.

    Args:
        extractor: works where the constants of its front end are.
        waves: samples of each utterance, [L] or [C, L], and the key of its dither.

    Returns:
        float32 [T, D] of each utterance.
    """
    if not waves:
        return []
    front_end, options = extractor.front_end, extractor.config.options
    rows: list[np.ndarray] = []
    for wave, key in waves:
        noisy = dither(wave, options.dither, options.dither_seed, key)
        rows += [*np.atleast_2d(noisy)]
    lengths = torch.tensor([len(row) for row in rows])
    padded = torch.zeros(len(rows), int(lengths.max()))
    for i, row in enumerate(rows):
        padded[i, : len(row)] = torch.from_numpy(row)
    with torch.no_grad():
        features = front_end(padded.to(front_end.window.device), lengths).cpu().numpy()
    counts = [front_end.num_frames(wave.shape[-1]) for wave, _ in waves]
    channels = features.reshape(len(waves), -1, *features.shape[1:])
    return [
        np.concatenate([*one[:, :count]], axis=1)
        for one, count in zip(channels, counts, strict=True)
    ]
