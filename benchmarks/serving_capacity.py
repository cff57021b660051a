"""Real-time sessions of one core: `latflow serve` and the vosk wheel, the same model.

Each server has one core to itself (`taskset`), the load client another one; audio,
machine and run are the same. The peer is Vosk's recognizer behind a websocket server
that works as vosk-server does: each message is recognized in a pool of threads, the
event loop only waits.

    latflow package results/speechocean chain package --configfile ...
    latflow export-kaldi vosk results/speechocean chain vosk_model --configfile ...
    python benchmarks/serving_capacity.py package vosk_model <audio or sets>

Prints JSON for each server: the largest number of sessions whose p95 of the latency
holds the limit, all trials, and of a run over the same few utterances as fast as it
goes, in four sessions, the word error rate and the processor time that a second of
audio takes, which other work on the machine changes less than latency.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from latflow.serving.load_test import load_server
from latflow.serving.options import LoadOptions

SERVER_CORE, CLIENT_CORE = 0, 1
NUM_UTTERANCES = 40  # of the run as fast as it goes


def main() -> None:
    arguments = _arguments()
    if arguments.vosk_server:
        asyncio.run(_serve_vosk(arguments.vosk, arguments.port))
        return
    os.sched_setaffinity(0, {CLIENT_CORE})
    servers = {
        "latflow": [
            *(sys.executable, "-m", "latflow.cli.main", "serve", arguments.package),
            *("--workers", "1", "--threads", "1"),
        ],
        "vosk": [
            *(sys.executable, __file__, arguments.package, arguments.vosk),
            *("none", "--vosk-server"),
        ],
    }
    found = {
        name: _measure(command, arguments)
        for name, command in servers.items()
        if name in arguments.servers
    }
    if len(found) == 2:
        ours, theirs = (found[name] for name in servers)
        found["sessions_ratio"] = ours["capacity"] / max(1, theirs["capacity"])
        found["processor_ratio"] = theirs["processor"] / ours["processor"]
    found["load_average"] = os.getloadavg()
    print(json.dumps(found, indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", help="model package")
    parser.add_argument("vosk", help="model folder of Vosk, the same system")
    parser.add_argument("audio", nargs="+", help="audio files or sets")
    parser.add_argument("--servers", nargs="+", default=["latflow", "vosk"])
    parser.add_argument("--p95", type=float, default=120.0, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    parser.add_argument("--sessions", type=int, default=2, help="tried first")
    parser.add_argument("--utterances", type=int, default=200)
    parser.add_argument("--vosk-server", action="store_true", help="be the peer")
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args()


def _measure(command: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Search the capacity of a server, and take its processor time."""
    options = LoadOptions(
        sessions=arguments.sessions, seconds=arguments.seconds, real_time=True
    )
    what: dict[str, Any] = {"utterances": arguments.utterances}
    with _server(command) as (url, process):
        run = load_server(
            url, arguments.audio, options=options, p95=arguments.p95 / 1000, **what
        )
        # The client sends the first utterance twice, once alone.
        at_once = LoadOptions(sessions=4, patience=300.0)
        before = _processor_time(process)
        (report,) = load_server(
            url, arguments.audio, options=at_once, utterances=NUM_UTTERANCES
        ).reports
        used = _processor_time(process) - before
    return {
        "capacity": run.capacity,
        "processor": used / report.audio_seconds,
        "wer": report.wer,
        "trials": [asdict(trial) for trial in run.reports],
    }


@contextmanager
def _server(command: list[str]) -> Iterator[tuple[str, int]]:
    """Run a server on a core; yield its address and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pinned = ["taskset", "-c", str(SERVER_CORE), *command, "--port", str(port)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    process = subprocess.Popen(pinned, stdout=sys.stderr, env=environment)
    try:
        _wait(port, process)
        yield f"ws://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(30)


def _wait(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server listens."""
    for _ in range(6000):
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    sys.exit("the server does not listen")


def _processor_time(process: int) -> float:
    """Return the seconds that a process and those it has started have computed."""
    total = 0.0
    for line in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = line.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended
        if process in {int(line.parent.name), int(fields[1])}:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def _serve_vosk(folder: str, port: int) -> None:
    """Serve Vosk's protocol with its wheel until the process is ended."""
    import vosk
    from websockets.asyncio.server import serve

    vosk.SetLogLevel(-1)
    model = vosk.Model(folder)
    pool = ThreadPoolExecutor(os.cpu_count())

    def recognize(recognizer: Any, samples: bytes) -> str:
        if recognizer.AcceptWaveform(samples):
            return recognizer.Result()
        return recognizer.PartialResult()

    async def talk(client: Any) -> None:
        loop = asyncio.get_running_loop()
        rate, recognizer = 16000.0, None
        async for message in client:
            if isinstance(message, str) and "config" in message:
                rate = json.loads(message)["config"]["sample_rate"]
                continue
            if recognizer is None:
                recognizer = vosk.KaldiRecognizer(model, rate)
                recognizer.SetWords(True)  # noqa: FBT003
            if isinstance(message, str):
                result = loop.run_in_executor(pool, recognizer.FinalResult)
                await client.send(await result)
                return
            answer = loop.run_in_executor(pool, recognize, recognizer, message)
            await client.send(await answer)

    async with serve(talk, "127.0.0.1", port, compression=None, ping_interval=None):
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    main()
