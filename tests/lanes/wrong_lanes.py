"""A wrong lane for each promise of a lane, by the name of the case that it fails."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

from millpond.lanes.lane import Call
from millpond.rules.evidence import Evidence
from millpond.rules.job import Prompt, Usage
from millpond.rules.policy import LanePolicy
from millpond.testing import ScriptedLane


class Anonymous(ScriptedLane):
    def __init__(self, policy: Any = "scripted", script: Any = ()) -> None:
        super().__init__(policy, script)
        self.policy = replace(self.policy, name="")


class WaitsItself(ScriptedLane):
    def call(self, call: Call) -> Any:
        return asyncio.run(super().call(call))


class KeepsItsName(ScriptedLane):
    @property  # type: ignore[override]
    def policy(self) -> LanePolicy:
        return self._policy

    @policy.setter
    def policy(self, policy: LanePolicy) -> None:
        self._policy = getattr(self, "_policy", policy)


class SaysNothingOfTheEnd(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        return replace(await super().call(call), terminal=False)


class BringsASet(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        evidence = await super().call(call)
        assert evidence.reply is not None
        return replace(evidence, reply=replace(evidence.reply, data={1}))


class AnswersWhoCameLast(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        self.last = call
        await asyncio.sleep(0)
        return await super().call(self.last)


class StandsStill(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        time.sleep(0.03)  # noqa: ASYNC251  # that is what is wrong with it
        return await super().call(call)


class LooksAtNoSchema(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        return await super().call(replace(call, work=Prompt(call.work.task)))


class CountsUnknownTokensAsNone(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        return replace(await super().call(call), usage=Usage(0, 0))


class EncodesItsTask(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        if isinstance(call.work, Prompt):
            call.work.task.encode()
        return await super().call(call)


class ShortensTheKey(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        return await super().call(replace(call, idempotency_key=call.idempotency_key[:8]))


class AnswersOutOfACache(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        self.cache: dict[str, Evidence] = getattr(self, "cache", {})
        if call.idempotency_key not in self.cache:
            self.cache[call.idempotency_key] = await super().call(call)
        return self.cache[call.idempotency_key]


class RaisesItsFaults(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        evidence = await super().call(call)
        if evidence.reply is None:
            raise ConnectionError(evidence.message)
        return evidence


class TriesAgain(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        evidence = await super().call(call)
        return evidence if evidence.reply is not None else await super().call(call)


class BreaksForGood(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        evidence = await super().call(call)
        if evidence.reply is None:
            self.say(*[evidence] * 9)
        return evidence


class TakesSilenceForRefusal(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        evidence = await super().call(call)
        return replace(evidence, said="retryable") if evidence.failure == "total_timeout" else evidence


class KeepsNoDeadline(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        evidence = await super().call(call)
        if evidence.failure == "total_timeout":
            await asyncio.sleep(60)
        return evidence


class BlocksTheLoop(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        time.sleep(self.policy.deadlines.total_ms / 1000)  # noqa: ASYNC251  # that is what is wrong with it
        return Evidence(failure="total_timeout")


class LetsOneThroughAtATime(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        self.lock: asyncio.Lock = getattr(self, "lock", asyncio.Lock())
        async with self.lock:
            return await super().call(call)


class GoesOnWhenGivenUp(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        inner = asyncio.create_task(super().call(call))
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            return await inner


class LosesItsSlot(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        if getattr(self, "is_busy", False):
            return Evidence(sent="no", failure="pool_timeout")
        self.is_busy = True
        evidence = await super().call(call)
        self.is_busy = False
        return evidence


class ClosesWhatItNeverOpened(ScriptedLane):
    async def close(self) -> None:
        await super().close()
        self.calls[0]


class ClosesOnce(ScriptedLane):
    async def close(self) -> None:
        assert not self.closed
        await super().close()


class StaysClosed(ScriptedLane):
    async def call(self, call: Call) -> Evidence:
        return Evidence(failure="closed", sent="no") if self.closed else await super().call(call)


class KeepsASemaphore(ScriptedLane):
    """It belongs to the first loop on which a call had to wait for it."""

    slots = 2

    def __init__(self, policy: Any = "scripted", script: Any = ()) -> None:
        super().__init__(policy, script)
        self.semaphore = asyncio.Semaphore(self.slots)

    async def call(self, call: Call) -> Evidence:
        async with self.semaphore:
            await asyncio.sleep(0)
            return await super().call(call)


class KeepsASlotForEachCall(KeepsASemaphore):
    """None has to wait before there are more than its policy lets through."""

    slots = LanePolicy("scripted").width


class LeavesACallBehind(ScriptedLane):
    """It keeps what a call that was given up had of its loop."""

    async def call(self, call: Call) -> Evidence:
        loop = asyncio.get_running_loop()
        if getattr(self, "loop", loop) is not loop:
            raise RuntimeError("bound to a different event loop")
        try:
            return await super().call(call)
        except asyncio.CancelledError:
            self.loop = loop
            raise


WRONG: list[tuple[str, type[ScriptedLane]]] = [
    ("it_is_a_lane_with_a_policy", Anonymous),
    ("it_is_a_lane_with_a_policy", WaitsItself),
    ("a_mapping_may_give_it_another_name", KeepsItsName),
    ("a_prompt_is_answered", SaysNothingOfTheEnd),
    ("a_reply_is_read_back_as_it_was_brought", BringsASet),
    ("each_reply_belongs_to_its_call", AnswersWhoCameLast),
    ("a_call_gives_the_loop_its_turns", StandsStill),
    ("a_schema_is_answered_with_data_that_satisfies_it", LooksAtNoSchema),
    ("tokens_that_are_unknown_are_none", CountsUnknownTokensAsNone),
    ("no_work_makes_it_raise", EncodesItsTask),
    ("the_key_is_handed_on_as_it_is", ShortensTheKey),
    ("each_call_is_one_request", AnswersOutOfACache),
    ("a_fault_is_judged_as_what_it_was", RaisesItsFaults),
    ("a_fault_is_judged_as_what_it_was", TriesAgain),
    ("after_a_fault_it_goes_on", BreaksForGood),
    ("silence_ends_by_the_total_deadline_and_is_ambiguous", TakesSilenceForRefusal),
    ("silence_ends_by_the_total_deadline_and_is_ambiguous", KeepsNoDeadline),
    ("waiting_does_not_stop_the_loop", BlocksTheLoop),
    ("a_silent_call_holds_up_no_other", LetsOneThroughAtATime),
    ("a_call_that_is_given_up_ends_at_once", GoesOnWhenGivenUp),
    ("after_a_call_was_given_up_it_goes_on", LosesItsSlot),
    ("it_may_be_closed_without_a_call", ClosesWhatItNeverOpened),
    ("it_may_be_closed_twice", ClosesOnce),
    ("it_serves_the_next_drain_on_another_loop", StaysClosed),
    ("it_serves_the_next_drain_on_another_loop", KeepsASemaphore),
    ("it_serves_the_next_drain_on_another_loop", KeepsASlotForEachCall),
    ("it_serves_the_next_drain_after_silence", LeavesACallBehind),
]
