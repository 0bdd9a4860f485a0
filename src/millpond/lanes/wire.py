"""One request on the wire, a POST or a GET: what was sent, what came back, and under whose deadline it ended.

Nothing is retried, no redirect is followed, and every deadline is ours: the client library's own are switched off. The
transport's trace is the witness of what was sent (checked with httpcore2 2.16):

    waiting for a connection -> connecting -> TLS -> sending -> waiting for the first byte -> reading
    └──────────── sent = no ────────────┘   └ headers ┘  └────────────── yes ──────────────┘

`no` holds until the head of the request has been written whole: a server cannot work on a request whose body it has not
seen. `headers` holds until the body has been handed over whole; a connection that ends before that is aborted, and what
still stood in its buffer is dropped. From then on the whole request may have arrived.

The environment decides nothing here (`trust_env` is off): a lane goes through a proxy only if its policy names one, and
no netrc adds a password. Only SSL_CERT_FILE and SSL_CERT_DIR are honoured, as they say where this machine keeps its
certificates; the policy's `ca_file` wins over them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, cast

import httpx2

from millpond.lanes.deadline import Deadline
from millpond.rules.errors import SettingsError
from millpond.rules.evidence import Failure, Sent
from millpond.rules.policy import Deadlines, LanePolicy

REPLY_LIMIT_BYTES = 64 * 1024 * 1024
"""Longest reply that is read (decoded bytes); the connection is then aborted (O20). A million tokens are about 5 MB."""

ERROR_BODY_BYTES = 64 * 1024
"""As much of an error's body is read; its words stand at the front."""

HEADER_CHARS = 500
"""Longest value of a reply's header that is kept (O32 has one of 5,000 digits)."""

PAGE_CHARS = 200
"""As much of a web page that came in place of a reply is kept (O26)."""

DRAIN_MS = 100
"""How long the rest of a finished stream is waited for, so that its connection can serve again."""

KEPT_HEADERS = frozenset({"content-type", "retry-after", "retry-after-ms", "x-generation-id"})
KEPT_HEADER_PREFIXES = ("x-ratelimit-",)
REQUEST_ID_HEADERS = ("x-request-id", "request-id", "x-amzn-requestid", "apim-request-id", "cf-ray")
"""Where providers put the id to name in a support request, best first."""

OnEvent = Callable[[httpx2.ServerSentEvent], bool]
"""Takes one event of a streamed reply; True says that nothing more is wanted."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one request showed. `failure` is None where a whole reply came, or an error status: its body may be cut."""

    sent: Sent
    failure: Failure | None = None
    message: str = ""
    """Our words for the failure; not redacted yet."""
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The few headers that matter, lower case, raw, cut to HEADER_CHARS."""
    request_id: str | None = None
    body: bytes = b""
    """The body; empty where it was a stream of events, which went to `on_event`."""
    body_bytes: int = 0
    first_byte_ms: int | None = None
    """ms from the send to the first byte of the body that is not keep-alive."""
    streamed: bool = False

    @property
    def answered(self) -> bool:
        """Whether the far side answered 2xx."""
        return self.status is not None and 200 <= self.status < 300


def open_client(policy: LanePolicy) -> httpx2.AsyncClient:
    """Open an HTTP/1.1 client for one lane and one event loop.

    Connections are kept and used again only on lanes priced 0: a pooled connection that the server has just closed
    takes the whole request without an answer, which turned 10-16 % of sends into ambiguous ones in a worst case.
    Raises SettingsError where `proxy` or `ca_file` cannot be used.
    """
    try:
        return httpx2.AsyncClient(
            http1=True,
            http2=False,
            trust_env=False,
            follow_redirects=False,
            verify=ssl.create_default_context(cafile=policy.ca_file) if policy.ca_file else httpx2.create_ssl_context(),
            proxy=policy.proxy or None,
            headers={
                "accept-encoding": "identity",
                "connection": "keep-alive" if keeps_connections(policy) else "close",
                "user-agent": f"millpond/{_version()}",
            },
            timeout=None,
            limits=httpx2.Limits(
                max_connections=policy.max_in_flight,
                max_keepalive_connections=policy.max_in_flight if keeps_connections(policy) else 0,
                keepalive_expiry=5.0,
            ),
        )
    except (OSError, ValueError, ImportError, httpx2.InvalidURL) as error:
        raise SettingsError(f"lanes.{policy.name}: proxy or ca_file cannot be used: {error}") from None


def _version() -> str:
    try:
        return version("millpond")
    except PackageNotFoundError:  # run from the source tree
        return "0"


def keeps_connections(policy: LanePolicy) -> bool:
    """Whether a lane's connections serve more than one request: only where a doubtful send costs nothing."""
    return policy.price.kind == "free"


async def post(
    client: httpx2.AsyncClient,
    url: httpx2.URL | str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    deadlines: Deadlines,
    on_event: OnEvent | None = None,
    limit_bytes: int = REPLY_LIMIT_BYTES,
) -> Exchange:
    """Send one POST and read what comes back, under our own deadlines.

    A 2xx reply of type text/event-stream goes to `on_event`, event by event, if that is given; any other body is read
    whole. The deadline for the first byte runs from the end of the send to the first byte of the body that says
    something: a head alone, comments in a stream and white space before a JSON body are keep-alive. It bounds the send
    as well. Cancelling the task that awaits this closes the connection; no other exception leaves.
    """
    watch = _Watch("POST", deadlines, limit_bytes)
    request = client.build_request("POST", url, headers=dict(headers), content=body, extensions={"trace": watch.trace})
    return await _exchange(client, request, watch, on_event)


async def get(
    client: httpx2.AsyncClient,
    url: httpx2.URL | str,
    *,
    headers: Mapping[str, str],
    deadlines: Deadlines,
    limit_bytes: int = REPLY_LIMIT_BYTES,
) -> Exchange:
    """Ask for something that is there to be read, under the same rules as a POST."""
    watch = _Watch("GET", deadlines, limit_bytes)
    request = client.build_request("GET", url, headers=dict(headers), extensions={"trace": watch.trace})
    return await _exchange(client, request, watch, None)


async def _exchange(
    client: httpx2.AsyncClient, request: httpx2.Request, watch: _Watch, on_event: OnEvent | None
) -> Exchange:
    try:
        async with Deadline() as deadline:
            watch.start(deadline)
            response = await client.send(request, stream=True)
            try:
                await _read(response, watch, on_event)
            finally:
                await response.aclose()
    except TimeoutError:
        watch.fail(watch.expiry, f"{watch.expiry.replace('_', ' ')} after {watch.elapsed_ms()} ms")
    except _TooLong:
        watch.fail(watch.cut, f"the reply was longer than {watch.limit_bytes} bytes; stopped reading")
    except httpx2.RequestError as error:
        watch.fail(_failure(error, watch), _words(error))
    finally:
        await watch.let_go()
    return watch.exchange()


_Phase = Literal["pool", "connect", "tls", "send", "wait", "read"]

_EXPIRY: Mapping[_Phase, Failure] = {
    "pool": "pool_timeout",
    "connect": "connect_timeout",
    "tls": "connect_timeout",
    "send": "write_timeout",
    "wait": "first_byte_timeout",
    "read": "idle_timeout",
}


class _TooLong(Exception):
    """The reply passed the limit."""


class _Watch:
    """Follows one exchange through its phases and keeps its deadline at that of the phase it is in."""

    def __init__(self, method: str, deadlines: Deadlines, limit_bytes: int) -> None:
        self._method = method.encode()
        self._limits: Mapping[_Phase, int] = {
            "pool": deadlines.connect_ms,
            "connect": deadlines.connect_ms,
            "tls": deadlines.connect_ms,
            "send": deadlines.first_byte_ms,
            "wait": deadlines.first_byte_ms,
            "read": deadlines.idle_ms,
        }
        self._total_ms = deadlines.total_ms
        self.limit_bytes = limit_bytes
        self._is_ours = False
        self._stream: Any = None
        self._failure: Failure | None = None
        self._message = ""
        self.phase: _Phase = "pool"
        self.expiry: Failure = "pool_timeout"
        self.sent: Sent = "no"
        self.streamed = False
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.request_id: str | None = None
        self.body = bytearray()
        self.body_bytes = 0
        self.first_byte_ms: int | None = None

    def start(self, deadline: Deadline) -> None:
        self._clock = asyncio.get_running_loop().time
        self._deadline = deadline
        self._started = self._sent_at = self._connect_at = self._clock()
        self._enter("pool")

    def elapsed_ms(self) -> int:
        return round((self._clock() - self._started) * 1000)

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Hear from the transport. A proxy's CONNECT is traced under the same names, so the method is looked at."""
        step = name.partition(".")[2]
        match step:
            case "connect_tcp.started":
                self._enter("connect")
            case "connect_tcp.complete":
                self._stream = info["return_value"]
            case "start_tls.started":
                self._enter("tls")
            case "send_request_headers.started":
                self._is_ours = info["request"].method == self._method
                if self._is_ours:
                    self._enter("send")
            case "send_request_headers.complete" if self._is_ours:
                self.sent = "headers"
            case "send_request_body.complete" if self._is_ours:
                self.sent = "yes"
                self._sent_at = self._clock()
                self._enter("wait")
            case _:
                pass

    async def let_go(self) -> None:
        """Close a connection that was left amid its handshake: httpcore2 2.16 forgets it when that is cancelled."""
        if self.phase == "tls" and self._stream is not None:
            with suppress(Exception):  # The exchange is over: no way in which closing may fail takes its evidence back.
                await self._stream.aclose()

    def head(self, response: httpx2.Response) -> None:
        """Note the status and the headers that matter."""
        self.status = response.status_code
        for name, value in response.headers.items():
            if name in KEPT_HEADERS or name in REQUEST_ID_HEADERS or name.startswith(KEPT_HEADER_PREFIXES):
                self.headers[name] = value[:HEADER_CHARS]
        self.request_id = next((self.headers[name] for name in REQUEST_ID_HEADERS if self.headers.get(name)), None)

    def bytes_came(self, chunk: bytes, *, substance: bool) -> None:
        """Count bytes of the body; only bytes of substance move the deadline on."""
        self.body_bytes += len(chunk)
        if self.body_bytes > self.limit_bytes:
            raise _TooLong
        if substance:
            if self.first_byte_ms is None:
                self.first_byte_ms = round((self._clock() - self._sent_at) * 1000)
            self._enter("read")

    @property
    def cut(self) -> Failure:
        return "stream_cut" if self.streamed else "body_cut"

    def fail(self, failure: Failure, message: str) -> None:
        """Note how it ended, unless the status already says more: the body of an error is only commentary."""
        if self._failure is None and (self.status is None or 200 <= self.status < 300 or failure == "redirect"):
            self._failure, self._message = failure, message

    def exchange(self) -> Exchange:
        return Exchange(
            sent=self.sent,
            failure=self._failure,
            message=self._message,
            status=self.status,
            headers=self.headers,
            request_id=self.request_id,
            body=bytes(self.body),
            body_bytes=self.body_bytes,
            first_byte_ms=self.first_byte_ms,
            streamed=self.streamed,
        )

    def _enter(self, phase: _Phase) -> None:
        if self._deadline.expired():  # it is over already, and the transport is only closing
            return
        self.phase = phase
        now = self._clock()
        if phase == "connect":
            self._connect_at = now
        own = (self._connect_at if phase == "tls" else now) + self._limits[phase] / 1000
        total = self._started + self._total_ms / 1000
        self.expiry = _EXPIRY[phase] if own <= total else "total_timeout"
        self._deadline.move_to(min(own, total))


async def _read(response: httpx2.Response, watch: _Watch, on_event: OnEvent | None) -> None:
    """Read the body as its status and type ask for it."""
    watch.head(response)
    if 300 <= response.status_code < 400:
        watch.fail("redirect", f"answered {response.status_code}, to {response.headers.get('location', 'nowhere')}")
        return
    if not 200 <= response.status_code < 300:
        async for chunk in _Body(response, watch):
            watch.body += chunk[: ERROR_BODY_BYTES - len(watch.body)]
            if len(watch.body) >= ERROR_BODY_BYTES:
                return
        return
    if on_event is not None and _media_type(response) == "text/event-stream":
        watch.streamed = True
        await _read_events(response, watch, on_event)
        return
    async for chunk in _Body(response, watch):
        watch.body += chunk
    if _media_type(response) == "text/html" or watch.body[:512].lstrip().lower().startswith((b"<!doctype", b"<html")):
        watch.fail("html", bytes(watch.body).decode(errors="replace").strip()[:PAGE_CHARS])


async def _read_events(response: httpx2.Response, watch: _Watch, on_event: OnEvent) -> None:
    """Frame a stream of events; httpx2 does the framing, over a body that is read under our deadlines."""
    counted = httpx2.Response(
        200,
        headers={"content-type": "text/event-stream; charset=utf-8"},
        stream=_Body(response, watch),
        request=response.request,
    )
    events = aiter(httpx2.EventSource(counted, max_event_size=None))
    async for event in events:
        if on_event(event):
            break
    else:
        return
    # Nothing more is wanted, whatever becomes of the rest: the end is read only so that the connection is free again.
    with suppress(TimeoutError, _TooLong, httpx2.RequestError):
        async with asyncio.timeout(DRAIN_MS / 1000):
            async for _ in events:
                pass


class _Body(httpx2.AsyncByteStream):
    """A reply's decoded body, reporting every chunk to the watch before it is used."""

    def __init__(self, response: httpx2.Response, watch: _Watch) -> None:
        self._response = response
        self._watch = watch

    async def __aiter__(self) -> AsyncIterator[bytes]:
        tells_substance = _EventLines().tell if self._watch.streamed else _says_something
        async for chunk in self._response.aiter_bytes():
            self._watch.bytes_came(chunk, substance=tells_substance(chunk))
            yield chunk


def _says_something(chunk: bytes) -> bool:
    """Whether a piece of a body is more than white space, which some servers send to keep a connection alive."""
    return bool(chunk.strip())


class _EventLines:
    """Tells lines of an event stream from comments and blank lines, across chunks. Framing is not its business."""

    def __init__(self) -> None:
        self._at_start = True
        self._in_comment = False

    def tell(self, chunk: bytes) -> bool:
        """Whether the chunk holds anything that is neither comment nor line end."""
        substance = False
        for line in chunk.splitlines(keepends=True):
            if self._at_start:
                self._in_comment = line.startswith(b":")
            text = line.rstrip(b"\r\n")
            substance = substance or (bool(text) and not self._in_comment)
            self._at_start = text != line
        return substance


def _media_type(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def _failure(error: httpx2.RequestError, watch: _Watch) -> Failure:
    """Name what the transport raised, by the phase it was raised in and by its causes."""
    causes = list(_causes(error))
    if watch.phase in ("pool", "connect", "tls"):
        if any(isinstance(cause, socket.gaierror) for cause in causes):
            return "dns"
        if isinstance(error, httpx2.TimeoutException):
            return "connect_timeout"
        is_tls = watch.phase == "tls" or any(isinstance(cause, ssl.SSLError) for cause in causes)
        return "tls" if is_tls else "refused"
    if watch.status is not None:
        return watch.cut
    if isinstance(error, httpx2.LocalProtocolError):
        return "exception"
    # httpcore2 reads on after a failed write, since a server may answer before it has read everything.
    if watch.sent != "yes":
        return "write_error"
    if any(type(cause).__module__.partition(".")[0] == "h11" for cause in causes):
        return "not_http"
    return "reset" if any(isinstance(cause, ConnectionResetError) for cause in causes) else "closed"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The exception and everything it came from, members of groups included."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        cause = left.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        left += [cause.__cause__, cause.__context__]
        if isinstance(cause, BaseExceptionGroup):
            left += cast(BaseExceptionGroup[BaseException], cause).exceptions


def _words(error: BaseException) -> str:
    """The exception in words, with what the operating system or the resolver says of it where that says more."""
    own = str(error) or type(error).__name__
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.errno:
            system = str(cause.strerror) if isinstance(cause, socket.gaierror) else os.strerror(cause.errno)
            return own if system in own else f"{own}: {system}"
    return own
