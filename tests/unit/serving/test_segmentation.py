from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.corpus.espeak import Synthesizer, resample
from latflow.decode.options import SegmentationOptions
from latflow.errors import UserError
from latflow.options import read_options
from latflow.serving import segmentation
from latflow.serving.segmentation import Segmenter, Span, SpeechDetector

RATE = 16000
SENTENCES = (
    "please put the red cup on the table",
    "seven",
    "turn the oven off and open the window then close the door",
)


@pytest.fixture(scope="module")
def detector():
    return SpeechDetector(RATE)


@pytest.fixture(scope="module")
def speech():
    """(samples, spans of speech): three sentences, 2 s of faint noise between them."""
    noise = np.random.default_rng(1).normal(0, 2e-4, 60 * RATE).astype(np.float32)
    samples, spans, at = noise.copy(), [], 2 * RATE
    synthesizer = Synthesizer("en-us+m3")
    for sentence in SENTENCES:
        said = spoken(synthesizer, sentence)
        samples[at : at + len(said)] += said
        loud = np.flatnonzero(np.abs(said) > 0.02)
        spans.append((at + loud[0], at + loud[-1]))
        at += len(said) + 2 * RATE
    return samples[:at], spans


def spoken(synthesizer, sentence):
    """Speech at 16 kHz, float32, loudest at 0.5."""
    said = synthesizer.speak(sentence, rate=150, pitch=50) / 32768
    samples = resample(said, synthesizer.sample_rate, RATE)
    return (0.5 * samples / np.abs(samples).max()).astype(np.float32)


def found_in(samples, detector, pieces=None, **options):
    segmenter = Segmenter(detector, SegmentationOptions(**options))
    if pieces is None:
        return [*segmenter.accept(samples), *segmenter.finish()]
    found, at = [], 0
    for size in pieces:
        found += segmenter.accept(samples[at : at + size])
        at += size
    return [*found, *segmenter.accept(samples[at:]), *segmenter.finish()]


class Scripted:
    """A detector that gives the probabilities of a list."""

    sample_rate, window, context = 1000, 10, 2

    def __init__(self, probabilities):
        self.probabilities = probabilities

    def state(self):
        return 0

    def __call__(self, windows, state):
        assert windows.shape[1] == self.window + self.context
        end = state + len(windows)
        return np.array(self.probabilities[state:end], np.float32), end


class Deaf(Scripted):
    """A detector that hears speech in its first windows only."""

    def __init__(self):
        super().__init__([0.9] * 20 + [0.0] * 500)


def spans(probabilities, extra=0, **options):
    samples = np.zeros(10 * len(probabilities) - extra, np.float32)
    chosen = {"min_silence": 0.05, "padding": 0.02, "min_speech": 0.02}
    chosen |= {"threshold": 0.5} | options
    return found_in(samples, Scripted(probabilities), **chosen)


def reference_probabilities(samples, rate):
    """Take windows one by one, as the wheel's own module does."""
    import silero_vad.data

    path = Path(silero_vad.data.__file__).with_name("silero_vad.jit")
    with pytest.warns(DeprecationWarning, match="deprecated"):
        model = torch.jit.load(path)
    size = 512 if rate == 16000 else 256
    with torch.no_grad():
        return [
            float(model(torch.from_numpy(samples[i : i + size]), rate))
            for i in range(0, len(samples) - size + 1, size)
        ]


@pytest.mark.parametrize("rate", [8000, 16000])
def test_probabilities_are_those_of_the_wheels_own_module(speech, rate):
    samples = speech[0][: 10 * RATE]
    if rate == 8000:
        samples = resample(samples, RATE, rate).astype(np.float32)
    detector = SpeechDetector(rate)
    held = np.concatenate([np.zeros(detector.context, np.float32), samples])
    windows = np.lib.stride_tricks.sliding_window_view(
        held, detector.context + detector.window
    )[:: detector.window]
    state, ours = detector.state(), []
    for first in range(0, len(windows), 50):
        part, state = detector(windows[first : first + 50].copy(), state)
        ours.extend(part.tolist())
    expected = reference_probabilities(samples, rate)
    np.testing.assert_allclose(ours[: len(expected)], expected, atol=2e-4)
    assert max(expected) > 0.9
    assert min(expected) < 0.1


def test_loading_leaves_torch_its_threads():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        SpeechDetector(8000)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rate", [8000, 16000, 22050])
def test_segments_cover_the_speech_and_leave_out_the_silence(speech, rate):
    samples, said = speech
    detector = SpeechDetector(rate)
    if detector.sample_rate != RATE:
        samples = resample(samples, RATE, detector.sample_rate).astype(np.float32)
    factor = RATE / detector.sample_rate
    found = [Span(*(factor * at for at in s)) for s in found_in(samples, detector)]
    assert len(found) == len(said)
    # Padding, and windows at the edge that one processor's rounding takes for speech
    # and another's does not.
    margin = (SegmentationOptions().padding + 0.3) * RATE
    for span, (begin, end) in zip(found, said, strict=True):
        assert begin - margin < span.start <= begin
        assert end <= span.end < end + margin


def test_segments_do_not_depend_on_the_pieces(speech, detector):
    samples, _ = speech
    rng = np.random.default_rng(3)
    whole = found_in(samples, detector)
    assert found_in(samples, detector, rng.integers(0, 9000, 100)) == whole
    assert found_in(samples, detector, [1] * 300 + [RATE] * 99) == whole


@pytest.mark.parametrize("gain_db", [-20, -40])
def test_soft_speech_is_found_as_loud_speech_is(speech, detector, gain_db):
    samples, _ = speech
    wanted = found_in(samples, detector)
    soft = found_in(samples * np.float32(10 ** (gain_db / 20)), detector)
    assert len(soft) == len(wanted) > 0
    for one, other in zip(soft, wanted, strict=True):
        overlap = min(one.end, other.end) - max(one.start, other.start)
        assert overlap > 0.9 * (other.end - other.start)


def test_a_bang_hides_no_soft_speech(speech, detector):
    samples, _ = speech
    rate = detector.sample_rate
    pause = np.zeros(rate, np.float32)
    soft = np.concatenate([pause, samples * np.float32(0.01), pause])
    wanted = found_in(soft, detector)
    bang = np.random.default_rng(0).standard_normal(rate // 8).astype(np.float32)
    soft[: len(bang)] += np.clip(bang, -1, 1)
    found = found_in(soft, detector)
    both = (min(a.end, b.end) - max(a.start, b.start) for a in found for b in wanted)
    assert sum(max(0, n) for n in both) > 0.9 * sum(b.end - b.start for b in wanted) > 0


def test_soft_noise_is_no_speech(detector):
    noise = np.random.default_rng(0).standard_normal(30 * detector.sample_rate)
    for level in (1e-5, 1e-4, 1e-3, 1e-2):
        assert not found_in((level * noise).astype(np.float32), detector)


def test_silence_has_no_segment(detector):
    assert found_in(np.zeros(RATE, np.float32), detector) == []
    assert found_in(np.zeros(0, np.float32), detector) == []


def test_a_short_silence_does_not_end_a_segment():
    speech, silence = [0.9] * 10, [0.0] * 4
    assert spans([0.0] * 5 + speech + silence + speech + [0.0] * 20) == [
        Span(30, 310),
    ]
    longer = [0.0] * 5
    assert spans([0.0] * 5 + speech + longer + speech + [0.0] * 20) == [
        Span(30, 170),
        Span(180, 320),
    ]


def test_padding_does_not_reach_into_the_segment_before_or_beyond_the_ends():
    speech, silence = [0.9] * 10, [0.0] * 5
    found = spans(speech + silence + speech, padding=0.05, extra=3)
    assert found == [Span(0, 150), Span(150, 247)]


def test_speech_goes_on_below_the_threshold_that_began_it():
    assert spans([0.45] * 10) == []
    assert spans([0.6] + [0.45] * 9 + [0.3] * 9) == [Span(0, 120)]


def test_sound_after_quiet_is_heard_afresh():
    quiet, loud = np.full(600, 1e-4, np.float32), np.full(100, 0.1, np.float32)
    options = {"min_silence": 0.05, "padding": 0.05, "min_speech": 0.02}
    samples = np.concatenate([quiet, loud, quiet, 5e-4 + quiet])
    first, second = found_in(samples, Deaf(), **options)
    assert first.start == 0
    assert second == Span(560, 850)  # but for 40 ms, quiet is no padding
    for pieces in ([1] * 1300, [595, 7, 98], [640]):
        assert found_in(samples, Deaf(), pieces, **options) == [first, second]


def test_padding_of_the_same_loudness_is_taken_in_whole():
    soft = np.full(600, 0.01, np.float32)
    samples = np.concatenate([soft, 20 * soft[:100], soft])
    options = {"min_silence": 0.2, "padding": 0.2, "min_speech": 0.02}
    assert found_in(samples, Deaf(), **options)[1].start == 400


def test_a_click_is_no_speech():
    assert spans([0.0] * 9 + [0.9] + [0.0] * 9) == []
    assert spans([0.0] * 9 + [0.9] + [0.0] * 9, min_speech=0.01) == [Span(70, 120)]


def test_long_speech_is_cut_where_it_is_least_probable():
    probabilities = [0.9] * 250
    probabilities[80] = 0.6
    found = spans(probabilities, max_segment=1.0)
    assert found[0] == Span(0, 800)
    assert found[-1].end == 2500
    for before, after in pairwise(found):
        assert before.end == after.start
    assert all(span.end - span.start <= 1000 for span in found)


@settings(max_examples=50)
@given(
    st.lists(st.floats(0, 1, width=32), max_size=120),
    st.integers(1, 60),
    st.sampled_from([1.0, 20.0]),
)
def test_what_is_told_of_a_segment_that_goes_on_stays_true(
    probabilities, size, max_segment
):
    options = SegmentationOptions(
        threshold=0.5, min_silence=0.05, padding=0.02, min_speech=0.02,
        max_segment=max_segment,
    )  # fmt: skip
    segmenter = Segmenter(Scripted(probabilities), options)
    ended, told = [], []
    samples = np.zeros(10 * len(probabilities), np.float32)
    for begin in range(0, len(samples), size):
        ended += segmenter.accept(samples[begin : begin + size])
        if segmenter.ongoing is not None:
            told.append((len(ended), segmenter.ongoing))
    ended += segmenter.finish()
    for number, ongoing in told:
        assert ended[number].start == ongoing.start
        assert ongoing.end <= ended[number].end
    for before, after in pairwise(ended):
        assert before.end <= after.start
    longest = 1000 * max_segment
    assert all(0 < span.end - span.start <= longest for span in ended)


def test_what_is_no_longer_needed_is_told():
    segmenter = Segmenter(Scripted([0.0] * 640), SegmentationOptions())
    segmenter.accept(np.zeros(6400, np.float32))
    assert segmenter.needed_from == 6400 - 500
    segmenter = Segmenter(Scripted([0.9] * 64_000), SegmentationOptions(max_segment=5))
    for _ in range(100):
        segmenter.accept(np.zeros(6400, np.float32))
        assert 640_000 - segmenter.needed_from > 0
    assert segmenter.needed_from >= 640_000 - 5000


def test_padding_is_at_most_the_shortest_silence():
    with pytest.raises(UserError, match="padding is above min_silence"):
        read_options(SegmentationOptions, {"padding": 0.6}, "segmentation")


def test_weights_of_both_rates_are_of_the_same_kind():
    a, b = (segmentation._weights(prefix) for prefix in ("_model.", "_model_8k."))
    assert a.keys() == b.keys()
