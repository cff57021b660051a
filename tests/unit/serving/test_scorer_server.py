"""A server whose workers share a scorer process, while processes of it are killed."""

import contextlib
import json
import os
import signal
import threading
import time
from itertools import chain
from pathlib import Path

import httpx
import pytest
from fixtures.serving_process import (
    pcm,
    serving,
    words_alone,
    words_told,
    workers_of,
)
from fixtures.serving_server import connect
from fixtures.waiting import PATIENCE
from websockets.exceptions import ConnectionClosed, InvalidMessage

from latflow.errors import UserError
from latflow.serving import workers
from latflow.serving.options import ServerOptions, SessionOptions

EOF = '{"eof" : 1}'


def talk(url, samples, pause=0.0):
    """All words of a session, in messages of 0.1 s; None where it was cut off."""
    replies = []
    try:
        with connect(url) as session:
            for begin in range(0, len(samples), 800):
                session.send(samples[begin : begin + 800].tobytes())
                replies.append(json.loads(session.recv(PATIENCE)))
                time.sleep(pause)
            session.send(EOF)
            replies.append(json.loads(session.recv(PATIENCE)))
    except (ConnectionClosed, InvalidMessage, OSError):
        return None
    return [*chain(*words_told(replies))]


class Crowd:
    """Clients in threads, each with utterances one after another, until it is told."""

    def __init__(self, url, said, number):
        self.wrong, self.right, self.cut_off = [], 0, 0
        self.ending = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=(url, said, i))
            for i in range(number)
        ]

    def _client(self, url, said, i):
        while not self.ending.is_set():
            samples, words = said[i % len(said)]
            found = talk(url, samples, pause=0.01)
            with self._lock:
                if found is None:
                    self.cut_off += 1
                elif found == words:
                    self.right += 1
                else:
                    self.wrong.append((found, words))
            i += 1

    def hear(self, more):
        """Wait until so many more utterances have been recognized."""
        seen = self.right
        while self.right < seen + more:
            time.sleep(0.05)

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ending.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def said(digits, model):
    samples = [pcm(digits.samples(name)) for name in list(digits.texts)[:4]]
    return [(one, [*chain(*words_alone(model, one))]) for one in samples]


def replaced(process, before):
    """Wait until as many processes are there as before, others among them."""
    end = time.monotonic() + PATIENCE
    while len(now := workers_of(process)) < len(before) or not set(now) - set(before):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_sessions_survive_the_scorer_and_other_workers(
    package, said, tmp_path, monkeypatch
):
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # others may serve beside
    options = ("--workers", "2", "--scorer", "on", "--segmentation", "endpoint")
    running = serving(package, *options)
    with running as (process, url):
        scorer, first, _ = workers_of(process)
        with Crowd(url, said, 12) as crowd:
            crowd.hear(5)
            all_before = workers_of(process)
            os.kill(scorer, signal.SIGKILL)
            replaced(process, all_before)
            crowd.hear(15)
            assert crowd.cut_off == 0
            all_before = workers_of(process)
            os.kill(first, signal.SIGKILL)
            replaced(process, all_before)
            crowd.hear(15)
        assert not crowd.wrong
        assert crowd.cut_off <= 12 * 3  # those of the worker, and while one is missing
        metrics = httpx.get(
            url.replace("ws", "http") + "/metrics", timeout=PATIENCE
        ).text
        values = dict(
            line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#"
        )
        assert float(values["latflow_batch_chunks_count"]) > 0
        assert float(values["latflow_batch_chunks_sum"]) >= crowd.right
        assert float(values["latflow_sessions"]) == 0
    assert process.returncode == 0
    assert f"scorer {scorer} ended" in running.log
    assert f"worker {first} ended" in running.log
    assert "Traceback" not in running.log
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_end_of_the_server_delivers_what_was_heard(package, said):
    samples, words = said[0]
    options = ("--scorer", "on", "--segmentation", "endpoint")
    with serving(package, *options) as (process, url), connect(url) as session:
        pids = workers_of(process)
        session.send(samples.tobytes())
        replies = [json.loads(session.recv(PATIENCE))]
        for pid in [process.pid, *pids]:  # as systemd tells all of a unit
            os.kill(pid, signal.SIGTERM)
        with contextlib.suppress(ConnectionClosed):
            while True:
                replies.append(json.loads(session.recv(PATIENCE)))
        assert replies[-1]["error"] == "the server is ending"
        assert [*chain(*words_told(replies))] == words
        assert process.wait(PATIENCE) == 0
        for pid in pids:
            assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
def test_processes_go_with_a_server_that_is_killed(package, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with serving(package, "--scorer", "on") as (process, _):
        pids = workers_of(process)
        assert len(pids) == 2
        process.kill()
        end = time.monotonic() + PATIENCE
        while any(Path(f"/proc/{pid}").exists() for pid in pids):
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("cuda", "has_network", "given", "expected"),
    [
        (False, True, {}, ("cpu", "off", 1)),
        (False, True, {"scorer": "on", "workers": 3}, ("cpu", "on", 3)),
        (True, True, {}, ("cuda", "on", 12)),
        (True, True, {"device": "cpu"}, ("cpu", "off", 1)),
        (True, True, {"workers": 14, "scorer": "off"}, ("cuda", "off", 14)),
        (True, False, {}, ("cpu", "off", 1)),
    ],
)
def test_the_machine_chooses_what_is_not_told(
    monkeypatch, cuda, has_network, given, expected
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: cuda)
    monkeypatch.setattr(workers, "num_cores", lambda: 16)
    found = workers.settled(ServerOptions(**given), has_network=has_network)
    assert (found.device, found.scorer, found.workers) == expected


def test_a_scorer_is_refused_where_memory_cannot_be_shared(monkeypatch, package):
    monkeypatch.setattr(workers, "CAN_SHARE", False)
    with pytest.raises(UserError, match="a scorer needs Linux"):
        workers.serve([package], ServerOptions(scorer="on"), SessionOptions())


def test_all_cores_count_where_a_process_has_no_affinity(monkeypatch):
    assert workers.num_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert workers.num_cores() == 7
