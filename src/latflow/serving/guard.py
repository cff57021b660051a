"""What a server allows its connections: their number, their patience, their log lines.

A connection that has not yet sent a request has a deadline for it, and is closed first
where there are too many: clients that only hold connections keep nobody out, and the
process never runs out of files (where asyncio would log, and accept nothing,
meanwhile).
"""

from __future__ import annotations

import asyncio
import logging
import resource
import sys
import time
from asyncio.sslproto import SSLProtocol
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from ssl import SSLContext
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import PayloadTooBig
from websockets.frames import CloseCode
from websockets.server import ServerProtocol

log = logging.getLogger("latflow")

_CLOSE_SECONDS = 10.0  # for a client to read what is left, and to close
_RESERVED_FILES = 64  # of the process: libraries, logs, uploads, graphs
_ACCEPTED = 64  # connections that asyncio accepts at once, before any is refused
_CONTROL_FRAMES = 100  # of a client within a second: pings and the like
_FRAGMENTS = 10_000  # of a message
_DISCARDED = 100  # messages, or parts of one, that are too large
_MASK_BYTES = 4  # before the payload of a client's frame
_CONTROL_BYTES = 125  # of a frame that closes, at most (RFC 6455)
_PINGED = "latflow.pinged"  # key of a websocket's scope
_LINES = 20  # of a kind of log line in a minute


class Connections:
    """The connections of a process.

    Args:
        most: of them, as far as the process may open files.
        patience: seconds that a client has to say what it wants.
        refused: called for each connection that is turned away.
    """

    def __init__(
        self, most: int, patience: float, refused: Callable[[], None] = lambda: None
    ) -> None:
        self.most = min(most, max(1, _files() - _RESERVED_FILES - _ACCEPTED))
        self.patience = patience
        self._refused = refused
        self._open: set[asyncio.Transport] = set()
        self._waiting: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    @property
    def backlog(self) -> int:
        """Connections that may wait to be accepted; as many are accepted at once."""
        return _ACCEPTED

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, transport: asyncio.Transport) -> None:
        """Count a new connection; turn one away where there are too many."""
        self._open.add(transport)
        self.wait(transport)
        if len(self._open) > self.most:
            # The one that has been silent for longest; it may be the new one itself.
            self._end(next(iter(self._waiting)))

    def wait(self, transport: asyncio.Transport) -> None:
        """Require a request from a connection in time."""
        self.cancel_timer(transport)
        if transport in self._open:
            loop = asyncio.get_running_loop()
            timer = loop.call_later(self.patience, self._end, transport)
            self._waiting[transport] = timer

    def cancel_timer(self, transport: asyncio.Transport) -> None:
        """Stop waiting for a connection: it has sent its request."""
        if timer := self._waiting.pop(transport, None):
            timer.cancel()

    def leave(self, transport: asyncio.Transport) -> None:
        """Forget a connection."""
        self.cancel_timer(transport)
        self._open.discard(transport)

    def _end(self, transport: asyncio.Transport) -> None:
        """Turn a connection away."""
        self.leave(transport)
        self._refused()
        transport.abort()


def _files() -> int:
    """Return the number of files that this process may open, raised as far as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            log.debug("the limit of open files stays at %d", soft)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


class HttpProtocol(H11Protocol):
    """HTTP, whose requests begin in time.

    Args:
        connections: of the process; the others are uvicorn's.
    """

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._guard = connections
        self.below: asyncio.Transport | None = None  # that TLS has for its handshake

    def connection_made(self, transport: Any) -> None:
        """Count the connection; by this transport, if TLS had another."""
        super().connection_made(transport)
        if self.below is not None:
            self._guard.leave(self.below)
        self._guard.enter(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it no more."""
        self._guard.leave(self.transport)
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Note when a request has begun."""
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._guard.cancel_timer(self.transport)

    def handle_websocket_upgrade(self, event: Any) -> None:
        """Leave the connection to the websocket, whose messages have their own time."""
        self._guard.cancel_timer(self.transport)
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        """Wait for the next request, if it has not begun."""
        before = self.cycle
        super().on_response_complete()
        if self.cycle is before and not self.transport.is_closing():
            self._guard.wait(self.transport)


class TlsProtocol(SSLProtocol):
    """TLS, whose handshake counts as a connection without a request.

    asyncio notifies a server of a connection when its handshake is done.

    Args:
        inside: speaks HTTP once the handshake is done.
        connections: of the process.
        context: the server's certificate.
    """

    def __init__(
        self, inside: HttpProtocol, connections: Connections, context: SSLContext
    ) -> None:
        # typeshed knows neither fractions of seconds, nor that nobody need wait
        patience: Any = connections.patience
        waiter: Any = None
        super().__init__(
            asyncio.get_running_loop(),
            inside,
            context,
            waiter,
            server_side=True,
            ssl_handshake_timeout=patience,
            ssl_shutdown_timeout=patience,
        )
        self._inside, self._guard = inside, connections

    def connection_made(self, transport: Any) -> None:
        """Count the connection."""
        self._inside.below = transport
        self._guard.enter(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Count it no more, if its handshake was not done."""
        if self._inside.below is not None:
            self._guard.leave(self._inside.below)
        super().connection_lost(exc)


@dataclass(frozen=True)
class Discarded:
    """A message so large that nothing of it was kept."""

    size: int

    def __len__(self) -> int:
        return self.size


class _Frames(ServerProtocol):
    """Frames of a client; where one is too large, the server may still answer."""

    def fail(self, code: CloseCode | int, reason: str = "") -> None:
        """End the connection; the application does that where a frame is too large."""
        error = sys.exc_info()[1]
        if not isinstance(error, PayloadTooBig):
            super().fail(code, reason)
            return
        # From here on such frames alone are read as the client's closing one.
        self.max_message_size = (self.current_size or 0) + _CONTROL_BYTES
        self.parser = self._pass_over(_MASK_BYTES + (error.size or 0))
        next(self.parser)

    def _pass_over(self, size: int) -> Generator[None]:
        """Keep nothing of so many bytes, then read frames again."""
        yield  # until what came before is taken
        while size and not (yield from self.reader.at_eof()):
            passed = min(size, len(self.reader.buffer))
            del self.reader.buffer[:passed]
            size -= passed
        yield from self.parse()


class SocketProtocol(WebSocketsSansIOProtocol):
    """Websockets that end with their application, and are flooded by nothing.

    Args:
        connections: of the process; the others are uvicorn's.
    """

    def __init__(self, *args: Any, connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn = _Frames(max_size=self.config.ws_max_size, logger=self.conn.logger)
        self._guard = connections
        self._discarded = 0
        self._pings: deque[float] = deque(maxlen=_CONTROL_FRAMES)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the connection no more."""
        self._guard.leave(self.transport)
        super().connection_lost(exc)

    async def run_asgi(self) -> None:
        """Serve, then give a client a time to read what is left."""
        await super().run_asgi()
        self.loop.call_later(_CLOSE_SECONDS, self.transport.abort)

    def handle_ping(self) -> None:
        """Answer a ping, of a client that reads the answers and asks for few."""
        now = self.loop.time()
        is_flood = len(self._pings) == _CONTROL_FRAMES and now - self._pings[0] < 1
        self._pings.append(now)
        if is_flood or not self.writable.is_set():
            log.warning("a client floods the server with pings")
            self.transport.abort()
            return
        cast("dict[str, Any]", self.scope)[_PINGED] = time.monotonic()
        super().handle_ping()

    def handle_parser_exception(self) -> None:
        """Tell the application of a message far too large; it ends the connection."""
        while isinstance(error := self.conn.parser_exc, PayloadTooBig):
            self.handle_events()  # what came before it
            if not self._discarded:
                size = (error.current_size or 0) + (error.size or 0)
                event: Any = {"type": "websocket.receive", "bytes": Discarded(size)}
                self.queue.put_nowait(event)
            self._discarded += 1
            if self._discarded > _DISCARDED:
                log.warning("a client floods the server with what is too large")
                self.transport.abort()
                return
            self.conn.parser_exc = None
            self.conn.receive_data(b"")  # what came behind it
        if error is None:
            self.handle_events()
        else:
            super().handle_parser_exception()

    def handle_cont(self, event: Any) -> None:
        """Take a part of a message, which may have this many."""
        if len(self.frames) >= _FRAGMENTS:
            log.warning("a client floods the server with parts of a message")
            self.transport.abort()
            return
        super().handle_cont(event)


def last_ping(scope: Mapping[str, Any]) -> float:
    """Return when the client of a websocket last sent a ping (`time.monotonic`)."""
    return scope.get(_PINGED, 0.0)


class _Few(logging.Filter):
    """Lets a number of lines of a kind pass in a minute, and counts the others."""

    def __init__(self) -> None:
        super().__init__()
        self._kinds: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a line passes; the last one says that others do not."""
        kind, now = f"{record.name} {record.msg}"[:200], time.monotonic()
        since, count = self._kinds.get(kind, (now, 0))
        if now - since > 60:
            since, count = now, 0
        if len(self._kinds) > 1000:
            self._kinds.clear()
        self._kinds[kind] = since, count + 1
        if count + 1 == _LINES:
            record.msg = f"{record.msg} (no more of these are logged for a minute)"
        return count < _LINES


@contextmanager
def few_lines() -> Iterator[None]:
    """Limit the log lines that clients can cause, as long as the context is open."""
    few = _Few()
    loggers = [logging.getLogger(n) for n in ("asyncio", "uvicorn.error", "latflow")]
    for one in loggers:
        one.addFilter(few)
    try:
        yield
    finally:
        for one in loggers:
            one.removeFilter(few)
