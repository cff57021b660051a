"""Options of the acoustic front end, and the place of its frames in the samples.

Names and defaults follow Kaldi's `FrameExtractionOptions`, `MelBanksOptions`,
`MfccOptions` and `FbankOptions`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from latflow.corpus.derived_options import Speed, VolumeRange
from latflow.errors import UserError
from latflow.features.cmvn_options import CmvnOptions, SpeakerCmvn
from latflow.options import (
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Options,
    Text,
    Unique,
)
from latflow.user_code import file_of

FeatureType = Literal["mfcc", "fbank", "waveform"]
WindowType = Literal["povey", "hamming", "hanning", "blackman", "sine", "rectangular"]


# Options of the front end that only some types read.
_MFCC = ("num_ceps", "cepstral_lifter")
_SPECTRAL = (
    "num_mel_bins",
    "low_freq",
    "high_freq",
    "preemphasis",
    "window_type",
    "use_energy",
)


class FrontEndOptions(Options):
    """Computation of features from samples, in the terms of compute-mfcc-feats.

    Energy is off, as in most Kaldi recipes.
    """

    is_meant_without_type = True
    type: FeatureType = "mfcc"
    """Mel-frequency cepstral coefficients (`mfcc`), log energies in mel filters
    (`fbank`), or the unchanged samples of each window, for networks with layers that
    compute features of them (`waveform`)."""
    num_mel_bins: Annotated[int, Field(ge=3, le=512)] = 23
    """Number of triangular mel filters (40 or 80 are usual for `fbank`)."""
    num_ceps: Annotated[int, Field(ge=1, le=512)] = 13
    """Number of cepstral coefficients with C0, at most num_mel_bins (`mfcc` only)."""
    low_freq: NonNegativeFloat = 20.0
    """Lower edge of the lowest mel filter, Hz."""
    high_freq: float = 0.0
    """Upper edge of the highest mel filter, Hz; 0 or less counts down from half the
    sample rate."""
    frame_length_ms: Annotated[float, Field(gt=0, le=1000)] = 25.0
    """Length of the analysis window, ms."""
    frame_shift_ms: Annotated[float, Field(gt=0, le=1000)] = 10.0
    """Time from one window to the next, ms (cut to a whole number of samples)."""
    preemphasis: Fraction = 0.97
    """Share of the previous sample that is subtracted from each sample."""
    window_type: WindowType = "povey"
    """Shape of the analysis window."""
    use_energy: bool = False
    """Let the log energy of the frame take the place of C0 (`mfcc`), or be put in front
    (`fbank`)."""
    cepstral_lifter: NonNegativeFloat = 22.0
    """Q of the liftering weights 1 + Q/2 sin(pi n / Q), 0 for none; for `mfcc` only."""
    dither: NonNegativeFloat = 1.0
    """Standard deviation of white noise added to the samples, in steps of a 16-bit
    sample; 0 adds none. Without it digital silence is like no other sound, and
    utterances that end in it may not be aligned."""
    dither_seed: NonNegativeInt = 0
    """Chooses the noise of dither, together with each utterance's id (of packages: the
    same for each segment)."""
    snip_edges: bool = True
    """true - windows lie wholly inside the signal (Kaldi's default); false - one frame
    for each frame shift, the signal being reflected at its ends (Lhotse's default)."""

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        """Refuse options of one type with another, and too many coefficients."""
        if self.type == "mfcc":
            if self.num_ceps > self.num_mel_bins:
                raise ValueError(
                    f"num_ceps: {self.num_ceps} is more than num_mel_bins, "
                    f"{self.num_mel_bins}"
                )
            return self
        for key in _MFCC if self.type == "fbank" else (*_MFCC, *_SPECTRAL):
            if getattr(self, key) != FrontEndOptions.model_fields[key].default:
                owner = "mfcc" if key in _MFCC else "mfcc or fbank"
                raise ValueError(f"{key} belongs to type {owner}, not {self.type}")
        return self

    @property
    def has_log_energies(self) -> bool:
        """Whether the features are log energies."""
        return self.type == "fbank"

    @property
    def dim(self) -> int:
        """Features a frame, D; of `waveform` it depends on the sample rate.

        Raises:
            ValueError: the type is `waveform`; see `KaldiFrontEnd.dim`.
        """
        if self.type == "waveform":
            raise ValueError("the samples of a window depend on the sample rate")
        if self.type == "mfcc":
            return self.num_ceps
        return self.num_mel_bins + int(self.use_energy)


class DeltasTransform(Options):
    """Time derivatives are appended (Kaldi's add-deltas)."""

    type: Literal["deltas"] = "deltas"
    order: Annotated[int, Field(ge=0, le=4)] = 2
    """Highest derivative."""
    window: Annotated[int, Field(ge=1, le=20)] = 2
    """Half width of the slope filter, frames."""


class SpliceTransform(Options):
    """Neighbouring frames are put beside each other (Kaldi's splice-feats)."""

    type: Literal["splice"] = "splice"
    left: Annotated[int, Field(ge=0, le=100)] = 4
    """Frames before."""
    right: Annotated[int, Field(ge=0, le=100)] = 4
    """Frames after."""


class NoTransform(Options):
    """Features are used unchanged."""

    type: Literal["none"] = "none"


TransformOptions = Annotated[
    DeltasTransform | SpliceTransform | NoTransform, Field(discriminator="type")
]


class LhotseFrontEndOptions(Options):
    """Features of one of Lhotse's extractors, or of a class of your own.

    See docs/network_data.md.
    """

    type: Literal["lhotse"] = "lhotse"
    extractor: Text
    """Name that Lhotse registers the extractor under, as `kaldi-fbank`,
    `kaldi-log-spectrogram`, `librosa-fbank` or `fbank`; or the location of a
    subclass of `lhotse.features.base.FeatureExtractor`: `module:Class`, or
    `folder/file.py:Class`."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Fields of the extractor's configuration (its `config_type`). Its `sampling_rate`
    follows `sample_rate`."""
    sample_range: Literal["unit", "int16"] = "unit"
    """Range of the samples that the extractor is given: `unit` is from -1 to 1, as
    Lhotse's extractors expect; `int16` from -32768 to 32767, as Kaldi's."""
    dither: NonNegativeFloat = 1.0
    """Standard deviation of white noise added to the samples, in steps of a 16-bit
    sample; 0 adds none. (Dither of the extractor's own would depend on the number of
    threads, and is refused.)"""
    dither_seed: NonNegativeInt = 0
    """Chooses the noise of dither, together with each utterance's id (of packages: the
    same for each segment)."""

    @property
    def is_own(self) -> bool:
        """Tell whether the extractor is a class of the user's, named by location."""
        return ":" in self.extractor

    @property
    def has_log_energies(self) -> bool:
        """Whether the features may be log energies."""
        return self.is_own or "fbank" in self.extractor or "log" in self.extractor

    @property
    def files(self) -> list[Path]:
        """The class's file, where the extractor is named by one."""
        return file_of(self.extractor) if self.is_own else []


FrontEnd = Annotated[
    FrontEndOptions | LhotseFrontEndOptions, Field(discriminator="type")
]


class AudioOptions(Options):
    """Audio that the features of a split are computed of."""

    sample_rate: Annotated[int, Field(ge=1000, le=192000)] | None = None
    """Sample rate that features are computed at, Hz; recordings with another one are
    resampled. null takes that of the recordings, which then must all have the same;
    type `lhotse` takes that of the extractor, and resamples."""
    channels: (
        Annotated[tuple[NonNegativeInt, ...], Field(min_length=1), Unique] | None
    ) = None
    """Channels of each recording whose features stand side by side in a frame, for
    networks that listen with several microphones; null takes the one channel of the
    utterance."""
    single_channel: Literal["refuse", "repeat"] = "refuse"
    """What recordings of one channel give where `channels` is set: they are refused, or
    `repeat` their channel instead of each."""


class ExtractionOptions(AudioOptions, FrontEndOptions):
    """Computation of the features of a split."""

    @property
    def front_end(self) -> FrontEndOptions:
        """Computation of the features of samples."""
        return self.part(FrontEndOptions)

    @property
    def extraction(self) -> ExtractionOptions:
        """Computation from the audio, without what follows."""
        return self.part(ExtractionOptions)


class LhotseExtractionOptions(AudioOptions, LhotseFrontEndOptions):
    """The same of features of Lhotse's extractors, or of a class of your own."""

    @property
    def front_end(self) -> LhotseFrontEndOptions:
        """Computation of the features of samples."""
        return self.part(LhotseFrontEndOptions)

    @property
    def extraction(self) -> LhotseExtractionOptions:
        """Computation from the audio, without what follows."""
        return self.part(LhotseExtractionOptions)


Extraction = Annotated[
    ExtractionOptions | LhotseExtractionOptions, Field(discriminator="type")
]


_Use = TypeVar(
    "_Use",
    bound="StreamOptions | LhotseStreamOptions | FeatureOptions | LhotseFeatureOptions",
)


def _check_level(options: _Use) -> _Use:
    """Refuse to take the level from what is no log energy."""
    if options.cmvn.type == "level" and not options.has_log_energies:
        raise ValueError(
            "cmvn: level is of log energies; take features of type fbank, or another "
            "type of cmvn"
        )
    return options


class NetworkUse(Options):
    """Features for networks: what is done with them."""

    cmvn: CmvnOptions = SpeakerCmvn()
    """Mean and variance normalization of the features when they are read."""
    stored: bool = True
    """Write features to the disk once; false = they are computed from the
    audio whenever they are read, in training, decoding and `latflow forward` (see
    docs/network_data.md). Then `cmvn` must be of `none`, `utterance`, `sliding` or
    `level`."""


class StreamOptions(NetworkUse, ExtractionOptions):
    """Features for networks, by name."""

    @model_validator(mode="after")
    def _check_cmvn(self) -> Self:
        """Refuse the normalization of samples."""
        if self.type == "waveform" and self.cmvn.type != "none":
            raise ValueError(
                f"cmvn: {self.cmvn.type} is for features; set {{type: none}} for type "
                "waveform"
            )
        return self


class LhotseStreamOptions(NetworkUse, LhotseExtractionOptions):
    """The same of one of Lhotse's extractors, or of a class of your own.

    See docs/network_data.md.
    """


Stream = Annotated[
    StreamOptions | LhotseStreamOptions,
    Field(discriminator="type"),
    AfterValidator(_check_level),
]


class PasteOptions(Options):
    """Features of several streams side by side in each frame (Kaldi's paste-feats)."""

    features: Annotated[tuple[Name, ...], Field(min_length=2), Unique]
    """Features, in the order in which they stand: two or more names of `nnet.features`
    (stored), `nnet.ivectors`, `nnet.hdf5` or GMM systems."""
    length_tolerance: NonNegativeInt = 2
    """Frames that these may differ by in an utterance; what some have more is cut off
    at its end."""


class GmmUse(Options):
    """Features of the GMM systems: what is done with them."""

    cmvn: CmvnOptions = SpeakerCmvn()
    """Mean and variance normalization of the features when they are read."""
    transform: TransformOptions = DeltasTransform()
    """Transform of neighbouring frames when features are read (nothing of it is
    stored)."""


class FeatureOptions(GmmUse, ExtractionOptions):
    """Acoustic features of the GMM systems.

    Computation from the samples, and what is done to frames when they are read:
    normalization, and a transform of neighbouring frames.
    """

    @model_validator(mode="after")
    def _check_gaussians(self) -> Self:
        """Refuse samples as features of Gaussians."""
        if self.type == "waveform":
            raise ValueError("type: waveform is for networks, in nnet.features")
        return self


class LhotseFeatureOptions(GmmUse, LhotseExtractionOptions):
    """The same of one of Lhotse's extractors, or of a class of your own.

    See docs/network_data.md.
    """


GmmFeatures = Annotated[
    FeatureOptions | LhotseFeatureOptions,
    Field(discriminator="type"),
    AfterValidator(_check_level),
]


class PerturbationDraws(Options):
    """Speed and volume of each utterance, drawn again in each pass over the data.

    Draws follow from the seed, the utterance's id and the pass. Labels follow the
    speed.
    """

    speeds: Annotated[tuple[Speed, ...], Field(min_length=1), Unique] = (0.9, 1.0, 1.1)
    """Speeds, factors of frequencies and of the inverse of durations; one is drawn,
    each as likely as the others. Other than 1 they are for type `ce` alone."""
    volume: VolumeRange | None = (0.125, 2.0)
    """Range that the volume, a factor of the samples, is drawn from (uniform); null
    leaves it."""


class OnTheFlyOptions(Options):
    """Computation of features during training, where they are not stored.

    (`stored: false` in `nnet.features`).
    """

    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads that read audio, and compute on `cpu`."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the front end; `cuda` computes a batch's utterances together."""
    cache_mb: NonNegativeInt = 500
    """Features that are kept in memory for their next use, MB; the longest unused go
    first."""


def padded_length(length: int) -> int:
    """Return the length of a window's Fourier transform: the next power of two."""
    return 1 << (length - 1).bit_length()


@dataclass(frozen=True)
class FrameGeometry:
    """Position of frames in the samples.

    Attributes:
        length: samples of a window.
        shift: samples from one window to the next.
        snip_edges: see `FrontEndOptions`.

    Source: Kaldi `feat/feature-window.cc:NumFrames`, `FirstSampleOfFrame`.
    """

    length: int
    shift: int
    snip_edges: bool

    @classmethod
    def of(cls, options: FrontEndOptions, sample_rate: int) -> FrameGeometry:
        """Count the samples of a window and of a shift, cut to whole ones as in Kaldi.

        Raises:
            UserError: less than two samples in a window, or none in a shift.
        """
        per_ms = sample_rate * 0.001
        length = int(per_ms * options.frame_length_ms)
        shift = int(per_ms * options.frame_shift_ms)
        if length < 2 or shift < 1:
            raise UserError(
                f"a window of {length} and a shift of {shift} samples are too short "
                f"at {sample_rate} Hz",
                remedy="raise features.frame_length_ms or features.frame_shift_ms",
            )
        return cls(length, shift, options.snip_edges)

    @property
    def padded_length(self) -> int:
        """Length of the Fourier transform."""
        return padded_length(self.length)

    def num_frames(self, num_samples: int) -> int:
        """Return the number of frames of a whole signal."""
        if not self.snip_edges:
            return (num_samples + self.shift // 2) // self.shift
        if num_samples < self.length:
            return 0
        return 1 + (num_samples - self.length) // self.shift

    def num_ready_frames(self, num_samples: int) -> int:
        """Count frames that no later sample of an ongoing signal can change."""
        reach = num_samples - self.first_sample(0) - self.length
        ready = 0 if reach < 0 else 1 + reach // self.shift
        return min(ready, self.num_frames(num_samples))

    def first_sample(self, frame: int) -> int:
        """Return the first sample of a frame's window; negative beyond the edge."""
        if self.snip_edges:
            return frame * self.shift
        return frame * self.shift + self.shift // 2 - self.length // 2

    def span(self, first_frame: int, num_frames: int) -> tuple[int, int]:
        """Return the first sample, and that after the last, of `num_frames` >= 1."""
        first = self.first_sample(first_frame)
        return first, first + (num_frames - 1) * self.shift + self.length
