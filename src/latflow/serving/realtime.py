"""OpenAI's realtime protocol (`/v1/realtime`), as far as it transcribes.

A client sends events of JSON: its settings (`session.update`, or the older
`transcription_session.update`), audio in base64, `commit` and `clear`. It gets turns:
with `turn_detection` each segment that the session ends, else what is committed; deltas
carry the words while they are spoken. `docs/serving.md` lists the supported fields.
Facts from OpenAI's API reference and the types of its Python package (openai 3.57).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import io
import itertools
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import soundfile
from starlette.websockets import WebSocket, WebSocketDisconnect

from latflow.corpus.ctm import TimedWord
from latflow.decode.options import SegmentationOptions
from latflow.serving.connection import Connection
from latflow.serving.formats import log_probabilities
from latflow.serving.options import SessionOptions
from latflow.serving.realtime_settings import (
    CODINGS,
    TELEPHONE_RATE,
    Settings,
    mapping,
    turns_of,
    wrong,
)
from latflow.serving.results import Event, Final, Segment
from latflow.serving.service import RefusedError, Service, error_values

_KINDS = (
    "session.update",
    "transcription_session.update",
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
)
# Refusals after which a client may continue.
_PARDONED = (
    *("message", "options", "model", "request"),
    "input_audio_buffer_commit_empty",
)
_KEY, _OLD = "openai-insecure-api-key.", "openai-beta.realtime-v1"


def _event_of(message: bytes | str) -> dict[str, Any]:
    """Read an event of a client.

    Raises:
        RefusedError: it is invalid.
    """
    try:
        event = json.loads(message) if isinstance(message, str) else None
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict):
        raise RefusedError("an event must be a JSON object in a text message")
    return event


class _RealtimeConnection(Connection):
    """A client of OpenAI's protocol."""

    def __init__(self, websocket: WebSocket, service: Service) -> None:
        super().__init__(websocket, service)
        offered = websocket.scope.get("subprotocols", [])
        self._keys = [name[len(_KEY) :] for name in offered if name.startswith(_KEY)]
        self._protocol = "realtime" if "realtime" in offered else None
        beta = websocket.headers.get("openai-beta", "")
        self._is_old = _OLD in offered or "realtime=v1" in beta
        self._usual = service.session.vad or SegmentationOptions()
        turns, detection = turns_of({"type": "server_vad"}, self._usual)
        asked = websocket.query_params.get("model", "")
        if asked in service.schedulers:  # it may be one of OpenAI's, too
            self._scheduler = service.schedulers[asked]
        name = self._scheduler.model.info.name
        self._settings = Settings(name, turns=turns, detection=detection)
        self._name = f"sess_{secrets.token_hex(8)}"
        self._ids = itertools.count(1)
        self._item = ""  # the turn that has begun
        self._before: str | None = None  # the turn before it
        self._turn: list[Segment] = []  # what is recognized, and not committed yet
        self._settled = SettledWords()  # of the segment that continues
        self._has_deltas = False  # of the turn that has begun
        self._committed = 0.0  # seconds of the session that turns have had
        self._event_id: str | None = None  # of the event that is answered

    # -- what the connection asks for --------------------------------------------------

    @property
    def _rate(self) -> float:
        """Sample rate of the client's audio, Hz."""
        return self._settings.rate

    def _session_options(self) -> SessionOptions:
        """Return the options of a session with the client's settings."""
        settings = self._settings
        return self._service.session_options(
            sample_rate=settings.rate,
            vad=settings.turns or self._service.session.vad,
            prompt=settings.prompt,
            phrases=settings.keywords,
        )

    async def _accept_handshake(self) -> None:
        """Answer the handshake, and send the settings."""
        await self._websocket.accept(self._protocol)
        await self._emit_session("created")

    async def _reply_to(self, message: bytes | str) -> bool:
        """Answer an event; what is wrong with it ends nothing."""
        began, self._event_id = time.perf_counter(), None
        if not self._is_trusted:
            self._service.check_token(self._keys[0] if self._keys else "")
            self._is_trusted = True
        try:
            event = _event_of(message)
            self._event_id = event.get("event_id")
            await self._take(event, began)
        except RefusedError as refusal:
            if refusal.reason not in _PARDONED:
                raise
            self._service.metrics.refused(refusal.reason)
            await self._send_refusal(refusal)
        return True

    async def _take(self, event: Mapping[str, Any], began: float) -> None:
        """Do what an event asks for."""
        kind = event.get("type")
        if kind not in _KINDS:
            raise wrong("type", kind, _KINDS)
        kind = kind.rpartition(".")[2]
        if kind == "append":
            await self._hear(await self._accept(self._samples_of(event)), began)
        elif kind == "commit":
            await self._commit_all(began)
        elif kind == "clear":
            self._forget()
            await self._emit("input_audio_buffer.cleared")
        else:
            await self._configure(event, began)

    async def _configure(self, event: Mapping[str, Any], began: float) -> None:
        """Take a client's settings; audio that came before them is finished first."""
        session = mapping(event.get("session"), "session")
        settings = self._settings.updated(session, self._usual)
        scheduler = self._service.scheduler_of(settings.model)
        if self._session is not None and settings != self._settings:
            await self._finish(began)
        self._settings, self._scheduler = settings, scheduler
        self._is_old = self._is_old or event["type"] == "transcription_session.update"
        await self._emit_session("updated")

    def _samples_of(self, event: Mapping[str, Any]) -> np.ndarray:
        """Return the samples of an event, int16.

        Raises:
            RefusedError: they are invalid.
        """
        try:
            data = base64.b64decode(event["audio"], validate=True)
        except (binascii.Error, KeyError, TypeError, ValueError):
            raise RefusedError("audio must be base64", param="audio") from None
        form = self._settings.form
        if form == "audio/pcm":
            self._beginning.check(data, self._rate, param="audio")
            if len(data) % 2:
                text = "audio ends within a sample of 16 bits"
                raise RefusedError(text, param="audio")
            return np.frombuffer(data, "<i2").astype(np.int16, copy=False)
        if not data:
            return np.zeros(0, np.int16)
        samples, _ = soundfile.read(
            io.BytesIO(data),
            samplerate=TELEPHONE_RATE,
            channels=1,
            format="RAW",
            subtype=CODINGS[form],
            dtype="int16",
        )
        return samples

    # -- turns -------------------------------------------------------------------------

    async def _hear(self, events: Sequence[Event], began: float) -> None:
        """Send the results of samples."""
        finals = 0
        for event in events:
            if isinstance(event, Final):
                finals += 1
                await self._end_segment(event.segment)
            elif event.text:
                await self._begin_turn(event.start)
                await self._emit_delta(self._item, self._settled.accept(event.text))
        self._service.metrics.replied(time.perf_counter() - began, finals=finals)

    async def _begin_turn(self, start: float) -> None:
        """Name the turn, and report that speech was found, once a turn."""
        if self._item:
            return
        self._item = self._id("item")
        if self._settings.turns is not None:
            await self._emit(
                "input_audio_buffer.speech_started",
                audio_start_ms=self._milliseconds(start),
                item_id=self._item,
            )

    async def _end_segment(self, segment: Segment) -> None:
        """Keep a segment until it is committed, which turns are at once."""
        rest = self._settled.finish(segment.best.words)
        has_turns = self._settings.turns is not None
        if segment.best.words or segment.warning or self._item:
            await self._begin_turn(segment.start)
        elif has_turns:
            return
        self._turn.append(segment)
        if not has_turns:
            await self._emit_delta(self._item, [word.word for word in rest], rest)
            return
        await self._emit(
            "input_audio_buffer.speech_stopped",
            audio_end_ms=self._milliseconds(segment.end),
            item_id=self._item,
        )
        await self._commit(rest)

    async def _finish(self, began: float) -> None:
        """Recognize to the end what was accepted, tell it, and end the session."""
        await self._hear(await self._last_events(), began)
        if self._item:
            await self._commit()
        self._forget()

    async def _commit_all(self, began: float) -> None:
        """Make a turn of what came since the last one; it may have no words.

        Raises:
            RefusedError: nothing came.
        """
        if self._samples <= self._committed * self._rate:
            text = "there is no audio to commit"
            raise RefusedError(text, "input_audio_buffer_commit_empty")
        before = self._before
        await self._finish(began)
        if self._before == before:
            await self._commit()

    async def _commit(self, rest: Sequence[TimedWord] = ()) -> None:
        """Send a turn, and its words.

        Args:
            rest: words that no delta has sent.
        """
        item, before = self._item or self._id("item"), self._before
        segments, self._turn = self._turn, []
        self._item, self._before = "", item
        if segments:
            self._committed = segments[-1].end
        place = {"item_id": item, "previous_item_id": before}
        await self._emit("input_audio_buffer.committed", **place)
        content = [{"type": "input_audio", "transcript": None}]
        values = {
            "previous_item_id": before,
            "item": {
                "id": item,
                "object": "realtime.item",
                "type": "message",
                "status": "completed",
                "role": "user",
                "content": content,
            },
        }
        for name in ("created",) if self._is_old else ("added", "done"):
            await self._emit(f"conversation.item.{name}", **values)
        await self._emit_delta(item, [word.word for word in rest], rest)
        await self._send_words(item, segments)
        self._has_deltas = False

    async def _send_words(self, item: str, segments: Sequence[Segment]) -> None:
        """Send all words of a turn, or why there are none."""
        texts = [segment.best.text for segment in segments if segment.best.words]
        warnings = [segment.warning for segment in segments if segment.warning]
        if warnings and not texts:
            error = {"type": "server_error", "code": "failure", "message": warnings[0]}
            await self._emit_words(item, "failed", error=error)
            return
        seconds = sum(segment.end - segment.start for segment in segments)
        usage = {"type": "duration", "seconds": round(seconds, 3)}
        words = [word for segment in segments for word in segment.best.words]
        values = {"transcript": " ".join(texts), "usage": usage}
        await self._emit_words(item, "completed", words, **values)

    def _forget(self) -> None:
        """Forget the audio that is not committed."""
        self._close_session()
        self._item, self._turn, self._committed = "", [], 0.0
        self._settled, self._has_deltas = SettledWords(), False

    # -- events ------------------------------------------------------------------------

    def _id(self, kind: str) -> str:
        """Return a new id of an item or an event."""
        return f"{kind}_{next(self._ids):08d}"

    def _milliseconds(self, seconds: float) -> int:
        """Return a time of the session as one from the beginning of all audio."""
        return round(1000 * (self._offset + seconds))

    async def _emit(self, kind: str, **values: Any) -> None:
        """Send an event."""
        event = {"type": kind, "event_id": self._id("event"), **values}
        await self._send(json.dumps(event, ensure_ascii=False))

    async def _emit_session(self, what: str) -> None:
        """Send the settings."""
        is_old, settings = self._is_old, self._settings
        values = settings.old_values() if is_old else settings.values()
        kind = f"{'transcription_' if is_old else ''}session.{what}"
        await self._emit(kind, session={"id": self._name, **values})

    async def _emit_delta(
        self, item: str, texts: Sequence[str], words: Sequence[TimedWord] = ()
    ) -> None:
        """Send the next words of a turn, if there are any."""
        if texts:
            delta = f"{' ' if self._has_deltas else ''}{' '.join(texts)}"
            self._has_deltas = True
            await self._emit_words(item, "delta", words, delta=delta)

    async def _emit_words(
        self, item: str, what: str, words: Sequence[TimedWord] = (), **values: Any
    ) -> None:
        """Send an event about the words of a turn."""
        if self._settings.has_logprobs and words:
            values["logprobs"] = log_probabilities(words)
        kind = f"conversation.item.input_audio_transcription.{what}"
        await self._emit(kind, item_id=item, content_index=0, **values)

    async def _send_refusal(self, refusal: RefusedError) -> None:
        """Send an error."""
        values = error_values(refusal)["error"]
        await self._emit("error", error={**values, "event_id": self._event_id})


async def serve_realtime(websocket: WebSocket, service: Service) -> None:
    """Answer a client by OpenAI's protocol until it, or the server, ends."""
    connection = _RealtimeConnection(websocket, service)
    with service.connected(connection), contextlib.suppress(WebSocketDisconnect):
        await connection.run()


class SettledWords:
    """Sends the words of a segment once each, most of them before it ends.

    Sent are the words that two hypotheses after one another begin with, but for the
    last of these words, which still changes most. The final result is from the lattice
    and may have others; then those behind as many as were sent are sent at last. (Of 47
    sentences of the demo's dev set, 70 % of the words are sent before the end, and four
    sentences have other words then.)
    """

    def __init__(self) -> None:
        self._before: list[str] = []  # the hypothesis before
        self._num_sent = 0

    def accept(self, text: str) -> list[str]:
        """Take a hypothesis that is not the one before; return words to be sent."""
        words = text.split()
        pairs = zip(words, self._before, strict=False)
        num_same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        first, self._before = self._num_sent, words
        self._num_sent = max(first, num_same - 1)
        return words[first : self._num_sent]

    def finish(self, words: Sequence[TimedWord]) -> Sequence[TimedWord]:
        """Take the words at the end of the segment; return those not sent yet."""
        rest = words[self._num_sent :]
        self._before, self._num_sent = [], 0
        return rest
