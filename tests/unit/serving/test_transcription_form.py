"""Fields of transcriptions as OpenAI's client, and others, send them."""

import io

import numpy as np
import openai
import pytest
import soundfile
from fixtures.serving_server import (
    CHUNK,
    RATE,
    counting_model,
    running_server,
)

pytestmark = pytest.mark.usefixtures("counting_sessions")


@pytest.fixture(scope="module")
def model():
    return counting_model()


@pytest.fixture(scope="module")
def transcribe(model):
    """Ask a server by OpenAI's client."""
    stream = io.BytesIO()
    samples = np.repeat(np.array([1, 2, 0, 3], np.int16), CHUNK)
    soundfile.write(stream, samples, RATE, format="WAV")
    with running_server(model) as running:
        client = openai.OpenAI(
            api_key="x", base_url=f"{running.http}/v1", max_retries=0
        )

        def ask(**fields):
            return client.audio.transcriptions.create(
                file=("a.wav", stream.getvalue()), model="any", **fields
            )

        yield ask


def refusal(transcribe, **fields):
    """What is wrong with some fields, and the field that it is."""
    with pytest.raises(openai.BadRequestError) as caught:
        transcribe(**fields)
    error = caught.value.response.json()["error"]
    return error["message"], error["param"]


def test_log_probabilities_of_words_are_those_of_tokens(transcribe):
    assert transcribe().logprobs is None
    found = transcribe(include=["logprobs"]).logprobs
    assert [one.token for one in found] == ["1", "2", "3"]
    assert found[1].logprob == pytest.approx(np.log(0.5))
    assert found[2].bytes == [51]


def test_streams_have_log_probabilities_too(transcribe):
    first, second, done = transcribe(include=["logprobs"], stream=True)
    assert [one.token for one in first.logprobs] == ["1", "2"]
    assert [one.token for one in second.logprobs] == ["3"]
    assert [one.token for one in done.logprobs] == ["1", "2", "3"]
    assert all(event.logprobs is None for event in transcribe(stream=True))


def test_key_words_are_phrases(transcribe, model):
    transcribe(keywords=["new york", "boston :6"])
    assert model.sessions[-1].options.phrases == ("new york", "boston :6")


@pytest.mark.parametrize(
    "value",
    [
        {"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 700},
        '{"type": "server_vad", "threshold": 0.6, "silence_duration_ms": 700}',
    ],
)
def test_how_speech_is_found_may_be_said(transcribe, model, value):
    transcribe(chunking_strategy=value)
    vad = model.sessions[-1].options.vad
    assert (vad.threshold, vad.min_silence) == (0.6, 0.7)


def test_speech_is_else_found_as_by_the_server(transcribe, model):
    transcribe(chunking_strategy="auto")
    assert model.sessions[-1].options.vad is None  # this server's own way


@pytest.mark.parametrize(
    ("fields", "param", "text"),
    [
        (
            {"include": ["tokens"]},
            "include",
            "include: 'tokens' is not one of logprobs",
        ),
        (
            {"include": ["logprobs"], "response_format": "srt"},
            "include",
            "include needs response_format json",
        ),
        (
            {"chunking_strategy": {"type": "server_vad", "threshold": "high"}},
            "chunking_strategy.threshold",
            "chunking_strategy.threshold: should be a valid number",
        ),
        ({"chunking_strategy": "[1]"}, "chunking_strategy", "'auto' or an object"),
        ({"chunking_strategy": "{"}, "chunking_strategy", "'auto' or an object"),
        (
            {"chunking_strategy": {"type": "speakers"}},
            "chunking_strategy.type",
            "'speakers' is not supported",
        ),
        (
            {"known_speaker_names": ["anne"]},
            "known_speaker_names",
            "speakers are not distinguished",
        ),
        (
            {"response_format": "diarized_json"},
            "response_format",
            "is not one of json, text, srt, vtt, verbose_json",
        ),
    ],
)
def test_what_cannot_be_is_refused(transcribe, fields, param, text):
    message, field = refusal(transcribe, **fields)
    assert field == param
    assert text in message
