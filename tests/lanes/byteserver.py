"""A server that sends exact bytes, for what a well-behaved server cannot show. Lives in the test's own event loop."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any


class Connection:
    """One connection as a test's script drives it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: ByteServer) -> None:
        self._reader, self._writer, self._server = reader, writer, server

    async def request(self) -> bytes:
        """Read one whole request; its bytes are also kept by the server."""
        head = await self.head()
        length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        whole = head + await self._reader.readexactly(length)
        self._server.requests.append(whole)
        self._server.asked.set()
        return whole

    async def head(self) -> bytes:
        """Read the head of a request alone."""
        return await self._reader.readuntil(b"\r\n\r\n")

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def client_left(self) -> None:
        """Wait until the client has closed or reset the connection."""
        with suppress(ConnectionError):
            while await self._reader.read(65536):
                pass
        self._server.left.set()

    def reset(self) -> None:
        plug = self._writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Play = Callable[[Connection], Awaitable[None]]


class ByteServer:
    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[bytes] = []
        self.connections = 0
        self.asked = asyncio.Event()
        """Set once a whole request was read."""
        self.left = asyncio.Event()
        """Set once a client was seen to leave."""

    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in self.requests]


@asynccontextmanager
async def byte_server(play: Play, **options: Any) -> AsyncIterator[ByteServer]:
    """Serve every connection by `play`, then close it."""
    tasks: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        server.connections += 1
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await play(Connection(reader, writer, server))
        writer.close()
        tasks.discard(task)

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, **options)
    scheme = "https" if "ssl" in options else "http"
    server = ByteServer(f"{scheme}://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1")
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def answers(*pieces: bytes) -> Play:
    """Read one request, send the pieces one by one, close."""

    async def play(connection: Connection) -> None:
        await connection.request()
        for piece in pieces:
            await connection.send(piece)

    return play


def whole(
    body: bytes | dict[str, Any], status: str = "200 OK", headers: str = "", kind: str = "application/json"
) -> bytes:
    """A reply with its length."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\n{headers}content-length: {len(raw)}\r\n\r\n"
    return head.encode() + raw


STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
"""The head of a stream that ends when the connection does."""
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def delta(**fields: Any) -> bytes:
    """A chunk event with a delta; `finish_reason` goes to the choice."""
    finish = fields.pop("finish_reason", None)
    choice = {"index": 0, "delta": fields, "finish_reason": finish}
    return event({"id": "c1", "model": "m1", "choices": [choice]})


def event(data: Any) -> bytes:
    return f"data: {data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)}\n\n".encode()
