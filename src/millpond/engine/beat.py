"""The beat of an owner: a number in its own held lock file, which grows while the owner can still do anything.

No clock is compared across processes to act on it. Others see the number stand still, on clocks of their own
(`engine.watch`); the owner knows by its own when it wrote the last one. Both count from that beat, so the owner knows
before anybody may act. When it was written stands beside it, for who looks only once and has to say something.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from millpond.db import fork
from millpond.engine.clock import awake_ms
from millpond.engine.lock import Lock

BEATS_A_LEASE = 3
"""Two beats may come late. Etcd's client renews its leases as often (`lessor.go`: nextKeepAlive = TTL / 3)."""

DIGITS = 20
"""Of each number. A beat is written over the one before, in as many bytes: it asks no space of a full disk."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """What another process sees of an owner: its last beat, when that was, and for how long it may stand still.

    `at_ms` is on a clock of the owner's boot, `engine.clock.awake_ms`.
    """

    beat: int
    at_ms: int
    lease_ms: int


class Beat(fork.Bystander):
    """Grows the number from a thread of its own, so that a blocked event loop or a long handler does not still it.

    Code that keeps the interpreter to itself does still it, and rightly: nothing else of this process can go on either.
    The thread writes 41 bytes a third of a lease, keeps no process alive, and is not there in a forked child, in which
    this beat does not stand.
    """

    def __init__(self, lock: Lock, lease_ms: int, boot_ms: Callable[[], int]) -> None:
        """`lock` is held, on a file that says what `first_note` gives. `boot_ms` counts suspend."""
        self._lock = lock
        self._lease_ms = lease_ms
        self._boot_ms = boot_ms
        self._beat = 0
        self._beat_ms = boot_ms()
        self._is_over = False
        self._writing = threading.Lock()
        self._ending = threading.Event()
        fork.join(self)
        threading.Thread(target=self._go_on, name="millpond-beat", daemon=True).start()

    def stands(self) -> bool:
        """Whether nobody can have given this owner up yet: its last beat is younger than its lease, its file there."""
        return not self._is_over and self._boot_ms() - self._beat_ms < self._lease_ms

    def end(self) -> None:
        """Beat no more. The lock's file is not written once this has returned."""
        self._ending.set()
        with self._writing:
            self._is_over = True

    def after_fork(self, *, child: bool) -> None:
        """The child is not the owner: its parent is."""
        if child:
            self._is_over = True
            self._writing = threading.Lock()
            self._ending = threading.Event()

    def _go_on(self) -> None:
        while not self._ending.wait(self._lease_ms / BEATS_A_LEASE / 1000):
            with self._writing:
                if not self._go_on_once():
                    return

    def _go_on_once(self) -> bool:
        """Beat, unless it is too late for that: what others may have given up already must not look alive again."""
        now_ms = self._boot_ms()  # read first: a sleep between here and the write makes the beat older, never younger
        if not self.stands() or not self._lock.stands():
            self._is_over = True
            return False
        try:
            self._lock.write_over(_beat(self._beat + 1))
        except OSError:
            return True  # a full or broken disk: the beat grows old, and that is how the owner learns of it
        self._beat += 1
        self._beat_ms = now_ms
        return True


def first_note(uuid: str, lease_ms: int) -> str:
    """What a new owner's file says: its beat, its lease, its name."""
    return f"{_beat(0)} {lease_ms} {uuid}\n"


def sight(path: Path) -> Sighting | None:
    """Look at an owner's beat; None if there is no file, or not one of ours."""
    try:
        beat, at_ms, lease_ms, _ = path.read_text(encoding="ascii").split()
        return Sighting(int(beat), int(at_ms), int(lease_ms))
    except (OSError, ValueError):
        return None


def _beat(beat: int) -> str:
    return f"{beat:0{DIGITS}} {awake_ms():0{DIGITS}}"
