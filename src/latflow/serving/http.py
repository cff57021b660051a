"""The server's routes, and what it says of itself."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

import latflow
from latflow.serving.evaluation import evaluate
from latflow.serving.realtime import serve_realtime
from latflow.serving.service import RefusedError, Service, error_values
from latflow.serving.transcriptions import transcribe
from latflow.serving.websocket import serve_websocket

log = logging.getLogger("latflow")
_Endpoint = Callable[[Request, Service], Awaitable[Response]]


def create_app(service: Service) -> Starlette:
    """Return the application of a process of the server."""
    page = files("latflow.serving").joinpath("page.html").read_text("utf-8")

    async def show_page(_: Request) -> Response:
        return HTMLResponse(page)

    async def talk(websocket: WebSocket) -> None:
        await serve_websocket(websocket, service)

    async def talk_realtime(websocket: WebSocket) -> None:
        await serve_realtime(websocket, service)

    routes: list[BaseRoute] = [
        WebSocketRoute("/", talk),
        WebSocketRoute("/v1/realtime", talk_realtime),
        Route("/", show_page),
        Route("/health", _guarded(_health, service, token=False)),
        Route("/metrics", _guarded(_metrics, service)),
        Route("/v1/models", _guarded(_models, service)),
        Route("/v1/models/{name:path}", _guarded(_model, service)),
        Route(
            "/v1/audio/transcriptions", _guarded(transcribe, service), methods=["POST"]
        ),
    ]
    if service.options.evaluate:
        path = "/v1/evaluate"
        routes.append(Route(path, _guarded(evaluate, service), methods=["POST"]))
    handlers: dict[Any, Any] = {HTTPException: _not_there}
    return Starlette(
        routes=routes,
        exception_handlers=handlers,
        middleware=_middleware(service.options.cors_origins),
    )


def _middleware(origins: Sequence[str]) -> list[Middleware]:
    """Return what lets the pages of some origins read answers."""
    if not origins:
        return []
    methods, headers = ("GET", "POST"), ("*",)
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=methods,
            allow_headers=headers,
        )
    ]


def _guarded(
    endpoint: _Endpoint, service: Service, *, token: bool = True
) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that answers refusals by status, and asks for the token."""

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


async def _not_there(request: Request, error: HTTPException) -> Response:
    """Tell of a path or a method that the server does not have."""
    path, method = request.url.path, request.method
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "POST")
        text = f"{path} does not take {method}, but {allowed}"
    else:
        text = f"there is no {path} here"
    refusal = RefusedError(text, status=error.status_code)
    return _error_response(refusal, error.headers)


async def _health(_: Request, service: Service) -> Response:
    """Tell that the server is there, or that it ends."""
    return JSONResponse(
        {
            "status": "ending" if service.is_draining else "ok",
            "model": service.model.info.name,
            "version": latflow.__version__,
            "sessions": service.sessions,
        },
        503 if service.is_draining else 200,
    )


async def _metrics(_: Request, service: Service) -> Response:
    """Tell the measurements."""
    metrics = service.metrics
    return Response(metrics.text(), headers={"content-type": metrics.content_type})


async def _models(_: Request, service: Service) -> Response:
    """List the models, as OpenAI's clients ask for them."""
    values = [_model_values(name, service) for name in service.schedulers]
    return JSONResponse({"object": "list", "data": values})


async def _model(request: Request, service: Service) -> Response:
    name = request.path_params["name"]
    if name not in service.schedulers:
        raise service.no_model(name)
    return JSONResponse(_model_values(name, service))


def _model_values(name: str, service: Service) -> dict[str, Any]:
    """Return what OpenAI's interface says of a model."""
    created = int(service.created.get(name, 0))
    return {"id": name, "object": "model", "created": created, "owned_by": "latflow"}


def _error_response(
    refusal: RefusedError, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a refusal as OpenAI's clients read it."""
    usual = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "5"}}
    headers = headers or usual.get(refusal.status)
    return JSONResponse(error_values(refusal), refusal.status, headers)
