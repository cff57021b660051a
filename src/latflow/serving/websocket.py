"""Vosk's websocket protocol: audio in binary messages, each answered by one of JSON.

A client may first send `{"config": {...}}`; then sends samples, 16 bits little-endian,
and at last `{"eof" : 1}`; some send these in binary messages, too. `docs/serving.md`
describes all messages. Facts from alphacep/vosk-server, `websocket/asr_server.py`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocket, WebSocketDisconnect

from latflow.serving.connection import Connection
from latflow.serving.options import SessionOptions
from latflow.serving.results import Event, Final, Hypothesis, Partial
from latflow.serving.service import RefusedError, Service

Command = Literal["eof", "reset"]
_BYTES_A_SAMPLE = 2
_MAX_ALTERNATIVES = 100
_MAX_PHRASES = 10_000
_Lines = Annotated[tuple[str, ...], Field(max_length=_MAX_PHRASES)]


class VoskConfig(BaseModel):
    """Settings of a client; unknown keys are ignored, as Vosk does."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    sample_rate: Annotated[float, Field(ge=1000, le=384000)] | None = None
    words: bool = True
    max_alternatives: Annotated[int, Field(ge=0, le=_MAX_ALTERNATIVES)] = 0
    phrase_list: _Lines = ()
    phrases: _Lines = ()
    grammar: str | _Lines = ""
    new_words: _Lines = ()
    words_like: _Lines = ()
    model: str | None = None
    token: str = ""


def read_message(text: str) -> VoskConfig | Command:
    """Read a text message.

    Raises:
        RefusedError: it is not part of the protocol.
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


def text_in(data: bytes) -> str | None:
    """Return the JSON object that a binary message is, as text; None for samples."""
    if data[:1] != b"{":
        return None
    try:
        text = data.decode()
        return text if isinstance(json.loads(text), dict) else None
    except (ValueError, RecursionError):
        return None


def partial_reply(text: str) -> str:
    """Return the words so far in Vosk's form."""
    return json.dumps({"partial": text}, ensure_ascii=False)


def final_reply(
    finals: Sequence[Final], *, words: bool, alternatives: int, offset: float = 0.0
) -> str:
    """Return recognized segments as one result of Vosk's.

    A message may end several segments, and has one answer: their words are joined.

    Args:
        finals: empty where there was no speech.
        words: whether times and confidences of words are sent.
        alternatives: how many hypotheses are sent; 0 for the best, in the form without
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
    values = []
    for hypothesis in joined[:alternatives]:
        value = {"confidence": float(hypothesis.confidence), "text": hypothesis.text}
        if words and hypothesis.words:
            value["result"] = _word_values(hypothesis, offset, confidences=False)
        values.append(value)
    return json.dumps({"alternatives": values}, ensure_ascii=False)


def _joined(hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    """Return the hypotheses of successive segments as one."""
    return Hypothesis(
        tuple(word for hypothesis in hypotheses for word in hypothesis.words),
        float(np.prod([hypothesis.confidence for hypothesis in hypotheses])),
    )


def _word_values(
    hypothesis: Hypothesis, offset: float, *, confidences: bool
) -> list[dict[str, Any]]:
    """Return the words of a hypothesis in Vosk's form."""
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


class _VoskConnection(Connection):
    """A client of Vosk's protocol."""

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        super().__init__(websocket, service)
        self._config = VoskConfig()
        self._odd = b""  # half a sample, until the other half comes
        self._partial = ""

    @property
    def _rate(self) -> float:
        """Sample rate of the client's audio, Hz."""
        return self._config.sample_rate or self._service.sample_rate_of(self._scheduler)

    def _session_options(self) -> SessionOptions:
        """Return the options of a session with the client's settings."""
        config = self._config
        return self._service.session_options(
            sample_rate=round(self._rate),
            max_alternatives=max(1, config.max_alternatives),
            phrase_list=config.phrase_list,
            phrases=config.phrases or self._service.session.phrases,
            grammar=config.grammar
            if isinstance(config.grammar, str)
            else json.dumps(config.grammar),
            new_words=config.new_words,
            words_like=config.words_like,
        )

    async def _reply_to(self, message: bytes | str) -> bool:
        """Answer a message; return whether there may be another."""
        began = time.perf_counter()
        text = message if isinstance(message, str) else text_in(message)
        read = message if text is None else read_message(text)
        if isinstance(read, VoskConfig):
            self._configure(read)
            return True
        if not self._is_trusted:
            self._service.check_token("")
        if isinstance(read, bytes):
            self._beginning.check(read, self._rate)
            await self._reply(await self._accept(self._whole(read)), began)
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

    def _whole(self, data: bytes) -> np.ndarray:
        """Return the samples of a message; half a sample waits for the next one."""
        data = self._odd + data
        whole = len(data) - len(data) % _BYTES_A_SAMPLE
        data, self._odd = data[:whole], data[whole:]
        return np.frombuffer(data, "<i2").astype(np.int16, copy=False)

    async def _finish(self, began: float) -> None:
        """Recognize to the end what was accepted, tell it, and end the session."""
        await self._reply(await self._last_events(), began, is_last=True)
        self._close_session()
        self._odd, self._partial = b"", ""

    async def _reply(
        self, events: Sequence[Event], began: float, *, is_last: bool = False
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

    async def _send_refusal(self, refusal: RefusedError) -> None:
        """Send the client why no more is answered."""
        await self._send(json.dumps({"error": str(refusal)}, ensure_ascii=False))


async def serve_websocket(websocket: WebSocket, service: Service) -> None:
    """Answer a client by Vosk's protocol until it, or the server, ends."""
    connection = _VoskConnection(websocket, service)
    with service.connected(connection), contextlib.suppress(WebSocketDisconnect):
        await connection.run()
