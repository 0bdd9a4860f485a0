"""The SQLite database as its callers see it: rows, counters, reads, opening, closing."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest
from item_database import add, bodies, open_items, run_script, start_script, total

from millpond.db import connection as connection_module
from millpond.db import sqlite
from millpond.db.sqlite import SqliteDatabase
from millpond.rules.errors import QueueUnavailable, SettingsError, UsageError


def test_rows_are_named_and_complete(database: SqliteDatabase):
    first = database.write(lambda tx: tx.one("add", body="a"))
    database.write(lambda tx: tx.many("add_quietly", [{"body": "b"}, {"body": "c\0d"}]))
    assert (first.id, first.body) == (1, "a")
    rows = database.read(lambda tx: tx.all("bodies"))
    assert [row.body for row in rows] == ["a", "b", "c\0d"]
    assert database.read(lambda tx: tx.all("listed", ids=[3, 1])) == [(1, "a"), (3, "c\0d")]
    assert database.read(lambda tx: tx.all("listed", ids=())) == []
    assert database.read(lambda tx: tx.one("listed", ids=[99])) is None


def test_a_returning_statement_is_done_whole_even_if_one_row_is_wanted(database: SqliteDatabase):
    database.write(lambda tx: tx.many("add", [{"body": "old"}] * 5))
    assert database.write(lambda tx: tx.one("rename_all", body="new")).id == 1
    assert bodies(database) == ["new"] * 5


def test_rows_given_to_many_may_ask_the_same_transaction(database: SqliteDatabase):
    def operation(tx: Any) -> None:
        tx.many("add", ({"body": str(tx.one("total").items)} for _ in range(3)))

    database.write(operation)
    assert bodies(database) == ["0", "1", "2"]


def test_a_parameter_that_is_missing_is_an_error_naming_the_statement(database: SqliteDatabase):
    with pytest.raises(Exception, match="body") as caught:
        database.write(lambda tx: tx.all("add"))
    assert "in the statement 'add'" in caught.value.__notes__[0]
    with pytest.raises(AssertionError, match="no statement is named 'ad'"):
        database.write(lambda tx: tx.all("ad"))


def test_counters_are_written_once_an_operation_and_undone_with_it(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path)
    del trace[:]

    def busy(tx: Any) -> None:
        tx.count("ready", 3)
        tx.count("ready", -1)
        tx.count("done", 1)
        tx.count("done", -1)

    def failing(tx: Any) -> None:
        tx.count("ready", 100)
        raise LookupError

    outcomes = database.write_all([busy, failing])
    assert isinstance(outcomes[1], LookupError)
    assert database.read(lambda tx: tx.all("tallies")) == [("ready", 2)]
    assert sum("INSERT INTO tally" in sql for _, sql in trace) == 1
    database.close()


def test_a_read_cannot_write(database: SqliteDatabase):
    with pytest.raises(AssertionError, match="'add' writes"):
        database.read(add())
    with pytest.raises(AssertionError, match="in a read"):
        database.read(lambda tx: tx.count("ready", 1))
    assert total(database) == 0


def test_no_generator_and_no_transaction_escapes(database: SqliteDatabase):
    kept: list[Any] = []
    with pytest.raises(AssertionError, match="returned generator"):
        database.read(lambda tx: (row for row in tx.all("bodies")))
    with pytest.raises(AssertionError, match="returned map"):
        database.write(lambda tx: map(str, tx.all("add", body="never")))
    database.read(kept.append)
    database.write(kept.append)
    for transaction in kept:
        with pytest.raises(AssertionError, match="has ended"):
            transaction.all("total")
    assert total(database) == 0


def test_o07_no_read_transaction_outlives_its_read(database: SqliteDatabase, path: Path):
    database.write(lambda tx: tx.many("add", [{"body": "x" * 10_000}] * 2_000))
    threads = [threading.Thread(target=total, args=[database]) for _ in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    with pytest.raises(LookupError):
        database.read(lambda tx: {}[tx.one("total")])
    total(database)
    assert os.path.getsize(f"{path}-wal") > 16_000_000
    assert database.checkpoint()
    assert os.path.getsize(f"{path}-wal") == 0


def test_o07_an_outside_reader_that_pins_the_log_is_not_waited_for(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path)
    database.write(add())
    outside = start_script(
        "import apsw, sys; c = apsw.Connection(sys.argv[1]); c.execute('BEGIN'); "
        "c.execute('SELECT * FROM item').fetchall(); print('reading', flush=True); sys.stdin.read()",
        path,
    )
    assert outside.stdout is not None
    assert outside.stdout.readline() == "reading\n"
    database.write(add())
    del trace[:]
    assert database.checkpoint() is False
    assert [sql for _, sql in trace] == [
        "PRAGMA busy_timeout = 0",
        "PRAGMA wal_checkpoint(TRUNCATE)",
        "PRAGMA busy_timeout = 10000",
    ]
    assert database.facts().log_bytes > 0
    outside.kill()
    outside.communicate()
    assert database.checkpoint() is True
    database.close()


def test_a_read_interrupted_before_its_rollback_harms_no_later_one(database: SqliteDatabase):
    total(database)
    database._of_thread.reader.run("BEGIN")  # what an interrupt between two instructions leaves behind
    assert total(database) == 0


def test_the_data_version_tells_commits_of_anybody(database: SqliteDatabase, path: Path):
    first = database.data_version()
    assert database.data_version() == first
    database.write(add())
    second = database.data_version()
    assert second != first
    run_script("import sys; from item_database import *; d = open_items(sys.argv[1]); d.write(add()); d.close()", path)
    assert database.data_version() not in (first, second)


def test_the_file_and_its_folder_are_for_the_owner_only(tmp_path: Path):
    path = tmp_path / "new folder" / "a?b#c%20d ü.db"
    database = open_items(path)
    database.write(add())
    assert path.exists()
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    database.close()


def test_settings_are_in_force(path: Path, trace: list[tuple[int, str]]):
    database = open_items(path)
    total(database)
    writer, reader = database._connection, database._of_thread.reader
    for connection in (writer, reader):
        assert connection.value("PRAGMA foreign_keys") == 1
        assert connection.value("PRAGMA temp_store") == 2
        assert connection.run("PRAGMA mmap_size") in ([(0,)], [])
        with pytest.raises(apsw.SQLError, match="no such column"):
            connection.run('SELECT "not a column"')
    assert writer.value("PRAGMA wal_autocheckpoint") == 4000
    assert writer.value("PRAGMA journal_size_limit") == 16 * 1024 * 1024
    assert writer.value("PRAGMA journal_mode") == "wal"
    assert reader.value("PRAGMA query_only") == 1
    database.close()


def test_a_file_system_without_shared_memory_is_named(path: Path):
    # SQLite's dot-file locking has no shared memory, as network file systems have none, so no write-ahead log.
    vfs = apsw.VFS("no-shared-memory", base="unix-dotfile", makedefault=True)
    try:
        with pytest.raises(QueueUnavailable, match=r"cannot have a write-ahead log.*local disk"):
            open_items(path)
    finally:
        vfs.unregister()


def test_an_sqlite_that_corrupts_logs_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module.apsw, "sqlite_lib_version", lambda: "3.40.1")
    with pytest.raises(SettingsError, match=r"found SQLite 3\.40\.1, wanted 3\.51\.3"):
        open_items(path)
    assert not path.exists()


def test_the_standard_librarys_sqlite_is_never_imported():
    run_script("import sys, item_database; sys.exit('sqlite3' in sys.modules or '_sqlite3' in sys.modules)")


def test_a_file_deleted_or_replaced_under_us_takes_no_more_writes(database: SqliteDatabase, path: Path):
    database.write(add())
    path.rename(path.with_suffix(".away"))
    with pytest.raises(QueueUnavailable, match="deleted or moved away"):
        database.write(add())
    path.write_bytes(path.with_suffix(".away").read_bytes())
    with pytest.raises(QueueUnavailable, match="replaced by another file"):
        database.write(add())
    path.with_suffix(".away").rename(path)
    assert database.write(add()) == 2


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(QueueUnavailable, match=r"file/queue\.db"):
        open_items(tmp_path / "file" / "queue.db")


def test_closing_twice_is_allowed_and_using_it_afterwards_is_not(database: SqliteDatabase):
    database.write(add())
    total(database)
    database.close()
    database.close()
    for use in (
        lambda: database.write(add()),
        lambda: database.write_all([add()]),
        lambda: total(database),
        database.data_version,
        database.checkpoint,
        database.facts,
        database.integrity_check,
    ):
        with pytest.raises(UsageError, match="was closed"):
            use()


def test_a_thread_that_ends_takes_its_reader_with_it(database: SqliteDatabase, path: Path):
    inside, leave = threading.Event(), threading.Event()

    def reads() -> None:
        total(database)
        inside.set()
        leave.wait()

    def readers() -> int:
        return sum(connection.filename == str(path) for connection in apsw.connections())

    before = readers()
    thread = threading.Thread(target=reads)
    thread.start()
    inside.wait()
    assert readers() == before + 1
    leave.set()
    thread.join()
    assert readers() == before


def test_reading_inside_an_operation_is_said_to_be_wrong(database: SqliteDatabase):
    with pytest.raises(AssertionError, match="read\\(\\) inside an operation"):
        database.write(lambda tx: total(database))
    with pytest.raises(AssertionError, match="read\\(\\) inside an operation"):
        database.read(lambda tx: total(database))
    with pytest.raises(AssertionError, match="close\\(\\) inside an operation"):
        database.write(lambda tx: database.close())
    assert database.write(add()) == 1


def test_facts_say_what_a_person_looks_for(database: SqliteDatabase, path: Path):
    facts = database.facts()
    assert (facts.journal_mode, facts.schema_version, facts.path) == ("wal", 1, path)
    assert facts.application_id == sqlite.APPLICATION_ID
    assert facts.pages > 1
    assert database.integrity_check() == []


def test_damage_is_found_and_told(path: Path):
    database = open_items(path)
    database.write(lambda tx: tx.many("add", [{"body": "x" * 500}] * 500))
    database.close()
    with path.open("r+b") as file:
        file.seek(3 * 4096)
        file.write(b"\xff" * 4096 * 20)
    database = open_items(path)
    assert database.integrity_check(limit=3)
    with pytest.raises(QueueUnavailable, match=r"is damaged.*millpond doctor"):
        bodies(database)
    database.close()
