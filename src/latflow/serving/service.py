"""One process of a server: what its websocket and HTTP sides share."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import ValidationError

from latflow.errors import UserError
from latflow.serving.metrics import Metrics
from latflow.serving.options import ServerOptions, SessionOptions
from latflow.serving.package import Model
from latflow.serving.scheduler import LiveSession, OverloadedError, Scheduler

Reason = Literal[
    "connection",
    "draining",
    "failure",
    "idle",
    "input_audio_buffer_commit_empty",
    "message",
    "message size",
    "model",
    "options",
    "origin",
    "request",
    "session length",
    "sessions",
    "token",
    "upload size",
]
# HTTP's status, and the code of a websocket's close frame (RFC 6455, section 7.4).
_CODES: Mapping[Reason, tuple[int, int]] = {
    "connection": (503, 1013),
    "draining": (503, 1012),
    "failure": (500, 1011),
    "idle": (408, 1008),
    "input_audio_buffer_commit_empty": (400, 1008),
    "message": (400, 1007),
    "message size": (413, 1009),
    "model": (400, 1008),
    "options": (400, 1008),
    "origin": (403, 1008),
    "request": (400, 1008),
    "session length": (413, 1008),
    "sessions": (503, 1013),
    "token": (401, 1008),
    "upload size": (413, 1008),
}


class RefusedError(Exception):
    """Refuses what a client asks for.

    Args:
        text: the reason, one sentence.
        reason: the same in a word, for the counts.
        status: HTTP's status, where it is not that of the reason.
        param: field of the request that is wrong, if it is one.

    Attributes:
        code: of the close frame of a websocket.
    """

    def __init__(
        self,
        text: str,
        reason: Reason = "request",
        *,
        status: int | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(text)
        self.param = param
        self.reason: Reason = reason
        usual, self.code = _CODES[reason]
        self.status = usual if status is None else status


def refusal_of(error: UserError, reason: Reason = "request") -> RefusedError:
    """Return the refusal that an error of a session is.

    Args:
        error: that the session has, or has not begun with.
        reason: of errors other than having too many sessions.
    """
    is_overload = isinstance(error, OverloadedError)
    return RefusedError(str(error), "sessions" if is_overload else reason)


def error_values(refusal: RefusedError) -> dict[str, Any]:
    """Return a refusal as OpenAI's clients read it."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    code = refusal.reason.replace(" ", "_")
    if refusal.reason == "model":
        code = "model_not_found"
    values = {"message": str(refusal), "type": kind, "param": refusal.param}
    return {"error": {**values, "code": code}}


class Drained(Protocol):
    """A connection that is notified when the server ends."""

    def drain(self) -> None:
        """Deliver what was recognized, and close."""


@dataclass(eq=False)
class Service:
    """Models at work in a process.

    Attributes:
        schedulers: work on the sessions of a model each, by its name; the first one's
            is the model of clients that choose none.
        options: of the server.
        session: of sessions, where clients do not set their own.
        token: that clients must show; none if empty.
        metrics: counts.
        created: Unix time at which each model was packaged.
        is_draining: whether the server ends.
        evaluations: held by the one that is done at a time.
        ending: set when the server ends.
    """

    schedulers: Mapping[str, Scheduler]
    options: ServerOptions
    session: SessionOptions
    metrics: Metrics
    token: str = ""
    created: Mapping[str, float] = field(default_factory=dict)
    is_draining: bool = False
    evaluations: asyncio.Lock = field(default_factory=asyncio.Lock)
    ending: asyncio.Event = field(default_factory=asyncio.Event)
    _connections: set[Drained] = field(default_factory=set)
    _received: int = 0

    @property
    def scheduler(self) -> Scheduler:
        """The first model's."""
        return next(iter(self.schedulers.values()))

    @property
    def model(self) -> Model:
        """The model of clients that choose none."""
        return self.scheduler.model

    def sample_rate_of(self, scheduler: Scheduler) -> int:
        """Return the rate of audio whose client names none, Hz."""
        return self.session.sample_rate or scheduler.model.sample_rate

    @property
    def sessions(self) -> int:
        """Number of open sessions, of all models."""
        return sum(scheduler.sessions for scheduler in self.schedulers.values())

    def scheduler_of(self, name: str) -> Scheduler:
        """Return the scheduler of a model that a request names.

        One model recognizes whatever a client calls it (`whisper-1`); of several it
        must be one, or none, for the first.
        """
        if len(self.schedulers) == 1 or not name:
            return self.scheduler
        if name not in self.schedulers:
            raise self.no_model(name)
        return self.schedulers[name]

    def no_model(self, name: str) -> RefusedError:
        """Return the refusal of a model that is not here."""
        known = ", ".join(self.schedulers)
        text = f"no model {name!r} here; there are: {known}"
        return RefusedError(text, "model", status=404, param="model")

    def check_token(self, token: str | bytes) -> None:
        """Refuse a wrong token; bytes are those of UTF-8."""
        if isinstance(token, str):
            token = token.encode("utf-8", "surrogatepass")
        if self.token and not secrets.compare_digest(token, self.token.encode()):
            raise RefusedError("a bearer token is needed", "token")

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Refuse headers without the token, if one is needed."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        # Headers are read as Latin-1, and are what bytes the client has sent.
        raw = token.strip().encode("latin-1", "replace")
        self.check_token(raw if scheme.lower() == "bearer" else b"")

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Refuse pages of other servers, where the options say whose may connect."""
        origin, allowed = headers.get("origin"), self.options.allowed_origins
        if not allowed or origin is None or "*" in allowed:
            return
        scheme = "https" if self.options.certificate else "http"
        if origin not in {*allowed, f"{scheme}://{headers.get('host', '')}"}:
            raise RefusedError("pages of this origin may not connect", "origin")

    def session_options(self, **changes: Any) -> SessionOptions:
        """Return options of a session that a client has set; refuse wrong ones."""
        try:
            return self.session.replace(**changes)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            text = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            raise RefusedError(text, "options") from None

    def open(
        self, options: SessionOptions, name: str, scheduler: Scheduler | None = None
    ) -> LiveSession:
        """Begin a session, or refuse it; with the first model where none is given."""
        if self.is_draining:
            raise RefusedError("the server is ending", "draining")
        try:
            return (scheduler or self.scheduler).open(options, name)
        except UserError as error:
            raise refusal_of(error, "options") from None

    def admit(self) -> None:
        """Refuse what needs a session, where none can be had."""
        if self.is_draining:
            raise RefusedError("the server is ending", "draining")
        full: OverloadedError | None = None
        for scheduler in self.schedulers.values():
            try:
                return scheduler.check_room()
            except OverloadedError as error:
                full = error
        raise RefusedError(str(full), "sessions")

    async def begin(
        self, options: SessionOptions, name: str, scheduler: Scheduler | None = None
    ) -> LiveSession:
        """Begin a session in a thread, or refuse it: filters of odd rates take long."""
        work = asyncio.to_thread(self.open, options, name, scheduler)
        opened = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(opened)
        except asyncio.CancelledError:
            opened.add_done_callback(_give_up)
            raise

    @contextmanager
    def receiving(self) -> Iterator[Callable[[int], None]]:
        """Count the bytes of a request while it arrives and is worked on.

        Yields:
            Called with a number of bytes that have come; refuses too many.
        """
        mine = 0

        def add(number: int) -> None:
            nonlocal mine
            mine += number
            self._received += number
            if self._received > self.options.max_uploads:
                text = "too many requests arrive at a time; try again later"
                raise RefusedError(text, "sessions")

        try:
            yield add
        finally:
            self._received -= mine

    @contextmanager
    def connected(self, connection: Drained) -> Iterator[None]:
        """Count a connection as long as it is open."""
        self._connections.add(connection)
        try:
            yield
        finally:
            self._connections.discard(connection)

    async def drain(self) -> None:
        """Refuse new sessions, let the open connections end, for a time at most."""
        self.is_draining = True
        self.ending.set()
        for connection in tuple(self._connections):
            connection.drain()
        loop = asyncio.get_running_loop()
        end = loop.time() + self.options.grace
        while self._connections and loop.time() < end:
            await asyncio.sleep(0.02)


def _give_up(opened: asyncio.Future[LiveSession]) -> None:
    """Close a session that nobody waits for any more."""
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()
