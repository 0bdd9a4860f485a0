"""Who drains: one process a queue, by a lock on a file beside the database that bears its name."""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from millpond.engine.lock import Lock, is_locked
from millpond.rules.errors import LockHeld

PROBE_S = 0.1
"""Whoever asks for the holder holds the lock himself for an instant; a drain that starts just then tries again."""


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
        if not is_locked(self._lock.path):
            return None
        try:
            return Holder(**json.loads(note))
        except (ValueError, TypeError):
            return None
