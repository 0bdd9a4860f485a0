"""The turnstile: writers of several processes go through one at a time, in the kernel's line and not by chance.

SQLite's own busy handler polls: of four writers the unluckiest got 0.04 of what the luckiest got, and waited 3 s; in a
line of blocking flocks 0.48 and 0.5 s (DESIGN §8). The turnstile is fairness only. Safety stays with SQLite's own lock,
so a turnstile file that somebody deleted costs patience and no data, and one in which somebody stands still (a process
that was frozen there) is passed by.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
import weakref
from pathlib import Path

from millpond.db import fork
from millpond.db.failures import translate_os

log = logging.getLogger("millpond.db")


class _Waiter:
    """A thread that stands in the kernel's line in our place, so that our own wait can end.

    Polling with LOCK_NB has no place in the line, and only a signal could end a blocking flock, which a library may
    not send itself. So the caller first tries without waiting; only if that fails does a thread block in flock, on a
    copy of the descriptor (the same lock, since flock belongs to the open file and not to the number). When the caller
    gives up in the meantime, the thread stays in line and hands the lock back as soon as it gets it.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._wanted = True
        self._error: OSError | None = None
        self.is_late = False
        """Whether it was waited for in vain. Nobody waits for it a second time."""
        threading.Thread(target=self._stand, name="millpond-turnstile", daemon=True).start()

    def _stand(self) -> None:
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        except OSError as error:
            self._error = error
        with self._mutex:
            if not self._wanted and self._error is None:
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
            os.close(self.descriptor)
            self._ended.set()

    def want_again(self) -> bool:
        """Take up a wait that was given up. False if the thread has left the line since."""
        with self._mutex:
            self._wanted = not self._ended.is_set()
            return self._wanted

    def give_up(self) -> bool:
        """Whether the thread still stands in line; it then hands the lock back by itself. If not, the lock is ours."""
        with self._mutex:
            self._wanted = False
            return not self._ended.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether the lock was got in time; if not, the wait is given up."""
        if not self._ended.wait(0 if self.is_late else seconds) and self.give_up():
            self.is_late = True
            return False
        if self._error is not None:
            raise self._error
        return True

    def hold_still(self) -> None:
        """Keep the thread from closing its descriptor, until `go_on`."""
        self._mutex.acquire()

    def go_on(self, *, child: bool) -> None:
        """Undo `hold_still`. In the child, where there is no thread, close its descriptor for it."""
        if child and not self._ended.is_set():
            os.close(self.descriptor)
        self._mutex.release()


class Turnstile:
    """One process's way through. The file is created, never deleted; its owner holds the writer's lock meanwhile."""

    fork_order = 1  # after the writers: one of them may be in line, and needs the waiting thread to go on

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None
        self._close = weakref.finalize(self, _nothing)
        self._waiter: _Waiter | None = None
        fork.join(self)

    def create(self) -> None:
        """Make the file if there is none, mode 0600, and open it."""
        if self._descriptor is not None:
            return
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise translate_os(error, self.path) from error
        self._close = weakref.finalize(self, os.close, descriptor)
        self._descriptor = descriptor

    def enter(self, bound_ms: int) -> bool:
        """Wait for our turn, `bound_ms` at most. False: it did not come, and SQLite's own lock decides.

        After that nobody here waits again until the one who kept it has let us through: each write would wait for a
        frozen process, however free the database is. Raises QueueUnavailable if flock is refused.
        """
        deadline = time.monotonic() + bound_ms / 1000
        was_late = self._waiter is not None and self._waiter.is_late
        try:
            while self._lock(deadline):
                if self._is_the_file():
                    return True
                # Somebody deleted or replaced the file while we stood in line: our lock is on a file that nobody else
                # will ever find (O05).
                self.close()
        except OSError as error:
            raise translate_os(error, self.path) from error
        if not was_late:
            log.warning(
                "other processes kept %s for %g s; going on past it. If it lasts, find who holds it (`fuser -v %s`)",
                self.path, bound_ms / 1000, self.path,
            )  # fmt: skip
        return False

    def leave(self) -> None:
        """Let the next one through. Harmless if we were not inside, and due after an interrupted `enter` too."""
        if self._descriptor is None or (self._waiter is not None and self._waiter.give_up()):
            return
        self._waiter = None
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, and so leave. The file itself stays."""
        if self._waiter is not None:
            self._waiter.give_up()
        self._waiter = None
        self._descriptor = None
        self._close()

    def before_fork(self, deadline: float) -> None:
        """See to it that both sides agree on which descriptors are open."""
        if self._waiter is not None:
            self._waiter.hold_still()

    def after_fork(self, *, child: bool) -> None:
        """Close the child's copies. Were they left open, our lock would outlive us for as long as the child lives."""
        if self._waiter is not None:
            self._waiter.go_on(child=child)
        if child:
            self.close()

    def _lock(self, deadline: float) -> bool:
        self.create()
        descriptor = self._descriptor
        assert descriptor is not None
        if self._waiter is None or not self._waiter.want_again():
            self._waiter = None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._waiter = _Waiter(descriptor)
            else:
                return True
        if not self._waiter.wait(max(0.0, deadline - time.monotonic())):
            return False
        self._waiter = None
        return True

    def _is_the_file(self) -> bool:
        assert self._descriptor is not None
        ours = os.fstat(self._descriptor)
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _nothing() -> None:
    """What closes a turnstile that is not open."""
