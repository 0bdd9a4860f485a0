"""A thread that commits is interrupted: nothing is torn, nobody hangs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from company import Company, Line
from item_database import add, bodies, total

from millpond.db import writer
from millpond.db.sqlite import SqliteDatabase
from millpond.rules.errors import QueueUnavailable


def test_an_interrupted_operation_is_undone_and_hangs_nobody(database: SqliteDatabase):
    """The main thread is interrupted in the middle of its operation while others stand in line."""
    company: list[threading.Thread] = []
    done: list[int] = []
    line = Line(database)

    def interrupted(transaction: Any) -> None:
        transaction.all("add", body="undone")
        for number in range(4):
            thread = threading.Thread(target=lambda number=number: done.append(database.write(add(str(number)))))
            thread.start()
            company.append(thread)
        line.reaches(5)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        database.write(interrupted)
    for thread in company:
        thread.join(30)
        assert not thread.is_alive()
    assert sorted(done) == [1, 2, 3, 4]
    assert sorted(bodies(database)) == ["0", "1", "2", "3"]
    with pytest.raises(KeyboardInterrupt):
        database.write_all([add("undone"), interrupted_at_once, add("undone")])
    assert total(database) == 4


def interrupted_at_once(transaction: Any) -> None:
    signal.raise_signal(signal.SIGINT)


def test_the_main_thread_commits_nobodys_work_but_its_own(database: SqliteDatabase):
    """An interrupt reaches the main thread only, so it must never stand in another caller's operation."""
    ran_on: dict[str, int] = {}

    def note(name: str) -> Callable[[Any], None]:
        return lambda tx: ran_on.__setitem__(name, threading.get_ident())

    def mine(transaction: Any) -> None:
        threads.append(threading.Thread(target=database.write, args=[note("theirs")]))
        threads[0].start()
        line.reaches(2)

    threads: list[threading.Thread] = []
    line = Line(database)
    database.write(mine)
    threads[0].join()
    assert ran_on["theirs"] != threading.get_ident()


def test_an_interrupt_while_waiting_withdraws_what_was_not_begun(database: SqliteDatabase):
    company = Company(database)

    interrupted = threading.Event()

    def interrupt(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    def later() -> None:
        company.line.reaches(1)
        # Again and again: a signal that comes just before the thread blocks on a lock does not wake it.
        while not interrupted.wait(0.01):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    thread = threading.Thread(target=later)
    before = signal.signal(signal.SIGUSR1, interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            database.write(add("withdrawn"))
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    company.start("a", add("a"))
    company.let_go()
    assert bodies(database) == ["a"]
    assert not database._writer._line


def test_an_operation_that_ends_its_thread_ends_its_own_callers_only(database: SqliteDatabase):
    def leaves(transaction: Any) -> None:
        transaction.all("add", body="undone")
        raise SystemExit(3)

    company = Company(database)
    company.start("a", add("a"))
    company.start("leaves", leaves)
    company.start("b", add("b"))
    outcomes = company.let_go()
    assert isinstance(outcomes["leaves"], SystemExit)
    assert bodies(database) == ["a", "b"]


def test_interrupts_at_any_moment_tear_nothing(database: SqliteDatabase):
    acknowledged: list[int] = []
    mine: list[int] = []
    attempts = 0
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            acknowledged.append(database.write(add("theirs"), full=False))

    def interrupts() -> None:
        # Not too many: a test that is interrupted in its own cleaning up proves nothing.
        while not stop.is_set():
            if armed.wait(0.1):
                armed.clear()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    armed = threading.Event()
    threads = [threading.Thread(target=others) for _ in range(2)] + [threading.Thread(target=interrupts)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        try:
            armed.set()
            for _ in range(500):  # an interrupt may be lost in somebody's callback (hypothesis has one for gc)
                attempts += 1
                mine.append(database.write(add("mine"), full=False))
        except KeyboardInterrupt:
            pass
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    rows = database.read(lambda tx: tx.all("listed", ids=range(1, len(acknowledged) + attempts + 1)))
    there = {row.id for row in rows}
    assert set(acknowledged) == {row.id for row in rows if row.body == "theirs"}
    assert set(mine) <= there
    assert len(there) <= len(acknowledged) + attempts
    assert database.write(add()) > 0


def test_a_thread_torn_from_its_group_is_cleaned_up_after_by_the_next(
    database: SqliteDatabase, monkeypatch: pytest.MonkeyPatch
):
    """Twice interrupted, a thread cannot even undo its group: the next one with the lock does it."""
    monkeypatch.setattr(writer, "GROUP_NS", 10**12)
    torn = database._writer
    real = torn._give_up_group
    company = Company(database)
    company.start("a", add("a"))
    calls: list[int] = []

    def interrupted_again() -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real()

    def commit_interrupted(sql: str) -> Any:
        if sql == "COMMIT" and not calls:
            raise KeyboardInterrupt
        return run(sql)

    run = database._connection.run
    torn._give_up_group = interrupted_again  # type: ignore[method-assign]
    database._connection.run = commit_interrupted  # type: ignore[method-assign]
    outcomes = company.let_go()
    assert isinstance(outcomes["holder"], KeyboardInterrupt)
    assert isinstance(outcomes["a"], QueueUnavailable)
    assert "interrupted" in str(outcomes["a"])
    assert database.write(add("b")) == 1
    assert bodies(database) == ["b"]
