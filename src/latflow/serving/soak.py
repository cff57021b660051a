"""A long load with clients that misbehave, together with others that don't.

Some vanish in the middle of an utterance, stall, send garbage, or come back at once;
what is asked is that the others lose nothing, and that the server's memory stays.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from latflow.errors import UserError
from latflow.serving.clients import ClientError, Server, VoskServer
from latflow.serving.load_report import LoadReport
from latflow.serving.load_test import Clock, Utterance, run_load, with_server
from latflow.serving.options import LoadOptions

_SAMPLES_A_MINUTE = 12  # of the server's memory
Fault = Callable[
    [VoskServer, Utterance, np.random.Generator], Coroutine[Any, Any, None]
]


@dataclass(frozen=True)
class SoakReport:
    """Outcome of the clients that behave, and of the server.

    Attributes:
        load: of the clients that behave.
        faults: how often each kind of misbehaviour was done.
        memory: (seconds, megabytes) of the server's processes; empty where no process
            was named.
        slope: growth of the memory in megabytes an hour, by least squares without the
            first quarter; None where it was not measured.
    """

    load: LoadReport
    faults: dict[str, int]
    memory: list[tuple[float, float]]
    slope: float | None

    def values(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def soak_server(
    url: str,
    audio: Sequence[str | Path],
    *,
    options: LoadOptions,
    misbehaving: int,
    process: int | None = None,
    utterances: int = 500,
    token: str | None = None,
) -> SoakReport:
    """Load a server at an address; see `soak` and `load_server`.

    Raises:
        UserError: its protocol is not Vosk's.
    """

    async def work(server: Server, speech: Sequence[Utterance]) -> SoakReport:
        if not isinstance(server, VoskServer):
            raise UserError(
                "misbehaviour is known for websockets only", remedy="give ws://..."
            )
        return await soak(
            server, speech, options, misbehaving=misbehaving, process=process
        )

    return with_server(url, audio, work, utterances=utterances, token=token)


async def soak(
    server: VoskServer,
    utterances: Sequence[Utterance],
    options: LoadOptions,
    *,
    misbehaving: int,
    process: int | None = None,
) -> SoakReport:
    """Load a server for as long as the options say.

    Args:
        server: of Vosk's protocol.
        utterances: taken in turn.
        options: of the clients that behave.
        misbehaving: number of the others.
        process: id of the server's first process, on this machine, for its memory.

    Raises:
        ClientError: not even one utterance alone is answered.
        UserError: there is no such process.
    """
    counts = dict.fromkeys(_FAULTS, 0)
    memory: list[tuple[float, float]] = []
    tasks = [
        asyncio.create_task(_misbehave(server, utterances, counts, options.seed + n))
        for n in range(misbehaving)
    ]
    if process is not None:
        megabytes(process)  # refused at once where there is none
        tasks.append(asyncio.create_task(_watch(process, memory)))
    try:
        load, _ = await run_load(server, utterances, options.replace(real_time=True))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return SoakReport(load, counts, memory, slope_of(memory))


async def _watch(process: int, memory: list[tuple[float, float]]) -> None:
    """Measure the memory of a process again and again."""
    clock = Clock()
    while True:
        memory.append((clock.now(), megabytes(process)))
        await asyncio.sleep(60 / _SAMPLES_A_MINUTE)


def megabytes(process: int) -> float:
    """Return the resident memory of a process and its children.

    Raises:
        UserError: there is no such process.
    """
    try:
        server = psutil.Process(process)
        size = server.memory_info().rss
        children = server.children()
    except psutil.NoSuchProcess:
        remedy = "give that of the server"
        raise UserError(f"no process {process}", remedy=remedy) from None
    for child in children:
        with suppress(psutil.Error):  # it has ended meanwhile
            size += child.memory_info().rss
    return size / 1e6


def slope_of(memory: Sequence[tuple[float, float]]) -> float | None:
    """Return the growth in megabytes an hour after the first quarter of the time."""
    late = [one for one in memory if one[0] >= memory[-1][0] / 4]
    if len(late) < 3:
        return None
    seconds, values = np.array(late).T
    return float(3600 * np.polyfit(seconds, values, 1)[0])


async def _misbehave(
    server: VoskServer,
    utterances: Sequence[Utterance],
    counts: dict[str, int],
    seed: int,
) -> None:
    """Do one misdeed after another."""
    generator = np.random.default_rng(seed)
    while True:
        name = str(generator.choice(list(_FAULTS)))
        utterance = utterances[int(generator.integers(len(utterances)))]
        counts[name] += 1
        with suppress(ClientError, TimeoutError):
            await _FAULTS[name](server, utterance, generator)
        await asyncio.sleep(generator.uniform(0, 0.5))


async def _send_some(connection: Any, utterance: Utterance, seconds: float) -> None:
    """Send the beginning of an utterance in real time."""
    size = utterance.sample_rate // 10
    clock = Clock()
    for begin in range(0, len(utterance.samples) - size, size):
        if begin > seconds * utterance.sample_rate:
            return
        await clock.until((begin + size) / utterance.sample_rate)
        await connection.send(utterance.samples[begin : begin + size], is_last=False)


async def _vanish(
    server: VoskServer, utterance: Utterance, generator: np.random.Generator
) -> None:
    """Break the connection in the middle of an utterance, without a word."""
    async with server.connect(utterance.sample_rate) as connection:
        await _send_some(connection, utterance, generator.uniform(0, utterance.seconds))
        connection.abort()


async def _stall(
    server: VoskServer, utterance: Utterance, generator: np.random.Generator
) -> None:
    """Send nothing for a while, read nothing, then leave."""
    async with server.connect(utterance.sample_rate) as connection:
        await _send_some(connection, utterance, utterance.seconds / 2)
        await asyncio.sleep(generator.uniform(1, 15))


async def _babble(
    server: VoskServer, utterance: Utterance, generator: np.random.Generator
) -> None:
    """Send what no client should."""
    async with server.connect(utterance.sample_rate) as connection:
        for _ in range(generator.integers(1, 20)):
            await connection.put(_nonsense(generator))


def _nonsense(generator: np.random.Generator) -> str | bytes:
    """Return a message that means nothing: bytes, text, JSON of wrong kinds."""
    match generator.integers(4):
        case 0:
            return generator.bytes(int(generator.integers(0, 5000)))
        case 1:
            return generator.bytes(20).decode("latin-1")
        case 2:
            return json.dumps({"config": {"sample_rate": "many"}})
        case _:
            return json.dumps([None, {"eof": generator.random()}])


async def _come_back(
    server: VoskServer, utterance: Utterance, generator: np.random.Generator
) -> None:
    """Open and close connections in haste."""
    end = time.monotonic() + generator.uniform(0.2, 2)
    while time.monotonic() < end:
        async with server.connect(utterance.sample_rate) as connection:
            await connection.send(utterance.samples[:100], is_last=False)


_FAULTS: dict[str, Fault] = {
    "vanish": _vanish,
    "stall": _stall,
    "babble": _babble,
    "come back": _come_back,
}
