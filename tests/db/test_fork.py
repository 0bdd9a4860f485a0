"""Forks: parent and child each have connections of their own, and neither harms the other (O14)."""

from __future__ import annotations

import threading
from pathlib import Path

from item_database import open_items, run_script, total

from millpond.db import fork


def check_file(path: Path, rows: int) -> None:
    database = open_items(path)
    assert total(database) == rows
    assert database.integrity_check() == []
    database.close()


O14 = """
import os, sys
from item_database import *
database = open_items(sys.argv[1])
database.write(add("parent"))
total(database)
version = database.data_version()
child = os.fork()
database.write(add("child" if child == 0 else "parent"))
if child:
    assert database.data_version() != version
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(499):
        database.write(add("parent"))
    print(total(database), database.integrity_check())
"""


def test_o14_the_child_exits_normally_and_the_parent_goes_on(path: Path):
    assert run_script(O14, path) == "502 []\n"
    check_file(path, 502)


MULTIPROCESSING = """
import multiprocessing, sys
from item_database import *

def work():
    for _ in range(100):
        database.write(add("child"))

database = open_items(sys.argv[1])
database.write(add("parent"))
context = multiprocessing.get_context("fork")
children = [context.Process(target=work) for _ in range(2)]
for child in children:
    child.start()
for _ in range(100):
    database.write(add("parent"))
for child in children:
    child.join()
    assert child.exitcode == 0
print(total(database))
"""


def test_o14_multiprocessing_forks(path: Path):
    assert run_script(MULTIPROCESSING, path) == "301\n"
    check_file(path, 301)


PARENT_CLOSES = """
import os, sys
from item_database import *
database = open_items(sys.argv[1])
database.write(add("parent"))
total(database)
from_child, to_parent = os.pipe()
from_parent, to_child = os.pipe()
child = os.fork()
if child == 0:
    database.write(add("child"))
    os.write(to_parent, b"!")
    os.read(from_parent, 1)
    for _ in range(10):
        database.write(add("child"))
    assert total(database) == 12
    os._exit(0)  # closing would bring what it wrote into the file after all
os.read(from_child, 1)
database.close()
os.write(to_child, b"!")
assert os.waitpid(child, 0)[1] == 0
"""


def test_o14_the_parent_may_close_while_the_child_goes_on(path: Path):
    """With an inherited connection in its process the child's own holds no lock: the log is deleted under it."""
    run_script(PARENT_CLOSES, path)
    check_file(path, 12)


BUSY_THREAD = """
import os, sys, threading
from item_database import *
database = open_items(sys.argv[1])
stop = threading.Event()
counts = [0, 0]

def work(number):
    while not stop.is_set():
        database.write(add("thread"), full=False)
        counts[number] += 1
        total(database)

threads = [threading.Thread(target=work, args=[number]) for number in range(2)]
for thread in threads:
    thread.start()
statuses = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        try:
            database.write(add("child"))
            total(database)
        except BaseException:
            os._exit(1)
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
assert set(statuses) == {0}, statuses
assert total(database) == sum(counts) + 20, (total(database), counts)
assert database.integrity_check() == []
print("done")
"""


def test_o14_forking_while_other_threads_write_and_read(path: Path):
    assert run_script(BUSY_THREAD, path) == "done\n"


STUCK_THREAD = """
import os, sys, threading
from item_database import *
from millpond.db import fork
from millpond.rules.errors import UsageError
fork.FORK_WAIT_S = 0.01
database = open_items(sys.argv[1])
inside, leave = threading.Event(), threading.Event()

def stuck(transaction):
    transaction.all("add", body="parent")
    inside.set()
    leave.wait()
    transaction.all("add", body="parent")

thread = threading.Thread(target=database.write, args=[stuck])
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    for use in (lambda: database.write(add()), lambda: open_items(sys.argv[1])):
        try:
            use()
        except UsageError as error:
            assert "forked while a transaction" in str(error)
        else:
            os._exit(1)
    database.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
leave.set()
thread.join()
print(database.write(add()), database.integrity_check())
"""


def test_o14_a_transaction_that_does_not_end_makes_the_file_unusable_in_the_child_only(path: Path):
    assert run_script(STUCK_THREAD, path) == "3 []\n"
    check_file(path, 3)


FORK_INSIDE = """
import apsw, os, sys
from item_database import *
from millpond.db import fork
database = open_items(sys.argv[1])
children = []

def forks(transaction):
    transaction.all("add", body="parent")
    children.append(os.fork())
    if children[0] == 0 and sys.argv[2] == "uses":
        transaction.all("add", body="child")
    transaction.all("total") if children[0] else None

try:
    database.write(forks) if sys.argv[3] == "write" else database.read(
        lambda tx: (children.append(os.fork()), tx.all("total"))
    )
except Exception as error:
    assert children[0] == 0, error
    print(type(error).__name__, error)
else:
    assert children[0] != 0, "the child thinks it has committed"
if children[0] == 0:
    database.close()
    del database
    assert len(apsw.connections()) == 1, "what is inherited is never closed"
    sys.exit(0)
assert os.waitpid(children[0], 0)[1] == 0
database.write(add("parent"))
print(total(database), database.integrity_check())
"""


def test_o14_a_fork_inside_an_operation_leaves_the_transaction_to_the_parent(path: Path):
    uses, counted = run_script(FORK_INSIDE, path, "uses", "write").splitlines()
    assert "belongs to the parent process" in uses
    assert counted == "2 []"
    returns, counted = run_script(FORK_INSIDE, path, "returns", "write").splitlines()
    assert returns.startswith("QueueUnavailable")
    assert counted == "4 []"
    reads, counted = run_script(FORK_INSIDE, path, "uses", "read").splitlines()
    assert "belongs to the parent process" in reads
    assert counted == "5 []"
    check_file(path, 5)


WAITS_IN_LINE = """
import os, sys, threading
from item_database import *
from millpond.db import fork
fork.FORK_WAIT_S = 0.01
database = open_items(sys.argv[1])
holder = open_items(sys.argv[1])
inside, leave = threading.Event(), threading.Event()
first = threading.Thread(target=holder.write, args=[lambda tx: (inside.set(), leave.wait())[:0]])
first.start()
inside.wait()
second = threading.Thread(target=database.write, args=[add()])
second.start()
while database._turnstile._waiter is None:
    pass
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
leave.set()
first.join()
second.join()
print(total(database), flush=True)
holder.close()
database.close()
"""


def test_a_thread_that_stands_in_line_during_a_fork_gets_its_turn(path: Path):
    assert run_script(WAITS_IN_LINE, path) == "1\n"
    check_file(path, 1)


def test_o14_a_fork_waits_for_one_who_stands_in_line(path: Path):
    """The turn comes while the fork is being made ready: whoever hands it over must not stand still for the fork."""
    script = WAITS_IN_LINE.replace("fork.FORK_WAIT_S = 0.01", "os.register_at_fork(before=lambda: leave.set())")
    script = script.replace("    sys.stdin.read()\n", '    database.write(add("child"))\n')
    assert script.count("leave.set()") == 2
    assert (
        run_script(script.replace("first.join()", "assert os.waitpid(child, 0)[1] == 0\nfirst.join()"), path) == "2\n"
    )
    check_file(path, 2)


def test_a_fork_goes_before_those_who_come_later():
    """A thread that takes and releases its lock in a loop would keep a fork waiting for as long as it likes."""
    passed = threading.Event()
    thread = threading.Thread(target=lambda: (fork.pass_gate(), passed.set()))
    fork._before()
    try:
        thread.start()
        assert not passed.wait(0.05)
    finally:
        fork._after_in_parent()
    thread.join()
    assert passed.is_set()
