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
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

import h11

from millpond.drill import chatfake, chatrequest
from millpond.drill.connection import EVENTS, JSON, Connection, Headers
from millpond.drill.script import FAULTS, INVALID, Script, prompt_digest
from millpond.drill.stored import StoredCompletions
from millpond.rules.errors import UsageError

HOST: Final = "127.0.0.1"
COMMENT_EVERY_S: Final = 0.05
"""The pause between two keep-alive comments of the fault `comments`."""
DEFAULT_RETRY_AFTER: Final = "1"
"""What a refusal with Retry-After says if it is not told otherwise: seconds."""

_CHAT_PATHS = frozenset({"/v1/chat/completions", "/chat/completions"})


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

    @property
    def is_late(self) -> bool:
        """Whether the work was done though the client never got the whole answer."""
        return self.completed and not self.delivered


class FaultLane:
    """A server that fails on purpose. Use it as a context manager, or `start()` and `stop()` it.

    `mix` maps faults to shares (the rest of 1 is `ok`), `script` and `per_prompt` fix them (`script.Script`);
    `retry_after` is the raw Retry-After header of `429` and `503_proof`, `headers` are added to these two; `answer`
    makes the text from the body, otherwise it follows from the prompt. `slow_s`, `latency_s` (before any answer whose
    work is done), `hang_s` and `settling_s` (until a stored completion is listed) are in s. `clock` gives the s of
    `Post.at_s` and of what has settled; no fault is decided by it.
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
        settling_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises UsageError for a mix or script that cannot be played, a port or header that cannot be."""
        if not 0 <= port <= 65_535:
            raise UsageError(f"port: found {port}, wanted 0 (any free one) to 65535")
        self._script = Script(mix=mix, script=script, per_prompt=per_prompt, seed=seed)
        self._port = port
        self._model = model
        self._slow_s = slow_s
        self._latency_s = latency_s
        self._hang_s = hang_s
        self._stored = StoredCompletions(settling_s, clock)
        self._listings = 0
        self._answer = answer or chatfake.default_answer
        self._refusal_headers = _checked(
            [("Retry-After", DEFAULT_RETRY_AFTER if retry_after is None else retry_after), *headers]
        )
        self._clock = clock
        self._began_s: float | None = None
        self._posts: list[Post] = []
        self._ordinals: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._connections: dict[asyncio.Task[None], socket.socket] = {}
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
        failures: list[Exception] = []

        async def serve() -> None:
            serving = asyncio.ensure_future(self.serve_forever(on_ready=lambda _: ready.set()))
            self._ending = asyncio.get_running_loop(), serving
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await serving
                except Exception as error:
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
            listener = socket.create_server((HOST, self._port), backlog=1024)
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise UsageError(f"cannot listen on {HOST}:{self._port} ({reason}); give another port") from error
        self._port = listener.getsockname()[1]
        self._began_s = self._clock() if self._began_s is None else self._began_s
        # Not asyncio's own server: it forgets a connection that it took in the turn in which it is closed.
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        loop.add_reader(listener, self._take, listener)
        try:
            if on_ready:
                on_ready(self.base_url)
            await loop.create_future()
        finally:
            loop.remove_reader(listener)
            listener.close()
            wires = dict(self._connections)
            for task in wires:
                task.cancel()
            await asyncio.gather(*wires, return_exceptions=True)
            for wire in wires.values():
                wire.close()

    # ------------------------------------------------------------ what is remembered

    def posts(self) -> list[Post]:
        """Every accepted POST, in order of acceptance."""
        with self._changed:
            return list(self._posts)

    def accepted(self) -> int:
        """How many POSTs were accepted."""
        with self._changed:
            return len(self._posts)

    def listings(self) -> int:
        """How often stored completions were asked for."""
        with self._changed:
            return self._listings

    def wait_for_listings(self, count: int, timeout_s: float) -> bool:
        """Wait until stored completions were asked for so often; False if they were not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: self._listings >= count, timeout_s)

    def late_results(self) -> list[Post]:
        """The POSTs whose work was done though the client never got the whole answer."""
        return [post for post in self.posts() if post.is_late]

    def wait_for(self, count: int, timeout_s: float) -> bool:
        """Wait until `count` POSTs were accepted; False if they were not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._posts) >= count, timeout_s)

    def wait_for_late(self, count: int, timeout_s: float) -> bool:
        """Wait until there are `count` late results; False if there were not within `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: sum(post.is_late for post in self._posts) >= count, timeout_s)

    def recording(self) -> str:
        """What happened, as JSON lines of `{"prompt", "faults"}` that `script.replay` reads.

        A prompt goes by the text of its last message; prompts that share it share the faults of the first.
        """
        met: dict[str, tuple[str, list[str]]] = {}
        for post in self.posts():
            if post.fault != INVALID:
                met.setdefault(post.prompt_digest, (chatrequest.texts_of(post.body)[-1], []))[1].append(post.fault)
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
            "late": sum(post.is_late for post in done),
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
                texts = chatrequest.texts_of(body)
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

    def _take(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # nobody is there any more
            while True:
                wire, _ = listener.accept()
                task = asyncio.ensure_future(self._serve(wire))
                self._connections[task] = wire
                task.add_done_callback(lambda done: self._connections.pop(done))

    async def _serve(self, wire: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=wire)
        try:
            await self._requests(Connection(reader, writer))
        except (ConnectionError, h11.RemoteProtocolError):
            pass  # The client left or spoke no HTTP: nobody to tell it to.
        except asyncio.CancelledError:
            writer.transport.abort()
            raise
        finally:
            writer.close()

    async def _requests(self, connection: Connection) -> None:
        while received := await connection.next_request():
            request, body = received
            path, _, query = request.target.decode("ascii", "replace").partition("?")
            match request.method.decode(), path:
                case "POST", _ if path in _CHAT_PATHS:
                    await self._chat(connection, request, body)
                case "GET", _ if path in _CHAT_PATHS:
                    await self._list(connection, query)
                case "GET", "/v1/models" | "/models":
                    await connection.reply_json(200, chatfake.models(self._model))
                case "GET", "/__faultlane__/posts":
                    await connection.reply_json(200, [asdict(post) for post in self.posts()])
                case "GET", "/__faultlane__/results":
                    await connection.reply_json(200, [asdict(post) for post in self.late_results()])
                case "GET", "/__faultlane__/summary":
                    await connection.reply_json(200, self.summary())
                case method, _:
                    words = f"Invalid URL ({method} {path})"
                    await connection.reply_json(404, chatfake.error_body(words, "invalid_request_error"))

    async def _list(self, connection: Connection, query: str) -> None:
        with self._changed:
            self._listings += 1
            self._changed.notify_all()
        try:
            page = self._stored.page(query)
        except chatrequest.Refused as refused:
            error = chatfake.error_body(refused.message, "invalid_request_error", None, refused.param)
            return await connection.reply_json(400, error)
        return await connection.reply_json(200, page)

    async def _chat(self, connection: Connection, request: h11.Request, raw: bytes) -> None:
        key = next((value.decode("latin-1") for name, value in request.headers if name == b"idempotency-key"), None)
        try:
            body = chatrequest.check_request(_parsed(raw))
        except chatrequest.Refused as refused:
            self._accept({}, key, valid=False)
            error = chatfake.error_body(refused.message, "invalid_request_error", None, refused.param)
            return await connection.reply_json(400, error)
        number = self._accept(body, key, valid=True)
        post = self._posts[number]
        fault = post.fault
        if not chatrequest.wants_stream(body):
            fault = FAULTS[fault].plain or fault
        connection.request_id = f"req_{post.prompt_digest[:16]}_{post.ordinal}"
        if fault in chatfake.REFUSALS:
            refusal = chatfake.REFUSALS[fault]
            headers = self._refusal_headers if refusal.says_when else ()
            return await connection.reply_json(refusal.status, refusal.body, headers)
        answer = chatfake.answer_for(body, self._answer(body), fault=fault)
        if FAULTS[fault].works:
            await asyncio.sleep(self._slow_s if fault == "slow" else self._latency_s)
            self._stored.keep(body, chatfake.completion(body, answer, _reply_id(post)))
            done = {"result": answer.result, "tokens_in": answer.tokens_in, "tokens_out": answer.tokens_out}
            # Said before the last byte leaves, taken back if the client turns out to be gone: whoever has read the
            # whole answer finds it delivered.
            self._note(number, completed=True, delivered=FAULTS[fault].arrives and not connection.is_gone, **done)
        try:
            await self._play(connection, post, fault, answer)
        except BaseException:
            self._note(number, delivered=False)
            raise
        return None

    async def _play(self, connection: Connection, post: Post, fault: str, answer: chatfake.Answer) -> None:
        """Let the client see a fault; raises if it has left."""
        body, reply_id = post.body, _reply_id(post)
        stream = chatrequest.wants_stream(body)
        match fault:
            case "reset":
                connection.reset()
            case "hang":
                await connection.hang(self._hang_s)
            case "redirect":
                await connection.reply(307, b"", [("Location", f"{self.base_url}/chat/completions?followed")])
            case "html":
                page = b"<!doctype html><title>Welcome</title><p>It works!"
                await connection.reply(200, page, [("Content-Type", "text/html")])
            case "error_200":
                await connection.reply_json(200, chatfake.BROKEN)
            case "comments":
                await self._comment(connection)
            case _ if stream:
                await self._stream(connection, fault, chatfake.chunks(body, answer, reply_id, fault=fault))
            case "bad_json":
                await connection.reply(200, b'{"id": "chatcmpl-1", "choices": [{"mess', [JSON])
            case "cut":
                await connection.cut(json.dumps(chatfake.completion(body, answer, reply_id)).encode(), [JSON])
            case _:
                await connection.reply_json(200, chatfake.completion(body, answer, reply_id, fault=fault))
        connection.resets_next = fault == "reset_idle"

    async def _stream(self, connection: Connection, fault: str, chunks: Sequence[dict[str, Any]]) -> None:
        events = [chatfake.event(one) for one in chunks]
        done = chatfake.event("[DONE]")
        # The first chunk bears the role alone, so a half is at least two: it has content.
        half = b"".join(events[: max(2, len(events) // 2)])
        if fault == "cut":
            return await connection.cut(b"".join([*events, done]), [EVENTS])
        connection.begin_stream()
        match fault:
            case "stream_cut":
                await connection.send(half)
                return connection.close()
            case "partial_stream_then_hang":
                await connection.send(half)
                return await connection.hang(self._hang_s)
            case "stream_unfinished":
                return await connection.end_stream(half)
            case "stream_error_before":
                return await connection.end_stream(chatfake.event(chatfake.BROKEN))
            case "stream_error_after":
                return await connection.end_stream(half + chatfake.event(chatfake.BROKEN))
            case "bad_json":
                broken = chatfake.event('{"id": "chatcmpl-1", "choi')
                return await connection.end_stream(events[0] + broken + done)
            case _:
                for one in events:
                    await connection.send(one)
                return await connection.end_stream(done)

    async def _comment(self, connection: Connection) -> None:
        connection.begin_stream()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._hang_s):
                while True:
                    await connection.send(b": keep-alive\n\n")
                    await asyncio.sleep(COMMENT_EVERY_S)
        connection.close()


def _reply_id(post: Post) -> str:
    return f"chatcmpl-{post.prompt_digest[:24]}{post.ordinal}"


def _checked(headers: Headers) -> Headers:
    try:
        h11.Response(status_code=429, headers=list(headers))
    except (h11.LocalProtocolError, UnicodeError) as error:
        raise UsageError(f"headers: HTTP cannot carry {dict(headers)!r} ({error})") from error
    return headers


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
    settling_s: float = 0.0,
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
        settling_s=settling_s,
    )
    asyncio.run(lane.serve_forever(on_ready))
