"""The SQLite database: one file, one writer connection, a reader connection for each thread."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import apsw

from millpond.db import fork
from millpond.db import migrations as steps
from millpond.db.company import find_company
from millpond.db.connection import Connection, check_engine
from millpond.db.database import Transaction
from millpond.db.failures import raise_translated, translate_os
from millpond.db.migrations import Migration
from millpond.db.mounts import mount_of, refuse_share
from millpond.db.statements import expand
from millpond.db.transaction import SqliteTransaction, Statement
from millpond.db.turnstile import Turnstile
from millpond.db.writer import GROUP_OPERATIONS, Raised, Writer, refuse_iterator
from millpond.rules.errors import QueueUnavailable, UsageError

T = TypeVar("T")
log = logging.getLogger("millpond.db")

TOKENS: Mapping[str, str] = {
    "list": "(SELECT value FROM json_each(:{0}))",
}
"""How SQLite writes what the dialects write differently. `{list ids}`: the rows of a parameter that is a list."""

APPLICATION_ID = 0x4D_50_4E_44
"""`MPND` in the file's header: it is ours."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the file and its engine are, for people who look for a fault."""

    sqlite_version: str
    path: Path
    file_system: str
    journal_mode: str
    schema_version: int
    application_id: int
    page_bytes: int
    pages: int
    free_pages: int
    log_bytes: int
    """Size of the -wal file. Far above the journal size limit: somebody keeps a read transaction open."""


class SqliteDatabase:
    """A database.Database in one SQLite file, safe across threads, processes and forks.

    Opening creates the file (mode 0600) or upgrades it. Raises SchemaTooNew for a file of a newer program,
    SettingsError for one of another program or on a network share, QueueUnavailable and QueueBusy as SQLite refuses.
    `durable=False` (the user's `durability: normal`) lets a power loss take the last commits. `busy_ms` bounds each
    wait for other processes: once at the turnstile, which is then passed by, once at SQLite's own lock. `on_commit` is
    called after each commit, outside all locks.
    """

    def __init__(
        self,
        path: Path,
        *,
        statements: Mapping[str, str],
        migrations: Sequence[Migration],
        durable: bool = True,
        busy_ms: int = 10_000,
        on_commit: Callable[[], None] | None = None,
        application_id: int = APPLICATION_ID,
    ) -> None:
        check_engine()
        steps.check_order(migrations)
        # One file, one name: the turnstile of two spellings must be the same.
        self.path = Path(os.path.realpath(path))
        refuse_share(self.path)
        self._busy_ms = busy_ms
        self._statements = {name: Statement(name, expand(sql, TOKENS, name)) for name, sql in statements.items()}
        self._closed = False
        self._connection = Connection(self.path, writes=True, busy_ms=busy_ms)
        self._turnstile = Turnstile(self.path.with_name(self.path.name + ".turnstile"))
        self._writer = Writer(
            self._connection,
            self._turnstile,
            self._statements,
            schema_version=len(migrations),
            durable=durable,
            busy_ms=busy_ms,
            on_commit=on_commit,
        )
        self._poller = Connection(self.path, writes=False, busy_ms=busy_ms)
        self._of_thread = threading.local()
        # A thread that ends takes its reader with it; this set is for close() only.
        self._readers: WeakSet[Connection] = WeakSet()
        self._readers_mutex = threading.Lock()
        fork.pass_gate()
        with self._connection.lock:
            try:
                self._prepare(migrations, application_id)
            except BaseException:
                self._connection.retire()
                self._turnstile.close()
                raise

    @property
    def lock_folder(self) -> Path:
        """Where locks beside the database stand: by the file itself, whatever link led to it."""
        return lock_folder(self.path)

    def write(self, operation: Callable[[Transaction], T], *, full: bool = True) -> T:
        """Run an operation and commit it. It returned = it is committed; it raised = nothing of it is written.

        `full`: survives a power loss (if the database is durable). Raises what the operation raised, QueueBusy or
        QueueUnavailable; after the last two nothing is acknowledged.
        """
        self._check_open()
        outcome = self._writer.write((operation,), full=full)[0]
        if type(outcome) is Raised:
            raise outcome.error
        return outcome

    def write_all(self, operations: Sequence[Callable[[Transaction], Any]], *, full: bool = True) -> list[Any]:
        """Run many operations in one commit (one for each 500) and return what came of each, in order.

        Each element is a result, or the exception its operation met: its own, or QueueBusy or QueueUnavailable where
        the commit failed. One that fails undoes nothing of the others.
        """
        self._check_open()
        outcomes: list[Any] = []
        for start in range(0, len(operations), GROUP_OPERATIONS):
            outcomes += self._writer.write(operations[start : start + GROUP_OPERATIONS], full=full)
        for outcome in outcomes:
            if type(outcome) is Raised and not isinstance(outcome.error, Exception):
                raise outcome.error
        return [outcome.error if type(outcome) is Raised else outcome for outcome in outcomes]

    def read(self, operation: Callable[[Transaction], T]) -> T:
        """Run an operation that only reads, in one snapshot that ends before this returns (O07)."""
        self._check_open()
        reader = self._reader()
        me = threading.get_ident()
        if me in (reader.user, self._connection.user):
            raise AssertionError(f"read() inside an operation on {self.path}: use the transaction that it was given")
        fork.pass_gate()
        with reader.lock:
            reader.user = me
            try:
                return self._read_on(reader, operation)
            except apsw.Error as error:
                raise_translated(error, self.path)
            finally:
                reader.user = 0

    def data_version(self) -> int:
        """A number that differs from the last one if anybody committed since. Only this process may compare it."""
        self._check_open()
        poller = self._poller
        fork.pass_gate()
        with poller.lock:
            try:
                poller.open()
                # SQLite counts anew on each connection, and a fork gives us another one.
                return (poller.times_opened << 32) + poller.value("PRAGMA data_version")
            except apsw.Error as error:
                raise_translated(error, self.path)

    def checkpoint(self) -> bool:
        """Bring the log into the file and empty it. False if somebody still reads from it; they are not waited for."""
        self._check_open()
        connection = self._connection
        self._refuse_inside("checkpoint")
        fork.pass_gate()
        with connection.lock:
            connection.user = threading.get_ident()
            try:
                connection.open()
                self._turnstile.enter(self._busy_ms)
                connection.run("PRAGMA busy_timeout = 0")
                return connection.run("PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0
            except apsw.Error as error:
                raise_translated(error, self.path)
            finally:
                if connection.is_open:
                    connection.run(f"PRAGMA busy_timeout = {self._busy_ms}")
                self._turnstile.leave()
                connection.user = 0

    def facts(self) -> Facts:
        """What doctor shows. Reads a handful of pages."""
        log = self.path.with_name(self.path.name + "-wal")
        fork.pass_gate()
        with self._poller.lock:
            self._check_open()
            poller = self._poller
            try:
                poller.open()
                return Facts(
                    sqlite_version=apsw.sqlite_lib_version(),
                    path=self.path,
                    file_system=mount_of(self.path).kind,
                    journal_mode=poller.value("PRAGMA journal_mode"),
                    schema_version=poller.value("PRAGMA user_version"),
                    application_id=poller.value("PRAGMA application_id"),
                    page_bytes=poller.value("PRAGMA page_size"),
                    pages=poller.value("PRAGMA page_count"),
                    free_pages=poller.value("PRAGMA freelist_count"),
                    log_bytes=log.stat().st_size if log.exists() else 0,
                )
            except apsw.Error as error:
                raise_translated(error, self.path)

    def integrity_check(self, limit: int = 10) -> list[str]:
        """The first faults that SQLite finds in the file, `limit` at most; none is an empty list. Reads all of it."""
        fork.pass_gate()
        with self._poller.lock:
            self._check_open()
            try:
                self._poller.open()
                found = [str(row[0]) for row in self._poller.run(f"PRAGMA integrity_check({int(limit)})")]
            except apsw.Error as error:
                raise_translated(error, self.path)
        return [] if found == ["ok"] else found

    def close(self) -> None:
        """Give back every connection, after what is being committed. May be called twice."""
        self._refuse_inside("close")
        self._closed = True
        fork.pass_gate()
        with self._connection.lock:
            self._connection.retire()
            self._turnstile.close()
        with self._readers_mutex:
            readers = [*self._readers, self._poller]
        for reader in readers:
            fork.pass_gate()
            with reader.lock:
                reader.retire()

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self.path} was closed by this program; open it again to go on")

    def _refuse_inside(self, verb: str) -> None:
        if self._connection.user == threading.get_ident():
            raise AssertionError(f"{verb}() inside an operation on {self.path}")

    def _reader(self) -> Connection:
        reader: Connection | None = getattr(self._of_thread, "reader", None)
        if reader is None:
            reader = Connection(self.path, writes=False, busy_ms=self._busy_ms)
            with self._readers_mutex:
                self._check_open()
                self._readers.add(reader)
            self._of_thread.reader = reader
        return reader

    def _read_on(self, reader: Connection, operation: Callable[[Transaction], T]) -> T:
        cursor = reader.open()
        reader.roll_back()  # of a read that was interrupted before it could do so itself
        reader.run("BEGIN")
        transaction = SqliteTransaction(cursor, self._statements, self.path, writes=False)
        reader.current = transaction
        try:
            result = operation(transaction)
            refuse_iterator(result)
        finally:
            transaction.end()
            reader.current = None
            reader.roll_back()
        return result

    def _prepare(self, migrations: Sequence[Migration], application_id: int) -> None:
        """Open the file, refuse what is not ours before anything is touched, turn the log on, upgrade."""
        connection = self._connection
        try:
            is_new = not self.path.exists() or self.path.stat().st_size == 0
            if is_new:
                _make_folder(self.path.parent)
                self._turnstile.create()
            connection.open(like=self._turnstile.path if is_new else None)
            identity = steps.identify(connection)
            steps.check(identity, len(migrations), application_id, self.path)
            self._warn_of_company(may_read=identity.version == len(migrations))
            self._turnstile.enter(self._busy_ms)
            connection.run("PRAGMA synchronous = FULL")
            connection.synchronous = "FULL"
            mode = connection.value("PRAGMA journal_mode = WAL")
            if mode != "wal":
                raise QueueUnavailable(
                    f"{self.path} cannot have a write-ahead log (its journal mode stays {mode!r}); its file system, "
                    f"{mount_of(self.path)}, is probably a network or virtual one. Keep the queue on a local disk"
                )
            steps.upgrade(connection, migrations, application_id)
        except apsw.Error as error:
            raise_translated(error, self.path)
        except OSError as error:
            raise translate_os(error, self.path) from error
        finally:
            self._turnstile.leave()

    def _warn_of_company(self, *, may_read: bool) -> None:
        """A second SQLite that has the file open: it may be read all the same, and each write will be refused."""
        company = find_company(self.path)
        if company and not may_read:
            raise QueueUnavailable(f"{company}; nothing was written")
        if company:
            log.warning("%s; until then nothing will be written", company)


def lock_folder(path: Path) -> Path:
    """The folder of a database's locks, which need not exist: `PATH.d`, of the file that a link leads to."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + ".d")


def _make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, mode 0700, durably: a lost folder takes acknowledged ids with it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
