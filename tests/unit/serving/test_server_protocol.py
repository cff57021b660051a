"""Messages of Vosk's protocol, read and written."""

import contextlib
import io
import json

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from latflow.corpus.ctm import TimedWord
from latflow.serving.raw_audio import Beginning
from latflow.serving.results import Final, Hypothesis, Segment
from latflow.serving.service import RefusedError
from latflow.serving.websocket import (
    VoskConfig,
    final_reply,
    partial_reply,
    read_message,
    text_in,
)

ONE = TimedWord("a", 0.5, 0.25, "one", confidence=0.875)
TWO = TimedWord("a", 1.0, 0.5, "two", confidence=0.25)


def final(*hypotheses):
    return Final(Segment(0.0, 2.0, hypotheses))


@pytest.mark.parametrize("text", ['{"eof" : 1}', '{"eof":1}', '{ "eof": 1 }\n'])
def test_the_end_is_told_with_any_blanks(text):
    assert read_message(text) == "eof"
    assert read_message(text.replace("eof", "reset")) == "reset"


def test_a_configuration_as_vosk_s_clients_send_it():
    # vosk/transcriber/transcriber.py
    text = '{ "config" : { "sample_rate" : 16000.000000 } }'
    assert read_message(text) == VoskConfig(sample_rate=16000.0)
    config = {"words": 0, "max_alternatives": 3, "phrase_list": ["one two"], "x": 1}
    read = read_message(json.dumps({"config": config}))
    assert read == VoskConfig(words=False, max_alternatives=3, phrase_list=("one two",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be JSON"),
        ("[" * 100_000, "must be JSON"),
        ("NaN", "must be a JSON object"),
        ("[]", "must be a JSON object"),
        ("{}", "must have config, eof or reset"),
        ('{"config": 5}', "config: "),
        ('{"config": {"sample_rate": -1}}', "config.sample_rate: "),
        ('{"config": {"sample_rate": NaN}}', "config.sample_rate: "),
        ('{"config": {"max_alternatives": 1e9}}', "config.max_alternatives: "),
        ('{"config": {"phrase_list": [1]}}', "config.phrase_list.0: "),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(text, message):
    with pytest.raises(RefusedError, match=message) as refused:
        read_message(text)
    assert refused.value.code == 1007


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
keys = st.sampled_from(["sample_rate", "words", "max_alternatives", "model", "token"])
messages = (
    st.text()
    | json_values.map(json.dumps)
    | st.dictionaries(keys, json_values).map(lambda c: json.dumps({"config": c}))
)


@given(messages)
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(RefusedError):
        assert isinstance(read_message(text), VoskConfig | str)


def test_replies_are_those_of_vosk():
    assert json.loads(partial_reply("één")) == {"partial": "één"}
    reply = final_reply(
        [final(Hypothesis((ONE, TWO), 0.9))], words=True, alternatives=0
    )
    assert json.loads(reply) == {
        "result": [
            {"conf": 0.875, "end": 0.75, "start": 0.5, "word": "one"},
            {"conf": 0.25, "end": 1.5, "start": 1.0, "word": "two"},
        ],
        "text": "one two",
    }
    plain = final_reply([final(Hypothesis((ONE,), 0.9))], words=False, alternatives=0)
    assert json.loads(plain) == {"text": "one"}
    for nothing in ([], [final(Hypothesis((), 1.0))]):
        reply = final_reply(nothing, words=True, alternatives=0)
        assert json.loads(reply) == {"text": ""}


def test_alternatives_are_those_of_vosk():
    finals = [final(Hypothesis((ONE,), 0.75), Hypothesis((TWO,), 0.25))]
    reply = final_reply(finals, words=True, alternatives=5)
    assert json.loads(reply) == {
        "alternatives": [
            {
                "confidence": 0.75,
                "text": "one",
                "result": [{"end": 0.75, "start": 0.5, "word": "one"}],
            },
            {
                "confidence": 0.25,
                "text": "two",
                "result": [{"end": 1.5, "start": 1.0, "word": "two"}],
            },
        ]
    }
    one = json.loads(final_reply(finals, words=False, alternatives=1))
    assert one == {"alternatives": [{"confidence": 0.75, "text": "one"}]}
    none = json.loads(final_reply([], words=True, alternatives=2))
    assert none == {"alternatives": [{"confidence": 1.0, "text": ""}]}


def test_segments_that_end_in_one_message_are_told_as_one():
    finals = [
        final(Hypothesis((ONE,), 0.5), Hypothesis((), 0.25)),
        final(Hypothesis((TWO,), 0.5)),
    ]
    best = json.loads(final_reply(finals, words=False, alternatives=0))
    assert best == {"text": "one two"}
    ranked = json.loads(final_reply(finals, words=False, alternatives=3))
    assert ranked["alternatives"] == [
        {"confidence": 0.25, "text": "one two"},
        {"confidence": 0.125, "text": "two"},
    ]


def test_times_are_told_from_the_beginning_of_the_connection():
    reply = final_reply(
        [final(Hypothesis((ONE,), 0.9))], words=True, alternatives=0, offset=10.0
    )
    word = json.loads(reply)["result"][0]
    assert (word["start"], word["end"]) == (10.5, 10.75)


@pytest.mark.parametrize("data", [b"", b"{", b"{\x80}", b"{" * 100_000, b"[1]", b"5"])
def test_binary_messages_that_are_no_json_object_are_samples(data):
    assert text_in(data) is None
    assert text_in(b'{"eof" : 1}\n') == '{"eof" : 1}\n'


def wav(rate=8000, channels=1, subtype="PCM_16", form="WAV"):
    stream = io.BytesIO()
    samples = np.zeros((800, channels))
    soundfile.write(stream, samples, rate, format=form, subtype=subtype)
    return stream.getvalue()


# A chunk before the form, and frames of AAC of 16 bytes with the length in the header.
LISTED = wav()[:12] + b"LIST\x05\0\0\0INFOx\0" + wav()[12:]
AAC = b"\xff\xf1\x60\x40\x02\x1f\xfc".ljust(16, b"\x21") * 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"OggS\0\2", r"samples of 16 bits, not a file \(Ogg\); send whole files to"),
        (b"\x1a\x45\xdf\xa3", r"\(WebM or Matroska\)"),
        (b"\0\0\0\x18ftypmp42", r"\(MP4\)"),
        (
            wav(16000),
            r"WAV file \(16 bits, 1 channel, 16000 Hz\), .* 1 channel, 8000 Hz",
        ),
        (wav(channels=2), "2 channels"),
        (wav(subtype="PCM_24"), "24 bits"),
        (wav(subtype="ULAW"), "no PCM samples"),
        (wav(subtype="MPEG_LAYER_III", form="MP3"), r"not a file \(MP3\)"),
        (wav(44100, 2, "MPEG_LAYER_III", "MP3"), r"not a file \(MP3\)"),
        (AAC, r"not a file \(AAC\)"),
    ],
)
@pytest.mark.parametrize("piece", [1, 3, 44, 100_000])
def test_files_that_are_not_the_samples_of_a_stream_are_refused(data, message, piece):
    beginning = Beginning()
    with pytest.raises(RefusedError, match=message) as refused:
        for at in range(0, len(data), piece):
            beginning.check(data[at : at + piece], 8000.0)
    assert refused.value.code == 1007


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\0" * 64, b"Ogg", b"RIFF", wav(), wav(form="WAVEX"), LISTED),
        b"\xff\xfb\x90\xc4" * 1000,
        b"\xff\xf1\x60\x40\x02\x1f\xfc".ljust(16, b"\x21") + bytes(9000),
    ],
)
@pytest.mark.parametrize("piece", [1, 38, 44, 100_000])
def test_samples_and_wav_files_of_the_stream_s_own_form_are_heard(data, piece):
    beginning = Beginning()
    for at in range(0, len(data), piece):
        beginning.check(data[at : at + piece], 8000.0)


def test_what_follows_the_beginning_is_heard_as_samples():
    beginning = Beginning()
    beginning.check(bytes(8192), 8000.0)
    beginning.check(AAC, 8000.0)
