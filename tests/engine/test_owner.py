"""Who holds what: locks that end with their process, and never with a look."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mill_of_one import Mill
from opened import Open, command

from millpond.engine.drain_lock import DrainLock
from millpond.engine.owner import Lock, Owner, forget, is_dead, lock_file
from millpond.engine.taking_back import sweep
from millpond.rules.errors import LockHeld, QueueUnavailable

HOLD = """
import sys
from pathlib import Path
from millpond.engine.drain_lock import DrainLock
from millpond.engine.owner import Owner
DrainLock(Path(sys.argv[1])).take(0) if sys.argv[2] == "drain" else None
owner = Owner(Path(sys.argv[1]), "worker", 0, lease_ms=15_000)
print(owner.uuid, flush=True)
sys.stdin.read()
"""


Holder = Callable[[str], tuple[subprocess.Popen[str], str]]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[Holder]:
    """Start a process that holds a lock, and its owner's uuid; it is gone after the test, however that ends."""
    started: list[subprocess.Popen[str]] = []

    def start(what: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(tmp_path), what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_lock_files_of_which_nobody_has_a_use_are_swept(mill: Mill, holder: Holder) -> None:
    """Who reclaimed their owners died before it deleted them, or their owners died before they had a row."""
    folder = mill.folder.parent
    reclaimed, unknown, dead = (Owner(folder, "worker", 0, lease_ms=15_000) for _ in range(3))
    for owner in (reclaimed, dead):
        mill.store.enlist(owner.row)
    mill.store.reclaim(reclaimed.uuid)
    for owner in (reclaimed, unknown, dead):
        with pytest.raises(OSError, match="dies here"):
            owner.leave(die)
    _, living = holder("worker")
    (folder / "owners" / "being-made.lock").touch()
    sweep(mill.store, folder)
    left = {path.stem for path in (folder / "owners").iterdir()}
    assert left == {dead.uuid, living, "being-made"}, "the dead one is still to be reclaimed"


def test_who_begins_sweeps(open_queue: Open) -> None:
    queue = open_queue(command("free"))
    for begin in (queue.drain, queue.lease):
        owner = Owner(queue.folder, "worker", 0, lease_ms=15_000)
        with pytest.raises(OSError, match="dies here"):
            owner.leave(die)
        begin()
        assert not lock_file(queue.folder, owner.uuid).exists()


def die() -> None:
    raise OSError("dies here")


def test_a_second_drain_is_refused_and_told_who_drains(tmp_path: Path, holder: Holder) -> None:
    process, _ = holder("drain")
    with pytest.raises(LockHeld, match=f"pid {process.pid} on") as refused:
        DrainLock(tmp_path).take(0)
    assert f"pid {process.pid}" in refused.value.holder
    process.kill()
    process.communicate()
    DrainLock(tmp_path).take(0)


def test_two_drains_in_one_process_exclude_each_other_too(tmp_path: Path) -> None:
    first = DrainLock(tmp_path)
    first.take(0)
    with pytest.raises(LockHeld, match=f"pid {os.getpid()}"):
        DrainLock(tmp_path).take(0)
    first.release()
    DrainLock(tmp_path).take(0)


def test_asking_who_drains_refuses_no_drain_that_starts_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = DrainLock(tmp_path)
    lock.take(0)
    lock.release()
    probe = os.open(tmp_path / "drain.lock", os.O_RDWR)
    fcntl.flock(probe, fcntl.LOCK_SH)  # what `holder` does, caught in the act
    monkeypatch.setattr("millpond.engine.drain_lock.time.sleep", lambda _: os.close(probe))
    DrainLock(tmp_path).take(0)


def test_o05_a_lock_file_deleted_and_made_anew_lets_nobody_in_beside_its_holder(tmp_path: Path) -> None:
    held = Lock(tmp_path / "a.lock")
    assert held.take()
    assert held.stands()
    (tmp_path / "a.lock").unlink()
    assert not held.stands(), "its holder can see that others no longer find it"


def test_an_owner_is_dead_when_its_process_is_and_not_before(tmp_path: Path, holder: Holder) -> None:
    process, uuid = holder("own")
    row = Owner(tmp_path, "worker", 0, lease_ms=15_000).row
    theirs = type(row)(uuid, "worker", row.host, process.pid, row.boot_id, 0)
    assert not is_dead(tmp_path, theirs)
    process.kill()
    process.communicate()
    assert is_dead(tmp_path, theirs)


def test_o05_an_owner_whose_lock_file_was_deleted_is_not_taken_for_dead_while_it_runs(
    tmp_path: Path, holder: Holder
) -> None:
    process, uuid = holder("own")
    row = Owner(tmp_path, "worker", 0, lease_ms=15_000).row
    theirs = type(row)(uuid, "worker", row.host, process.pid, row.boot_id, 0)
    (tmp_path / "owners" / f"{uuid}.lock").unlink()
    assert not is_dead(tmp_path, theirs)
    process.kill()
    process.communicate()
    assert is_dead(tmp_path, theirs)


def test_an_owner_whose_leaving_could_not_be_written_is_found_dead_while_its_process_runs(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "worker", 0, lease_ms=15_000)

    def full() -> None:
        raise QueueUnavailable("the disk is full")

    with pytest.raises(QueueUnavailable):
        owner.leave(full)
    assert is_dead(tmp_path, owner.row)
    forget(tmp_path, owner.uuid)
    assert list((tmp_path / "owners").iterdir()) == []


def test_an_owner_that_left_leaves_no_file(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "worker", 0, lease_ms=15_000)
    owner.leave(lambda: None)
    assert list((tmp_path / "owners").iterdir()) == []


def test_an_owner_of_another_host_is_not_judged_by_a_file(tmp_path: Path) -> None:
    row = Owner(tmp_path, "worker", 0, lease_ms=15_000).row
    assert not is_dead(tmp_path, type(row)("gone", "worker", "elsewhere", 1, "", 0))


def test_a_forked_child_does_not_keep_its_parents_lock(tmp_path: Path) -> None:
    parent = Lock(tmp_path / "a.lock")
    assert parent.take()
    told, tell = os.pipe()
    lives, live = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(live, b".")
        os.read(told, 1)
        os._exit(0)
    os.read(lives, 1)
    parent.release()
    assert Lock(tmp_path / "a.lock").take(), "the child's copy of the descriptor still held the lock"
    os.write(tell, b".")
    os.waitpid(child, 0)
