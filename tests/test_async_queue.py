"""The queue on an event loop: the same words, and nothing that blocks the loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millpond import AsyncQueue, Policy, Queue, Summary
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE
from millpond.testing import Held, ScriptedLane

NOT_AWAITED = {"at", "ending_of", "registry"}
"""What the command line and AsyncQueue itself use of Queue."""

OF_THE_LOOP = {"on_thread"}


def public(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")}


def differing(sync: type, asynchronous: type) -> set[str]:
    """Methods that only one of the two has, or that take other arguments."""
    ours, theirs = public(sync) - NOT_AWAITED, public(asynchronous) - OF_THE_LOOP
    both = ours & theirs
    return (ours ^ theirs) | {name for name in both if parameters(sync, name) != parameters(asynchronous, name)}


def parameters(face: type, name: str) -> list[tuple[str, object, object]]:
    found = inspect.signature(getattr(face, name)).parameters.values()
    return [(one.name, one.kind, one.default) for one in found if one.name != "self"]


def test_both_faces_have_the_same_words() -> None:
    assert differing(Queue, AsyncQueue) == set()


def test_a_word_that_only_one_face_has_is_noticed() -> None:
    class More(Queue):
        def purge(self) -> None: ...

    class Other(AsyncQueue):
        async def counts(self, all: bool = False) -> dict[str, int]:  # noqa: A002
            return {}

    assert differing(More, AsyncQueue) == {"purge"}
    assert differing(Queue, Other) == {"counts"}


def test_a_drain_runs_async_callables_on_the_callers_loop(tmp_path: Path) -> None:
    async def main() -> None:
        loops: list[object] = []

        async def answer(work: object) -> str:
            loops.append((asyncio.get_running_loop(), threading.current_thread()))
            return "yes"

        async with AsyncQueue.open(tmp_path / "pond", policy=Policy()) as queue:
            await queue.enqueue("Is a duck a bird?")
            assert (await queue.drain(lanes=answer)).done == 1
            assert loops == [(asyncio.get_running_loop(), threading.current_thread())]

    asyncio.run(main())


def test_a_second_drain_names_the_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy()) as queue:
            await queue.enqueue("Is a duck a bird?")
            async with queue.draining(lanes=ScriptedLane()):
                summary = await queue.drain(lanes=ScriptedLane())
            assert (summary.reason, summary.ready) == ("lock_held", 1)
            assert "pid" in (summary.holder or "")
            assert (await queue.drain(lanes=ScriptedLane())).done == 1

    asyncio.run(main())


def test_to_cancel_a_drain_lets_what_is_in_flight_end(tmp_path: Path) -> None:
    async def main() -> None:
        lane = ScriptedLane("free", [Held("ok")])
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(lanes={"free": lane.policy})) as queue:
            receipts = await queue.enqueue_many(["Is a duck a bird?"])
            drain = asyncio.create_task(queue.drain(lanes=lane, daemon=True))
            await lane.began()
            drain.cancel()
            lane.let_go()
            with pytest.raises(asyncio.CancelledError):
                await drain
            assert await queue.result(receipts[0]) is not None
            assert (lane.cancelled, lane.closed) == ([], 1)

    asyncio.run(main())


def test_to_cancel_a_drain_twice_cuts_it_and_writes_that_down(tmp_path: Path) -> None:
    async def main() -> None:
        lane = ScriptedLane(LanePolicy("free", kind="callable", price=FREE, after_hold="fail"), [Held("ok")])
        policy = Policy(lanes={"free": lane.policy}, grace_ms=600_000)
        async with AsyncQueue.open(tmp_path / "pond", policy=policy) as queue:
            await queue.enqueue("Is a duck a bird?")
            drain = asyncio.create_task(queue.drain(lanes=lane, daemon=True))
            await lane.began()
            drain.cancel()
            await asyncio.sleep(0)  # the drain takes the first one up
            drain.cancel()
            await asyncio.wait({drain}, timeout=10)
            lane.let_go()  # a drain that still runs would wait for it
            with pytest.raises(asyncio.CancelledError):
                await drain
            assert [(one.outcome, one.code) async for one in queue.ledger()] == [("ambiguous", "given_up")]
            assert len(lane.cancelled) == 1
            assert await queue.drainer() is None

    asyncio.run(main())


def test_results_come_in_the_order_of_the_submission_as_soon_as_they_can(tmp_path: Path) -> None:
    async def main() -> None:
        lane = ScriptedLane("free", ["ok", "ok", "permanent", "ok"])
        lane.hold()
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(lanes={"free": lane.policy})) as queue:
            receipts = await queue.enqueue_many([f"k{n}" for n in range(4)], submission="s")
            drain = asyncio.create_task(queue.drain(lanes=lane))
            await lane.began(4)
            results = queue.results("s", follow=True)
            first = asyncio.ensure_future(anext(results))
            lane.let_go(lane.calls[1].uid)
            assert await queue.wait(receipts[1])
            assert not first.done()
            lane.let_go(lane.calls[0].uid)
            assert (await first).position == 0
            assert (await anext(results)).position == 1
            lane.let_go()
            assert [one.position async for one in results] == [3]
            await drain

    asyncio.run(main())


def test_the_feed_tells_what_another_process_does(tmp_path: Path) -> None:
    asks = "import sys, millpond; millpond.Queue.open(sys.argv[1]).enqueue('Is a duck a bird?')"

    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy()) as queue:
            feed = queue.feed(follow=True)
            first = asyncio.create_task(anext(feed))
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", asks, str(tmp_path / "pond"))
            assert await other.wait() == 0
            event = await asyncio.wait_for(first, 30)
            assert event.job_id == 1
            assert [one.cursor async for one in queue.feed(after=event.cursor)] == []

    asyncio.run(main())


def test_a_drain_that_is_cancelled_while_it_takes_the_lock_gives_it_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy()) as queue:
            await queue.enqueue("Is a duck a bird?")
            for turns in range(6):  # at every step of the way in, and of the way out
                drain = asyncio.create_task(queue.drain(lanes=ScriptedLane(), daemon=True))
                for _ in range(turns):
                    await asyncio.sleep(0)
                drain.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await drain
                assert await queue.drainer() is None

    asyncio.run(main())


def test_an_opening_that_is_cancelled_leaves_nothing_open(tmp_path: Path) -> None:
    async def main() -> None:
        opening = asyncio.ensure_future(_opened(tmp_path / "pond"))
        await asyncio.sleep(0)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    async def _opened(folder: Path) -> AsyncQueue:
        return await AsyncQueue.open(folder, policy=Policy())

    asyncio.run(main())
    still_open = [name for name in map(os.readlink, _descriptors()) if str(tmp_path) in name]
    assert still_open == []


def _descriptors() -> list[str]:
    """Of the files that this process has open, where the system tells."""
    return [str(path) for path in Path("/proc/self/fd").glob("*") if path.exists()]


def test_an_async_queue_goes_on_in_a_forked_child(tmp_path: Path) -> None:
    program = f"""
import asyncio, os, sys
from millpond import AsyncQueue, Policy

async def parent():
    queue = await AsyncQueue.open({str(tmp_path / "pond")!r}, policy=Policy())
    await queue.enqueue("Is a duck a bird?")
    return queue

queue = asyncio.run(parent())
child = os.fork()
if child == 0:
    os._exit(0 if asyncio.run(asyncio.wait_for(queue.counts(), 60))["ready"] == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (said.returncode, said.stderr) == (0, "")


@pytest.mark.parametrize("turns", range(8))
def test_a_drain_that_nobody_awaits_gives_its_lock_back_when_its_loop_is_cleared(tmp_path: Path, turns: int) -> None:
    drains: list[asyncio.Task[Summary]] = []

    async def main() -> None:
        queue = await AsyncQueue.open(tmp_path / "pond", policy=Policy(durable=False))
        drains.append(asyncio.create_task(queue.drain(lanes=ScriptedLane(), daemon=True)))
        for _ in range(turns):  # any step of the way in
            await asyncio.sleep(0)

    asyncio.run(main())
    with Queue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
        assert (queue.drainer(), queue.store.living_owners()) == (None, [])
