"""O13: a job that cannot succeed, on lanes that look as if it might, costs no more in a week than in an hour."""

from __future__ import annotations

from pathlib import Path

import pytest
from mill_of_one import PAID

from millpond import Policy, Queue, Retryable, Saturated
from millpond.lanes import CallableLane
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import FREE
from millpond.testing import FakeClock

HOURS_MS = 3_600_000
CAP = 3


class Week:
    """A free lane that has room again after some hours, a paid one, and a queue that is opened anew again and again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.free_calls = self.paid_calls = 0
        monkeypatch.setattr("millpond.queue.wall_ms", self.clock)

    def free(self, work: object) -> str:
        self.free_calls += 1
        if self.free_calls % 2:
            raise Retryable("try again")
        raise Saturated("no quota left today", after_s=3_600)

    def paid(self, work: object) -> str:
        self.paid_calls += 1
        raise Retryable("try again")

    def restart(self, *, free_attempts: int = 2) -> Queue:
        """A drain of a new process, half a day later, with settings read anew; the queue that it leaves."""
        self.clock.advance(12 * HOURS_MS)
        free = LanePolicy("free", kind="callable", price=FREE, max_attempts=free_attempts)
        paid = LanePolicy("paid", kind="callable", tier="paid", price=PAID, max_attempts=9)
        policy = Policy(
            lanes={"free": free, "paid": paid}, max_attempts_per_job=CAP, backoff=Backoff(1, 1), idle_exit_ms=0
        )
        queue = Queue.open(self.folder, policy=policy)
        lanes = {"free": CallableLane(self.free, name="free"), "paid": CallableLane(self.paid, name="paid")}
        for name, lane in lanes.items():
            lane.policy = policy.lanes[name]
        queue.drain(lanes=lanes)
        return queue


def test_o13_a_week_of_restarts_a_reload_and_a_retry_spend_what_was_granted_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    week = Week(tmp_path / "pond", monkeypatch)
    with week.restart() as queue:
        job = queue.enqueue("What nobody can answer").job_id
    for _ in range(7):
        week.restart().close()
    with week.restart() as queue:
        assert (queue.job(job).state, queue.job(job).attempts_made) == ("failed", CAP)
        assert (queue.job(job).reason or "").startswith(f"attempts: lifetime cap of {CAP}")
        assert week.paid_calls == 1
        assert queue.retry("state:failed").done == 1, "a person asks for all that failed once more"
    for _ in range(7):
        week.restart(free_attempts=1).close()  # a reload, after which it goes to the paid lane sooner
    with week.restart() as queue:
        assert queue.job(job).state == "failed"
        counted = [row.lane for row in queue.ledger() if row.outcome != "saturated"]
        assert len(counted) == 2 * CAP, "a person grants as many again"
        assert counted.count("paid") == week.paid_calls <= 2 * CAP, counted
