"""From one drain to the next: closing, and another event loop."""

from __future__ import annotations

from millpond.lanes.lane import Lane
from millpond.testing.lane_scene import LaneScene


def it_may_be_closed_without_a_call(s: LaneScene) -> None:
    """A drain that finds nothing to do closes its lanes all the same."""

    async def nothing(_: Lane) -> None:
        return

    s.run(s.lane(), nothing)


def it_may_be_closed_twice(s: LaneScene) -> None:
    """By the drain, and by whoever made it."""

    async def close_too(lane: Lane) -> None:
        await s.is_answered(lane)
        await lane.close()

    s.run(s.lane(), close_too)


def it_serves_the_next_drain_on_another_loop(s: LaneScene) -> None:
    """A lane given in code outlives a drain: closed, and called again on a new event loop.

    By many at once: what calls wait for (a lock, a semaphore) belongs to the first loop on which one had to wait.
    """
    lane = s.lane()
    s.run(lane, s.is_crowded)
    s.run(lane, s.is_crowded)


def it_serves_the_next_drain_after_silence(s: LaneScene) -> None:
    """What a drain left behind by cutting its calls does not reach into the next one."""
    lane = s.lane_with("silence")

    async def cut(lane: Lane) -> None:
        silent = await s.silent(lane)
        silent.cancel()

    s.run(lane, cut)
    s.run(lane, s.is_answered)
