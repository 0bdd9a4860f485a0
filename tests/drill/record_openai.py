"""Record what the official `openai` client really sends, as raw requests under `recorded/`.

Run it as a program when a new client version is out: `python tests/drill/record_openai.py`. It points the client at a
plain socket, keeps every request as it came, and leaves out only what names a machine or a version: `Host`,
`User-Agent` and the `x-stainless-*` headers. Heads are kept with line feeds alone, so that no checkout
changes them.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import openai

HERE = Path(__file__).parent / "recorded"
PIXEL = "data:image/png;base64," + base64.b64encode(b"any picture: the fault lane does not look at it").decode()
ASKED: list[Any] = [{"role": "user", "content": "How many ducks are on the pond?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "count_ducks",
        "description": "Count the ducks on a pond.",
        "parameters": {
            "type": "object",
            "properties": {"pond": {"type": "string"}, "by_hour": {"type": "integer"}},
            "required": ["pond"],
            "additionalProperties": False,
        },
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "count": {"type": "integer"},
        "kind": {"enum": ["mallard", "teal"]},
        "names": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["count", "kind", "names"],
    "additionalProperties": False,
}
CALLS: Mapping[str, Callable[[openai.OpenAI], object]] = {
    "plain": lambda client: client.chat.completions.create(
        model="fault-1", messages=[{"role": "system", "content": "Be brief."}, *ASKED]
    ),
    "stream": lambda client: list(
        client.chat.completions.create(
            model="fault-1", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
    ),
    "tools": lambda client: client.chat.completions.create(
        model="fault-1", messages=ASKED, tools=[TOOL], tool_choice="auto"
    ),
    "json_schema": lambda client: client.chat.completions.create(
        model="fault-1",
        messages=ASKED,
        response_format={"type": "json_schema", "json_schema": {"name": "pond", "schema": SCHEMA, "strict": True}},
    ),
    "image": lambda client: client.chat.completions.create(
        model="fault-1",
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is in the picture?"},
                    {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
                ],
            }
        ],
    ),
    "sampling": lambda client: client.chat.completions.create(
        model="fault-1", messages=ASKED, max_tokens=64, seed=7, temperature=0.2
    ),
    "conversation": lambda client: client.chat.completions.create(
        model="fault-1",
        messages=[
            *ASKED,
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "call_1", "type": "function", "function": {"name": "count_ducks", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "call_1", "content": "7"},
            {"role": "assistant", "content": "Seven."},
            {"role": "user", "content": "And how many geese?"},
        ],
    ),
    "keyed": lambda client: client.chat.completions.create(
        model="fault-1", messages=ASKED, extra_headers={"Idempotency-Key": "duck-1"}
    ),
    "models": lambda client: client.models.list(),
}


def whole_request(connection: socket.socket) -> bytes:
    """Read one request from a socket: its head, and as many bytes of body as `Content-Length` says."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    wanted = int(lengths[0]) if lengths else 0
    while len(body) < wanted:
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def without_the_machine(request: bytes) -> bytes:
    """The request without the headers that name a machine or a version, its head with line feeds."""
    head, _, body = request.partition(b"\r\n\r\n")
    machine = (b"host:", b"user-agent:", b"x-stainless-")
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(machine)]
    return b"\n".join(lines) + b"\n\n" + body


def record(call: Callable[[openai.OpenAI], object]) -> bytes:
    """Make one call against a socket that refuses it with 418, and return what was sent."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def listen() -> None:
            connection, _ = listener.accept()
            with connection:
                heard.append(whole_request(connection))
                connection.sendall(b"HTTP/1.1 418 Recorded\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=listen)
        thread.start()
        port = listener.getsockname()[1]
        with (
            openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="placeholder", max_retries=0) as client,
            contextlib.suppress(openai.APIStatusError),
        ):
            call(client)
        thread.join()
    return heard[0]


if __name__ == "__main__":
    for name, call in CALLS.items():
        (HERE / f"{name}.http").write_bytes(without_the_machine(record(call)))
