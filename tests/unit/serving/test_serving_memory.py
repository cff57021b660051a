"""What `ulimit -v` leaves a server, and what it does where that is little."""

import json
import resource

import httpx
import numpy as np
import pytest
from fixtures.serving_server import (
    CHUNK,
    CountingSession,
    connect,
    counting_model,
    running_server,
)
from fixtures.waiting import PATIENCE, wait_until

from latflow.serving import memory, scheduler
from latflow.serving.memory import AddressSpace

MIB = 1 << 20
AUDIO = np.full(CHUNK, 1, "<i2").tobytes()


@pytest.fixture
def left(monkeypatch):
    """Have the limit leave so many MiB from now on."""
    monkeypatch.setattr(scheduler, "Session", CountingSession)

    def limit(mib):
        pages = int(memory._PAGES.read_text().split()[0])
        most = pages * resource.getpagesize() + mib * MIB
        monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (most, most))

    return limit


def test_work_leaves_a_reserve(left):
    space = AddressSpace(100 * MIB)
    left(400)
    with space.taking(150 * MIB):
        with pytest.raises(MemoryError), space.taking(200 * MIB):
            pass
        with space.taking(50 * MIB):
            pass
    with space.taking(200 * MIB):
        pass
    with pytest.raises(MemoryError), space.taking(350 * MIB):
        pass


def test_what_is_kept_for_later_is_given_up_first(left):
    space, asked = AddressSpace(0), []

    def spare():
        asked.append(1)
        left(500)

    space.spares.append(spare)
    left(100)
    assert space.has(50 * MIB)
    assert not asked
    with space.taking(300 * MIB):
        assert asked == [1]


def test_without_a_limit_nothing_is_refused():
    assert resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY
    with AddressSpace(1 << 60).taking(1 << 60):
        pass


def talk_to(running):
    with connect(running.url) as talk:
        talk.send(AUDIO)
        return json.loads(talk.recv(PATIENCE))


def test_a_server_at_its_limit_refuses_and_lives(left):
    model = counting_model()
    model.decoder = type("Decoder", (), {"free": lambda _: None})()
    reserve = 2000 * MIB
    with running_server(model, reserve=reserve) as running:
        assert talk_to(running) == {"partial": "1"}
        left(2000)
        for _ in range(5):
            assert "no memory for another session" in talk_to(running)["error"]
            url = f"{running.http}/v1/audio/transcriptions"
            reply = httpx.post(url, files={"file": AUDIO}, timeout=PATIENCE)
            assert reply.status_code == 503
            assert "no memory" in reply.json()["error"]["message"]
        left(4000)
        with connect(running.url) as talk:
            talk.send(AUDIO)
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}
            model.sessions[-1].num_bytes = 1500 * MIB
            talk.send(AUDIO)
            assert (
                "no memory for the session" in json.loads(talk.recv(PATIENCE))["error"]
            )
        wait_until(lambda: model.sessions[-1].is_closed)
        wait_until(lambda: running.service.scheduler.sessions == 0)
        assert talk_to(running) == {"partial": "1"}
