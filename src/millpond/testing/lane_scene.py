"""A lane, its far side and short words for calling it, so that a case reads as the sentence that it proves."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeVar, get_args

from millpond.engine.clock import wall_ms
from millpond.lanes.lane import Call, Lane
from millpond.rules.effects import Ending, Heard
from millpond.rules.errors import UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome, Prompt, Reply
from millpond.rules.policy import Policy
from millpond.rules.verdict import end

T = TypeVar("T")

MakeLane = Callable[[], Lane]
"""Makes a new lane, with a far side that is well or, in `faults`, ill at its first call."""

Fault = Outcome | Literal["silence"]
"""How the far side fails: so that a call ends as this outcome, or by never saying anything."""

FAULTS: tuple[Fault, ...] = (*(one for one in get_args(Outcome) if one != "ok"), "silence")

TASK = "Say: duck"
"""How every task begins; a number follows that is its own."""

NUMBERED = re.compile(r"duck\W*(\d{6})(?!\d)", re.IGNORECASE)
"""A task, wherever it is said again: in capitals, without its punctuation, but with its whole number."""

AT_ONCE = 16
"""Most calls at once, however many more a lane lets through: they may cost."""

PATIENCE_S = 2.0
"""What a lane gets beyond its own total deadline, and to end what was given up: machines are busy."""

SILENCE_S = 5.0
"""Longest total deadline of a lane whose far side is silent, and longest that silence which cannot be cut may go on
after it was given up: the suite waits for both."""

PAUSE_S = 0.05
"""Between two calls of a lane that says it has no room."""


class NotGivenError(Exception):
    """A case needs what the caller did not give; it is left out."""


@dataclass(frozen=True, slots=True)
class FarSide:
    """What a lane's author says of the other end of it."""

    make_lane: MakeLane
    faults: Mapping[Fault, MakeLane]
    keys_seen: Callable[[Lane], Sequence[str]] | None
    shows: Callable[[Prompt, Reply], bool]

    def __post_init__(self) -> None:
        for fault in self.faults:
            if fault not in FAULTS:
                raise UsageError(f"faults: found {fault!r}, wanted one of: {', '.join(FAULTS)}")


class LaneScene:
    """One case's view of the lane under test. `run` gives it an event loop, and closes the lane as a drain does."""

    def __init__(self, far_side: FarSide) -> None:
        self._far_side = far_side
        self._numbers = count(100_001)

    # --- lanes ------------------------------------------------------------------------------------------------------

    def lane(self) -> Lane:
        """A new lane, whose far side is well."""
        return self._far_side.make_lane()

    def lane_with(self, fault: Fault) -> Lane:
        """A new lane, whose far side fails so at its first call and is well afterwards."""
        if fault not in self._far_side.faults:
            raise NotGivenError(f"faults: {fault}")
        lane = self._far_side.faults[fault]()
        total_ms = lane.policy.deadlines.total_ms
        if fault == "silence" and total_ms > SILENCE_S * 1000:
            raise UsageError(
                f"faults[{fault!r}]: found a lane with a total deadline of {total_ms} ms, wanted at most "
                f"{SILENCE_S * 1000:.0f}: the suite waits for it"
            )
        return lane

    def faults(self) -> Sequence[Fault]:
        """The endings that the far side can be made to play, silence aside."""
        given: list[Fault] = [fault for fault in FAULTS if fault in self._far_side.faults and fault != "silence"]
        if not given:
            raise NotGivenError("faults")
        return given

    def run(self, lane: Lane, play: Callable[[Lane], Awaitable[T]]) -> T:
        """Play on an event loop of its own, as a drain has one, and close the lane at the end of it."""

        async def played() -> T:
            try:
                return await play(lane)
            finally:
                await lane.close()

        return asyncio.run(played())

    # --- calls ------------------------------------------------------------------------------------------------------

    def prompt(self, **parts: Any) -> Prompt:
        """Work that nobody asked before."""
        return Prompt(f"{TASK} {next(self._numbers)}!", **parts)

    def begin(self, lane: Lane, work: Any, *, key: str = "", attempt_no: int = 1) -> asyncio.Task[Evidence]:
        """A call that is under way, as the engine begins it."""
        number = next(self._numbers)
        call = Call(
            uid=f"attempt-{number}",
            work=work,
            idempotency_key=key or f"key-{number}",
            attempt_no=attempt_no,
            deadline_ms=wall_ms() + lane.policy.deadlines.total_ms,
            stored=work,
        )
        return asyncio.create_task(lane.call(call), name=f"call {call.uid}")

    async def ask(self, lane: Lane, work: Any, *, key: str = "", attempt_no: int = 1) -> Evidence:
        """Make a call and wait for its end."""
        return await self.end_of(lane, self.begin(lane, work, key=key, attempt_no=attempt_no))

    async def stood_still_s(self, lane: Lane) -> float:
        """How long the loop stood still for one call, in s; 0 if the call gave it a turn before its end."""
        loop, stood_s = asyncio.get_running_loop(), list[float]()
        call, began_s = self.begin(lane, self.prompt()), loop.time()
        # The loop takes turns: this one comes right after the first of the call.
        loop.call_soon(lambda: stood_s.append(loop.time() - began_s if call.done() else 0.0))
        await self.end_of(lane, call)
        return stood_s[0]

    async def silent(self, lane: Lane) -> asyncio.Task[Evidence]:
        """A call that nobody answers, a quarter of its time after it began: it has left by then."""
        call = self.begin(lane, self.prompt())
        await asyncio.sleep(lane.policy.deadlines.total_ms / 1000 / 4)
        assert not call.done(), f"silence was answered: {await self.end_of(lane, call)}"
        return call

    async def end_of(self, lane: Lane, call: asyncio.Task[Evidence]) -> Evidence:
        """What a call brought, which must be Evidence, by its total deadline."""
        total_ms = lane.policy.deadlines.total_ms
        await asyncio.wait({call}, timeout=total_ms / 1000 + PATIENCE_S)
        assert call.done(), f"a call was not over {PATIENCE_S:.0f} s after its total deadline of {total_ms} ms"
        assert not call.cancelled(), "a call was cancelled, and nobody had cancelled it"
        problem = call.exception()
        if problem is not None:
            raise AssertionError(
                f"call raised {type(problem).__name__}: {problem}; every ending must be Evidence"
            ) from problem
        found: object = call.result()
        assert isinstance(found, Evidence), f"call returned {type(found).__name__}, wanted Evidence"
        return found

    async def ends_of(self, lane: Lane, calls: Sequence[asyncio.Task[Evidence]]) -> Sequence[Evidence]:
        """What each of several calls brought; all have ended before the first problem is told."""
        ends = await asyncio.gather(*(self.end_of(lane, call) for call in calls), return_exceptions=True)
        for problem in ends:
            if isinstance(problem, BaseException):
                raise problem
        return [one for one in ends if isinstance(one, Evidence)]

    # --- judging ----------------------------------------------------------------------------------------------------

    def judge(self, lane: Lane, evidence: Evidence) -> Ending:
        """What the engine makes of it."""
        return end(Heard(evidence, wall_ms(), 0.0), lane.policy, Policy(lanes={lane.policy.name: lane.policy}))

    def good_reply(self, lane: Lane, work: Prompt, evidence: Evidence) -> Reply:
        """The reply of a call that must have ended well, and belongs to this work."""
        ending = self.judge(lane, evidence)
        assert ending.outcome == "ok", f"a call ended as {ending.outcome}: {ending.classified.message}"
        reply = evidence.reply
        assert reply is not None, "a call ended well and brought no reply"
        assert self._far_side.shows(work, reply), (
            f"{work.task!r} was answered {reply.text[:200]!r}, which is not its reply"
        )
        return reply

    async def is_answered(self, lane: Lane, work: Prompt | None = None) -> Reply:
        """Ask for some work, which must be answered; its reply."""
        work = work or self.prompt()
        return self.good_reply(lane, work, await self.ask(lane, work))

    async def are_answered(self, lane: Lane, count: int) -> None:
        """Ask so many works at once, each of which must be answered by its own reply."""
        works = [self.prompt() for _ in range(count)]
        calls = [self.begin(lane, work) for work in works]
        for work, evidence in zip(works, await self.ends_of(lane, calls), strict=True):
            self.good_reply(lane, work, evidence)

    async def is_crowded(self, lane: Lane) -> None:
        """Ask as many works at once as its policy lets through, then more: drains may share a lane.

        What is too much may wait its turn or be turned away, as long as it is said that nothing was done.
        """
        width = min(lane.policy.width, AT_ONCE)
        await self.are_answered(lane, width)
        calls = [self.begin(lane, self.prompt()) for _ in range(width + 2)]
        for evidence in await self.ends_of(lane, calls):
            ending = self.judge(lane, evidence)
            assert ending.outcome in ("ok", "saturated") or evidence.sent == "no", (
                f"one of {width + 2} calls at once ended as {ending.outcome}: {ending.classified.message}"
            )

    async def is_answered_soon(self, lane: Lane) -> None:
        """Ask until the lane has room, SILENCE_S at most: a thread goes on to its end after its call was given up."""
        clock = asyncio.get_running_loop().time
        until_s = clock() + SILENCE_S
        while True:
            work = self.prompt()
            evidence = await self.ask(lane, work)
            has_room = self.judge(lane, evidence).outcome != "saturated" or evidence.sent != "no"
            if has_room or clock() > until_s:
                self.good_reply(lane, work, evidence)
                return
            await asyncio.sleep(PAUSE_S)

    def keys_seen(self, lane: Lane) -> Sequence[str]:
        """The idempotency keys of all requests that reached the far side so far, in order."""
        if self._far_side.keys_seen is None:
            raise NotGivenError("keys_seen")
        return list(self._far_side.keys_seen(lane))


def names_no_other(work: Prompt, reply: Reply) -> bool:
    """Whether a reply may belong to a task: where the far side says a task again, whole or nearly, it is this one."""
    return set(NUMBERED.findall(reply.text)) <= set(NUMBERED.findall(work.task))
