"""A durable stop: obeyed by drains that run, by those to come, and by workers of one's own; nothing is lost by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mill_of_one import Mill, during, free, paid

from millpond import AsyncQueue, Policy, Queue, UnknownLane, UsageError
from millpond.engine.drain import Until
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE
from millpond.rules.stops import wanted
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held

ALL, PAID = wanted("all"), wanted("paid")


def drain_and_stop(mill: Mill, *lanes: ScriptedLane, stop: Any = ALL, until: Until | None = None) -> Any:
    """A drain whose queue is stopped while its first lane has a call, which then ends well."""

    async def act() -> None:
        await lanes[0].began(1)
        mill.store.stop(stop, origin="cli")
        lanes[0].let_go()

    return asyncio.run(during(mill.drainer(*lanes).run(until), act))


@pytest.mark.parametrize("until", [Until(), Until(until_empty=True)], ids=["foreground", "until empty"])
def test_a_drain_that_runs_finishes_its_calls_and_ends_as_stopped(mill: Mill, until: Until) -> None:
    lane = free([Held()], max_in_flight=1)
    mill.ask("a", "b", "c")
    summary = drain_and_stop(mill, lane, until=until)
    assert (summary.reason, summary.done, summary.ready) == ("stopped", 1, 2)
    assert summary.in_words().endswith("left: ready 2 · stopped by a person")
    assert mill.ledger() == [("free", "ok", None)]


def test_a_drain_that_is_begun_while_all_is_stopped_sends_nothing(mill: Mill) -> None:
    [job] = mill.ask("a")
    mill.store.stop(ALL, origin="cli")
    assert mill.drain(free(), until=Until(until_empty=True)).reason == "stopped"
    assert (mill.state(job), mill.ledger()) == ("ready", [])
    mill.store.resume(ALL, origin="cli")
    assert mill.drain(free()).done == 1


def test_a_stopped_queue_without_work_is_empty(mill: Mill) -> None:
    mill.store.stop(ALL, origin="cli")
    assert mill.drain(free()).reason == "empty"


def test_a_stop_of_what_may_cost_lets_the_free_lane_go_on(mill: Mill) -> None:
    mill.store.stop(PAID, origin="cli")
    mill.ask("a", "b")
    [wished] = mill.ask("c", lane="paid")
    summary = mill.drain(free(), paid())
    assert (summary.reason, summary.done, mill.state(wished)) == ("stopped", 2, "ready")
    assert {row[0] for row in mill.ledger()} == {"free"}


def test_a_pinned_job_waits_for_its_stopped_lane(mill: Mill) -> None:
    """What the free lane could not do goes to the paid one, and no further."""
    mill.store.stop(PAID, origin="cli")
    [job] = mill.ask("a")
    summary = mill.drain(free(["unfit"]), paid())
    assert (summary.reason, mill.state(job), mill.ledger()) == ("stopped", "ready", [("free", "unfit", None)])
    mill.store.resume(PAID, origin="cli")
    assert mill.drain(free(), paid()).done == 1


def test_a_daemon_waits_for_the_resume_and_goes_on_by_itself(mill: Mill) -> None:
    lane = free()
    mill.store.stop(ALL, origin="cli")
    mill.ask("a")
    drainer = mill.drainer(lane)

    async def act() -> None:
        await mill.hears("stopped")
        assert lane.calls == []
        mill.store.resume(ALL, origin="cli")
        await mill.hears("done")
        drainer.stop()

    summary = asyncio.run(during(drainer.run(Until(daemon=True)), act))
    assert (summary.reason, summary.done) == ("signal", 1)
    assert [one.kind for one in mill.told if one.job_id is None] == ["stopped", "resumed"]


def test_a_stopped_daemon_wakes_what_is_due_and_does_not_spin_on_it(mill: Mill) -> None:
    [job] = mill.ask("a", not_before_ms=mill.store.now_ms() - 1)
    mill.store.stop(ALL, origin="cli")
    drainer, looks = mill.drainer(free()), list[int]()
    drainer._may_lease = lambda: looks.append(1) is None  # asked once a turn of its loop

    async def act() -> None:
        await mill.hears("stopped")
        await asyncio.sleep(0.5)
        drainer.stop()

    asyncio.run(during(drainer.run(Until(daemon=True)), act))
    assert (mill.state(job), len(looks) < 10) == ("ready", True), looks


# --- workers of one's own, and the words of the queue -----------------------------------------------------------------

POLICY = Policy(
    lanes={
        "free": LanePolicy("free", kind="command", command=("cat",), price=FREE),
        "dear": LanePolicy("dear", kind="command", command=("cat",)),
    }
)


@pytest.fixture
def queue(tmp_path: Path) -> Any:
    with Queue.open(tmp_path / "home", policy=POLICY) as queue:
        yield queue


def test_a_worker_that_holds_a_job_gives_it_back_untouched(queue: Queue) -> None:
    job = queue.enqueue("a").job_id
    [lease] = queue.lease(1)
    queue.stop()
    assert queue.record(lease) is None
    assert (queue.job(job).state, queue.job(job).attempts_made, queue.lease(1)) == ("ready", 0, [])
    queue.resume()
    [again] = queue.lease(1)
    attempt = queue.record(again)
    assert attempt is not None
    assert (again.attempt_no, queue.settle(again, attempt, "reply")) == (1, True)


def test_what_a_worker_has_sent_is_settled_while_all_is_stopped(queue: Queue) -> None:
    job = queue.enqueue("a").job_id
    [lease] = queue.lease(1)
    attempt = queue.record(lease)
    queue.stop()
    assert attempt is not None
    assert queue.settle(lease, attempt, "reply")
    assert queue.job(job).state == "done"


def test_a_worker_may_not_bring_a_job_to_a_lane_that_may_cost(queue: Queue) -> None:
    queue.enqueue("a")
    [lease] = queue.lease(1, lanes=["free"])
    queue.stop("paid")
    assert queue.record(lease, "dear") is None
    [again] = queue.lease(1)
    assert queue.record(again, "free") is not None


def test_a_lane_that_nobody_has_is_refused_and_one_that_has_left_is_resumed(queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(UnknownLane, match="unknown lane 'fre'; configured lanes: free, dear"):
        queue.stop(["dear", "fre"])
    assert queue.status().stopped == ()
    with pytest.raises(UsageError, match="wanted 'all', 'paid' or a list"):
        queue.stop("free")  # type: ignore[arg-type]
    queue.stop(["dear"])
    with Queue.open(tmp_path / "home", policy=Policy(lanes={"free": POLICY.lanes["free"]})) as later:
        with pytest.raises(UnknownLane):
            later.stop(["dear"])
        assert [one.lane for one in later.resume(["dear"]).changed] == ["dear"]
        with pytest.raises(UnknownLane):
            later.resume(["dear"])


def test_the_async_queue_has_the_same_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncQueue.open(tmp_path / "home", policy=POLICY) as queue:
            assert [one.words for one in (await queue.stop("paid")).standing] == ["lanes that may cost"]
            assert [one.scope for one in (await queue.status()).stopped] == ["paid"]
            assert (await queue.resume()).standing == ()

    asyncio.run(main())
