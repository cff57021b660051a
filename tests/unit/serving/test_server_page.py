"""The server's page in a browser: headless Chromium, told what to do by its protocol.

Its microphone is a file (Chromium's fake device).
"""

import contextlib
import itertools
import json
import shutil
import subprocess
import time

import httpx
import numpy as np
import pytest
import soundfile
from fixtures.serving_server import connect, running_server
from fixtures.waiting import PATIENCE

from latflow.serving.options import SessionOptions

FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--remote-debugging-port=0", "--remote-allow-origins=*", "--mute-audio"),
    *("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"),
    *("--no-first-run", "--disable-background-networking"),
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(model):
    with running_server(model, SessionOptions(endpoint="off")) as running:
        yield running


@pytest.fixture(scope="module")
def spoken(digits, tmp_path_factory):
    """Two utterances with silence, as a WAV file, and what they say."""
    pieces, texts = [], []
    for utterance in list(digits.texts)[:2]:
        pieces += [digits.samples(utterance), np.zeros(4000, np.float32)]
        texts += digits.texts[utterance].split()
    path = tmp_path_factory.mktemp("spoken") / "speech.wav"
    soundfile.write(path, np.concatenate(pieces), 8000, subtype="PCM_16")
    return path, texts


class Page:
    """A page of a browser that is open."""

    def __init__(self, socket):
        self._socket = socket
        self._numbers = itertools.count(1)

    def call(self, method, **parameters):
        """Call a method of Chromium's protocol and return its result."""
        number = next(self._numbers)
        call = {"id": number, "method": method, "params": parameters}
        self._socket.send(json.dumps(call))
        while True:
            reply = json.loads(self._socket.recv(PATIENCE))
            if reply.get("id") == number:
                assert "error" not in reply, reply
                return reply["result"]

    def value(self, expression):
        """Evaluate an expression of JavaScript."""
        result = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            userGesture=True,
            awaitPromise=True,
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, expression):
        """Wait until an expression is true, and return its value."""
        # A page that is being loaded has no body, and its expressions may fail.
        guarded = f"(() => {{ try {{ return {expression} }} catch {{}} }})()"
        end = time.monotonic() + PATIENCE
        while not (value := self.value(guarded)):
            told = self.value("document.body?.innerText")
            assert time.monotonic() < end, told
            time.sleep(0.1)
        return value


@contextlib.contextmanager
def page_of(url, folder, audio):
    """Open a page in a browser whose microphone is a file."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium, the browser, is not installed")
    told = folder / "DevToolsActivePort"
    process = subprocess.Popen(
        [
            *(chromium, *FLAGS, f"--user-data-dir={folder}"),
            *(f"--use-file-for-fake-audio-capture={audio}", url),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end = time.monotonic() + PATIENCE
        while not (told.is_file() and told.read_text().count("\n")):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        address = f"http://127.0.0.1:{told.read_text().split()[0]}/json"
        while not (
            pages := [
                p
                for p in httpx.get(address, timeout=PATIENCE).json()
                if p["url"].startswith(url)
            ]
        ):
            assert time.monotonic() < end
            time.sleep(0.05)
        with connect(pages[0]["webSocketDebuggerUrl"], max_size=None) as socket:
            page = Page(socket)
            # At first the browser shows an empty page under the same address.
            page.wait_for("document.getElementById('record') !== null")
            page.wait_for("document.readyState === 'complete'")
            yield page
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_a_file_is_recognized_and_its_words_are_shown(server, spoken, tmp_path):
    path, texts = spoken
    with page_of(f"{server.http}/", tmp_path, path) as page:
        assert page.wait_for("document.getElementById('model').textContent")
        node = page.call("DOM.getDocument")["root"]["nodeId"]
        field = page.call("DOM.querySelector", nodeId=node, selector="#file")
        page.call("DOM.setFileInputFiles", files=[str(path)], nodeId=field["nodeId"])
        page.wait_for("document.getElementById('status').textContent === 'Done.'")
        words = page.value(
            "[...document.querySelectorAll('#finals .word')].map("
            "(w) => [w.textContent, +w.dataset.start, +w.dataset.end, +w.dataset.conf])"
        )
        told = [word for word, *_ in words]
        assert len(set(told) & set(texts)) >= len(set(texts)) / 2
        for _, start, end, sure in words:
            assert 0 <= start <= end <= soundfile.info(path).duration + 0.1
            assert 0 <= sure <= 1
        assert "confidence" in page.value("document.querySelector('.word').title")


def test_the_microphone_is_recognized_while_it_is_heard(server, spoken, tmp_path):
    path, texts = spoken
    with page_of(f"{server.http}/", tmp_path, path) as page:
        page.value("document.getElementById('record').click()")
        page.wait_for("document.getElementById('record').textContent === 'Stop'")
        page.wait_for(
            "document.getElementById('partial').textContent.split(' ').length > 2"
        )
        page.value("document.getElementById('record').click()")
        page.wait_for("document.getElementById('status').textContent === 'Done.'")
        words = page.value(
            "[...document.querySelectorAll('#finals .word')].map((w) => w.textContent)"
        )
        assert set(words) & set(texts)
    assert server.service.scheduler.sessions == 0


def test_a_refusal_is_shown(model, spoken, tmp_path):
    path, _ = spoken
    token = tmp_path / "token"
    token.write_text("secret")
    folder = tmp_path / "profile"
    with (
        running_server(model, token_file=str(token)) as server,
        page_of(f"{server.http}/", folder, path) as page,
    ):
        page.value("document.getElementById('record').click()")
        page.wait_for(
            "document.getElementById('status').textContent"
            " === 'a bearer token is needed'"
        )
        page.value("document.getElementById('token').value = 'secret'")
        page.value("document.getElementById('record').click()")
        page.wait_for("document.getElementById('partial').textContent")
