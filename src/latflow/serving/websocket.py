"""Vosk's websocket protocol: audio in binary messages, each answered by one of JSON.

A client may first send `{"config": {...}}`; then sends samples, 16 bits little-endian,
and at last `{"eof" : 1}`. `docs/serving.md` describes all messages. Facts from
alphacep/vosk-server, `websocket/asr_server.py`.

Public: `serve_websocket`, `VoskConfig`, `read_message`, `final_reply`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from latflow.errors import UserError
from latflow.serving.results import Event, Final, Hypothesis, Partial
from latflow.serving.scheduler import ClosedError, LiveSession
from latflow.serving.service import RefusedError, Service

log = logging.getLogger("latflow")

Command = Literal["eof", "reset"]
_Message = bytes | str | None  # None: the server ends
_BYTES_A_SAMPLE = 2
_BYTES_A_MESSAGE = 64
_MAX_ALTERNATIVES = 100
_MAX_PHRASES = 1000


class VoskConfig(BaseModel):
    """Settings of a client; unknown keys are ignored, as Vosk does."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    sample_rate: Annotated[float, Field(ge=1000, le=384000)] | None = None
    words: bool = True
    max_alternatives: Annotated[int, Field(ge=0, le=_MAX_ALTERNATIVES)] = 0
    phrase_list: Annotated[tuple[str, ...], Field(max_length=_MAX_PHRASES)] = ()
    model: str | None = None
    token: str = ""


def read_message(text: str) -> VoskConfig | Command:
    """Read a text message.

    Raises:
        RefusedError: it is none of the protocol.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise RefusedError("a text message must be JSON", "message") from None
    if not isinstance(message, dict):
        raise RefusedError("a text message must be a JSON object", "message")
    if "config" in message:
        try:
            return VoskConfig.model_validate(message["config"])
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            key = ".".join(map(str, ("config", *first["loc"])))
            raise RefusedError(f"{key}: {first['msg']}", "message") from None
    for command in ("eof", "reset"):
        if command in message:
            return command
    raise RefusedError("a text message must have config, eof or reset", "message")


def partial_reply(text: str) -> str:
    """Return the words so far as Vosk tells them."""
    return json.dumps({"partial": text}, ensure_ascii=False)


def final_reply(
    finals: Sequence[Final], *, words: bool, alternatives: int, offset: float = 0.0
) -> str:
    """Return recognized segments as Vosk tells one.

    A message may end several segments, and has one answer: their words are joined.

    Args:
        finals: may be empty, which tells that there was no speech.
        words: whether times and confidences of words are told.
        alternatives: how many hypotheses are told; 0 for the best, in the form without
            alternatives.
        offset: added to times, seconds.
    """
    segments = [final.segment for final in finals]
    if not alternatives:
        best = _joined([segment.best for segment in segments])
        value: dict[str, Any] = {"text": best.text}
        if words and best.words:
            value = {"result": _word_values(best, offset, confidences=True), **value}
        return json.dumps(value, ensure_ascii=False)
    ranked = zip_longest(*(segment.hypotheses for segment in segments))
    joined = [
        # A segment with fewer hypotheses keeps its best one.
        _joined([one or s.best for one, s in zip(ones, segments, strict=True)])
        for ones in ranked
    ] or [Hypothesis((), 1.0)]
    told = []
    for hypothesis in joined[:alternatives]:
        value = {"confidence": float(hypothesis.confidence), "text": hypothesis.text}
        if words and hypothesis.words:
            value["result"] = _word_values(hypothesis, offset, confidences=False)
        told.append(value)
    return json.dumps({"alternatives": told}, ensure_ascii=False)


def _joined(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Return the hypotheses of successive segments as one."""
    return Hypothesis(
        tuple(word for hypothesis in hypotheses for word in hypothesis.words),
        float(np.prod([hypothesis.confidence for hypothesis in hypotheses])),
    )


def _word_values(
    hypothesis: Hypothesis, offset: float, *, confidences: bool
) -> list[dict[str, Any]]:
    """Return the words of a hypothesis as Vosk tells them."""
    values: list[dict[str, Any]] = []
    for word in hypothesis.words:
        value: dict[str, Any] = {
            "end": round(offset + float(word.end), 6),
            "start": round(offset + float(word.start), 6),
            "word": word.word,
        }
        if confidences:
            value = {"conf": round(float(word.confidence or 0.0), 6), **value}
        values.append(value)
    return values


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


class _Connection:
    """A client, from the handshake to the close frame."""

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        self._websocket = websocket
        self._service = service
        self._inbox = _Inbox(service.options.max_queue)
        self._config = VoskConfig()
        self._scheduler = service.scheduler
        self._is_trusted = not service.token
        self._session: LiveSession | None = None
        self._is_gone = asyncio.Event()
        self._odd = b""  # half a sample, until the other half comes
        self._partial = ""
        self._samples = 0  # of the session so far
        self._offset = 0.0  # audio before the session, seconds
        self._tasks: set[asyncio.Task[None]] = set()

    def drain(self) -> None:
        """Have what was recognized delivered after the messages that have arrived."""
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
        await self._websocket.accept()
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
        """Run a coroutine beside the answers."""
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
        """Answer messages in order; tell the client why, where it is refused."""
        try:
            await self._answer_all()
            await self._close(1000, "")
        except RefusedError as refusal:
            self._service.metrics.refused(refusal.reason)
            with contextlib.suppress(UserError, ClosedError):
                await self._end_early()
            await self._refuse(str(refusal), refusal.code)
        except UserError as error:
            self._service.metrics.refused("session")
            await self._refuse(str(error), 1008)
        except (WebSocketDisconnect, ClosedError):
            pass
        except TimeoutError:
            self._service.metrics.refused("not reading")
        except Exception:
            log.exception("a connection failed")
            self._service.metrics.refused("failure")
            await self._refuse("internal error", 1011)

    async def _refuse(self, text: str, code: int) -> None:
        """Tell why no more is answered, and close."""
        with contextlib.suppress(WebSocketDisconnect, TimeoutError):
            await self._send(json.dumps({"error": text}, ensure_ascii=False))
            await self._close(code, text)

    async def _answer_all(self) -> None:
        """Answer each message, until the last one."""
        while True:
            try:
                async with asyncio.timeout(self._service.options.idle):
                    message = await self._inbox.get()
            except TimeoutError:
                raise RefusedError(
                    f"no message within {self._service.options.idle:g} s", "idle"
                ) from None
            if message is None:
                raise RefusedError("the server is ending", "draining")
            if not await self._answer_one(message):
                return

    async def _answer_one(self, message: bytes | str) -> bool:
        """Answer a message; return whether there may be another."""
        began = time.perf_counter()
        if len(message) > self._service.options.max_message:
            raise RefusedError(
                f"a message of {len(message)} bytes; at most"
                f" {self._service.options.max_message} are allowed",
                "message size",
            )
        read = message if isinstance(message, bytes) else read_message(message)
        if isinstance(read, VoskConfig):
            self._configure(read)
            return True
        if not self._is_trusted:
            self._service.check_token("")
        if isinstance(read, bytes):
            await self._reply(await self._accept(read), began, is_last=False)
        else:
            await self._finish(began)
        return read != "eof"

    def _configure(self, config: VoskConfig) -> None:
        """Take a client's settings; after audio they are ignored, as Vosk does."""
        if not self._is_trusted:
            self._service.check_token(config.token)
            self._is_trusted = True
        if self._session is None:
            wanted = config.model or ""
            scheduler = self._service.scheduler_of(wanted)
            if wanted not in {"", scheduler.model.info.name}:
                raise self._service.no_model(wanted)
            self._scheduler, self._config = scheduler, config

    async def _accept(self, data: bytes) -> Sequence[Event]:
        """Recognize samples."""
        if self._session is None:
            self._session = await self._open()
        data = self._odd + data
        whole = len(data) - len(data) % _BYTES_A_SAMPLE
        data, self._odd = data[:whole], data[whole:]
        samples = np.frombuffer(data, "<i2").astype(np.int16, copy=False)
        seconds = len(samples) / self._rate
        self._service.metrics.heard(seconds)
        self._samples += len(samples)
        if self._samples > self._service.options.max_session * self._rate:
            raise RefusedError(
                f"a session may have {self._service.options.max_session:g} s of audio",
                "session length",
            )
        return await asyncio.wrap_future(self._session.accept(samples))

    @property
    def _rate(self) -> float:
        """Sample rate of the client's audio, Hz."""
        return self._config.sample_rate or self._service.sample_rate_of(self._scheduler)

    async def _open(self) -> LiveSession:
        """Begin a session with the client's settings."""
        config, info = self._config, self._scheduler.model.info
        if not self._scheduler.model.is_streaming:
            text = (
                f"{info.name} cannot be streamed: {info.why_not_streaming}; send whole "
                "files to /v1/audio/transcriptions"
            )
            raise RefusedError(text, "model")
        options = self._service.session_options(
            sample_rate=round(self._rate),
            max_alternatives=max(1, config.max_alternatives),
            phrases=config.phrase_list or self._service.session.phrases,
        )
        client = self._websocket.client
        name = f"{client.host}:{client.port}" if client else "websocket"
        return await self._service.begin(options, name, self._scheduler)

    async def _finish(self, began: float) -> None:
        """Recognize to the end what was accepted, tell it, and end the session."""
        events: Sequence[Event] = ()
        if self._session is not None:
            events = await asyncio.wrap_future(self._session.finish())
        await self._reply(events, began, is_last=True)
        self._close_session()

    def _close_session(self) -> None:
        """Forget what was accepted."""
        if self._session is not None:
            self._session.close()
        self._offset += self._samples / self._rate
        self._session, self._odd, self._samples, self._partial = None, b"", 0, ""

    async def _end_early(self) -> None:
        """Deliver what was recognized so far, before the connection is closed."""
        if self._session is not None:
            await self._finish(time.perf_counter())

    async def _reply(
        self, events: Sequence[Event], began: float, *, is_last: bool
    ) -> None:
        """Send the answer to a message: segments that ended, or the words so far."""
        finals = [event for event in events if isinstance(event, Final)]
        for event in events:
            self._partial = event.text if isinstance(event, Partial) else ""
        if finals or is_last:
            await self._send(
                final_reply(
                    finals,
                    words=self._config.words,
                    alternatives=self._config.max_alternatives,
                    offset=self._offset,
                )
            )
        else:
            await self._send(partial_reply(self._partial))
        self._service.metrics.replied(time.perf_counter() - began, finals=len(finals))

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


async def serve_websocket(websocket: WebSocket, service: Service) -> None:
    """Answer a client by Vosk's protocol until it, or the server, ends."""
    connection = _Connection(websocket, service)
    with service.connected(connection), contextlib.suppress(WebSocketDisconnect):
        await connection.run()
