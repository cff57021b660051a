"""Sessions: what comes out does not depend on how the samples come in."""

from itertools import pairwise

import numpy as np
import pytest
from fixtures.serving_package import adapting_package
from hypothesis import given, settings
from hypothesis import strategies as st

from latflow.decode.options import EndpointOptions, EndpointRule, SegmentationOptions
from latflow.errors import UserError
from latflow.features.cmvn_options import OnlineCmvn
from latflow.features.resampling import resample
from latflow.serving.options import SessionOptions
from latflow.serving.package import Model
from latflow.serving.results import SILENCE, Final, Partial
from latflow.serving.segmentation import SpeechCutter, detector_of
from latflow.serving.session import Session

RATE = 8000


@pytest.fixture(scope="module")
def utterances(digits):
    return {name: digits.samples(name) for name in digits.audio}


@pytest.fixture(scope="module")
def speech(utterances):
    """Two utterances, a pause, another one, and a long silence."""
    first, second, third = list(utterances.values())[:3]
    quiet = first[:1500]  # each utterance begins with more than that of noise
    pause, silence = (np.tile(quiet, n * RATE // len(quiet)) for n in (2, 7))
    return np.concatenate([first, second, pause, third, silence])


def events_of(model, wave, sizes=(10**9,), **options):
    """Events of a stream that comes in pieces of these sizes, over and over."""
    events, begin, k = [], 0, 0
    with Session(model, SessionOptions(**options)) as session:
        while begin < len(wave):
            size = sizes[k % len(sizes)]
            events += session.accept(wave[begin : begin + size])
            begin, k = begin + size, k + 1
        events += session.finish()
        assert session.is_finished
    return events


def finals(events):
    return [event.segment for event in events if isinstance(event, Final)]


def told(events):
    """All that events say, for comparison."""
    return [
        (event.start, event.text)
        if isinstance(event, Partial)
        else (
            event.segment.start,
            event.segment.end,
            event.segment.endpoint_rule,
            event.segment.warning,
            event.segment.hypotheses,
        )
        for event in events
    ]


def test_it_recognizes_digits(model, digits, utterances):
    errors = sum(
        finals(events_of(model, wave, endpoint="off"))[0].best.text
        != digits.texts[name]
        for name, wave in utterances.items()
    )
    assert errors <= len(utterances) / 2


@settings(max_examples=8)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=6))
def test_any_pieces_give_the_same_events(model, speech, sizes):
    expected = told(events_of(model, speech, max_alternatives=3))
    assert told(events_of(model, speech, sizes, max_alternatives=3)) == expected


def test_segments_go_on_with_the_statistics_of_those_before_that_had_words(
    digits, speech, tmp_path, monkeypatch
):
    cmvn = OnlineCmvn(global_frames=600)
    model = Model.load(adapting_package(digits, tmp_path, cmvn))
    known, begin = [], Model.front_end

    def front_end(self, adaptation=None):
        known.append(adaptation)
        return begin(self, adaptation)

    monkeypatch.setattr(Model, "front_end", front_end)
    noise = speech[-2 * RATE :]
    wave = np.concatenate([speech, noise, speech, noise])
    segments = finals(events_of(model, wave))
    whole = known.copy()
    known.clear()
    events_of(model, wave, (1777,))
    assert len(known) == len(whole) >= len(segments) > 2
    assert whole[0] is None
    for one, other in zip(known[1:], whole[1:], strict=True):
        np.testing.assert_array_equal(one.cmvn.sums, other.cmvn.sums)
    for i, segment in enumerate(segments[:-1]):
        has_changed = whole[i + 1] is not whole[i]
        assert has_changed == bool(segment.best.words)
    assert 0 < whole[-1].cmvn.count <= cmvn.window
    session = Session(model, SessionOptions())
    session.accept(speech)
    known.clear()
    session.reset()
    assert known[0] is None


VAD = SegmentationOptions()


@settings(max_examples=6)
@given(
    st.lists(st.integers(1, 9000), min_size=1, max_size=6),
    st.sampled_from([None, 11025]),
)
def test_any_pieces_give_the_same_segments_of_speech(model, speech, sizes, rate):
    options = {"vad": VAD, "sample_rate": rate}
    expected = told(events_of(model, speech, **options))
    assert told(events_of(model, speech, sizes, **options)) == expected


def test_segments_of_speech_are_those_of_transcribe(model, speech):
    cutter = SpeechCutter(RATE, detector_of(RATE), VAD)
    pieces = cutter.accept(speech) + cutter.finish()
    assert len(pieces) > 1
    alone = [
        (segment.start + begin / RATE, segment)
        for begin, samples in pieces
        for segment in finals(events_of(model, samples))
    ]
    found = finals(events_of(model, speech, (700,), vad=VAD))
    if len(found) > len(alone):
        rest = found.pop()  # of the silence at the end
        assert (rest.best.words, rest.no_speech) == ((), 1.0)
    assert SILENCE in {segment.endpoint_rule for segment in found}
    for (start, one), segment in zip(alone, found, strict=True):
        assert segment.start == pytest.approx(start)
        assert segment.end - segment.start == pytest.approx(one.end - one.start)
        assert segment.best.text == one.best.text
        assert segment.no_speech == pytest.approx(one.no_speech, abs=1e-6)


@pytest.mark.parametrize("seconds", [0, 1, 30])
def test_nothing_is_recognized_in_silence(model, seconds):
    wave = np.zeros(seconds * RATE, np.float32)
    (only,) = finals(events_of(model, wave, (4000,), vad=VAD))
    assert (only.best.text, only.start, only.end) == ("", 0.0, float(seconds))
    assert only.no_speech == 1.0


def test_silence_takes_no_memory(model):
    with Session(model, SessionOptions(vad=VAD)) as session:
        for _ in range(60):
            session.accept(np.zeros(RATE, np.float32))
        assert session._audio.end - session._audio.begin < 2 * RATE


def test_words_make_speech_probable(model, utterances):
    for wave in utterances.values():
        (segment,) = finals(events_of(model, wave, endpoint="off"))
        assert 0 <= segment.no_speech <= 1
        if segment.best.words:
            assert segment.no_speech < 0.5
    (nothing,) = finals(events_of(model, np.zeros(10, np.float32), endpoint="off"))
    assert nothing.no_speech == 1.0


def test_16_bit_samples_are_the_same(model, speech):
    whole = np.round(speech * 32768).clip(-32768, 32767).astype(np.int16)
    as_floats = whole.astype(np.float32) / 32768
    assert told(events_of(model, whole)) == told(events_of(model, as_floats))


def test_the_final_is_that_of_the_whole_utterance(model, utterances):
    for wave in utterances.values():
        front_end = model.front_end()
        frames = np.concatenate([front_end.accept(wave), front_end.finish()])
        lattice = model.decoder.decode(
            model.acoustics.log_likes(frames), acoustic_scale=model.acoustic_scale
        ).lattice
        scaled = vars(lattice) | {
            "acoustic_cost": np.float32(model.lattice_scale) * lattice.acoustic_cost
        }
        expected = model.transcriber(("audio", type(lattice)(**scaled))).words
        (segment,) = finals(events_of(model, wave, (700,), endpoint="off"))
        assert [w.word for w in segment.best.words] == [w.word for w in expected]
        for found, word in zip(segment.best.words, expected, strict=True):
            assert (found.start, found.duration) == (word.start, word.duration)
            assert found.confidence == pytest.approx(word.confidence, abs=1e-4)


def test_endpoints_cut_the_stream(model, digits, speech):
    segments = finals(events_of(model, speech))
    rules = [segment.endpoint_rule for segment in segments]
    assert rules[-1] == 0
    assert all(1 <= rule <= 5 for rule in rules[:-1])
    assert len(segments) >= 3
    assert segments[0].start == 0
    for before, after in pairwise(segments):
        assert before.end == after.start
    assert segments[-1].end == pytest.approx(len(speech) / RATE)
    words = [word for segment in segments for word in segment.best.words]
    texts = [digits.texts[name] for name in list(digits.audio)[:3]]
    assert abs(len(words) - len(" ".join(texts).split())) <= 2
    for word, following in pairwise(words):
        assert word.start + word.duration <= following.start + 1e-6
    for segment in segments:
        for word in segment.best.words:
            assert segment.start <= word.start
            assert word.start + word.duration <= segment.end + 1e-6


def test_segments_do_not_depend_on_each_other(model, speech):
    first, second, *_ = events_of(model, speech, partials=False)
    rest = speech[round(first.segment.end * RATE) :]
    again = finals(events_of(model, rest))[0]
    (word, *_), (same, *_) = second.segment.best.words, again.best.words
    assert second.segment.best.text == again.best.text
    assert word.start == pytest.approx(same.start + first.segment.end)
    assert word.confidence == same.confidence


def test_a_rule_bounds_the_length(model, utterances):
    wave = np.concatenate(list(utterances.values()))
    rule = EndpointRule(must_contain_nonsilence=False, min_utterance_length=1.5)
    options = EndpointOptions(rule5=rule)
    segments = finals(events_of(model, wave, endpoint=options))
    assert max(s.end - s.start for s in segments) < 1.5 + 0.3
    assert 5 in {s.endpoint_rule for s in segments}


def test_a_session_holds_little_of_a_long_stream(model, utterances):
    wave = np.concatenate(list(utterances.values()))
    with Session(model, SessionOptions(partials=False)) as session:
        for _ in range(4):
            session.accept(wave)
            assert session._audio.end - session._audio.begin < RATE


def test_partials_come_when_words_change(model, speech):
    events = events_of(model, speech, (400,))
    text = ""
    for event in events:
        if isinstance(event, Partial):
            assert event.text != text
            text = event.text
        else:
            text = ""
    partials = [event for event in events if isinstance(event, Partial)]
    assert len(partials) >= 6
    starts = [event.start for event in partials]
    assert starts == sorted(starts)
    assert not [
        event
        for event in events_of(model, speech, (400,), partials=False)
        if isinstance(event, Partial)
    ]
    rarely = events_of(model, speech, (400,), partial_interval=1.0)
    assert 0 < sum(isinstance(e, Partial) for e in rarely) < len(partials)


def test_alternatives_differ_and_follow_their_probability(unsure, speech):
    most = 0
    for segment in finals(events_of(unsure, speech, max_alternatives=4)):
        texts = [hypothesis.text for hypothesis in segment.hypotheses]
        shares = [hypothesis.confidence for hypothesis in segment.hypotheses]
        assert len(set(texts)) == len(texts) <= 4
        assert shares[1:] == sorted(shares[1:], reverse=True)
        assert sum(shares) <= 1 + 1e-6
        most = max(most, len(texts))
    assert most > 1


def test_phrases_change_the_outcome(unsure, utterances):
    changed = 0
    for wave in list(utterances.values())[:3]:
        options = {"endpoint": "off"}
        (plain,) = finals(events_of(unsure, wave, max_alternatives=5, **options))
        for other in plain.hypotheses[1:]:
            if not other.text or other.text in plain.best.text:
                continue
            options |= {"phrases": [other.text], "phrase_boost": 1000.0}
            (favoured,) = finals(events_of(unsure, wave, **options))
            assert other.text in favoured.best.text
            changed += 1
    assert changed


def test_unknown_words_of_phrases_are_told(model):
    session = Session(model, SessionOptions(phrases=["ONE XYLOPHONE"]))
    assert "XYLOPHONE" in session.warnings[0]
    session.close()


def test_lattices_are_given_on_request(model, utterances):
    wave = next(iter(utterances.values()))
    (without,) = finals(events_of(model, wave, endpoint="off"))
    assert without.lattice is None
    (segment,) = finals(events_of(model, wave, endpoint="off", lattices=True))
    assert segment.lattice.num_frames > 10


def test_another_sample_rate(model, utterances):
    for wave in utterances.values():
        twice = resample(wave, RATE, 16000)
        (segment,) = finals(
            events_of(model, twice, (999,), sample_rate=16000, endpoint="off")
        )
        (expected,) = finals(events_of(model, wave, endpoint="off"))
        assert segment.best.text == expected.best.text
        assert segment.end == expected.end


def test_less_bandwidth_than_the_models_is_told(model):
    session = Session(model, SessionOptions(sample_rate=4000))
    assert "4000 Hz" in session.warnings[0]
    session.close()


def test_a_session_can_begin_anew(model, speech):
    expected = told(events_of(model, speech))
    session = Session(model)
    session.accept(speech[:9000])
    session.reset()
    assert told(session.accept(speech) + session.finish()) == expected
    session.reset()
    assert told(session.accept(speech) + session.finish()) == expected
    session.close()


@pytest.mark.parametrize("length", [0, 1, 100, 300])
def test_audio_too_short_for_a_frame_has_an_empty_final(model, length):
    (final,) = events_of(model, np.zeros(length, np.float32))
    assert final.segment.best.text == ""
    assert final.segment.end == length / RATE


def test_the_stream_is_over_after_its_end(model):
    with Session(model) as session:
        session.finish()
        with pytest.raises(RuntimeError, match="ended"):
            session.accept(np.zeros(10, np.float32))
        with pytest.raises(RuntimeError, match="ended"):
            session.finish()


def test_samples_must_be_numbers(model):
    with Session(model) as session, pytest.raises(UserError, match="finite"):
        session.accept(np.array([0.0, np.nan], np.float32))


def test_sessions_in_one_batch_are_as_good_as_alone(model, utterances):
    waves = list(utterances.values())[:3]
    alone = [finals(events_of(model, wave, endpoint="off"))[0] for wave in waves]
    sessions = [Session(model, SessionOptions(endpoint="off")) for _ in waves]
    events = [[] for _ in waves]
    for begin in range(0, max(map(len, waves)), 800):
        for session, wave, found in zip(sessions, waves, events, strict=True):
            if begin < len(wave):
                session.feed(wave[begin : begin + 800])
                if begin + 800 >= len(wave):
                    found.extend(session.end())
        while True:
            taken = [(k, s.take_chunk()) for k, s in enumerate(sessions)]
            taken = [(k, chunk) for k, chunk in taken if chunk is not None]
            if not taken:
                break
            scores = model.acoustics.score([chunk for _, chunk in taken])
            for (k, _), log_likes in zip(taken, scores, strict=True):
                assert sessions[k].take_chunk() is None
                events[k] += sessions[k].advance(log_likes)
    for found, expected in zip(events, alone, strict=True):
        (segment,) = finals(found)
        assert segment.best.text == expected.best.text
        for word, other in zip(segment.best.words, expected.best.words, strict=True):
            assert (word.start, word.duration) == (other.start, other.duration)
            assert word.confidence == pytest.approx(other.confidence, abs=1e-4)


def test_a_dead_end_ends_the_segment_with_a_warning(model, speech):
    """Scores that no path survives, as of a broken network."""
    with Session(model, SessionOptions(endpoint="off")) as session:
        session.feed(speech)
        chunk = session.take_chunk()
        scores = model.acoustics.score([chunk])[0]
        scores[3] = -np.inf
        events = session.advance(scores)
        (segment,) = finals(events)
        assert segment.best.text == ""
        assert segment.warning
        assert segment.end == pytest.approx(chunk.num_frames * model.frame_shift)
        later = finals(session.finish())[-1]
        assert later.start == segment.end
        assert later.warning is None
        assert later.best.text


def test_closed_sessions_give_back_what_they_held(model, speech):
    pool = model.decoder._engine.stores
    events_of(model, speech)
    before = len(pool)
    for _ in range(3):
        session = Session(model)
        session.accept(speech[:12000])
        session.close()
        session.close()
    events_of(model, speech)
    assert len(pool) == before
