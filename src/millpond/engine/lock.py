"""An exclusive lock on a file: `flock`, which ends with the process that took it, however that ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from millpond.db import fork
from millpond.rules.errors import QueueUnavailable


class Lock(fork.Bystander):
    """An exclusive lock on a file, held by this process alone: never waited for, never deleted while it matters.

    A forked child closes its copy, so that the lock ends with the process that took it; it ends with `exec` too.
    """

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

    def write_over(self, words: str) -> None:
        """Write over the first words of the note, while the lock is held. Raises OSError."""
        assert self._descriptor is not None, "only the holder writes"
        os.pwrite(self._descriptor, words.encode(), 0)

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

    def after_fork(self, *, child: bool) -> None:
        """Close the child's copy; the parent's stays locked, since the open file is shared and not unlocked."""
        if child:
            self.release()

    def _is_the_file(self, descriptor: int) -> bool:
        ours = os.fstat(descriptor)
        try:
            there = os.stat(self.path)
        except OSError:  # what cannot be looked at is not relied upon
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def is_locked(path: Path) -> bool:
    """Whether somebody holds the lock on this file. Asking takes it from nobody, nor keeps anybody from it for long.

    Raises OSError for a file that cannot be opened.
    """
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
