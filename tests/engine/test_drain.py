"""The drainer: journeys performed on a real store, with lanes that answer by a script."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from mill_of_one import Mill, during, free, paid

from millpond.engine.drain import Until
from millpond.rules.evidence import Evidence
from millpond.rules.job import Prompt, Reply, Usage
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held

HOLD = {"realtime": 60_000, "batch": 60_000}


def test_a_job_goes_from_enqueue_to_its_result(mill: Mill) -> None:
    [job] = mill.ask("why?")
    summary = mill.drain(free([Reply("because", usage=Usage(3, 5))]))
    [result] = mill.store.results()
    assert (result.text, result.lane, result.tokens_in, result.tokens_out) == ("because", "free", 3, 5)
    assert (summary.done, summary.attempts, summary.reason, mill.state(job)) == (1, 1, "empty", "done")


def test_requests_of_equal_work_are_answered_by_one_call(mill: Mill) -> None:
    lane = paid()
    mill.ask("same", "same", "same", "other")
    summary = mill.drain(lane)
    assert len(lane.calls) == 2
    assert (summary.done, summary.saved_by_dedup, summary.saved_usd) == (2, 2, Decimal("0.02"))
    assert (summary.spent_usd, summary.paid_twice) == (Decimal("0.02"), 0)


def test_retryable_stays_on_its_lane_within_its_attempts_then_goes_on(mill: Mill) -> None:
    first, second = free(["retryable", "retryable"], max_attempts=2), paid()
    mill.ask("a")
    assert mill.drain(first, second).done == 1
    assert mill.ledger() == [("free", "retryable", None), ("free", "retryable", None), ("paid", "ok", None)]


def test_permanent_fails_and_never_reaches_a_lane_that_costs(mill: Mill) -> None:
    second = paid()
    [job] = mill.ask("a")
    assert mill.drain(free(["permanent"]), second).failed == 1
    assert (mill.state(job), second.calls) == ("failed", [])


def test_the_third_seeds_lane_pins_on_permanent(mill: Mill) -> None:
    mill.ask("a")
    assert mill.drain(free(["permanent"], pin_on=frozenset({"ambiguous", "permanent"})), paid()).done == 1


def test_unfit_goes_to_the_next_lane_at_once(mill: Mill) -> None:
    mill.ask("a")
    assert mill.drain(free(["unfit"], max_attempts=5), paid()).done == 1
    assert mill.ledger() == [("free", "unfit", None), ("paid", "ok", None)]


def test_a_model_named_by_the_caller_is_served_only_where_it_is_offered(mill: Mill) -> None:
    small = ScriptedLane(LanePolicy("small", model="small"))
    large = ScriptedLane(LanePolicy("large", model="large"))
    for lane in (small, large):
        lane.policy = replace(lane.policy, kind="chat")
    ids = mill.ask(Prompt("q", model="small"), Prompt("q", model="large"), Prompt("q", model="absent"))
    mill.drain(small, large)
    assert [mill.state(job) for job in ids] == ["done", "done", "failed"]
    assert (len(small.calls), len(large.calls)) == (1, 1)


def test_a_saturated_lane_is_closed_and_its_jobs_cost_no_writes(mill: Mill) -> None:
    lane = free([Evidence(status=429, headers={"retry-after": "3600"})], max_in_flight=1)
    mill.ask(*(f"q{n}" for n in range(50)))
    summary = mill.drain(lane)
    events = [event.kind for event in mill.store.events(limit=1000)]
    assert (len(lane.calls), summary.reason, summary.ready) == (1, "idle", 50)
    assert events.count("lease") == 1
    [job] = [row for row in mill.store.jobs() if row.id == 1]
    assert (job.state, job.attempts_made) == ("ready", 0)
    assert mill.store.closed_lanes()["free"].closed_by == "saturated"


def test_a_saturated_lane_goes_on_when_it_opens(mill: Mill) -> None:
    lane = free([Evidence(status=429, headers={"retry-after-ms": "50"})], max_in_flight=1)
    mill.ask("a", "b")
    assert mill.drain(lane).done == 2
    assert [outcome for _, outcome, _ in mill.ledger()] == ["saturated", "ok", "ok"]


def test_a_lane_out_of_money_is_closed_until_a_person_opens_it(mill: Mill) -> None:
    lane = paid([Evidence(status=429, code="insufficient_quota")], max_in_flight=1)
    [first, _] = mill.ask("a", "b")
    summary = mill.drain(lane, until=Until(until_empty=True))
    assert (len(lane.calls), summary.reason, mill.state(first)) == (1, "idle", "ready")
    assert mill.store.closed_lanes()["paid"].closed_until_ms is None
    mill.store.open_lane("paid")
    assert mill.drain(lane).done == 2


def test_a_local_server_that_is_not_running_is_closed_after_refusals_in_a_row(mill: Mill) -> None:
    refused = Evidence(sent="no", failure="refused", message="connection refused")
    lane = ScriptedLane(
        LanePolicy("free", kind="callable", price=FREE, base_url="http://127.0.0.1:1/v1", max_attempts=50,
                   max_in_flight=1), then=refused)  # fmt: skip
    mill.ask("a")
    summary = mill.drain(lane, lane_down_after=3, max_attempts_per_job=50)
    assert (len(lane.calls), summary.ready + summary.waiting) == (3, 1)
    assert "3 times in a row" in mill.store.closed_lanes()["free"].reason


def test_past_the_soft_timeout_the_late_reply_within_the_hold_answers(mill: Mill) -> None:
    first, second = free([Held(Reply("late"))], soft_timeout_ms=20, hold_ms=HOLD), paid()
    [job] = mill.ask("a")

    async def act() -> None:
        await mill.hears("held")
        assert mill.state(job) == "waiting/held"
        first.let_go()

    assert asyncio.run(during(mill.drainer(first, second).run(), act)).done == 1
    assert (mill.ledger(), second.calls) == ([("free", "ok", "late")], [])


@pytest.mark.parametrize(("after_hold", "next_lane"), [("pin", "paid"), ("same", "free")])
def test_past_the_hold_the_policy_decides_and_the_late_reply_is_kept(
    mill: Mill, after_hold: Any, next_lane: str
) -> None:
    hold = {"realtime": 30, "batch": 30}
    first = free([Held(Reply("late"))], soft_timeout_ms=20, hold_ms=hold, after_hold=after_hold)
    second = paid()
    mill.ask("a")

    async def act() -> None:
        await mill.hears("unheard")
        await mill.hears("done")
        first.let_go()

    summary = asyncio.run(during(mill.drainer(first, second).run(), act))
    assert (summary.done, summary.attempts) == (1, 2)
    assert mill.ledger() == [("free", "ok", "late"), (next_lane, "ok", None)]
    [result] = mill.store.results()
    assert result.text == "answer to a"


def test_without_a_hold_the_job_is_pinned_at_once(mill: Mill) -> None:
    none = {"realtime": 0, "batch": 0}
    first, second = free([Held()], soft_timeout_ms=20, hold_ms=none), paid()
    mill.ask("a")

    async def act() -> None:
        await mill.hears("done")
        first.let_go()

    assert asyncio.run(during(mill.drainer(first, second).run(), act)).done == 1
    assert len(second.calls) == 1


def test_a_call_cut_after_it_was_sent_is_ambiguous_and_goes_by_policy(mill: Mill) -> None:
    mill.ask("a")
    assert mill.drain(free([Evidence(sent="yes", failure="reset")]), paid()).done == 1
    assert mill.ledger() == [("free", "ambiguous", "pin"), ("paid", "ok", None)]


def test_an_ambiguous_call_on_a_priced_lane_is_counted_as_perhaps_paid_twice(mill: Mill) -> None:
    lane = paid([Evidence(sent="yes", failure="reset")], after_hold="same", max_attempts=3)
    mill.ask("a")
    summary = mill.drain(lane)
    assert (summary.done, summary.paid_twice, summary.paid_twice_usd) == (1, 1, Decimal("0.01"))
    [first, _] = list(mill.store.attempts())
    assert (first.cost, first.cost_is_estimate) == (Decimal("0.01"), True)


def test_the_policy_that_does_not_pay_again_fails_the_job(mill: Mill) -> None:
    lane = paid([Evidence(sent="yes", failure="reset")], after_hold="fail")
    [job] = mill.ask("a")
    assert mill.drain(lane).failed == 1
    assert (mill.state(job), len(lane.calls)) == ("failed", 1)


def test_the_policy_that_asks_leaves_the_job_for_a_person(mill: Mill) -> None:
    lane = paid([Evidence(sent="yes", failure="reset")], after_hold="ask")
    [job] = mill.ask("a")
    assert mill.drain(lane, until=Until(until_empty=True)).reason == "idle"
    assert mill.state(job) == "waiting/asked"


def test_a_lane_that_raises_leaves_its_call_ambiguous(mill: Mill) -> None:
    mill.ask("a")
    assert mill.drain(free([RuntimeError("a bug in the lane")]), paid()).done == 1
    assert mill.ledger()[0] == ("free", "ambiguous", "pin")


def test_ready_work_of_a_lane_that_left_the_policy_is_routed_anew(mill: Mill) -> None:
    [job] = mill.ask("a", next_lane="gone")
    assert mill.drain(free()).done == 1
    assert mill.state(job) == "done"


def test_a_job_cancelled_in_flight_stays_so_and_its_reply_serves_the_next_request(mill: Mill) -> None:
    lane = free([Held(Reply("kept"))])
    [job] = mill.ask("a")

    async def act() -> None:
        await lane.began(1)
        mill.store.cancel([(job, 60_000)])
        lane.let_go()

    asyncio.run(during(mill.drainer(lane).run(), act))
    assert mill.state(job) == "cancelled"
    [again] = mill.ask("a")
    assert (mill.state(again), [result.text for result in mill.store.results()]) == ("done", ["kept"])
    assert len(lane.calls) == 1


def test_width_bounds_the_calls_in_flight_and_a_serial_lane_has_one(mill: Mill) -> None:
    wide, one = free(max_in_flight=3), paid(serial=True, max_in_flight=8)
    wide.hold()
    one.hold()
    mill.ask(*(f"q{n}" for n in range(10)))
    mill.ask(*(f"p{n}" for n in range(10)), lane="paid")

    async def act() -> None:
        await wide.began(3)
        await one.began(1)
        assert (len(wide.held), len(one.held)) == (3, 1)
        wide.let_go()
        one.let_go()

    assert asyncio.run(during(mill.drainer(wide, one).run(), act)).done == 20


def test_a_lease_that_grew_old_before_the_call_sends_nothing(mill: Mill) -> None:
    """Nor does its lane lose an attempt by it, and no dearer one is crossed to."""
    lane, dearer = free(max_attempts=1), paid()
    [job] = mill.ask("a")
    clock = iter([0, 10_000_000])  # leased at 0; the process then slept
    drainer = mill.drainer(lane, dearer, boot_ms=lambda: next(clock, 0))
    asyncio.run(drainer.run())
    assert mill.ledger() == [("free", "retryable", None), ("free", "ok", None)]
    assert (len(lane.calls), len(dearer.calls)) == (1, 0)
    found = mill.store.job(job)
    assert found is not None
    assert found.attempts_made == 1


def test_an_ambiguous_job_does_not_wait_for_the_lane_that_closed_on_it(mill: Mill) -> None:
    html = Evidence(sent="yes", status=200, failure="html", message="<html>maintenance</html>")
    mill.ask("a")
    assert mill.drain(free([html], max_in_flight=1), paid()).done == 1
    assert mill.ledger() == [("free", "ambiguous", "pin"), ("paid", "ok", None)]
    assert mill.store.closed_lanes()["free"].closed_by == "down"


def test_a_lane_asked_for_by_name_serves_even_after_an_ambiguous_call(mill: Mill) -> None:
    first, second = free(), paid([Evidence(sent="yes", failure="reset")], max_attempts=2)
    mill.ask("a", lane="paid")
    assert mill.drain(first, second).done == 1
    assert (len(first.calls), len(second.calls)) == (0, 2)


def test_a_local_server_that_is_not_running_fails_no_job(mill: Mill) -> None:
    refused = Evidence(sent="no", failure="refused", message="connection refused")
    lane = ScriptedLane(
        LanePolicy("free", kind="callable", price=FREE, base_url="http://127.0.0.1:1/v1", max_attempts=1),
        [refused] * 6,
    )
    mill.ask("a", "b", "c")
    summary = mill.drain(lane, lane_down_after=3, lane_down_probe_ms=20)
    assert (summary.done, summary.failed) == (3, 0)


def test_a_fault_in_looking_after_others_stops_the_drain_and_is_told(mill: Mill) -> None:
    def broken() -> Any:
        raise AssertionError("an invariant")

    with pytest.raises(AssertionError, match="an invariant"):
        asyncio.run(mill.drainer(free(), tend=broken).run(Until(daemon=True)))
