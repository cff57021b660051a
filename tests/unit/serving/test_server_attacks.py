"""A server against clients that break the protocol, hold connections, or flood it."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
import threading
import time
from functools import partial

import httpx
import numpy as np
import pytest
from fixtures.serving_server import (
    CHUNK,
    CountingSession,
    connect,
    counting_model,
    running_server,
    write_certificate,
)
from fixtures.waiting import PATIENCE, wait_until
from websockets.exceptions import ConnectionClosed, InvalidMessage, InvalidStatus

from latflow.features import resampling
from latflow.serving import guard, scheduler
from latflow.serving.guard import Connections, few_lines
from latflow.serving.options import SessionOptions
from latflow.serving.processes import Child, spawn
from latflow.serving.service import RefusedError, Service

pytestmark = pytest.mark.usefixtures("counting_sessions")
HANDSHAKE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
AUDIO = np.full(CHUNK, 1, "<i2").tobytes()
POST = b"POST /v1/audio/transcriptions HTTP/1.1\r\nHost: x\r\n"


def frame(opcode, data=b"", *, end=True, masked=True):
    """A frame of RFC 6455."""
    size = len(data)
    head = bytes([(0x80 if end else 0) | opcode])
    bit = 0x80 if masked else 0
    if size < 126:
        head += bytes([bit | size])
    else:
        head += bytes([bit | 126]) + size.to_bytes(2, "big")
    return head + (bytes(4) if masked else b"") + data  # a mask of zeros


def broken(rng):
    """Frames that begin a session and then break the protocol."""
    config = frame(1, b'{"config": {"sample_rate": 8000}}')
    text = frame(1, bytes(rng.integers(0, 256, 20, np.uint8)))
    faults = (
        frame(1, b"\xff\xfe"),
        text,
        frame(3),
        frame(11, b"x"),
        frame(2, AUDIO, masked=False),
        frame(0, b"x"),
        frame(9, bytes(126)),
        frame(9, end=False),
        frame(8, b"\x03"),
        frame(8, b"\x03\xe8\xff\xfe"),
        frame(8, b"\x00\x01"),
        frame(1, b"{", end=False) + frame(1, b"}"),
        b"\xff" * 20,
        frame(2, AUDIO)[:100],
        frame(1, b'{"eof": 1}') + frame(1, b"\xff"),
        frame(2, AUDIO) * 20 + frame(1, b"\xff"),
        bytes(rng.integers(0, 256, 200, np.uint8)),
    )
    begin = [b"", config][rng.integers(2)] + frame(2, AUDIO) * int(rng.integers(1, 4))
    return begin + faults[rng.integers(len(faults))]


async def break_it(port, number, seed):
    """Send so many connections, some at a time; leave them in several ways."""
    rng = np.random.default_rng(seed)
    gate = asyncio.Semaphore(40)

    async def one(raw, wait, reset):
        async with gate:
            with contextlib.suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(HANDSHAKE)
                await reader.readuntil(b"\r\n\r\n")
                writer.write(raw)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        while await reader.read(4096):
                            pass
                if reset:
                    writer.transport.abort()
                writer.close()

    waits = rng.choice([0.0, 0.005, 0.05], number).tolist()
    resets = (rng.random(number) < 0.5).tolist()
    await asyncio.gather(
        *(
            one(broken(rng), wait, reset)
            for wait, reset in zip(waits, resets, strict=True)
        )
    )


@pytest.mark.parametrize("number", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_connections_that_break_the_protocol_leave_no_session(number):
    model = counting_model()
    with running_server(model, max_sessions=100_000, idle=600) as running:
        asyncio.run(break_it(running.port, number, 3))
        time.sleep(0.5)
        wait_until(lambda: running.service.scheduler.sessions == 0)
        assert len(model.sessions) > number / 5
        wait_until(lambda: all(session.is_closed for session in model.sessions))
        with connect(running.url) as talk:
            talk.send(AUDIO)
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}


def idle(port, raw=b""):
    held = socket.create_connection(("127.0.0.1", port))
    held.sendall(raw)
    return held


def closes(held):
    """Whether the server ends a connection in time."""
    held.settimeout(PATIENCE)
    try:
        while held.recv(4096):
            pass
    except ConnectionError:
        pass
    held.close()
    return True


def in_time(begin):
    """What begins a connection; again where this busy machine missed the deadline."""
    for _ in range(4):
        with contextlib.suppress(OSError, InvalidMessage, httpx.TransportError):
            return begin()
    return begin()


def test_connections_that_ask_for_nothing_keep_nobody_out():
    few = {"max_connections": 20, "patience": PATIENCE}
    limited = running_server(counting_model(), **few)
    with limited as running, contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(contextlib.closing(idle(running.port, b"GET")))
        reply = httpx.get(f"{running.http}/health", timeout=PATIENCE)
        assert reply.status_code == 200
        with connect(running.url) as talk:
            talk.send(AUDIO)
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}
        text = httpx.get(f"{running.http}/metrics", timeout=PATIENCE).text
        (told,) = [one for one in text.splitlines() if 'al{reason="connection' in one]
        assert float(told.split()[-1]) >= 280


def test_connections_never_take_all_files(monkeypatch):
    monkeypatch.setattr(guard.resource, "getrlimit", lambda _: (256, 256))
    limits = Connections(10_000, 1.0)
    assert limits.most + limits.backlog + 64 <= 256
    assert limits.most > 50
    assert Connections(5, 1.0).most == 5


def test_the_head_of_a_request_has_a_deadline():
    with running_server(counting_model(), patience=0.5) as running:
        silent, slow = idle(running.port), idle(running.port, b"GET /heal")
        again = idle(running.port, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET")
        for held in (silent, slow, again):
            assert closes(held)
        begin = partial(connect, running.url)
        with in_time(begin) as talk:  # what has begun goes on
            talk.send(AUDIO)
            time.sleep(1)
            talk.send(AUDIO)
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1 1"}


def test_handshakes_of_tls_are_connections_and_have_a_deadline(tmp_path):
    """Clients that begin the handshake, say nothing, or go on a byte at a time."""
    files = write_certificate(tmp_path)
    context = ssl.create_default_context(cafile=files["certificate"])
    hello, client = ssl.MemoryBIO(), ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        client.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="x").do_handshake()
    begun = hello.read()
    limited = running_server(counting_model(), max_connections=20, patience=2, **files)
    with limited as running, contextlib.ExitStack() as stack:
        health = running.http.replace("http:", "https:") + "/health"
        metrics = running.http.replace("http:", "https:") + "/metrics"
        held = [idle(running.port, begun[: 7 * i]) for i in range(300)]
        for one in held:
            stack.enter_context(contextlib.closing(one))
        ask = partial(httpx.get, timeout=PATIENCE, verify=context)
        assert in_time(lambda: ask(health)).status_code == 200
        text = in_time(lambda: ask(metrics)).text
        (told,) = [one for one in text.splitlines() if 'al{reason="connection' in one]
        assert float(told.split()[-1]) >= 280
        slow = stack.enter_context(contextlib.closing(idle(running.port, begun[:10])))
        with pytest.raises(ConnectionError):  # before the last byte, after 20 s
            for i in range(10, len(begun)):
                slow.sendall(begun[i : i + 1])
                time.sleep(0.05)
        assert all(closes(one) for one in held)
        url = running.url.replace("ws:", "wss:")
        with in_time(partial(connect, url, ssl=context)) as talk:
            talk.send(AUDIO)
            time.sleep(3)  # longer than any handshake may take
            talk.send(AUDIO)
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1 1"}


def trickle(port, seconds, ended):
    """Upload a byte at a time; return the answer."""
    form = b"Content-Type: multipart/form-data; boundary=b\r\n"
    held = idle(port, POST + form + b"Content-Length: 100000\r\n\r\n--b\r\n")
    held.settimeout(0.05)
    end, answer = time.monotonic() + seconds, b""
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            held.sendall(b"x")
        try:
            part = held.recv(4096)
        except TimeoutError:
            continue
        except ConnectionError:
            break
        answer += part
        if not part:
            break
    held.close()
    ended.append(answer)


def test_a_request_that_trickles_is_ended():
    ended = []
    with running_server(counting_model(), upload_time=1) as running:
        trickle(running.port, PATIENCE, ended)
    assert b"408" in ended[0].split(b"\r\n")[0]
    assert b"takes too long" in ended[0]


def test_the_end_of_the_server_ends_uploads():
    ended = []
    # The server's end would wait for them longer than this test waits for it.
    with running_server(counting_model(), grace=10 * PATIENCE) as running:
        thread = threading.Thread(
            target=trickle, args=(running.port, PATIENCE, ended), daemon=True
        )
        thread.start()
        wait_until(lambda: running.service._received > 5)
        running.end()
        thread.join(PATIENCE)
    assert b"503" in ended[0].split(b"\r\n")[0]
    assert b"the server is ending" in ended[0]


def test_uploads_are_admitted_before_they_are_taken():
    limited = running_server(counting_model(), max_sessions=1)
    with limited as running, connect(running.url) as talk:
        talk.send(AUDIO)
        talk.recv(PATIENCE)
        head = POST + b"Content-Length: 100000\r\n\r\n"
        with contextlib.closing(idle(running.port, head)) as held:
            held.settimeout(PATIENCE)
            assert b"503" in held.recv(4096)  # with nothing of its body sent


def test_uploads_at_a_time_have_a_size():
    with running_server(counting_model(), max_uploads=50_000) as running:
        reply = httpx.post(
            f"{running.http}/v1/audio/transcriptions",
            files={"file": bytes(60_000)},
            timeout=PATIENCE,
        )
        assert reply.status_code == 503
        assert "too many requests" in reply.json()["error"]["message"]
        reply = httpx.post(
            f"{running.http}/v1/audio/transcriptions",
            files={"file": bytes(40_000)},
            timeout=PATIENCE,
        )
        assert reply.status_code == 400  # no audio; and the first is not counted now
        assert running.service._received == 0


def test_pages_of_other_servers_may_be_kept_out():
    allowed = "https://a.example, http://b.example:8080"
    with running_server(counting_model(), origins=allowed) as running:
        for origin in ("https://evil.example", "null", "http://a.example"):
            with pytest.raises(InvalidStatus, match="403"):
                connect(running.url, origin=origin)
            reply = httpx.get(
                f"{running.http}/metrics", headers={"origin": origin}, timeout=PATIENCE
            )
            assert reply.status_code == 403
        for origin in ("https://a.example", running.http, None):
            with connect(running.url, origin=origin) as talk:
                talk.send(AUDIO)
                assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}


def test_tokens_of_any_characters(tmp_path):
    file = tmp_path / "token"
    file.write_text("schlüssel-鍵\n", encoding="utf-8")
    with running_server(counting_model(), token_file=str(file)) as running:
        path = f"{running.http}/metrics"
        for token, status in (
            ("schlüssel-鍵", 200), ("schlüssel", 401), ("\xff", 401), ("鍵", 401),
        ):  # fmt: skip
            header = {"authorization": f"Bearer {token}".encode()}
            assert (
                httpx.get(path, headers=header, timeout=PATIENCE).status_code == status
            )
        raw = {"authorization": b"Bearer \xff\xfe"}
        assert httpx.get(path, headers=raw, timeout=PATIENCE).status_code == 401
        for token in ("\ud800", "ü", "schlüssel-鍵"):
            with connect(running.url) as talk:
                talk.send(json.dumps({"config": {"token": token}}))
                talk.send(AUDIO)
                told = json.loads(talk.recv(PATIENCE))
            is_right = token == "schlüssel-鍵"
            refusal = {"error": "a bearer token is needed"}
            assert told == ({"partial": "1"} if is_right else refusal)


@pytest.mark.parametrize(
    "flood",
    [frame(9, b"x"), frame(9, bytes(125)), frame(0, end=False)],
    ids=["pings", "long pings", "parts"],
)
def test_a_flood_ends_the_connection(flood):
    with running_server(counting_model()) as running:
        begin = frame(2, AUDIO, end=False) if flood[0] == 0 else b""
        with contextlib.closing(idle(running.port, HANDSHAKE)) as held:
            held.recv(4096)
            held.sendall(begin)
            with contextlib.suppress(ConnectionError):
                for _ in range(1000):
                    held.sendall(flood * 100)
            assert closes(held)
        wait_until(lambda: running.service.scheduler.sessions == 0)


def test_empty_messages_count_as_what_waits():
    gate = threading.Event()

    def score(chunks):
        gate.wait(PATIENCE)
        return chunks

    limited = running_server(counting_model(score), max_queue=10_000)
    with limited as running, connect(running.url) as talk:
        talk.send(AUDIO)
        talk.socket.settimeout(2)
        with contextlib.suppress(TimeoutError, OSError, ConnectionClosed):
            talk.socket.sendall(frame(2) * 200_000)
        (connection,) = running.service._connections
        assert len(connection._inbox._messages) < 200
        gate.set()


def test_log_lines_that_clients_cause_are_few(caplog):
    with few_lines(), caplog.at_level(logging.WARNING):
        for i in range(1000):
            logging.getLogger("uvicorn.error").warning("Invalid request")
            logging.getLogger("asyncio").error("out of files %d", i)
    told = [record.message for record in caplog.records]
    assert len(told) == 40
    assert sum("no more of these are logged" in line for line in told) == 2


def test_filters_of_odd_rates_are_made_once_and_not_by_the_event_loop(monkeypatch):
    made = []
    whole = resampling._made

    def count(up, down):
        made.append(threading.current_thread())
        return whole(up, down)

    monkeypatch.setattr(resampling, "_made", count)

    class Resampling(CountingSession):
        def __init__(self, model, options, name):
            super().__init__(model, options, name)
            resampling.StreamingResampler(options.sample_rate, 8000)

    monkeypatch.setattr(scheduler, "Session", Resampling)
    loops = []
    answer = Service.begin

    async def begin(self, options, name, scheduler=None):
        loops.append(threading.current_thread())
        return await answer(self, options, name, scheduler)

    monkeypatch.setattr(Service, "begin", begin)
    with running_server(counting_model()) as running:
        for _ in range(3):
            with connect(running.url) as talk:
                talk.send('{"config": {"sample_rate": 191999}}')
                talk.send(AUDIO)
                talk.recv(PATIENCE)
    assert len(made) == 1
    assert len(loops) == 3
    assert made[0] not in loops
    assert resampling._filters._bytes <= 64 << 20


def test_a_client_that_leaves_while_its_session_is_made(monkeypatch):
    gate, made = threading.Event(), []

    class Slow(CountingSession):
        def __init__(self, model, options, name):
            gate.wait(PATIENCE)
            super().__init__(model, options, name)
            made.append(self)

    monkeypatch.setattr(scheduler, "Session", Slow)
    with running_server(counting_model()) as running:
        with connect(running.url) as talk:
            talk.send(AUDIO)
            wait_until(lambda: running.service.scheduler._opening == 1)
            talk.socket.shutdown(socket.SHUT_RDWR)
        time.sleep(0.3)
        gate.set()
        wait_until(lambda: made and made[0].is_closed)
        assert running.service.scheduler.sessions == 0


def test_a_session_without_memory_is_refused(monkeypatch):
    class Failing(CountingSession):
        def __init__(self, *_):
            raise MemoryError

    with running_server(counting_model(), max_sessions=2) as running:
        with monkeypatch.context() as patch:
            patch.setattr(scheduler, "Session", Failing)
            for _ in range(5):
                with pytest.raises(RefusedError, match="no memory"):
                    running.service.open(SessionOptions(), "x")
            with connect(running.url) as talk:
                talk.send(AUDIO)
                assert "no memory" in json.loads(talk.recv(PATIENCE))["error"]
        with connect(running.url) as talk:
            talk.send(AUDIO)
            assert json.loads(talk.recv(PATIENCE)) == {"partial": "1"}


def _say(pipe):
    pipe.send(None)


def test_workers_need_no_shared_memory(monkeypatch):
    """Nor does what tells that they are ready."""

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("_multiprocessing.SemLock", refuse)
    ready, tell = spawn.Pipe(duplex=False)
    assert not Child(None, None, ready).is_ready()
    _say(tell)
    child = Child(None, None, ready)
    assert child.is_ready()
    tell.close()
    assert child.is_ready()
    other, tell = spawn.Pipe(duplex=False)
    tell.close()
    assert not Child(None, None, other).is_ready()
