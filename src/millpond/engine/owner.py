"""Who lives: a process that may hold leases has a row in the queue and an OS lock on a file of its own.

The lock is `flock`: it ends with the process, however that ends, and needs no clock. A lock that is free means that its
owner is dead. Beats, and owners on other hosts, come with the safety issue.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from millpond.db import fork
from millpond.rules.errors import LockHeld, QueueUnavailable
from millpond.rules.job import OwnerRow

PROBE_S = 0.1
"""Whoever asks for the holder holds the lock himself for an instant; a drain that starts just then tries again."""

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Lock:
    """An exclusive lock on a file, held by this process alone: never waited for, never deleted while it matters.

    A forked child closes its copy, so that the lock ends with the process that took it.
    """

    fork_order = 0
    """Nothing waits for it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        fork.join(self)

    def take(self, note: str = "") -> bool:
        """Take the lock and write `note` into the file; False if somebody holds it. Raises QueueUnavailable."""
        while True:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError as error:
                raise QueueUnavailable(f"cannot open the lock file {self.path}: {error.strerror}") from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            if self._is_the_file(descriptor):
                break
            os.close(descriptor)  # deleted between open and lock: our lock is on a file nobody else will find (O05)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, note.encode(), 0)
        except OSError as error:
            os.close(descriptor)
            raise QueueUnavailable(
                f"cannot write the lock file {self.path}: {error.strerror}; free some space"
            ) from error
        self._descriptor = descriptor
        return True

    def stands(self) -> bool:
        """Whether the lock is held and its file is still the one that others would find."""
        return self._descriptor is not None and self._is_the_file(self._descriptor)

    def release(self) -> None:
        """Give the lock back. The file stays."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def note(self) -> str:
        """What the holder wrote into the file; "" if there is none."""
        try:
            return self.path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def before_fork(self, deadline: float) -> None:
        """Nothing to prepare: the child closes its copy."""

    def after_fork(self, *, child: bool) -> None:
        """Close the child's copy; the parent's stays locked, since the open file is shared and not unlocked."""
        if child:
            self.release()

    def _is_the_file(self, descriptor: int) -> bool:
        ours = os.fstat(descriptor)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the drain lock."""

    pid: int
    host: str
    since_ms: int

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}"


class DrainLock:
    """One drainer a queue: the lock file beside the database, with the holder's name in it."""

    def __init__(self, folder: Path) -> None:
        self._lock = Lock(folder / "drain.lock")

    def take(self, now_ms: int) -> None:
        """Take it. Raises LockHeld naming the holder, once it has been found held for PROBE_S."""
        note = json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "since_ms": now_ms})
        deadline = time.monotonic() + PROBE_S
        while not self._lock.take(note):
            if time.monotonic() >= deadline:
                holder = self.holder()
                raise LockHeld(
                    f"another process drains this queue: {holder or 'its name is not written yet'}; "
                    "wait for it, or stop it",
                    holder=str(holder or ""),
                )
            time.sleep(PROBE_S / 10)

    def release(self) -> None:
        """Give it back."""
        self._lock.release()

    def stands(self) -> bool:
        """Whether it is still held on the file that others would find."""
        return self._lock.stands()

    def holder(self) -> Holder | None:
        """Who holds it now; None if nobody does. Asking never blocks and never takes it away from anybody."""
        if not self._lock.path.exists():
            return None
        probe = Lock(self._lock.path)
        note = probe.note()
        if not _is_locked(self._lock.path):
            return None
        try:
            return Holder(**json.loads(note))
        except (ValueError, TypeError):
            return None


class Owner:
    """This process as a holder of leases: its uuid names its row and its lock file, which it holds while it lives."""

    def __init__(self, folder: Path, role: str, now_ms: int) -> None:
        self.row = OwnerRow(uuid4().hex, role, socket.gethostname(), os.getpid(), _boot_id(), now_ms)
        self._lock = Lock(_lock_file(folder, self.row.uuid))
        taken = self._lock.take(self.row.uuid)
        assert taken, "a new uuid cannot be locked by another"

    @property
    def uuid(self) -> str:
        """The name under which it leases."""
        return self.row.uuid

    def leave(self, bury: Callable[[], object]) -> None:
        """Give the lock back, after `bury` has taken back what it held and marked its row dead.

        If that raises, the file stays, and its free lock tells whoever looks next that the owner is dead. Were it gone,
        the owner would pass for alive as long as this process runs.
        """
        try:
            bury()
            self._lock.path.unlink(missing_ok=True)
        finally:
            self._lock.release()


def is_dead(folder: Path, owner: OwnerRow) -> bool:
    """Whether an owner of this host is surely dead: its lock is free. One of another host is not judged here.

    A lock file that is gone says nothing about a living process, so the process itself is asked for then.
    """
    if owner.host != socket.gethostname():
        return False
    path = _lock_file(folder, owner.uuid)
    if path.exists():
        return not _is_locked(path)
    return owner.boot_id != _boot_id() or not _runs(owner.pid)


def forget(folder: Path, owner: OwnerRow) -> None:
    """Delete the lock file of an owner that was declared dead."""
    _lock_file(folder, owner.uuid).unlink(missing_ok=True)


def _lock_file(folder: Path, uuid: str) -> Path:
    return folder / "owners" / f"{uuid}.lock"


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
