"""The drainer: journeys performed on a real store, with lanes that answer by a script."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from millpond.engine.clock import boot_ms, wall_ms
from millpond.engine.drain import Drainer, Until
from millpond.engine.owner import Owner
from millpond.engine.perform import Happening
from millpond.report.summary import Summary
from millpond.rules.evidence import Evidence
from millpond.rules.identity import fingerprint
from millpond.rules.job import Prompt, Reply, Usage
from millpond.rules.policy import Backoff, LanePolicy, Policy
from millpond.rules.price import FREE, PriceRule
from millpond.store import ledger
from millpond.store.bodies import dump_work
from millpond.store.enqueue import Asked
from millpond.store.store import Store, open_sqlite
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held

PAID = PriceRule("stated", call_usd=Decimal("0.01"))
HOLD = {"realtime": 60_000, "batch": 60_000}


class Mill:
    """A queue of one test, its lanes in order of preference, and a drainer on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "queue.db.d"
        self.store = Store(open_sqlite(folder / "queue.db"), wall_ms)
        self.told: list[Happening] = []
        self._waiting: list[tuple[str, asyncio.Event]] = []

    def tell(self, happening: Happening) -> None:
        self.told.append(happening)
        for kind, event in self._waiting:
            if kind == happening.kind:
                event.set()

    async def hears(self, kind: str) -> None:
        """Wait until the drainer has told of something of this kind."""
        if kind not in [happening.kind for happening in self.told]:
            event = asyncio.Event()
            self._waiting.append((kind, event))
            await event.wait()

    def ask(self, *tasks: str | Prompt, **wishes: Any) -> list[int]:
        works = [task if isinstance(task, Prompt) else Prompt(task) for task in tasks]
        names = [fingerprint(work) for work in works]
        asked = [
            Asked(at, "prompt", work.intent, name, name, dump_work(work), **wishes)
            for at, (work, name) in enumerate(zip(works, names, strict=True))
        ]
        return [receipt.job_id for receipt in self.store.enqueue_all(asked, name=None, source="test")]

    def drainer(self, *lanes: ScriptedLane, boot_ms: Callable[[], int] = boot_ms, **policy: Any) -> Drainer:
        owner = Owner(self.folder, "drainer", wall_ms())
        self.store.enlist(owner.row)
        policy.setdefault("backoff", Backoff(1, 5))
        policy.setdefault("idle_exit_ms", 200)
        names = {lane.policy.name: lane for lane in lanes}
        made = Policy(lanes={name: lane.policy for name, lane in names.items()}, **policy)
        return Drainer(self.store, made, names, owner.uuid, tell=self.tell, boot_ms=boot_ms)

    def drain(self, *lanes: ScriptedLane, until: Until | None = None, **policy: Any) -> Summary:
        return asyncio.run(self.drainer(*lanes, **policy).run(until))

    def state(self, job_id: int) -> str:
        job = self.store.job(job_id)
        assert job is not None
        return f"{job.state}/{job.wait_reason}" if job.wait_reason else job.state

    def ledger(self) -> list[tuple[str, str | None, str | None]]:
        return [(row.lane, row.outcome, row.resolution) for row in self.store.attempts()]


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    mill = Mill(tmp_path)
    yield mill
    assert mill.store.miscounted() == {}
    mill.store.close()


def free(script: Sequence[Any] = (), **policy: Any) -> ScriptedLane:
    return ScriptedLane(LanePolicy("free", kind="callable", price=FREE, **policy), script)


def paid(script: Sequence[Any] = (), **policy: Any) -> ScriptedLane:
    return ScriptedLane(LanePolicy("paid", kind="callable", tier="paid", price=PAID, **policy), script)


async def during(run: Awaitable[Summary], act: Callable[[], Awaitable[None]]) -> Summary:
    """Run a drain and, beside it, something that happens to it."""
    summary, _ = await asyncio.gather(run, act())
    return summary


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


def test_the_first_stop_finishes_what_is_in_flight_and_leases_nothing_more(mill: Mill) -> None:
    lane = free([Held(), Held()], max_in_flight=2)
    mill.ask("a", "b", "c")
    drainer = mill.drainer(lane)

    async def act() -> None:
        await lane.began(2)
        drainer.stop()
        lane.let_go()

    summary = asyncio.run(during(drainer.run(), act))
    assert (summary.reason, summary.done, summary.ready) == ("signal", 2, 1)


def test_the_second_stop_cuts_the_calls_and_their_end_is_unknown(mill: Mill) -> None:
    lane = free([Held()], max_in_flight=1)
    [job] = mill.ask("a")
    drainer = mill.drainer(lane)

    async def act() -> None:
        await lane.began(1)
        drainer.stop()
        drainer.stop()

    summary = asyncio.run(during(drainer.run(), act))
    assert (summary.reason, mill.state(job), len(lane.cancelled)) == ("signal", "ready", 1)
    assert mill.ledger() == [("free", "ambiguous", None)]


def test_the_grace_ends_by_itself(mill: Mill) -> None:
    lane = free([Held()], max_in_flight=1)
    mill.ask("a")
    drainer = mill.drainer(lane, grace_ms=30)

    async def act() -> None:
        await lane.began(1)
        drainer.stop()

    asyncio.run(during(drainer.run(), act))
    assert mill.ledger() == [("free", "ambiguous", None)]


def test_max_jobs_leaves_the_rest_for_the_next_run(mill: Mill) -> None:
    lane = free(max_in_flight=4)
    mill.ask(*(f"q{n}" for n in range(10)))
    summary = mill.drain(lane, until=Until(max_jobs=3))
    assert (summary.done, summary.ready, summary.reason, len(lane.calls)) == (3, 7, "max_jobs", 3)


def test_a_round_fills_the_lanes_once_and_ends_with_its_last_call(mill: Mill) -> None:
    """The first call of a round is slow: the slot that comes free before it stays free until it has ended."""
    lane = free([Held()], max_in_flight=2)
    mill.ask(*(f"q{n}" for n in range(7)))
    drainer = mill.drainer(lane)

    async def act() -> None:
        await mill.hears("done")
        assert len(lane.calls) == 2
        lane.let_go()

    summary = asyncio.run(during(drainer.run(Until(max_iters=2)), act))
    assert (summary.done, summary.ready, summary.reason, len(lane.calls)) == (4, 3, "max_iters", 4)


def test_the_last_round_is_stopped_like_any_other(mill: Mill) -> None:
    lane = free([Held()], max_in_flight=1)
    mill.ask("a")
    drainer = mill.drainer(lane, grace_ms=30)

    async def act() -> None:
        await lane.began(1)
        drainer.stop()

    summary = asyncio.run(during(drainer.run(Until(max_iters=1)), act))
    assert (summary.reason, mill.ledger()) == ("signal", [("free", "ambiguous", None)])


def test_to_cancel_the_last_round_once_lets_its_calls_end(mill: Mill) -> None:
    lane = free([Held()], max_in_flight=1)
    mill.ask("a")

    async def main() -> None:
        going = asyncio.create_task(mill.drainer(lane).run(Until(max_iters=1)))
        await lane.began(1)
        going.cancel()
        await asyncio.sleep(0.05)
        lane.let_go()
        with pytest.raises(asyncio.CancelledError):
            await going

    asyncio.run(main())
    assert (mill.ledger(), lane.cancelled) == ([("free", "ok", None)], [])


def test_a_drain_that_only_listens_on_is_stopped_like_any_other(mill: Mill) -> None:
    """It has had its jobs, and waits for a call that nothing hangs on any more."""
    none = {"realtime": 0, "batch": 0}
    first, second = free([Held()], soft_timeout_ms=20, hold_ms=none), paid()
    mill.ask("a")
    drainer = mill.drainer(first, second, grace_ms=30)

    async def act() -> None:
        await mill.hears("done")
        await asyncio.sleep(0.05)
        drainer.stop()

    summary = asyncio.run(during(drainer.run(Until(max_jobs=1)), act))
    assert (summary.done, summary.reason, len(first.cancelled)) == (1, "max_jobs", 1)


@pytest.mark.parametrize("hold_ms", [0, 30])
def test_max_jobs_does_not_wait_for_a_call_that_no_longer_holds_its_job(mill: Mill, hold_ms: int) -> None:
    first = free([Held()], soft_timeout_ms=20, hold_ms={"realtime": hold_ms, "batch": hold_ms})
    mill.ask("a", "b")

    async def act() -> None:
        async with asyncio.timeout(20):
            await mill.hears("done")
        first.let_go()

    summary = asyncio.run(during(mill.drainer(first, paid()).run(Until(max_jobs=1)), act))
    assert (summary.done, summary.ready, len(first.calls)) == (1, 1, 1)


def test_rounds_are_counted_whatever_becomes_of_their_jobs(mill: Mill) -> None:
    lane = free(["retryable", "saturated", "ok", "ok"], max_in_flight=2)
    mill.ask("a", "b", "c")
    summary = mill.drain(lane, until=Until(max_iters=1))
    assert (summary.done, summary.reason, len(lane.calls)) == (0, "max_iters", 2)
    assert summary.ready + summary.waiting == 3


def test_a_look_that_finds_nothing_is_no_round(mill: Mill) -> None:
    mill.ask("a")
    mill.ask("b", not_before_ms=wall_ms() + 300)
    summary = mill.drain(free(), until=Until(until_empty=True, max_iters=3))
    assert (summary.done, summary.reason) == (2, "empty")
    mill.ask("c")
    mill.ask("d", not_before_ms=wall_ms() + 300)
    assert mill.drain(free(), until=Until(daemon=True, max_iters=2)).reason == "max_iters"


def test_a_foreground_drain_does_not_wait_for_what_is_due_much_later(mill: Mill) -> None:
    mill.ask("a", not_before_ms=wall_ms() + 3_600_000)
    summary = mill.drain(free())
    assert (summary.reason, summary.waiting, summary.done) == ("idle", 1, 0)
    assert summary.next_due_ms is not None


def test_until_empty_waits_for_what_is_scheduled(mill: Mill) -> None:
    mill.ask("a", not_before_ms=wall_ms() + 400)
    assert mill.drain(free(), until=Until(until_empty=True), idle_exit_ms=10).done == 1


def test_work_enqueued_while_a_daemon_waits_is_taken_up(mill: Mill) -> None:
    lane = free()
    drainer = mill.drainer(lane)

    async def act() -> None:
        await asyncio.sleep(0.05)  # the drainer is idle by now; were it not, the test would prove less, never fail
        mill.ask("a")
        await lane.began(1)
        drainer.stop()

    assert asyncio.run(during(drainer.run(Until(daemon=True)), act)).done == 1


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
    lane = free()
    mill.ask("a")
    clock = iter([0, 10_000_000])  # leased at 0; the process then slept
    drainer = mill.drainer(lane, boot_ms=lambda: next(clock, 0))
    asyncio.run(drainer.run())
    assert [outcome for _, outcome, _ in mill.ledger()] == ["retryable", "ok"]
    assert len(lane.calls) == 1


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


def test_a_drain_that_is_stopped_again_and_again_fails_no_job(mill: Mill) -> None:
    [job] = mill.ask("a")
    for _ in range(4):
        lane = free([Held()], max_in_flight=1, after_hold="same", max_attempts=1)
        drainer = mill.drainer(lane)

        async def act(lane: ScriptedLane = lane, drainer: Drainer = drainer) -> None:
            await lane.began(1)
            drainer.stop()
            drainer.stop()

        asyncio.run(during(drainer.run(), act))
    assert mill.state(job) == "ready"
    assert mill.drain(free(after_hold="same", max_attempts=1)).done == 1


def test_no_call_begins_after_the_second_stop_even_if_its_ledger_row_is_written(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = free([Held()], max_in_flight=1)
    [job] = mill.ask("a")
    drainer = mill.drainer(lane)

    write_row = ledger.record

    def record(*args: Any, **kwargs: Any) -> Any:
        recorded = write_row(*args, **kwargs)
        drainer.stop()
        drainer.stop()  # both are heeded before the journey hears of its row
        return recorded

    monkeypatch.setattr("millpond.engine.perform.ledger.record", record)
    asyncio.run(drainer.run())
    assert (lane.calls, mill.ledger()) == ([], [("free", "retryable", None)])
    assert mill.state(job) in ("ready", "waiting/backoff")


def test_a_fault_in_looking_after_others_stops_the_drain_and_is_told(mill: Mill) -> None:
    def broken() -> Any:
        raise AssertionError("an invariant")

    lane = free()
    owner = Owner(mill.folder, "drainer", wall_ms())
    mill.store.enlist(owner.row)
    drainer = Drainer(mill.store, Policy(lanes={"free": lane.policy}), {"free": lane}, owner.uuid, tend=broken)
    with pytest.raises(AssertionError, match="an invariant"):
        asyncio.run(drainer.run(Until(daemon=True)))
