"""OpenAI's transcriptions of files: as a whole, or streamed as they are recognized."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from typing import Any, TypeVar

import numpy as np
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)

from latflow.corpus.audio import AudioReader, BadAudio
from latflow.corpus.ctm import TimedWord
from latflow.decode.options import SegmentationOptions
from latflow.errors import UserError
from latflow.serving.formats import Transcription, log_probabilities, render
from latflow.serving.recording import open_recording
from latflow.serving.requests import GONE, limited
from latflow.serving.results import Final, Segment, moved
from latflow.serving.scheduler import ClosedError, LiveSession
from latflow.serving.segmentation import SpeechCutter, detector_of
from latflow.serving.service import RefusedError, Service, error_values, refusal_of
from latflow.serving.transcription_form import Wanted

log = logging.getLogger("latflow")
_FIELD_BYTES = 1 << 20
_ALIVE_SECONDS = 15.0  # without an event of a stream, then a comment is sent
_Result = TypeVar("_Result")


async def transcribe(request: Request, service: Service) -> Response:
    """Answer OpenAI's `POST /v1/audio/transcriptions`."""
    service.admit()  # before the body is taken
    try:
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(limited(request, service))
            form = await _answered(_form(body))
            stack.push_async_callback(form.close)
            wanted = Wanted.of(form, service)
            recognition = await _answered(_opened(form, service, wanted))
            stack.callback(recognition.close)
            if wanted.is_streamed:
                kept = stack.pop_all()  # continues with the file
                events = _events(recognition, kept, has_logprobs=wanted.has_logprobs)
                return StreamingResponse(
                    _kept_alive(events),
                    media_type="text/event-stream",
                    headers={"cache-control": "no-cache"},
                )
            segments = await _answered(_all(recognition, request))
            found = Transcription(recognition.name, recognition.seconds, segments)
            return _answer(found, wanted, recognition.notes)
    except ClientDisconnect:
        return Response(status_code=GONE)


async def _answered(work: Awaitable[_Result]) -> _Result:
    """Return the result of some work; turn its errors into answers to a client."""
    try:
        return await work
    except HTTPException as error:
        raise RefusedError(error.detail, status=error.status_code) from None
    except BadAudio as error:
        raise RefusedError(str(error), param="file") from None
    except UserError as error:
        raise refusal_of(error) from None
    except ClosedError:
        raise RefusedError("the server is ending", "draining") from None


async def _form(request: Request) -> FormData:
    """Return the form of a request."""
    kind = request.headers.get("content-type", "")
    if not kind.lower().startswith("multipart/form-data"):
        text = f"{kind or 'a body without a content-type'} is no multipart/form-data"
        raise RefusedError(f"{text}; send the recording as its file", param="file")
    return await request.form(max_files=1, max_fields=100, max_part_size=_FIELD_BYTES)


class _Recognition:
    """A file that is recognized, piece by piece; to be closed.

    Attributes:
        name: of the file.
        seconds: of audio, as far as it is read.

    Args:
        audio: the file.
        name: see above.
        service: that recognizes.
        wanted: by the client.
    """

    def __init__(
        self, audio: AudioReader, name: str, service: Service, wanted: Wanted
    ) -> None:
        self.name, self.seconds = name, 0.0
        self._audio, self._service, self._scheduler = audio, service, wanted.model
        self._began = time.perf_counter()
        self._session: LiveSession | None = None
        self._warnings: dict[str, None] = {}  # of sessions of segments, each once
        self._form_notes = wanted.notes
        self._options = service.session_options(
            sample_rate=audio.sample_rate, partials=False, **wanted.options
        )

    async def begin(self) -> None:
        """Begin the session of a model that streams.

        Raises:
            RefusedError: the server has none for it.
        """
        if self._scheduler.model.is_streaming:
            self._session = await self._service.begin(
                self._options, self.name, self._scheduler
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Return warnings of the file (as far as it is read), form and session."""
        warnings = self._warnings if self._session is None else self._session.warnings
        return (*self._audio.notes, *self._form_notes, *warnings)

    def close(self) -> None:
        """Release what is not recognized."""
        self._audio.close()
        if self._session is not None:
            self._session.close()

    async def segments(self) -> AsyncGenerator[Segment]:
        """Yield the segments as they end.

        Raises:
            BadAudio: see `AudioReader.blocks`.
            RefusedError: there is more audio than a file may have.
        """
        number = 0
        found = self._of_stream() if self._session is not None else self._of_speech()
        async with aclosing(found):
            async for segment in found:
                number += 1
                yield segment
        for note in self._audio.notes:
            log.warning("an uploaded file has %s", note)
        self._service.metrics.replied(time.perf_counter() - self._began, finals=number)

    async def _of_stream(self) -> AsyncGenerator[Segment]:
        """Yield segments that end by the endpoint rules, as in a stream."""
        session = self._session
        assert session is not None
        async for samples in self._blocks():
            for event in await asyncio.wrap_future(session.accept(samples)):
                if isinstance(event, Final):
                    yield event.segment
        for event in await asyncio.wrap_future(session.finish()):
            if isinstance(event, Final):
                yield event.segment

    async def _of_speech(self) -> AsyncGenerator[Segment]:
        """Yield segments of speech, each recognized as a whole (as `transcribe`)."""
        rate = self._audio.sample_rate
        detector = await asyncio.to_thread(detector_of, rate)
        cutter = SpeechCutter(
            rate, detector, self._options.vad or SegmentationOptions()
        )
        async for samples in self._blocks():
            for piece in await asyncio.to_thread(cutter.accept, samples):
                yield await self._piece(*piece)
        for piece in await asyncio.to_thread(cutter.finish):
            yield await self._piece(*piece)

    async def _piece(self, begin: int, samples: np.ndarray) -> Segment:
        """Recognize a segment of speech that begins at a sample."""
        options = self._options.replace(endpoint="off", vad=None)
        opened = await self._service.begin(options, self.name, self._scheduler)
        with closing(opened) as session:
            await asyncio.wrap_future(session.accept(samples))
            *_, final = await asyncio.wrap_future(session.finish())
            self._warnings |= dict.fromkeys(session.warnings)
        assert isinstance(final, Final)
        return moved(final.segment, begin / self._audio.sample_rate)

    async def _blocks(self) -> AsyncGenerator[np.ndarray]:
        """Yield the samples in blocks, as many as a file may have."""
        blocks: Iterator[np.ndarray] = self._audio.blocks()
        limit = self._service.options.max_session
        while (samples := await asyncio.to_thread(next, blocks, None)) is not None:
            seconds = len(samples) / self._audio.sample_rate
            self.seconds += seconds
            if self.seconds > limit:
                text = f"a file may have {limit:g} s of audio"
                raise RefusedError(text, "session length")
            self._service.metrics.add_audio(seconds)
            yield samples


async def _opened(form: FormData, service: Service, wanted: Wanted) -> _Recognition:
    """Begin to recognize the file of a form."""
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise RefusedError("the form (multipart/form-data) has no file", param="file")
    name = upload.filename or "upload"
    audio = await asyncio.to_thread(open_recording, upload.file, name=name)
    try:
        recognition = _Recognition(audio, name, service, wanted)
        await recognition.begin()
    except BaseException:
        audio.close()
        raise
    return recognition


async def _all(recognition: _Recognition, request: Request) -> list[Segment]:
    """Return the segments of a file that have words; else one that has none.

    Stops where the client has left.
    """
    segments: list[Segment] = []
    async with aclosing(recognition.segments()) as found:
        async for segment in found:
            segments.append(segment)
            if await request.is_disconnected():
                raise ClientDisconnect
    spoken = [segment for segment in segments if segment.best.words]
    return spoken or segments[-1:]


async def _events(
    recognition: _Recognition, kept: AsyncExitStack, *, has_logprobs: bool
) -> AsyncGenerator[str]:
    """Yield OpenAI's events of a transcription; the last one has all words.

    An error is an event, too: the answer's status was sent before.
    """
    texts: list[str] = []
    all_words: list[TimedWord] = []

    def logprobs(words: Sequence[TimedWord]) -> dict[str, Any]:
        return {"logprobs": log_probabilities(words)} if has_logprobs else {}

    try:
        async with aclosing(recognition.segments()) as found:
            while (segment := await _answered(_next(found))) is not None:
                if text := segment.best.text:
                    delta = f" {text}" if texts else text
                    words = segment.best.words
                    texts.append(text)
                    all_words += words
                    yield _event(
                        "transcript.text.delta", delta=delta, **logprobs(words)
                    )
        usage = _usage(recognition.seconds)
        values = {"text": " ".join(texts), **logprobs(all_words), "usage": usage}
        values |= _warnings(recognition.notes)
        yield _event("transcript.text.done", **values)
    except RefusedError as refusal:
        yield _event("error", **error_values(refusal))
    except Exception:
        log.exception("a request failed")
        refusal = RefusedError("internal error", "failure")
        yield _event("error", **error_values(refusal))
    finally:
        await kept.aclose()


async def _kept_alive(events: AsyncGenerator[str]) -> AsyncGenerator[str]:
    """Yield events, and comments while there is none, so that proxies wait."""
    async with aclosing(events):
        while True:
            coming = asyncio.ensure_future(anext(events, None))
            try:
                while not (await asyncio.wait({coming}, timeout=_ALIVE_SECONDS))[0]:
                    yield ": recognizing\n\n"
            except BaseException:
                coming.cancel()
                await asyncio.wait({coming})
                raise
            if (event := coming.result()) is None:
                return
            yield event


async def _next(segments: AsyncGenerator[Segment]) -> Segment | None:
    """Return the next segment, or None."""
    return await anext(segments, None)


def _event(kind: str, **values: Any) -> str:
    """Return a server-sent event."""
    return f"data: {json.dumps({'type': kind, **values}, ensure_ascii=False)}\n\n"


def _usage(seconds: float) -> dict[str, Any]:
    """Return what OpenAI would charge for."""
    return {"type": "duration", "seconds": math.ceil(seconds)}


def _warnings(notes: Sequence[str]) -> dict[str, Any]:
    """Return the warnings, if any, as a field of an answer."""
    return {"warnings": list(notes)} if notes else {}


def _answer(
    transcription: Transcription, wanted: Wanted, notes: Sequence[str]
) -> Response:
    """Return a transcription in the form that was asked for."""
    form, usage = wanted.form, _usage(transcription.duration)
    words = [word for s in transcription.segments for word in s.best.words]
    if form == "json":
        value = {"text": transcription.text, "usage": usage, **_warnings(notes)}
        if wanted.has_logprobs:
            value["logprobs"] = log_probabilities(words)
        return JSONResponse(value)
    if form == "text":
        return PlainTextResponse(transcription.text + "\n")
    if form in {"srt", "vtt"}:
        kind = "text/vtt" if form == "vtt" else "application/x-subrip"
        return Response(render(transcription, form), media_type=kind)
    value = {
        "task": "transcribe",
        "language": wanted.language,
        "duration": transcription.duration,
        "text": transcription.text,
        "usage": usage,
        **_warnings(notes),
    }
    if "segment" in wanted.granularities:
        value["segments"] = [
            _segment_values(i, segment)
            for i, segment in enumerate(transcription.segments)
        ]
    if "word" in wanted.granularities:
        value["words"] = [
            {
                "word": word.word,
                "start": round(float(word.start), 3),
                "end": round(float(word.end), 3),
                "confidence": float(word.confidence or 0.0),
            }
            for word in words
        ]
    return JSONResponse(value)


def _segment_values(number: int, segment: Segment) -> dict[str, Any]:
    """Return a segment as OpenAI's verbose JSON has it."""
    text = segment.best.text
    data = text.encode()
    sure = [max(word.confidence or 0.0, 1e-10) for word in segment.best.words]
    return {
        "id": number,
        "seek": 0,
        "start": round(float(segment.start), 3),
        "end": round(float(segment.end), 3),
        "text": text,
        "tokens": [],
        "temperature": 0.0,
        "avg_logprob": float(np.mean(np.log(sure))) if sure else 0.0,
        "compression_ratio": len(data) / len(zlib.compress(data)),
        "no_speech_prob": round(segment.no_speech, 4),
    }
