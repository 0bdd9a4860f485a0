"""One POST: what was sent, what came back, whose deadline ended it. Real sockets on loopback."""

from __future__ import annotations

import asyncio
from dataclasses import replace

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
from onecall import run
from wirecall import LONG, ended, exchange_with, hang, post_to

from millpond.lanes import wire
from millpond.lanes.wire import Exchange

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
