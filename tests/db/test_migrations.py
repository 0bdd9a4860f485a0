"""Migrations: forward only, resumable, once; newer files and other people's files are left alone."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import apsw
import pytest
from item_database import MIGRATIONS, add, bodies, finish, open_items, start_script, total

from millpond.db.connection import Connection
from millpond.db.migrations import Migration, read_folder
from millpond.rules.errors import QueueUnavailable, SchemaTooNew, SettingsError

SECOND = Migration(
    2,
    "notes",
    (
        "ALTER TABLE item ADD COLUMN note TEXT",
        "CREATE TABLE log (what TEXT)",
        "INSERT INTO log VALUES ('upgraded') RETURNING what",
    ),
)


def snapshot(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def schema(path: Path) -> list[object]:
    connection = apsw.Connection(str(path))
    found = connection.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY type, name").fetchall()
    connection.close()
    return found


def test_an_older_file_is_upgraded_and_keeps_its_rows(path: Path):
    old = open_items(path)
    old.write(add("kept"))
    old.close()
    for _ in range(2):
        database = open_items(path, migrations=(*MIGRATIONS, SECOND))
        assert database.facts().schema_version == 2
        assert bodies(database) == ["kept"]
        database.close()


def test_o01_upgraded_and_fresh_are_the_same(tmp_path: Path):
    open_items(tmp_path / "old.db").close()
    for name in ("old.db", "fresh.db"):
        open_items(tmp_path / name, migrations=(*MIGRATIONS, SECOND)).close()
    assert schema(tmp_path / "old.db") == schema(tmp_path / "fresh.db")


def test_o01_an_older_program_refuses_before_touching_anything(path: Path):
    newer = open_items(path, migrations=(*MIGRATIONS, SECOND))
    newer.write(add("theirs"))
    newer.close()
    before = snapshot(path.parent)
    with pytest.raises(
        SchemaTooNew, match=r"has schema version 2, this program knows 1 at most.*Run the newer program"
    ):
        open_items(path)
    assert snapshot(path.parent) == before


def test_o01_a_program_that_runs_while_another_upgrades_stops_writing(path: Path):
    old = open_items(path)
    old.write(add("before"))
    newer = open_items(path, migrations=(*MIGRATIONS, SECOND))
    with pytest.raises(SchemaTooNew, match="schema version 2"):
        old.write(add("never"))
    assert total(old) == 1, "status stays readable"
    assert total(newer) == 1
    newer.close()
    old.close()


def test_a_file_that_is_no_database_is_left_alone(path: Path):
    path.write_text("My notes on queues, which are much longer than a header.\n" * 40)
    before = snapshot(path.parent)
    with pytest.raises(QueueUnavailable, match="is not an SQLite database; it was left as it is"):
        open_items(path)
    assert snapshot(path.parent) == before


@pytest.mark.parametrize("setting", ["PRAGMA application_id = 7", "CREATE TABLE theirs (a)"])
def test_another_programs_database_is_left_alone(path: Path, setting: str):
    connection = apsw.Connection(str(path))
    connection.execute(setting).fetchall()
    connection.close()
    before = snapshot(path.parent)
    with pytest.raises(SettingsError, match="belongs to another program"):
        open_items(path)
    assert snapshot(path.parent) == before


def test_an_empty_file_becomes_a_database(path: Path):
    path.touch()
    database = open_items(path)
    assert database.write(add()) == 1
    database.close()


def test_a_step_that_fails_changes_nothing_and_says_which(path: Path):
    open_items(path).close()
    broken = Migration(2, "broken", ("CREATE TABLE half (a)", "INSERT INTO nothing VALUES (1)"))
    with pytest.raises(QueueUnavailable, match=r"schema version 2 \(broken\) failed and changed nothing: .*nothing"):
        open_items(path, migrations=(*MIGRATIONS, broken))
    database = open_items(path)
    assert database.facts().schema_version == 1
    database.close()
    assert "half" not in str(schema(path))


def test_a_step_may_rebuild_a_table_but_leave_no_dangling_reference(path: Path):
    parent = Migration(
        2,
        "parent",
        (
            "CREATE TABLE child (item_id INTEGER NOT NULL REFERENCES item (id) ON DELETE CASCADE)",
            "INSERT INTO item (id, body) VALUES (1, 'a')",
            "INSERT INTO child VALUES (1)",
        ),
    )
    rebuild = Migration(
        3,
        "rebuild",
        (
            "CREATE TABLE next (id INTEGER PRIMARY KEY, body TEXT NOT NULL, note TEXT)",
            "INSERT INTO next SELECT id, body, NULL FROM item",
            "DROP TABLE item",
            "ALTER TABLE next RENAME TO item",
        ),
    )
    lose = Migration(4, "lose", ("DELETE FROM item",))
    open_items(path, migrations=(*MIGRATIONS, parent, rebuild)).close()
    with pytest.raises(QueueUnavailable, match="1 rows of child refer to rows that are not there"):
        open_items(path, migrations=(*MIGRATIONS, parent, rebuild, lose))
    database = open_items(path, migrations=(*MIGRATIONS, parent, rebuild))
    assert bodies(database) == ["a"]
    assert database._connection.value("SELECT count(*) FROM child") == 1
    assert database._connection.value("PRAGMA foreign_keys") == 1
    database.close()


# The second statement of the step announces that it runs, and waits until its pipe is closed.
UPGRADE = """
import apsw, os, sys
from item_database import *
announce, wait = int(sys.argv[2]), int(sys.argv[3])

def barrier():
    os.write(announce, b"!")
    os.read(wait, 1)
    return 0

apsw.connection_hooks.append(lambda connection: connection.create_scalar_function("barrier", barrier, 0))
second = Migration(2, "second", ("CREATE TABLE log (what TEXT)", "SELECT barrier()", "INSERT INTO log VALUES ('once')"))
database = open_items(sys.argv[1], migrations=(*MIGRATIONS, second))
print(database.facts().schema_version, database._connection.run("SELECT * FROM log"))
"""


def test_o01_an_upgrade_killed_in_the_middle_resumes(path: Path):
    database = open_items(path)
    database.write(add("kept"))
    database.close()
    announced, announce = os.pipe()
    wait, go = os.pipe()
    killed = start_script(UPGRADE, path, announce, wait, pass_fds=[announce, wait])
    assert os.read(announced, 1) == b"!"
    killed.kill()
    killed.communicate()
    assert schema_version(path) == 1
    os.close(go)
    resumed = start_script(UPGRADE, path, announce, wait, pass_fds=[announce, wait])
    assert finish(resumed) == "2 [('once',)]\n"
    for descriptor in (announced, announce, wait):
        os.close(descriptor)


def test_o01_programs_that_start_at_once_upgrade_once(path: Path):
    announced, announce = os.pipe()
    wait, go = os.pipe()
    first = start_script(UPGRADE, path, announce, wait, pass_fds=[announce, wait])
    assert os.read(announced, 1) == b"!"
    others = [start_script(UPGRADE, path, announce, wait, pass_fds=[announce, wait]) for _ in range(3)]
    os.close(go)
    for process in (first, *others):
        assert finish(process) == "2 [('once',)]\n"
    os.close(announce)
    assert os.read(announced, 9) == b"", "the step ran once"
    os.close(announced)
    os.close(wait)


WITHOUT_TURNSTILE = """
import os
from millpond.db.turnstile import Turnstile
Turnstile.enter = lambda self, bound_ms: None

def announce_begin(connection):
    connection.exec_trace = lambda cursor, sql, _: sql != "BEGIN IMMEDIATE" or os.write(announce, b"b") == 1

apsw.connection_hooks.append(announce_begin)
"""


def test_o01_one_who_waited_for_the_upgrade_looks_again(path: Path):
    """Even with the turnstile deleted under them: SQLite's lock decides who upgrades, the others find it done."""
    open_items(path).close()
    announced, announce = os.pipe()
    wait, go = os.pipe()
    script = UPGRADE.replace("second =", WITHOUT_TURNSTILE + "\nsecond =")
    processes = [start_script(script, path, announce, wait, pass_fds=[announce, wait]) for _ in range(3)]
    seen = b""
    while len(seen) < 4:  # three that begin, one that is inside
        seen += os.read(announced, 1)
    assert sorted(seen) == sorted(b"bbb!")
    os.close(go)
    for process in processes:
        assert finish(process) == "2 [('once',)]\n"
    for descriptor in (announced, announce, wait):
        os.close(descriptor)


def schema_version(path: Path) -> int:
    connection = apsw.Connection(str(path))
    (version,) = connection.execute("PRAGMA user_version").fetchall()[0]
    connection.close()
    return version


def test_a_folder_of_steps_is_read_in_order(tmp_path: Path):
    (tmp_path / "002_more-of-it.sql").write_text("CREATE TABLE b (x);\n-- then;\nCREATE INDEX c ON b (x);\n")
    (tmp_path / "001.sql").write_text(
        "CREATE TABLE a (x);\nCREATE TRIGGER t AFTER INSERT ON a BEGIN\n  DELETE FROM a;\n  SELECT 1;\nEND;\n"
    )
    (tmp_path / "README.md").write_text("not a step")
    first, second = read_folder(tmp_path)
    assert (first.version, first.name, len(first.statements)) == (1, "001", 2)
    assert (second.version, second.name) == (2, "more-of-it")
    assert second.statements == ("CREATE TABLE b (x)", "CREATE INDEX c ON b (x)")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"001.sql": "SELECT 1", "003.sql": "SELECT 1"}, r"numbered \[1, 3\]"),
        ({"001.sql": "SELECT 1", "001_b.sql": "SELECT 1"}, r"numbered \[1, 1\]"),
        ({"one.sql": "SELECT 1"}, "wanted a name like"),
        ({"001.sql": "-- to do;\n"}, "holds no statement"),
    ],
)
def test_a_folder_that_could_be_misread_is_refused(tmp_path: Path, files: dict[str, str], words: str):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        read_folder(tmp_path)


def test_a_file_that_another_makes_just_now_is_not_taken_for_a_strangers(path: Path, monkeypatch: pytest.MonkeyPatch):
    empty = apsw.Connection(str(path))
    empty.execute("PRAGMA journal_mode = WAL").fetchall()
    empty.close()
    value = Connection.value

    def made_after_the_first_look(self: Connection, sql: str) -> object:
        found = value(self, sql)
        if sql == "PRAGMA application_id":
            monkeypatch.setattr(Connection, "value", value)
            open_items(path).close()
        return found

    monkeypatch.setattr(Connection, "value", made_after_the_first_look)
    database = open_items(path)
    assert bodies(database) == []
    database.close()
