"""Settings of the acoustic front end, and where its frames lie in the samples.

Names follow Kaldi's `FrameExtractionOptions`, `MelBanksOptions`, `MfccOptions` and
`FbankOptions`; the defaults are those of `workflow/schemas/features.yaml`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from latflow.errors import UserError

NUM_CEPS, CEPSTRAL_LIFTER = 13, 22.0  # Kaldi's defaults for MFCC

FeatureType = Literal["mfcc", "fbank"]
WindowType = Literal["povey", "hamming", "hanning", "blackman", "sine", "rectangular"]


@dataclass(frozen=True)
class FrontEndOptions:
    """What to compute; the sample rate is given beside it.

    Attributes:
        type: `mfcc` or `fbank` (log-mel energies).
        num_mel_bins: triangular filters, >= 3.
        num_ceps: cepstral coefficients with C0, 1..num_mel_bins (MFCC only).
        low_freq: lower edge of the lowest filter, Hz.
        high_freq: upper edge of the highest filter, Hz; <= 0 counts down from Nyquist.
        frame_length_ms: length of the window, ms.
        frame_shift_ms: from one window to the next, ms.
        preemphasis: y[i] = x[i] - preemphasis x[i - 1], 0..1.
        window_type: shape of the window.
        use_energy: MFCC: the frame's log energy takes the place of C0; fbank: it is
            put in front. It is that of the window before pre-emphasis.
        cepstral_lifter: Q of the weights 1 + Q/2 sin(pi n / Q); 0 for none (MFCC only).
        dither: standard deviation of the white noise added to the samples, in units of
            a 16-bit sample.
        dither_seed: chooses the noise, together with the utterance's id.
        snip_edges: True: windows lie wholly inside the signal; False: one window per
            frame shift, and the signal is reflected at its ends.
    """

    type: FeatureType = "mfcc"
    num_mel_bins: int = 23
    num_ceps: int = NUM_CEPS
    low_freq: float = 20.0
    high_freq: float = 0.0
    frame_length_ms: float = 25.0
    frame_shift_ms: float = 10.0
    preemphasis: float = 0.97
    window_type: WindowType = "povey"
    use_energy: bool = False
    cepstral_lifter: float = CEPSTRAL_LIFTER
    dither: float = 0.0
    dither_seed: int = 0
    snip_edges: bool = True

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> FrontEndOptions:
        """Take the front end's keys out of the `features` section of a configuration.

        `num_ceps` and `cepstral_lifter` may be null: then they are Kaldi's defaults.

        Raises:
            UserError: a key of MFCC is set for another type, or num_ceps is too large.
        """
        names = {field.name for field in fields(cls)}
        values = {key: config[key] for key in names & config.keys()}
        for key in ("num_ceps", "cepstral_lifter"):
            if values.get(key) is None:
                values.pop(key, None)
            elif config["type"] != "mfcc":
                raise UserError(
                    f"configuration features.{key} belongs to type mfcc, "
                    f"not {config['type']}",
                    remedy=f"remove {key}, or set features.type: mfcc",
                )
        options = cls(**values)
        if options.type == "mfcc" and options.num_ceps > options.num_mel_bins:
            raise UserError(
                f"configuration features.num_ceps: {options.num_ceps} is more than "
                f"num_mel_bins, {options.num_mel_bins}",
                remedy="lower num_ceps or raise num_mel_bins",
            )
        return options

    @property
    def dim(self) -> int:
        """Features a frame, D."""
        if self.type == "mfcc":
            return self.num_ceps
        return self.num_mel_bins + int(self.use_energy)


@dataclass(frozen=True)
class FrameGeometry:
    """Where frames lie in the samples.

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
        """Length of the Fourier transform: the next power of two."""
        return 1 << (self.length - 1).bit_length()

    def num_frames(self, num_samples: int) -> int:
        """Frames of a whole signal."""
        if not self.snip_edges:
            return (num_samples + self.shift // 2) // self.shift
        if num_samples < self.length:
            return 0
        return 1 + (num_samples - self.length) // self.shift

    def num_ready_frames(self, num_samples: int) -> int:
        """Frames that no later sample can change, of a signal that may go on."""
        reach = num_samples - self.first_sample(0) - self.length
        ready = 0 if reach < 0 else 1 + reach // self.shift
        return min(ready, self.num_frames(num_samples))

    def first_sample(self, frame: int) -> int:
        """First sample of a frame's window; negative where it reaches over the edge."""
        if self.snip_edges:
            return frame * self.shift
        return frame * self.shift + self.shift // 2 - self.length // 2

    def span(self, first_frame: int, num_frames: int) -> tuple[int, int]:
        """First sample, and the one after the last, of `num_frames` >= 1 frames."""
        first = self.first_sample(first_frame)
        return first, first + (num_frames - 1) * self.shift + self.length
