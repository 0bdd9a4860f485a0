"""Who waits, and who gives up waiting: no thread for each, and nobody is left behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

from millpond import AsyncQueue, Event, Policy, Queue, QueueUnavailable, UsageError
from millpond.async_queue import THREADS
from millpond.store.reader import PAGE_ROWS
from millpond.testing import ScriptedLane


def waiting_now(queue: Queue) -> int:
    """How many futures a queue still looks after."""
    return len(queue._waiters._waiters)  # pyright: ignore[reportPrivateUsage]


async def all_done(queue: AsyncQueue) -> None:
    """Wait until every thread of the queue is free at one time: whatever was begun before has ended."""
    together = threading.Barrier(THREADS)
    await asyncio.gather(*(queue.on_thread(together.wait) for _ in range(THREADS)))


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
            # One that looks for all of them, one that beats, two that write for the drain (into the queue and into the
            # spend book), those that speak to the database.
            assert max(threads) <= before + 8

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
