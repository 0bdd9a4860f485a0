"""One call of a chat lane, to an address or to a server that sends exact bytes, and what such a server says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from byteserver import STREAM_HEAD, ByteServer, Play, answers, byte_server, delta, event, whole
from onecall import HI, run

from millpond.lanes.chat import ChatLane
from millpond.lanes.lane import Call
from millpond.rules.evidence import Evidence
from millpond.rules.job import Work
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import FREE

LONG = Deadlines(connect_ms=20_000, first_byte_ms=20_000, idle_ms=20_000, total_ms=20_000)
SHORT = replace(LONG, first_byte_ms=150, idle_ms=150)
POLICY = LanePolicy("free", price=FREE, base_url="http://127.0.0.1:1/v1", model="m0", deadlines=LONG)
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED = {**OPEN, "additionalProperties": False}


def call_of(work: Work, key: str = "k1") -> Call:
    return Call("u1", work, key, attempt_no=1, deadline_ms=0)


def ask(base_url: str, work: Work = HI, *, key: str = "", **policy: Any) -> Evidence:
    async def scenario() -> Evidence:
        lane = ChatLane(replace(POLICY, base_url=base_url, **policy), key)
        try:
            return await lane.call(call_of(work))
        finally:
            await lane.close()

    return run(scenario())


def ask_play(play: Play, work: Work = HI, *, key: str = "", **policy: Any) -> tuple[Evidence, ByteServer]:
    """One call to a server that sends exact bytes; checks that it was at most one POST."""

    async def scenario() -> tuple[Evidence, ByteServer]:
        async with byte_server(play) as server:
            lane = ChatLane(replace(POLICY, base_url=server.url, **policy), key)
            evidence = await lane.call(call_of(work))
            await lane.close()
        assert len(server.requests) <= 1
        return evidence, server

    return run(scenario())


def answered(body: dict[str, Any], work: Work = HI, **policy: Any) -> Evidence:
    return ask_play(answers(whole(body)), work, **policy)[0]


def streamed(*events: bytes, work: Work = HI, **policy: Any) -> Evidence:
    return ask_play(answers(STREAM_HEAD, *events), work, **policy)[0]


def choice(finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m1", "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


DONE = event("[DONE]")
STOP = delta(finish_reason="stop")
