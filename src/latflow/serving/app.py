"""The server's routes.

Public: `create_app`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

import latflow
from latflow.serving.http import error_response, evaluate, transcribe
from latflow.serving.service import RefusedError, Service
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
                service.check_headers(request.headers)
            return await endpoint(request, service)
        except RefusedError as refusal:
            service.metrics.refused(refusal.reason)
            return error_response(refusal)
        except Exception:
            log.exception("a request failed")
            service.metrics.refused("failure")
            return error_response(
                RefusedError("internal error", reason="failure", status=500, code=1011)
            )

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
