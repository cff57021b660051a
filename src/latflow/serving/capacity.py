"""Stage `measure_capacity`: real-time sessions that a server of a package holds."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd

from latflow.decode.options import SegmentationOptions
from latflow.errors import UserError
from latflow.files import atomic_output
from latflow.logs import log_to_terminal
from latflow.serving.load_report import LoadReport
from latflow.serving.load_test import load_server
from latflow.serving.options import LoadOptions, ServerOptions, SessionOptions
from latflow.serving.workers import serve
from latflow.workflow.experiment import CapacityOptions

log = logging.getLogger(__name__)


def measure_capacity(
    package_dir: Path,
    cuts: Path,
    table: Path,
    *,
    options: CapacityOptions,
    threads: int,
) -> None:
    """Start a server of a package, load it with more and more clients, and stop it.

    Args:
        package_dir: the package.
        cuts: manifest of what the clients send.
        table: TSV to write, a row a trial: number of sessions, what became of them,
            latency in seconds by percentile; whether the limit was held.
        options: of the measurement.
        threads: cores; one of them is for the clients.

    Raises:
        UserError: the server does not start or does not answer.
    """
    cores = max(1, threads - 1)
    server = ServerOptions(
        port=0,
        workers=1,
        threads=cores,
        device="cpu",
        max_sessions=100_000,
        trust_code=True,
    )
    clients = LoadOptions(
        sessions=options.sessions,
        seconds=options.seconds,
        chunk=options.chunk,
        real_time=True,
    )
    with running_server(package_dir, server) as url:
        run = load_server(
            url,
            [cuts],
            options=clients,
            utterances=options.utterances,
            p95=options.p95,
            limit=options.max_sessions,
        )
    log.info("%d sessions at a p95 of %g s", run.capacity, options.p95)
    rows = pd.DataFrame([_row(report, options.p95) for report in run.reports])
    with atomic_output(table) as temporary:
        rows.sort_values("sessions").to_csv(temporary, sep="\t", index=False)


def _row(report: LoadReport, p95: float) -> dict[str, object]:
    """Return the cells of a trial."""
    return {
        "sessions": report.sessions,
        "finals": report.utterances - report.errors,
        "errors": report.errors,
        "rtfx": report.rtfx,
        **{name: report.latency.get(name) for name in ("p50", "p90", "p95", "p99")},
        "first_partial": report.first_partial.get("p50"),
        "wer": report.wer,
        "client_load": report.client_load,
        "held": report.holds(p95),
    }


@contextmanager
def running_server(package: Path, options: ServerOptions) -> Iterator[str]:
    """Run a server in its own process; yield its address.

    Not by multiprocessing, which would run the script of the workflow's job again.

    Raises:
        UserError: the server ends before it answers.
    """
    module = [sys.executable, "-m", "latflow.serving.capacity"]
    command = [*module, str(package), options.model_dump_json()]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            if not address:
                raise UserError(
                    "the server has ended before it was ready",
                    file=package,
                    remedy="see its error above, or start it with latflow serve",
                )
            yield address
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """End a server in order, and by force if it does not."""
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()


def main(package: str, options: str) -> None:
    """Serve, and send the address (entry of the process).

    Args:
        package: its folder.
        options: of the server, JSON.
    """
    log_to_terminal()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    server = ServerOptions.model_validate_json(options)
    session = SessionOptions(vad=SegmentationOptions())
    serve([Path(package)], server, session, on_ready=_print_address)


def _print_address(address: str) -> None:
    """Tell the address to the process that waits for it."""
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()


def _end_with_parent() -> None:
    """End this process when the one that started it has gone: its pipe is closed."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main(*sys.argv[1:])
