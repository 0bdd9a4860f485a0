"""One connection of the fault lane: whole requests in, whole or deliberately broken replies out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

import h11

Headers = Sequence[tuple[str, str]]

JSON: Final = ("Content-Type", "application/json")
EVENTS: Final = ("Content-Type", "text/event-stream; charset=utf-8")
RST_ON_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with a linger of 0 s: closing sends RST and drops what was not sent yet."""


class Connection:
    """Reads requests and writes replies by the rules of HTTP/1.1 (h11), until a fault breaks them.

    A broken reply ends the connection. What writes raises ConnectionError if the client breaks it off.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER)
        self.request_id = ""
        """Sent as `x-request-id` of the reply; "" is not sent."""
        self.resets_next = False
        """Whether to send RST as soon as another request begins."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed its side."""
        return self._writer.transport.is_closing() or self._reader.at_eof()

    async def next_request(self) -> tuple[h11.Request, bytes] | None:
        """The next request once its body was read whole; None when there will be none.

        Raises h11.RemoteProtocolError for what is not HTTP.
        """
        if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
            self._h11.start_next_cycle()
        if self._h11.our_state is not h11.IDLE:
            return None
        request: h11.Request | None = None
        body: list[bytes] = []
        self.request_id = ""
        while True:
            match self._h11.next_event():
                case h11.NEED_DATA:
                    if not await self._receive():
                        return None
                case h11.Request() as request:
                    pass
                case h11.Data(data=data):
                    body.append(bytes(data))
                case h11.EndOfMessage():
                    assert request is not None, "a message ended that did not begin"
                    return request, b"".join(body)
                case _:
                    return None

    async def _receive(self) -> bool:
        if self._h11.they_are_waiting_for_100_continue:
            self._write(h11.InformationalResponse(status_code=100, headers=[]))
        received = await self._reader.read(65536)
        if received and self.resets_next:
            self.reset()
            return False
        self._h11.receive_data(received)
        return True

    async def reply(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole reply; the connection stays open unless the client said otherwise."""
        self._begin(status, [*headers, ("Content-Length", str(len(body)))])
        await self._send(h11.Data(data=body), h11.EndOfMessage())

    async def reply_json(self, status: int, body: object, headers: Headers = ()) -> None:
        """A whole reply in JSON."""
        await self.reply(status, json.dumps(body).encode(), [JSON, *headers])

    async def cut(self, body: bytes, headers: Headers) -> None:
        """Promise a body, send half of it, and close."""
        self._begin(200, [*headers, ("Content-Length", str(len(body)))])
        await self._send(h11.Data(data=body[: len(body) // 2]))
        self.close()

    def begin_stream(self) -> None:
        """The head of a stream of events, in chunks as HTTP/1.1 frames them."""
        self._begin(200, [EVENTS, ("Cache-Control", "no-cache")])

    async def send(self, data: bytes) -> None:
        """A piece of the stream."""
        await self._send(h11.Data(data=data))

    async def end_stream(self, data: bytes = b"") -> None:
        """The last piece of the stream, and its clean end."""
        await self._send(h11.Data(data=data), h11.EndOfMessage())

    async def hang(self, hang_s: float) -> None:
        """Send nothing more until the client leaves or `hang_s` have passed; then close."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(hang_s):
                while await self._reader.read(65536):
                    pass
        self.close()

    def close(self) -> None:
        """Close in an orderly way, with whatever is owed left owing."""
        self._h11.send_failed()
        self._writer.close()

    def reset(self) -> None:
        """Drop the connection with RST, so that the client sees a reset rather than an end."""
        self._h11.send_failed()
        plug: Any = self._writer.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST_ON_CLOSE)
        self._writer.transport.abort()

    def _begin(self, status: int, headers: Headers) -> None:
        named = [("x-request-id", self.request_id)] if self.request_id else []
        self._write(h11.Response(status_code=status, headers=[*named, *headers]))

    async def _send(self, *events: h11.Event) -> None:
        for event in events:
            self._write(event)
        await self._writer.drain()

    def _write(self, event: h11.Event) -> None:
        if data := self._h11.send(event):
            self._writer.write(data)
