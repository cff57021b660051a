"""The server with a real system: clients get the words of a session of their own."""

import asyncio
import contextlib
import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from itertools import chain
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from fixtures.serving_process import (
    pcm,
    serving,
    words_alone,
    words_told,
    workers_of,
)
from fixtures.serving_server import connect, connect_async, running_server
from fixtures.waiting import PATIENCE
from websockets.exceptions import ConnectionClosed

from latflow.decode.options import SegmentationOptions
from latflow.serving import evaluation
from latflow.serving.service import RefusedError

EOF = '{"eof" : 1}'
VOSK_RATE = 16000  # of the samples that vosk-transcriber sends
# vosk-transcriber loads a model although the server has one: here it gets none.
VOSK_CLIENT = """
import sys
import vosk.transcriber.transcriber as client
client.Model = lambda **_: None
import vosk.transcriber.cli as cli
(server,) = [a for a in cli.parser._actions if "--server" in a.option_strings]
assert server.const == "ws://localhost:2700"
server.const = sys.argv.pop(1)
cli.main()
"""
# In the place of ffmpeg: the samples of a file, as the client asks for them.
FFMPEG = """#!{python}
import sys
import numpy as np, soundfile
assert sys.argv[sys.argv.index("-ar") + 1] == "16000.0", sys.argv
samples, rate = soundfile.read(sys.argv[sys.argv.index("-i") + 1])
times = np.arange(0, len(samples), rate / 16000)
wave = np.interp(times, np.arange(len(samples)), samples)
sys.stdout.buffer.write((wave * 32767).astype("<i2").tobytes())
"""


@pytest.fixture(scope="module")
def server(model):
    with running_server(model, evaluate=True) as running:
        yield running


def test_clients_at_once_get_the_finals_of_lone_sessions(server, model, digits):
    async def one(utterance, seed):
        rng = np.random.default_rng(seed)
        data = pcm(digits.samples(utterance)).tobytes()
        replies, begin = [], 0
        async with connect_async(server.url) as talk:
            while begin < len(data):
                size = int(rng.integers(1, 4000))
                await talk.send(data[begin : begin + size])
                replies.append(json.loads(await talk.recv()))
                begin += size
            await talk.send(EOF)
            replies.append(json.loads(await talk.recv()))
        return replies

    async def all_of_them():
        return await asyncio.gather(
            *(one(u, seed) for seed in range(2) for u in digits.texts)
        )

    found = asyncio.run(all_of_them())
    for utterance, replies in zip([*digits.texts] * 2, found, strict=True):
        alone = words_alone(model, pcm(digits.samples(utterance)))
        told = words_told(replies)
        assert [words for words in told if words] == [words for words in alone if words]
        assert any(reply.get("partial") for reply in replies)
    texts = [
        " ".join(word for words in words_told(replies) for word, _, _ in words)
        for replies in found
    ]
    right = sum(
        text == digits.texts[u] for text, u in zip(texts, digits.texts, strict=False)
    )
    assert right >= len(digits.texts) / 2  # it is speech that is recognized


def test_a_file_by_http_has_the_words_of_the_websocket(server, model, digits):
    for utterance, path in list(digits.audio.items())[:3]:
        reply = httpx.post(
            f"{server.http}/v1/audio/transcriptions",
            files={"file": (path.name, path.read_bytes())},
            data={
                "model": "whisper-1",
                "response_format": "verbose_json",
                "timestamp_granularities[]": ["word", "segment"],
            },
            timeout=PATIENCE,
        ).json()
        alone = words_alone(model, pcm(digits.samples(utterance)))
        told = [(w["word"], w["start"], w["end"]) for w in reply["words"]]
        assert told == [word for words in alone for word in words]
        assert reply["text"].split() == [word for word, _, _ in told]
        assert all(0 <= w["confidence"] <= 1 for w in reply["words"])


def test_evaluation_of_samples_and_of_features(server, model, digits):
    samples = digits.samples(next(iter(digits.texts)))
    front_end = model.front_end()
    features = np.concatenate([front_end.accept(samples), front_end.finish()])

    def ask(output, **arrays):
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        url = f"{server.http}/v1/evaluate?output={output}"
        return httpx.post(url, content=stream.getvalue(), timeout=PATIENCE)

    def arrays_of(reply):
        return np.load(io.BytesIO(reply.content))

    scores = arrays_of(ask("log_likelihoods", features=features))["log_likelihoods"]
    wanted = model.acoustics.log_likes(features)
    np.testing.assert_allclose(scores, wanted, rtol=1e-4, atol=1e-4)
    posteriors = arrays_of(ask("posteriors", features=features))["posteriors"]
    np.testing.assert_allclose(posteriors.sum(axis=1), 1, rtol=1e-4)
    same = arrays_of(ask("posteriors", samples=samples))["posteriors"]
    np.testing.assert_allclose(same, posteriors, atol=1e-5)
    alignment = posteriors.argmax(axis=1)
    alignment[0] = posteriors[0].argmin()
    told = ask("loss", features=features, alignment=alignment).json()
    picked = posteriors[np.arange(len(alignment)), alignment].astype(np.float64)
    assert told["frames"] == len(alignment)
    assert told["loss"] == pytest.approx(-np.log(picked).mean(), rel=1e-3)
    assert told["accuracy"] == pytest.approx(1 - 1 / len(alignment))
    for output, arrays, message in (
        ("loss", {"features": features}, "needs alignment"),
        ("loss", {"features": features, "alignment": alignment[1:]}, "has shape"),
        ("loss", {"features": features, "alignment": alignment - 999}, "outside 0 to"),
        ("loss", {"features": features[:, 1:]}, "frames x 23"),
        ("loss", {"alignment": alignment}, "needs features, or samples"),
        ("loss", {"features": features * np.nan}, "features hold values"),
        ("loss", {"samples": np.full(4000, np.inf)}, "samples hold values"),
        ("other", {"features": features}, "is not one of loss"),
        ("loss", {"features": np.array([object()])}, "not a .npz archive"),
    ):
        reply = ask(output, **arrays)
        assert reply.status_code == 400
        assert message in reply.json()["error"]["message"]
    reply = httpx.post(f"{server.http}/v1/evaluate", content=b"x", timeout=PATIENCE)
    assert reply.status_code == 400


def test_scores_that_are_not_finite_are_the_server_s_fault(model):
    """One line, and no archive of them."""

    class Broken:
        def log_likes(self, frames):
            return np.full((len(frames), 2), np.nan, np.float32)

    service = SimpleNamespace(
        model=SimpleNamespace(acoustics=Broken(), front_end=model.front_end)
    )
    frames = {"features": np.zeros((3, 23), np.float32)}
    with pytest.raises(RefusedError, match="scores are not finite") as refused:
        evaluation._evaluate(service, frames, "log_likelihoods")
    assert refused.value.status == 500


def test_the_client_of_vosk_s_wheel(server, model, digits, tmp_path):
    if importlib.util.find_spec("vosk") is None:
        pytest.skip("the wheel of vosk, whose client this is, is not installed")
    path = next(iter(digits.audio.values()))
    ffmpeg = tmp_path / "ffmpeg"
    ffmpeg.write_text(FFMPEG.format(python=sys.executable))
    ffmpeg.chmod(0o755)
    command = ["ffmpeg", "-i", str(path), "-ar", "16000.0"]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    heard = subprocess.run(
        command, env=environment, check=True, capture_output=True
    ).stdout
    out = tmp_path / "out.txt"
    subprocess.run(
        [
            *(sys.executable, "-c", VOSK_CLIENT, server.url, "-s"),
            *("-i", str(path), "-o", str(out), "-t", "txt"),
        ],
        env=environment,
        check=True,
        capture_output=True,
        timeout=PATIENCE,
    )
    alone = words_alone(model, np.frombuffer(heard, "<i2"), sample_rate=VOSK_RATE)
    lines = [" ".join(word for word, _, _ in words) for words in alone if words]
    assert out.read_text() == "".join(f"{line}\n" for line in lines)
    assert lines


@pytest.mark.slow
def test_a_command_serves_until_it_is_told_to_end(model, package, digits):
    samples = pcm(digits.samples(next(iter(digits.texts))))
    with serving(package) as (process, url), connect(url) as talk:
        talk.send(samples.tobytes())
        replies = [json.loads(talk.recv(PATIENCE))]
        process.send_signal(signal.SIGTERM)
        replies += [json.loads(message) for message in received(talk)]
        assert replies[-1]["error"] == "the server is ending"
        alone = words_alone(model, samples, vad=SegmentationOptions())
        assert [*chain(*words_told(replies))] == [*chain(*alone)]
        assert process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_killed_worker_harms_no_other_and_is_replaced(model, package, digits):
    samples = pcm(digits.samples(next(iter(digits.texts))))
    alone = [*chain(*words_alone(model, samples, vad=SegmentationOptions()))]
    with serving(package, "--workers", "2") as (process, url):
        before = workers_of(process)
        assert len(before) == 2
        with contextlib.ExitStack() as stack:
            talks = [stack.enter_context(connect(url)) for _ in range(8)]
            replies = []
            for talk in talks:
                talk.send(samples.tobytes())
                replies.append([json.loads(talk.recv(PATIENCE))])
            os.kill(before[0], signal.SIGKILL)
            told = []
            for talk, first in zip(talks, replies, strict=True):
                with contextlib.suppress(ConnectionClosed):
                    talk.send(EOF)
                    last = json.loads(talk.recv(PATIENCE))
                    told.append([*chain(*words_told([*first, last]))])
        # Clients of the killed one see that their connection is closed.
        assert told == [alone] * len(told)
        end = time.monotonic() + PATIENCE
        while len(now := workers_of(process)) < 2 or before[0] in now:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert before[1] in now
        with connect(url) as talk:
            talk.send(samples.tobytes())
            replies = [json.loads(talk.recv(PATIENCE))]
            talk.send(EOF)
            replies.append(json.loads(talk.recv(PATIENCE)))
        assert [*chain(*words_told(replies))] == alone


def received(talk):
    """Messages until the connection ends."""
    try:
        while True:
            yield talk.recv(PATIENCE)
    except ConnectionClosed:
        return
