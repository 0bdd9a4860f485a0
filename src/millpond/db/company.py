"""A second SQLite in this process: whether it has a file of ours open, or has taken our locks on it away.

POSIX locks belong to the process. Two copies of SQLite do not know of each other's, so both believe that they hold a
file alone; and when either closes its descriptor, the locks of both are gone. Another process then writes through them,
and rows that were committed are lost without an error (DESIGN §8). So nothing is written in such company, and what was
being written is not acknowledged.

Looked for only where another SQLite is loaded, and then as a transaction begins, before its commit and after it: 0.1 ms
a look (0.1 µs where none is loaded). An audit hook on `sqlite3.connect` could forbid it beforehand, but would be called
for each file that the whole process opens, and could never be taken out. On Linux alone: other systems do not tell of a
process' own locks.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path

ENGINES = ("_sqlite3", "pysqlite3", "sqlcipher3", "sqlean")
"""Modules that bring a SQLite of their own; the first is the standard library's."""

DESCRIPTORS = "/proc/self/fd"
_INDEX_IN_USE = "128 128"
"""The byte of the -shm file that SQLite keeps locked for as long as it has the file open."""
_FILE_IN_USE = "1073741826 1073742335"
"""The bytes of the database that a connection in WAL mode keeps locked for as long as it is open."""

_ADVICE = "Never open a queue's file with another SQLite in a process that uses Millpond; `apsw`, read-only, may"


def find_company(path: Path) -> str:
    """What stands against writing to a file that this process has open by our SQLite, in words; "" if nothing does."""
    for name in ENGINES:
        if name in sys.modules:
            return _look(str(path), name)
    return ""


def _look(path: str, engine: str) -> str:
    engine = {"_sqlite3": "the standard library's sqlite3"}.get(engine, engine)
    index, gone = f"{path}-shm", " (deleted)"
    indexes, lost_indexes, files, lost_files = _descriptors(index, index + gone, path, path + gone)
    # One copy of SQLite opens the index once, for all its connections.
    if len(indexes) > 1:
        return f"a second SQLite in this process ({engine}) has {path} open. Close it there. {_ADVICE}"
    if not indexes and not lost_indexes:
        return ""  # nobody here has it open yet
    # A copy that believes it was the last to have the file open deletes log and index as it closes.
    is_deleted = bool(lost_indexes) and not lost_files
    holds = not _tells_of_locks() or (_is_locked(indexes, _INDEX_IN_USE) and _is_locked(files, _FILE_IN_USE))
    if holds and not is_deleted:
        return ""
    return (
        f"a second SQLite in this process ({engine}), or somebody who opened it as a plain file, has closed {path}, "
        f"and all locks on it were lost with that. Close the queue and open it again. {_ADVICE}"
    )


def _descriptors(*paths: str) -> list[list[str]]:
    """For each path, the descriptors of this process that have it open."""
    found: dict[str, list[str]] = {path: [] for path in paths}
    with suppress(OSError):
        for number in os.listdir(DESCRIPTORS):
            with suppress(OSError, KeyError):
                found[os.readlink(f"{DESCRIPTORS}/{number}")].append(number)
    return list(found.values())


def _is_locked(descriptors: list[str], where: str) -> bool:
    return any("POSIX" in lock and lock.endswith(where) for number in descriptors for lock in _locks(number))


def _locks(descriptor: str) -> list[str]:
    try:
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.startswith("lock:")]


@cache
def _tells_of_locks() -> bool:
    """Whether this system says which locks a descriptor holds; some sandboxes do not."""
    if sys.platform != "linux":
        return False
    descriptor = os.memfd_create("millpond")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return bool(_locks(str(descriptor)))
    except OSError:
        return False
    finally:
        os.close(descriptor)
