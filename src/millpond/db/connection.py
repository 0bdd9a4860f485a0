"""One connection: how it is opened, who is in it, and how it gets through a fork."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

import apsw

from millpond.db import fork
from millpond.db.failures import raise_translated, translate_os
from millpond.db.transaction import Cursor, SqliteTransaction
from millpond.rules.errors import FileGone, SettingsError, UsageError

OLDEST_SQLITE = (3, 51, 3)
"""Older ones may reset the log under a reader and corrupt the file (DESIGN §8)."""
WAL_CHECKPOINT_PAGES = 4_000
"""Commits between two automatic checkpoints, in pages: 16 MB (DESIGN §9)."""
JOURNAL_SIZE_LIMIT_BYTES = 16 * 1024 * 1024
"""What is kept of the log file after a burst: as much as the next 4,000 pages will need."""
WRITER_CACHE_KIB = 16_384
READER_CACHE_KIB = 2_048
STATEMENT_CACHE = 256
"""Prepared statements kept a connection; the store has fewer names than this."""

_spoiled: set[Path] = set()
"""Files that this process may not open: it was forked while a transaction on them was open."""


def check_engine() -> None:
    """Refuse an SQLite that corrupts logs. apsw's own wheels bundle a good one, a distribution's apsw may not."""
    found = tuple(int(part) for part in apsw.sqlite_lib_version().split("."))
    if found < OLDEST_SQLITE:
        wanted = ".".join(map(str, OLDEST_SQLITE))
        raise SettingsError(
            f"found SQLite {apsw.sqlite_lib_version()}, wanted {wanted} or newer: older ones can corrupt the log. "
            f"Install apsw from the package index (`pip install --force-reinstall apsw`); it brings its own"
        )


class Connection:
    """An SQLite connection of one file, opened on first use.

    Whoever uses it has passed the fork's gate, holds `lock`, and has put its thread in `user`. `writes` decides the
    settings: the writer may write, a reader is held to reading by SQLite itself. The file is neither opened nor closed
    but through SQLite: closing any other descriptor of it would drop every lock that this process holds on it.
    """

    fork_order = 0

    def __init__(self, path: Path, *, writes: bool, busy_ms: int) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.user = 0
        """Identity of the thread that is inside; 0 is nobody."""
        self.synchronous = ""
        """The level now set, `FULL` or `NORMAL`; of the writer only."""
        self.times_opened = 0
        self.current: SqliteTransaction | None = None
        self._writes = writes
        self._busy_ms = busy_ms
        self._handle: apsw.Connection | None = None
        self._cursor: Cursor | None = None
        self._file: tuple[int, int] | None = None
        self._retired = False
        self._caught = False
        fork.join(self)

    def open(self, *, like: Path | None = None) -> Cursor:
        """The connection's one cursor, opened if need be. `like`: create the file if missing, with that file's mode."""
        if self._cursor is not None:
            return self._cursor
        if self._retired:
            raise UsageError(f"{self.path} was closed by this program; open it again to go on")
        if self.path in _spoiled:
            raise UsageError(
                f"this process was forked while a transaction on {self.path} was open, so it cannot use that file. "
                f"Fork outside operations, or start the child with `spawn`"
            )
        flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI | (apsw.SQLITE_OPEN_CREATE if like else 0)
        address = "file:" + quote(os.fsencode(self.path)) + (f"?modeof={quote(os.fsencode(like))}" if like else "")
        try:
            handle = apsw.Connection(address, flags=flags, statementcachesize=STATEMENT_CACHE)
            self._handle = handle
            self._cursor = cast(Cursor, handle.cursor())
            self._set_up(handle)
            there = os.stat(self.path)
        except apsw.Error as error:
            self.close()
            raise_translated(error, self.path)
        except OSError as error:
            self.close()
            raise translate_os(error, self.path) from error
        except BaseException:
            self.close()
            raise
        self._file = (there.st_dev, there.st_ino)
        self.times_opened += 1
        return self._cursor

    def _set_up(self, handle: apsw.Connection) -> None:
        handle.set_busy_timeout(self._busy_ms)
        handle.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        handle.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        # "text" in double quotes is a column or an error, never silently a string.
        handle.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
        handle.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)
        self.run("PRAGMA mmap_size = 0")
        self.run("PRAGMA temp_store = MEMORY")
        self.run("PRAGMA foreign_keys = ON")
        self.run("PRAGMA recursive_triggers = ON")
        if self._writes:
            self.run(f"PRAGMA cache_size = -{WRITER_CACHE_KIB}")
            self.run(f"PRAGMA wal_autocheckpoint = {WAL_CHECKPOINT_PAGES}")
            self.run(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT_BYTES}")
            # Without these macOS acknowledges a sync that the disk has not done.
            self.run("PRAGMA fullfsync = ON")
            self.run("PRAGMA checkpoint_fullfsync = ON")
            self.synchronous = ""
        else:
            self.run(f"PRAGMA cache_size = -{READER_CACHE_KIB}")
            self.run("PRAGMA query_only = ON")

    def run(self, sql: str) -> list[Any]:
        """Run one statement that has no name, and exhaust its cursor."""
        if self._cursor is None:
            raise UsageError(f"the connection to {self.path} is not open in this process")
        return self._cursor.execute(sql).fetchall()

    def value(self, sql: str) -> Any:
        """The one value that a statement gives."""
        return self.run(sql)[0][0]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open. SQLite itself ends one on a full disk and the like."""
        return self._handle is not None and self._handle.in_transaction

    @property
    def is_open(self) -> bool:
        """Whether it is open now."""
        return self._cursor is not None

    def check_file(self) -> None:
        """Refuse to write into a file that is no longer there under its path: a commit would be lost with it."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            now = "deleted or moved away"
        else:
            if (there.st_dev, there.st_ino) == self._file:
                return
            now = "replaced by another file"
        raise FileGone(
            f"{self.path} was {now} while this program had it open; nothing was written. "
            f"Stop every program that uses it, put the right file in place, start again"
        )

    def roll_back(self) -> None:
        """End whatever transaction is open. A connection that cannot even do that is closed, and opened anew later."""
        if not self.in_transaction:
            return
        try:
            self.run("ROLLBACK")
        except apsw.Error:
            self.close()

    def close(self) -> None:
        """Close it; the next use opens it again."""
        handle, self._handle, self._cursor = self._handle, None, None
        if handle is not None:
            handle.close(True)

    def retire(self) -> None:
        """Close it for good."""
        self._retired = True
        self.close()

    def before_fork(self, deadline: float) -> None:
        """Wait until nobody is inside, and close."""
        if self.user != threading.get_ident():
            self._caught = self.lock.acquire(timeout=max(0.0, deadline - time.monotonic()))
        if self._caught:
            self.close()

    def after_fork(self, *, child: bool) -> None:
        """Let the others in again; in a child that has inherited an open transaction, make the file unusable.

        That transaction belongs to the parent. To close it here, or to open the file beside it, would harm the parent's
        file, so the child is told so instead (UsageError), and what it inherited is kept until it ends.
        """
        if self._caught:
            self._caught = False
            self.lock.release()
        elif child:
            _spoiled.add(self.path)
            _never_free(self._handle)
            _never_free(self._cursor)
            if self.current is not None:
                self.current.end("it belongs to the parent process: the fork happened inside its operation")
            self._handle = self._cursor = self.current = None
            self.lock = threading.Lock()
            self.user = 0


def _never_free(thing: object) -> None:
    # A reference too many is the only way to keep an object from being closed when the interpreter ends.
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
