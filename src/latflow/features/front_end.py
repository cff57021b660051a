"""The acoustic front end: samples to MFCC or log-mel frames with Kaldi's numbers.

Of type `waveform` a frame is the window of samples itself, as it is: networks then
compute from it what they need (`latflow.nnet.layers.spectral`).

One torch module serves every use. `forward` takes padded batches and lets gradients
through (on-the-fly features); `extract` takes one signal of any length in bounded
memory (offline); `StreamingFrontEnd` takes a signal that arrives in pieces. All three
go through `KaldiFrontEnd.frame_features`.

Signals come as Lhotse and soundfile give them, in [-1, 1); the module scales them by
32768, since Kaldi reads 16-bit samples as whole numbers.

Lhotse's own Kaldi layers agree with this module (tests/golden/test_features_front_end)
where each can do the same. They are not used because they reflect a padded batch at the
padding and not at each signal's end, frame a signal at one place before they know it
whole, and floor energies on another scale.

Constants are computed in float64. Frequencies are in Hz, mel as in HTK and Kaldi:
mel(f) = 1127 ln(1 + f / 700).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from latflow.errors import UserError
from latflow.features.dither import dither
from latflow.features.options import FrameGeometry, FrontEndOptions, padded_length

SAMPLE_SCALE = 32768.0
ENERGY_FLOOR = float(np.finfo(np.float32).eps)  # Kaldi's floor before a logarithm
Domain: TypeAlias = Literal["mel", "stft"]
TILE_FRAMES = 512  # frames worked on together offline: fits the second-level cache


class KaldiFrontEnd(nn.Module):
    """MFCC, log-mel energies, or windows of samples.

    A frame: remove the mean, pre-emphasize, window, power spectrum, mel filters, floor
    at 1.2e-7, natural logarithm; for MFCC a cosine transform and liftering.
    Deterministic: dither is added to samples beforehand, see
    `latflow.features.dither`.

    Args:
        sample_rate: of the signals, Hz.
        dtype: of the constants; signals must have it too.

    Raises:
        UserError: the options do not fit the sample rate.

    Source: Kaldi `feat/feature-window.cc:ProcessWindow`, `feat/feature-mfcc.cc`,
    `feat/feature-fbank.cc`. The constants are computed in float64 (Kaldi: float32).
    """

    window: Tensor
    mel: Tensor
    cepstral: Tensor

    def __init__(
        self,
        options: FrontEndOptions,
        sample_rate: int,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.options = options
        self.sample_rate = sample_rate
        self.geometry = FrameGeometry.of(options, sample_rate)
        window = window_function(options.window_type, self.geometry.length)
        window *= SAMPLE_SCALE  # a power of two: weighting later rounds the same
        if options.type == "waveform":
            tensor = torch.as_tensor(window, dtype=dtype)  # for its device and type
            self.register_buffer("window", tensor, persistent=False)
            return
        mel = mel_filters(
            options.num_mel_bins,
            self.geometry.padded_length,
            sample_rate,
            low_freq=options.low_freq,
            high_freq=options.high_freq,
        )
        cepstral = cepstral_matrix(
            options.num_mel_bins, options.num_ceps, options.cepstral_lifter
        )
        for name, constant in (
            ("window", window),
            ("mel", mel),
            ("cepstral", cepstral),
        ):
            tensor = torch.as_tensor(constant, dtype=dtype)
            self.register_buffer(name, tensor, persistent=False)

    @property
    def dim(self) -> int:
        """Features a frame, D; of type `waveform` the samples of a window."""
        if self.options.type == "waveform":
            return self.geometry.length
        return self.options.dim

    @property
    def frame_shift(self) -> float:
        """Time from one frame to the next, seconds (a whole number of samples)."""
        return self.geometry.shift / self.sample_rate

    def num_frames(self, num_samples: int) -> int:
        """Return the frames of a signal of this many samples."""
        return self.geometry.num_frames(num_samples)

    def forward(self, waves: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the features of a padded batch; differentiable in `waves`.

        Args:
            waves: [B, L], in [-1, 1); what lies beyond a signal's length is ignored.
            lengths: int [B], samples of each signal, <= L; all L if absent.

        Returns:
            [B, T, D] with T the most frames of a signal; frames past a signal's own
            `num_frames` are zero.
        """
        if lengths is None:
            lengths = torch.full((len(waves),), waves.shape[1], device=waves.device)
        counts = torch.tensor([self.num_frames(n) for n in lengths.tolist()])
        most = int(counts.max()) if len(counts) else 0
        if most == 0:
            return waves.new_zeros((len(waves), 0, self.dim))
        first, last = self.geometry.span(0, most)
        positions = torch.arange(first, last, device=waves.device)
        index = _reflect(positions, lengths.to(waves.device)[:, None])
        features = self.frame_features(waves.gather(1, index))
        frame = torch.arange(most, device=waves.device)
        is_inside = frame < counts.to(waves.device)[:, None]
        return torch.where(is_inside[:, :, None], features, features.new_zeros(()))

    @torch.no_grad()
    def extract(self, wave: np.ndarray | Tensor) -> np.ndarray:
        """Compute the features of one signal, memory apart from them bounded.

        Args:
            wave: [L], in [-1, 1).

        Returns:
            float32 (or the module's type) [T, D]; T may be 0.
        """
        signal = torch.as_tensor(wave, dtype=self.window.dtype).contiguous()
        out = torch.empty((self.num_frames(len(signal)), self.dim), dtype=signal.dtype)
        for begin, end, samples in self._tiles(signal):
            out[begin:end] = self.frame_features(samples)
        return out.numpy()

    @torch.no_grad()
    def powers(self, wave: np.ndarray | Tensor, domain: Domain) -> np.ndarray:
        """Compute the power of one signal in the frames of its features.

        Args:
            wave: [L], in [-1, 1).
            domain: `mel`: in the mel filters; `stft`: at the lines of the spectrum.

        Returns:
            float32 (or the module's type) [T, `num_bins`].
        """
        signal = torch.as_tensor(wave, dtype=self.window.dtype).contiguous()
        shape = self.num_frames(len(signal)), self.num_bins(domain)
        out = torch.empty(shape, dtype=signal.dtype)
        for begin, end, samples in self._tiles(signal):
            windows = self._windows(samples)
            windows = windows - windows.mean(-1, keepdim=True)
            power = power_spectrum(windows, self.window, self.options.preemphasis)
            out[begin:end] = power @ self.mel if domain == "mel" else power
        return out.numpy()

    def ratio_mask(
        self, speech: np.ndarray, rest: np.ndarray, domain: Domain, *, exponent: float
    ) -> np.ndarray:
        """Return the ideal ratio mask (S / (S + R)) ** exponent, from 0 to 1.

        S and R are the powers of both signals in a bin; without a rest the mask is 1.

        Args:
            speech: float32 [L], what is wanted.
            rest: float32 [L], all else.
            domain: as for `powers`.
            exponent: 0.5 in the source.

        Returns:
            float32 [T, `num_bins`].

        Source: Wang, Narayanan and Wang 2014, "On training targets for supervised
        speech separation".
        """
        wanted = self.powers(speech, domain).astype(np.float64)
        other = self.powers(rest, domain)
        share = np.ones_like(wanted)
        np.divide(wanted, wanted + other, out=share, where=other > 0)
        return (share**exponent).astype(np.float32)

    def _windows(self, samples: Tensor) -> Tensor:
        """Cut samples [..., (T - 1) shift + length] into windows [..., T, length]."""
        return samples.unfold(-1, self.geometry.length, self.geometry.shift)

    def num_bins(self, domain: Domain) -> int:
        """Return the mel filters, or the lines of the spectrum."""
        is_mel = domain == "mel"
        lines = self.geometry.padded_length // 2 + 1
        return self.options.num_mel_bins if is_mel else lines

    def _tiles(self, signal: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield ranges of frames, (first, last + 1), and the samples that they see."""
        total = self.num_frames(len(signal))
        for begin in range(0, total, TILE_FRAMES):
            end = min(begin + TILE_FRAMES, total)
            yield begin, end, take(signal, *self.geometry.span(begin, end - begin))

    def frame_features(self, samples: Tensor) -> Tensor:
        """Cut samples into windows and compute their features.

        Args:
            samples: [..., (T - 1) shift + length], edges already reflected.

        Returns:
            [..., T, D].
        """
        windows = self._windows(samples)
        if self.options.type == "waveform":
            return windows
        windows = windows - windows.mean(-1, keepdim=True)
        power = power_spectrum(windows, self.window, self.options.preemphasis)
        log_mel = (power @ self.mel).clamp(min=ENERGY_FLOOR).log()
        is_mfcc = self.options.type == "mfcc"
        features = log_mel @ self.cepstral if is_mfcc else log_mel
        if not self.options.use_energy:
            return features
        energy = (windows * SAMPLE_SCALE).square().sum(-1, keepdim=True)
        energy = energy.clamp(min=ENERGY_FLOOR).log()
        return torch.cat([energy, features[..., int(is_mfcc) :]], -1)


def spectrum(windows: Tensor, weights: Tensor, preemphasis: float) -> Tensor:
    """Return the Fourier transform of windows, pre-emphasized and weighted.

    The first sample of a window counts as its own predecessor. Product and difference
    are rounded one after the other, as in Kaldi: without that, quiet mel filters differ
    from Kaldi's by more than 1e-3.

    Args:
        windows: [..., L], their means removed.
        weights: [L].
        preemphasis: share of the previous sample that is subtracted.

    Returns:
        complex [..., N / 2 + 1], N the next power of two of L.
    """
    length = windows.shape[-1]
    later = windows[..., 1:] - preemphasis * windows[..., :-1]
    padded = nn.functional.pad(later * weights[1:], (1, padded_length(length) - length))
    padded[..., 0] = windows[..., 0] * ((1 - preemphasis) * weights[0])
    return torch.fft.rfft(padded)


def power_spectrum(windows: Tensor, weights: Tensor, preemphasis: float) -> Tensor:
    """Return the squared magnitudes of `spectrum`, [..., N / 2 + 1]."""
    transform = spectrum(windows, weights, preemphasis)
    return transform.real.square() + transform.imag.square()


def take(signal: Tensor, first: int, last: int, *, offset: int = 0) -> Tensor:
    """Return samples first..last-1 of a signal, reflected beyond its ends.

    Args:
        signal: [L], the signal from its sample `offset` on; it must hold every sample
            that is asked for, reflected ones too.
        first: may be negative.
        last: may lie beyond the end, offset + L.
        offset: samples that are no longer held.
    """
    end = offset + len(signal)
    if first >= offset and last <= end:
        return signal[first - offset : last - offset]
    positions = torch.arange(first, last)
    return signal[_reflect(positions, torch.tensor(end)) - offset]


def _reflect(positions: Tensor, length: Tensor) -> Tensor:
    """Return indices into signals of `length` samples, mirrored at both ends.

    Position -1 is sample 0, position L is sample L - 1, and so on to and fro.

    Source: Kaldi `feat/feature-window.cc:ExtractWindow`.
    """
    length = length.clamp(min=1)
    folded = positions.remainder(2 * length)
    return torch.minimum(folded, 2 * length - 1 - folded)


BLACKMAN_COEFFICIENT = 0.42


def window_function(kind: str, length: int) -> np.ndarray:
    """Return the window's weights, float64 [length], symmetric.

    Source: Kaldi `feat/feature-window.cc:FeatureWindowFunction`.
    """
    angle = 2 * np.pi * np.arange(length) / (length - 1)
    match kind:
        case "hanning":
            return 0.5 - 0.5 * np.cos(angle)
        case "sine":
            return np.sin(0.5 * angle)
        case "hamming":
            return 0.54 - 0.46 * np.cos(angle)
        case "povey":  # like Hamming's, but zero at the ends
            return (0.5 - 0.5 * np.cos(angle)) ** 0.85
        case "rectangular":
            return np.ones(length)
        case "blackman":
            rest = 0.5 - BLACKMAN_COEFFICIENT
            return BLACKMAN_COEFFICIENT - 0.5 * np.cos(angle) + rest * np.cos(2 * angle)
    raise ValueError(f"unknown window {kind!r}")


def mel(frequency: np.ndarray | float) -> np.ndarray:
    """Return the mel of a frequency in Hz."""
    return 1127.0 * np.log1p(np.asarray(frequency, np.float64) / 700.0)


def mel_edges(
    num_bins: int, sample_rate: int, *, low_freq: float, high_freq: float
) -> np.ndarray:
    """Return the outer edges and the centres of mel filters, see `mel_filters`.

    Returns:
        float64 [M + 2], ascending, mel.

    Raises:
        UserError: the outer edges are out of order or beyond Nyquist.
    """
    nyquist = 0.5 * sample_rate
    top = high_freq if high_freq > 0 else nyquist + high_freq
    if not 0 <= low_freq < top <= nyquist:
        raise UserError(
            f"mel filters from {low_freq:g} Hz to {top:g} Hz do not fit between 0 and "
            f"{nyquist:g} Hz, half the sample rate",
            remedy="set features.low_freq and features.high_freq (<= 0 counts down "
            "from half the sample rate)",
        )
    return np.linspace(mel(low_freq), mel(top), num_bins + 2)


def mel_filters(
    num_bins: int,
    fft_length: int,
    sample_rate: int,
    *,
    low_freq: float,
    high_freq: float,
) -> np.ndarray:
    """Return triangles of one width in mel, each reaching its neighbours' centres.

    Args:
        num_bins: how many, M.
        fft_length: even.
        sample_rate: Hz.
        low_freq: lower edge of the first triangle, Hz.
        high_freq: upper edge of the last, Hz; <= 0 is added to the Nyquist frequency.

    Returns:
        float64 [fft_length / 2 + 1, M], weights on the power spectrum; the last row,
        the Nyquist frequency, is zero.

    Raises:
        UserError: the edges are out of order or beyond Nyquist, or a triangle is so
            narrow that it holds no line of the spectrum.

    Source: Kaldi `feat/mel-computations.cc:MelBanks`.
    """
    edges = mel_edges(num_bins, sample_rate, low_freq=low_freq, high_freq=high_freq)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    lines = mel(np.arange(fft_length // 2) * (sample_rate / fft_length))[:, np.newaxis]
    rising = (lines - left) / (centre - left)
    falling = (right - lines) / (right - centre)
    weights = np.maximum(0.0, np.minimum(rising, falling))
    empty = np.flatnonzero(weights.sum(axis=0) == 0)
    if len(empty):
        raise UserError(
            f"mel filter {empty[0] + 1} of {num_bins} is narrower than a line of the "
            f"spectrum ({sample_rate / fft_length:g} Hz)",
            remedy="lower features.num_mel_bins, or raise features.frame_length_ms",
        )
    return np.vstack([weights, np.zeros(num_bins)])


def cepstral_matrix(num_bins: int, num_ceps: int, lifter: float) -> np.ndarray:
    """Return the cosine transform with liftering, float64 [M, C], for log_mel @ matrix.

    Column n of the orthonormal DCT-II, times 1 + lifter/2 sin(pi n / lifter).

    Source: Kaldi `matrix/matrix-functions.cc:ComputeDctMatrix`,
    `feat/mel-computations.cc:ComputeLifterCoeffs`.
    """
    n = np.arange(num_ceps)
    angle = np.pi / num_bins * (np.arange(num_bins)[:, np.newaxis] + 0.5) * n
    matrix = np.sqrt(2.0 / num_bins) * np.cos(angle)
    matrix[:, 0] = np.sqrt(1.0 / num_bins)
    if lifter == 0:
        return matrix
    return matrix * (1.0 + 0.5 * lifter * np.sin(np.pi * n / lifter))


class StreamingFrontEnd:
    """Features of one signal that arrives in pieces; keeps less than two windows of it.

    However the signal is cut, even into single samples, the frames are those of the
    whole signal. A frame leaves once all samples of its window are there; the frames
    that reach over the signal's end (without snip-edges) leave when it is closed.

    Args:
        front_end: shared between streams; it holds no state.
        key: of the signal; with `dither_seed` it chooses the dither.

    Source: Kaldi `feat/online-feature.cc:OnlineGenericBaseFeature`.
    """

    def __init__(self, front_end: KaldiFrontEnd, key: int = 0) -> None:
        self.front_end = front_end
        self._key = key
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
        options = self.front_end.options
        wave = dither(
            wave, options.dither, options.dither_seed, self._key,
            first=self._num_samples,
        )  # fmt: skip
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
