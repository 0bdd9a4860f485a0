"""What a worker of one's own hands in is not lost where the queue does not take it now."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from decimal import Decimal
from typing import Any

import apsw
import pytest
from opened import Open

from millpond import Ambiguous, LeaseLost, Queue, Reply, Retryable
from millpond.db.sqlite import SqliteDatabase
from millpond.rules.errors import QueueBusy, QueueUnavailable
from millpond.rules.job import Lease
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import FREE, PriceRule

LONG = "an answer that needs pages of its own " * 2_000


def by_hand(open_queue: Open) -> Queue:
    return open_queue(LanePolicy("own", kind="callable", price=FREE, max_attempts=9))


def called(queue: Queue, text: str = "a") -> tuple[Lease, str]:
    queue.enqueue(text)
    [lease] = queue.lease()
    uid = queue.record(lease)
    assert uid is not None
    return lease, uid


@contextmanager
def full(queue: Queue) -> Iterator[None]:
    """The database may have no page more than it has (PRAGMA max_page_count)."""
    connection: Any = queue.store.db._connection  # type: ignore[attr-defined] # pyright: ignore
    connection.run(f"PRAGMA max_page_count = {connection.value('PRAGMA page_count')}")
    try:
        yield
    finally:
        if connection.is_open:
            connection.run("PRAGMA max_page_count = 1000000")


@contextmanager
def unreadable(queue: Queue) -> Iterator[None]:
    """The database is elsewhere for a moment, as on a disk that was unmounted; every new reader is refused."""
    away = queue.home / "away"
    (queue.home / "queue.db").rename(away)
    try:
        yield
    finally:
        away.rename(queue.home / "queue.db")


@contextmanager
def locked(queue: Queue) -> Iterator[None]:
    """Another program holds the database's lock."""
    with closing(apsw.Connection(str(queue.home / "queue.db"))) as other:
        other.execute("BEGIN IMMEDIATE").fetchall()
        try:
            yield
        finally:
            other.execute("ROLLBACK").fetchall()


def impatient(monkeypatch: pytest.MonkeyPatch, busy_ms: int = 50) -> None:
    """Queues that are opened from now on wait for a lock so long only."""
    monkeypatch.setitem(SqliteDatabase.__init__.__kwdefaults__, "busy_ms", busy_ms)  # type: ignore[attr-defined]


def spools(queue: Queue) -> list[str]:
    """The spools that hold an entry."""
    return [path.name for path in (queue.folder / "spool").iterdir() if b"\0MILLPOND-REPLY\0" in path.read_bytes()]


def test_a_reply_that_a_full_disk_refuses_is_kept_and_written_with_the_next_verb(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    with full(queue):
        with pytest.raises(QueueUnavailable, match=r"no room left.*1 reply not written yet; kept in .*\.spool"):
            queue.settle(lease, uid, LONG)
        assert len(spools(queue)) == 1
        with pytest.raises(QueueUnavailable, match="1 reply not written yet"):
            queue.lease()
    assert queue.lease() == []
    assert [result.text for result in queue.results()] == [LONG]
    assert spools(queue) == []


def test_the_same_call_made_again_writes_it(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    with full(queue), pytest.raises(QueueUnavailable):
        queue.settle(lease, uid, LONG)
    assert queue.settle(lease, uid, LONG)
    assert (queue.counts()["done"], spools(queue)) == (1, [])


def test_a_reply_that_waits_is_written_before_its_lease_lapses(open_queue: Open) -> None:
    """Its worker does not come back, so nobody renews the lease; what the call brought is at hand all the same."""
    queue = open_queue(*by_hand(open_queue).policy.lanes.values(), lease_ms=1_500)
    lease, uid = called(queue)
    with full(queue), pytest.raises(QueueUnavailable):
        queue.settle(lease, uid, LONG)
    while queue.job(lease.job_id).state == "leased" or spools(queue):
        threading.Event().wait(0.05)
    assert queue.job(lease.job_id).state == "done"


def test_what_another_reply_brings_along_is_written_too(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    other, other_uid = called(queue, "b")
    with full(queue), pytest.raises(QueueUnavailable):
        queue.settle(lease, uid, LONG)
    queue.settle(other, other_uid, "short")
    assert (queue.counts()["done"], spools(queue)) == (2, [])


def test_a_late_reply_without_a_lease_is_kept_too(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    queue.cancel(lease.job_id)
    again = queue.enqueue("a")
    with full(queue), pytest.raises(QueueUnavailable, match="kept in"):
        queue.accept(uid, Reply(LONG))
    queue.close()
    with by_hand(open_queue) as reopened:
        assert reopened.job(again.job_id).state == "done"


def test_a_queue_that_is_closed_with_a_reply_that_waits_leaves_it_to_the_next(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    with full(queue):
        with pytest.raises(QueueUnavailable):
            queue.settle(lease, uid, LONG)
        with pytest.raises(QueueUnavailable, match="from where the next drain or worker writes it"):
            queue.close()
    queue.close()
    assert len(spools(queue)) == 1
    with by_hand(open_queue) as reopened:
        assert reopened.job(lease.job_id).state == "leased", "whoever only looks writes nothing"
        assert reopened.lease() == []
        assert (reopened.job(lease.job_id).state, spools(reopened)) == ("done", [])
        assert [row.outcome for row in reopened.ledger()] == ["ok"]


def test_o15_a_reply_outlasts_a_lock_that_is_longer_than_the_busy_wait(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch)
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    with locked(queue), pytest.raises(QueueBusy, match=r"stayed locked.*1 reply not written yet"):
        queue.settle(lease, uid, "an answer")
    assert queue.lease() == []
    assert queue.counts()["done"] == 1


def test_what_no_column_can_hold_ends_as_unknown_and_says_so(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a drain. Nothing that a handler can bring is known to be refused by the store; this one is made up."""
    from millpond.store import settle

    def refuse(reply: Reply) -> str:
        raise OverflowError("too large")

    queue = by_hand(open_queue)
    lease, uid = called(queue)
    monkeypatch.setattr(settle, "dump_reply", refuse)
    queue.settle(lease, uid, "an answer")
    [row] = queue.ledger()
    assert row.outcome == "ambiguous"
    assert row.message == "unstorable: its reply could not be stored: OverflowError: too large"


WORKER = """
import os, sys
from millpond import Policy, Queue
from millpond.rules.policy import Backoff, LanePolicy

with Queue.open(sys.argv[1], policy=Policy(lanes={"own": LanePolicy("own", kind="callable")})) as queue:
    [lease] = queue.lease()
    uid = queue.record(lease)
    connection = queue.store.db._connection
    connection.run(f"PRAGMA max_page_count = {connection.value('PRAGMA page_count')}")
    try:
        queue.settle(lease, uid, "an answer that needs pages of its own " * 2_000)
    except Exception as problem:
        print(type(problem).__name__, flush=True)
    os.kill(os.getpid(), 9)
"""


def test_a_worker_that_is_killed_with_a_reply_that_waits_loses_nothing(open_queue: Open) -> None:
    queue = by_hand(open_queue)
    job = queue.enqueue("a").job_id
    said = subprocess.run([sys.executable, "-c", WORKER, str(queue.home)], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout) == (-9, "QueueUnavailable\n"), said.stderr
    assert queue.job(job).state == "leased"
    assert queue.lease() == [], "its reply is written before its lease is taken back"
    assert queue.job(job).state == "done"
    assert [row.outcome for row in queue.ledger()] == ["ok"]


def test_an_end_that_is_no_reply_is_kept_too(open_queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch)
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    with locked(queue), pytest.raises(QueueBusy):
        queue.settle(lease, uid, Ambiguous("who knows"))
    assert queue.lease() == []
    assert queue.job(lease.job_id).wait_reason == "backoff"
    assert [(row.outcome, row.message) for row in queue.ledger()] == [("ambiguous", "Ambiguous: who knows")]


def test_a_reply_is_kept_where_the_queue_cannot_even_be_read(open_queue: Open) -> None:
    """It is billed as on the lane that it was recorded on, which is not the lease's."""
    cent = PriceRule("stated", call_usd=Decimal("0.01"))
    queue = open_queue(LanePolicy("own", kind="callable", price=FREE), LanePolicy("dear", kind="callable", price=cent))
    queue.enqueue("a")
    [lease] = queue.lease(lanes=["own"])
    uid = queue.record(lease, "dear")
    assert uid is not None

    def settle() -> None:
        with pytest.raises(QueueUnavailable, match=r"1 reply not written yet; kept in .*\.spool"):
            queue.settle(lease, uid, "an answer")

    with unreadable(queue):
        in_a_thread(settle)  # it has no connection yet
        assert len(spools(queue)) == 1
    assert queue.lease() == []
    assert ([result.text for result in queue.results()], spools(queue)) == (["an answer"], [])
    assert [(row.lane, row.outcome, row.cost) for row in queue.ledger()] == [("dear", "ok", Decimal("0.01"))]


def test_what_is_no_reply_is_kept_there_and_followed_by_all_that_was_tried(open_queue: Open) -> None:
    """Its history cannot be read when it is handed in: two attempts are granted, and this is the second."""
    queue = open_queue(
        LanePolicy("own", kind="callable", price=FREE, max_attempts=2), LanePolicy("next"), backoff=Backoff(0, 0)
    )
    queue.enqueue("a")
    for n in range(2):
        [lease] = queue.lease(lanes=["own"])
        uid = queue.record(lease)
        assert uid is not None
        if n == 0:
            queue.settle(lease, uid, Retryable("no room"))

    def settle() -> None:
        with pytest.raises(QueueUnavailable, match="kept in"):
            queue.settle(lease, uid, Retryable("no room"))

    with unreadable(queue):
        in_a_thread(settle)
    for lease in queue.lease(lanes=["own"]):
        assert queue.record(lease) is None
    assert (queue.job(lease.job_id).state, queue.job(lease.job_id).next_lane) == ("ready", "next")
    assert [row.outcome for row in queue.ledger()] == ["retryable", "retryable"]


def test_a_late_reply_is_kept_where_the_queue_cannot_even_be_read(open_queue: Open) -> None:
    """Also by one who did not make the call, and so does not know on which lane it was made."""
    queue = by_hand(open_queue)
    _, uid = called(queue)
    with by_hand(open_queue) as other:
        other.lease()

        def accept() -> None:
            for one in (uid, "no such attempt"):
                with pytest.raises(QueueUnavailable, match="kept in"):
                    other.accept(one, Reply("an answer"))

        with unreadable(other):
            in_a_thread(accept)
        assert other.lease() == []
    [row] = queue.ledger()
    assert (row.lane, row.outcome, queue.counts()["done"]) == ("own", "ok", 1)
    assert next(iter(queue.jobs())).settled_by == "own"
    assert spools(queue) == []


def test_a_reply_is_kept_that_an_interrupt_keeps_from_being_written(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while settle waits for a lock that another process holds."""
    impatient(monkeypatch, 500)
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    interrupting = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    with locked(queue):
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            queue.settle(lease, uid, "an answer")
        assert len(spools(queue)) == 1
    assert queue.lease() == []
    assert ([result.text for result in queue.results()], spools(queue)) == (["an answer"], [])


def in_a_thread(do: Callable[[], object]) -> None:
    """Where what it raises fails the test."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(do).result()


@pytest.mark.parametrize("is_still_locked", [False, True])
def test_a_reply_that_is_kept_outlasts_what_its_worker_says_afterwards(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch, is_still_locked: bool
) -> None:
    """As of one who settles whatever exception comes, also the one that settling raised."""
    impatient(monkeypatch)
    queue = by_hand(open_queue)
    lease, uid = called(queue)
    with ExitStack() as stack:
        stack.enter_context(locked(queue))
        with pytest.raises(QueueBusy) as busy:
            queue.settle(lease, uid, "an answer")
        if not is_still_locked:
            stack.close()
        with pytest.raises(QueueBusy if is_still_locked else LeaseLost):
            queue.settle(lease, uid, busy.value)
    assert queue.lease() == []
    assert [row.outcome for row in queue.ledger()] == ["ok"]
    assert queue.counts()["done"] == 1
