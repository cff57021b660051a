"""Requests with limits of their size, of their pauses and of their time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.types import Message

from latflow.serving.service import RefusedError, Service

GONE = 499  # status of a request whose client has left; nobody reads it


@asynccontextmanager
async def limited(request: Request, service: Service) -> AsyncIterator[Request]:
    """Yield a request whose body has limits of its size, its pauses and its time."""
    limit = service.options.max_upload
    refusal = RefusedError(f"a request may have {limit} bytes", "upload size")
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > limit:
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
