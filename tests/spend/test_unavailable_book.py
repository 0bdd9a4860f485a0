"""A spend book that takes nothing: nothing is reserved, so nothing is called; it is said, and nothing is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw
import pytest

from millpond import Queue
from millpond.db.migrations import Migration, read_folder
from millpond.db.sqlite import SqliteDatabase
from millpond.db.statements import load
from millpond.engine import drain, scribe, trouble
from millpond.engine.bookkeeping import Bookkeeper
from millpond.engine.drain import Until
from millpond.rules.errors import QueueBusy, QueueUnavailable
from millpond.spend import book as books
from millpond.store.store import Store
from millpond.testing.promises import check_book, check_promises

ROOM = files(books.RESOURCES)


def opened_with(monkeypatch: pytest.MonkeyPatch, *more: str, busy_ms: int = 50) -> None:
    """Books are opened with a short busy wait, and these statements run first."""
    steps = read_folder(ROOM.joinpath("schema"))
    if more:
        steps = (*steps, Migration(len(steps) + 1, "more", more))

    def open_book(path: Path, *, durable: bool) -> SqliteDatabase:
        return SqliteDatabase(
            path,
            statements=load(ROOM.joinpath("statements.sql").read_text(encoding="utf-8")),
            migrations=steps,
            durable=durable,
            busy_ms=busy_ms,
            application_id=books.APPLICATION_ID,
        )

    monkeypatch.setattr(books, "open_book", open_book)
    monkeypatch.setattr(scribe, "RETRY_S", 0.05)


class Lane:
    """Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, work: object, **_: Any) -> str:
        self.calls += 1
        return "yes"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Somebody else holds the book's write lock."""
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE").fetchall()
    try:
        yield
    finally:
        other.execute("ROLLBACK").fetchall()
        other.close()


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "pond") as queue:
        queue.enqueue_many([f"question {n}" for n in range(20)])
        yield queue


def went_on(queue: Queue, lane: Callable[..., Any]) -> None:
    """The next drain brings all to an end, and book and ledger agree."""
    queue.drain(lanes=lane, until_empty=True)
    assert queue.counts()["done"] == 20
    check_promises(queue.store)
    check_book(queue.store, queue.book)


def test_a_book_that_cannot_be_opened_ends_a_drain_before_it_leases(queue: Queue) -> None:
    lane = Lane()
    queue.book.path.mkdir()
    with pytest.raises(QueueUnavailable, match=r"spend\.db"):
        queue.drain(lanes=lane)
    assert (lane.calls, queue.counts()["ready"]) == (0, 20)
    assert "unknown" in (queue.status().spend.in_words() or ""), "unknown is not zero"
    assert (queue.status().spend.lanes, queue.status().spend.reserved) == (None, None)
    queue.book.path.rmdir()
    went_on(queue, lane)


def test_a_book_that_stays_locked_ends_a_drain_and_nothing_is_called(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_with(monkeypatch)
    monkeypatch.setattr(scribe, "PATIENCE_S", 0.2)
    lane = Lane()
    queue.book.db.checkpoint()
    with (
        locked(queue.book.path),
        pytest.raises(QueueBusy, match="spend book takes no reservation, so nothing was called"),
    ):
        queue.drain(lanes=lane)
    assert (lane.calls, queue.counts()["ready"], queue.counts()["leased"]) == (0, 20, 0)
    assert list(queue.ledger()) == []
    went_on(queue, lane)


def test_a_book_that_is_free_again_soon_ends_no_drain(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_with(monkeypatch)
    queue.book.db.checkpoint()
    tried = threading.Event()

    def refused(*_: object) -> None:
        tried.set()

    monkeypatch.setattr(trouble.log, "warning", refused)
    lane = Lane()
    drained: list[Any] = []
    draining = threading.Thread(target=lambda: drained.append(queue.drain(lanes=lane)))
    with locked(queue.book.path):
        draining.start()
        assert tried.wait(20)
        assert lane.calls == 0
    draining.join(60)
    assert drained[0].done == 20
    went_on(queue, lane)


def test_a_drain_that_is_stopped_does_not_wait_for_the_book(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_with(monkeypatch)
    queue.book.db.checkpoint()
    tried = threading.Event()

    def refused(*_: object) -> None:
        tried.set()

    monkeypatch.setattr(trouble.log, "warning", refused)
    ended: list[BaseException] = []

    def drain() -> None:
        try:
            queue.drain(lanes=Lane())
        except QueueBusy as problem:
            ended.append(problem)

    draining = threading.Thread(target=drain)
    with locked(queue.book.path):
        draining.start()
        assert tried.wait(20)
        [drainer] = queue._drains._under_way  # pyright: ignore[reportPrivateUsage]
        drainer.stop()
        draining.join(20)
        assert not draining.is_alive()
    assert len(ended) == 1
    went_on(queue, Lane())


def test_a_full_book_ends_a_drain_with_every_call_booked(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    opened_with(monkeypatch, "PRAGMA max_page_count = 6")
    monkeypatch.setattr(scribe, "PATIENCE_S", 0.1)
    queue.enqueue_many([f"further question {n}" for n in range(480)])
    lane = Lane()
    with pytest.raises(QueueUnavailable, match="no room left for"):
        queue.drain(lanes=lane)
    counts = queue.counts()
    assert 0 < counts["done"] == lane.calls < 500
    assert counts["done"] + counts["ready"] == 500
    check_promises(queue.store)
    path = queue.book.path
    queue.close()
    monkeypatch.undo()
    writer = apsw.Connection(str(path))
    writer.execute("PRAGMA user_version = 1").fetchall()
    writer.close()
    with Queue.open(path.parent) as again:
        again.drain(lanes=lane)
        assert again.counts()["done"] == 500 == lane.calls
        check_book(again.store, again.book)


def test_a_drain_that_runs_brings_the_book_up_to_the_ledger(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "TEND_MS", 5)
    opened_with(monkeypatch)
    [lease] = queue.lease(1)
    uid = queue.record(lease)
    assert uid is not None
    kept, go_on = threading.Event(), Bookkeeper.go_on

    def watched(bookkeeper: Bookkeeper) -> None:
        go_on(bookkeeper)
        if queue.book.charge(uid):
            kept.set()

    monkeypatch.setattr(Bookkeeper, "go_on", watched)
    with queue.draining(lanes=Lane()) as drainer:
        going = threading.Thread(target=lambda: asyncio.run(drainer.run(Until(daemon=True))))
        going.start()
        with locked(queue.book.path):
            queue.settle(lease, uid, "yes")
        assert kept.wait(20)
        drainer.stop()
        going.join(20)
    check_book(queue.store, queue.book)


def test_a_row_that_the_queue_refuses_leaves_no_reservation(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SqliteDatabase.__init__.__kwdefaults__, "busy_ms", 50)  # type: ignore[attr-defined]
    with Queue.open(queue.home) as worker:
        [lease] = worker.lease(1)
        with locked(worker.store.db.path), pytest.raises(QueueBusy):  # type: ignore[attr-defined]
            worker.record(lease)
        assert worker.book.reservations("", 10) == {}
        assert worker.record(lease) in worker.book.reservations("", 10)


def test_a_row_that_is_there_though_it_was_refused_keeps_its_reservation(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a commit that was not acknowledged came to pass is for the ledger to say."""
    record = Store.record

    def not_acknowledged(*args: Any, **named: Any) -> None:
        record(*args, **named)
        raise QueueUnavailable("what was being written may be lost and is not acknowledged")

    [lease] = queue.lease(1)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "record", not_acknowledged)
        with pytest.raises(QueueUnavailable):
            queue.record(lease)
    [row] = queue.ledger()
    assert set(queue.book.reservations("", 10)) == {row.uid}
    check_book(queue.store, queue.book)


def test_a_reply_is_kept_whether_or_not_the_book_takes_its_charge(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_with(monkeypatch)
    [lease] = queue.lease(1)
    uid = queue.record(lease)
    assert uid is not None
    with locked(queue.book.path):
        assert queue.settle(lease, uid, "yes")
    assert queue.counts()["done"] == 1
    assert set(queue.book.reservations("", 10)) == {uid}
    went_on(queue, Lane())
