"""The same audio by all ways: a file, HTTP, websockets of any rate, realtime."""

import base64
import io
import json
import re

import httpx
import numpy as np
import pytest
import soundfile
from fixtures.serving_server import connect, running_server
from fixtures.waiting import PATIENCE
from scipy.signal import resample_poly

from latflow.decode.options import SegmentationOptions, TranscribeOptions
from latflow.lattice.edit_distance import count_errors
from latflow.serving.options import SessionOptions
from latflow.serving.recording import find_recordings
from latflow.serving.transcribe import Fault, transcribe

RATE = 8000  # of the speech, and of the model
RATES = {8000: (1, 1), 16000: (2, 1), 44100: (441, 80), 48000: (6, 1)}


@pytest.fixture(scope="module")
def server(model):
    with running_server(model, SessionOptions(vad=SegmentationOptions())) as running:
        yield running


@pytest.fixture(scope="module")
def speech(digits):
    """The utterances, joined by pauses of a second."""
    waves = [digits.samples(utterance) for utterance in digits.audio]
    silence = np.random.default_rng(0).normal(0, 1e-3, RATE).astype(np.float32)
    return np.concatenate([silence, *(part for w in waves for part in (w, silence))])


@pytest.fixture(scope="module")
def by_file(model, speech, tmp_path_factory):
    """The words that `transcribe` finds."""
    return of_file(model, wav(speech), tmp_path_factory.mktemp("ways") / "a.wav")


def wav(samples, rate=RATE, kind="PCM_16"):
    """A WAV file."""
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format="WAV", subtype=kind)
    return stream.getvalue()


def of_file(model, content, path):
    """What `transcribe` gives for a file: words, or what is wrong."""
    path.write_bytes(content)
    options = TranscribeOptions()
    out = path.parent / "out"
    (found,) = transcribe(model, find_recordings([path]), options=options, out_dir=out)
    if isinstance(found, Fault):
        return f"{found.reason} - {found.remedy}".replace(str(path), path.name)
    return found.text.split()


def by_http(server, content, name="a.wav"):
    """What the server answers to a file."""
    url = f"{server.http}/v1/audio/transcriptions"
    files = {"file": (name, content)}
    told = httpx.post(url, files=files, data={"model": "x"}, timeout=PATIENCE).json()
    return told["error"]["message"] if "error" in told else told["text"].split()


def pcm(samples, rate):
    """16-bit samples of another rate."""
    up, down = RATES.get(rate, (3, 1))
    wave = resample_poly(samples, up, down)
    return np.round(np.clip(wave, -1, 32767 / 32768) * 32768).astype("<i2").tobytes()


def by_websocket(server, samples, rate):
    data, words = pcm(samples, rate), []
    with connect(server.url) as talk:
        talk.send(json.dumps({"config": {"sample_rate": rate}}))
        pieces = [data[at : at + 8000] for at in range(0, len(data), 8000)]
        for message in (*pieces, '{"eof" : 1}'):
            talk.send(message)
            words += json.loads(talk.recv(PATIENCE)).get("text", "").split()
    return words


def by_realtime(server, samples):
    data, words = pcm(samples, 24000), []
    with connect(f"{server.url}v1/realtime") as talk:
        for at in range(0, len(data), 24000):
            part = base64.b64encode(data[at : at + 24000]).decode()
            message = {"type": "input_audio_buffer.append", "audio": part}
            talk.send(json.dumps(message))
        talk.send('{"type": "input_audio_buffer.commit"}')
        talk.send('{"type": "input_audio_buffer.clear"}')
        while (event := json.loads(talk.recv(PATIENCE)))["type"] != (
            "input_audio_buffer.cleared"
        ):
            words += event.get("transcript", "").split()
    return words


def differences(one, other):
    """How many words differ."""
    return count_errors(one, other).errors


def test_a_file_has_the_same_words_over_http(server, speech, by_file, digits):
    said = [word for text in digits.texts.values() for word in text.split()]
    assert differences(said, by_file) <= len(said) / 2  # it is speech
    assert by_http(server, wav(speech)) == by_file


@pytest.mark.parametrize("rate", RATES)
def test_a_websocket_of_any_rate_has_the_same_words(server, speech, by_file, rate):
    found = by_websocket(server, speech, rate)
    # Another resampler and another detector stand before the same features.
    allowed = 0 if rate == RATE else max(1, len(by_file) // 20)
    assert differences(by_file, found) <= allowed


def test_realtime_has_the_same_words(server, speech, by_file):
    found = by_realtime(server, speech)
    assert differences(by_file, found) <= max(1, len(by_file) // 20)


def test_compressed_files_have_the_same_words(server, speech, by_file, tmp_path):
    av = pytest.importorskip("av", reason="PyAV writes the file")
    path = tmp_path / "a.m4a"
    with av.open(str(path), "w", format="ipod") as container:
        stream = container.add_stream("alac", rate=RATE)
        stream.layout = "mono"
        frame = av.AudioFrame.from_ndarray(speech[None], "fltp", "mono")
        frame.rate = RATE
        queue = av.AudioFifo()
        for one in av.AudioResampler("s16p", "mono", RATE).resample(frame):
            queue.write(one)
        while part := queue.read(4096, partial=True):
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    assert by_http(server, path.read_bytes(), path.name) == by_file


def loud(speech):
    return wav(speech * np.float32(8), kind="FLOAT")


def overfull(speech):
    return wav(speech * np.float32(32768), kind="FLOAT")


def infinite(speech):
    return wav(np.where(np.arange(len(speech)) == 900, np.inf, speech), kind="FLOAT")


def no_numbers(speech):
    return wav(np.where(np.arange(len(speech)) == 900, np.nan, speech), kind="DOUBLE")


def huge(speech):
    return wav(speech * np.float32(1e30), kind="FLOAT")


def truncated(speech):
    return wav(speech)[:-5001]


@pytest.mark.parametrize(
    "spoil", [loud, overfull, infinite, no_numbers, huge, truncated]
)
def test_a_strange_file_is_told_alike(server, model, speech, tmp_path, spoil):
    content = spoil(speech)
    assert by_http(server, content) == of_file(model, content, tmp_path / "a.wav")


def test_samples_beyond_full_scale_are_told(server, model, speech, tmp_path, caplog):
    content, said = overfull(speech), r"samples beyond full scale, the largest \d+"
    assert of_file(model, content, tmp_path / "a.wav")
    assert re.search(rf"a\.wav: \d+ {said}", caplog.text)
    url = f"{server.http}/v1/audio/transcriptions"
    data = {"model": "x", "response_format": "verbose_json"}
    for form in (data, {"model": "x"}, {"model": "x", "stream": "true"}):
        reply = httpx.post(
            url, files={"file": ("a.wav", content)}, data=form, timeout=PATIENCE
        ).text
        told = json.loads(reply.rpartition("data: ")[2])
        assert sum(bool(re.search(said, warning)) for warning in told["warnings"]) == 1
    quiet = httpx.post(
        url, files={"file": ("a.wav", wav(speech))}, data=data, timeout=PATIENCE
    ).json()
    assert "warnings" not in quiet


@pytest.mark.parametrize("vad", [None, SegmentationOptions()])
def test_floats_of_another_scale_are_told_in_the_answer(model, digits, vad):
    stream, samples = io.BytesIO(), digits.samples(next(iter(digits.audio))) * 3e4
    soundfile.write(stream, samples, RATE, format="WAV", subtype="FLOAT")
    with running_server(model, SessionOptions(vad=vad)) as running:
        files = {"file": ("x.wav", stream.getvalue(), "audio/wav")}
        url = f"{running.http}/v1/audio/transcriptions"
        reply = httpx.post(url, files=files, timeout=PATIENCE).json()
    assert sum("divide those of 16 bits" in said for said in reply["warnings"]) == 1
