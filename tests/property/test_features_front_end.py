"""The front end: frame counts, streaming, batching, padding, gradients."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from reference import features as reference

from latflow.features.extract import make_extractor
from latflow.features.front_end import KaldiFrontEnd, StreamingFrontEnd, take
from latflow.features.options import FrameGeometry, FrontEndOptions

# Windows of 40 samples every 16: short, so that many frames fit in few samples.
SMALL = FrontEndOptions(
    num_mel_bins=5,
    num_ceps=4,
    low_freq=0.0,
    frame_length_ms=20,
    frame_shift_ms=8,
    dither=0.0,
)
RATE = 2000
KEY = 5


def as_type(kind):
    """Return changes of SMALL for a type of features."""
    return {"type": kind} if kind == "mfcc" else {"type": kind, "num_ceps": 13}


def signal(num_samples, seed=0):
    rng = np.random.default_rng(seed)
    return (0.1 * rng.normal(size=num_samples)).astype(np.float32)


@given(st.integers(2, 40), st.integers(1, 40), st.integers(0, 300), st.booleans())
def test_windows_equal_kaldis_loop(length, shift, num_samples, snip_edges):
    geometry = FrameGeometry(length, shift, snip_edges)
    wave = torch.arange(num_samples)
    wanted = reference.windows(wave.numpy(), length, shift, snip_edges=snip_edges)
    total = geometry.num_frames(num_samples)
    assert total == len(wanted)
    for t in range(total):
        window = take(wave, *geometry.span(t, 1))
        np.testing.assert_array_equal(window.numpy(), wanted[t])


@given(st.integers(2, 40), st.integers(1, 40), st.integers(0, 200), st.booleans())
def test_ready_frames_do_not_change_with_more_samples(length, shift, n, snip_edges):
    geometry = FrameGeometry(length, shift, snip_edges)
    ready = geometry.num_ready_frames(n)
    assert ready <= geometry.num_frames(n)
    if ready:
        assert geometry.span(ready - 1, 1)[1] <= n
    if ready < geometry.num_frames(n):
        assert geometry.span(ready, 1)[1] > n


@given(
    st.lists(st.integers(0, 150), max_size=12), st.booleans(), st.booleans(),
    st.sampled_from([0.0, 1.0]),
)  # fmt: skip
def test_streaming_equals_offline_for_any_chunking(chunks, snip_edges, energy, dither):
    options = SMALL.replace(snip_edges=snip_edges, use_energy=energy, dither=dither)
    front_end = KaldiFrontEnd(options, RATE)
    wave = signal(sum(chunks), seed=len(chunks))
    whole = stream(front_end, wave, [len(wave)])
    assert len(whole) == front_end.num_frames(len(wave))
    pieces = stream(front_end, wave, chunks)
    np.testing.assert_allclose(pieces, whole, atol=1e-4)
    offline = make_extractor(options, RATE).extract_utterance(wave, KEY)
    np.testing.assert_allclose(offline, whole, atol=1e-4)


@pytest.mark.parametrize("snip_edges", [True, False])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 39, 40, 41, 300])
def test_streaming_single_samples(snip_edges, num_samples):
    front_end = KaldiFrontEnd(SMALL.replace(snip_edges=snip_edges), RATE)
    wave = signal(num_samples)
    np.testing.assert_allclose(
        stream(front_end, wave, [1] * num_samples), front_end.extract(wave), atol=1e-4
    )


def stream(front_end, wave, chunks):
    streaming = StreamingFrontEnd(front_end, KEY)
    out, start = [], 0
    for length in chunks:
        out.append(streaming.accept(wave[start : start + length]))
        start += length
        assert streaming.num_frames == front_end.geometry.num_ready_frames(start)
    out.append(streaming.finish())
    return np.concatenate(out)


def test_stream_keeps_less_than_two_windows_of_samples():
    front_end = KaldiFrontEnd(SMALL.replace(snip_edges=False), RATE)
    streaming = StreamingFrontEnd(front_end)
    for i in range(100):
        streaming.accept(signal(16, seed=i))
        assert sum(map(len, streaming._pieces)) < 2 * front_end.geometry.length
    streaming.finish()
    with pytest.raises(ValueError, match="closed"):
        streaming.accept(signal(1))


@given(
    st.lists(st.integers(0, 200), min_size=1, max_size=5), st.booleans(),
    st.integers(0, 50), st.sampled_from(["mfcc", "fbank"]),
)  # fmt: skip
def test_batch_equals_singles_whatever_the_padding(lengths, snip_edges, extra, kind):
    front_end = KaldiFrontEnd(
        SMALL.replace(**as_type(kind), snip_edges=snip_edges), RATE
    )
    batch = torch.full((len(lengths), max(lengths) + extra), 0.7)
    for i, length in enumerate(lengths):
        batch[i, :length] = torch.as_tensor(signal(length, seed=i))
    features = front_end(batch, torch.tensor(lengths))
    assert features.shape[1] == max(map(front_end.num_frames, lengths))
    for i, length in enumerate(lengths):
        alone = front_end.extract(batch[i, :length])
        np.testing.assert_allclose(features[i, : len(alone)], alone, atol=1e-4)
        assert not features[i, len(alone) :].any()


@given(st.integers(40, 120), st.booleans(), st.sampled_from(["mfcc", "fbank"]))
def test_result_does_not_depend_on_the_tile(num_samples, snip_edges, kind):
    front_end = KaldiFrontEnd(
        SMALL.replace(**as_type(kind), snip_edges=snip_edges), RATE
    )
    wave = signal(num_samples)
    whole = front_end(torch.as_tensor(wave)[None])[0].numpy()
    np.testing.assert_allclose(front_end.extract(wave), whole, atol=1e-4)


@pytest.mark.parametrize("kind", ["mfcc", "fbank"])
@pytest.mark.parametrize("snip_edges", [True, False])
@pytest.mark.parametrize("use_energy", [True, False])
def test_gradient_is_exact(kind, snip_edges, use_energy):
    options = SMALL.replace(
        **as_type(kind), snip_edges=snip_edges, use_energy=use_energy
    )
    front_end = KaldiFrontEnd(options, RATE, dtype=torch.float64)
    waves = torch.as_tensor(signal(2 * 70).reshape(2, 70), dtype=torch.float64)
    waves.requires_grad_()
    lengths = torch.tensor([70, 55])
    assert torch.autograd.gradcheck(lambda w: front_end(w, lengths), waves, atol=1e-4)
    front_end(waves, lengths).sum().backward()
    assert not waves.grad[1, 55:].any()


@given(st.floats(0.01, 100))
def test_log_mel_shifts_by_the_log_of_the_gain(gain):
    options = SMALL.replace(type="fbank", num_ceps=13)
    front_end = KaldiFrontEnd(options, RATE, dtype=torch.float64)
    wave = torch.as_tensor(signal(200), dtype=torch.float64)
    louder = front_end.extract(gain * wave)
    np.testing.assert_allclose(
        louder, front_end.extract(wave) + 2 * np.log(gain), atol=1e-6
    )


def test_silence_gives_the_floor_and_no_nan_gradient():
    front_end = KaldiFrontEnd(SMALL.replace(type="fbank", num_ceps=13), RATE)
    waves = torch.zeros((1, 100), requires_grad=True)
    features = front_end(waves)
    assert torch.allclose(features, torch.tensor(np.float32(-15.942385)))
    features.sum().backward()
    assert torch.isfinite(waves.grad).all()
