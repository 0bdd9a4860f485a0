"""One POST over real sockets on loopback, and how it ended."""

from __future__ import annotations

from typing import Any

from byteserver import ByteServer, Connection, Play, byte_server
from onecall import run

from millpond.lanes.wire import Exchange, open_client, post
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import UNKNOWN_PRICE

LONG = Deadlines(connect_ms=20_000, first_byte_ms=20_000, idle_ms=20_000, total_ms=20_000)
"""Deadlines that no test waits for."""
PRICED = LanePolicy("priced", price=UNKNOWN_PRICE)


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
