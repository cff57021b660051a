"""Segments of speech in a recording, found while it is read.

The network is Silero's voice activity detector from the wheel `silero-vad`, for 8 and
16 kHz: it gives the probability of speech in each window of 32 ms. Its weights are run
here for many windows at once, which the wheel's own module takes one by one.

Source: silero-vad, `silero_vad.jit` (the network) and `get_speech_timestamps` (two
thresholds, least silence, least speech).
"""

from __future__ import annotations

import warnings
from collections import deque
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from latflow.decode.options import SegmentationOptions
from latflow.features.resampling import StreamingResampler

# Windows that the network takes at a time, 128 ms. They lie on fixed positions, so that
# any blocks of samples give the same bits.
_BATCH = 4
_HIDDEN = 128
_CONVOLUTION_STRIDES = (1, 2, 2, 1)
# Speech continues until its probability is this much below the threshold that began it.
_HYSTERESIS = 0.15
# Sound that is this many times the power of the quiet before it, of a muted microphone
# or a gate, is another scene: what the network remembers does not reach over that, and
# of the quiet little is taken in, just as much as a soft first consonant lasts.
_QUIET = 1000.0  # 30 dB
_LEAST_PADDING = 4  # windows
_ONSET = 100.0  # 20 dB, within the last windows
_ONSET_WINDOWS = 4
_SILENCE = 1e-11  # mean square that is no sound, -110 dB
# The network misses soft speech, so it gets samples that are as loud as in usual
# recordings, the loudest of the last windows left aside: what bangs is no speech.
_USUAL = 0.01  # mean square, -20 dB
_MOST_GAIN = 1000.0  # 30 dB, of squares
_RECENT = 312  # windows, 10 s
_BANGS = 20  # of as many windows, one is left aside


class SpeechDetector:
    """Probabilities of speech; may be used from many threads at once.

    Args:
        sample_rate: of the audio, Hz: that of the network is 8000 for rates below
            16000, else 16000.
    """

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = 8000 if sample_rate < 16000 else 16000
        self.window = 256 * self.sample_rate // 8000
        self.context = self.window // 8
        weights = _weights("_model_8k." if self.sample_rate == 8000 else "_model.")
        # Convolutions of few frames are faster as products with a matrix.
        basis = weights["stft.forward_basis_buffer"]
        self._basis = basis[:, 0].t().contiguous()
        self._convolutions = [
            (
                weights[f"encoder.{i}.reparam_conv.weight"].flatten(1).t().contiguous(),
                weights[f"encoder.{i}.reparam_conv.bias"],
            )
            for i in range(len(_CONVOLUTION_STRIDES))
        ]
        self._lstm = torch.nn.LSTM(_HIDDEN, _HIDDEN)
        self._lstm.load_state_dict(
            {
                f"{name}_l0": weights[f"decoder.rnn.{name}"]
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            }
        )
        self._output = (
            weights["decoder.decoder.2.weight"][0, :, 0],
            weights["decoder.decoder.2.bias"],
        )

    def state(self) -> tuple[Tensor, Tensor]:
        """Return the state before the first window."""
        return torch.zeros(1, 1, _HIDDEN), torch.zeros(1, 1, _HIDDEN)

    @torch.inference_mode()
    def __call__(
        self, windows: np.ndarray, state: tuple[Tensor, Tensor]
    ) -> tuple[np.ndarray, tuple[Tensor, Tensor]]:
        """Return the probability of speech in each of some windows.

        Args:
            windows: float32[N, context + window] in [-1, 1], each with the end of the
                one before it; they follow each other.
            state: after the windows before these.

        Returns:
            float32[N], and the state after these windows.
        """
        count, width = len(windows), self._basis.shape[0]
        # A quarter of the transform's window is mirrored at the end.
        samples = functional.pad(
            torch.from_numpy(windows)[:, None], (0, self.window // 8), mode="reflect"
        )
        pieces = samples[:, 0].unfold(1, width, self.window // 4)
        spectrum = pieces.reshape(-1, width) @ self._basis
        real, imaginary = spectrum.view(count, -1, width + 2).chunk(2, dim=2)
        hidden = (real.square() + imaginary.square()).sqrt()
        for (weight, bias), stride in zip(
            self._convolutions, _CONVOLUTION_STRIDES, strict=True
        ):
            pieces = functional.pad(hidden, (0, 0, 1, 1)).unfold(1, 3, stride)
            rows = pieces.reshape(-1, len(weight))
            hidden = torch.addmm(bias, rows, weight).relu_().view(count, -1, len(bias))
        outputs, state = self._lstm(hidden[:, :1], state)
        weight, bias = self._output
        return (outputs[:, 0].relu() @ weight + bias).sigmoid().numpy(), state


def _weights(prefix: str) -> dict[str, Tensor]:
    """Return the parameters of the wheel's network below a name, for reading only."""
    threads = torch.get_num_threads()
    import silero_vad.data  # which gives torch one thread, here and everywhere

    torch.set_num_threads(threads)
    path = Path(str(silero_vad.data.__file__)).with_name("silero_vad.jit")
    with warnings.catch_warnings():
        # The wheel has the network for 8 kHz in this form only.
        warnings.simplefilter("ignore", DeprecationWarning)
        weights = torch.jit.load(str(path), map_location="cpu").state_dict()
    return {
        name.removeprefix(prefix): value
        for name, value in weights.items()
        if name.startswith(prefix)
    }


def detector_of(sample_rate: int) -> SpeechDetector:
    """Return the detector for a sample rate, which all of a process share."""
    return _detector(is_wide=sample_rate >= 16000)


@cache
def _detector(*, is_wide: bool) -> SpeechDetector:
    """Load the detector for wide or narrow audio."""
    return SpeechDetector(16000 if is_wide else 8000)


class Span(NamedTuple):
    """A stretch of audio: its first sample, and the one behind its last."""

    start: int
    end: int


class Segmenter:
    """Finds the segments of one recording; bounded in memory, however long it is.

    Segments are in order and do not overlap. Each holds speech and some silence around
    it, and none is longer than `max_segment`: in the second half of that, speech is cut
    where it is less probable than a threshold that rises to 1. What is known of
    an ongoing segment stays true, so that it can be recognized while it is spoken.

    Args:
        detector: shared by all recordings of a sample rate.
        options: see the class.
    """

    def __init__(self, detector: SpeechDetector, options: SegmentationOptions) -> None:
        self._detector = detector
        rate = detector.sample_rate
        self._threshold = options.threshold
        self._end_threshold = max(0.01, options.threshold - _HYSTERESIS)
        self._min_speech = round(options.min_speech * rate)
        self._min_silence = round(options.min_silence * rate)
        self._padding = round(options.padding * rate)
        self._longest = round(options.max_segment * rate)
        self._state = detector.state()
        self._samples = np.zeros(detector.context, np.float32)  # not yet in a window
        self._length = 0  # samples taken
        self._position = 0  # sample behind the last window
        self._last_end = 0  # of the segment before
        # Mean squares of windows: those that the gain follows, the last ones, those
        # that padding may take in, and those that were so when speech began.
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._last_powers: deque[float] = deque(maxlen=_ONSET_WINDOWS)
        self._powers: deque[float] = deque(maxlen=-(-self._padding // detector.window))
        self._before: list[float] = []
        self._loudest = 0.0  # mean square of a window of speech, until it is sure
        self._speech: int | None = None  # beginning of the ongoing speech
        self._is_cut = False  # it continues a segment that was too long
        self._is_sure = False  # it is long enough to be speech
        self._silence: int | None = None  # beginning of the silence within it

    @property
    def needed_from(self) -> int:
        """Return the first sample that a segment may still hold."""
        if self._speech is not None:
            return self._begin()
        return max(self._last_end, self._position - self._padding)

    @property
    def ongoing(self) -> Span | None:
        """The ongoing segment, as far as its samples are surely its own."""
        if self._speech is None or not self._is_sure:
            return None
        return Span(self._begin(), self._settled())

    def accept(self, samples: np.ndarray) -> list[Span]:
        """Take samples; return the segments that end now.

        Args:
            samples: float32[n] in [-1, 1] at the detector's sample rate.
        """
        self._length += len(samples)
        self._samples = np.concatenate([self._samples, samples])
        size, context = self._detector.window, self._detector.context
        found: list[Span] = []
        while len(self._samples) >= context + _BATCH * size:
            found += self._take(_BATCH)
        return found

    def finish(self) -> list[Span]:
        """Return the segments that end with the recording."""
        size, context = self._detector.window, self._detector.context
        rest = len(self._samples) - context
        count = -(-rest // size)
        self._samples = np.pad(self._samples, (0, count * size - rest))
        found = self._take(count) if count else []
        if self._speech is not None:
            end = self._length if self._silence is None else self._silence
            found += self._ended(min(end + self._padding, self._length))
        return found

    def _take(self, count: int) -> list[Span]:
        """Take the next windows."""
        size, context = self._detector.window, self._detector.context
        windows = np.lib.stride_tricks.sliding_window_view(
            self._samples[: context + count * size], context + size
        )[::size]
        powers = np.square(windows[:, context:], dtype=np.float64).mean(axis=1).tolist()
        self._recent.extend(powers)
        loud = np.fromiter(self._recent, np.float64)
        place = len(loud) - 1 - len(loud) // _BANGS
        gain = _USUAL / max(np.partition(loud, place)[place], _SILENCE)
        windows = windows * np.float32(np.sqrt(min(max(gain, 1.0), _MOST_GAIN)))
        probabilities = self._probabilities(windows, powers)
        self._samples = self._samples[count * size :]
        return [
            span
            for probability, power in zip(probabilities, powers, strict=True)
            for span in self._step(probability, power)
        ]

    def _probabilities(self, windows: np.ndarray, powers: list[float]) -> list[float]:
        """Return probabilities of speech in windows; the network forgets at onsets."""
        found: list[float] = []
        first = 0
        for end in [*self._onsets(powers), len(windows)]:
            if end > first:
                part, self._state = self._detector(windows[first:end], self._state)
                found += part.tolist()
            if end < len(windows):
                self._state = self._detector.state()
            first = end
        return found

    def _onsets(self, powers: list[float]) -> list[int]:
        """Return which of the next windows begin sound after quiet, outside speech."""
        onsets = []
        for number, power in enumerate(powers):
            quietest = min(self._last_powers, default=power)
            if power > _ONSET * max(quietest, _SILENCE):
                self._last_powers.clear()  # one onset, not one in each window after it
                onsets.append(number)
            self._last_powers.append(power)
        return onsets if self._speech is None else []

    def _step(self, probability: float, power: float) -> list[Span]:
        """Take the probability of speech, and the mean square, of the next window."""
        start = self._position
        if self._speech is not None and self._is_too_long(probability):
            return [self._cut(start), *self._step(probability, power)]
        self._position += self._detector.window
        if self._speech is None and probability >= self._threshold:
            self._speech, self._is_cut, self._is_sure = start, False, False
            self._before, self._loudest = list(self._powers), 0.0
        self._powers.append(power)
        if self._speech is None:
            return []
        if probability >= self._threshold:
            self._silence = None
        elif probability < self._end_threshold and self._silence is None:
            self._silence = start
        if not self._is_sure:
            self._loudest = max(self._loudest, power)
        if self._silence is None:
            self._is_sure |= self._position - self._speech >= self._min_speech
        elif self._position - self._silence >= self._min_silence:
            return self._ended(self._settled())
        return []

    def _begin(self) -> int:
        """Return the first sample of the ongoing segment."""
        assert self._speech is not None
        padding = 0 if self._is_cut else self._padding_before()
        return max(self._last_end, self._speech - padding)

    def _padding_before(self) -> int:
        """Return the samples before speech that are taken in."""
        scene = takewhile(
            lambda power: power * _QUIET >= self._loudest, reversed(self._before)
        )
        number = max(_LEAST_PADDING, sum(1 for _ in scene))
        return min(self._padding, number * self._detector.window)

    def _settled(self) -> int:
        """Return the sample up to which the ongoing segment surely reaches."""
        if self._silence is None:
            return self._position
        return min(self._silence + self._padding, self._position)

    def _ended(self, end: int) -> list[Span]:
        """Return the segment that ends, none if it is too short."""
        span = Span(self._begin(), end)
        is_sure = self._is_sure
        self._speech = self._silence = None
        if not is_sure:
            return []
        self._last_end = end
        return [span]

    def _is_too_long(self, probability: float) -> bool:
        """Return whether the segment is to be cut before a window."""
        after = self._position + self._detector.window - self._begin()
        share = 2 * (after + self._padding) / self._longest - 1  # of the second half
        rising = self._end_threshold + (1 - self._end_threshold) * share
        return share > 1 or (share > 0 and probability < rising)

    def _cut(self, end: int) -> Span:
        """Return the first part of a segment that is too long; the rest continues."""
        span = Span(self._begin(), end if self._silence is None else self._settled())
        self._last_end = span.end
        if self._silence is None:
            self._speech, self._is_cut, self._is_sure = end, True, True
        else:
            self._speech = self._silence = None
        return span


class SpeechCutter:
    """Cuts the segments of speech out of a recording of any sample rate.

    Attributes:
        num_samples: samples taken.

    Args:
        sample_rate: of the recording, Hz.
        detector: for this sample rate.
        options: see `Segmenter`.
    """

    def __init__(
        self, sample_rate: int, detector: SpeechDetector, options: SegmentationOptions
    ) -> None:
        self.num_samples = 0
        self._resampler = StreamingResampler(sample_rate, detector.sample_rate)
        self._segmenter = Segmenter(detector, options)
        self._factor = sample_rate / detector.sample_rate
        self._held = np.zeros(0, np.float32)  # the last of the samples taken

    def accept(self, samples: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Take samples; return the segments that end now.

        Args:
            samples: float32[n] in [-1, 1].

        Returns:
            Number of its first sample, and samples, of each.
        """
        self._held = np.concatenate([self._held, samples])
        self.num_samples += len(samples)
        found = self._cut(self._segmenter.accept(self._resampler.accept(samples)))
        needed = int(self._segmenter.needed_from * self._factor)
        drop = needed - (self.num_samples - len(self._held))
        self._held = self._held[max(0, drop) :]
        return found

    def finish(self) -> list[tuple[int, np.ndarray]]:
        """Return the segments that end with the recording."""
        spans = self._segmenter.accept(self._resampler.finish())
        return self._cut(spans + self._segmenter.finish())

    def _cut(self, spans: list[Span]) -> list[tuple[int, np.ndarray]]:
        """Return the samples of segments."""
        first = self.num_samples - len(self._held)
        bounds = [tuple(round(at * self._factor) for at in span) for span in spans]
        return [
            (begin, self._held[begin - first : end - first]) for begin, end in bounds
        ]


class Stretch(NamedTuple):
    """A segment of a stream, as far as it is known.

    Attributes:
        start: its first sample.
        end: the sample behind those that surely belong to it.
        is_ended: whether there are no more.
    """

    start: int
    end: int
    is_ended: bool


class SpeechGate:
    """Tells which samples of a stream are speech, while it arrives.

    Args:
        sample_rate: of the stream, Hz.
        rate: that samples are counted at, Hz.
        options: see `Segmenter`.
    """

    def __init__(
        self, sample_rate: int, rate: int, options: SegmentationOptions
    ) -> None:
        detector = detector_of(sample_rate)
        self._resampler = StreamingResampler(sample_rate, detector.sample_rate)
        self._segmenter = Segmenter(detector, options)
        self._factor = rate / detector.sample_rate
        self._ended: deque[Span] = deque()

    def accept(self, samples: np.ndarray) -> None:
        """Take samples, float32[n] in [-1, 1], at the stream's rate."""
        self._ended += self._segmenter.accept(self._resampler.accept(samples))

    def finish(self) -> None:
        """Note that the stream ends."""
        self._ended += self._segmenter.accept(self._resampler.finish())
        self._ended += self._segmenter.finish()

    @property
    def current(self) -> Stretch | None:
        """The first segment that was not given up; None if there is none yet."""
        span = self._ended[0] if self._ended else self._segmenter.ongoing
        if span is None:
            return None
        start, end = (round(at * self._factor) for at in span)
        return Stretch(start, end, bool(self._ended))

    def next(self) -> None:
        """Give up the first segment, which has ended."""
        self._ended.popleft()

    @property
    def needed_from(self) -> int:
        """The first sample that a segment may still hold."""
        first = [span.start for span in self._ended]
        return int(min([*first, self._segmenter.needed_from]) * self._factor)
