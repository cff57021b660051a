"""Cheap clients of Vosk's websocket, so that a server is what is measured.

Frames are made before; what the server answers is counted, and not read.

Public: `frames_of`, `clients`, `RAMP`.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import numpy as np

from latflow.serving.load_test import Utterance

MESSAGE = 0.1  # seconds of speech
PATIENCE = 30.0  # seconds for a final
RAMP = 2.0  # seconds within which the clients begin; what ends then is not counted
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: bGF0Zmxvdy1iZW5jaG1hcg==\r\n\r\n"
)


def frames_of(utterance: Utterance) -> list[bytes]:
    """Return the frames of a client: configuration, samples, end."""
    size = round(MESSAGE * utterance.sample_rate)
    pieces = [
        utterance.samples[begin : begin + size].astype("<i2").tobytes()
        for begin in range(0, len(utterance.samples), size)
    ]
    config = json.dumps({"config": {"sample_rate": utterance.sample_rate}}).encode()
    return [
        _frame(config, 1),
        *(_frame(piece, 2) for piece in pieces),
        _frame(b'{"eof" : 1}', 1),
    ]


def _frame(payload: bytes, opcode: int) -> bytes:
    """Return a client's frame; its mask is zero, which leaves the payload as it is."""
    head = bytes([0x80 | opcode])
    if len(payload) < 126:
        return head + bytes([0x80 | len(payload)]) + bytes(4) + payload
    return head + b"\xfe" + len(payload).to_bytes(2, "big") + bytes(4) + payload


class Talk(asyncio.Protocol):
    """A session: an utterance at the speed of speech.

    Attributes:
        done: has the latency of the final, seconds.
        late: most seconds that a message was sent after its time.
    """

    def __init__(self, frames: list[bytes]) -> None:
        self._frames, self._loop = frames, asyncio.get_running_loop()
        self.done: asyncio.Future[float] = self._loop.create_future()
        self.late = 0.0
        self._buffer, self._answers = b"", 0
        self._is_open = False

    def connection_made(self, transport: Any) -> None:
        """Ask for a websocket."""
        self._transport = transport
        transport.write(UPGRADE)

    def data_received(self, data: bytes) -> None:
        """Take what the server sends."""
        self._buffer += data
        if not self._is_open:
            head, end, self._buffer = self._buffer.partition(b"\r\n\r\n")
            if not end:
                self._buffer = head
            elif head.startswith(b"HTTP/1.1 101"):
                self._begin()
            else:
                self._fail(head.partition(b"\r\n")[0].decode(errors="replace"))
        while self._is_open and self._take_frame():
            pass

    def _begin(self) -> None:
        """Send the configuration, and all else in its time."""
        self._is_open = True
        self._transport.write(self._frames[0])
        self._due = self._loop.time() + MESSAGE
        self._next = 1
        self._loop.call_at(self._due, self._speak)

    def _speak(self) -> None:
        """Send the samples that are due, after the last of them the end."""
        if self._transport.is_closing():
            return
        self.late = max(self.late, self._loop.time() - self._due)
        self._transport.write(self._frames[self._next])
        self._next += 1
        if self._next == len(self._frames) - 1:
            self._transport.write(self._frames[-1])
        else:
            self._due += MESSAGE
            self._loop.call_at(self._due, self._speak)

    def _take_frame(self) -> bool:
        """Take a frame of the server's, if it is there as a whole."""
        data = self._buffer
        if len(data) < 2:
            return False
        size, begin = data[1], 2
        if size >= 126:
            begin = 4 if size == 126 else 10
            size = int.from_bytes(data[2:begin], "big")
        if len(data) < begin + size:
            return False
        payload, self._buffer = data[begin : begin + size], data[begin + size :]
        if data[0] & 15 == 1:
            self._take(payload)
        elif data[0] & 15 == 9:
            self._transport.write(_frame(payload, 10))
        return True

    def _take(self, answer: bytes) -> None:
        """Take an answer: each message of samples has one, and so has the end."""
        if answer.startswith(b'{"error"'):
            self._fail(answer.decode())
            return
        self._answers += 1
        if self._answers == len(self._frames) - 1 and not self.done.done():
            self.done.set_result(self._loop.time() - self._due)
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that nothing more comes."""
        self._fail(f"connection lost: {exc}")

    def _fail(self, why: str) -> None:
        """End without a final."""
        if not self.done.done():
            self.done.set_exception(ConnectionError(why))
        self._transport.close()


def clients(
    port: int, sessions: int, talks: list[list[bytes]], seconds: float, seed: int
) -> dict[str, Any]:
    """Have a process's share of the sessions (entry of the process)."""
    return asyncio.run(_talk_all(port, sessions, talks, seconds, seed))


async def _talk_all(
    port: int, sessions: int, talks: list[list[bytes]], seconds: float, seed: int
) -> dict[str, Any]:
    """Talk in so many sessions, one utterance after another, until the time is over."""
    loop, generator = asyncio.get_running_loop(), np.random.default_rng(seed)
    latencies: list[float] = []
    errors: list[str] = []
    late = 0.0
    begin, used = loop.time(), time.process_time()

    async def client(offset: float, turn: int) -> None:
        nonlocal late
        await asyncio.sleep(offset)
        while loop.time() < begin + RAMP + seconds:
            frames = talks[turn % len(talks)]
            turn += 1
            try:
                transport, talk = await loop.create_connection(
                    lambda frames=frames: Talk(frames), "127.0.0.1", port
                )
                limit = MESSAGE * len(frames) + PATIENCE
                latency = await asyncio.wait_for(talk.done, limit)
            except (OSError, TimeoutError) as error:
                errors.append(str(error) or "no final in time")
                await asyncio.sleep(0.1)
                continue
            transport.close()
            late = max(late, talk.late)
            if begin + RAMP < loop.time() <= begin + RAMP + seconds:
                latencies.append(latency)

    offsets = generator.uniform(0, RAMP, sessions)
    turns = generator.integers(0, len(talks), sessions)
    await asyncio.gather(*map(client, offsets.tolist(), turns.tolist()))
    processor = time.process_time() - used
    return {
        "latencies": latencies,
        "errors": errors,
        "late": late,
        "processor": processor,
    }
