"""The writer: many callers in one commit, each alone in its failure; levels; refusals of the disk."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from company import Company, Line, transactions
from item_database import add, bodies, finish, open_items, run_script, start_script, total

from millpond.db import writer
from millpond.db.failures import translate
from millpond.db.sqlite import SqliteDatabase
from millpond.db.turnstile import Turnstile
from millpond.rules.errors import QueueBusy, QueueUnavailable


def refuse(transaction: Any) -> None:
    transaction.all("add", body="undone")
    raise LookupError("mine")


def test_those_who_wait_share_one_commit_and_fail_alone(
    path: Path, trace: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
):
    database = open_items(path)
    monkeypatch.setattr(writer, "GROUP_NS", 10**12)
    company = Company(database)
    del trace[:]
    company.start("a", add("a"))
    company.start("b", refuse)
    company.start("c", lambda tx: tx.all("add", body=None))
    company.start("d", add("d"))
    outcomes = company.let_go()
    assert (outcomes["a"], outcomes["d"]) == (1, 2)
    assert isinstance(outcomes["b"], LookupError)
    assert "NOT NULL" in str(outcomes["c"])
    assert bodies(database) == ["a", "d"]
    assert [sql for _, sql in trace].count("COMMIT") == 1  # they came while the holder's transaction was open
    database.close()


def test_the_first_of_a_group_needs_no_savepoint_and_may_fail(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path)
    del trace[:]
    outcomes = database.write_all([refuse, add("a"), refuse, add("b")])
    assert [type(outcome) for outcome in outcomes] == [LookupError, int, LookupError, int]
    assert bodies(database) == ["a", "b"]
    first, second = transactions(trace)
    assert not any("SAVEPOINT" in sql for sql in first)
    assert sum("SAVEPOINT" in sql for sql in second) == 2
    assert database.write(add("c")) == 3
    assert not any("SAVEPOINT" in sql for sql in transactions(trace)[-1])
    database.close()


def test_an_operation_may_return_an_exception(database: SqliteDatabase):
    assert isinstance(database.write(lambda tx: LookupError("a value")), LookupError)


def test_a_group_is_bounded(path: Path, trace: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "GROUP_NS", 10**12)
    monkeypatch.setattr(writer, "GROUP_OPERATIONS", 3)
    database = open_items(path)
    del trace[:]
    company = Company(database)
    for number in range(7):
        company.start(str(number), add())
    company.let_go()
    sizes = [sum("INSERT" in sql for sql in group) for group in transactions(trace)]
    assert sizes == [2, 3, 2], "the holder, who adds nothing, takes two with it"
    database.close()


def test_a_long_list_is_written_in_several_groups(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path)
    del trace[:]
    assert database.write_all([add()] * 1_001) == list(range(1, 1_002))
    assert len(transactions(trace)) == 3
    assert database.write_all([]) == []
    database.close()


def test_writing_inside_an_operation_is_said_to_be_wrong(database: SqliteDatabase):
    def nested(transaction: Any) -> None:
        transaction.all("add", body="undone")
        database.write(add())

    with pytest.raises(AssertionError, match=r"write\(\) inside an operation.*use the transaction"):
        database.write(nested)
    company = Company(database)
    company.start("nested", nested)  # runs on the holder's thread
    assert isinstance(company.let_go()["nested"], AssertionError)
    assert total(database) == 0


@pytest.mark.parametrize(("durable", "levels"), [(True, ["FULL", "NORMAL", "NORMAL", "FULL"]), (False, ["NORMAL"] * 4)])
def test_a_commit_has_the_level_that_was_asked(
    path: Path, trace: list[tuple[int, str]], durable: bool, levels: list[str]
):
    database = open_items(path, durable=durable)
    del trace[:]
    for full in (True, False, False, True):
        database.write(add(), full=full)
    level, found = "FULL", []
    for _, sql in trace:
        if match := re.fullmatch("PRAGMA synchronous = (.*)", sql):
            assert level != match[1], "set only where it differs"
            level = match[1]
        elif sql == "BEGIN IMMEDIATE":
            found.append(level)
    assert found == levels
    database.close()


def test_a_group_has_its_strictest_members_level(
    path: Path, trace: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
):
    database = open_items(path)
    monkeypatch.setattr(writer, "GROUP_NS", 10**12)
    monkeypatch.setattr(writer, "GROUP_OPERATIONS", 3)
    database.write(add(), full=False)
    company = Company(database, full=False, more=2)  # its group is as large as it may be
    company.start("weak", add(), full=False)
    company.start("strong", add(), full=True)
    del trace[:]
    company.let_go()
    settled = [sql for _, sql in trace if sql in ("BEGIN IMMEDIATE", "COMMIT") or "synchronous" in sql]
    assert settled == ["COMMIT", "PRAGMA synchronous = FULL", "BEGIN IMMEDIATE", "COMMIT"]
    database.close()


def test_one_who_comes_late_and_wants_more_waits_for_the_next_commit(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path, busy_ms=60_000)
    inside, leave = threading.Event(), threading.Event()

    def weak(transaction: Any) -> None:
        transaction.all("add", body="weak")
        inside.set()
        leave.wait()

    del trace[:]
    line = Line(database)
    first = threading.Thread(target=database.write, args=[weak], kwargs={"full": False})
    first.start()
    inside.wait()
    second = threading.Thread(target=database.write, args=[add("strong")])
    second.start()
    line.reaches(1)
    leave.set()
    first.join()
    second.join()
    order = [sql for _, sql in trace if sql == "COMMIT" or "synchronous" in sql]
    assert order == ["PRAGMA synchronous = NORMAL", "COMMIT", "PRAGMA synchronous = FULL", "COMMIT"]
    database.close()


def test_o15_whatever_may_write_begins_immediate_and_never_upgrades(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path)
    database.write(add())
    database.write_all([add(), refuse, add()])
    database.write(lambda tx: (tx.one("total"), tx.all("add", body="read, then write")), full=False)
    total(database)
    database.data_version()
    database.checkpoint()
    immediate: set[int] = set()
    deferred: set[int] = set()
    for connection, sql in trace:
        assert not re.match(r"BEGIN(?! IMMEDIATE)", sql) or connection not in immediate, "the writer began deferred"
        if sql == "BEGIN IMMEDIATE":
            immediate.add(connection)
        elif sql == "BEGIN":
            deferred.add(connection)
        if re.match("INSERT|UPDATE|DELETE|CREATE", sql):
            assert connection in immediate
            assert connection not in deferred
    assert immediate
    assert deferred
    database.close()


def test_o15_a_locked_database_is_busy_and_nothing_ran(database: SqliteDatabase, path: Path):
    holder = start_script(
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); "
        "print('locked', flush=True); sys.stdin.read()",
        path,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    impatient = open_items_busy(path)
    ran: list[int] = []
    with pytest.raises(QueueBusy, match=rf"{re.escape(str(path))} stayed locked"):
        impatient.write(lambda tx: ran.append(1))
    assert all(isinstance(outcome, QueueBusy) for outcome in impatient.write_all([add(), add()]))
    assert ran == []
    finish(holder)
    assert impatient.write(add()) == 1
    impatient.close()


def open_items_busy(path: Path) -> SqliteDatabase:
    """A database that gives up soon. Opening needs no lock once the schema stands."""
    return open_items(path, busy_ms=30)


def test_a_process_that_is_frozen_in_the_turnstile_keeps_no_writer_out(database: SqliteDatabase, path: Path):
    """SQLite's own lock is free: the turnstile is fairness only."""
    frozen = Turnstile(path.with_name(path.name + ".turnstile"))
    assert frozen.enter(30)
    impatient = open_items_busy(path)
    assert [impatient.write(add()) for _ in range(3)] == [1, 2, 3]
    assert impatient.checkpoint()
    frozen.close()
    impatient.close()


def test_a_transaction_that_others_keep_open_is_busy_for_all_who_wait(database: SqliteDatabase, path: Path):
    impatient = open_items_busy(path)
    company = Company(database)
    errors: list[Exception] = []

    def tries() -> None:
        try:
            impatient.write(add())
        except QueueBusy as error:
            errors.append(error)

    threads = [threading.Thread(target=tries) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 4
    assert "stayed locked" in str(errors[0])
    company.let_go()
    assert impatient.write(add()) == 1
    impatient.close()


FULL_DISK = """
import resource, sys, os, threading
from item_database import *
from millpond.rules.errors import QueueUnavailable

database = open_items(sys.argv[1])
assert database.write(add("before")) == 1
limit = os.path.getsize(sys.argv[1] + "-wal") + 10_000
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

def own(transaction):
    raise LookupError

outcomes = database.write_all([add("x" * 20_000), add("small"), own])
assert [type(outcome) for outcome in outcomes] == [QueueUnavailable, QueueUnavailable, LookupError], outcomes
assert outcomes[0] is not outcomes[1]
print(outcomes[0])
try:
    database.write(add("x" * 20_000))
except QueueUnavailable as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert database.write(add("after")) == 2
assert bodies(database) == ["before", "after"]
assert database.integrity_check() == []
"""


def test_a_commit_that_the_disk_refuses_is_acknowledged_to_nobody(path: Path):
    said = run_script(FULL_DISK, path).splitlines()
    assert len(said) == 2
    for line in said:
        assert re.search(rf"{re.escape(str(path))}.*nothing was acknowledged.*df -h.*SQLITE_IOERR_WRITE", line)


def test_a_log_index_that_finds_no_room_is_a_full_disk(path: Path):
    error = apsw.IOError("disk I/O error")
    error.result, error.extendedresult = apsw.SQLITE_IOERR, apsw.SQLITE_IOERR_SHMSIZE
    assert re.search("no room left for .*SQLITE_IOERR_SHMSIZE", str(translate(error, path)))


def test_a_full_disk_met_inside_an_operation_is_told(database: SqliteDatabase):
    database.write(lambda tx: tx.all("shrink_disk"))
    outcomes = database.write_all([add("a"), add("x" * 100_000), add("b")])
    assert isinstance(outcomes[1], QueueUnavailable)
    assert re.search("no room left for .*; nothing was written.*SQLITE_FULL", str(outcomes[1]))
    acknowledged = [body for body, outcome in zip("axb", outcomes, strict=True) if isinstance(outcome, int)]
    assert bodies(database) == acknowledged
    database.write(add("y"))
    assert bodies(database) == [*acknowledged, "y"]


def test_what_an_operation_does_after_sqlite_rolled_back_is_not_written(database: SqliteDatabase):
    def stubborn(transaction: Any) -> str:
        transaction.all("add", body="gone with the transaction")
        database._connection.run("ROLLBACK")  # what SQLite does by itself on some errors
        return "fine"

    def stubborn_after_error(transaction: Any) -> str:
        try:
            transaction._cursor.connection.execute("ROLLBACK").fetchall()
            transaction.all("add", body=None)
        except Exception:
            transaction.all("add", body="alone")
        return "fine"

    for operation in (stubborn, stubborn_after_error):
        outcomes = database.write_all([add("a"), operation, add("b")])
        assert not any(isinstance(outcome, int) for outcome in outcomes)
        assert isinstance(outcomes[0], QueueUnavailable)
        assert total(database) == 0
        assert isinstance(database.write_all([operation])[0], Exception)
        assert total(database) == 0
    assert database.write(add()) == 1


def test_on_commit_is_called_after_the_commit_and_may_write(path: Path, caplog: pytest.LogCaptureFixture):
    seen: list[int] = []

    def ring() -> None:
        seen.append(total(database))
        if len(seen) == 1:
            database.write(add())
        if len(seen) == 3:
            raise OSError("no doorbell")

    database = open_items(path, on_commit=ring)
    database.write(add())
    assert seen == [1, 2]
    with pytest.raises(LookupError):
        database.write(refuse)
    assert len(seen) == 2, "nothing was committed"
    assert database.write(add()) == 3
    assert "on_commit failed" in caplog.text
    database.close()


def test_8_threads_lose_nothing(database: SqliteDatabase):
    ids: list[int] = []
    failures: list[Exception] = []

    def work(number: int) -> None:
        for index in range(500):
            try:
                ids.append(database.write(refuse if index % 50 == 49 else add(str(number)), full=index % 3 == 0))
            except LookupError as error:
                failures.append(error)
            if index % 25 == 0:
                total(database)

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(ids) == list(range(1, 8 * 490 + 1))
    assert len(failures) == 80
    assert total(database) == 8 * 490
    assert not database._writer._line


PROCESS = """
import sys
from item_database import *
database = open_items(sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
for index in range(300):
    database.write(add(), full=index % 2 == 0)
database.close()
print("done")
"""


def test_4_processes_lose_nothing(path: Path):
    processes = [start_script(PROCESS, path) for _ in range(4)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None
    assert [finish(process) for process in processes] == ["done\n"] * 4
    database = open_items(path)
    assert total(database) == 4 * 300
    assert database.integrity_check() == []
    database.close()
