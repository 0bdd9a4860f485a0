"""Who lives: a process that may hold leases has a row in the queue and an OS lock on a file of its own.

A lock that is free means that its owner is dead, and needs no clock. An owner that is only frozen keeps its lock; that
its beat stands still is seen by others (`engine.watch`), and known to itself. Of owners on other hosts only the beat
counts: on a disk that was moved here their locks are free, but so they are where a folder is shared without its locks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from uuid import uuid4

from millpond.engine.beat import Beat, first_note, sight
from millpond.engine.clock import boot_id, boot_ms
from millpond.engine.lock import Lock, is_locked
from millpond.rules.job import OwnerRow

SWEPT_FILES = 1_000
"""Lock files looked at in one go: three system calls each. There are as many as owners, and those that nobody swept."""


class Owner:
    """This process as a holder of leases: its uuid names its row, and the lock file in which it beats."""

    def __init__(
        self, folder: Path, role: str, now_ms: int, *, lease_ms: int, boot_ms: Callable[[], int] = boot_ms
    ) -> None:
        """Raises QueueUnavailable where the lock file cannot be made. `boot_ms` is the clock that judges its beat."""
        self.row = OwnerRow(uuid4().hex, role, socket.gethostname(), os.getpid(), boot_id(), now_ms)
        self._lock = Lock(lock_file(folder, self.row.uuid))
        taken = self._lock.take(first_note(self.row.uuid, lease_ms))
        assert taken, "a new uuid cannot be locked by another"
        self._beat = Beat(self._lock, lease_ms, boot_ms)

    @property
    def uuid(self) -> str:
        """The name under which it leases."""
        return self.row.uuid

    def stands(self) -> bool:
        """Whether nobody can have given it up by its beat. If not, it leases and sends nothing more under this name."""
        return self._beat.stands()

    def leave(self, bury: Callable[[], object]) -> None:
        """Give the lock back, after `bury` has taken back what it held and marked its row dead.

        If that raises, the file stays, and its free lock tells whoever looks next that the owner is dead. Were it gone,
        the owner would pass for alive as long as this process runs.
        """
        try:
            bury()
            self._lock.path.unlink(missing_ok=True)
        finally:
            self._beat.end()
            self._lock.release()


def is_here(owner: OwnerRow) -> bool:
    """Whether an owner is of this host: by its name, or of this very boot, as a container is that was made anew."""
    return owner.host == socket.gethostname() or (bool(owner.boot_id) and owner.boot_id == boot_id())


def is_dead(folder: Path, owner: OwnerRow) -> bool:
    """Whether an owner of this host is surely dead: its lock is free. One of another host may live, by one look.

    A lock file that is gone says nothing about a living process, so the process itself is asked for then.
    """
    if not is_here(owner):
        return False
    path = lock_file(folder, owner.uuid)
    if path.exists():
        return not is_locked(path)
    if owner.boot_id != boot_id():
        return True
    return owner.host == socket.gethostname() and not _runs(owner.pid)  # another container counts its own processes


def forget(folder: Path, owner: str) -> None:
    """Delete the lock file of an owner that was declared dead."""
    lock_file(folder, owner).unlink(missing_ok=True)


def left_locks(folder: Path) -> list[str]:
    """The owners whose lock files nobody holds any more, a bounded number. One that is only being made is not among
    them: it says nothing yet.
    """
    with suppress(OSError):
        return [
            path.stem
            for path in islice((folder / "owners").glob("*.lock"), SWEPT_FILES)
            if sight(path) is not None and not is_locked(path)
        ]
    return []


def lock_file(folder: Path, uuid: str) -> Path:
    """Where an owner's lock and beat stand."""
    return folder / "owners" / f"{uuid}.lock"


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
