"""A second SQLite in the process: nothing is written beside it, nothing is acknowledged that it made void."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from item_database import bodies, open_items, run_script, start_script

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell of a process' own locks")

BESIDE = """
import sqlite3, sys, logging
from item_database import add, open_items, total
from millpond.rules.errors import QueueUnavailable

logging.basicConfig(stream=sys.stdout, format="%(message)s")

def attempt(database, operation=None):
    try:
        database.write(operation or add("beside"))
    except QueueUnavailable as refused:
        print(refused)
    else:
        print("written")
"""


def test_a_second_sqlite_that_is_only_loaded_harms_nobody(path: Path):
    said = run_script(f"{BESIDE}\nattempt(open_items(sys.argv[1]))", path)
    assert said == "written\n"


def test_nothing_is_written_while_a_second_sqlite_has_the_file_open(path: Path):
    open_items(path).close()
    code = """
database = open_items(sys.argv[1])
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT * FROM item").fetchall()
attempt(database)
"""
    said = run_script(BESIDE + code, path)
    assert "the standard library's sqlite3) has" in said
    assert said.endswith("nothing was written\n")
    assert bodies(open_items(path)) == []


def test_a_second_sqlite_is_noticed_when_the_file_is_opened(path: Path):
    open_items(path).close()
    code = """
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT * FROM item").fetchall()
database = open_items(sys.argv[1])
print(total(database))
"""
    said = run_script(BESIDE + code, path)
    assert "the standard library's sqlite3) has" in said
    assert "until then nothing will be written" in said
    assert said.endswith("\n0\n"), "it may be read all the same"


def test_locks_that_a_second_sqlite_took_away_are_missed(path: Path):
    code = """
database = open_items(sys.argv[1])
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT * FROM item").fetchall()
other.close()
attempt(database)
database.close()
database = open_items(sys.argv[1])
attempt(database)
"""
    said = run_script(BESIDE + code, path).splitlines()
    assert "all locks on it were lost" in said[0]
    assert said[0].endswith("nothing was written")
    assert said[1] == "written", "a queue that is opened anew has its locks again"


def test_a_second_sqlite_that_took_our_locks_and_holds_its_own_is_no_proof_of_ours(path: Path):
    code = """
database = open_items(sys.argv[1])
for _ in range(2):
    other = sqlite3.connect(sys.argv[1])
    other.execute("SELECT * FROM item").fetchall()
    if _ == 0:
        other.close()
attempt(database)
"""
    assert run_script(BESIDE + code, path).endswith("nothing was written\n")


@pytest.mark.parametrize("how", ["sqlite3.connect(path).close()", "open(path).close()"])
def test_locks_that_went_with_a_closed_descriptor_are_missed(path: Path, how: str):
    code = f"path = sys.argv[1]\ndatabase = open_items(path)\n{how}\nattempt(database)"
    assert "all locks on it were lost" in run_script(BESIDE + code, path)


def test_a_transaction_through_which_another_process_wrote_is_not_committed(path: Path):
    """DESIGN §8: the holder's COMMIT would still say ok."""
    code = """
import subprocess
INSERT = "import sys, apsw; apsw.Connection(sys.argv[1]).execute('INSERT INTO item (body) VALUES (1)').fetchall()"
database = open_items(sys.argv[1])

def operation(tx):
    tx.one("add", body="mine")
    other = sqlite3.connect(sys.argv[1])
    other.execute("SELECT * FROM item").fetchall()
    other.close()
    subprocess.run([sys.executable, "-c", INSERT, sys.argv[1]], check=True)

attempt(database, operation)
"""
    said = run_script(BESIDE + code, path)
    assert said.endswith("nothing was written\n")
    assert bodies(open_items(path)) == ["1"]


def test_a_commit_during_which_our_locks_were_lost_is_not_acknowledged(path: Path):
    code = """
database = open_items(sys.argv[1])

def lose_locks():
    sqlite3.connect(sys.argv[1]).close()
    other = sqlite3.connect(sys.argv[1])
    other.execute("SELECT * FROM item").fetchall()
    other.close()
    return False

def operation(tx):
    tx.one("add", body="mine")
    tx._handle.set_commit_hook(lose_locks)

attempt(database, operation)
"""
    said = run_script(BESIDE + code, path)
    assert said.endswith("what was being written may be lost and is not acknowledged\n")


def test_our_own_sqlite_may_look_beside_us(path: Path):
    code = """
import apsw
database = open_items(sys.argv[1])
for _ in range(2):
    other = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
    other.execute("SELECT * FROM item").fetchall()
    attempt(database)
    other.close()
    attempt(database)
total(database)
attempt(database)
"""
    assert run_script(BESIDE + code, path) == "written\n" * 5


def test_after_a_fork_both_sides_write_beside_a_loaded_sqlite(path: Path):
    code = """
import os
database = open_items(sys.argv[1])
attempt(database)
sys.stdout.flush()
if os.fork() == 0:
    attempt(database)
    sys.stdout.flush()
    os._exit(0)
os.wait()
attempt(database)
"""
    assert run_script(BESIDE + code, path) == "written\n" * 3


def test_another_process_may_use_any_sqlite(path: Path):
    database = open_items(path)
    code = """
other = sqlite3.connect(sys.argv[1])
other.execute("SELECT * FROM item").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""
    other = start_script(BESIDE + code, path)
    assert other.stdout is not None
    assert other.stdout.readline() == "reading\n"
    database.write(lambda tx: tx.one("add", body="x").id)
    other.communicate()
    assert bodies(database) == ["x"]
