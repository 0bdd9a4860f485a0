"""What came while the process stood still counts, though its deadline has passed: on the wire, from programs and code.

Each test holds up its own event loop past the deadline, as a stopped process or a blocking handler does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from byteserver import STREAM_HEAD, Connection, byte_server, delta, event, whole
from onecall import HI, call_of, run
from wirecall import LONG, ended, exchange_with

from millpond.lanes import CallableLane, deadline
from millpond.lanes.callable import PythonLane
from millpond.lanes.command import CommandLane
from millpond.lanes.deadline import GRACE_S, Deadline
from millpond.lanes.wire import Exchange
from millpond.rules.evidence import Evidence
from millpond.rules.policy import Deadlines, LanePolicy

SOON_MS = 50
LARGE = b'"' + b"x" * 1_000_000 + b'"'
"""Many pieces, which nevertheless lie in the socket as a whole."""


def stand_still(ms: float = 2.5 * SOON_MS) -> None:
    time.sleep(ms / 1000)


@pytest.mark.parametrize("which", ["first_byte_ms", "total_ms"])
@pytest.mark.parametrize("body", [b"{}", LARGE])
@pytest.mark.parametrize("grace_s", [GRACE_S, 0.0])
def test_a_reply_that_came_while_the_loop_stood_still_is_read(
    monkeypatch: pytest.MonkeyPatch, which: str, body: bytes, grace_s: float
) -> None:
    """Also where the deadline comes hardly late, and has no more than its turns."""
    monkeypatch.setattr(deadline, "GRACE_S", grace_s)

    async def answer_and_hold_up(connection: Connection) -> None:
        await connection.request()
        await asyncio.sleep(SOON_MS / 2000)
        await connection.send(whole(body))
        stand_still()

    async def scenario() -> Exchange:
        async with byte_server(answer_and_hold_up) as server:
            return await exchange_with(server.url, replace(LONG, **{which: SOON_MS}))

    exchange = run(scenario())
    assert (*ended(exchange), len(exchange.body)) == ("yes", None, 200, len(body))


def test_the_rest_of_a_stream_that_came_while_the_loop_stood_still_is_read() -> None:
    events: list[str] = []

    async def go_on_and_hold_up(connection: Connection) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD + delta(content="a"))
        await first.wait()
        await connection.send(delta(content="b") + event("[DONE]"))
        stand_still()

    def take(one: object) -> bool:
        events.append(getattr(one, "data", ""))
        first.set()
        return events[-1] == "[DONE]"

    async def scenario() -> Exchange:
        async with byte_server(go_on_and_hold_up) as server:
            return await exchange_with(server.url, replace(LONG, idle_ms=SOON_MS, total_ms=1_000), on_event=take)

    first = asyncio.Event()
    assert ended(run(scenario())) == ("yes", None, 200)
    assert len(events) == 3


def test_a_stream_that_never_ends_is_over_in_spite_of_what_came() -> None:
    async def drip(connection: Connection) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD)
        asyncio.get_running_loop().call_soon(stand_still)
        while True:
            await connection.send(delta(content="a"))
            await asyncio.sleep(0)

    async def scenario() -> Exchange:
        async with byte_server(drip) as server:
            return await exchange_with(server.url, replace(LONG, total_ms=SOON_MS), on_event=lambda _: False)

    assert ended(run(scenario())) == ("yes", "total_timeout", 200)


def test_a_program_that_ended_while_the_loop_stood_still_has_answered(tmp_path: Path) -> None:
    began = tmp_path / "began"
    os.mkfifo(began)
    command = ("sh", "-c", f"sleep 0.1; echo x > {began}; echo quack")
    lane = CommandLane(LanePolicy("cmd", kind="command", command=command, deadlines=Deadlines(total_ms=500)))

    async def scenario() -> Evidence:
        loop = asyncio.get_running_loop()
        told = os.open(began, os.O_RDONLY | os.O_NONBLOCK)
        loop.add_reader(told, lambda: (loop.remove_reader(told), stand_still(550)))
        try:
            return await lane.call(call_of(HI))
        finally:
            os.close(told)

    assert said(run(scenario())) == "quack"


def test_a_function_that_returned_while_the_loop_stood_still_has_answered() -> None:
    async def answer(work: object) -> str:
        asyncio.get_running_loop().call_soon(stand_still)
        await asyncio.sleep(SOON_MS / 2000)
        return "quack"

    lane = CallableLane(answer)
    lane.policy = replace(lane.policy, deadlines=Deadlines(total_ms=SOON_MS))
    assert said(run(lane.call(call_of(HI)))) == "quack"


def test_a_function_in_a_thread_gets_back_what_the_loop_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped has stopped its threads, too: they end a little after it goes on."""
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    lane = PythonLane(LanePolicy("own", kind="python", target="mine:late", deadlines=Deadlines(total_ms=SOON_MS)))

    async def scenario() -> Evidence:
        asyncio.get_running_loop().call_later(SOON_MS / 2000, stand_still)
        try:
            return await lane.call(call_of(HI))
        finally:
            await lane.close()

    assert said(run(scenario())) == "quack"


def late(work: object) -> str:
    time.sleep(3.5 * SOON_MS / 1000)
    return "quack"


def said(evidence: Evidence) -> str:
    assert evidence.reply is not None, evidence
    return evidence.reply.text


def test_a_deadline_that_comes_in_time_is_as_exact_as_before() -> None:
    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with pytest.raises(TimeoutError):
            async with Deadline(0.02):
                await asyncio.Event().wait()
        return loop.time() - began_s

    assert 0.02 <= min(run(scenario()) for _ in range(5)) < 0.03


def test_a_late_deadline_waits_no_longer_than_its_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """For what is not there, however long the process stood still."""
    monkeypatch.setattr(deadline, "GRACE_S", 0.05)

    async def scenario() -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        with suppress(TimeoutError):
            async with Deadline() as late:
                late.move_to(began_s - 3_600)
                await asyncio.Event().wait()
        return loop.time() - began_s

    assert 0.05 <= run(scenario()) < 5
