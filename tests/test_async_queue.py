"""The queue on an event loop: the same words, nothing that blocks the loop, no thread for each who waits."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from millpond import AsyncQueue, Event, Policy, Queue, QueueUnavailable, Summary, UsageError
from millpond.async_queue import THREADS
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE
from millpond.store.store import PAGE_ROWS
from millpond.testing import Held, ScriptedLane

NOT_AWAITED = {"at", "dry_run", "ending_of", "enqueue_stream", "first_lane", "registry"}
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


def test_two_hundred_wait_on_as_many_jobs_with_a_bounded_number_of_threads(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
            receipts = await queue.enqueue_many(f"What is {n} times {n}?" for n in range(200))
            before = threading.active_count()
            answered: list[int] = []

            async def wait_for(n: int) -> None:
                assert await queue.wait(receipts[n], timeout=60)
                result = await queue.result(receipts[n])
                assert result is not None
                assert result.text == str(n * n)
                answered.append(n)

            async def square(work: object) -> str:
                threads.append(threading.active_count())
                return str(int(str(getattr(work, "task", "")).split()[2]) ** 2)

            threads: list[int] = []
            waiting = [asyncio.create_task(wait_for(n)) for n in range(200)]
            summary = await queue.drain(lanes=square)
            await asyncio.gather(*waiting)
            assert (summary.done, sorted(answered)) == (200, list(range(200)))
            # One that looks for all of them, one that writes for the drain, those that speak to the database.
            assert max(threads) <= before + 6

    asyncio.run(main())


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
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(lanes={"free": lane.policy})) as queue:
            await queue.enqueue("Is a duck a bird?")
            drain = asyncio.create_task(queue.drain(lanes=lane, daemon=True))
            await lane.began()
            drain.cancel()
            await asyncio.sleep(0)  # the drain takes the first one up
            drain.cancel()
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


def test_a_wait_that_times_out_says_so_and_leaves_no_thread(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy()) as queue:
            receipt = await queue.enqueue("Is a duck a bird?")
            assert not await queue.wait(receipt, timeout=0)
            assert not await queue.wait(receipt, timeout=0.01)
            assert not await queue.wait([receipt], timeout=-1)
            with pytest.raises(UsageError, match="nan"):
                await queue.wait(receipt, timeout=float("nan"))
            with pytest.raises(UsageError, match="no request 7 in this queue"):
                await queue.wait([receipt, 7])
            await queue.drain(lanes=ScriptedLane())
            assert await queue.wait(receipt, timeout=0)
            for thread in threading.enumerate():
                if thread.name == "millpond-waiters":
                    await asyncio.to_thread(thread.join, 20)
                    assert not thread.is_alive()

    asyncio.run(main())


def test_who_waits_on_a_queue_that_is_closed_learns_of_it(tmp_path: Path) -> None:
    async def main() -> None:
        queue = await AsyncQueue.open(tmp_path / "pond", policy=Policy())
        receipt = await queue.enqueue("Is a duck a bird?")
        answered = queue.queue.ending_of(receipt)
        feed = asyncio.ensure_future(_last(queue.feed(follow=True)))
        async for _ in queue.results():
            pass  # whatever was asked of the threads before has begun
        await queue.close()
        for waiting in (asyncio.wrap_future(answered), feed):
            with pytest.raises(UsageError, match="was closed by this program"):
                await waiting
        with pytest.raises(UsageError, match="was closed by this program"):
            await queue.counts()
        await queue.close()

    async def _last(feed: AsyncIterator[Event]) -> None:
        async for _ in feed:
            pass

    asyncio.run(main())


def test_a_wait_ends_when_a_request_that_was_passed_is_answered_again(tmp_path: Path) -> None:
    """A request before the one that is waited for fails, and is asked again: the wait is for that one too."""
    with Queue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
        first, second = queue.enqueue_many(["a", "b"], submission="s")
        queue.cancel(first.job_id)
        for what in ("s", [first, second]):
            answered = queue.ending_of(what)
            assert not answered.done()
            queue.retry(first.job_id)
            queue.cancel(second.job_id)
            with pytest.raises(TimeoutError):
                answered.result(0.2)
            queue.cancel(first.job_id)
            answered.result(20)
            queue.retry(second.job_id)
            assert queue.wait([first], timeout=20)


def test_a_forked_child_waits_with_a_thread_of_its_own(tmp_path: Path) -> None:
    program = f"""
import os, sys, threading
from millpond import Policy, Queue
queue = Queue.open({str(tmp_path / "pond")!r}, policy=Policy())
receipt = queue.enqueue("Is a duck a bird?")
answered = queue.ending_of(receipt)
child = os.fork()
if child == 0:
    os._exit(0 if queue.wait(receipt, timeout=60) else 1)
queue.drain(lanes=lambda work: "yes")
answered.result(60)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (said.returncode, said.stderr) == (0, "")


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


def waiting_now(queue: Queue) -> int:
    """How many futures a queue still looks after."""
    return len(queue._waiters._waiters)  # pyright: ignore[reportPrivateUsage]


async def all_done(queue: AsyncQueue) -> None:
    """Wait until every thread of the queue is free at one time: whatever was begun before has ended."""
    together = threading.Barrier(THREADS)
    await asyncio.gather(*(queue.on_thread(together.wait) for _ in range(THREADS)))


def test_a_wait_that_is_cancelled_at_any_moment_is_waited_for_no_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
            receipt = await queue.enqueue("Is a duck a bird?")
            stuck = threading.Event()
            held = [asyncio.ensure_future(queue.on_thread(stuck.wait)) for _ in range(THREADS)]
            waiting = [asyncio.create_task(queue.wait(receipt)) for _ in range(20)]  # these have no thread yet
            await asyncio.sleep(0)
            for one in waiting[:10]:
                one.cancel()
            stuck.set()
            await asyncio.gather(*held)
            feed = queue.feed(after=str(len([one async for one in queue.feed()])), follow=True)
            following = asyncio.ensure_future(anext(feed))
            await queue.counts()
            for one in (*waiting, following):
                one.cancel()
            await asyncio.gather(*waiting, following, return_exceptions=True)
            await all_done(queue)
            assert waiting_now(queue.queue) == 0

    asyncio.run(main())


def test_a_look_that_is_cancelled_while_it_runs_leaves_nobody_waiting(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
            receipt = await queue.enqueue("Is a duck a bird?")
            begun, go_on = threading.Event(), threading.Event()

            def look() -> object:
                begun.set()
                go_on.wait(20)
                return queue.queue.ending_of(receipt)

            looking = asyncio.ensure_future(queue.on_thread(look, undo=lambda found: found.cancel()))  # type: ignore[attr-defined]
            await asyncio.to_thread(begun.wait, 20)
            looking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await looking
            go_on.set()
            await all_done(queue)
            assert waiting_now(queue.queue) == 0

    asyncio.run(main())


def test_a_page_that_is_cancelled_while_it_is_read_leaves_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
            begun, go_on = threading.Event(), threading.Event()
            read = queue.queue.store.events

            def slowly(after: int) -> list[Event]:
                begun.set()
                go_on.wait(20)
                return read(after)

            monkeypatch.setattr(queue.queue.store, "events", slowly)
            following = asyncio.ensure_future(anext(queue.feed(follow=True)))
            await asyncio.to_thread(begun.wait, 20)
            following.cancel()
            go_on.set()
            with pytest.raises(asyncio.CancelledError):
                await following
            await all_done(queue)
            assert waiting_now(queue.queue) == 0

    asyncio.run(main())


def test_jobs_of_a_lease_that_is_cancelled_go_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
            await queue.enqueue_many(f"k{n}" for n in range(40))
            in_hand = 0
            for n in range(40):
                leasing = asyncio.ensure_future(queue.lease(1))
                for _ in range(n % 8):
                    await asyncio.sleep(0)
                leasing.cancel()
                with suppress(asyncio.CancelledError):
                    in_hand += len(await leasing)
            await all_done(queue)
            assert (await queue.counts())["leased"] == in_hand

    asyncio.run(main())


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


def test_an_interrupt_ends_a_wait_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with Queue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
        receipt = queue.enqueue("Is a duck a bird?")
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                queue.wait(receipt, timeout=60)
        finally:
            signal.signal(signal.SIGALRM, before)
        assert waiting_now(queue) == 0


def test_where_no_thread_can_be_started_a_wait_says_so_and_the_next_one_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with Queue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
        receipt = queue.enqueue("Is a duck a bird?")
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises(QueueUnavailable, match="no thread to wait with"):
                queue.wait(receipt)
        assert waiting_now(queue) == 0
        assert not queue.wait(receipt, timeout=0)
        queue.drain(lanes=ScriptedLane())
        assert queue.wait(receipt, timeout=20)


def test_many_who_wait_for_the_same_are_looked_after_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
        receipts = queue.enqueue_many([f"k{n}" for n in range(PAGE_ROWS)], submission="s")
        waiting = [queue.ending_of("s") for _ in range(100)] + [queue.ending_of(receipts) for _ in range(100)]
        looks: list[int] = []
        standing = queue.store.standing
        monkeypatch.setattr(queue.store, "standing", lambda ids: looks.append(1) or standing(ids))
        first_pending = queue.store.first_pending
        monkeypatch.setattr(queue.store, "first_pending", lambda *of: looks.append(1) or first_pending(*of))
        queue.cancel([receipts[0].job_id])
        event = queue.feed(follow=True)
        assert next(event).kind
        queue.cancel([one.job_id for one in receipts])
        for one in waiting:
            one.result(20)
    assert len(looks) < 100, "not one look for each of the 200 who wait"


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
