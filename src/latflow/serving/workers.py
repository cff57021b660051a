"""A server: its options, its address, and what its processes do."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import resource
import socket
import ssl
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
import uvicorn

from latflow.errors import UserError
from latflow.logs import log_to_terminal
from latflow.nnet.model_dir import choose_device
from latflow.serving.acoustics import NetworkAcoustics
from latflow.serving.guard import (
    Connections,
    HttpProtocol,
    SocketProtocol,
    TlsProtocol,
    few_lines,
)
from latflow.serving.http import create_app
from latflow.serving.memory import AddressSpace
from latflow.serving.metrics import Metrics
from latflow.serving.options import ServerOptions, SessionOptions
from latflow.serving.package import Model
from latflow.serving.package_info import (
    INFO,
    PackageInfo,
    read_info,
)
from latflow.serving.processes import Processes, Role, end_with_parent
from latflow.serving.scheduler import Scheduler
from latflow.serving.scorer import run_scorer
from latflow.serving.service import RefusedError, Service
from latflow.serving.shared_chunks import CAN_SHARE, Door
from latflow.serving.shared_scorer import SharedScorer

log = logging.getLogger("latflow")
# Bytes that the kernel holds of what a client sent and was not read: behind them wait
# its pings, which must be answered within 20 s.
_RECEIVE_BYTES = 128 << 10
_HARD_LIMIT = 4  # nothing is kept of messages above this many times max_message
_PING_SECONDS = 20.0
_CLOSE_SECONDS = 10.0  # for a client to read what is left, and to close
_METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
_M_MMAP_THRESHOLD = -3  # of malloc.h
_M_ARENA_MAX, _HEAPS = -8, 2
_LARGE_BYTES = 4 << 20


def serve(
    packages: Sequence[Path],
    options: ServerOptions,
    session: SessionOptions,
    *,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve packages until the process is asked to end (SIGTERM, SIGINT).

    Args:
        packages: folders of the packages; the first one is for clients that choose
            none.
        options: of the server.
        session: of sessions, where clients do not set their own.
        on_ready: called with the server's address when it answers.

    Raises:
        UserError: a package, a file of the options, or the address cannot be used, or
            two packages have one name.
    """
    _check(options)
    with contextlib.closing(bound_socket(options)) as listener:
        infos = _check_names(packages)
        has_network = any(info.kind != "gmm" for info in infos)
        options = settled(options, has_network=has_network)
        port = listener.getsockname()[1]
        scheme = "wss" if options.certificate else "ws"
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"{scheme}://{host}:{port}"
        if options.workers == 1 and options.scorer == "off":
            _work(packages, options, session, listener, lambda: on_ready(address))
        else:
            with _shared_metrics() as folder, _open_doors(options) as doors:
                roles = [*_roles(packages, options, session, listener, doors)]
                processes = Processes(roles, on_death=partial(_forget_gauges, folder))
                processes.run(lambda: on_ready(address))


def settled(options: ServerOptions, *, has_network: bool) -> ServerOptions:
    """Return options with what they leave to the machine.

    Args:
        options: of the server.
        has_network: whether a package has a network, which a GPU could compute.

    Raises:
        UserError: a GPU is asked for, and there is none.
    """
    device = choose_device(options.device).type if has_network else "cpu"
    on_gpu = device == "cuda"
    scorer = options.scorer
    if scorer == "auto":
        scorer = "on" if on_gpu else "off"
    workers = options.workers or (max(1, num_cores() * 3 // 4) if on_gpu else 1)
    log.info("workers: %d, device: %s, scorer: %s", workers, device, scorer)
    return options.replace(device=device, scorer=scorer, workers=workers)


def _check_names(packages: Sequence[Path]) -> list[PackageInfo]:
    """Refuse two packages of one name, by which clients choose; say what they do."""
    infos: list[PackageInfo] = []
    for package in packages:
        info = read_info(package)
        if info.name in {other.name for other in infos}:
            raise UserError(
                f"two packages of the name {info.name}",
                file=package,
                remedy="serve them on separate ports",
            )
        infos.append(info)
        if not info.is_streaming and info.why_not_recognizing is None:
            log.warning(
                "%s cannot be streamed (%s): it takes whole files only, over HTTP",
                info.name,
                info.why_not_streaming,
            )
    return infos


def _check(options: ServerOptions) -> None:
    """Refuse options that cannot be used."""
    _read_token(options)
    _tls(options)
    if options.scorer == "on" and not CAN_SHARE:
        raise UserError("a scorer needs Linux", remedy="serve with --scorer off")


def _tls(options: ServerOptions) -> ssl.SSLContext | None:
    """Return the server's side of TLS; None without a certificate."""
    if not options.certificate:
        if options.key:
            raise UserError("a key without a certificate", file=options.key)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.certificate, options.key or None)
    except (OSError, ssl.SSLError) as error:
        raise UserError(
            f"not a certificate with its key: {error}", file=options.certificate
        ) from None
    return context


def _read_token(options: ServerOptions) -> str:
    """Return the token that clients must show; empty for none."""
    if not options.token_file:
        return ""
    try:
        token = Path(options.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"no token can be read: {error}", file=options.token_file
        ) from None
    if not token:
        raise UserError("the token is empty", file=options.token_file)
    return token


def bound_socket(options: ServerOptions) -> socket.socket:
    """Return a socket bound to the server's address."""
    try:
        family, _, _, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM
        )[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UserError(f"no address {options.host}: {error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise UserError(
            f"cannot listen on {options.host} port {options.port}: {error.strerror}",
            remedy="choose another --port, or --host",
        ) from None
    return listener


def _work(
    packages: Sequence[Path],
    options: ServerOptions,
    session: SessionOptions,
    listener: socket.socket,
    on_ready: Callable[[], None],
    door: socket.socket | None = None,
) -> None:
    """Serve in this process until it is asked to end; with a scorer, by its door."""
    free_at_once()
    device = "cpu" if door else options.device
    models = [
        Model.load(package, device=device, trust_code=options.trust_code)
        for package in packages
    ]
    with service_of(models, options, session, door) as service:
        service.created = {
            model.info.name: (package / INFO).stat().st_mtime
            for model, package in zip(models, packages, strict=True)
        }
        for scheduler in service.schedulers.values():
            _warm_up(service, scheduler)
        with few_lines():
            Server(service, on_ready).run([listener])


def free_at_once() -> None:
    """Return large arrays to the system when they are freed (with glibc).

    By itself, glibc learns from arrays that are freed to take the next ones of their
    size from its heaps, up to 32 MiB; what searches free stays there, in pieces. Of
    address space that is limited, it would take 64 MiB for a heap of each thread.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        if resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY:
            mallopt(_M_ARENA_MAX, _HEAPS)


@contextlib.contextmanager
def service_of(
    models: Sequence[Model],
    options: ServerOptions,
    session: SessionOptions,
    door: socket.socket | None = None,
) -> Iterator[Service]:
    """Keep models at work in this process as long as the context is open.

    Args:
        models: the first one is for clients that choose none.
        options: of the server.
        session: of sessions, where clients do not set their own.
        door: of the scorer that has the same models in the same order; None: networks
            are computed here.
    """
    metrics, memory = Metrics(), AddressSpace(options.reserve)
    threads = options.threads or max(1, num_cores() // max(1, options.workers))
    with contextlib.ExitStack() as stack:
        schedulers = {
            model.info.name: stack.enter_context(
                Scheduler(
                    model,
                    threads=threads,
                    network_threads=options.network_threads,
                    max_batch=options.max_batch,
                    max_sessions=options.max_sessions,
                    observer=metrics,
                    memory=memory,
                    scorer=_shared_scorer(door, number, model, options, session),
                )
            )
            for number, model in enumerate(models)
        }
        yield Service(schedulers, options, session, metrics, _read_token(options))


def num_cores() -> int:
    """Return the number of cores that this process may use; all of macOS."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _shared_scorer(
    door: socket.socket | None,
    number: int,
    model: Model,
    options: ServerOptions,
    session: SessionOptions,
) -> SharedScorer | None:
    """Return what has a model's chunks scored in another process; None: it is here."""
    acoustics = model.acoustics
    if door is None or not isinstance(acoustics, NetworkAcoustics):
        return None
    frames = model.info.chunk_frames(session.chunk_length)
    usual = frames + sum(side or 0 for side in acoustics.context)
    dim = acoustics.network.network.dim_in
    if not options.evaluate:
        acoustics.network.network.to("meta")  # shapes alone: no weights are held here
    return SharedScorer(door, number, acoustics, usual=usual, dim=dim)


def _warm_up(service: Service, scheduler: Scheduler) -> None:
    """Compile kernels before the first client waits for them."""
    rate = service.sample_rate_of(scheduler)
    noise = np.random.default_rng(0).normal(0, 0.01, rate)
    # Noise is not speech: it must not be looked for.
    options = service.session.replace(vad=None)
    try:
        opened = service.open(options, "warm-up", scheduler)
    except RefusedError as refusal:
        remedy = "raise `ulimit -v`, or lower --reserve"
        raise UserError(str(refusal), remedy=remedy) from None
    with contextlib.closing(opened) as live:
        live.accept(noise.astype(np.float32))
        live.finish().result()


class Server(uvicorn.Server):
    """Delivers what was recognized before it ends."""

    def __init__(self, service: Service, on_ready: Callable[[], None]) -> None:
        options = service.options
        connections = Connections(
            options.max_connections,
            options.patience,
            partial(service.metrics.refused, "connection"),
        )
        context = _tls(options)

        def http(**kwargs: Any) -> HttpProtocol | TlsProtocol:
            inside = HttpProtocol(connections=connections, **kwargs)
            return TlsProtocol(inside, connections, context) if context else inside

        websockets: Any = partial(SocketProtocol, connections=connections)
        super().__init__(
            uvicorn.Config(
                create_app(service),
                ws=websockets,
                backlog=connections.backlog,
                ws_max_size=_HARD_LIMIT * options.max_message,
                ws_ping_interval=_PING_SECONDS,
                ws_ping_timeout=_PING_SECONDS,
                ws_per_message_deflate=False,
                http=cast("Any", http),
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=max(1, round(options.grace)),
            )
        )
        self._service = service
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more, let sessions end, then close what is left."""
        for server in self.servers:
            server.close()
        await self._service.drain()
        for scheduler in self._service.schedulers.values():
            scheduler.close_all()
        await super().shutdown(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """End in order at the first signal, at once at the second."""
        self.force_exit = self.should_exit
        self.should_exit = True


@contextlib.contextmanager
def _shared_metrics() -> Iterator[Path]:
    """Make the processes that are started here write their counts to a folder."""
    with tempfile.TemporaryDirectory(prefix="latflow-metrics-") as folder:
        os.environ[_METRICS_FOLDER] = folder
        try:
            yield Path(folder)
        finally:
            del os.environ[_METRICS_FOLDER]


def _roles(
    packages: Sequence[Path],
    options: ServerOptions,
    session: SessionOptions,
    listener: socket.socket,
    doors: Sequence[Door],
) -> Iterator[Role]:
    """Yield the processes of a server, workers dealt out to the scorers' doors."""
    common = packages, options, session
    for number, door in enumerate(doors):
        gpu = number if options.device == "cuda" else None
        yield Role(
            "scorer", run_scorer, (*common, door.inside, gpu), patience=_CLOSE_SECONDS
        )
    patience = 2 * options.grace + _CLOSE_SECONDS
    for number in range(options.workers):
        door = doors[number % len(doors)].outside if doors else None
        yield Role("worker", _worker, (*common, listener, door), patience)


@contextlib.contextmanager
def _open_doors(options: ServerOptions) -> Iterator[list[Door]]:
    """Keep a door for each scorer as long as the context is open."""
    number = 0
    if options.scorer == "on":
        number = torch.cuda.device_count() if options.device == "cuda" else 1
    doors = [Door() for _ in range(min(number, options.workers))]
    try:
        yield doors
    finally:
        for door in doors:
            door.close()


def _worker(
    packages: Sequence[Path],
    options: ServerOptions,
    session: SessionOptions,
    listener: socket.socket,
    door: socket.socket | None,
    ready: Connection,
    verbose: bool,  # noqa: FBT001 - multiprocessing's arguments stand in order
) -> None:
    """Serve in its own process (its entry)."""
    log_to_terminal(verbose=verbose)
    end_with_parent()
    on_ready = partial(ready.send, None)
    try:
        _work(packages, options, session, listener, on_ready, door)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


def _forget_gauges(folder: Path, pid: int) -> None:
    """Count the sessions of a process that has died no more."""
    from prometheus_client.multiprocess import mark_process_dead

    mark_process_dead(pid, str(folder))
