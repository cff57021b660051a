"""The server, by its own sockets, with sessions whose answers are known."""

import asyncio
import contextlib
import ctypes
import io
import json
import socket
import ssl
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest
import soundfile
from fixtures.serving_server import (
    CHUNK,
    RATE,
    connect,
    connect_async,
    counting_model,
    running_server,
    write_certificate,
)
from fixtures.waiting import PATIENCE, wait_until
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosed

from latflow.errors import UserError
from latflow.serving import transcriptions
from latflow.serving.options import ServerOptions, SessionOptions
from latflow.serving.workers import serve

pytestmark = pytest.mark.usefixtures("counting_sessions")
EOF = '{"eof" : 1}'
RESET = '{"reset" : 1}'

ALLOCATOR = """
import ctypes
import numpy as np
from latflow.serving.workers import free_at_once

class Info(ctypes.Structure):
    _fields_ = [(f"f{i}", ctypes.c_size_t) for i in range(10)]

mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Info

def is_mapped(size):
    before = mallinfo().f4  # hblkhd: bytes of arrays that the system lends singly
    array = np.empty(size, np.uint8)
    return mallinfo().f4 - before >= size

free_at_once()
is_mapped(24 << 20)  # freed at once, from which glibc learns
print(is_mapped(20 << 20))
"""


@pytest.fixture(scope="module")
def server():
    """One that is not ended by its tests."""
    with running_server(counting_model()) as running:
        yield running


def chunks(*numbers):
    """Audio of a word each; 0 ends a segment."""
    return np.repeat(np.array(numbers, "<i2"), CHUNK).tobytes()


def answer(talk, message):
    """The server's answer to a message."""
    talk.send(message)
    return json.loads(talk.recv(PATIENCE))


def end_of(talk):
    """The code and reason of the close frame, after what is left has been read."""
    try:
        while True:
            talk.recv(PATIENCE)
    except ConnectionClosed as closed:
        return closed.rcvd.code, closed.rcvd.reason


def measured(running, name):
    """A measurement of the server, by its line in Prometheus' form."""
    text = httpx.get(f"{running.http}/metrics", timeout=PATIENCE).text
    (line,) = [one for one in text.splitlines() if one.startswith(f"{name} ")]
    return float(line.rsplit(maxsplit=1)[1])


# Vosk's protocol


def test_each_message_of_audio_has_one_answer(server):
    with connect(server.url) as talk:
        talk.send('{"config": {"sample_rate": 8000}}')
        assert answer(talk, chunks(1)[:100]) == {"partial": ""}
        assert answer(talk, chunks(1)[100:]) == {"partial": "1"}
        assert answer(talk, chunks(2, 3)) == {"partial": "1 2 3"}
        reply = answer(talk, chunks(4, 0, 5))
        assert reply["text"] == "1 2 3 4"
        assert reply["result"][1] == {
            "conf": 0.5,
            "end": 0.2,
            "start": 0.1,
            "word": "2",
        }
        assert answer(talk, b"") == {"partial": "5"}
        reply = answer(talk, EOF)
        assert reply["text"] == "5"
        assert reply["result"][0]["start"] == 0.5
        assert end_of(talk) == (1000, "")


def test_audio_may_be_cut_anywhere(server):
    audio = chunks(1, 2, 0, 3)
    with connect(server.url) as talk:
        for i in range(0, len(audio), 333):
            answer(talk, audio[i : i + 333])
        assert answer(talk, EOF)["text"] == "3"


def test_json_in_binary_messages_is_no_audio(server):
    with connect(server.url) as talk:
        talk.send(b'{"config": {"words": false}}')
        assert answer(talk, chunks(0x7B7B)) == {"partial": str(0x7B7B)}  # all "{"
        assert answer(talk, EOF.encode() + b"\n")["text"] == str(0x7B7B)
        assert end_of(talk) == (1000, "")


def test_segments_that_end_in_one_message_are_one_answer(server):
    with connect(server.url) as talk:
        assert answer(talk, chunks(1, 0, 2, 0, 3))["text"] == "1 2"
        assert answer(talk, EOF)["text"] == "3"


def test_nothing_heard_is_an_empty_text(server):
    with connect(server.url) as talk:
        assert answer(talk, EOF) == {"text": ""}


def test_settings_of_clients_are_theirs_alone(server):
    with connect(server.url) as first, connect(server.url) as second:
        config = {"words": False, "max_alternatives": 2, "sample_rate": 16000}
        first.send(json.dumps({"config": config}))
        answer(first, chunks(1))
        answer(second, chunks(2))
        assert answer(first, EOF)["alternatives"] == [
            {"confidence": 0.75, "text": "1"},
            {"confidence": 0.25, "text": ""},
        ]
        # At 16 kHz a chunk is half as long.
        assert answer(second, EOF)["result"][0]["end"] == 0.1
    with connect(server.url) as talk:
        talk.send('{"config": {"sample_rate": 16000, "phrases": ["a b"]}}')
        answer(talk, chunks(1))
        options = server.service.model.sessions[-1].options
        assert (options.sample_rate, options.phrases) == (16000, ("a b",))
        assert answer(talk, EOF)["result"][0]["end"] == 0.05


def test_reset_tells_what_was_heard_and_times_go_on(server):
    with connect(server.url) as talk:
        answer(talk, chunks(1))
        assert answer(talk, RESET)["text"] == "1"
        assert answer(talk, RESET) == {"text": ""}
        talk.send('{"config": {"words": true}}')
        assert answer(talk, chunks(2)) == {"partial": "2"}
        assert answer(talk, EOF)["result"][0]["start"] == 0.1


def test_messages_sent_ahead_are_answered_in_order(server):
    with connect(server.url) as talk:
        for i in range(1, 50):
            talk.send(chunks(i))
        talk.send(EOF)
        replies = [json.loads(message) for message in talk]
        assert [len(r["partial"].split()) for r in replies[:-1]] == list(range(1, 50))
        assert replies[-1]["text"] == " ".join(map(str, range(1, 50)))


def test_many_clients_at_once_get_all_their_finals(server):
    async def one(number):
        async with connect_async(server.url) as talk:
            for part in range(10):
                await talk.send(chunks(number, part))
                json.loads(await talk.recv())
            await talk.send(EOF)
            return json.loads(await talk.recv())["text"]

    async def all_of_them():
        return await asyncio.gather(*(one(number) for number in range(1, 41)))

    for number, text in enumerate(asyncio.run(all_of_them()), start=1):
        # A zero ends a segment: the last one begins after the first part.
        parts = [f"{number} {part}" for part in range(1, 10)]
        assert text == " ".join(parts)
    wait_until(lambda: server.service.scheduler.sessions == 0)


# Refusals


@pytest.mark.parametrize(
    ("message", "code", "error"),
    [
        ("hello", 1007, "a text message must be JSON"),
        ('{"config": {"sample_rate": 1}}', 1007, "config.sample_rate: "),
        (
            '{"config": {"model": "other"}}',
            1008,
            "no model 'other' here",
        ),
        (b"\0" * ((1 << 20) + 2), 1009, "a message of 1048578 bytes"),
        (np.full(4, 666, "<i2").tobytes(), 1011, "internal error"),
        (b"OggS\0\2" + bytes(60), 1007, "a stream is samples"),
    ],
)
def test_what_is_refused_is_told_and_closed(server, message, code, error):
    with connect(server.url, max_size=None) as talk:
        reply = answer(talk, message)
        assert reply["error"].startswith(error)
        closed, reason = end_of(talk)
        assert closed == code
        assert reason.startswith(error[:100])
    wait_until(lambda: server.service.scheduler.sessions == 0)


def test_settings_after_audio_are_ignored_as_by_vosk(server):
    with connect(server.url) as talk:
        answer(talk, chunks(1))
        talk.send('{"config": {"words": false, "sample_rate": 16000}}')
        assert answer(talk, chunks(2)) == {"partial": "1 2"}
        assert [word["word"] for word in answer(talk, EOF)["result"]] == ["1", "2"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("hello", 1007),
        (b"\0" * ((1 << 20) + 2), 1009),
        (b"\0" * (9 << 20), 1009),  # of which the server keeps nothing
        ([b"\0" * (1 << 20)] * 9, 1009),  # in parts
    ],
)
def test_what_was_heard_is_told_before_a_refusal(server, message, code):
    with connect(server.url, max_size=None) as talk:
        answer(talk, chunks(1, 2))
        with contextlib.suppress(ConnectionClosed):  # before all of it is sent
            talk.send(message)
        assert json.loads(talk.recv(PATIENCE))["text"] == "1 2"
        assert "error" in json.loads(talk.recv(PATIENCE))
        assert end_of(talk)[0] == code


def test_the_served_model_may_be_asked_for(server):
    with connect(server.url) as talk:
        talk.send('{"config": {"model": "counting"}}')
        assert answer(talk, chunks(1)) == {"partial": "1"}


def test_the_largest_message_is_an_option():
    running = running_server(counting_model(), max_message=1000)
    with running as server, connect(server.url) as talk:
        talk.send(b"\0" * 1002)
        assert json.loads(talk.recv(PATIENCE))["error"].endswith(
            "at most 1000 are allowed"
        )
        assert end_of(talk)[0] == 1009


def test_too_many_sessions_are_refused_until_one_ends():
    with running_server(counting_model(), max_sessions=1) as running:
        with connect(running.url) as first, connect(running.url) as second:
            answer(first, chunks(1))
            assert "all 1 sessions are taken" in answer(second, chunks(2))["error"]
            assert end_of(second)[0] == 1013
            refused = httpx.post(
                f"{running.http}/v1/audio/transcriptions",
                files={"file": wave()},
                timeout=PATIENCE,
            )
            assert refused.status_code == 503
            assert refused.headers["retry-after"]
            assert answer(first, EOF)["text"] == "1"
        with connect(running.url) as third:
            assert answer(third, chunks(3)) == {"partial": "3"}


def test_sessions_have_a_length():
    running = running_server(counting_model(), max_session=0.3)
    with running as server, connect(server.url) as talk:
        answer(talk, chunks(1, 2, 3))
        talk.send(chunks(4))
        assert json.loads(talk.recv(PATIENCE))["text"] == "1 2 3"
        assert "0.3 s of audio" in json.loads(talk.recv(PATIENCE))["error"]
        assert end_of(talk)[0] == 1008


def test_clients_that_stall_are_sent_away_with_what_was_heard():
    with running_server(counting_model()) as running:
        with connect(running.url) as talk:
            answer(talk, chunks(1))
            # From the next message on, however long it takes to get here.
            options = running.service.options.replace(idle=0.3)
            running.service.options = options
            answer(talk, chunks(2))
            assert json.loads(talk.recv(PATIENCE))["text"] == "1 2"
            assert json.loads(talk.recv(PATIENCE))["error"] == "no message within 0.3 s"
            assert end_of(talk)[0] == 1008
        assert running.service.scheduler.sessions == 0


def test_clients_that_vanish_leave_no_session(server):
    before = server.service.scheduler.sessions
    for _ in range(5):
        with connect(server.url) as talk:
            answer(talk, chunks(1))
            talk.send(chunks(*range(1, 200)))
            talk.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: server.service.scheduler.sessions == before)
    wait_until(lambda: not server.service._connections)


def test_no_more_is_read_from_a_client_than_may_wait():
    gate = threading.Event()

    def score(batch):
        gate.wait(PATIENCE)
        return list(batch)

    starting = running_server(counting_model(score), max_queue=100_000)
    with (
        starting as running,
        socket.create_connection(("127.0.0.1", running.port)) as small,
        connect(running.url, sock=small) as talk,
    ):
        small.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 32_768)

        def flood():
            for _ in range(200):
                talk.send(chunks(*range(1, 11)))

        thread = threading.Thread(target=flood)
        thread.start()
        (connection,) = wait_for_connection(running)
        wait_until(lambda: connection._inbox._size >= 80_000)
        thread.join(0.3)
        assert thread.is_alive()  # 3 MB are more than the sockets hold
        assert connection._inbox._size <= 100_000
        # And yet the client, who waits, knows that the server is there.
        assert httpx.get(f"{running.http}/health", timeout=PATIENCE).status_code == 200
        gate.set()
        for _ in range(200):
            talk.recv(PATIENCE)
        thread.join(PATIENCE)
        assert answer(talk, EOF)["text"].split()[-1] == "10"


def wait_for_connection(running):
    """The connections of a server, when there are any."""
    wait_until(lambda: running.service._connections)
    return tuple(running.service._connections)


def test_pings_are_answered_while_the_network_is_at_work():
    gate = threading.Event()

    def score(batch):
        gate.wait(PATIENCE)
        return list(batch)

    with running_server(counting_model(score)) as running, connect(running.url) as talk:
        talk.send(chunks(1))
        for _ in range(3):
            assert talk.ping().wait(PATIENCE)
        gate.set()
        assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}


# The end of the server


def test_the_end_of_the_server_delivers_what_was_heard():
    with running_server(counting_model()) as running, connect(running.url) as talk:
        for i in range(1, 30):
            talk.send(chunks(i))
        assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}
        ending = threading.Thread(target=running.end)
        ending.start()
        replies = []
        with pytest.raises(ConnectionClosed) as closed:
            while True:
                replies.append(json.loads(talk.recv(PATIENCE)))
        assert closed.value.rcvd.code == 1012
        assert replies[-1] == {"error": "the server is ending"}
        # As far as they had arrived, and that in order.
        words = replies[-2]["text"].split()
        assert words == [str(i) for i in range(1, len(words) + 1)]
        ending.join(PATIENCE)
        with pytest.raises(ConnectionRefusedError):
            connect(running.url)


# Tokens and TLS


def test_a_token_is_needed_where_there_is_one(tmp_path):
    file = tmp_path / "token"
    file.write_text("secret\n")
    right = {"Authorization": "Bearer secret"}
    with running_server(counting_model(), token_file=str(file)) as running:
        for headers in (
            {},
            {"Authorization": "Bearer Secret"},
            {"Authorization": "secret"},
        ):
            with connect(running.url, additional_headers=headers) as talk:
                assert answer(talk, chunks(1)) == {"error": "a bearer token is needed"}
                assert end_of(talk)[0] == 1008
            reply = httpx.get(
                f"{running.http}/metrics", headers=headers, timeout=PATIENCE
            )
            assert reply.status_code == 401
        with connect(running.url) as talk:
            reply = answer(talk, '{"config": {"token": "nein"}}')
            assert reply == {"error": "a bearer token is needed"}
        with connect(running.url) as talk:
            talk.send('{"config": {"token": "secret"}}')
            assert answer(talk, chunks(1)) == {"partial": "1"}
        with connect(running.url, additional_headers=right) as talk:
            assert answer(talk, chunks(1)) == {"partial": "1"}
        assert (
            httpx.get(
                f"{running.http}/metrics", headers=right, timeout=PATIENCE
            ).status_code
            == 200
        )
        assert httpx.get(f"{running.http}/health", timeout=PATIENCE).status_code == 200
        assert httpx.get(f"{running.http}/", timeout=PATIENCE).status_code == 200


def test_tls(tmp_path):
    files = write_certificate(tmp_path)
    context = ssl.create_default_context(cafile=files["certificate"])
    with running_server(counting_model(), **files) as running:
        url = running.url.replace("ws:", "wss:")
        with connect(url, ssl=context) as talk:
            answer(talk, chunks(1))
            assert answer(talk, EOF)["text"] == "1"
        health = running.http.replace("http:", "https:") + "/health"
        assert (
            httpx.get(health, verify=context, timeout=PATIENCE).json()["status"] == "ok"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"token_file": "{tmp}/none"}, "no token can be read"),
        ({"token_file": "{tmp}/empty"}, "the token is empty"),
        ({"certificate": "{tmp}/none"}, "not a certificate with its key"),
        ({"certificate": "{tmp}/empty"}, "not a certificate with its key"),
        ({"key": "{tmp}/empty"}, "a key without a certificate"),
        ({"host": "256.0.0.1"}, "no address 256.0.0.1"),
    ],
)
def test_files_and_addresses_that_cannot_be_used(tmp_path, options, message):
    (tmp_path / "empty").write_text("")
    given = {name: value.format(tmp=tmp_path) for name, value in options.items()}
    with pytest.raises(UserError, match=message):
        serve([tmp_path], ServerOptions(**given), SessionOptions())


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"cannot listen on 127.0.0.1 port {port}"):
            serve([tmp_path], ServerOptions(port=port), SessionOptions())


# HTTP


def wave(*numbers, rate=RATE):
    """A file of audio, in memory."""
    stream = io.BytesIO()
    samples = np.frombuffer(chunks(*numbers), "<i2")
    soundfile.write(stream, samples, rate, format="WAV")
    return ("speech.wav", stream.getvalue(), "audio/wav")


def post(running, file=None, **fields):
    return httpx.post(
        f"{running.http}/v1/audio/transcriptions",
        files={"file": file or wave(1, 2, 0, 3)},
        data={"model": "whisper-1", **fields},
        timeout=PATIENCE,
    )


def test_transcriptions_in_all_forms(server):
    assert post(server).json()["text"] == "1 2 3"
    assert post(server, response_format="text").text == "1 2 3\n"
    srt = post(server, response_format="srt").text
    assert srt.startswith("1\n00:00:00,000 --> 00:00:00,200\n1 2\n")
    assert post(server, response_format="vtt").text.startswith("WEBVTT\n")
    verbose = post(server, response_format="verbose_json").json()
    assert verbose["duration"] == 0.4
    assert [s["text"] for s in verbose["segments"]] == ["1 2", "3"]
    assert [s["start"] for s in verbose["segments"]] == [0.0, 0.3]
    assert "words" not in verbose
    fields = {"timestamp_granularities[]": ["word"], "response_format": "verbose_json"}
    verbose = post(server, **fields).json()
    assert verbose["words"][1] == {
        "word": "2",
        "start": 0.1,
        "end": 0.2,
        "confidence": 0.5,
    }
    assert "segments" not in verbose


def test_files_of_other_rates_and_channels(server):
    samples = np.frombuffer(chunks(4, 8), "<i2").astype(np.int16)
    stream = io.BytesIO()
    soundfile.write(stream, np.stack([samples, samples * 0], 1), 16000, format="FLAC")
    file = ("x.flac", stream.getvalue(), "audio/flac")
    reply = post(server, file, response_format="verbose_json").json()
    assert (reply["text"], reply["duration"]) == ("2 4", 0.1)


def test_an_upload_with_a_header_of_no_length_is_read_to_the_end(server):
    name, content, kind = wave(1, 2, 3)
    at = content.index(b"data") + 4
    mended = post(server, (name, content[:at] + bytes(4) + content[at + 4 :], kind))
    (warning,) = mended.json()["warnings"]
    assert "a header with a wrong length" in warning
    whole = post(server, (name, content, kind)).json()
    assert mended.json() == {**whole, "warnings": [warning]}


def test_fields_that_have_no_effect_are_named(server):
    known = {
        "model": "any",
        "temperature": "0",
        "chunking_strategy[type]": "server_vad",
    }
    file = wave(1, 2, 3)
    assert "warnings" not in post(server, file, **known).json()
    reply = post(server, file, vad_filter="true", phrase="one", **known).json()
    assert reply["warnings"] == ["fields without effect: phrase, vad_filter"]


@pytest.mark.parametrize(
    ("file", "fields", "status", "message"),
    [
        (
            ("a.wav", b"nonsense", "audio/wav"),
            {},
            400,
            "is in no format that is read here",
        ),
        (("a.wav", b"", "audio/wav"), {}, 400, "audio file a.wav is empty (0 bytes)"),
        (
            None,
            {"response_format": "docx"},
            400,
            "response_format 'docx' is not one of",
        ),
        (None, {"timestamp_granularities[]": "word"}, 400, "needs response_format"),
        (
            None,
            {"timestamp_granularities[]": "x", "response_format": "verbose_json"},
            400,
            "timestamp_granularities: 'x' is not one of segment, word",
        ),
        (
            None,
            {"stream": "perhaps"},
            400,
            "stream 'perhaps' is not one of false, 0, true",
        ),
        (
            None,
            {"stream": "true", "response_format": "srt"},
            400,
            "stream needs response_format json or text",
        ),
        (wave(666), {}, 500, ""),
    ],
)
def test_requests_that_are_refused(server, file, fields, status, message):
    reply = post(server, file, **fields)
    assert reply.status_code == status
    if message:
        assert message in reply.json()["error"]["message"]
    assert server.service.scheduler.sessions == 0


def test_a_refusal_names_the_field(server):
    error = post(server, response_format="docx").json()["error"]
    assert error == {
        "message": "response_format 'docx' is not one of json, text, srt, vtt, "
        "verbose_json",
        "type": "invalid_request_error",
        "param": "response_format",
        "code": "request",
    }


def test_a_file_that_is_cut_short_is_told_as_by_transcribe(server):
    name, data, kind = wave(1, 2, 3)
    reply = post(server, (name, data[:-400], kind))
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert message.startswith(f"audio {name} is cut short")
    assert message.endswith("restore the file, or fix its path")


def test_samples_that_are_no_numbers_are_told(server):
    stream = io.BytesIO()
    samples = np.full(8000, np.nan, np.float32)
    soundfile.write(stream, samples, RATE, format="WAV", subtype="FLOAT")
    reply = post(server, ("nan.wav", stream.getvalue(), "audio/wav"))
    message = reply.json()["error"]["message"]
    assert "nan.wav has samples that are NaN or infinite" in message
    assert server.service.scheduler.sessions == 0


def events(reply):
    """The server-sent events of a reply."""
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in reply.text.split("\n\n") if line]


def test_a_transcription_is_told_while_it_is_made(server):
    found = events(post(server, wave(1, 2, 0, 3, 0, 0, 4), stream="true"))
    assert [event["type"] for event in found] == [
        *["transcript.text.delta"] * 3,
        "transcript.text.done",
    ]
    done = found[-1]
    assert "".join(event["delta"] for event in found[:-1]) == done["text"] == "1 2 3 4"
    assert done["usage"] == {"type": "duration", "seconds": 1}
    assert server.service.scheduler.sessions == 0


def test_an_error_while_a_transcription_is_told_is_an_event(server):
    (error,) = events(post(server, wave(666), stream="true"))
    assert (error["type"], error["error"]["type"]) == ("error", "server_error")
    assert server.service.scheduler.sessions == 0


def test_errors_of_paths_and_methods_have_openai_s_form(server):
    reply = httpx.get(f"{server.http}/v1/chat/completions", timeout=PATIENCE)
    assert reply.status_code == 404
    assert reply.json()["error"]["message"] == "there is no /v1/chat/completions here"
    reply = httpx.get(f"{server.http}/v1/audio/transcriptions", timeout=PATIENCE)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert "does not take GET, but POST" in reply.json()["error"]["message"]


def test_a_client_chooses_one_of_several_models():
    one, two = counting_model(), counting_model()
    two.info.name = "second"
    with running_server([one, two]) as running:
        assert post(running, model="second").status_code == 200
        assert (len(one.sessions), len(two.sessions)) == (0, 1)
        assert post(running, model="").status_code == 200
        assert (len(one.sessions), len(two.sessions)) == (1, 1)
        reply = post(running, model="whisper-1")
        assert reply.status_code == 404
        error = reply.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"].endswith("there are: counting, second")
        with connect(running.url) as talk:
            talk.send('{"config": {"model": "second"}}')
            answer(talk, chunks(1))
            assert len(two.sessions) == 2
        names = [
            m["id"]
            for m in httpx.get(f"{running.http}/v1/models", timeout=PATIENCE).json()[
                "data"
            ]
        ]
        assert names == ["counting", "second"]


def test_a_model_that_cannot_be_streamed_takes_files():
    model = counting_model()
    model.is_streaming, model.info.why_not_streaming = False, "it looks ahead"
    with running_server(model) as running:
        with connect(running.url) as talk:
            error = answer(talk, chunks(1))["error"]
            assert error.startswith("counting cannot be streamed: it looks ahead")
            assert end_of(talk)[0] == 1008
        assert post(running, wave(*[0] * 10)).json()["text"] == ""
        assert not model.sessions  # there is no speech in it


def test_a_form_without_a_file(server):
    url = f"{server.http}/v1/audio/transcriptions"
    reply = httpx.post(url, files={"model": (None, "x")}, timeout=PATIENCE)
    assert (reply.status_code, reply.json()["error"]["message"]) == (
        400,
        "the form (multipart/form-data) has no file",
    )
    kind = {"content-type": "application/x-www-form-urlencoded"}  # curl --data-binary
    for headers, what in ((kind, kind["content-type"]), ({}, "a body without a")):
        data = b"&" * 1000
        reply = httpx.post(url, content=data, headers=headers, timeout=PATIENCE)
        assert reply.status_code == 400
        message = reply.json()["error"]["message"]
        assert message.startswith(what)
        assert "is no multipart/form-data; send the recording as its file" in message
    broken = httpx.post(
        url,
        content=b"x",
        headers={"content-type": "multipart/form-data; boundary=b"},
        timeout=PATIENCE,
    )
    assert broken.status_code == 400


def test_uploads_have_a_size_and_a_length():
    options = {"max_upload": 10_000, "max_session": 0.35}
    with running_server(counting_model(), **options) as running:
        assert post(running, wave(1, 2, 3)).status_code == 200
        reply = post(running, wave(1, 2, 3, 4))
        assert reply.status_code == 413
        assert "0.35 s of audio" in reply.json()["error"]["message"]
        reply = post(running, wave(*range(1, 20)))
        assert reply.status_code == 413
        assert "10000 bytes" in reply.json()["error"]["message"]
        reply = httpx.post(
            f"{running.http}/v1/audio/transcriptions",
            content=(b"x" * 1000 for _ in range(20)),  # its length is not told
            headers={"content-type": "multipart/form-data; boundary=b"},
            timeout=PATIENCE,
        )
        assert reply.status_code in {400, 413}


def test_health_models_and_the_page(server):
    health = httpx.get(f"{server.http}/health", timeout=PATIENCE).json()
    assert (health["status"], health["model"]) == ("ok", "counting")
    (model,) = httpx.get(f"{server.http}/v1/models", timeout=PATIENCE).json()["data"]
    assert model["id"] == "counting"
    assert (
        httpx.get(f"{server.http}/v1/models/counting", timeout=PATIENCE).json() == model
    )
    assert set(model) == {"id", "object", "created", "owned_by"}
    assert (
        httpx.get(f"{server.http}/v1/models/x/y", timeout=PATIENCE).status_code == 404
    )
    page = httpx.get(f"{server.http}/", timeout=PATIENCE)
    assert page.headers["content-type"].startswith("text/html")
    assert "getUserMedia" in page.text
    assert "//" not in page.text.split("<script>")[0]  # nothing from elsewhere
    assert httpx.get(f"{server.http}/v1/evaluate", timeout=PATIENCE).status_code == 404


def test_measurements():
    with running_server(counting_model()) as running:
        with connect(running.url) as talk:
            answer(talk, chunks(1, 0, 2))
            assert measured(running, "latflow_sessions") == 1
            answer(talk, EOF)
        with connect(running.url) as talk:
            answer(talk, "garbage")
        assert measured(running, "latflow_sessions") == 0
        assert measured(running, "latflow_sessions_opened_total") == 1
        assert measured(running, "latflow_finals_total") == 2
        assert measured(running, "latflow_audio_seconds_total") == pytest.approx(0.3)
        assert measured(running, 'latflow_refusals_total{reason="message"}') == 1
        assert measured(running, 'latflow_reply_seconds_count{kind="final"}') == 2
        assert measured(running, "latflow_batch_chunks_sum") == 3
        with running_server(counting_model()) as other:
            assert measured(other, "latflow_sessions_opened_total") == 0


# Anything at all


frames = (
    st.binary(max_size=5000)
    | st.text(max_size=200)
    | st.sampled_from([EOF, RESET, '{"config": {}}', chunks(1), chunks(0, 2), ""])
    | st.dictionaries(
        st.sampled_from(["config", "eof", "reset"]),
        st.none() | st.integers() | st.dictionaries(st.text(), st.integers()),
    ).map(json.dumps)
)


def talk_anything(url, messages):
    """Send messages of a client that knows no protocol; the server must answer."""
    with connect(url, max_size=None) as talk:
        with contextlib.suppress(ConnectionClosed):
            for message in (*messages, EOF):
                talk.send(message)
        code, _ = end_of(talk)
        assert code in {1000, 1007, 1008, 1009}


@settings(max_examples=30)
@given(st.lists(frames, max_size=10))
def test_any_messages_are_answered_or_refused(server, messages):
    talk_anything(server.url, messages)


@pytest.mark.slow
def test_ten_thousand_messages_of_any_kind(server):
    rng = np.random.default_rng(5)
    sent = 0
    while sent < 10_000:
        messages = [anything(rng) for _ in range(rng.integers(1, 40))]
        talk_anything(server.url, messages)
        sent += len(messages)
    with connect(server.url) as talk:
        answer(talk, chunks(1))
        assert answer(talk, EOF)["text"] == "1"
    wait_until(lambda: server.service.scheduler.sessions == 0)


def anything(rng):
    """A message: audio, mostly, or a known text with bytes changed."""
    if rng.random() < 0.8:
        return rng.bytes(rng.integers(0, 3000))
    known = [EOF, RESET, '{"config": {"sample_rate": 8000, "max_alternatives": 2}}']
    text = bytearray(known[rng.integers(len(known))].encode())
    for _ in range(rng.integers(0, 3)):
        text[rng.integers(len(text))] = rng.integers(32, 127)
    return text.decode()


@pytest.mark.slow
@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="needs glibc 2.33 or later"
)
def test_large_arrays_leave_the_process_when_they_are_freed():
    program = [sys.executable, "-c", ALLOCATOR]
    assert subprocess.run(program, capture_output=True, check=True).stdout == b"True\n"


def test_a_stream_of_events_is_kept_alive(server, monkeypatch):
    monkeypatch.setattr(transcriptions, "_ALIVE_SECONDS", 0.05)
    blocks = transcriptions._Recognition._blocks

    async def late(self):
        async for block in blocks(self):
            await asyncio.sleep(0.3)
            yield block

    monkeypatch.setattr(transcriptions._Recognition, "_blocks", late)
    reply = post(server, wave(1, 2), stream="true")
    lines = reply.text.split("\n\n")
    assert lines[0] == ": recognizing"
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [event["type"] for event in told] == [
        "transcript.text.delta",
        "transcript.text.done",
    ]


def test_a_client_that_pings_is_not_idle():
    idle = 0.5
    with running_server(counting_model(), idle=idle) as running:
        for _ in range(20):
            found, pause = after_pings(running.url, seconds=3 * idle)
            if pause < idle / 2:
                break
            # This machine had no time to ping: it may well have been sent away.
        assert found == {"partial": "1"}
        with connect(running.url) as talk:
            assert "no message within" in json.loads(talk.recv(PATIENCE))["error"]


def after_pings(url, seconds):
    """Ping for a time, then speak; return the answer, and the longest pause."""
    with connect(url) as talk:
        times = [time.monotonic()]
        with contextlib.suppress(ConnectionClosed):
            while times[-1] < times[0] + seconds:
                time.sleep(0.1)
                talk.ping()
                times.append(time.monotonic())
            return answer(talk, chunks(1)), max(np.diff(times))
    return None, max(np.diff([*times, time.monotonic()]))


PAGE = "https://page.example"


def test_pages_of_other_servers_read_answers_where_they_may():
    asked = {"origin": PAGE, "access-control-request-method": "POST"}
    asked["access-control-request-headers"] = "authorization"
    with running_server(
        counting_model(), cors_origin=f"http://a, {PAGE}/", origins="http://b"
    ) as running:
        url = f"{running.http}/v1/audio/transcriptions"
        allowed = httpx.options(url, headers=asked, timeout=PATIENCE)
        assert allowed.status_code == 200
        assert allowed.headers["access-control-allow-origin"] == PAGE
        assert "authorization" in allowed.headers["access-control-allow-headers"]
        reply = httpx.get(
            f"{running.http}/v1/models", headers={"origin": PAGE}, timeout=PATIENCE
        )
        assert reply.headers["access-control-allow-origin"] == PAGE
        other = httpx.get(
            f"{running.http}/v1/models",
            headers={"origin": "http://c"},
            timeout=PATIENCE,
        )
        assert other.status_code == 403
        assert "access-control-allow-origin" not in other.headers
        with connect(running.url, origin=PAGE) as talk:
            assert answer(talk, chunks(1)) == {"partial": "1"}


def test_no_page_of_another_server_reads_answers_by_default(server):
    reply = httpx.get(
        f"{server.http}/v1/models", headers={"origin": PAGE}, timeout=PATIENCE
    )
    assert "access-control-allow-origin" not in reply.headers
