"""One call of a lane, as the engine makes it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from millpond.lanes.lane import Call, Lane
from millpond.rules.evidence import Evidence
from millpond.rules.job import Prompt, Work

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HI = Prompt("hi")


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


def call_of(work: Work) -> Call:
    return Call("u1", work, "key-1", attempt_no=2, deadline_ms=1_700_000_000_000)


def ask(lane: Lane, work: Work = HI) -> Evidence:
    async def scenario() -> Evidence:
        try:
            return await lane.call(call_of(work))
        finally:
            await lane.close()

    return run(scenario())
