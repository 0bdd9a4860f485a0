"""When a drain ends: told to, or by itself."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import pytest
from mill_of_one import Mill, during, free, paid

from millpond.engine.clock import wall_ms
from millpond.engine.drain import Until
from millpond.engine.tenure import Tenure
from millpond.lanes.lane import Question
from millpond.report.left import why_left
from millpond.report.summary import Summary
from millpond.rules.evidence import Unknown
from millpond.rules.policy import Policy
from millpond.rules.router import Step
from millpond.store import ledger
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held


def stopped(mill: Mill, lane: ScriptedLane, *, times: int, until: Until | None = None, **policy: Any) -> Summary:
    """A drain that is told so many times to stop once its lane has a call."""
    drainer = mill.drainer(lane, **policy)

    async def act() -> None:
        await lane.began(1)
        for _ in range(times):
            drainer.stop()

    return asyncio.run(during(drainer.run(until), act))


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


def test_a_stop_between_the_look_and_the_lease_leases_nothing(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = free()
    [job] = mill.ask("a")
    drainer, look = mill.drainer(lane), mill.store.ready_lanes

    def stopped_at_that_moment() -> list[str]:
        drainer.stop()
        return look()

    monkeypatch.setattr(mill.store, "ready_lanes", stopped_at_that_moment)
    summary = asyncio.run(drainer.run())
    assert (summary.reason, mill.state(job), lane.calls) == ("signal", "ready", [])
    assert mill.store.count_events("lease", 0, mill.store.last_event()) == 0


def test_the_second_stop_cuts_the_calls_and_their_end_is_unknown(mill: Mill) -> None:
    lane = free([Held()], max_in_flight=1)
    [job] = mill.ask("a")
    summary = stopped(mill, lane, times=2)
    assert (summary.reason, mill.state(job), len(lane.cancelled)) == ("signal", "ready", 1)
    assert mill.ledger() == [("free", "ambiguous", None)]


def test_the_grace_ends_by_itself(mill: Mill) -> None:
    lane = free([Held()], max_in_flight=1)
    mill.ask("a")
    stopped(mill, lane, times=1, grace_ms=30)
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
    summary = stopped(mill, lane, times=1, until=Until(max_iters=1), grace_ms=30)
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


def test_a_drain_that_is_stopped_again_and_again_fails_no_job(mill: Mill) -> None:
    [job] = mill.ask("a")
    for _ in range(4):
        stopped(mill, free([Held()], max_in_flight=1, after_hold="same", max_attempts=1), times=2)
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


def cancelled_in_flight(mill: Mill, *lanes: ScriptedLane) -> Summary:
    """A drain whose one call ends as nobody knows, after its job was cancelled."""
    [job] = mill.ask("a")

    async def act() -> None:
        await lanes[0].began()
        mill.store.cancel([(job, 60_000)])
        lanes[0].let_go()

    return asyncio.run(during(mill.drainer(*lanes).run(), act))


def test_a_drain_decides_what_nobody_waits_for_before_it_leaves(mill: Mill) -> None:
    summary = cancelled_in_flight(mill, paid([Held("ambiguous")]))
    assert (summary.given_up, summary.reason) == (1, "empty")
    assert mill.ledger() == [("paid", "ambiguous", "nobody")]
    assert mill.book.reserved().calls == 0


class Unsure(ScriptedLane):
    """Can be asked what became of a call, and cannot say."""

    async def recall(self, _: Question) -> Unknown:
        return Unknown("not today")


def test_a_drain_leaves_to_be_asked_for_what_its_lane_may_remember(mill: Mill) -> None:
    summary = cancelled_in_flight(mill, Unsure(paid(recall="store").policy, [Held("ambiguous")]))
    assert (summary.given_up, mill.ledger()) == (0, [("paid", "ambiguous", None)])
    assert mill.store.unwaited() == 1


def test_what_others_have_in_hand_is_told_when_a_drain_ends(mill: Mill) -> None:
    mill.ask("a")
    worker = Tenure(mill.store, mill.folder, "worker", lease_ms=60_000)
    mill.store.lease(worker.uuid, {"paid": 1}, 1, route=lambda *_: Step("paid"))
    summary = mill.drain(paid())
    assert (summary.reason, summary.leased) == ("idle", 1)
    assert "left: leased 1" in summary.in_words()
    lanes = {"paid": paid().policy}
    [left] = why_left(mill.store, Policy(lanes=lanes), lanes, lambda verb: f"mill {verb}")
    assert left.startswith(f"1 job in the hands of others (pid {os.getpid()} on {socket.gethostname()}); `mill wait`")
    worker.leave()
