"""How a connection is opened and kept."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from typing import Any

import httpcore2
import pytest
from byteserver import CHUNKED_HEAD, ByteServer, Connection, answers, byte_server, chunked, event, whole
from onecall import run
from wirecall import LONG, PRICED, ended, exchange_with, hang, post_to

from millpond.lanes.wire import Exchange, open_client, post
from millpond.rules.errors import SettingsError
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE

FREE_LANE = LanePolicy("free", price=FREE)

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


# ---------------------------------------------------------------- what is kept, and what is gone through


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
