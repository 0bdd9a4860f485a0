"""The public face as a program that is only type-checked: every public name and method of Queue, with its types."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, assert_type

from pydantic import BaseModel

from millpond import (
    Ambiguous,
    AsyncQueue,
    Attempt,
    BudgetClosed,
    BulkReport,
    Estimate,
    Event,
    Image,
    Job,
    KeyConflict,
    Lease,
    LeaseLost,
    LockHeld,
    MillpondError,
    MissingKey,
    Permanent,
    Policy,
    Prompt,
    Queue,
    QueueBusy,
    QueueUnavailable,
    Receipt,
    Reply,
    Report,
    Request,
    Result,
    Retryable,
    Saturated,
    SchemaTooNew,
    SettingsError,
    Status,
    Submission,
    Summary,
    Undeliverable,
    UnknownLane,
    UsageError,
    __version__,
    batch_lines,
    read,
    results_table,
)
from millpond.engine.drain import Drainer
from millpond.engine.drain_lock import Holder
from millpond.lanes import CallableLane
from millpond.paged import Paged
from millpond.rules.job import Disposition, Error, Outcome, ServiceClass, State, Usage
from millpond.rules.stops import Stop, Stops
from millpond.testing import LANE_CASES, FakeClock, ScriptedLane, exercise_lane, run_lane_case


class Greet(BaseModel):
    name: str


class Frame:
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        raise NotImplementedError


def shout(work: Prompt, *, idempotency_key: str, attempt_no: int, deadline_ms: int) -> Reply:
    if attempt_no == 1:
        raise Saturated(after_s=2.5)
    return Reply(text=work.task.upper(), usage=Usage(3, 5))


async def greet(command: Greet) -> str:
    await asyncio.sleep(0)
    return f"Hello {command.name}"


def values() -> None:
    prompt = Prompt(
        "Is a duck a bird?",
        intent="label",
        system="Answer in one word.",
        reasoning="low",
        messages=[{"role": "user", "content": "…"}],
        schema={"type": "object"},
        tools=[{"type": "function"}],
        images=(Image(data=b"", media_type="image/png"), Path("duck.png"), "https://example.org/duck.png"),
        params={"temperature": 0},
        model="gpt-5-mini",
        namespace="team-a",
    )
    request = Request(prompt, custom_id="a", carried={"legs": 2}, key="mine-1", label="birds", tags=["x"])
    assert_type(prompt.task, str)
    assert_type(prompt.model, str | None)
    assert_type(request.tags, Sequence[str])
    assert_type(request.carried, Mapping[str, Any] | None)
    assert_type(__version__, str)


def door(queue: Queue, policy: Policy) -> None:
    assert_type(Queue.open(), Queue)
    assert_type(Queue.open("pond", policy=policy, registry={"greet": Greet}), Queue)
    receipt = queue.enqueue(
        Prompt("Is a duck a bird?"),
        priority=5,
        service_class="realtime",
        due="2h",
        not_before=datetime.now(UTC),
        lane="free",
        sample=1,
        dedup=True,
        fresh=False,
        custom_id="a",
        carried={"legs": 2},
        label="birds",
        tags=("x",),
        trace_id="t",
    )
    assert_type(receipt, Receipt)
    assert_type(receipt.disposition, Disposition)
    assert_type(receipt.answered_ms, int | None)
    queue.enqueue("a text", due=timedelta(hours=2), key="mine-1")
    queue.enqueue({"task": "a mapping"})
    queue.enqueue({"body": {"messages": [{"role": "user", "content": "an OpenAI request"}]}})
    queue.enqueue(Request("a request"))
    queue.enqueue(Greet(name="Ada"))
    assert_type(queue.enqueue_many(["one", Prompt("two"), {"task": "three"}], submission="s", each=True), list[Receipt])
    found = queue.estimate(["one", Prompt("two"), {"task": "three"}], each=True, label="birds")
    assert_type(found, Estimate)
    assert_type(found.in_words(), str)
    assert_type(found.worst_usd, Decimal | None)
    assert_type(found.lanes[0].tokens_in.expected, int | None)
    assert_type(batch_lines(queue, 1), Iterator[dict[str, Any]])
    rows = read("animals.csv", format="csv", map={"custom_id": "id"}, task="…", system=None, schema={}, params={})
    assert_type(rows, Iterator[Request])
    queue.enqueue_many(rows, strict=True)
    queue.enqueue_many(read(Frame(), task="{text}"))
    results_table(queue, "s", failed=True, since="2h").to_pandas()


def looking(queue: Queue, receipt: Receipt) -> None:
    assert_type(queue.job(1), Job)
    assert_type(queue.job(1).state, State)
    assert_type(queue.job(1).service_class, ServiceClass)
    assert_type(queue.job(1).cost, Decimal | None)
    assert_type(queue.jobs("state:failed", limit=10, before_id=7), list[Job])
    assert_type(queue.submission("s"), Submission)
    assert_type(queue.submissions(), list[Submission])
    assert_type(queue.counts(), dict[str, int])
    assert_type(queue.status(), Status)
    assert_type(queue.status().in_words(), str)
    report = queue.report()
    assert_type(report, Report)
    assert_type(report.in_words(), str)
    assert_type(report.tokens_per_artifact, float | None)
    assert_type(report.paid_twice.known_usd, Decimal)
    assert_type(report.by_lane["free"].ambiguous_rate, float | None)
    assert_type(report.published.duplicates, Mapping[str, int])
    assert_type(queue.explain(1), str)
    assert_type(queue.results("s", failed=True, since="2h"), Paged[Result])
    result = queue.result(receipt)
    assert_type(result, Result | None)
    if result is not None:
        assert_type(result.text, str | None)
        assert_type(result.error, Error | None)
        assert_type(result.cost, Decimal | None)
    assert_type(queue.results("s", follow=True), Paged[Result])
    assert_type(queue.wait(receipt, timeout=1.5), bool)
    queue.wait([receipt, 7])
    queue.wait("s")
    queue.wait(queue.submission(1))
    queue.wait(timeout=1)
    assert_type(queue.submissions(limit=5)[0].states, Mapping[str, int])
    assert_type(queue.submission("s").dispositions, Mapping[str, int])
    attempts = queue.ledger(1)
    assert_type(queue.ledger(last=5), Paged[Attempt])
    assert_type(attempts, Paged[Attempt])
    assert_type(next(attempts).outcome, Outcome | None)
    feed: Iterator[Event] = queue.feed()
    assert_type(next(queue.feed(after="12")).cursor, str)
    assert_type(next(feed), Event)


def persons(queue: Queue) -> None:
    assert_type(queue.cancel(1), BulkReport)
    assert_type(queue.cancel(queue.submission("s")).goes_on, int)
    assert_type(queue.retry(queue.submission("s"), dry_run=True).dry_run, bool)
    assert_type(queue.retry("state:failed", lane="paid", dry_run=True), BulkReport)
    assert_type(queue.retry([1, 2]).reasons, Mapping[str, int])
    assert_type(queue.unpin("state:ready", dry_run=True), BulkReport)
    assert_type(queue.decide(1, "same"), Job)
    assert_type(queue.decide_many("state:asked", "same"), BulkReport)
    assert_type(queue.reconcile(), Summary)
    queue.resume_lane("free")
    assert_type(queue.stop("paid"), Stops)
    assert_type(queue.stop(["free"]).changed, tuple[Stop, ...])
    assert_type(queue.resume().standing[0].lane, str | None)
    assert_type(queue.status().stopped, tuple[Stop, ...])


def draining(queue: Queue, policy: Policy) -> None:
    summary = queue.drain(policy, lanes=shout, max_jobs=3, until_empty=True)
    assert_type(summary, Summary)
    assert_type(summary.paid_twice_usd, Decimal | None)
    assert_type(summary.untold, int)
    assert_type(summary.holder, str | None)
    assert_type(
        summary.reason, Literal["empty", "idle", "max_jobs", "max_iters", "budget", "stopped", "signal", "lock_held"]
    )
    queue.drain(lanes=greet, daemon=True, max_iters=2)
    queue.drain(lanes=[CallableLane(shout, price="0.01", serial=True), ScriptedLane("free", ["retryable"]), "paid"])
    queue.drain(lanes={"mine": shout, "scripted": ScriptedLane()})
    queue.drain(lanes="free")
    with queue.draining(lanes=shout) as drainer:
        assert_type(drainer, Drainer)
        assert_type(asyncio.run(drainer.run()), Summary)


def working(queue: Queue) -> None:
    for lease in queue.lease(10, lanes=["free"]):
        assert_type(lease, Lease)
        attempt = queue.record(lease, "free")
        assert_type(attempt, str | None)
        if attempt is None:
            queue.release(lease)
            continue
        queue.renew(lease)
        try:
            assert_type(queue.settle(lease, attempt, Reply("yes")), bool)
            queue.settle(lease, attempt, "yes")
            queue.settle(lease, attempt, Retryable("not yet", after_s=2))
        except LeaseLost as lost:
            assert_type(lost.accepted, bool)
        assert_type(queue.accept(attempt, Reply("yes")), bool)


async def on_a_loop(policy: Policy) -> None:
    async with AsyncQueue.open("pond", policy=policy) as pond:
        assert_type(pond, AsyncQueue)
        receipt = await pond.enqueue("Is a duck a bird?", priority=5, due="2h")
        assert_type(receipt, Receipt)
        assert_type(await pond.enqueue_many(["one", Prompt("two")], submission="s"), list[Receipt])
        assert_type(await pond.estimate(["one", "two"]), Estimate)
        assert_type(await pond.job(1), Job)
        assert_type(await pond.counts(), dict[str, int])
        assert_type(await pond.result(receipt), Result | None)
        assert_type(await pond.wait([receipt], timeout=1.5), bool)
        assert_type(pond.results("s", follow=True), AsyncIterator[Result])
        async for event in pond.feed(after="12", follow=True):
            assert_type(event, Event)
        assert_type([attempt async for attempt in pond.ledger(1)], list[Attempt])
        assert_type(await pond.cancel("state:ready", dry_run=True), BulkReport)
        assert_type(await pond.drain(lanes=greet, until_empty=True), Summary)
        async with pond.draining(lanes=shout) as drainer:
            assert_type(await drainer.run(), Summary)
        for lease in await pond.lease(3, lanes=["free"]):
            assert_type(await pond.record(lease, "free"), str | None)
        await pond.enqueue(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        await pond.job("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await AsyncQueue.open("pond"), AsyncQueue)
    await pond.close()


def errors() -> None:
    usage: list[type[UsageError]] = [UnknownLane, KeyConflict]
    settings: list[type[SettingsError]] = [SchemaTooNew]
    ours: list[type[MillpondError]] = [*usage, *settings, MissingKey, LeaseLost, LockHeld, QueueBusy, QueueUnavailable]
    ours += [BudgetClosed, Undeliverable, Retryable, Saturated, Ambiguous, Permanent]
    assert_type(ours[0]("words").exit_code, int)
    assert_type(LockHeld("words", holder="pid 1").holder, str)


def closing() -> None:
    with Queue.open("pond") as queue:
        assert_type(queue, Queue)
        assert_type(queue.drainer(), Holder | None)
    queue.close()
    assert_type(FakeClock().advance(5), int)
    exercise_lane(ScriptedLane, faults={"silence": lambda: ScriptedLane("free")}, keys_seen=lambda lane: [])
    assert_type([run_lane_case(case, ScriptedLane) for _, case in LANE_CASES], list[bool])


def refused(queue: Queue) -> None:
    """What a checker must refuse; an ignore that is not needed is a fault of its own."""
    queue.enqueue(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.enqueue("a text", due=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.enqueue("a text", service_class="slow")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.drain(lanes=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.results(since=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.wait(None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Queue.open("pond", registry={"greet": 7})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    CallableLane(shout, price=[])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
