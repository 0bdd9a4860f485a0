"""One POST: what was sent, what came back, whose deadline ended it. Real sockets on loopback."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import httpcore2
import pytest
from byteserver import (
    CHUNKED_HEAD,
    STREAM_HEAD,
    ByteServer,
    Connection,
    Play,
    answers,
    byte_server,
    chunked,
    event,
    whole,
)

from millpond.lanes import wire
from millpond.lanes.wire import Exchange, open_client, post
from millpond.rules.errors import SettingsError
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE

LONG = Deadlines(connect_ms=20_000, first_byte_ms=20_000, idle_ms=20_000, total_ms=20_000)
"""Deadlines that no test waits for."""
FREE_LANE = LanePolicy("free", price=FREE)
PRICED = LanePolicy("priced", price=UNKNOWN_PRICE)


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


async def exchange_with(
    url: str, deadlines: Deadlines = LONG, *, policy: LanePolicy = PRICED, body: bytes = b"{}", **options: Any
) -> Exchange:
    async with open_client(policy) as client:
        return await post(client, url, headers={"x-a": "b"}, body=body, deadlines=deadlines, **options)


def post_to(play: Play, deadlines: Deadlines = LONG, **options: Any) -> tuple[Exchange, ByteServer]:
    """One POST to a server that plays; checks that it was one."""

    async def scenario() -> tuple[Exchange, ByteServer]:
        async with byte_server(play) as server:
            exchange = await exchange_with(server.url, deadlines, **options)
        assert len(server.requests) <= 1
        return exchange, server

    return run(scenario())


def ended(exchange: Exchange) -> tuple[Any, ...]:
    return exchange.sent, exchange.failure, exchange.status


async def hang(connection: Connection) -> None:
    await connection.request()
    await connection.client_left()


# ---------------------------------------------------------------- nothing was sent


def test_a_refused_connection_sent_nothing() -> None:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{plug.getsockname()[1]}/"
    exchange = run(exchange_with(url))
    assert ended(exchange) == ("no", "refused", None)
    assert "refused" in exchange.message.lower()


def test_an_unknown_name_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    exchange = run(exchange_with("http://no-such-host.invalid/"))
    assert ended(exchange) == ("no", "dns", None)


def test_a_server_without_tls_sent_nothing() -> None:
    async def plain(connection: Connection) -> None:
        await connection.send(b"SSH-2.0-OpenSSH_9\r\n")
        await connection.client_left()

    async def scenario() -> Exchange:
        async with byte_server(plain) as server:
            return await exchange_with(server.url.replace("http:", "https:"))

    assert ended(run(scenario())) == ("no", "tls", None)


def test_a_tls_handshake_that_stalls_is_a_connect_timeout_and_is_closed() -> None:
    async def scenario() -> Exchange:
        async with byte_server(lambda connection: connection.client_left()) as server:
            url = server.url.replace("http:", "https:")
            exchange = await exchange_with(url, replace(LONG, connect_ms=50))
            await asyncio.wait_for(server.left.wait(), 10)
        return exchange

    assert ended(run(scenario())) == ("no", "connect_timeout", None)


def test_a_connection_that_is_never_accepted_is_a_connect_timeout() -> None:
    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        plug.listen(0)
        address = plug.getsockname()
        crowd = [socket.socket() for _ in range(4)]  # Linux takes two beyond the backlog, then drops the SYN
        for one in crowd:
            one.setblocking(False)
            one.connect_ex(address)
        exchange = run(exchange_with(f"http://127.0.0.1:{address[1]}/", replace(LONG, connect_ms=100)))
        for one in crowd:
            one.close()
    assert ended(exchange) == ("no", "connect_timeout", None)


def test_no_connection_of_our_own_pool_sent_nothing() -> None:
    async def scenario() -> Exchange:
        async with byte_server(hang) as server, open_client(replace(PRICED, max_in_flight=1)) as client:
            first = asyncio.create_task(post(client, server.url, headers={}, body=b"{}", deadlines=LONG))
            await server.asked.wait()
            second = await post(client, server.url, headers={}, body=b"{}", deadlines=replace(LONG, connect_ms=30))
            first.cancel()
            assert len(server.requests) == 1
            return second

    assert ended(run(scenario())) == ("no", "pool_timeout", None)


def test_the_total_deadline_counts_before_anything_is_sent() -> None:
    async def scenario() -> Exchange:
        async with byte_server(lambda connection: connection.client_left()) as server:
            return await exchange_with(server.url.replace("http:", "https:"), replace(LONG, total_ms=40))

    assert ended(run(scenario())) == ("no", "total_timeout", None)


def test_a_stale_pooled_connection_is_seen_before_anything_is_sent() -> None:
    async def one_each(connection: Connection) -> None:
        await connection.request()
        await connection.send(whole({"n": 1}))  # keep-alive by its head, and then closed

    async def scenario() -> None:
        async with byte_server(one_each) as server, open_client(FREE_LANE) as client:
            for _ in range(3):
                exchange = await post(client, server.url, headers={}, body=b"{}", deadlines=LONG)
                assert ended(exchange) == ("yes", None, 200)
                await asyncio.sleep(0.01)  # the server's FIN
            assert server.connections == len(server.requests) == 3

    run(scenario())


def test_a_write_that_fails_before_the_head_is_out_sent_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise httpcore2.WriteError("gone")

    monkeypatch.setattr("httpcore2._backends.anyio.AnyIOStream.write", broken)

    async def leave(connection: Connection) -> None:
        await connection.send(b"")

    async def scenario() -> Exchange:
        async with byte_server(leave) as server:
            return await exchange_with(server.url)

    assert ended(run(scenario())) == ("no", "write_error", None)


# ---------------------------------------------------------------- the head alone was sent

HUGE = b'"' + b"x" * 30_000_000 + b'"'
"""More than the socket buffers of loopback hold."""


async def read_head_only(connection: Connection) -> None:
    await connection.head()
    await asyncio.Event().wait()


def test_a_body_that_is_not_taken_ends_with_the_head_sent() -> None:
    async def scenario() -> Exchange:
        async with byte_server(read_head_only, limit=1024) as server:
            return await exchange_with(server.url, replace(LONG, first_byte_ms=200), body=HUGE)

    assert ended(run(scenario())) == ("headers", "write_timeout", None)


def test_a_reset_amid_the_body_ends_with_the_head_sent() -> None:
    async def reset(connection: Connection) -> None:
        await connection.head()
        connection.reset()

    async def scenario() -> Exchange:
        async with byte_server(reset, limit=1024) as server:
            return await exchange_with(server.url, body=HUGE)

    assert ended(run(scenario())) == ("headers", "write_error", None)


# ---------------------------------------------------------------- everything was sent


def test_silence_before_the_first_byte_has_its_deadline_and_the_wire_is_let_go() -> None:
    async def scenario() -> Exchange:
        async with byte_server(hang) as server:
            exchange = await exchange_with(server.url, replace(LONG, first_byte_ms=50))
            await asyncio.wait_for(server.left.wait(), 10)
            assert len(server.requests) == 1
        return exchange

    exchange = run(scenario())
    assert ended(exchange) == ("yes", "first_byte_timeout", None)
    assert exchange.first_byte_ms is None


def test_a_head_alone_is_no_first_byte() -> None:
    async def head(connection: Connection) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD + b": still here\n\n")
        await connection.client_left()

    exchange, _ = post_to(head, replace(LONG, first_byte_ms=60), on_event=lambda _: False)
    assert ended(exchange) == ("yes", "first_byte_timeout", 200)


def test_white_space_before_a_json_body_is_no_first_byte() -> None:
    async def blanks(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            await connection.send(b"\n")
            await asyncio.sleep(0.01)

    exchange, _ = post_to(blanks, replace(LONG, first_byte_ms=80, idle_ms=10_000))
    assert ended(exchange) == ("yes", "first_byte_timeout", 200)


def test_keep_alive_comments_do_not_put_off_the_idle_deadline() -> None:
    async def comments(connection: Connection) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD + event("one"))
        while True:
            for piece in (b": kee", b"p-alive\r", b"\n\r\n", b":\n\n"):
                await connection.send(piece)
                await asyncio.sleep(0.005)

    seen: list[str] = []
    exchange, _ = post_to(comments, replace(LONG, idle_ms=80), on_event=lambda e: bool(seen.append(e.data)))
    assert ended(exchange) == ("yes", "idle_timeout", 200)
    assert seen == ["one"]


def test_bytes_that_keep_coming_are_ended_by_the_total_deadline() -> None:
    async def drip(connection: Connection) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(event("x"))
            await asyncio.sleep(0.01)

    exchange, _ = post_to(drip, replace(LONG, idle_ms=10_000, total_ms=150), on_event=lambda _: False)
    assert ended(exchange) == ("yes", "total_timeout", 200)
    assert exchange.first_byte_ms is not None


@pytest.mark.parametrize(
    ("play", "failure"),
    [
        (answers(), "closed"),
        (answers(b"HTTP/1.1 200 O"), "closed"),
        (answers(b"220 mail.example ESMTP\r\n\r\n"), "not_http"),
        (answers(b"\x15\x03\x01\x00\x02\x02\x50\r\n\r\n"), "not_http"),
    ],
)
def test_no_reply_after_the_send(play: Play, failure: str) -> None:
    exchange, server = post_to(play)
    assert ended(exchange) == ("yes", failure, None)
    assert len(server.requests) == 1


def test_a_reset_after_the_send() -> None:
    async def reset(connection: Connection) -> None:
        await connection.request()
        connection.reset()

    exchange, _ = post_to(reset)
    assert ended(exchange) == ("yes", "reset", None)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_a_body_that_is_cut_or_unreadable(reply: bytes) -> None:
    exchange, _ = post_to(answers(reply))
    assert ended(exchange) == ("yes", "body_cut", 200)


def test_a_stream_that_is_cut() -> None:
    exchange, _ = post_to(answers(CHUNKED_HEAD + chunked(event("one"))), on_event=lambda _: False)
    assert ended(exchange) == ("yes", "stream_cut", 200)


def test_a_reply_that_never_stops_is_given_up_at_the_limit() -> None:
    async def endless(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        while True:
            await connection.send(b"G" * 4096)

    exchange, _ = post_to(endless, limit_bytes=100_000)
    assert ended(exchange) == ("yes", "body_cut", 200)
    assert "100000 bytes" in exchange.message
    assert len(exchange.body) <= 100_000
    assert wire.REPLY_LIMIT_BYTES == 64 * 1024 * 1024


def test_a_page_in_place_of_a_reply_keeps_its_beginning() -> None:
    page = b"<!DOCTYPE html><title>Sign in</title>" + b"x" * 900
    for kind in ("text/html; charset=utf-8", "application/json"):
        exchange, _ = post_to(answers(whole(page, kind=kind)))
        assert ended(exchange) == ("yes", "html", 200)
        assert exchange.message.startswith("<!DOCTYPE html><title>Sign in")
        assert len(exchange.message) == 200


def test_a_redirect_is_never_followed() -> None:
    async def scenario() -> tuple[Exchange, ByteServer]:
        async with byte_server(answers()) as elsewhere:
            head = f"location: {elsewhere.url}\r\n"
            async with byte_server(answers(whole(b"", "307 Temporary Redirect", head))) as server:
                exchange = await exchange_with(server.url)
            assert elsewhere.url in exchange.message
            assert len(server.requests) == 1
            return exchange, elsewhere

    exchange, elsewhere = run(scenario())
    assert ended(exchange) == ("yes", "redirect", 307)
    assert elsewhere.connections == 0


def test_an_error_status_stands_though_its_body_is_cut() -> None:
    reply = b'HTTP/1.1 429 Too Many\r\nretry-after: 7\r\ncontent-length: 999\r\n\r\n{"error": {"mess'
    exchange, _ = post_to(answers(reply))
    assert ended(exchange) == ("yes", None, 429)
    assert exchange.headers["retry-after"] == "7"
    assert exchange.body.startswith(b'{"error"')


def test_of_an_errors_body_only_the_beginning_is_read() -> None:
    exchange, _ = post_to(answers(whole(b"e" * 1_000_000, "400 Bad Request")))
    assert ended(exchange) == ("yes", None, 400)
    assert len(exchange.body) == wire.ERROR_BODY_BYTES


# ---------------------------------------------------------------- what is kept and what is said


def test_only_the_headers_that_matter_are_kept() -> None:
    headers = (
        "Retry-After: 2\r\nretry-after-ms: 1500\r\nX-Request-ID: req_1\r\nx-ratelimit-remaining-tokens: 0\r\n"
        "X-Generation-Id: gen-1\r\nset-cookie: a=b\r\nauthorization: Bearer x\r\nx-should-retry: true\r\nserver: s\r\n"
    )
    exchange, _ = post_to(answers(whole({}, headers=headers)))
    assert exchange.headers == {
        "content-type": "application/json",
        "retry-after": "2",
        "retry-after-ms": "1500",
        "x-request-id": "req_1",
        "x-ratelimit-remaining-tokens": "0",
        "x-generation-id": "gen-1",
    }
    assert exchange.request_id == "req_1"


def test_o32_a_retry_after_of_5000_digits_is_kept_but_cut() -> None:
    exchange, _ = post_to(answers(whole({}, "429 Too Many", f"retry-after: {'9' * 5000}\r\n")))
    assert exchange.headers["retry-after"] == "9" * wire.HEADER_CHARS


def test_events_survive_crlf_comments_lines_and_split_characters() -> None:
    text = ": hello\r\nevent: note\r\ndata: grüße 🦆\r\ndata: zwei\r\n\r\n\r\ndata: [DONE]\r\n\r\n".encode()
    pieces = [CHUNKED_HEAD, *(chunked(text[at : at + 1]) for at in range(len(text))), b"0\r\n\r\n"]
    seen: list[tuple[str, str]] = []
    exchange, _ = post_to(answers(*pieces), on_event=lambda e: bool(seen.append((e.event, e.data))))
    assert seen == [("note", "grüße 🦆\nzwei"), ("message", "[DONE]")]
    assert ended(exchange) == ("yes", None, 200)
    assert exchange.body_bytes == len(text)


def test_a_finished_stream_does_not_wait_for_its_end() -> None:
    async def lingers(connection: Connection) -> None:
        await connection.request()
        await connection.send(CHUNKED_HEAD + chunked(event("[DONE]")))
        await connection.client_left()

    exchange, _ = post_to(lingers, on_event=lambda e: e.data == "[DONE]")
    assert ended(exchange) == ("yes", None, 200)


def test_a_priced_lane_opens_a_connection_for_every_request_and_a_free_one_keeps_them() -> None:
    async def keep(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(whole({}))

    async def scenario(policy: LanePolicy) -> ByteServer:
        async with byte_server(keep) as server, open_client(policy) as client:
            for _ in range(3):
                exchange = await post(client, server.url, headers={}, body=b"{}", deadlines=LONG)
                assert ended(exchange) == ("yes", None, 200)
        return server

    priced, free = run(scenario(PRICED)), run(scenario(FREE_LANE))
    assert (priced.connections, free.connections) == (3, 1)
    assert b"connection: close" in priced.requests[0].lower()


def test_a_streamed_connection_serves_again_on_a_free_lane() -> None:
    async def keep(connection: Connection) -> None:
        while True:
            await connection.request()
            await connection.send(CHUNKED_HEAD + chunked(event("[DONE]")) + b"0\r\n\r\n")

    async def scenario() -> ByteServer:
        async with byte_server(keep) as server, open_client(FREE_LANE) as client:
            for _ in range(3):
                done = lambda e: e.data == "[DONE]"  # noqa: E731
                await post(client, server.url, headers={}, body=b"{}", deadlines=LONG, on_event=done)
        return server

    assert run(scenario()).connections == 1


def test_the_environment_names_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    exchange, server = post_to(answers(whole({})))
    assert ended(exchange) == ("yes", None, 200)
    assert server.requests[0].startswith(b"POST /v1 HTTP/1.1\r\n")


def test_a_proxy_of_the_policy_is_used_and_its_refusal_sent_nothing() -> None:
    heads: list[bytes] = []

    async def refuse(connection: Connection) -> None:
        head = await connection.head()
        heads.append(head)
        await connection.send(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n")

    async def scenario() -> Exchange:
        async with byte_server(refuse) as proxy:
            policy = replace(PRICED, proxy=proxy.url.removesuffix("/v1"))
            return await exchange_with("https://provider.invalid/v1", policy=policy)

    exchange = run(scenario())
    assert heads[0].startswith(b"CONNECT provider.invalid:443")
    assert ended(exchange) == ("no", "refused", None)


def test_cancelling_closes_the_connection() -> None:
    async def scenario() -> None:
        async with byte_server(hang) as server:
            task = asyncio.create_task(exchange_with(server.url))
            await server.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.left.wait(), 10)

    run(scenario())


def test_a_ca_file_that_is_missing_is_a_setting_refused() -> None:
    with pytest.raises(SettingsError, match=r"lanes\.priced: proxy or ca_file"):
        open_client(replace(PRICED, ca_file="/nowhere/ca.pem"))
    with pytest.raises(SettingsError, match=r"lanes\.priced: proxy or ca_file"):
        open_client(replace(PRICED, proxy="gopher://x"))


def test_a_certificate_of_nobody_sent_nothing() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # without a certificate: no handshake can succeed

    async def scenario() -> Exchange:
        async with byte_server(hang, ssl=context) as server:
            return await exchange_with(server.url)

    assert ended(run(scenario())) == ("no", "tls", None)
