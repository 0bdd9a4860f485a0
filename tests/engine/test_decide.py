"""A person's word on what nobody knows: decide, unpin, retry; and a cancel that comes before the first byte."""

from __future__ import annotations

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from mill_of_one import PAID, Mill, paid
from opened import Open

from millpond import Queue, UsageError
from millpond.engine import perform
from millpond.rules import effects as steps
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE
from millpond.testing import ScriptedLane

ASK: dict[str, Any] = {"kind": "callable", "tier": "paid", "price": PAID, "after_hold": "ask", "max_attempts": 1}


def two(*first: Any, second: Any = "ok") -> list[ScriptedLane]:
    scripts = {"first": first, "second": [second]}
    return [ScriptedLane(LanePolicy(name, **ASK), script) for name, script in scripts.items()]


@pytest.fixture
def asked(open_queue: Open) -> tuple[Queue, int, list[ScriptedLane]]:
    """A job whose call on the first of two lanes nobody knows the end of, and which waits for a person."""
    lanes = two("ambiguous", "ok")
    queue = open_queue(*(lane.policy for lane in lanes))
    job = queue.enqueue("q").job_id
    queue.drain(lanes=lanes)
    assert queue.job(job).wait_reason == "asked"
    return queue, job, lanes


def ledger(queue: Queue) -> list[tuple[str, str | None, str | None]]:
    return [(row.lane, row.outcome, row.resolution) for row in queue.ledger()]


@pytest.mark.parametrize(("choice", "lane"), [("same", "first"), ("pin", "second")])
def test_a_person_pays_again_on_the_same_lane_or_the_next(
    asked: tuple[Queue, int, list[ScriptedLane]], choice: Any, lane: str
) -> None:
    queue, job, lanes = asked
    assert queue.decide(job, choice).state == "ready"
    queue.drain(lanes=lanes)
    assert ledger(queue) == [("first", "ambiguous", choice), (lane, "ok", None)]
    unknown = next(iter(queue.ledger()))
    assert (unknown.cost, unknown.cost_is_estimate) == (Decimal("0.01"), True), "the worst case is booked"


def test_a_pin_that_leads_to_no_lane_is_refused_and_nothing_is_decided(open_queue: Open) -> None:
    lane = ScriptedLane(LanePolicy("only", **ASK), ["ambiguous", "ok"])
    queue = open_queue(lane.policy)
    job = queue.enqueue("q").job_id
    queue.drain(lanes=[lane])
    with pytest.raises(UsageError, match=f"job {job}: no lane is left for it after that; wanted same, which"):
        queue.decide(job, "pin")
    assert (queue.job(job).wait_reason, ledger(queue)) == ("asked", [("only", "ambiguous", None)])
    assert queue.report().paid_twice.calls == 0
    assert queue.decide(job, "same").state == "ready"


def test_a_person_does_not_pay_again(asked: tuple[Queue, int, list[ScriptedLane]]) -> None:
    queue, job, lanes = asked
    failed = queue.decide(job, "fail")
    assert (failed.state, failed.settled_by) == ("failed", "person")
    queue.drain(lanes=lanes)
    assert ledger(queue) == [("first", "ambiguous", "fail")]


def test_nothing_is_decided_of_a_job_of_which_all_is_known(open_queue: Open) -> None:
    queue = open_queue(LanePolicy("free", kind="callable", price=FREE))
    job = queue.enqueue("q").job_id
    for wrong in (lambda: queue.decide(job, "same"), lambda: queue.decide(job, "maybe")):  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="wanted one"):
            wrong()
    assert queue.job(job).state == "ready"


def test_who_retries_a_call_of_an_unknown_end_sees_its_worst_case_booked(
    asked: tuple[Queue, int, list[ScriptedLane]],
) -> None:
    queue, job, _ = asked
    queue.cancel(job)
    assert queue.retry(job).done == 1
    row = next(iter(queue.ledger()))
    assert (row.resolution, row.cost, row.cost_is_estimate) == ("same", Decimal("0.01"), True)


PINS: dict[str, Any] = {**ASK, "after_hold": "pin"}


@pytest.mark.parametrize(
    ("choice", "follows"),
    [
        ("pin", [("first", "ambiguous", "pin"), ("second", "ok", None)]),
        ("same", [("first", "ambiguous", "same"), ("first", "ok", None)]),
        ("fail", [("first", "ambiguous", "fail")]),
    ],
)
def test_a_person_decides_before_the_next_drain_does(open_queue: Open, choice: Any, follows: Any) -> None:
    """Ready for a lane that is stopped: the policy would pin it, and has not written so."""
    lanes = [ScriptedLane(LanePolicy(name, **PINS), script)
             for name, script in {"first": ["ambiguous", "ok"], "second": ["ok"]}.items()]  # fmt: skip
    queue = open_queue(*(lane.policy for lane in lanes))
    job = queue.enqueue("q").job_id
    queue.stop(["second"])
    queue.drain(lanes=lanes)
    assert (queue.job(job).state, queue.job(job).next_lane) == ("ready", "second")
    assert ledger(queue) == [("first", "ambiguous", None)]
    assert [why for why in queue.unpin(job).reasons if "millpond decide" in why]
    [need] = [need for need in queue.status().needs_you if need.name == "pays_again"]
    assert need.words == "1 job has a call of unknown end on lane first; the next drain pays again"
    assert queue.decide(job, choice).state == ("failed" if choice == "fail" else "ready")
    assert not [need for need in queue.status().needs_you if need.name == "pays_again"]
    if choice == "pin":  # what goes to the first lane again waits for no stop of the second
        queue.resume()
    queue.drain(lanes=lanes)
    assert ledger(queue) == follows


def test_an_unpinned_job_goes_back_to_its_first_lane(asked: tuple[Queue, int, list[ScriptedLane]]) -> None:
    queue, job, lanes = asked
    queue.decide(job, "pin")
    other = queue.enqueue("another").job_id
    report = queue.unpin([job, other, 99])
    assert (report.done, report.reasons) == (1, {"is not pinned": 1, "unknown job": 1})
    queue.cancel(other)
    queue.drain(lanes=lanes)
    assert ledger(queue)[-1] == ("first", "ok", None)
    assert queue.unpin(job).reasons == {"is done": 1}


def test_a_job_that_is_cancelled_before_the_first_byte_sends_nothing(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its ledger row and its call, with no hold."""
    [job] = mill.ask("q")
    record = perform._PERFORM[steps.Record]  # pyright: ignore[reportPrivateUsage]

    async def then_cancelled(flight: Any, effect: Any) -> Any:
        recorded = await record(flight, effect)
        await asyncio.to_thread(mill.store.cancel, [(job, 0)])
        return recorded

    monkeypatch.setitem(perform._PERFORM, steps.Record, then_cancelled)  # pyright: ignore[reportPrivateUsage]
    lane = paid()
    mill.drain(lane)
    assert (lane.calls, mill.state(job)) == ([], "cancelled")
    [row] = mill.store.attempts()
    assert (row.outcome, row.code, row.sent, row.cost) == ("retryable", "lease_lost", "no", Decimal(0))


def test_a_reply_that_comes_when_its_job_is_over_is_told(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    [job] = mill.ask("q")
    lane = paid()
    call = lane.call

    async def cancelled_meanwhile(request: Any) -> Any:
        await asyncio.to_thread(mill.store.cancel, [(job, 60_000)])
        return await call(request)

    monkeypatch.setattr(lane, "call", cancelled_meanwhile)
    mill.drain(lane)
    assert mill.state(job) == "cancelled"
    [late] = [one for one in mill.told if one.kind == "late"]
    assert (late.job_id, late.words) == (
        job, "its reply came when no job waited for it; it answers the next who asks for the same",
    )  # fmt: skip


def test_a_job_whose_drain_is_stopped_between_row_and_call_keeps_its_attempt(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    [job] = mill.ask("q")
    lane = paid(max_attempts=1)
    drainer = mill.drainer(lane)
    record = perform._PERFORM[steps.Record]  # pyright: ignore[reportPrivateUsage]

    async def then_stopped(flight: Any, effect: Any) -> Any:
        recorded = await record(flight, effect)
        drainer.stop()
        drainer.stop()
        return recorded

    with monkeypatch.context() as patched:
        patched.setitem(perform._PERFORM, steps.Record, then_stopped)  # pyright: ignore[reportPrivateUsage]
        asyncio.run(drainer.run())
    assert (mill.state(job), len(lane.calls)) == ("ready", 0)
    assert [row.code for row in mill.store.attempts()] == ["stopped"]
    assert mill.drain(lane).done == 1


def test_who_asks_again_for_a_call_that_a_cancel_kept_from_leaving_has_its_attempt(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call is held for the key when it is asked for again, so that job takes it over."""
    [job] = mill.ask("q")
    lane = paid(max_attempts=1)
    record = perform._PERFORM[steps.Record]  # pyright: ignore[reportPrivateUsage]
    heirs: list[int] = []

    def cancel_and_ask_again() -> None:
        mill.store.cancel([(job, 60_000)])
        heirs.extend(mill.ask("q"))

    async def then_cancelled(flight: Any, effect: Any) -> Any:
        recorded = await record(flight, effect)
        if not heirs:
            await asyncio.to_thread(cancel_and_ask_again)
        return recorded

    monkeypatch.setitem(perform._PERFORM, steps.Record, then_cancelled)  # pyright: ignore[reportPrivateUsage]
    mill.drain(lane)
    assert [row.code for row in mill.store.attempts()] == ["lease_lost", "ok"]
    assert (len(lane.calls), [mill.state(heir) for heir in heirs]) == (1, ["done"])
