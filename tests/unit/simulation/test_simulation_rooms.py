"""Responses of rooms: against the image method in loops; times, places, refusals."""

import numpy as np
import pytest
import torch
from reference import room_response_naive

from latflow.array_cache import ArrayCache
from latflow.errors import UserError
from latflow.simulation.acoustics import shortest_decay_time
from latflow.simulation.records import RoomDraw
from latflow.simulation.responses import RoomResponses, calibrated_rooms
from latflow.simulation.rooms import (
    absorbed,
    calibrated_responses,
    decay_time,
    room_responses,
)

RATE = 16000


def draw_rooms(number, seed, t60=(0.1, 1.0)):
    """Rooms that can have their reverberation time: size, source, microphone, time."""
    rng = np.random.default_rng(seed)
    rooms = []
    while len(rooms) < number:
        wanted = rng.uniform(*t60)
        size = rng.uniform((2.5, 2.5, 2.5), (10.0, 10.0, 4.0))
        source, microphone = (
            rng.uniform(0.3, size - 0.3),
            size * rng.uniform(0.2, 0.8, 3),
        )
        is_near = np.linalg.norm(source - microphone) < 0.3
        if is_near or shortest_decay_time(size) > wanted:
            continue
        rooms.append((size, source, microphone, wanted))
    return [torch.from_numpy(np.array(part)) for part in zip(*rooms, strict=True)]


@pytest.mark.parametrize("advanced", [False, True])
def test_response_is_that_of_the_image_method(advanced):
    size, source, microphone, _ = draw_rooms(3, seed=1)
    reflection = torch.tensor([0.9, 0.6, 0.3], dtype=torch.float64)
    distance = (source - microphone).norm(dim=1)
    advance = distance if advanced else torch.zeros(3, dtype=torch.float64)
    got = room_responses(
        size, source, microphone, reflection,
        rate=8000, num_samples=300, advance=advance, high_pass=False,
    )  # fmt: skip
    for i in range(3):
        wanted = room_response_naive.room_response(
            size[i].tolist(), source[i].tolist(), microphone[i].tolist(),
            float(reflection[i]), rate=8000, num_samples=300, advance=float(advance[i]),
        )  # fmt: skip
        error = np.square(got[i].numpy() - wanted).sum() / np.square(wanted).sum()
        assert 10 * np.log10(error) < -45
        if advanced:
            assert int(got[i].argmax()) == 0
            assert float(got[i, 0]) == pytest.approx(
                1 / (4 * np.pi * float(distance[i])), rel=0.02
            )


def test_each_room_of_a_batch_has_the_response_that_it_has_alone():
    size, source, microphone, _ = draw_rooms(3, seed=2)
    reflection = torch.tensor([0.8, 0.7, 0.9], dtype=torch.float64)
    options = {"rate": 8000, "num_samples": 200}
    together = room_responses(size, source, microphone, reflection, **options)
    for i in range(3):
        one = slice(i, i + 1)
        alone = room_responses(
            size[one], source[one], microphone[one], reflection[one], **options
        )
        np.testing.assert_allclose(together[one], alone, rtol=0, atol=1e-7)


@pytest.fixture
def small_groups(monkeypatch):
    """Grids of about three short rooms at a time."""
    monkeypatch.setattr("latflow.simulation.rooms._SAMPLES", 3000)


@pytest.mark.usefixtures("small_groups")
def test_rooms_of_any_lengths_have_the_responses_that_they_have_alone():
    size, source, microphone, _ = draw_rooms(5, seed=6)
    reflection = torch.linspace(0.5, 0.9, 5, dtype=torch.float64)
    advance = (source - microphone).norm(dim=1)
    lengths = [500, 90, 2000, 500, 120]
    together = room_responses(
        size, source, microphone, reflection,
        rate=8000, num_samples=lengths, advance=advance,
    )  # fmt: skip
    assert together.shape == (5, 2000)
    for i, length in enumerate(lengths):
        one = slice(i, i + 1)
        alone = room_responses(
            size[one], source[one], microphone[one], reflection[one],
            rate=8000, num_samples=length, advance=advance[one],
        )[0]  # fmt: skip
        assert not together[i, length:].any()
        largest = float(alone.abs().max())
        np.testing.assert_allclose(
            together[i, :length], alone, rtol=0, atol=1e-5 * largest
        )


@pytest.mark.usefixtures("small_groups")
def test_calibration_of_rooms_together_is_that_of_each():
    given = draw_rooms(6, seed=8, t60=(0.08, 0.4))
    together = calibrated_responses(*given, rate=8000)
    for i in range(6):
        alone = calibrated_responses(*(x[i : i + 1] for x in given), rate=8000)
        length = alone.responses.shape[1]
        largest = float(alone.responses.abs().max())
        np.testing.assert_allclose(
            *(together.responses[i, :length], alone.responses[0]),
            rtol=0,
            atol=1e-5 * largest,
        )
        assert not together.responses[i, length:].any()
        assert float(together.reflection[i]) == pytest.approx(
            float(alone.reflection[0]), rel=1e-6
        )
        assert float(together.decay_time[i]) == pytest.approx(
            float(alone.decay_time[0]), rel=1e-5
        )


@pytest.mark.usefixtures("small_groups")
def test_a_list_of_rooms_has_the_responses_that_their_records_get():
    parts = zip(*draw_rooms(4, seed=9, t60=(0.08, 0.3)), strict=True)
    rooms = [
        RoomDraw(
            number=n, size=size.tolist(), source=source.tolist(), others=(),
            microphone=microphone.tolist(), t60=float(wanted), redraws=0,
        )
        for n, (size, source, microphone, wanted) in enumerate(parts)
    ]  # fmt: skip
    found = calibrated_rooms(rooms, rate=8000)
    for room, made in zip(rooms, found, strict=True):
        (alone,) = calibrated_rooms([room], rate=8000)
        kept = RoomResponses(8000, ArrayCache(10**6)).of_place(room, room.source, None)
        np.testing.assert_array_equal(alone.response, kept)
        largest = np.abs(kept).max()
        np.testing.assert_allclose(made.response, kept, rtol=0, atol=1e-5 * largest)
        assert made.decay_time == pytest.approx(alone.decay_time, rel=1e-5)
    assert calibrated_rooms([], rate=8000) == []


def test_reverberation_time_is_the_wanted_one():
    size, source, microphone, wanted = draw_rooms(100, seed=3, t60=(0.1, 1.0))
    made = [
        calibrated_responses(
            size[i : i + 1], source[i : i + 1], microphone[i : i + 1],
            wanted[i : i + 1], rate=8000,
        )
        for i in range(len(size))
    ]  # fmt: skip
    measured = np.array(
        [room_response_naive.decay_time(m.responses[0].numpy(), 8000) for m in made]
    )
    np.testing.assert_allclose(
        measured, [float(m.decay_time[0]) for m in made], rtol=1e-6
    )
    assert np.mean(np.abs(measured / wanted.numpy() - 1) < 0.1) >= 0.95
    # Labels stay right: the direct path is sample 0.
    distance = (source - microphone).norm(dim=1)
    first = np.array([float(one.responses[0, 0]) for one in made])
    np.testing.assert_allclose(first, 1 / (4 * np.pi * distance), rtol=0.1)


def test_high_frequencies_decay_faster():
    """Bands of a decaying noise have the reverberation times that are asked for."""
    rate, t60 = 16000, 0.5
    time = torch.arange(rate).double() / rate
    noise = torch.randn(8, rate, generator=torch.Generator().manual_seed(1))
    plain = (noise * 10 ** (-3 * time / t60)).float()
    found = absorbed(plain, t60, 0.4, rate=rate)
    # powers of windows of 32 ms, in lines of 31.25 Hz
    windows = found.unfold(1, 512, 256) * torch.hann_window(512)
    power = torch.fft.rfft(windows).abs().square().mean(0)[:16]
    for low, high, share in ((100, 900, 1.0), (1900, 2100, 0.8), (3900, 4100, 0.6)):
        lines = power[:, round(low / 31.25) : round(high / 31.25)].mean(1)
        slope, _ = np.polyfit(0.016 * np.arange(16), 10 * lines.log10().numpy(), 1)
        assert -60 / slope == pytest.approx(share * t60, rel=0.06)
    assert absorbed(plain, t60, None, rate=rate) is plain
    torch.testing.assert_close(absorbed(plain, t60, 1.0, rate=rate), plain)


def test_decay_of_an_exponential_is_found():
    time = torch.arange(8000).double() / RATE
    noise = torch.randn(8000, generator=torch.Generator().manual_seed(1)).double()
    responses = torch.stack([noise * 10 ** (-3 * time / t) for t in (0.1, 0.3)])
    measured = decay_time(responses, RATE)
    np.testing.assert_allclose(measured, [0.1, 0.3], rtol=0.03)
    assert torch.isnan(decay_time(torch.ones(1, 100), RATE)).all()
    # Behind its end a response does not fall.
    some = torch.zeros(2, 9000)
    some[:, :8000], some[1, 100:] = responses, 0.0
    some[1, :100] = 1.0
    measured = decay_time(some, RATE, [8000, 100])
    assert float(measured[0]) == pytest.approx(float(decay_time(responses, RATE)[0]))
    assert torch.isnan(measured[1])


def test_places_and_times_that_cannot_be_are_refused():
    size, source, microphone, wanted = draw_rooms(1, seed=4)
    reflection = torch.full((1,), 0.5, dtype=torch.float64)
    given = {"rate": RATE, "num_samples": 10}
    with pytest.raises(UserError, match="microphone at .* is outside of its room of"):
        room_responses(size, source, size + 0.1, reflection, **given)
    with pytest.raises(UserError, match="source at .* is outside"):
        room_responses(size, -source, microphone, reflection, **given)
    with pytest.raises(UserError, match="at one place"):
        room_responses(size, source, source, reflection, **given)
    with pytest.raises(UserError, match=r"cannot have a reverberation time of 0\.05 s"):
        calibrated_responses(size, source, microphone, wanted * 0 + 0.05, rate=RATE)
