"""What a lane says when its far side fails, and when it says nothing at all."""

from __future__ import annotations

import asyncio

from millpond.lanes.lane import Lane
from millpond.testing.lane_scene import AT_ONCE, PATIENCE_S, LaneScene

TICKS = 20
"""How often a loop that is not stopped should come by during a silent call."""


def a_fault_is_judged_as_what_it_was(s: LaneScene) -> None:
    """`call` never raises for it; and the far side is well afterwards, so that a lane that tries again is found out."""
    for fault in s.faults():
        lane = s.lane_with(fault)
        ending = s.judge(lane, s.run(lane, lambda lane: s.ask(lane, s.prompt())))
        hint = ": a lane tries nothing again itself" if ending.outcome == "ok" else f": {ending.classified.message}"
        assert ending.outcome == fault, f"the far side failed as {fault}, the evidence reads as {ending.outcome}{hint}"


def after_a_fault_it_goes_on(s: LaneScene) -> None:
    """Whether and when to call again is the engine's to decide; then the lane is as it was."""

    async def again(lane: Lane) -> None:
        await s.ask(lane, s.prompt())
        await s.is_answered(lane)

    for fault in s.faults():
        s.run(s.lane_with(fault), again)


def silence_ends_by_the_total_deadline_and_is_ambiguous(s: LaneScene) -> None:
    """The work may exist, and may be billed."""
    lane = s.lane_with("silence")
    ending = s.judge(lane, s.run(lane, lambda lane: s.ask(lane, s.prompt())))
    assert ending.outcome == "ambiguous", f"silence after the request left reads as {ending.outcome}"


def waiting_does_not_stop_the_loop(s: LaneScene) -> None:
    """All calls, the beat of the owner and every deadline live on one loop."""

    async def tick_meanwhile(lane: Lane) -> int:
        call = s.begin(lane, s.prompt())
        ticks = 0
        while not call.done() and ticks < TICKS:
            await asyncio.sleep(lane.policy.deadlines.total_ms / 1000 / TICKS / 2)
            ticks += 1
        call.cancel()
        return ticks

    ticks = s.run(s.lane_with("silence"), tick_meanwhile)
    assert ticks > TICKS // 4, f"the loop came by {ticks} times during a silent call: the lane blocks it"


def a_silent_call_holds_up_no_other(s: LaneScene) -> None:
    """Where its policy lets two through at once. A call that is only listened to keeps its slot, and no more."""
    lane = s.lane_with("silence")

    async def beside(lane: Lane) -> None:
        silent = await s.silent(lane)
        if lane.policy.width > 1:
            await s.is_answered(lane)
            assert not silent.done(), "a call waited for a silent one to end"
        silent.cancel()

    s.run(lane, beside)


def a_call_that_is_given_up_ends_at_once(s: LaneScene) -> None:
    """The engine cancels it when nobody may wait any more; a drain could not end otherwise."""
    lane = s.lane_with("silence")

    async def give_up(lane: Lane) -> None:
        silent = await s.silent(lane)
        began = asyncio.get_running_loop().time()
        silent.cancel()
        await asyncio.wait({silent}, timeout=PATIENCE_S)
        took_s = asyncio.get_running_loop().time() - began
        is_early = silent.done() and took_s < lane.policy.deadlines.total_ms / 1000 / 2
        assert is_early, f"a call that was cancelled went on for {took_s:.1f} s"
        if not silent.cancelled():
            await s.end_of(lane, silent)

    s.run(lane, give_up)


def after_a_call_was_given_up_it_goes_on(s: LaneScene) -> None:
    """Its slot, its connection and its locks are free again."""
    lane = s.lane_with("silence")

    async def give_up_and_ask(lane: Lane) -> None:
        silent = await s.silent(lane)
        silent.cancel()
        await asyncio.wait({silent}, timeout=PATIENCE_S)
        for _ in range(min(lane.policy.width, AT_ONCE)):
            await s.is_answered_soon(lane)

    s.run(lane, give_up_and_ask)
