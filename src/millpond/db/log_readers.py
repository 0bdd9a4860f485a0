"""Who reads from a write-ahead log just now: while anybody does, the log can only grow (O07)."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOCKS = Path("/proc/locks")
_FIRST_READER, _LAST_READER = 123, 127
"""The bytes of the -shm file that readers lock, one each of their moments (SQLite's WAL format, §2.3.2)."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A process of this machine that has a read transaction open."""

    pid: int
    name: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.name})" if self.name else f"pid {self.pid}"


def log_readers(path: Path) -> list[Reader]:
    """Who reads from a database's log now, by pid. Empty, too, where the system does not tell."""
    with suppress(OSError):
        index = os.stat(f"{path}-shm")
        text = LOCKS.read_text(encoding="ascii", errors="replace")
        return [Reader(pid, _name(pid)) for pid in readers_of(text, index.st_dev, index.st_ino)]
    return []


def readers_of(text: str, device: int, inode: int) -> list[int]:
    """The processes that hold a reader's lock on an index, by the text of Linux' /proc/locks."""
    file = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    pids: set[int] = set()
    for line in text.splitlines():
        words = line.split()
        # 1: POSIX  ADVISORY  READ 4242 fe:00:2984562 124 124; one that only waits has `->` after its number.
        if len(words) == 8 and words[1] == "POSIX" and words[5] == file and words[6].isdecimal():
            last = int(words[7]) if words[7].isdecimal() else _LAST_READER
            if words[3] == "READ" and int(words[6]) <= _LAST_READER and last >= _FIRST_READER:
                pids.add(int(words[4]))
    return sorted(pids)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
