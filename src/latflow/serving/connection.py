"""A websocket whose client sends audio: what all protocols of the server share.

Messages wait in a queue with a limit and are answered in order; meanwhile the socket
is read, so that a client that leaves is noticed at once. A protocol derives from
`Connection` and says what its messages mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from latflow.errors import UserError
from latflow.serving.guard import Discarded, last_ping
from latflow.serving.options import SessionOptions
from latflow.serving.raw_audio import Beginning
from latflow.serving.results import Event
from latflow.serving.scheduler import ClosedError, LiveSession
from latflow.serving.service import RefusedError, Service, refusal_of

log = logging.getLogger("latflow")
_Message = bytes | str | Discarded | None  # None: the server ends
_BYTES_A_MESSAGE = 64


def _size(message: _Message) -> int:
    """Return the bytes that a message takes; empty ones take some, too."""
    return len(message or ()) + _BYTES_A_MESSAGE


class _Inbox:
    """Messages that have arrived and wait to be answered, up to a number of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        self._messages: deque[_Message] = deque()
        self._changed = asyncio.Condition()

    async def put(self, message: _Message) -> None:
        """Add a message; wait while the queue is full."""
        size = _size(message)
        async with self._changed:
            await self._changed.wait_for(
                lambda: not self._messages or self._size + size <= self._limit
            )
            self._size += size
            self._messages.append(message)
            self._changed.notify_all()

    async def get(self) -> _Message:
        """Take the first message; wait for one."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._messages)
            message = self._messages.popleft()
            self._size -= _size(message)
            self._changed.notify_all()
            return message


class Connection(ABC):
    """A client, from the handshake to the close frame.

    Args:
        websocket: its connection.
        service: that recognizes.
    """

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        self._websocket = websocket
        self._service = service
        self._inbox = _Inbox(service.options.max_queue)
        self._scheduler = service.scheduler
        self._is_trusted = not service.token
        self._session: LiveSession | None = None
        self._is_gone = asyncio.Event()
        self._samples = 0  # of the session so far
        self._beginning = Beginning()  # of the session
        self._offset = 0.0  # audio before the session, seconds
        self._tasks: set[asyncio.Task[None]] = set()

    # -- what protocols say ------------------------------------------------------------

    @property
    @abstractmethod
    def _rate(self) -> float:
        """Sample rate of the client's audio, Hz."""

    @abstractmethod
    def _session_options(self) -> SessionOptions:
        """Return the options of a session with the client's settings."""

    @abstractmethod
    async def _reply_to(self, message: bytes | str) -> bool:
        """Answer a message; return whether there may be another."""

    @abstractmethod
    async def _send_refusal(self, refusal: RefusedError) -> None:
        """Send the client why no more is answered."""

    @abstractmethod
    async def _finish(self, began: float) -> None:
        """Recognize to the end what was accepted, send it, and end the session."""

    async def _accept_handshake(self) -> None:
        """Answer the handshake, and send what comes before any message."""
        await self._websocket.accept()

    # -- the loop ----------------------------------------------------------------------

    def drain(self) -> None:
        """Deliver what was recognized after the messages that have arrived."""
        self._start(self._inbox.put(None))

    async def run(self) -> None:
        """Answer until the client or the server ends."""
        headers = self._websocket.headers
        try:
            self._service.check_origin(headers)
        except RefusedError as refusal:
            self._service.metrics.refused(refusal.reason)
            await self._websocket.close(refusal.code)  # HTTP's status 403
            return
        with contextlib.suppress(RefusedError):
            self._service.check_headers(headers)
            self._is_trusted = True
        await self._accept_handshake()
        self._start(self._receive())
        answers = asyncio.create_task(self._answer())
        gone = asyncio.create_task(self._is_gone.wait())
        try:
            await asyncio.wait({answers, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [answers, gone, *self._tasks]
            for task in tasks:
                task.cancel()
            try:  # however they end: a client that breaks the protocol has no words
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                self._close_session()

    def _start(self, work: Any) -> None:
        """Run a coroutine while messages are answered."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _receive(self) -> None:
        """Read messages while the queue takes them, else leave them to the socket."""
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                data = message.get("bytes")
                await self._inbox.put(message["text"] if data is None else data)
        finally:
            self._is_gone.set()

    async def _answer(self) -> None:
        """Answer messages in order; report refusals to the client."""
        try:
            await self._answer_all()
            await self._close(1000, "")
        except RefusedError as refusal:
            self._service.metrics.refused(refusal.reason)
            with contextlib.suppress(UserError, ClosedError):
                await self._end_early()
            await self._refuse(refusal)
        except UserError as error:
            self._service.metrics.refused("session")
            await self._refuse(refusal_of(error, "options"))
        except (WebSocketDisconnect, ClosedError):
            pass
        except TimeoutError:
            self._service.metrics.refused("not reading")
        except Exception:
            log.exception("a connection failed")
            self._service.metrics.refused("failure")
            await self._refuse(RefusedError("internal error", "failure"))

    async def _refuse(self, refusal: RefusedError) -> None:
        """Send why no more is answered, and close."""
        with contextlib.suppress(WebSocketDisconnect, TimeoutError):
            await self._send_refusal(refusal)
            await self._close(refusal.code, str(refusal))

    async def _end_early(self) -> None:
        """Deliver what was recognized so far, before the connection is closed."""
        if self._session is not None:
            await self._finish(time.perf_counter())

    async def _answer_all(self) -> None:
        """Answer each message, until the last one."""
        while True:
            message = await self._next()
            if message is None:
                raise RefusedError("the server is ending", "draining")
            limit = self._service.options.max_message
            if isinstance(message, Discarded) or len(message) > limit:
                text = f"a message of {len(message)} bytes; at most {limit} are allowed"
                raise RefusedError(text, "message size")
            if not await self._reply_to(message):
                return

    async def _next(self) -> _Message:
        """Wait for a message; a ping announces one."""
        idle = self._service.options.idle
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(idle):
                    return await self._inbox.get()
            except TimeoutError:
                if last_ping(self._websocket.scope) < began:
                    raise RefusedError(f"no message within {idle:g} s", "idle") from (
                        None
                    )

    # -- the session -------------------------------------------------------------------

    async def _accept(self, samples: np.ndarray) -> Sequence[Event]:
        """Recognize samples, int16."""
        if self._session is None:
            self._session = await self._open()
        self._service.metrics.add_audio(len(samples) / self._rate)
        self._samples += len(samples)
        limit = self._service.options.max_session
        if self._samples > limit * self._rate:
            text = f"a session may have {limit:g} s of audio"
            raise RefusedError(text, "session length")
        return await asyncio.wrap_future(self._session.accept(samples))

    async def _open(self) -> LiveSession:
        """Begin a session with the client's settings."""
        info = self._scheduler.model.info
        if not self._scheduler.model.is_streaming:
            text = (
                f"{info.name} cannot be streamed: {info.why_not_streaming}; send whole "
                "files to /v1/audio/transcriptions"
            )
            raise RefusedError(text, "model")
        client = self._websocket.client
        name = f"{client.host}:{client.port}" if client else "websocket"
        options = self._session_options()
        return await self._service.begin(options, name, self._scheduler)

    async def _last_events(self) -> Sequence[Event]:
        """Recognize to the end what was accepted."""
        if self._session is None:
            return ()
        return await asyncio.wrap_future(self._session.finish())

    def _close_session(self) -> None:
        """Forget what was accepted."""
        if self._session is not None:
            self._session.close()
        self._offset += self._samples / self._rate
        self._session, self._samples, self._beginning = None, 0, Beginning()

    # -- the socket --------------------------------------------------------------------

    async def _send(self, text: str) -> None:
        """Send a message; a client that reads none for too long is gone."""
        try:
            async with asyncio.timeout(self._service.options.idle):
                await self._websocket.send_text(text)
        except RuntimeError:  # the connection was closed for what the client sent
            raise WebSocketDisconnect(1006) from None

    async def _close(self, code: int, reason: str) -> None:
        """Send the close frame, whose reason has 123 bytes at most."""
        if self._websocket.application_state is WebSocketState.CONNECTED:
            short = reason.encode()[:123].decode(errors="ignore")
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                await self._websocket.close(code, short)
