"""Sessions with a server as its clients have them: Vosk's websocket, Triton's gRPC."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlsplit

import numpy as np

from latflow.errors import UserError

MODEL = "latflow"  # of a Triton address that names none


class ClientError(Exception):
    """A session that the server refused or ended, or whose connection broke."""


@dataclass(frozen=True)
class Answer:
    """Text that a server sent.

    Attributes:
        text: words parted by spaces.
        is_final: whether it stands; else it is that of a segment that continues.
    """

    text: str
    is_final: bool


class Connection(Protocol):
    """One session. Samples are sent and answers taken by different tasks."""

    async def send(self, samples: np.ndarray, *, is_last: bool) -> None:
        """Send int16 samples; nothing follows the last.

        Raises:
            ClientError: the session has ended.
        """
        ...

    async def receive(self) -> Answer | None:
        """Wait for an answer; None: there will be no more.

        Raises:
            ClientError: the session was refused or broke off.
        """
        ...


class Server(Protocol):
    """A server that sessions are opened with. Close it after use."""

    sample_rate: int | None  # of samples it takes; None: any
    chunk: int | None  # samples of each message but the last; None: any number

    async def prepare(self) -> None:
        """Fetch the attributes. Raises ClientError where nobody answers."""
        ...

    def connect(self, sample_rate: int) -> AbstractAsyncContextManager[Connection]:
        """Open a session. Raises ClientError where it is refused."""
        ...

    async def close(self) -> None:
        """End what all sessions share."""
        ...


def server_of(url: str, *, token: str | None = None) -> Server:
    """Return the server at an address.

    Args:
        url: `ws://host:port[/path]`, `wss://...`, or `grpc://host:port[/model]`.
        token: bearer token that the server asks for; websocket only.

    Raises:
        UserError: the address is of no known kind, or the library for it is missing.
    """
    scheme = urlsplit(url).scheme
    if scheme in {"ws", "wss"}:
        return VoskServer(url, token)
    if scheme == "grpc":
        return TritonServer(url)
    raise UserError(
        f"{url} is not an address of a server",
        remedy="give ws://host:port, wss://host:port or grpc://host:port/model",
    )


class VoskServer:
    """Vosk's websocket protocol: samples as binary messages, an answer to each."""

    sample_rate: int | None = None
    chunk: int | None = None

    def __init__(self, url: str, token: str | None = None) -> None:
        try:
            from websockets.asyncio.client import connect
        except ImportError:
            raise UserError(
                "the package websockets is not installed",
                remedy="pip install latflow[serve]",
            ) from None
        headers = {"Authorization": f"Bearer {token}"} if token else None
        # Neither compression, which costs more than all the rest, nor keep-alive.
        self._open = lambda: connect(
            url,
            additional_headers=headers,
            compression=None,
            ping_interval=None,
            proxy=None,
            max_size=None,
            open_timeout=30,
        )

    async def prepare(self) -> None:
        """Open a connection and leave it."""
        await (await self._socket()).close()

    async def close(self) -> None:
        """Do nothing: sessions share nothing."""

    async def _socket(self) -> Any:
        """Open a connection."""
        from websockets.exceptions import WebSocketException

        try:
            return await self._open()
        except (OSError, TimeoutError, WebSocketException) as error:
            raise ClientError(_explain(error)) from error

    @asynccontextmanager
    async def connect(self, sample_rate: int) -> AsyncIterator[VoskConnection]:
        """Open a session with its sample rate."""
        socket = await self._socket()
        try:
            connection = VoskConnection(socket)
            # A server that closes at once has sent the reason, which `receive` raises.
            with suppress(ClientError):
                await connection.tell({"config": {"sample_rate": sample_rate}})
            yield connection
        finally:
            await socket.close()


class VoskConnection:
    """A session of `VoskServer`."""

    def __init__(self, socket: Any) -> None:
        self._socket = socket
        self._unanswered = 0
        self._has_ended = False

    async def tell(self, message: dict[str, Any]) -> None:
        """Send a message of text."""
        # Vosk's server looks for its messages letter by letter: a space on each side of
        # the first colon.
        await self.put(json.dumps(message, separators=(", ", " : ")))

    async def send(self, samples: np.ndarray, *, is_last: bool) -> None:
        """Send samples; after the last of them the end."""
        self._unanswered += 1 + is_last
        await self.put(samples.astype("<i2", copy=False).tobytes())
        if is_last:
            self._has_ended = True
            await self.tell({"eof": 1})

    async def put(self, message: str | bytes) -> None:
        """Send any message."""
        from websockets.exceptions import ConnectionClosed

        try:
            await self._socket.send(message)
        except ConnectionClosed as error:
            raise ClientError(_explain(error)) from error

    def abort(self) -> None:
        """Break the connection off, as a client that dies."""
        self._socket.transport.abort()

    async def receive(self) -> Answer | None:
        """Wait for an answer; every message of samples has one, and so has the end."""
        from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

        if self._has_ended and not self._unanswered:
            return None
        try:
            message = json.loads(await self._socket.recv())
        except ConnectionClosedOK:
            if not self._has_ended:
                raise ClientError("the server closed the session early") from None
            return None
        except (ConnectionClosed, ValueError) as error:
            raise ClientError(_explain(error)) from error
        self._unanswered -= 1
        return _vosk_answer(message)


def _vosk_answer(message: Any) -> Answer:
    """Return the text of a message."""
    match message:
        case {"error": error}:
            raise ClientError(str(error))
        case {"text": str(text)} | {"alternatives": [{"text": str(text)}, *_]}:
            return Answer(text.strip(), is_final=True)
        case {"partial": str(text)}:
            return Answer(text.strip(), is_final=False)
    raise ClientError(f"an answer of no known form: {message!s:.80}")


def _explain(error: BaseException) -> str:
    """Return what broke a session, in few words."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"refused: HTTP {response.status_code}"
    received = getattr(error, "rcvd", None)
    if received is not None:
        return f"closed by the server: {received.code} {received.reason}".strip()
    return f"{type(error).__name__}: {error}".removesuffix(": ")


class TritonServer:
    """A model of Triton's with NVIDIA's tensor names, over gRPC streams.

    All samples of a message travel as one tensor of fixed size, WAV_DATA, of which
    WAV_DATA_DIM are valid; ids distinguish sequences.
    """

    def __init__(self, url: str) -> None:
        try:
            from tritonclient.grpc import aio  # pyright: ignore[reportMissingImports]
        except ImportError:
            raise UserError(
                "the package tritonclient is not installed",
                remedy="pip install tritonclient[grpc], in a separate environment",
            ) from None
        parts = urlsplit(url)
        self._model = parts.path.strip("/") or MODEL
        self._new_client = lambda: aio.InferenceServerClient(parts.netloc)
        self._client: Any = None
        # Random, since other clients of the server count too.
        self._ids = itertools.count(int(np.random.default_rng().integers(1, 2**60)))
        self.sample_rate: int | None = None
        self.chunk: int | None = None

    async def prepare(self) -> None:
        """Read the model's sizes."""
        from tritonclient.utils import (  # pyright: ignore[reportMissingImports]
            InferenceServerException,
        )

        self._client = self._new_client()
        try:
            answer = await self._client.get_model_config(self._model, as_json=True)
        except InferenceServerException as error:
            raise ClientError(str(error)) from error
        config = answer["config"]
        sizes = {tensor["name"]: int(tensor["dims"][0]) for tensor in config["input"]}
        self.chunk = sizes["WAV_DATA"]
        rate = config.get("parameters", {}).get("sample_rate", {})
        self.sample_rate = int(rate.get("string_value", 16000))

    async def close(self) -> None:
        """End the connection that all sessions share."""
        if self._client is not None:
            await self._client.close()

    @asynccontextmanager
    async def connect(self, sample_rate: int) -> AsyncIterator[TritonConnection]:
        """Open a sequence."""
        assert sample_rate == self.sample_rate, "samples are resampled when read"
        assert self.chunk is not None
        session = TritonConnection(self._model, next(self._ids), self.chunk)
        answers = self._client.stream_infer(session.requests())
        session.answers = answers
        try:
            yield session
        finally:
            answers.cancel()


class TritonConnection:
    """A sequence of `TritonServer`."""

    def __init__(self, model: str, sequence: int, chunk: int) -> None:
        self._model, self._sequence, self._chunk = model, sequence, chunk
        self._queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._is_begun = False
        self._has_final = False
        self.answers: Any = None

    async def requests(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the requests of the sequence, to its last."""
        is_last = False
        while not is_last:
            request = await self._queue.get()
            is_last = request["sequence_end"]
            yield request

    async def send(self, samples: np.ndarray, *, is_last: bool) -> None:
        """Send samples, filled up with zeros to the size of the tensor."""
        from tritonclient.grpc import (  # pyright: ignore[reportMissingImports]
            InferInput,
            InferRequestedOutput,
        )

        filled = np.zeros((1, self._chunk), np.float32)
        filled[0, : len(samples)] = samples
        data = InferInput("WAV_DATA", list(filled.shape), "FP32")
        data.set_data_from_numpy(filled)
        size = InferInput("WAV_DATA_DIM", [1, 1], "INT32")
        size.set_data_from_numpy(np.array([[len(samples)]], np.int32))
        await self._queue.put(
            {
                "model_name": self._model,
                "inputs": [data, size],
                "outputs": [InferRequestedOutput("TEXT")],
                "request_id": f"{self._sequence}-{'last' if is_last else 'more'}",
                "sequence_id": self._sequence,
                "sequence_start": not self._is_begun,
                "sequence_end": is_last,
            }
        )
        self._is_begun = True

    async def receive(self) -> Answer | None:
        """Wait for an answer; that to the last request is the final."""
        from grpc.aio import AioRpcError

        if self._has_final:
            return None
        try:
            result, error = await anext(self.answers)
        except StopAsyncIteration:
            raise ClientError("the server closed the session early") from None
        except AioRpcError as broken:
            raise ClientError(f"{broken.code().name}: {broken.details()}") from broken
        if error is not None:
            raise ClientError(str(error))
        self._has_final = result.get_response().id.endswith("last")
        text = result.as_numpy("TEXT").reshape(-1)[0].decode()
        return Answer(text.strip(), is_final=self._has_final)
