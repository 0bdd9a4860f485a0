"""How a drain ends that is stopped from outside: nothing that a call brought is lost, and nobody drains beside it."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from millpond import AsyncQueue, Policy, Prompt, Queue, QueueBusy, Reply, UsageError
from millpond.engine import drain
from millpond.lanes import CallableLane
from millpond.rules.policy import Backoff
from millpond.rules.price import PriceRule
from millpond.testing import Held, ScriptedLane

CENT = Decimal("0.01")
Outcomes = list[tuple[str | None, str | None]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "pond"


@pytest.fixture
def queue(home: Path) -> Iterator[Queue]:
    with Queue.open(home, policy=Policy(idle_exit_ms=200)) as queue:
        yield queue


def paid(fn: Callable[..., Any], **more: Any) -> CallableLane:
    return CallableLane(fn, price="0.01", effects=True, **more)


def outcomes(queue: Queue) -> Outcomes:
    return [(attempt.outcome, attempt.code) for attempt in queue.ledger()]


# --- the loop is cleared under it


def test_replies_that_were_returned_are_written_before_the_loop_closes(queue: Queue, home: Path) -> None:
    """Nobody awaits the drain: the program ends, and `asyncio.run` cancels every task that it finds."""
    queue.enqueue_many(f"q{n}" for n in range(50))
    returned: list[str] = []

    async def main() -> None:
        go, all_returned = asyncio.Event(), asyncio.Event()
        began = asyncio.Semaphore(0)

        async def answer(work: Prompt) -> str:
            began.release()
            await go.wait()
            returned.append(work.task)
            if len(returned) == 50:
                all_returned.set()
            return "reply"

        own = await AsyncQueue.open(home, policy=Policy())
        tasks.append(asyncio.create_task(own.drain(lanes=paid(answer, max_in_flight=50))))
        for _ in range(50):
            await began.acquire()
        go.set()
        await all_returned.wait()

    tasks: list[asyncio.Task[Any]] = []
    asyncio.run(main())
    assert tasks[0].cancelled()
    assert set(outcomes(queue)) == {("ok", "ok")}
    assert (queue.counts()["done"], queue.drainer()) == (50, None)


@pytest.mark.parametrize(("grace_ms", "ended"), [(30_000, ("ok", "ok")), (50, ("ambiguous", "given_up"))])
def test_a_program_that_ends_gives_calls_in_flight_their_grace(
    queue: Queue, home: Path, grace_ms: int, ended: tuple[str, str]
) -> None:
    queue.enqueue("a")

    async def main() -> None:
        began = asyncio.Event()

        async def answer(work: Prompt) -> str:
            began.set()
            await asyncio.sleep(0.4 if grace_ms > 1_000 else 60)
            return "reply"

        own = await AsyncQueue.open(home, policy=Policy(grace_ms=grace_ms))
        tasks.append(asyncio.create_task(own.drain(lanes=paid(answer), daemon=True)))
        await began.wait()

    tasks: list[asyncio.Task[Any]] = []
    asyncio.run(main())
    assert tasks[0].cancelled()
    assert (outcomes(queue), queue.drainer(), queue.store.living_owners()) == ([ended], None, [])


def test_a_handlers_own_timeout_still_ends_what_it_awaits(queue: Queue) -> None:
    async def answer(work: Prompt) -> str:
        try:
            async with asyncio.timeout(0.01):
                await never()
        except TimeoutError:
            return "gave up waiting"
        return ""

    queue.enqueue("a")
    assert queue.drain(lanes=paid(answer)).done == 1


@pytest.mark.parametrize("times", [1, 2])
def test_a_task_that_cancels_all_others_gives_calls_in_flight_their_grace(queue: Queue, home: Path, times: int) -> None:
    """What programs do that end by themselves, and `asyncio.run` once more after them."""
    queue.enqueue_many(["a", "b"])

    async def main() -> None:
        slow, returned = asyncio.Event(), asyncio.Event()

        async def answer(work: Prompt) -> str:
            if work.task == "b":
                slow.set()
                await asyncio.sleep(0.3)
                return "late reply"
            await slow.wait()
            returned.set()
            return "reply"

        async with AsyncQueue.open(home, policy=Policy()) as own:
            drains = asyncio.create_task(own.drain(lanes=paid(answer)))
            await returned.wait()
            for _ in range(times):
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                await asyncio.sleep(0)
            await asyncio.wait({drains})
            assert drains.cancelled()

    asyncio.run(main())
    assert outcomes(queue) == [("ok", "ok"), ("ok", "ok")]


def test_a_call_that_was_cut_is_unknown_whatever_it_raises_then(queue: Queue, home: Path) -> None:
    """The lane declares no effects, where any other exception is `retryable` and costs nothing."""
    queue.enqueue("a")

    async def main() -> None:
        began = asyncio.Event()

        async def answer(work: Prompt) -> str:
            began.set()
            try:
                await never()
            except asyncio.CancelledError:
                raise ConnectionError("the client was closed") from None
            return ""

        async with AsyncQueue.open(home, policy=Policy(grace_ms=0)) as own:
            drains = asyncio.create_task(own.drain(lanes=CallableLane(answer, price="0.01")))
            await began.wait()
            drains.cancel()
            await asyncio.wait({drains})

    asyncio.run(main())
    assert outcomes(queue) == [("ambiguous", "given_up")]


# --- the queue is closed under it


def test_a_queue_that_is_closed_ends_its_drain_first(home: Path) -> None:
    queue = Queue.open(home, policy=Policy())
    queue.enqueue_many(["a", "b"])
    began, closing = threading.Event(), threading.Event()

    def answer(work: Prompt) -> str:
        began.set()
        assert closing.wait(20)
        return "reply"

    summaries: list[Any] = []
    lane = paid(answer, max_in_flight=1)
    draining = threading.Thread(target=lambda: summaries.append(queue.drain(lanes=lane, daemon=True)))
    draining.start()
    assert began.wait(20)
    threading.Timer(0.1, closing.set).start()
    queue.close()
    draining.join(20)
    assert (summaries[0].done, summaries[0].ready) == (1, 1)
    with Queue.open(home) as again:
        assert (outcomes(again), again.store.living_owners()) == ([("ok", "ok")], [])


def test_who_leaves_the_block_of_a_queue_ends_its_drain_first(home: Path) -> None:
    async def main() -> None:
        lane = ScriptedLane("free", [Held("ok")])
        async with AsyncQueue.open(home, policy=Policy()) as queue:
            await queue.enqueue("a")
            drains = asyncio.create_task(queue.drain(lanes=lane, daemon=True))
            await lane.began()
            asyncio.get_running_loop().call_later(0.1, lane.let_go)
        assert (await drains).done == 1

    asyncio.run(main())


@pytest.mark.parametrize("stops", [1, 2])
def test_to_close_the_queue_is_no_second_stop(home: Path, stops: int) -> None:
    """How services end: cancel the task of the drain, then leave the block. Only who stops it twice cuts the call."""

    async def main() -> None:
        lane = ScriptedLane("free", [Held("ok")])
        async with AsyncQueue.open(home, policy=Policy()) as queue:
            await queue.enqueue("a")
            drains = asyncio.create_task(queue.drain(lanes=lane, daemon=True))
            await lane.began()
            for _ in range(stops):
                drains.cancel()
                await asyncio.sleep(0)
            asyncio.get_running_loop().call_later(0.1, lane.let_go)
        await asyncio.wait({drains})

    asyncio.run(main())
    with Queue.open(home) as again:
        assert outcomes(again) == [("ok", "ok") if stops == 1 else ("ambiguous", "given_up")]


def test_a_stop_after_the_queue_began_to_close_is_the_first(queue: Queue) -> None:
    queue.enqueue("a")
    lane = ScriptedLane("free", [Held("ok")])

    async def main() -> None:
        with queue.draining(lanes=lane) as drainer:
            drains = asyncio.create_task(drainer.run())
            await lane.began()
            drainer.finish()
            drainer.stop()
            asyncio.get_running_loop().call_later(0.1, lane.let_go)
            assert (await drains).done == 1

    asyncio.run(main())


def test_a_queue_is_not_closed_on_the_loop_that_drains_it(home: Path) -> None:
    async def main() -> None:
        lane = ScriptedLane("free", [Held("ok")])
        async with AsyncQueue.open(home, policy=Policy()) as queue:
            await queue.enqueue("a")
            drains = asyncio.create_task(queue.drain(lanes=lane))
            await lane.began()
            with pytest.raises(UsageError, match="on the event loop of this thread"):
                queue.queue.close()
            assert not drains.done()
            lane.let_go()
            assert (await drains).done == 1

    asyncio.run(main())


def test_whoever_holds_a_drainer_may_close_the_queue_once_it_has_run(home: Path) -> None:
    queue = Queue.open(home, policy=Policy())
    queue.enqueue("a")
    with queue.draining(lanes=ScriptedLane()) as drainer:
        assert asyncio.run(drainer.run()).done == 1
        queue.close()
        assert queue.drainer() is None


def test_what_a_drain_could_not_give_back_is_taken_back_by_the_next(queue: Queue, home: Path) -> None:
    """Its store is gone in the middle of a call: no end of it can be written, nor that its owner has left."""
    queue.enqueue("a")

    def answer(work: Prompt) -> str:
        broken.store.close()
        return "lost"

    with Queue.open(home, policy=Policy()) as broken, pytest.raises(UsageError, match="was closed by this program"):
        broken.drain(lanes=paid(answer))
    assert queue.counts()["leased"] == 1
    assert queue.drain(lanes=lambda work: "again").done == 1
    assert [code for _, code in outcomes(queue)] == ["died", "ok"]


def test_what_a_worker_could_not_give_back_is_taken_back_by_the_next(
    queue: Queue, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("a")
    worker = Queue.open(home, policy=Policy())
    assert len(worker.lease()) == 1

    def broken(*_: Any, **__: Any) -> None:
        raise QueueBusy("somebody keeps it")

    with monkeypatch.context() as patch:
        patch.setattr(type(worker.store), "reclaim", broken)
        with pytest.raises(QueueBusy):
            worker.close()
    assert len(queue.lease()) == 1
    worker.close()


# --- interrupts in the user's code


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_of_an_async_callable_ends_the_drain_and_leaves_its_call_unknown(
    queue: Queue, interrupt: type[BaseException]
) -> None:
    queue.enqueue_many(["a", "b", "c"])
    calls: list[str] = []

    async def answer(work: Prompt) -> str:
        calls.append(work.task)
        raise interrupt

    with pytest.raises(interrupt):
        queue.drain(lanes=CallableLane(answer, max_in_flight=1))
    assert (calls, outcomes(queue)) == (["a"], [("ambiguous", "said_ambiguous")])
    assert (queue.drainer(), queue.counts()["leased"]) == (None, 0)


def test_an_interrupt_stops_a_drain_on_a_loop_that_lives_on(queue: Queue) -> None:
    """As in a notebook: the interrupt ends the cell, and the next one finds the loop with the drain still on it."""
    queue.enqueue_many(["a", "b", "c"])
    calls: list[str] = []

    async def answer(work: Prompt) -> str:
        calls.append(work.task)
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    with queue.draining(lanes=CallableLane(answer, max_in_flight=1)) as drainer:
        drains = loop.create_task(drainer.run())
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(drains)
        assert loop.run_until_complete(drains).reason == "signal"
    loop.close()
    assert (calls, queue.counts()["leased"]) == (["a"], 0)


# --- lanes that do not close


class Stubborn(ScriptedLane):
    """A lane that cannot be closed: it raises, or never comes back."""

    def __init__(self, name: str, closes: Callable[[], Any]) -> None:
        super().__init__(name)
        self._closes = closes

    async def close(self) -> None:
        await self._closes()


async def refuse() -> None:
    raise OSError("no such connection")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(("closes", "words"), [(refuse, "OSError: no such connection"), (never, "did not close")])
def test_a_lane_that_does_not_close_takes_nothing_from_the_others(
    queue: Queue, closes: Any, words: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain, "CLOSE_S", 0.05)
    queue.enqueue("a")
    first, second = Stubborn("first", closes), ScriptedLane("second")
    with caplog.at_level(logging.WARNING):
        assert queue.drain(lanes=[first, second]).done == 1
    assert second.closed == 1
    assert f"lane first {'could not be closed: ' if closes is refuse else ''}{words}" in caplog.text


def test_a_cancel_while_lanes_close_leaves_none_open(home: Path) -> None:
    async def main() -> None:
        closing = asyncio.Event()

        async def slowly() -> None:
            closing.set()
            await asyncio.sleep(0.2)
            closed.append("first")

        async with AsyncQueue.open(home, policy=Policy()) as queue:
            second = ScriptedLane("second")
            drains = asyncio.create_task(queue.drain(lanes=[Stubborn("first", slowly), second]))
            await closing.wait()
            drains.cancel()
            await asyncio.wait({drains})
            assert (drains.cancelled(), closed, second.closed) == (True, ["first"], 1)

    closed: list[str] = []
    asyncio.run(main())


# --- the price of it all


def test_a_call_whose_reply_came_by_another_way_was_not_paid_twice(home: Path) -> None:
    """The first call is given up and paid again, then its reply is handed in after all: only the second is beyond."""

    async def main() -> None:
        lane = ScriptedLane("paid", ["ambiguous", Held("ok")])
        price = PriceRule("stated", call_usd=CENT)
        lane.policy = replace(lane.policy, price=price, after_hold="same", max_attempts=3)
        policy = Policy({"paid": lane.policy}, backoff=Backoff(1, 5), idle_exit_ms=200)
        async with AsyncQueue.open(home, policy=policy) as queue:
            await queue.enqueue("a")
            drains = asyncio.create_task(queue.drain(lanes=lane))
            await lane.began(2)
            assert await queue.accept(lane.calls[0].uid, Reply("late"))
            lane.let_go()
            summary = await drains
            assert (summary.paid_twice, summary.paid_twice_usd) == (1, CENT)
            assert (await queue.report()).paid_twice.calls == 1

    asyncio.run(main())


def test_cancels_are_counted_and_never_below_none(queue: Queue) -> None:
    old = queue.enqueue_many(f"old{n}" for n in range(5))
    queue.cancel([receipt.job_id for receipt in old])
    _, second = queue.enqueue_many(["first", "second"])

    def answer(work: Prompt) -> str:
        if work.task == "first":
            queue.cancel(second.job_id)
            queue.retry([receipt.job_id for receipt in (*old, second)])
        return "yes"

    summary = queue.drain(lanes=CallableLane(answer, max_in_flight=1))
    assert (summary.done, summary.cancelled) == (7, 1)
