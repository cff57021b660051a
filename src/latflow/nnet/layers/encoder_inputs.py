"""What pretrained encoders of speech read, made of windows of samples.

All leave padding out, so that a batch gives each sequence what it gets alone.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from latflow.nnet.layer import LayerError, Padded, Shape
from latflow.nnet.layers.spectral import (
    Mel,
    MelOptions,
    Stft,
    StftOptions,
    at_least_float32,
)

_RATE = 16000  # of encoders with their own front end, Hz
_WINDOW, _SHIFT = 400, 160  # of Whisper's spectra, samples
_FLOOR = 1e-10  # of Whisper's energies
_PAIR_EPSILON, _SAMPLE_EPSILON = 1e-7, 1e-7


def signal_of(values: Tensor, lengths: Tensor, shift: int) -> Tensor:
    """Put the signals together that windows were taken of.

    Args:
        values: [B, T, L], windows, zero beyond the ends.
        lengths: int64 [B], windows of each sequence, on the device of the values.
        shift: samples from one window to the next, at most L.

    Returns:
        [B, (T - 1) shift + L], zero beyond the ends.
    """
    rest = values.shape[2] - shift
    signal = functional.pad(values[:, :, :shift].flatten(1), (0, rest))
    if not rest:
        return signal
    last = (lengths - 1)[:, None, None].expand(-1, 1, values.shape[2])
    tails = values.gather(1, last)[:, 0, shift:]
    places = lengths[:, None] * shift + torch.arange(rest, device=values.device)
    return signal.scatter(1, places, tails)


def normalized_samples(signal: Tensor, count: Tensor) -> Tensor:
    """Bring each signal to mean 0 and variance 1.

    Args:
        signal: [B, L], zero beyond the ends.
        count: int64 [B], samples of each.

    Source: transformers `Wav2Vec2FeatureExtractor.zero_mean_unit_var_norm`.
    """
    beyond, number = beyond_ends(count, signal.shape[1]), count[:, None]
    signal = signal - signal.sum(1, keepdim=True) / number
    signal = signal.masked_fill(beyond, 0.0)
    variance = signal.square().sum(1, keepdim=True) / number
    return signal / (variance + _SAMPLE_EPSILON).sqrt()


class Frames(NamedTuple):
    """Frames that the sequences of a padded batch have within an encoder.

    Attributes:
        first: int64 [B], behind its first convolution.
        last: int64 [B], behind all of them.
    """

    first: Tensor
    last: Tensor


#: Of the pass that is under way in this thread; None where no sequence is padded.
FRAMES: ContextVar[Frames | None] = ContextVar("FRAMES", default=None)


class MaskedGroupNorm(nn.GroupNorm):
    """Group normalization over the frames that a sequence has, see `FRAMES`."""

    @classmethod
    def of(cls, norm: nn.GroupNorm) -> Self:
        """Return one with the parameters of another, whose groups have one channel.

        Raises:
            LayerError: they have more.
        """
        if norm.num_groups != norm.num_channels:
            raise LayerError("the encoder's groups of channels are not known")
        made = cls(norm.num_groups, norm.num_channels, norm.eps)
        made.weight, made.bias = norm.weight, norm.bias
        return made

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [B, D, T]."""
        frames = FRAMES.get()
        if frames is None:
            return super().forward(input)
        beyond = beyond_ends(frames.first, input.shape[2])[:, None, :]
        number = frames.first[:, None, None]
        values = at_least_float32(input).masked_fill(beyond, 0.0)
        values = values - values.sum(2, keepdim=True) / number
        variance = values.masked_fill(beyond, 0.0).square().sum(2, keepdim=True)
        values = values * (variance / number + self.eps).rsqrt()
        found = values * self.weight[:, None] + self.bias[:, None]
        return found.to(input.dtype)


def zeroed(_layer: nn.Module, _inputs: object, found: Tensor) -> Tensor:
    """Set what a layer gives, [B, D, N], to zero beyond the ends: a hook of it."""
    frames = FRAMES.get()
    if frames is None:
        return found
    return found.masked_fill(beyond_ends(frames.last, found.shape[2])[:, None, :], 0.0)


def beyond_ends(lengths: Tensor, total: int) -> Tensor:
    """Return which of `total` frames are beyond each sequence's end, bool [B, T]."""
    return torch.arange(total, device=lengths.device) >= lengths[:, None]


class MelPairs(nn.Module):
    """Log-mel energies, normalized over each sequence, of two frames side by side.

    The last frame of an odd number is left out.

    Source: transformers `SeamlessM4TFeatureExtractor` (w2v-BERT 2.0).
    """

    def __init__(self, shape: Shape, sample_rate: int) -> None:
        super().__init__()
        _check_rate(sample_rate)
        self.spectra = Stft(shape, StftOptions())
        options = MelOptions(sample_rate=sample_rate, num_bins=80)
        self.mel = Mel(self.spectra.shape, options)

    def forward(self, batch: Padded, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return [B, ceil(T / 2), 160], and the pairs of each sequence, int64 [B].

        Args:
            batch: windows of samples.
            lengths: those of the batch, on its device.
        """
        found = self.mel(self.spectra(batch))
        values, number = found.values, lengths[:, None, None]
        mean = values.sum(1, keepdim=True) / number
        centred = found.with_values(values - mean).values
        freedom = (number - 1).clamp(min=1)
        variance = centred.square().sum(1, keepdim=True) / freedom
        values = centred / (variance + _PAIR_EPSILON).sqrt()
        values = functional.pad(values, (0, 0, 0, values.shape[1] % 2))
        return values.unflatten(1, (-1, 2)).flatten(2), (lengths // 2).clamp(min=1)


class WhisperSpectra(nn.Module):
    """Log-mel spectra of a fixed number of frames, silence behind the end.

    Args:
        bins: mel filters.
        frames: of the result.
        sample_rate: of the signals, Hz.

    Attributes:
        num_samples: of a signal at most.

    Source: transformers `WhisperFeatureExtractor`; Radford et al. 2022, section 2.2.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, bins: int, frames: int, sample_rate: int) -> None:
        super().__init__()
        _check_rate(sample_rate)
        self.num_samples = frames * _SHIFT
        window = torch.hann_window(_WINDOW)
        self.register_buffer("window", window, persistent=False)
        filters = torch.from_numpy(slaney_filters(bins, _WINDOW, sample_rate))
        self.register_buffer("filters", filters.float(), persistent=False)

    def forward(self, signal: Tensor) -> Tensor:
        """Return [B, bins, frames] of signals [B, L], zero beyond the ends."""
        with torch.autocast(signal.device.type, enabled=False):
            signal = at_least_float32(signal)
            signal = functional.pad(signal, (0, self.num_samples - signal.shape[1]))
            window, filters = (x.to(signal.dtype) for x in (self.window, self.filters))
            lines = torch.stft(
                signal, _WINDOW, _SHIFT, window=window, return_complex=True
            )
            energies = filters @ lines[..., :-1].abs().square()
            logs = energies.clamp(min=_FLOOR).log10()
            logs = logs.maximum(logs.amax((1, 2), keepdim=True) - 8.0)
            return (logs + 4.0) / 4.0


def slaney_filters(bins: int, length: int, sample_rate: int) -> np.ndarray:
    """Return triangles of equal area on the mel scale of Slaney's toolbox.

    Below 1 kHz the scale is linear, 200/3 Hz a mel; above, 27 mels are a factor of 6.4.

    Args:
        bins: M.
        length: of the analysis window, samples.
        sample_rate: Hz; the last triangle ends at half of it.

    Returns:
        float64 [M, length / 2 + 1].

    Source: Slaney 1998, "Auditory toolbox", technical report 1998-010.
    """
    edge, step = 1000.0, np.log(6.4) / 27.0

    def mel(hertz: float) -> float:
        above = 15.0 + np.log(max(hertz, edge) / edge) / step
        return hertz * 3.0 / 200.0 if hertz < edge else above

    mels = np.linspace(0.0, mel(sample_rate / 2), bins + 2)
    above = edge * np.exp(step * (mels - 15.0))
    centres = np.where(mels < 15.0, mels * 200.0 / 3.0, above)
    lines = np.linspace(0.0, sample_rate / 2, length // 2 + 1)
    distances, widths = centres[:, None] - lines, np.diff(centres)[:, None]
    rising, falling = -distances[:-2] / widths[:-1], distances[2:] / widths[1:]
    triangles = np.maximum(0.0, np.minimum(rising, falling))
    return triangles * (2.0 / (centres[2:] - centres[:-2]))[:, None]


def _check_rate(sample_rate: int) -> None:
    """Refuse another sample rate than that of all known front ends."""
    if sample_rate != _RATE:
        raise LayerError(f"sample_rate: the encoder is for {_RATE} Hz")
