"""The process that scores the chunks of all workers of a server, one for each GPU.

One interpreter cannot feed a GPU and recognize, and a network in each worker would make
batches of few chunks. So workers only search; here, whatever chunks have come are taken
through the network in one call, those of sessions at their end first, while the next
ones gather. See `latflow.serving.shared_chunks` for how they come.
"""

from __future__ import annotations

import logging
import multiprocessing
import selectors
import signal
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from latflow.errors import UserError
from latflow.logs import log_to_terminal
from latflow.serving.acoustics import Chunk, NetworkAcoustics, Stream
from latflow.serving.batches import Batches, ChunkBatches, Flight, LocalBatches
from latflow.serving.metrics import Metrics
from latflow.serving.options import ServerOptions, SessionOptions
from latflow.serving.package import load_acoustics
from latflow.serving.package_info import read_info
from latflow.serving.shared_chunks import (
    ALONE,
    URGENT,
    USUAL,
    Answer,
    Door,
    Hello,
    Mapped,
    Records,
    Request,
    SharedView,
    packed,
)

log = logging.getLogger("latflow")
_STREAMS = 512  # of a worker and model, whose layers keep something


@dataclass(frozen=True)
class Served:
    """A model whose chunks are scored.

    Attributes:
        subsampling: frames of the features for one of the scores.
        num_pdfs: columns of the scores.
        batches: take chunks through the network.
    """

    subsampling: int
    num_pdfs: int
    batches: ChunkBatches


class _Client:
    """A worker's channel for a model.

    Attributes:
        model: number of the model.
        channel: for requests and answers.
        requests: that come by it.
        memory: the worker's.
    """

    def __init__(self, hello: Hello) -> None:
        self.model, self.channel = hello.model, hello.channel
        self.memory = Mapped(hello.file, hello.size)
        self.requests = Records(Request, hello.channel)
        self.is_open = True
        self._streams: dict[int, Stream] = {}  # those asked for last at the end

    def chunk(self, request: Request, view: SharedView) -> Chunk:
        """Return what is to be scored.

        Its stream continues where it has been scored here from the beginning.
        """
        frames = view.frames(request.length, request.dim)
        sides = request.left, request.right
        stream = self._stream(request) if request.stream else None
        return Chunk(frames, *sides, request.begin, bool(request.is_last), stream)

    def _stream(self, request: Request) -> Stream:
        """Return the stream of a request; it is kept while others may follow."""
        stream = self._streams.pop(request.stream, None) or Stream()
        if request.right or not request.is_last:
            self._streams[request.stream] = stream
        if len(self._streams) > _STREAMS:  # sessions that ended early leave theirs
            self._streams.pop(next(iter(self._streams)))
        return stream

    def close(self) -> None:
        """Release what came by it."""
        self.is_open = False
        self._streams.clear()
        self.channel.close()
        self.memory.close()

    def answer(self, answers: Sequence[Answer]) -> bool:
        """Send answers; return whether the worker takes them."""
        message = packed(answers)
        try:
            # It has room for as many answers as there are slots, unless it is stuck.
            return self.channel.send(message, socket.MSG_DONTWAIT) == len(message)
        except OSError:
            return False


class _Waiting:
    """Requests of a model that wait, of all workers."""

    def __init__(self) -> None:
        self._lines: dict[int, deque[tuple[_Client, Request]]] = {
            line: deque() for line in (ALONE, URGENT, USUAL)
        }

    def __bool__(self) -> bool:
        """Return whether any waits."""
        return any(self._lines.values())

    def put(self, client: _Client, request: Request) -> None:
        """Add a request."""
        self._lines[request.line].append((client, request))

    def take(self, at_most: int) -> list[tuple[_Client, Request]]:
        """Take requests of workers that are still there, the urgent ones first.

        One that a scorer may have died of is taken alone, before all others: so it is
        found out, and others are not given up with it.
        """
        taken = self._take(ALONE, 1)
        for line in () if taken else (URGENT, USUAL):
            taken += self._take(line, at_most - len(taken))
        return taken

    def _take(self, number: int, at_most: int) -> list[tuple[_Client, Request]]:
        """Take requests of one line."""
        line, taken = self._lines[number], []
        while line and len(taken) < at_most:
            client, request = line.popleft()
            if client.is_open:
                taken.append((client, request))
        return taken


@dataclass(eq=False)
class _Batch:
    """A batch that was begun."""

    model: Served
    items: list[tuple[_Client, Request]]
    views: list[SharedView]
    flight: Flight


class Scorer:
    """Scores what workers ask for, until it is asked to end and they have gone.

    Args:
        models: by their number.
        door: where workers come in.
        max_batch: chunks of a batch, at most.
    """

    def __init__(
        self, models: Sequence[Served], door: socket.socket, max_batch: int
    ) -> None:
        self._models, self._door, self._max_batch = models, door, max_batch
        self._waiting = [_Waiting() for _ in models]
        self._turn = 0
        self._clients: set[_Client] = set()
        self._selector = selectors.DefaultSelector()
        self._selector.register(door, selectors.EVENT_READ, self._admit)
        self._is_ending = False

    def end(self, *_: int | FrameType | None) -> None:
        """End when no worker is left (handler of a signal)."""
        self._is_ending = True
        if not self._clients:
            raise SystemExit(0)

    def end_with(self, file: int) -> None:
        """End likewise when a file can be read."""

        def note() -> None:
            self._selector.unregister(file)
            self.end()

        self._selector.register(file, selectors.EVENT_READ, note)

    def run(self) -> None:
        """Work until asked to end."""
        begun: deque[_Batch] = deque()
        while self._clients or not self._is_ending:
            self._listen(waits=not (begun or any(self._waiting)))
            batch = self._begin()
            if batch is not None:
                begun.append(batch)
            if begun and (batch is None or len(begun) >= batch.model.batches.depth):
                self._deliver(begun.popleft())

    def _listen(self, *, waits: bool) -> None:
        """Take what has come; wait for something where nothing else is to be done."""
        for key, _ in self._selector.select(None if waits else 0):
            work: Callable[[], None] = key.data
            work()

    def _admit(self) -> None:
        """Take a worker in."""
        client = _Client(Door.accept(self._door))
        self._clients.add(client)

        def take() -> None:
            requests = client.requests.take()
            if requests is None:
                self._drop(client)
                return
            for request in requests:
                self._waiting[client.model].put(client, request)

        self._selector.register(client.channel, selectors.EVENT_READ, take)

    def _drop(self, client: _Client) -> None:
        """Forget a worker."""
        if client.is_open:
            self._selector.unregister(client.channel)
            self._clients.discard(client)
            client.close()

    def _begin(self) -> _Batch | None:
        """Begin with a batch of the models in turn; None where nothing waits."""
        for _ in self._models:
            self._turn = (self._turn + 1) % len(self._models)
            items = self._waiting[self._turn].take(self._max_batch)
            if items:
                break
        else:
            return None
        model = self._models[self._turn]
        views = [
            c.memory.view(r, _num_rows(r, model) * model.num_pdfs) for c, r in items
        ]
        chunks = [
            client.chunk(request, view)
            for view, (client, request) in zip(views, items, strict=True)
        ]
        for view in views:
            view.is_begun = True
        return _Batch(model, items, views, model.batches.begin(chunks))

    def _deliver(self, batch: _Batch) -> None:
        """Write the scores of a batch, and answer, each worker once."""
        answers: dict[_Client, list[Answer]] = {}
        for found, (client, request), view in zip(
            batch.flight(), batch.items, batch.views, strict=True
        ):
            if client.is_open:
                fault = _write(
                    found, view, _num_rows(request, batch.model), batch.model
                )
                answers.setdefault(client, []).append(Answer(request.number, fault))
        for client, replies in answers.items():
            if not client.answer(replies):
                self._drop(client)


def _num_rows(request: Request, model: Served) -> int:
    """Return the number of scores that a request wants."""
    frames = request.length - request.left - request.right
    return -(-frames // model.subsampling)


def _write(
    found: np.ndarray | Exception, view: SharedView, rows: int, model: Served
) -> int:
    """Write scores, or a fault, to a chunk's place; return the fault's length."""
    wanted = rows, model.num_pdfs
    if not isinstance(found, Exception):
        if found.shape == wanted:
            view.scores(*wanted)[:] = found
            return 0
        found = ValueError(f"scores of shape {found.shape}, not {wanted}")
    text = f"{type(found).__name__}: {found}"
    return view.write_fault(text, 4 * rows * model.num_pdfs)


def run_scorer(
    packages: Sequence[Path],
    options: ServerOptions,
    session: SessionOptions,
    door: socket.socket,
    gpu: int | None,
    ready: Connection,
    verbose: bool,  # noqa: FBT001 - multiprocessing's arguments stand in order
) -> None:
    """Score in its own process (its entry).

    Args:
        packages: folders of the models.
        options: of the server.
        session: of most sessions: how long their chunks are.
        door: where workers come in.
        gpu: its number; None for the processor.
        ready: is notified when work begins.
        verbose: whether to log what is of interest, too.
    """
    log_to_terminal(verbose=verbose)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers end first
    try:
        if gpu is not None:
            torch.cuda.set_device(gpu)
        torch.set_num_threads(options.network_threads)
        metrics = Metrics()
        models = [_serve(package, options, session, metrics) for package in packages]
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
    scorer = Scorer(models, door, options.max_batch)
    signal.signal(signal.SIGTERM, scorer.end)
    parent = multiprocessing.parent_process()
    assert parent is not None
    scorer.end_with(parent.sentinel)
    ready.send(None)
    scorer.run()


def _serve(
    package: Path, options: ServerOptions, session: SessionOptions, metrics: Metrics
) -> Served:
    """Load a model."""
    acoustics = load_acoustics(
        package, device=options.device, trust_code=options.trust_code
    )
    frames = read_info(package).chunk_frames(session.chunk_length)
    batches: ChunkBatches = LocalBatches(acoustics, metrics)
    if isinstance(acoustics, NetworkAcoustics) and acoustics.device.type == "cuda":
        batches = Batches(acoustics, frames, options.max_batch, metrics)
    return Served(acoustics.subsampling, acoustics.num_pdfs, batches)
