"""The beat of an owner: it goes on beside whatever the process does, and ends with the owner, its clock or its file."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from millpond.engine.beat import Sighting, sight
from millpond.engine.owner import Owner, is_dead, lock_file
from millpond.testing import FakeClock

HOLD = """
import os, sys
from pathlib import Path
from millpond.engine.owner import Owner
owner = Owner(Path(sys.argv[1]), "worker", 0, lease_ms=int(sys.argv[2]))
print(owner.uuid, flush=True)
os.read(0, 6)
os.execvp("cat", ["cat"]) if sys.argv[3] == "exec" else None
"""


def eventually(is_so: Callable[[], bool]) -> bool:
    """What another thread or process does to a file has no event."""
    deadline = time.monotonic() + 20
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def beat(folder: Path, owner: Owner) -> int:
    seen = sight(lock_file(folder, owner.uuid))
    return seen.beat if seen is not None else -1


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "millpond-beat"]


def test_an_owner_beats_while_its_main_thread_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked event loop, or a long handler: the process is at work, and nobody may take its work for that."""
    owner = Owner(tmp_path, "worker", 0, lease_ms=3_000)
    assert sight(lock_file(tmp_path, owner.uuid)) == Sighting(0, ANY, 3_000)
    write, has_beaten = os.pwrite, threading.Event()

    def watched(*what: Any) -> int:
        written = write(*what)
        has_beaten.set()
        return written

    monkeypatch.setattr("millpond.engine.lock.os.pwrite", watched)
    assert has_beaten.wait(20)
    assert beat(tmp_path, owner) >= 1
    assert owner.stands()
    owner.leave(lambda: None)


def test_a_beat_that_came_too_late_is_not_made_up_for(tmp_path: Path) -> None:
    """Others may have given it up: were it to go on, they would write so of an owner that is at work again."""
    before = threads()
    clock = FakeClock()
    owner = Owner(tmp_path, "worker", 0, lease_ms=300, boot_ms=clock)
    assert eventually(lambda: beat(tmp_path, owner) > 0)
    clock.advance(299)
    assert owner.stands()
    clock.advance(300)
    assert not owner.stands()
    for thread in threads():
        if thread not in before:
            thread.join(timeout=20)
    assert set(threads()) <= set(before)
    clock.advance(-300)
    assert not owner.stands(), "it is over, whatever the clock says later"
    owner.leave(lambda: None)


def test_a_beat_that_cannot_be_written_grows_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    owner = Owner(tmp_path, "worker", 0, lease_ms=300, boot_ms=clock)
    tried = threading.Event()

    def full(*_: object) -> int:
        tried.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("millpond.engine.lock.os.pwrite", full)
    assert tried.wait(20)
    assert owner.stands()
    clock.advance(150)
    for _ in range(2):  # the second one began after that
        tried.clear()
        assert tried.wait(20)
    clock.advance(150)
    assert not owner.stands(), "to try is not to have done it"
    monkeypatch.undo()
    owner.leave(lambda: None)


def test_an_owner_that_left_beats_no_more_and_writes_into_no_other_file(tmp_path: Path) -> None:
    before = threads()
    owner = Owner(tmp_path, "worker", 0, lease_ms=60)
    assert eventually(lambda: beat(tmp_path, owner) > 0)
    owner.leave(lambda: None)
    other = tmp_path / "other"
    with open(other, "w+"):  # it may well get the number of the descriptor that was closed
        for thread in threads():
            if thread not in before:
                thread.join(timeout=20)
        assert set(threads()) <= set(before)
    patient = Owner(tmp_path, "worker", 0, lease_ms=600_000)
    patient.leave(lambda: None)
    for thread in threads():
        if thread not in before:
            thread.join(timeout=10)
    assert set(threads()) <= set(before), "it does not wait for its next beat"
    assert other.read_bytes() == b""
    assert not owner.stands()


def test_o05_an_owner_whose_lock_file_was_deleted_knows_at_its_next_beat(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "worker", 0, lease_ms=60)
    lock_file(tmp_path, owner.uuid).unlink()
    assert eventually(lambda: not owner.stands())
    owner.leave(lambda: None)


def test_a_forked_child_has_no_beat_and_its_parent_has(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "worker", 0, lease_ms=3_000)
    child = os.fork()
    if child == 0:
        os._exit(0 if not owner.stands() and threads() == [] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    at = beat(tmp_path, owner)
    assert eventually(lambda: beat(tmp_path, owner) > at)
    assert owner.stands()
    owner.leave(lambda: None)


@pytest.mark.parametrize("how", ["exec", "end"])
def test_a_process_that_becomes_another_program_owns_nothing_more(tmp_path: Path, how: str) -> None:
    """Nor does the beat keep a process that has come to its end from ending."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), "60000", how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        uuid = process.stdout.readline().strip()
        mine = Owner(tmp_path, "worker", 0, lease_ms=15_000)
        theirs = type(mine.row)(uuid, "worker", mine.row.host, process.pid, mine.row.boot_id, 0)
        assert not is_dead(tmp_path, theirs)
        process.stdin.write("go on\n")
        process.stdin.flush()
        if how == "exec":
            process.stdin.write("I am cat\n")
            process.stdin.flush()
            assert process.stdout.readline() == "I am cat\n"
            assert process.poll() is None
        else:
            assert process.wait(20) == 0
        assert is_dead(tmp_path, theirs)
        mine.leave(lambda: None)
