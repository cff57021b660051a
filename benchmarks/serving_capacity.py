"""Real-time sessions that a server holds: `latflow serve` here, or beside Vosk's wheel.

    python benchmarks/serving_capacity.py --package P --audio A --sessions 64 160 400
    python benchmarks/serving_capacity.py --package P --audio A --device cuda \
        --workers 13 --sessions 400 700 1000 --seconds 20

starts a server of the package (with what is given of `--device`, `--workers`,
`--scorer`, `--max-batch`) and loads it with so many sessions at a time, whose clients
are cheap: a few processes send frames that were made before. It prints JSON, a trial
for each number of sessions: latency of the final by percentile (from the moment when
the last samples could be sent), cores that server and clients kept busy, how busy each
process is, connections of each worker, batches of the network. `--servers local shared`
measures two servers one after the other, with the network in each worker and with a
scorer process. Where kernels were never compiled, `latflow compile-kernels` goes first:
else each worker compiles them.

    python benchmarks/serving_capacity.py --package P --audio A --vosk vosk_model

gives each of two servers one core (`taskset`), the load client another one, the same
system (`latflow export-kaldi vosk`). The peer is Vosk's recognizer behind a websocket
server that works as vosk-server does: each message is recognized in a pool of threads,
the event loop only waits. It prints the largest number of sessions whose p95 holds the
limit, all trials, and of a run over the same few utterances as fast as it goes, in four
sessions, the word error rate and the processor time that a second of audio takes, which
other work on the machine changes less than latency.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from serving_clients import RAMP, clients, frames_of

from latflow.serving.load_test import load_server, read_audio
from latflow.serving.options import LoadOptions

SERVER_CORE, CLIENT_CORE = 0, 1
NUM_UTTERANCES = 40  # of the run as fast as it goes
READY = "listening on"
SOUNDS = (".wav", ".flac", ".ogg")


def main() -> None:
    arguments = _arguments()
    if arguments.vosk_server:
        asyncio.run(_serve_vosk(arguments.vosk, arguments.port))
    elif arguments.vosk:
        print(json.dumps(_compare(arguments), indent=1))
    else:
        print(json.dumps(_measure_all(arguments), indent=1))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--package", required=True, help="model package")
    parser.add_argument(
        "--audio", nargs="+", required=True, help="audio files, folders of them, sets"
    )
    parser.add_argument("--sessions", nargs="+", type=int, default=[2])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each trial")
    parser.add_argument("--utterances", type=int, default=200)
    parser.add_argument("--p95", type=float, default=120.0, help="milliseconds")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--scorer", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--chunk-length", type=float, default=0.24)
    parser.add_argument(
        "--servers",
        nargs="+",
        choices=("local", "shared"),
        help="measure --scorer off, on, or both",
    )
    parser.add_argument(
        "--clients", type=int, default=0, help="processes; 0: one for 300 sessions"
    )
    parser.add_argument("--vosk", help="model folder of Vosk, the same system")
    parser.add_argument("--vosk-server", action="store_true", help="be the peer")
    parser.add_argument("--port", type=int, default=0)
    return parser.parse_args()


# -- numbers of sessions ---------------------------------------------------------------


def _measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure each server at each number of sessions."""
    talks = [
        frames_of(one)
        for one in read_audio(
            _sounds(arguments.audio), limit=arguments.utterances, sample_rate=16000
        )
    ]
    kinds = {"local": "off", "shared": "on"}
    scorers = [kinds[name] for name in arguments.servers or ()] or [arguments.scorer]
    found = [_measure(arguments, scorer, talks) for scorer in scorers]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "utterances": len(talks),
        "servers": found,
        "load_average": os.getloadavg(),
    }


def _sounds(paths: Sequence[str]) -> list[str]:
    """Return paths with folders of audio files replaced by these."""
    found = []
    for path in map(Path, paths):
        files = sorted(f for f in path.glob("*") if f.suffix in SOUNDS)
        found += map(str, files or [path])
    return found


def _measure(
    arguments: argparse.Namespace, scorer: str, talks: list[list[bytes]]
) -> dict[str, Any]:
    """Start a server, and load it with each number of sessions."""
    most = max(arguments.sessions)
    command = [
        *(sys.executable, "-m", "latflow.cli.main", "serve", arguments.package),
        *("--device", arguments.device, "--workers", str(arguments.workers)),
        *("--threads", str(arguments.threads), "--scorer", scorer),
        *("--max-batch", str(arguments.max_batch)),
        *("--chunk-length", str(arguments.chunk_length)),
        *("--max-sessions", str(2 * most), "--max-connections", str(4 * most)),
    ]
    began = time.perf_counter()
    with _server(command) as (port, process):
        ready = time.perf_counter() - began
        _load(arguments, 2, port, process, talks, seconds=6.0)  # all is loaded once
        trials = [
            _load(arguments, sessions, port, process, talks, arguments.seconds)
            for sessions in arguments.sessions
        ]
    return {"scorer": scorer, "ready_seconds": ready, "trials": trials}


def _load(
    arguments: argparse.Namespace,
    sessions: int,
    port: int,
    process: int,
    talks: list[list[bytes]],
    seconds: float,
) -> dict[str, Any]:
    """Load a server with sessions in real time."""
    number = min(sessions, arguments.clients or -(-sessions // 300))
    spawn = multiprocessing.get_context("spawn")
    before, at = _state(port, process), time.perf_counter()
    with spawn.Pool(number) as pool:
        shares = [len(range(i, sessions, number)) for i in range(number)]
        running = pool.starmap_async(
            clients, [(port, n, talks, seconds, i) for i, n in enumerate(shares)]
        )
        time.sleep(RAMP + seconds / 2)
        connections = _connections(process)
        found = running.get()
    after, wall = _state(port, process), time.perf_counter() - at
    latencies = sorted(one for part in found for one in part["latencies"])
    errors = [one for part in found for one in part["errors"]]
    p50, p95, p99 = np.percentile(latencies or [np.nan], (50, 95, 99)) * 1000
    used = {name: after[name] - before[name] for name in before}
    batches = max(1.0, used["latflow_batch_chunks_count"])
    return {
        "sessions": sessions,
        "finals": len(latencies),
        "errors": len(errors),
        "messages": sorted(set(errors))[:5],
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "holds": not errors and bool(p95 <= arguments.p95),
        "late_ms": 1000 * max(part["late"] for part in found),
        "server_cores": used["processor"] / wall,
        "client_cores": sum(part["processor"] for part in found) / wall,
        "connections": connections,
        "chunks_in_a_batch": used["latflow_batch_chunks_sum"] / batches,
        "network_ms": 1000 * used["latflow_network_seconds_sum"] / batches,
        "step_ms": 1000
        * used["latflow_search_seconds_sum"]
        / max(1.0, used["latflow_search_seconds_count"]),
        "busy": [
            round(used[name] / wall, 2) for name in used if name.startswith("process ")
        ],
    }


def _state(port: int, process: int) -> dict[str, float]:
    """Return the counts of a server, and the processor time that it has taken."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    found = {
        name: float(value)
        for name, value in re.findall(
            r"^(latflow_\w+_(?:sum|count)) (\S+)$", text, re.M
        )
    }
    each = {f"process {pid}": _processor_time(pid) for pid in _family(process)}
    return {**found, **each, "processor": sum(each.values())}


def _connections(process: int) -> list[int]:
    """Return the number of sockets of each process of a server."""
    found = []
    for pid in _family(process)[1:]:
        with suppress(OSError):
            files = Path(f"/proc/{pid}/fd").iterdir()
            found.append(sum(os.readlink(f).startswith("socket:") for f in files))
    return found


# -- one core, and a peer --------------------------------------------------------------


def _compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Search the capacity of one core, of ours and of the peer."""
    os.sched_setaffinity(0, {CLIENT_CORE})
    servers = {
        "latflow": [
            *(sys.executable, "-m", "latflow.cli.main", "serve", arguments.package),
            *("--workers", "1", "--threads", "1", "--device", "cpu"),
        ],
        "vosk": [
            *(sys.executable, __file__, "--package", arguments.package),
            *("--vosk", arguments.vosk, "--audio", "none", "--vosk-server"),
        ],
    }
    found: dict[str, Any] = {
        name: _search(command, arguments) for name, command in servers.items()
    }
    ours, theirs = (found[name] for name in servers)
    found["sessions_ratio"] = ours["capacity"] / max(1, theirs["capacity"])
    found["processor_ratio"] = theirs["processor"] / ours["processor"]
    found["load_average"] = os.getloadavg()
    return found


def _search(command: list[str], arguments: argparse.Namespace) -> dict[str, Any]:
    """Search the capacity of a server, and take its processor time."""
    options = LoadOptions(
        sessions=arguments.sessions[0], seconds=arguments.seconds, real_time=True
    )
    what: dict[str, Any] = {"utterances": arguments.utterances}
    pinned = ["taskset", "-c", str(SERVER_CORE), *command]
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    with _server(pinned, threads) as (port, process):
        url = f"ws://127.0.0.1:{port}"
        run = load_server(
            url, arguments.audio, options=options, p95=arguments.p95 / 1000, **what
        )
        # The client sends the first utterance twice, once alone.
        at_once = LoadOptions(sessions=4, patience=300.0)
        before = sum(map(_processor_time, _family(process)))
        (report,) = load_server(
            url, arguments.audio, options=at_once, utterances=NUM_UTTERANCES
        ).reports
        used = sum(map(_processor_time, _family(process))) - before
    return {
        "capacity": run.capacity,
        "processor": used / report.audio_seconds,
        "wer": report.wer,
        "trials": [asdict(trial) for trial in run.reports],
    }


@contextmanager
def _server(
    command: list[str], environment: dict[str, str] | None = None
) -> Iterator[tuple[int, int]]:
    """Run a server; yield its port and process id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--port", str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    try:
        _wait(process)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(60)


def _wait(process: subprocess.Popen[str]) -> None:
    """Wait until a server, and all of its workers, are ready."""
    assert process.stdout is not None
    for line in process.stdout:
        sys.stderr.write(line)
        if line.startswith(READY):
            return
    sys.exit(f"the server ended with status {process.wait()}")


def _family(process: int) -> list[int]:
    """Return a process and those that it has started."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [process, *map(int, children.split())]


def _processor_time(process: int) -> float:
    """Return the seconds that a process has computed; 0 where it has gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
        print(READY, port, flush=True)
        await asyncio.get_running_loop().create_future()


if __name__ == "__main__":
    main()
