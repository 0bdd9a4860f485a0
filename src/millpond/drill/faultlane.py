"""The fault lane: an OpenAI-compatible server on loopback that fails on purpose, and remembers what really happened.

It plays the habits listed in `script.FAULTS`. Which of them a POST meets follows from (seed, prompt, ordinal of that
prompt), so the order in which requests arrive is no matter. Every POST whose body was read is remembered with what its
work produced, whether the client got it or not: that is the truth a ledger is compared with. Nothing is forgotten while
the server lives, so its memory grows with the requests it saw; it is made for drills and tests, not for months.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

import h11

from millpond.drill import chatfake
from millpond.drill.script import FAULTS, INVALID, Script, prompt_digest
from millpond.rules.errors import UsageError

HOST: Final = "127.0.0.1"
COMMENT_EVERY_S: Final = 0.05
"""The pause between two keep-alive comments of the fault `comments`."""
DEFAULT_RETRY_AFTER: Final = "1"
"""What a refusal with Retry-After says if it is not told otherwise: seconds."""

_CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})
_JSON = ("Content-Type", "application/json")
_EVENTS = ("Content-Type", "text/event-stream; charset=utf-8")
_RST_ON_CLOSE = struct.pack("ii", 1, 0)
"""SO_LINGER with a linger of 0 s: closing sends RST and drops what was not sent yet."""

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Post:
    """One POST that was accepted: its body was read whole.

    `ordinal` counts the POSTs of this prompt from 1, `at_s` is in s since the server first started. `completed` says
    that the work was done (and would be billed), `result` what it produced, even if the client never got it; then
    `delivered` is False. Tokens are None where no work was done.
    """

    ordinal: int
    prompt_digest: str
    idempotency_key: str | None
    model: str
    fault: str
    at_s: float
    body: dict[str, Any]
    completed: bool = False
    result: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    delivered: bool = False
    """The whole answer was written, or is being written, to a client that is still there."""


class FaultLane:
    """A server that fails on purpose. Use it as a context manager, or `start()` and `stop()` it.

    `mix` maps faults to shares (the rest of 1 is `ok`), `script` and `per_prompt` fix them (`script.Script`);
    `retry_after` is the raw Retry-After header of `429` and `503_proof`, `headers` are added to these two; `answer`
    makes the text from the body, otherwise it follows from the prompt. `slow_s`, `latency_s` (before any answer whose
    work is done) and `hang_s` are in s. `clock` gives the s of `Post.at_s`; nothing is decided by it.
    """

    def __init__(
        self,
        *,
        mix: Mapping[str, float] | None = None,
        script: Sequence[str | Mapping[str, Any]] | None = None,
        seed: int = 0,
        port: int = 0,
        model: str = "fault-1",
        slow_s: float = 2.0,
        latency_s: float = 0.0,
        retry_after: str | None = None,
        headers: Headers = (),
        per_prompt: Mapping[str, Sequence[str]] | None = None,
        answer: Callable[[dict[str, Any]], str] | None = None,
        hang_s: float = 3600,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises UsageError for a mix or script that cannot be played."""
        self._script = Script(mix=mix, script=script, per_prompt=per_prompt, seed=seed)
        self._port = port
        self._model = model
        self._slow_s = slow_s
        self._latency_s = latency_s
        self._hang_s = hang_s
        self._answer = answer or chatfake.default_answer
        self._refusal_headers = (("Retry-After", DEFAULT_RETRY_AFTER if retry_after is None else retry_after), *headers)
        self._clock = clock
        self._began_s: float | None = None
        self._posts: list[Post] = []
        self._ordinals: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._thread: threading.Thread | None = None
        self._ending: tuple[asyncio.AbstractEventLoop, asyncio.Task[None]] | None = None

    # ------------------------------------------------------------ running

    @property
    def base_url(self) -> str:
        """Where clients find it: `http://127.0.0.1:PORT/v1`. Raises UsageError before a free port was found."""
        if not self._port:
            raise UsageError("the fault lane has no address yet: start() it first, or give it a port")
        return f"http://{HOST}:{self._port}/v1"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen, on a thread of its own; returns when connections are taken. After a stop() it has the same port.

        Raises UsageError if it runs already or the port is taken.
        """
        if self._thread:
            raise UsageError(f"the fault lane runs already at {self.base_url}; stop() it first")
        ready = threading.Event()
        failures: list[UsageError] = []

        async def serve() -> None:
            serving = asyncio.ensure_future(self.serve_forever(on_ready=lambda _: ready.set()))
            self._ending = asyncio.get_running_loop(), serving
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await serving
                except UsageError as error:
                    failures.append(error)
                    ready.set()

        self._thread = threading.Thread(target=lambda: asyncio.run(serve()), name="faultlane", daemon=True)
        self._thread.start()
        ready.wait()
        if failures:
            self._thread.join()
            self._thread = self._ending = None
            raise failures[0]

    def stop(self) -> None:
        """End every open connection at once and stop listening; work still under way is not completed."""
        if self._thread and self._ending:
            loop, serving = self._ending
            loop.call_soon_threadsafe(serving.cancel)
            self._thread.join()
            self._thread = self._ending = None

    async def serve_forever(self, on_ready: Callable[[str], None] | None = None) -> None:
        """Serve in the caller's event loop until cancelled. `on_ready` is told the base URL once it listens.

        Raises UsageError if the port is taken.
        """
        try:
            server = await asyncio.start_server(self._connected, HOST, self._port, backlog=1024)
        except OSError as error:
            raise UsageError(f"cannot listen on {HOST}:{self._port} ({error.strerror}); give another port") from error
        self._port = server.sockets[0].getsockname()[1]
        self._began_s = self._clock() if self._began_s is None else self._began_s
        try:
            if on_ready:
                on_ready(self.base_url)
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for task, writer in self._connections.items():
                writer.transport.abort()
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    # ------------------------------------------------------------ what is remembered

    def posts(self) -> list[Post]:
        """Every accepted POST, in order of acceptance."""
        with self._changed:
            return list(self._posts)

    def accepted(self) -> int:
        """How many POSTs were accepted."""
        with self._changed:
            return len(self._posts)

    def late_results(self) -> list[Post]:
        """The POSTs whose work was done though the client never got the whole answer."""
        return [post for post in self.posts() if post.completed and not post.delivered]

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` POSTs were accepted; False if they were not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._posts) >= count, timeout_s)

    def wait_for_completed(self, count: int, timeout_s: float) -> bool:
        """Wait until the work of `count` POSTs was done; False if it was not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: sum(post.completed for post in self._posts) >= count, timeout_s)

    def recording(self) -> str:
        """What happened, as JSON lines of `{"prompt", "faults"}` that `script.replay` reads.

        A prompt goes by the text of its last message; prompts that share it share the faults of the first.
        """
        met: dict[str, tuple[str, list[str]]] = {}
        for post in self.posts():
            if post.fault != INVALID:
                met.setdefault(post.prompt_digest, (chatfake.texts_of(post.body)[-1], []))[1].append(post.fault)
        return "".join(json.dumps({"prompt": text, "faults": faults}) + "\n" for text, faults in met.values())

    def summary(self) -> dict[str, Any]:
        """The truth in numbers: POSTs, prompts, works done, late ones, works done more than once, tokens, faults.

        `completed_again` counts the works beyond the first of each idempotency key (else prompt): paid for twice.
        """
        posts = self.posts()
        done = [post for post in posts if post.completed]
        return {
            "posts": len(posts),
            "prompts": len({post.prompt_digest for post in posts}),
            "completed": len(done),
            "late": sum(not post.delivered for post in done),
            "completed_again": len(done) - len({post.idempotency_key or post.prompt_digest for post in done}),
            "tokens_in": sum(post.tokens_in or 0 for post in done),
            "tokens_out": sum(post.tokens_out or 0 for post in done),
            "by_fault": dict(sorted(Counter(post.fault for post in posts).items())),
        }

    def _accept(self, body: dict[str, Any], key: str | None, *, valid: bool) -> int:
        """Remember a POST whose body was read; returns its number, for `_note`."""
        digest = prompt_digest(body)
        at_s = self._clock() - (self._began_s or 0.0)
        with self._changed:
            self._ordinals[digest] += 1
            ordinal = self._ordinals[digest]
            fault = INVALID
            if valid:
                texts = chatfake.texts_of(body)
                arrival = len(self._posts) + 1
                fault = self._script.fault(texts=texts, digest=digest, ordinal=ordinal, arrival=arrival)
            self._posts.append(Post(ordinal, digest, key, str(body.get("model", "")), fault, at_s, body))
            self._changed.notify_all()
            return len(self._posts) - 1

    def _note(self, number: int, **found: Any) -> None:
        with self._changed:
            self._posts[number] = replace(self._posts[number], **found)
            self._changed.notify_all()

    # ------------------------------------------------------------ one connection

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._connections[task] = writer
        task.add_done_callback(lambda done: self._connections.pop(done))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._requests(_Wire(reader, writer))
        except (ConnectionError, h11.ProtocolError, _Gone):
            pass  # The client left or spoke no HTTP: nobody to tell it to.
        finally:
            writer.close()

    async def _requests(self, wire: _Wire) -> None:
        async for request, body in wire.requests():
            path, _, _ = request.target.decode("ascii", "replace").partition("?")
            match request.method.decode(), path:
                case "POST", _ if path in _CHAT_PATHS:
                    await self._chat(wire, request, body)
                case "GET", "/v1/models" | "/models":
                    await wire.reply_json(200, chatfake.models(self._model))
                case "GET", "/__faultlane__/posts":
                    await wire.reply_json(200, [asdict(post) for post in self.posts()])
                case "GET", "/__faultlane__/results":
                    await wire.reply_json(200, [asdict(post) for post in self.late_results()])
                case "GET", "/__faultlane__/summary":
                    await wire.reply_json(200, self.summary())
                case method, _:
                    words = f"Invalid URL ({method} {path})"
                    await wire.reply_json(404, chatfake.error_body(words, "invalid_request_error"))

    async def _chat(self, wire: _Wire, request: h11.Request, raw: bytes) -> None:
        key = next((value.decode("latin-1") for name, value in request.headers if name == b"idempotency-key"), None)
        try:
            body = chatfake.check_request(_parsed(raw))
        except chatfake.Refused as refused:
            self._accept({}, key, valid=False)
            error = chatfake.error_body(refused.message, "invalid_request_error", None, refused.param)
            return await wire.reply_json(400, error)
        number = self._accept(body, key, valid=True)
        post = self._posts[number]
        fault = post.fault
        if not chatfake.wants_stream(body):
            fault = FAULTS[fault].plain or fault
        wire.request_id = f"req_{post.prompt_digest[:16]}_{post.ordinal}"
        if fault in chatfake.REFUSALS:
            refusal = chatfake.REFUSALS[fault]
            headers = self._refusal_headers if refusal.says_when else ()
            return await wire.reply_json(refusal.status, refusal.body, headers)
        answer = chatfake.answer_for(body, self._answer(body), fault=fault)
        if FAULTS[fault].works:
            await asyncio.sleep(self._slow_s if fault == "slow" else self._latency_s)
            done = {"result": answer.result, "tokens_in": answer.tokens_in, "tokens_out": answer.tokens_out}
            # Said before the last byte leaves, taken back if the client turns out to be gone: whoever has read the
            # whole answer finds it delivered.
            self._note(number, completed=True, delivered=FAULTS[fault].arrives and not wire.is_gone, **done)
        try:
            await self._play(wire, post, fault, answer)
        except BaseException:
            self._note(number, delivered=False)
            raise
        return None

    async def _play(self, wire: _Wire, post: Post, fault: str, answer: chatfake.Answer) -> None:
        """Let the client see a fault; raises if it has left."""
        body, reply_id = post.body, f"chatcmpl-{post.prompt_digest[:24]}{post.ordinal}"
        stream = chatfake.wants_stream(body)
        match fault:
            case "reset":
                wire.reset()
            case "hang":
                await wire.hang(self._hang_s)
            case "redirect":
                await wire.reply(307, b"", [("Location", f"{self.base_url}/chat/completions?followed")])
            case "html":
                page = b"<!doctype html><title>Welcome</title><p>It works!"
                await wire.reply(200, page, [("Content-Type", "text/html")])
            case "error_200":
                await wire.reply_json(200, chatfake.BROKEN)
            case "comments":
                await self._comment(wire)
            case _ if stream:
                await self._stream(wire, fault, chatfake.chunks(body, answer, reply_id, fault=fault))
            case "bad_json":
                await wire.reply(200, b'{"id": "chatcmpl-1", "choices": [{"mess', [_JSON])
            case "cut":
                await wire.cut(json.dumps(chatfake.completion(body, answer, reply_id)).encode(), [_JSON])
            case _:
                await wire.reply_json(200, chatfake.completion(body, answer, reply_id, fault=fault))
        wire.resets_next = fault == "reset_idle"

    async def _stream(self, wire: _Wire, fault: str, chunks: Sequence[dict[str, Any]]) -> None:
        events = [chatfake.event(one) for one in chunks]
        done = chatfake.event("[DONE]")
        # The first chunk bears the role alone, so a half is at least two: it has content.
        half = b"".join(events[: max(2, len(events) // 2)])
        if fault == "cut":
            return await wire.cut(b"".join([*events, done]), [_EVENTS])
        await wire.begin_stream()
        match fault:
            case "stream_cut":
                await wire.send(half)
                return wire.close()
            case "partial_stream_then_hang":
                await wire.send(half)
                return await wire.hang(self._hang_s)
            case "stream_unfinished":
                await wire.send(half)
            case "stream_error_before":
                await wire.send(chatfake.event(chatfake.BROKEN))
            case "stream_error_after":
                await wire.send(half + chatfake.event(chatfake.BROKEN))
            case "bad_json":
                await wire.send(events[0] + chatfake.event('{"id": "chatcmpl-1", "choi') + done)
            case _:
                for one in [*events, done]:
                    await wire.send(one)
        return await wire.end_stream()

    async def _comment(self, wire: _Wire) -> None:
        await wire.begin_stream()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._hang_s):
                while True:
                    await wire.send(b": keep-alive\n\n")
                    await asyncio.sleep(COMMENT_EVERY_S)
        wire.close()


class _Gone(Exception):
    """The client left before the whole answer was written."""


class _Wire:
    """One connection: whole requests in, whole or broken replies out. A broken one ends the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._h11 = h11.Connection(h11.SERVER)
        self.request_id = ""
        self.resets_next = False
        """Whether to send RST as soon as another request begins."""

    @property
    def is_gone(self) -> bool:
        """Whether the client has closed its side."""
        return self._writer.transport.is_closing() or self._reader.at_eof()

    async def requests(self) -> AsyncIterator[tuple[h11.Request, bytes]]:
        """Requests whose bodies were read whole, one after another while the connection lives."""
        while request := await self._request():
            yield request
            if self._h11.our_state is h11.DONE and self._h11.their_state is h11.DONE:
                self._h11.start_next_cycle()
            if self._h11.our_state is not h11.IDLE:
                return

    async def _request(self) -> tuple[h11.Request, bytes] | None:
        request: h11.Request | None = None
        body: list[bytes] = []
        while True:
            match self._h11.next_event():
                case h11.NEED_DATA:
                    if self._h11.they_are_waiting_for_100_continue:
                        self._write(h11.InformationalResponse(status_code=100, headers=[]))
                    received = await self._reader.read(65536)
                    if received and self.resets_next:
                        self.reset()
                        return None
                    self._h11.receive_data(received)
                case h11.Request() as request:
                    self.request_id = ""
                case h11.Data(data=data):
                    body.append(bytes(data))
                case h11.EndOfMessage():
                    assert request is not None, "a message ended that did not begin"
                    return request, b"".join(body)
                case _:
                    return None

    def _write(self, event: h11.Event) -> None:
        if data := self._h11.send(event):
            self._writer.write(data)

    async def _flush(self) -> None:
        await self._writer.drain()
        if self.is_gone:
            raise _Gone

    def _head(self, status: int, headers: Headers) -> h11.Response:
        named = [("x-request-id", self.request_id)] if self.request_id else []
        return h11.Response(status_code=status, headers=[*named, *headers])

    async def reply(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole reply; the connection stays open unless the client said otherwise."""
        self._write(self._head(status, [*headers, ("Content-Length", str(len(body)))]))
        self._write(h11.Data(data=body))
        self._write(h11.EndOfMessage())
        await self._flush()

    async def reply_json(self, status: int, body: object, headers: Headers = ()) -> None:
        """A whole reply in JSON."""
        await self.reply(status, json.dumps(body).encode(), [_JSON, *headers])

    async def cut(self, body: bytes, headers: Headers) -> None:
        """Promise a body, send half of it, and close."""
        self._write(self._head(200, [*headers, ("Content-Length", str(len(body)))]))
        self._write(h11.Data(data=body[: len(body) // 2]))
        await self._flush()
        self.close()

    async def begin_stream(self) -> None:
        """The head of a stream of events, in chunks as HTTP/1.1 frames them."""
        self._write(self._head(200, [_EVENTS, ("Cache-Control", "no-cache")]))
        await self._flush()

    async def send(self, data: bytes) -> None:
        """A piece of the stream."""
        self._write(h11.Data(data=data))
        await self._flush()

    async def end_stream(self) -> None:
        """End the stream cleanly."""
        self._write(h11.EndOfMessage())
        await self._flush()

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
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RST_ON_CLOSE)
        self._writer.transport.abort()


def _parsed(raw: bytes) -> object:
    try:
        return json.loads(raw)
    except ValueError:
        return None


def run(
    *,
    on_ready: Callable[[str], None],
    port: int = 0,
    mix: Mapping[str, float] | None = None,
    script: Sequence[str | Mapping[str, Any]] | None = None,
    seed: int = 0,
    model: str = "fault-1",
    slow_s: float = 2.0,
    latency_s: float = 0.0,
    retry_after: str | None = None,
    hang_s: float = 3600,
) -> None:
    """Serve in this thread until interrupted, as `millpond faultlane` does; `on_ready` is told the base URL.

    Prints nothing. Raises UsageError for a mix, script or port that cannot be had, KeyboardInterrupt on SIGINT.
    """
    lane = FaultLane(
        mix=mix,
        script=script,
        seed=seed,
        port=port,
        model=model,
        slow_s=slow_s,
        latency_s=latency_s,
        retry_after=retry_after,
        hang_s=hang_s,
    )
    asyncio.run(lane.serve_forever(on_ready))
