"""Workers of one's own take the same way as a drain."""

from __future__ import annotations

import os
import threading
from typing import Any

import apsw
import pytest
from opened import Open, command

from millpond import Ambiguous, LeaseLost, Queue, Saturated
from millpond.engine.tenure import Tenure
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import FREE


def by_hand(open_queue: Open, **lane: Any) -> Queue:
    own = LanePolicy("own", kind="callable", price=FREE, **lane)
    return open_queue(own, max_attempts_per_job=2, max_unusable_per_job=9, backoff=Backoff(0, 0))


def test_a_worker_meets_the_policy_that_does_not_pay_again(open_queue: Open) -> None:
    queue = by_hand(open_queue, after_hold="fail")
    job = queue.enqueue("a").job_id
    [lease] = queue.lease()
    uid = queue.record(lease)
    assert uid is not None
    queue.settle(lease, uid, Ambiguous("who knows"))
    [lease] = queue.lease()
    assert queue.record(lease) is None
    assert queue.job(job).state == "failed"
    assert [attempt.resolution for attempt in queue.ledger()] == ["fail"]


def test_a_workers_attempts_are_bounded_for_life(open_queue: Open) -> None:
    queue = by_hand(open_queue, max_attempts=9)
    job = queue.enqueue("a").job_id
    for _ in range(2):
        [lease] = queue.lease()
        uid = queue.record(lease)
        assert uid is not None
        queue.settle(lease, uid, Ambiguous("who knows"))
    [lease] = queue.lease()
    assert queue.record(lease) is None
    assert (queue.job(job).reason or "").startswith("attempts: lifetime cap of 2")


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "millpond-in-hand"]


def test_the_hold_of_a_workers_cancelled_call_ends_while_the_worker_is_still_at_it(open_queue: Open) -> None:
    """Whoever cancelled it, the process that listens ends the hold by itself, and a drain then goes on."""
    queue = by_hand(open_queue, hold_ms={"realtime": 200, "batch": 200}, after_hold="same")
    other = open_queue(*queue.policy.lanes.values())
    job = queue.enqueue("a").job_id
    [lease] = queue.lease()
    uid = queue.record(lease)
    assert uid is not None
    assert (other.cancel(job).done, other.retry(job).done) == (1, 1)
    assert (other.job(job).wait_reason, other.job(job).not_before_ms) == ("held", None)
    assert next(event.job_id for event in other.feed(follow=True) if event.kind == "wake") == job
    assert other.drain(lanes={"own": lambda work: "new"}).done == 1
    with pytest.raises(LeaseLost):
        queue.settle(lease, uid, "late")
    for thread in listeners():
        thread.join(timeout=10)
    assert listeners() == [], "no call is under way any more"


def test_a_worker_that_leaves_listens_no_more(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    queue.enqueue("a")
    [lease] = queue.lease()
    assert queue.record(lease) is not None
    assert len(listeners()) == 1
    queue.close()
    assert listeners() == []


def test_a_worker_says_which_lane_it_works_on(open_queue: Open) -> None:
    """Its own word stands above routing, which would have begun at the first lane."""
    queue = open_queue(command("first"), command("second"))
    queue.enqueue("a")
    [lease] = queue.lease()
    uid = queue.record(lease, "second")
    assert uid is not None
    assert queue.settle(lease, uid, "done")
    assert [attempt.lane for attempt in queue.ledger()] == ["second"]


def test_a_worker_finds_a_closed_lane_closed(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    queue.enqueue_many(["a", "b"])
    first, second = queue.lease(2)
    uid = queue.record(first)
    assert uid is not None
    queue.settle(first, uid, Saturated(after_s=60))
    assert queue.record(second) is None
    assert (queue.counts()["ready"], len(list(queue.ledger()))) == (2, 1)


def test_a_worker_that_never_comes_back_loses_its_lease_though_its_process_lives(open_queue: Open) -> None:
    """Nobody else may judge that, as the process beats; it takes back one lease, and keeps the others."""
    queue = by_hand(open_queue, max_in_flight=2)
    queue = open_queue(*queue.policy.lanes.values(), lease_ms=1_500)
    silent, busy = queue.enqueue("a").job_id, queue.enqueue("b").job_id
    leases = {lease.job_id: lease for lease in queue.lease(2)}
    while queue.job(silent).state == "leased":
        queue.renew(leases[busy])
        threading.Event().wait(0.05)
    assert (queue.job(silent).leases_lost, queue.job(busy).state) == (1, "leased")
    with pytest.raises(LeaseLost):
        queue.renew(leases[silent])
    uid = queue.record(leases[busy])
    assert uid is not None
    assert queue.settle(leases[busy], uid, "an answer")


def test_a_forked_worker_leases_under_a_name_of_its_own(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    mine, theirs = queue.enqueue("a").job_id, queue.enqueue("b").job_id
    [lease] = queue.lease()
    child = os.fork()
    if child == 0:
        [other] = queue.lease()
        os._exit(0 if other.job_id == theirs and other.owner != lease.owner else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    [again] = queue.lease()
    assert (again.job_id, again.owner) == (theirs, lease.owner), "what the child held is taken back at its end"
    assert queue.record(lease) is not None
    assert (queue.job(mine).state, queue.job(theirs).leases_lost) == ("leased", 1)


def test_a_worker_that_slept_while_its_row_was_written_is_told_to_send_nothing(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = by_hand(open_queue, max_attempts=1)
    job = queue.enqueue("a").job_id
    [lease] = queue.lease()
    monkeypatch.setattr(Tenure, "stands", lambda _: not list(queue.ledger()))
    with pytest.raises(LeaseLost):
        queue.record(lease)
    monkeypatch.undo()
    [row] = queue.ledger()
    assert (row.outcome, row.code, row.cost) == ("retryable", "lease_too_old", 0)
    assert (queue.job(job).state, queue.job(job).attempts_made) == ("ready", 0), "no attempt was made"


def test_the_hold_of_a_cancelled_call_ends_though_its_worker_never_comes_back(open_queue: Open) -> None:
    """It is longer than the lease, and its process lives and does nothing else."""
    own = LanePolicy("own", kind="callable", price=FREE, hold_ms={"realtime": 900, "batch": 900})
    queue = open_queue(own, lease_ms=300)
    job = queue.enqueue("a").job_id
    [lease] = queue.lease()
    assert queue.record(lease) is not None
    queue.cancel(job)
    again = queue.enqueue("a").job_id
    assert queue.job(again).wait_reason == "held"
    for thread in listeners():
        thread.join(timeout=10)
    assert (queue.job(again).state, [row.listener for row in queue.ledger()]) == ("ready", [None])


def test_a_worker_keeps_the_lease_under_which_the_spend_book_keeps_it_waiting(open_queue: Open) -> None:
    own = LanePolicy("own", kind="callable", price=FREE)
    queue = open_queue(own, lease_ms=300)
    job = queue.enqueue("a").job_id
    [lease] = queue.lease()
    other = apsw.Connection(str(queue.book.path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    recorded: list[str | None] = []
    recording = threading.Thread(target=lambda: recorded.append(queue.record(lease)))
    recording.start()
    recording.join(1.2)
    assert recording.is_alive(), "it waits for the book"
    other.execute("ROLLBACK").fetchall()
    other.close()
    recording.join(10)
    assert (len(recorded), queue.job(job).state, queue.job(job).leases_lost) == (1, "leased", 0)
