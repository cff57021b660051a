"""Requests with a limit of their size and of their pauses.

Public: `limited`, `GONE`.
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.types import Message

from latflow.serving.service import RefusedError, Service

GONE = 499  # status of a request whose client has left; nobody reads it


def limited(request: Request, service: Service) -> Request:
    """Return a request whose body has a limit of its size and of its pauses."""
    limit = service.options.max_upload
    refusal = RefusedError(f"a request may have {limit} bytes", "upload size")
    told = request.headers.get("content-length", "0")
    if told.isdecimal() and int(told) > limit:
        raise refusal
    size = 0

    async def receive() -> Message:
        nonlocal size
        try:
            async with asyncio.timeout(service.options.idle):
                message = await request.receive()
        except TimeoutError:
            raise RefusedError("the request stalls", "idle") from None
        size += len(message.get("body", b""))
        if size > limit:
            raise refusal
        return message

    return Request(request.scope, receive)
