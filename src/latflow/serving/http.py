"""The server's routes; transcription and evaluation by HTTP.

`/v1/audio/transcriptions` takes and gives what OpenAI's does (`docs/serving.md`).

Public: `create_app`.
"""

from __future__ import annotations

import asyncio
import io
import logging
import math
import time
import zipfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from importlib.resources import files
from typing import Any, Literal, cast, get_args

import numpy as np
import soundfile
from starlette.applications import Starlette
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Message
from starlette.websockets import WebSocket

import latflow
from latflow.corpus.audio_backend import Sound
from latflow.errors import UserError
from latflow.files import DAMAGED
from latflow.serving.acoustics import NetworkAcoustics
from latflow.serving.formats import Transcription, render
from latflow.serving.results import Event, Final, Segment
from latflow.serving.scheduler import ClosedError
from latflow.serving.service import RefusedError, Service
from latflow.serving.websocket import serve_websocket

log = logging.getLogger("latflow")
_Endpoint = Callable[[Request, Service], Awaitable[Response]]
_Format = Literal["json", "text", "srt", "vtt", "verbose_json"]
_GRANULARITIES = {"word", "segment"}
_BLOCK_SECONDS = 10  # of a file, read and recognized at a time
_FIELD_BYTES = 1 << 20
_GONE = 499  # status of a request whose client has left; nobody reads it


def create_app(service: Service) -> Starlette:
    """Return the application of a process of the server."""
    page = files("latflow.serving").joinpath("page.html").read_text("utf-8")

    async def show_page(_: Request) -> Response:
        return HTMLResponse(page)

    async def talk(websocket: WebSocket) -> None:
        await serve_websocket(websocket, service)

    routes: list[BaseRoute] = [
        WebSocketRoute("/", talk),
        Route("/", show_page),
        Route("/health", _guarded(_health, service, token=False)),
        Route("/metrics", _guarded(_metrics, service)),
        Route("/v1/models", _guarded(_models, service)),
        Route(
            "/v1/audio/transcriptions", _guarded(transcribe, service), methods=["POST"]
        ),
    ]
    if service.options.evaluate:
        path = "/v1/evaluate"
        routes.append(Route(path, _guarded(evaluate, service), methods=["POST"]))
    return Starlette(routes=routes)


def _guarded(
    endpoint: _Endpoint, service: Service, *, token: bool = True
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that tells refusals by status, and asks for the token."""

    async def answer(request: Request) -> Response:
        try:
            if token:
                service.check_origin(request.headers)
                service.check_headers(request.headers)
            return await endpoint(request, service)
        except RefusedError as refusal:
            service.metrics.refused(refusal.reason)
            return _error_response(refusal)
        except Exception:
            log.exception("a request failed")
            service.metrics.refused("failure")
            return _error_response(RefusedError("internal error", "failure"))

    return answer


async def _health(_: Request, service: Service) -> Response:
    """Tell that the server is there, or that it ends."""
    return JSONResponse(
        {
            "status": "ending" if service.is_draining else "ok",
            "model": service.model.info.name,
            "version": latflow.__version__,
            "sessions": service.scheduler.sessions,
        },
        503 if service.is_draining else 200,
    )


async def _metrics(_: Request, service: Service) -> Response:
    """Tell the measurements."""
    metrics = service.metrics
    return Response(metrics.text(), headers={"content-type": metrics.content_type})


async def _models(_: Request, service: Service) -> Response:
    """List the one model, as OpenAI's clients ask for it."""
    model = {"id": service.model.info.name, "object": "model", "owned_by": "latflow"}
    return JSONResponse({"object": "list", "data": [model]})


def _error_response(refusal: RefusedError) -> Response:
    """Return a refusal as OpenAI's clients read it."""
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    error = {"message": str(refusal), "type": kind, "param": None, "code": None}
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}
    return JSONResponse(
        {"error": {**error, "code": refusal.reason.replace(" ", "_")}},
        refusal.status,
        headers.get(refusal.status),
    )


async def transcribe(request: Request, service: Service) -> Response:
    """Answer OpenAI's `POST /v1/audio/transcriptions`."""
    service.admit()  # before the body is taken
    try:
        async with (
            _limited(request, service) as limited,
            limited.form(
                max_files=1, max_fields=100, max_part_size=_FIELD_BYTES
            ) as form,
        ):
            upload = form.get("file")
            if not isinstance(upload, UploadFile):
                raise RefusedError("the form has no file")
            form_of_answer, granularities = _wanted(form)
            transcription = await _recognize(request, service, upload)
            language = str(form.get("language") or "")
    except HTTPException as error:
        raise RefusedError(error.detail, status=error.status_code) from None
    except ClientDisconnect:
        return Response(status_code=_GONE)
    except UserError as error:
        raise RefusedError(str(error)) from None
    except ClosedError:
        raise RefusedError("the server is ending", "draining") from None
    return _answer(transcription, form_of_answer, granularities, language)


@asynccontextmanager
async def _limited(request: Request, service: Service) -> AsyncIterator[Request]:
    """Yield a request whose body has limits of its size, its pauses and its time."""
    limit = service.options.max_upload
    refusal = RefusedError(f"a request may have {limit} bytes", "upload size")
    told = request.headers.get("content-length", "0")
    if told.isdecimal() and int(told) > limit:
        raise refusal
    size, end = 0, asyncio.get_running_loop().time() + service.options.upload_time
    with service.receiving() as count:

        async def receive() -> Message:
            nonlocal size
            message = await _next_message(request, service, end)
            size += len(message.get("body", b""))
            if size > limit:
                raise refusal
            count(len(message.get("body", b"")))
            return message

        yield Request(request.scope, receive)


async def _next_message(request: Request, service: Service, end: float) -> Message:
    """Wait for a part of a request: for a time, and until the server ends."""
    ending = asyncio.ensure_future(service.ending.wait())
    coming = asyncio.ensure_future(request.receive())
    left = end - asyncio.get_running_loop().time()
    both, first = {coming, ending}, asyncio.FIRST_COMPLETED
    try:
        patience = max(0.0, min(service.options.idle, left))
        await asyncio.wait(both, timeout=patience, return_when=first)
        if coming.done():
            return coming.result()
    finally:
        for one in both:
            one.cancel()
    if service.is_draining:
        raise RefusedError("the server is ending", "draining")
    raise RefusedError("the request stalls, or takes too long to arrive", "idle")


def _wanted(form: FormData) -> tuple[_Format, set[str]]:
    """Return the form of the answer, and of what it tells times."""
    name = str(form.get("response_format") or "json")
    if name not in get_args(_Format):
        known = ", ".join(get_args(_Format))
        raise RefusedError(f"response_format {name!r} is none of {known}")
    keys = ("timestamp_granularities[]", "timestamp_granularities")
    asked = {str(value) for key in keys for value in form.getlist(key)}
    if asked and name != "verbose_json":
        raise RefusedError("timestamp_granularities needs response_format verbose_json")
    if asked - _GRANULARITIES:
        raise RefusedError(f"timestamp_granularities: {min(asked - _GRANULARITIES)!r}")
    return cast("_Format", name), asked or {"segment"}


async def _recognize(
    request: Request, service: Service, upload: UploadFile
) -> Transcription:
    """Recognize an uploaded file, piece by piece."""
    began = time.perf_counter()
    try:
        sound = await asyncio.to_thread(Sound, upload.file)
    except (soundfile.LibsndfileError, TypeError, ValueError):
        raise RefusedError("not audio of a known form (wav, flac, ogg, mp3)") from None
    with sound:
        options = service.session_options(sample_rate=sound.samplerate, partials=False)
        opened = await service.begin(options, upload.filename or "upload")
        with closing(opened) as session:
            events: list[Event] = []
            seconds = 0.0
            while len(samples := await asyncio.to_thread(_next_block, sound)):
                seconds += len(samples) / sound.samplerate
                if seconds > service.options.max_session:
                    limit = service.options.max_session
                    text = f"a file may have {limit:g} s of audio"
                    raise RefusedError(text, "session length")
                if await request.is_disconnected():
                    raise ClientDisconnect
                service.metrics.heard(len(samples) / sound.samplerate)
                events += await asyncio.wrap_future(session.accept(samples))
            events += await asyncio.wrap_future(session.finish())
        for note in sound.notes:
            log.warning("an uploaded file has %s", note)
    segments = [event.segment for event in events if isinstance(event, Final)]
    service.metrics.replied(time.perf_counter() - began, finals=len(segments))
    return Transcription(upload.filename or "upload", seconds, segments)


def _next_block(sound: Sound) -> np.ndarray:
    """Read the next samples of a file, float32[n]; the mean of its channels."""
    try:
        block = sound.read(
            _BLOCK_SECONDS * sound.samplerate, dtype="float32", always_2d=True
        )
    except soundfile.LibsndfileError as error:
        raise RefusedError(f"the file cannot be read to its end: {error}") from None
    return block.mean(axis=1, dtype=np.float32)


def _answer(
    transcription: Transcription,
    form: _Format,
    granularities: set[str],
    language: str,
) -> Response:
    """Return a transcription in the form that was asked for."""
    usage = {"type": "duration", "seconds": math.ceil(transcription.duration)}
    if form == "json":
        return JSONResponse({"text": transcription.text, "usage": usage})
    if form == "text":
        return PlainTextResponse(transcription.text + "\n")
    if form in {"srt", "vtt"}:
        kind = "text/vtt" if form == "vtt" else "application/x-subrip"
        return Response(render(transcription, form), media_type=kind)
    value: dict[str, Any] = {
        "task": "transcribe",
        "language": language,
        "duration": transcription.duration,
        "text": transcription.text,
        "usage": usage,
    }
    if "segment" in granularities:
        value["segments"] = [
            _segment_values(i, segment)
            for i, segment in enumerate(transcription.segments)
        ]
    if "word" in granularities:
        value["words"] = [
            {
                "word": word.word,
                "start": round(float(word.start), 3),
                "end": round(float(word.end), 3),
                "confidence": float(word.confidence or 0.0),
            }
            for segment in transcription.segments
            for word in segment.best.words
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
        "no_speech_prob": 0.0 if text else 1.0,
    }


async def evaluate(request: Request, service: Service) -> Response:
    """Answer `POST /v1/evaluate`: a network's scores of frames, and their loss.

    The body is a `.npz` archive of numpy: `samples` (one-dimensional, int16, or float
    in [-1, 1], at the model's rate) or `features` (frames x dimension, as the model's
    front end gives them), and for the loss `alignment`, the pdf of each frame of the
    scores. The query's `output` is `loss` (JSON), `posteriors` or `log_likelihoods`
    (`.npz`, under that name).
    """
    output = request.query_params.get("output", "loss")
    if output not in _OUTPUTS:
        raise RefusedError(f"output {output!r} is none of {', '.join(_OUTPUTS)}")
    try:
        async with _limited(request, service) as limited:
            body = await limited.body()
            async with service.evaluations:
                limit = service.options.max_upload
                arrays = await asyncio.to_thread(_read_arrays, body, limit)
                return await asyncio.to_thread(_evaluate, service, arrays, output)
    except ClientDisconnect:
        return Response(status_code=_GONE)


_OUTPUTS = ("loss", "posteriors", "log_likelihoods")


def _read_arrays(body: bytes, limit: int) -> dict[str, np.ndarray]:
    """Read the arrays of an archive, whose bytes, unpacked, have a limit, too."""
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            if sum(info.file_size for info in archive.infolist()) > limit:
                raise RefusedError("the arrays are too large", "upload size")
        with np.load(io.BytesIO(body), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except DAMAGED as error:
        raise RefusedError(f"the body is no .npz archive: {error}") from None


def _evaluate(service: Service, arrays: dict[str, np.ndarray], output: str) -> Response:
    """Return what was asked for of frames."""
    acoustics = service.model.acoustics
    frames = _frames(service, arrays)
    if output == "log_likelihoods":
        return _archive(log_likelihoods=_finite(acoustics.log_likes(frames)))
    if not isinstance(acoustics, NetworkAcoustics):
        raise RefusedError("the model has no network")
    if acoustics.network.gives_log_likelihoods:
        raise RefusedError(
            "the network was trained by LF-MMI: its outputs are no posteriors"
        )
    log_posteriors = _finite(replace(acoustics, prior_scale=0.0).log_likes(frames))
    if output == "posteriors":
        return _archive(posteriors=np.exp(log_posteriors))
    alignment = arrays.get("alignment")
    rows, columns = log_posteriors.shape
    if alignment is None or alignment.dtype.kind not in "iu":
        raise RefusedError("the loss needs alignment, an array of integers")
    if alignment.shape != (rows,):
        raise RefusedError(
            f"alignment has shape {alignment.shape}, the scores have {rows} rows"
        )
    if rows == 0 or alignment.min() < 0 or alignment.max() >= columns:
        raise RefusedError(f"alignment has pdfs outside 0 to {columns - 1}, or none")
    picked = log_posteriors[np.arange(rows), alignment]
    is_right = log_posteriors.argmax(axis=1) == alignment
    return JSONResponse(
        {
            "frames": rows,
            "loss": -float(picked.mean(dtype=np.float64)),
            "accuracy": float(is_right.mean()),
        }
    )


def _finite(scores: np.ndarray) -> np.ndarray:
    """Return scores of frames; the fault of a model that gives no numbers is told."""
    if not np.isfinite(scores).all():
        log.error("the model's scores of frames are not finite")
        raise RefusedError("the model's scores are not finite", "failure")
    return scores


def _frames(service: Service, arrays: dict[str, np.ndarray]) -> np.ndarray:
    """Return the features that were sent, or those of the samples."""
    if "features" in arrays:
        features = arrays["features"]
        wanted = service.model.front_end().accept(np.zeros(0, np.float32)).shape[1]
        if features.dtype.kind != "f" or features.shape[1:] != (wanted,):
            raise RefusedError(f"features must be floats, frames x {wanted}")
        if not np.isfinite(features).all():
            raise RefusedError("features hold values that are not finite")
        return features.astype(np.float32)
    samples = arrays.get("samples")
    if samples is None or samples.ndim != 1 or samples.dtype.kind not in "if":
        raise RefusedError("the archive needs features, or samples of one dimension")
    if not np.isfinite(samples).all():
        raise RefusedError("samples hold values that are not finite")
    scale = 1 if samples.dtype.kind == "f" else 32768
    front_end = service.model.front_end()
    head = front_end.accept((samples / scale).astype(np.float32))
    return np.concatenate([head, front_end.finish()])


def _archive(**arrays: np.ndarray) -> Response:
    """Return arrays as an `.npz` archive."""
    stream = io.BytesIO()
    np.savez(stream, **cast("dict[str, Any]", arrays))
    return Response(stream.getvalue(), media_type="application/x-npz")
