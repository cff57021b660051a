"""A worker's end of the scorer process that all workers of a server share."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from latflow.errors import UserError
from latflow.serving.acoustics import Acoustics, Chunk, num_rows
from latflow.serving.scoring import ScoresCallback
from latflow.serving.shared_chunks import (
    ALONE,
    URGENT,
    USUAL,
    Answer,
    Door,
    Memory,
    Records,
    Request,
    SharedView,
    bytes_of,
    hang_up,
    packed,
)

log = logging.getLogger("latflow")
_SLOTS = 256  # chunks of a worker that the scorer has at a time
_MAX_DEATHS = 3  # of scorers that have begun with a chunk
_AGAIN = 0.5  # seconds until a channel is asked for again


@dataclass(eq=False)
class _Pending:
    """A chunk that the scorer has.

    Attributes:
        request: that it was sent by.
        view: where it lies.
        rows: of its scores.
        callback: is called with them.
        deaths: of scorers that had begun with it.
    """

    request: Request
    view: SharedView
    rows: int
    callback: ScoresCallback
    deaths: int = 0


class SharedScorer:
    """Has the scorer process score the chunks of a model's sessions.

    Chunks lie in memory that both map. Those that a scorer had when it died are sent to
    the next one.

    Args:
        outside: of the scorer's door.
        number: of the model, as the scorer counts them.
        acoustics: of the model; give shapes, and score nothing here.
        usual: frames of most chunks, with those around them, for the size of slots.
        dim: features of a frame.
    """

    def __init__(
        self,
        outside: socket.socket,
        number: int,
        acoustics: Acoustics,
        *,
        usual: int,
        dim: int,
    ) -> None:
        self._outside, self._number = outside, number
        self._subsampling, self._num_pdfs = acoustics.subsampling, acoustics.num_pdfs
        rows = -(-usual // self._subsampling)
        self._memory = Memory(_SLOTS, bytes_of(usual, dim, rows, self._num_pdfs))
        self._pending: dict[int, _Pending] = {}
        self._next = 0
        self._is_closed = False
        self._changed = threading.Condition()  # guards all of the above
        self._sending = threading.Lock()  # guards the channel; taken first
        self._channel = Door.enter(outside, number, self._memory)
        self._receiver = threading.Thread(target=self._receive, name="scores")
        self._receiver.start()

    def room(self) -> int:
        """Wait for a slot, see `ChunkScorer`."""
        with self._changed:
            while not (self._memory.num_free or self._is_closed):
                self._changed.wait()
            return 0 if self._is_closed else self._memory.num_free

    def score(
        self,
        chunks: Sequence[Chunk],
        callbacks: Sequence[ScoresCallback],
        *,
        are_urgent: bool,
    ) -> None:
        """Send chunks to the scorer, see `ChunkScorer`."""
        requests, line = [], URGENT if are_urgent else USUAL
        with self._sending:
            for chunk, callback in zip(chunks, callbacks, strict=True):
                try:
                    requests.append(self._put(chunk, callback, line))
                except UserError as error:
                    callback(error)
            if requests:
                # A scorer that has died is noticed by the thread that receives.
                with suppress(OSError):
                    self._channel.sendall(packed(requests))

    def _put(self, chunk: Chunk, callback: ScoresCallback, line: int) -> Request:
        """Write a chunk into the memory."""
        length, dim = chunk.frames.shape
        rows = num_rows(chunk, self._subsampling)
        with self._changed:
            place = self._memory.take(bytes_of(length, dim, rows, self._num_pdfs))
            view = self._memory.view(place, chunk.frames.nbytes)
            number, self._next = self._next, (self._next + 1) & 0xFFFFFFFF
            request = Request(
                *(place, number, length, dim, chunk.left, chunk.right, line),
                stream=0 if chunk.stream is None else chunk.stream.number,
                begin=chunk.begin,
                is_last=int(chunk.is_last),
            )
            view.is_begun = False
            view.frames(length, dim)[:] = chunk.frames
            self._pending[number] = _Pending(request, view, rows, callback)
        return request

    def _receive(self) -> None:
        """Take scores until asked to end; follow the scorer that takes its place."""
        while True:
            records = Records(Answer, self._channel)
            while (answers := records.take()) is not None:
                for answer in answers:
                    self._take(answer)
            while not self._is_closed:
                try:
                    self._reconnect()
                    break
                except OSError as error:  # no file descriptors, for a while
                    log.error("no channel to the scorer: %s", error)
                    time.sleep(_AGAIN)
            if self._is_closed:
                return

    def _take(self, answer: Answer) -> None:
        """Take an answer: pass the scores on, and free their place."""
        with self._changed:
            pending = self._pending.pop(answer.number)
            found: np.ndarray | Exception
            if answer.fault:
                found = RuntimeError(pending.view.read_fault(answer.fault))
            else:
                found = pending.view.scores(pending.rows, self._num_pdfs).copy()
            self._memory.give_back(pending.request.place)
            self._changed.notify()
        pending.callback(found)

    def _reconnect(self) -> None:
        """Send all that the scorer had to the one that takes its place."""
        with self._sending:
            self._channel.close()
            self._channel = Door.enter(self._outside, self._number, self._memory)
            with self._changed:
                given_up = self._mourn()
                again = [pending.request for pending in self._pending.values()]
            if again:
                with suppress(OSError):
                    self._channel.sendall(packed(again))
        log.info("the scorer has gone; %d chunks are sent to the next", len(again))
        for pending in given_up:
            pending.callback(
                UserError("scorers have died of this audio, or of audio scored with it")
            )

    def _mourn(self) -> list[_Pending]:
        """Note of which chunks the scorer may have died; return those given up."""
        begun = [p for p in self._pending.values() if p.view.is_begun]
        for pending in begun:
            pending.view.is_begun = False
            pending.deaths += 1
            pending.request = pending.request._replace(line=ALONE)
        given_up = [pending for pending in begun if pending.deaths >= _MAX_DEATHS]
        for pending in given_up:
            del self._pending[pending.request.number]
            self._memory.give_back(pending.request.place)
        self._changed.notify()
        return given_up

    def close(self) -> None:
        """Take no more chunks; no callback is called any more."""
        with self._changed:
            was_closed, self._is_closed = self._is_closed, True
            self._changed.notify_all()
        if was_closed:
            return
        while self._receiver.is_alive():  # it may be opening another channel
            hang_up(self._channel)
            self._receiver.join(0.1)
        self._channel.close()
        self._memory.close()
