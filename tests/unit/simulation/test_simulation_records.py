"""Draws as records: their dependence, their distributions, and what is done by them."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile

from latflow.errors import UserError
from latflow.options import read_options
from latflow.simulation.drawing import Drawing
from latflow.simulation.options import SimulationOptions
from latflow.simulation.records import (
    list_audio,
    read_records,
    record_line,
)
from latflow.simulation.simulator import Simulator

RATE = 8000
SECOND = RATE


class MadeUpSpeech:
    """Noise that begins and ends, by two speakers in turn."""

    def __init__(self, number=6, length=SECOND):
        self.utt_ids = [f"u{i}" for i in range(number)]
        self._length = length

    def __len__(self):
        return len(self.utt_ids)

    def utt_id(self, i):
        return self.utt_ids[i]

    def position(self, utt_id):
        return {name: i for i, name in enumerate(self.utt_ids)}[utt_id]

    def speaker(self, i):
        return f"s{i % 2}"

    def num_samples(self, i):
        return self._length + 100 * i

    def samples(self, i):
        rng = np.random.default_rng(i)
        wave = 0.03 * rng.standard_normal(self.num_samples(i))
        return (wave * np.hanning(len(wave))).astype(np.float32)


SPEECH = MadeUpSpeech()


@pytest.fixture(scope="module")
def noises(tmp_path_factory):
    """Folder of noises: one short, one at another rate, both with silence at an end."""
    folder = tmp_path_factory.mktemp("noises")
    rng = np.random.default_rng(1)
    for name, rate, seconds in (("short", RATE, 0.3), ("wide", 16000, 2.0)):
        wave = 0.1 * rng.standard_normal(int(seconds * rate))
        wave[: rate // 10] = 0
        soundfile.write(folder / f"{name}.wav", wave, rate, subtype="FLOAT")
    return folder


def options_of(**values):
    return read_options(SimulationOptions, values)


def exactly(value):
    return {"type": "choice", "of": [value]}


def uniform(low, high):
    return {"type": "uniform", "low": low, "high": high}


ROOMS = {"type": "generated", "number": 3, "t60": uniform(0.1, 0.3)}


def everything(noises):
    return options_of(
        rooms=ROOMS,
        noises={"street": {"type": "recorded", "files": str(noises), "number": 2},
                "hiss": {"type": "generated", "spectrum": "pink"}},
        speakers={"number": 1},
        device={"gain": {"type": "gaussian", "mean": 0, "std": 3, "low": -6, "high": 6},
                "telephone": 0.5, "clipped": exactly(0.01)},
    )  # fmt: skip


def draw(options, utt_id="u1", whole_pass=0, seed=1, speech=SPEECH):
    drawing = Drawing(options, speech, rate=RATE, seed=seed)
    length = speech.num_samples(speech.position(utt_id))
    return drawing.draw(utt_id, length, whole_pass=whole_pass)


def apply(record, speech=SPEECH):
    wave = speech.samples(speech.position(record.utterance))
    return wave, Simulator(speech, rate=RATE).apply(record, wave)


def test_records_follow_from_seed_utterance_and_pass(noises):
    options = everything(noises)
    first = draw(options)
    assert first == draw(options)
    drawing = Drawing(options, SPEECH, rate=RATE, seed=1)
    with ThreadPoolExecutor(3) as pool:  # whatever the order and the thread
        jobs = [
            pool.submit(drawing.draw, u, SPEECH.num_samples(i), whole_pass=0)
            for i, u in reversed(list(enumerate(SPEECH.utt_ids)))
        ]
        assert first in [job.result() for job in jobs]
    others = [draw(options, "u2"), draw(options, whole_pass=1), draw(options, seed=2)]
    assert all(other.noises[0].begin != first.noises[0].begin for other in others)


def test_what_is_drawn_for_one_purpose_does_not_change_another(noises):
    both = draw(everything(noises))
    alone = draw(options_of(rooms=ROOMS))
    assert alone.room == both.room
    assert alone.noises == ()


def test_records_that_were_written_do_the_same_again(tmp_path, noises):
    options = everything(noises)
    records = [draw(options, u) for u in SPEECH.utt_ids[:3]]
    (tmp_path / "records.jsonl").write_text("".join(map(record_line, records)))
    again = list(read_records(tmp_path / "records.jsonl"))
    assert again == records
    kept = Simulator(SPEECH, rate=RATE)
    for one, other in zip(records, again, strict=True):
        wave, simulated = apply(one)
        np.testing.assert_array_equal(kept.apply(other, wave), simulated)
        assert simulated.shape == wave.shape
        assert simulated.dtype == np.float32
        assert np.abs(simulated).max() <= 1
        assert not np.array_equal(simulated, wave)
    (tmp_path / "bad.jsonl").write_text('{"utterance": "u"}\n')
    with pytest.raises(UserError, match="line 1 is not a record"):
        list(read_records(tmp_path / "bad.jsonl"))


def test_share_of_simulated_utterances_is_the_probability(noises):
    options = options_of(probability=0.3, noises={"hiss": {"type": "generated"}})
    speech = MadeUpSpeech(600)
    drawing = Drawing(options, speech, rate=RATE, seed=1)
    records = [drawing.draw(u, 100, whole_pass=0) for u in speech.utt_ids]
    assert np.mean([r.is_simulated for r in records]) == pytest.approx(0.3, abs=0.06)
    plain = next(r for r in records if not r.is_simulated)
    wave = np.ones(5, np.float32)
    assert Simulator(speech, rate=RATE).apply(plain, wave) is wave


@pytest.mark.parametrize("rooms", [None, ROOMS])
@pytest.mark.parametrize("snr", [-3.0, 10.0])
def test_noise_has_the_wanted_level(noises, snr, rooms):
    kind = {"type": "recorded", "files": str(noises), "snr": exactly(snr)}
    record = draw(options_of(rooms=rooms, noises={"street": kind}))
    _, noisy = apply(record)
    _, clean = apply(record.model_copy(update={"noises": ()}))
    ratio = np.square(clean).mean() / np.square(noisy - clean).mean()
    assert 10 * np.log10(ratio) == pytest.approx(snr, abs=0.1)


def test_one_to_three_speakers():
    speech = MadeUpSpeech(90)
    speech.speaker = lambda i: f"s{i % 5}"
    options = options_of(speakers={"number": {"type": "choice", "of": [0, 1, 2]}})
    drawing = Drawing(options, speech, rate=RATE, seed=1)
    counts = np.zeros(3, int)
    for i, utt_id in enumerate(speech.utt_ids):
        record = drawing.draw(utt_id, speech.num_samples(i), whole_pass=0)
        others = {speech.speaker(speech.position(s.utterance)) for s in record.speakers}
        assert len(others | {speech.speaker(i)}) == 1 + len(record.speakers)
        counts[len(record.speakers)] += 1
    assert counts.min() > 15


def test_other_speaker_has_the_wanted_level_and_overlap():
    options = options_of(
        speakers={"sir": exactly(3.0), "overlap": exactly(0.4)},
    )
    for utt_id in SPEECH.utt_ids:
        record = draw(options, utt_id)
        (other,) = record.speakers
        i, k = SPEECH.position(utt_id), SPEECH.position(other.utterance)
        assert SPEECH.speaker(i) != SPEECH.speaker(k)
        wave, mixed = apply(record)
        added = mixed - wave
        (where,) = np.nonzero(added)
        share = (where[-1] - where[0] + 1) / len(wave)
        assert share == pytest.approx(0.4, abs=0.01)
        assert where[0] == 0 or where[-1] == len(wave) - 1 or 0.39 < share < 0.41
        whole = SPEECH.samples(k)
        factor = (
            np.abs(added).sum()
            / np.abs(
                whole[-other.offset :][: len(wave)]
                if other.offset < 0
                else whole[: len(wave) - other.offset]
            ).sum()
        )
        ratio = np.square(wave).mean() / np.square(whole * factor).mean()
        assert 10 * np.log10(ratio) == pytest.approx(3.0, abs=0.1)


def test_rooms_of_training_are_not_those_of_test_sets():
    speech = MadeUpSpeech(20)
    rooms = []
    for purpose in ("training", "set made of a", "set made of b"):
        drawing = Drawing(
            options_of(rooms=ROOMS), speech, rate=RATE, seed=1, purpose=purpose
        )
        drawn = [drawing.draw(u, SECOND, whole_pass=0).room for u in speech.utt_ids]
        rooms.append({room.size for room in drawn if room})
    assert [len(sizes) for sizes in rooms] == [3, 3, 3]
    assert len(set.union(*rooms)) == 9


class LoudToTheEnd(MadeUpSpeech):
    """Noise as loud at its ends as in its middle."""

    def samples(self, i):
        wave = np.random.default_rng(i).standard_normal(self.num_samples(i))
        return (0.01 * wave).astype(np.float32)


def test_reverberation_of_another_speaker_dies_away():
    """It rings on behind the last word of the other one."""
    speech, rooms = LoudToTheEnd(), {**ROOMS, "t60": exactly(0.3)}
    record = draw(options_of(rooms=rooms, speakers={}), "u1", speech=speech)
    (other,) = record.speakers
    length = speech.num_samples(speech.position(other.utterance))
    early = other.replace(offset=SECOND // 2 - length)  # ends in the middle
    both = apply(record.replace(speakers=(early,)), speech)[1]
    added = both - apply(record.replace(speakers=()), speech)[1]
    power = [
        np.square(added[SECOND * k // 20 :][: SECOND // 20]).mean() for k in range(20)
    ]
    assert power[10] > 0.01 * power[9]  # the first 50 ms behind the end
    assert power[10] > 3 * power[12] > 0
    assert power[17] < 1e-4 * power[9]


def test_sound_arrives_when_it_did():
    """The onset of speech in a room is that of the speech: labels stay right."""
    clicks = np.zeros(SECOND, np.float32)
    at = np.arange(500, SECOND, 2500)
    clicks[at] = 0.5
    for number in range(3):
        record = draw(options_of(rooms=ROOMS), f"u{number}")
        heard = Simulator(SPEECH, rate=RATE).apply(record, clicks)
        loudest = [int(np.abs(heard[a - 200 : a + 2000]).argmax()) - 200 for a in at]
        assert loudest == [0] * len(at)
        np.testing.assert_allclose(
            np.square(heard).sum(), np.square(clicks).sum(), 0.05
        )


def test_measured_responses_are_taken_from_their_direct_path_on(tmp_path):
    response = np.zeros(400, np.float32)
    response[[30, 130]] = 0.5, 0.25
    soundfile.write(tmp_path / "room.wav", response, RATE, subtype="FLOAT")
    first = response[30:]
    soundfile.write(tmp_path / "sample0.wav", first, RATE, subtype="FLOAT")
    heard = []
    for name in ("room.wav", "sample0.wav"):
        rooms = {"type": "measured", "files": str(tmp_path / name)}
        record = draw(options_of(rooms=rooms))
        assert record.response == str(tmp_path / name)
        heard.append(apply(record)[1])
    np.testing.assert_array_equal(*heard)
    wave = SPEECH.samples(1)
    wanted = wave + 0.5 * np.pad(wave, (100, 0))[: len(wave)]
    wanted *= np.sqrt(np.square(wave).mean() / np.square(wanted).mean())
    np.testing.assert_allclose(heard[0], wanted, atol=1e-6)


@pytest.mark.parametrize(
    ("effect", "check"),
    [
        ({"high_cut": exactly(1000.0)}, lambda x, y: band(y, 1200, 4000) < 1e-6),
        ({"low_cut": exactly(1000.0)}, lambda x, y: band(y, 0, 800) < 1e-6),
        (
            {"clipped": exactly(0.1)},
            lambda x, y: np.mean(np.abs(y) >= 0.999 * y.max()) > 0.09,
        ),
        ({"gain": exactly(-6.0)}, lambda x, y: np.allclose(y, x * 10**-0.3)),
        ({"gain": exactly(40.0)}, lambda x, y: y.max() == 1 and y.min() == -1),
        ({"telephone": 1.0}, lambda x, y: 1e-4 < np.std(y - x) / np.std(x) < 0.05),
    ],
)
def test_devices_do_what_they_say(effect, check):
    record = draw(options_of(device=effect))
    assert check(*apply(record))


def band(wave, low, high):
    """Share of the energy of a band."""
    energy = np.square(np.abs(np.fft.rfft(wave)))
    frequency = np.fft.rfftfreq(len(wave), 1 / RATE)
    return energy[(frequency >= low) & (frequency < high)].sum() / energy.sum()


def test_telephone_takes_what_is_above_4_khz():
    record = draw(options_of(device={"telephone": 1.0}))
    wave = np.random.default_rng(1).uniform(-0.5, 0.5, 4001).astype(np.float32)
    heard = Simulator(SPEECH, rate=16000).apply(record, wave)
    energy = np.square(np.abs(np.fft.rfft(heard)))
    assert energy[len(energy) // 2 + 20 :].sum() < 1e-3 * energy.sum()


@pytest.mark.parametrize(("spectrum", "fall"), [("white", 0), ("pink", 3), ("hoth", 5)])
def test_generated_noise_has_its_spectrum(spectrum, fall):
    kind = {"type": "generated", "spectrum": spectrum, "snr": exactly(-60.0)}
    speech = MadeUpSpeech(length=20 * SECOND)
    record = draw(options_of(noises={"hiss": kind}), speech=speech)
    noisy = apply(record, speech)[1]
    power = [band(noisy, f, 1.2 * f) / f for f in (500, 1000)]  # of 1 Hz
    assert 10 * np.log10(power[0] / power[1]) == pytest.approx(fall, abs=0.6)


def test_silence_stays_silent(noises):
    record = draw(everything(noises))
    assert (
        not Simulator(SPEECH, rate=RATE).apply(record, np.zeros(99, np.float32)).any()
    )


def test_what_cannot_be_used_is_one_line(tmp_path, noises):
    with pytest.raises(UserError, match="no audio for the simulation"):
        list_audio(str(tmp_path / "nothing"))
    assert [name.rsplit("/")[-1] for name in list_audio(str(noises))] == [
        "short.wav",
        "wide.wav",
    ]
    soundfile.write(tmp_path / "silent.wav", np.zeros(100), RATE)
    (tmp_path / "text.wav").write_text("no audio")
    for name, what in {"silent": "is silent", "text": "cannot be read"}.items():
        path = tmp_path / f"{name}.wav"
        kind = {"type": "recorded", "files": str(path)}
        record = draw(options_of(noises={"street": kind}))
        with pytest.raises(UserError, match=what):
            apply(record)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        apply(record)
    impossible = {**ROOMS, "t60": exactly(0.1), "height": exactly(20.0)}
    with pytest.raises(UserError, match="1000 draws no room had"):
        draw(options_of(rooms=impossible))
    alone = MadeUpSpeech(1)
    with pytest.raises(UserError, match="no utterance of another speaker"):
        draw(options_of(speakers={}), "u0", speech=alone)
    lost = draw(options_of(speakers={}))
    other = lost.speakers[0].replace(utterance="nobody's")
    with pytest.raises(UserError, match="another speaker is to say nobody's"):
        apply(lost.model_copy(update={"speakers": (other,)}))
    outside = draw(options_of(rooms=ROOMS))
    assert outside.room is not None
    room = outside.room.replace(source=(-1.0, 1.0, 1.0))
    with pytest.raises(UserError, match="source at .* is outside of its room"):
        apply(outside.model_copy(update={"room": room}))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({}, "name rooms, noises, speakers or device"),
        ({"noise": {}}, "did you mean noises"),
        ({"rooms": {**ROOMS, "t60": exactly(9.0)}}, "9 is not within 0.05"),
        ({"rooms": {**ROOMS, "t60": uniform(0.5, 0.2)}}, "0.5 is above 0.2"),
        ({"noises": {"a": {"type": "recorded"}}}, "noises.a.files is missing"),
    ],
)
def test_options_that_cannot_be_are_refused(values, what):
    with pytest.raises(UserError, match=what):
        options_of(**values)


def test_more_sources_than_places_are_all_in_the_room(noises):
    """Places are taken in turn; none is left without one."""
    many = {"type": "recorded", "files": str(noises), "number": 6}
    record = draw(options_of(rooms=ROOMS, noises={"street": many}, speakers={}))
    assert record.room is not None
    places = [source.place for source in (*record.noises, *record.speakers)]
    assert set(places) == set(record.room.others)


def test_sources_are_apart(noises):
    """Four sources have the four places, half a metre from the speaker and others."""
    kind = {"type": "recorded", "files": str(noises)}
    options = options_of(
        rooms={**ROOMS, "number": 50}, noises={"a": kind, "b": kind, "c": kind},
        speakers={},
    )  # fmt: skip
    speech = MadeUpSpeech(40)
    for utt_id in speech.utt_ids:
        record = draw(options, utt_id, speech=speech)
        sources = [source.place for source in (*record.noises, *record.speakers)]
        places = np.array([record.room.source, *sources])
        distance = np.linalg.norm(places[:, None] - places, axis=-1)
        assert distance[np.triu_indices(5, 1)].min() >= 0.499


def test_place_of_a_noise_does_not_depend_on_another(noises):
    kind = {"type": "recorded", "files": str(noises)}
    alone = draw(options_of(rooms=ROOMS, noises={"b": kind}))
    both = draw(options_of(rooms=ROOMS, noises={"a": kind, "b": kind}))
    assert both.noises[1] == alone.noises[0]


def test_noise_may_be_called_as_another_purpose():
    """Draws of a noise `all` are not those of which utterances are simulated."""
    kind = {"type": "generated", "probability": 0.5}
    options = options_of(probability=0.5, noises={"all": kind})
    speech = MadeUpSpeech(400)
    drawing = Drawing(options, speech, rate=RATE, seed=1)
    records = [drawing.draw(u, 100, whole_pass=0) for u in speech.utt_ids]
    assert np.mean([r.is_simulated for r in records]) == pytest.approx(0.25, abs=0.06)


class OneSpeaks(MadeUpSpeech):
    """One utterance of hundreds is another speaker's."""

    def speaker(self, i):
        return "rare" if i == 0 else "often"


def test_rare_speakers_are_found():
    speech = OneSpeaks(400)
    for utt_id in speech.utt_ids[1:10]:
        (other,) = draw(options_of(speakers={}), utt_id, speech=speech).speakers
        assert other.utterance == "u0"
    with pytest.raises(UserError, match="no utterance of another speaker than"):
        draw(options_of(speakers={"number": 2}), "u1", speech=speech)


def test_rooms_without_a_place_are_drawn_again():
    """A room smaller than the least distances from its walls is not a traceback."""
    assert draw(options_of(rooms={**ROOMS, "from_wall": 1.3})).room is not None
    with pytest.raises(UserError, match="less from_wall"):
        draw(options_of(rooms={**ROOMS, "from_wall": 5.0}))


def test_the_microphone_is_where_it_is_asked_for():
    places = {"microphone_x": 0.9, "microphone_y": 0.25, "microphone_z": 0.3}
    given = {name: exactly(share) for name, share in places.items()}
    room = draw(options_of(rooms={**ROOMS, **given})).room
    shares = np.divide(room.microphone, room.size)
    np.testing.assert_allclose(shares, list(places.values()), atol=1e-3)
    corner = dict.fromkeys(places, exactly(0.0))
    with pytest.raises(UserError, match="a microphone farther from walls"):
        draw(options_of(rooms={**ROOMS, **corner}))


def test_walls_absorb_high_frequencies():
    """The speech in its room loses them; its power and all other draws stay."""
    far = {**ROOMS, "t60": exactly(0.4), "distance": exactly(2.5)}
    even, dull = (
        draw(options_of(rooms={**far, **more}))
        for more in ({}, {"high_t60": exactly(0.2)})
    )
    assert dull.room == even.room.model_copy(update={"high_t60": 0.2})
    (wave, one), (_, other) = apply(even), apply(dull)
    assert np.square(other).mean() == pytest.approx(np.square(wave).mean(), rel=1e-3)
    powers = [np.abs(np.fft.rfft(heard)) ** 2 for heard in (one, other)]
    hertz = np.fft.rfftfreq(len(wave), 1 / RATE)
    above = [power[hertz > 3000].sum() / power.sum() for power in powers]
    assert above[1] < 0.9 * above[0]


def test_bands_with_nothing_in_them_are_refused():
    with pytest.raises(UserError, match="low_cut of 3000 Hz is not below high_cut"):
        options_of(device={"low_cut": exactly(3000.0), "high_cut": exactly(300.0)})
    with pytest.raises(UserError, match="low_cut goes to 4000 Hz: nothing is left"):
        draw(options_of(device={"low_cut": exactly(4000.0)}))


def test_clipping_does_not_silence():
    """Of a wave that is silent for the most part no level is the share's."""
    wave = np.zeros(SECOND, np.float32)
    wave[:10] = 0.5
    record = draw(options_of(device={"clipped": exactly(0.5)}))
    heard = Simulator(SPEECH, rate=RATE).apply(record, wave)
    np.testing.assert_array_equal(heard, wave)


def test_samples_that_are_no_numbers_are_told(tmp_path):
    wave = SPEECH.samples(1)
    wave[3] = np.nan
    soundfile.write(tmp_path / "nan.wav", wave, RATE, subtype="FLOAT")
    kind = {"type": "recorded", "files": str(tmp_path)}
    record = draw(options_of(noises={"street": kind}))
    with pytest.raises(UserError, match="nan.wav: holds samples that are not numbers"):
        apply(record)
    record = draw(options_of(noises={"hiss": {"type": "generated"}}))
    assert Simulator(SPEECH, rate=RATE).apply(record, wave) is wave
