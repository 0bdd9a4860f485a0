"""The turnstile: one writer at a time, in line, whatever happens to the file and to the others."""

from __future__ import annotations

import os
import signal
import stat
import threading
import time
from pathlib import Path

import pytest
from item_database import start_script

from millpond.db.turnstile import Turnstile
from millpond.rules.errors import QueueUnavailable

SHORT_MS = 20
LONG_MS = 30_000


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "queue.db.turnstile"


def leave_to(inside: Turnstile, late: Turnstile) -> None:
    """Leave, and wait until the place in the line of one who waited in vain has come to its end."""
    waiter = late._waiter
    assert waiter is not None
    inside.leave()
    assert waiter._ended.wait(30)


def test_two_of_one_process_exclude_each_other(file: Path):
    first, second = Turnstile(file), Turnstile(file)
    first.enter(SHORT_MS)
    assert not second.enter(SHORT_MS)
    leave_to(first, second)
    assert second.enter(LONG_MS)
    assert not first.enter(SHORT_MS)


def test_one_who_waits_is_let_in(file: Path):
    first, second = Turnstile(file), Turnstile(file)
    first.enter(SHORT_MS)
    entered = threading.Event()
    thread = threading.Thread(target=lambda: (second.enter(LONG_MS), entered.set()))
    thread.start()
    while second._waiter is None:
        entered.wait(0.001)
    assert not entered.is_set()
    first.leave()
    thread.join()
    assert entered.is_set()


def test_one_who_gave_up_does_not_keep_what_it_gets_later(file: Path):
    first, second, third = Turnstile(file), Turnstile(file), Turnstile(file)
    first.enter(SHORT_MS)
    assert not second.enter(SHORT_MS)
    leave_to(first, second)
    assert third.enter(LONG_MS)
    third.leave()
    assert second.enter(LONG_MS)


def test_one_who_stands_still_inside_is_waited_for_once_and_then_passed_by(
    file: Path, caplog: pytest.LogCaptureFixture
):
    first, second, third = Turnstile(file), Turnstile(file), Turnstile(file)
    first.enter(SHORT_MS)
    began_s = time.monotonic()
    assert not second.enter(SHORT_MS)
    second.leave()
    for _ in range(3):
        assert not second.enter(LONG_MS)
        second.leave()
    assert time.monotonic() - began_s < LONG_MS / 2_000
    assert sum(thread.name == "millpond-turnstile" for thread in threading.enumerate()) == 1
    [said] = caplog.messages
    assert f"other processes kept {file} for 0.02 s" in said
    leave_to(first, second)
    assert second.enter(LONG_MS)
    assert not third.enter(SHORT_MS)
    leave_to(second, third)
    assert third.enter(LONG_MS)


def test_leaving_after_an_interrupted_wait_gives_the_lock_back(file: Path, monkeypatch: pytest.MonkeyPatch):
    first, second = Turnstile(file), Turnstile(file)
    first.enter(SHORT_MS)

    def interrupted(self: object, seconds: float) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("millpond.db.turnstile._Waiter.wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.enter(SHORT_MS)
    first.leave()
    waiter = second._waiter
    assert waiter is not None
    waiter._ended.wait()  # the lock was granted to one who no longer waits for it
    second.leave()
    assert first.enter(LONG_MS)


def test_o05_a_deleted_file_does_not_let_two_in_for_long(file: Path):
    first, second = Turnstile(file), Turnstile(file)
    first.enter(SHORT_MS)
    file.unlink()
    second.enter(SHORT_MS)
    first.leave()
    assert not first.enter(SHORT_MS)  # it notices that its file is not the one under this path
    leave_to(second, first)
    assert first.enter(LONG_MS)
    assert file.exists()
    first.leave()
    first.close()
    assert file.exists(), "never deleted"


def test_the_file_is_private_and_a_folder_that_forbids_it_is_named(file: Path, tmp_path: Path):
    Turnstile(file).create()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(QueueUnavailable, match=r"nowhere/turnstile: No such file"):
        Turnstile(tmp_path / "nowhere" / "turnstile").enter(SHORT_MS)


def test_a_killed_owner_lets_the_next_in_though_its_forked_child_lives(file: Path):
    owner = start_script(
        """
import os, signal, sys
from pathlib import Path
from millpond.db.turnstile import Turnstile
turnstile = Turnstile(Path(sys.argv[1])); turnstile.enter(1000)
go, told = os.pipe()
child = os.fork()
if child == 0:
    print(os.getpid(), flush=True)
    signal.pause()
signal.pause()
""",
        file,
    )
    assert owner.stdout is not None
    child = int(owner.stdout.readline())
    mine = Turnstile(file)
    assert not mine.enter(SHORT_MS)
    owner.kill()
    try:
        leave_to(mine, mine)
        assert mine.enter(LONG_MS)
        os.kill(child, 0)  # it is still there
    finally:
        os.kill(child, signal.SIGKILL)
        owner.communicate()
