"""A server in a thread of this process, on a port that is free; sessions that count."""

import contextlib
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest

from latflow.corpus.ctm import TimedWord
from latflow.serving.options import ServerOptions, SessionOptions
from latflow.serving.results import Final, Hypothesis, Partial, Segment
from latflow.serving.service import Service
from latflow.serving.workers import Server, bound_socket, service_of

PATIENCE = 60  # seconds; a test that needs them has failed
RATE = 8000
CHUNK = 800


class CountingSession:
    """Recognizes a word in each chunk: the number that all its samples are.

    A chunk of zeros ends a segment. Confidences are 1 / the word's place.
    """

    num_bytes = 0  # of a search
    warnings = ()

    def limit(self, most):
        """Search with so many bytes at most."""

    def __init__(self, model, options, name):
        self.model, self.options, self.name = model, options, name
        self.samples = np.zeros(0, int)
        self.has_ended, self.is_closed = False, False
        self.time, self.start, self.words = 0.0, 0.0, []
        model.sessions.append(self)

    def feed(self, samples):
        if samples.dtype == np.float32:
            samples = np.round(samples * 32768)
        if len(samples) and (samples == 666).all():
            raise RuntimeError("a fault of the session")
        self.samples = np.concatenate([self.samples, samples.astype(int)])
        return []

    def end(self):
        self.has_ended = True
        return [] if len(self.samples) else [self.final(0)]

    def take_chunk(self):
        if len(self.samples) < CHUNK and not (self.has_ended and len(self.samples)):
            return None
        chunk, self.samples = self.samples[:CHUNK], self.samples[CHUNK:]
        return chunk

    def advance(self, scores):
        length = len(scores) / (self.options.sample_rate or RATE)
        value = int(scores.max(initial=0))
        if value:
            sure = 1 / (1 + len(self.words))
            word = TimedWord(self.name, self.time, length, str(value), confidence=sure)
            self.words.append(word)
        self.time += length
        is_last = self.has_ended and not len(self.samples)
        if value and not is_last:
            return [Partial(self.start, " ".join(w.word for w in self.words))]
        return [self.final(0 if is_last else 2)]

    def final(self, rule):
        best = Hypothesis(tuple(self.words), 0.75)
        others = [Hypothesis((), 0.25)] * (self.options.max_alternatives > 1)
        segment = Segment(self.start, self.time, (best, *others), rule)
        self.words, self.start = [], self.time
        return Final(segment)

    def close(self):
        self.is_closed = True


def counting_model(score=list):
    """A model for `CountingSession`."""
    return SimpleNamespace(
        acoustics=SimpleNamespace(score=score),
        info=SimpleNamespace(name="counting", why_not_streaming=None),
        is_streaming=True,
        sample_rate=RATE,
        sessions=[],
    )


@dataclass
class Running:
    """A server that answers."""

    service: Service
    port: int
    end: object  # function that has it end as a signal would, and waits

    @property
    def url(self):
        """Of its websocket."""
        return f"ws://127.0.0.1:{self.port}/"

    @property
    def http(self):
        """Of its HTTP side."""
        return f"http://127.0.0.1:{self.port}"


def write_certificate(folder) -> dict[str, str]:
    """Write a certificate for 127.0.0.1, and its key; return the server's options."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
    )
    return {"certificate": str(certificate), "key": str(key)}


@contextlib.contextmanager
def running_server(model, session=None, **options) -> Iterator[Running]:
    """Serve a model, or several, with options other than the default ones."""
    models = model if isinstance(model, list) else [model]
    options = ServerOptions(port=0, threads=2, **options)
    ready = threading.Event()
    with (
        contextlib.closing(bound_socket(options)) as listener,
        service_of(models, options, session or SessionOptions()) as service,
    ):
        server = Server(service, ready.set)
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()

        def end():
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive()

        try:
            assert ready.wait(PATIENCE)
            yield Running(service, port, end)
        finally:
            end()
