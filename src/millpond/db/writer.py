"""The one writer of a process: callers line up, and whoever has the lock commits for all that wait.

A hand-off to a writer thread halves the rate of single writes (4,970 instead of 13,000 a second, DESIGN §8); here a
lone caller commits on its own thread and meets nobody, and many callers share one commit.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import apsw

from millpond.db import fork
from millpond.db.company import find_company
from millpond.db.connection import Connection
from millpond.db.failures import translate
from millpond.db.migrations import check_version
from millpond.db.transaction import SqliteTransaction, Statement
from millpond.db.turnstile import Turnstile
from millpond.rules.errors import MayBeWritten, MillpondError, QueueUnavailable

GROUP_OPERATIONS = 500
GROUP_NS = 2_000_000
"""A group takes no more operations after this many, or after 2 ms (DESIGN §9): others wait at the turnstile."""

Operation = Callable[[SqliteTransaction], Any]
log = logging.getLogger("millpond.db")


class Raised:
    """The outcome of an operation that raised, so that an operation may also return an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Slot:
    """One caller's place in the line: what it wants done and, once settled, what came of it."""

    __slots__ = ("full", "operations", "outcomes", "settled", "withdrawn")

    def __init__(self, operations: Sequence[Operation], full: bool) -> None:
        self.operations = operations
        self.full = full
        self.outcomes: list[Any] = []
        self.settled = False
        self.withdrawn = False

    @property
    def is_over(self) -> bool:
        return self.settled or self.withdrawn


class Writer:
    """Commits operations in groups on one connection. `lock` of the connection is held by whoever commits.

    A group is one transaction, begun IMMEDIATE behind the turnstile, at its strictest member's level. The first
    operation needs no savepoint: if it fails there is nothing else to lose. Every further one has its own.
    """

    def __init__(
        self,
        connection: Connection,
        turnstile: Turnstile,
        statements: Mapping[str, Statement],
        *,
        schema_version: int,
        durable: bool,
        busy_ms: int,
        on_commit: Callable[[], None] | None,
    ) -> None:
        self._connection = connection
        self._turnstile = turnstile
        self._statements = statements
        self._schema_version = schema_version
        self._durable = durable
        self._busy_ms = busy_ms
        self._on_commit = on_commit
        self._line: deque[_Slot] = deque()
        self._group: list[_Slot] = []
        """Taken from the line, not settled yet. Only with the lock held."""
        self._kept = 0
        """Operations whose work stands in the open transaction."""

    def write(self, operations: Sequence[Operation], *, full: bool) -> list[Any]:
        """Commit these in one transaction, perhaps with others', and return their outcomes: a result or Raised each."""
        connection = self._connection
        me = threading.get_ident()
        if connection.user == me:
            raise AssertionError(
                f"write() inside an operation on {connection.path}: use the transaction that the operation was given"
            )
        slot = _Slot(operations, full and self._durable)
        committed = False
        try:
            self._line.append(slot)
            fork.pass_gate()
            with connection.lock:
                if not slot.settled:
                    connection.user = me
                    try:
                        committed = self._serve(slot)
                    finally:
                        connection.user = 0
        except BaseException:
            # Nobody waits for this slot any more; whoever finds it in the line passes it over.
            slot.withdrawn = True
            raise
        if committed:
            self._ring()
        return slot.outcomes

    def _serve(self, mine: _Slot) -> bool:
        """Commit groups until our own slot is settled, at least for ourselves. Returns whether anything was committed.

        Python delivers signals (KeyboardInterrupt, a handler's SystemExit) to the main thread only. So the main thread
        commits nobody's work but its own: what interrupts it can then never tear another caller's operation.
        """
        committed = False
        if self._group:
            self._give_up_group()
        only = mine if threading.current_thread() is threading.main_thread() else None
        try:
            while not mine.settled:
                committed |= self._commit_group(only)
        finally:
            self._next_in_line()
        return committed

    def _next_in_line(self) -> _Slot | None:
        while self._line:
            slot = self._line[0]
            if not slot.is_over:
                return slot
            self._line.popleft()
        return None

    def _commit_group(self, only: _Slot | None) -> bool:
        """Commit one group, of `only` or of whoever waits, and settle its slots. Returns whether it was committed."""
        present = [only] if only is not None else [slot for slot in tuple(self._line) if not slot.is_over]
        full = any(slot.full for slot in present)
        try:
            self._connection.open()
            self._turnstile.enter(self._busy_ms)
            self._set_level("FULL" if full else "NORMAL")
            if only is not None:
                self._group.append(only)
                self._run(only, stop_at_interrupts=True)
            else:
                self._run_line(full)
            committed = self._connection.in_transaction
            if committed:
                self._refuse_company()
                self._connection.run("COMMIT")
                if company := find_company(self._connection.path):
                    raise MayBeWritten(f"{company}; what was being written may be lost and is not acknowledged")
        except (apsw.Error, MillpondError) as error:
            self._connection.roll_back()
            # Those that were in the line when the wait began have waited as long as was promised.
            self._refuse(self._group or present, translated(error, self._connection))
            self._group.clear()
            return False
        except BaseException:
            self._give_up_group()
            raise
        finally:
            self._kept = 0
            self._turnstile.leave()
        for slot in self._group:
            slot.settled = True
        self._group.clear()
        return committed

    def _run_line(self, full: bool) -> None:
        """Run those who wait, first come first served, until the group is as large or as old as it may get."""
        until_ns = time.monotonic_ns() + GROUP_NS
        taken = 0
        while (slot := self._next_in_line()) is not None:
            if slot.full and not full:
                return  # came late, and wants more than this transaction was begun with
            self._group.append(slot)
            self._line.popleft()
            self._run(slot, stop_at_interrupts=False)
            taken += len(slot.operations)
            if taken >= GROUP_OPERATIONS or time.monotonic_ns() > until_ns:
                return

    def _run(self, slot: _Slot, *, stop_at_interrupts: bool) -> None:
        for operation in slot.operations:
            try:
                slot.outcomes.append(self._perform(operation))
            except _TransactionLost as lost:
                slot.outcomes.append(Raised(lost.error))
                raise translated(lost.error, self._connection) from lost.error
            if stop_at_interrupts and slot.outcomes and _is_interrupt(slot.outcomes[-1]):
                raise slot.outcomes[-1].error

    def _perform(self, operation: Operation) -> Any:
        """Run one operation; if it raises, undo it alone. Returns its result or Raised."""
        connection = self._connection
        if not connection.in_transaction:
            self._begin()
        in_savepoint = self._kept > 0
        if in_savepoint:
            connection.run("SAVEPOINT operation")
        transaction = SqliteTransaction(connection.open(), self._statements, connection.path, writes=True)
        connection.current = transaction
        try:
            result = operation(transaction)
            transaction.flush()
            refuse_iterator(result)
        except BaseException as error:
            transaction.end()
            if not in_savepoint:
                connection.roll_back()
            elif connection.in_transaction:
                connection.run("ROLLBACK TO operation")
                connection.run("RELEASE operation")
            else:
                raise _TransactionLost(error) from error
            return Raised(error)
        finally:
            connection.current = None
        transaction.end()
        if not connection.in_transaction:
            raise _TransactionLost(QueueUnavailable(f"{connection.path}: SQLite rolled the transaction back"))
        if in_savepoint:
            connection.run("RELEASE operation")
        self._kept += 1
        return result

    def _begin(self) -> None:
        connection = self._connection
        # Never a deferred transaction that turns into a writing one: that fails at once, whatever the busy wait (O15).
        connection.run("BEGIN IMMEDIATE")
        connection.check_file()
        self._refuse_company()
        found = connection.value("PRAGMA user_version")
        if found != self._schema_version:
            check_version(found, self._schema_version, connection.path)
            raise QueueUnavailable(
                f"{connection.path} has schema version {found} and had {self._schema_version} when it was opened; "
                f"nothing was written. Was it replaced by an older copy? Start this program again"
            )

    def _refuse_company(self) -> None:
        """Another process may hold what we believe is ours. As long as nothing is committed, nothing is done by it."""
        company = find_company(self._connection.path)
        if company:
            raise QueueUnavailable(f"{company}; nothing was written")

    def _set_level(self, level: str) -> None:
        # It cannot change inside a transaction, so the group has the level of its strictest member.
        if self._connection.synchronous != level:
            self._connection.run(f"PRAGMA synchronous = {level}")
            self._connection.synchronous = level

    def _refuse(self, slots: Sequence[_Slot], error: MillpondError) -> None:
        """Tell every caller that nothing is acknowledged; one whose own operation raised hears of that instead."""
        for slot in slots:
            own = [outcome for outcome in slot.outcomes if isinstance(outcome, Raised)]
            if len(own) < len(slot.operations):
                slot.outcomes = [
                    outcome if isinstance(outcome, Raised) else Raised(_copy(error))
                    for outcome in (*slot.outcomes, *([None] * (len(slot.operations) - len(slot.outcomes))))
                ]
            slot.settled = True

    def _give_up_group(self) -> None:
        """Undo a group whose thread was interrupted, now or before we got the lock, and tell its members."""
        connection = self._connection
        connection.roll_back()
        self._refuse(
            [slot for slot in self._group if not slot.settled],
            QueueUnavailable(
                f"the thread that was committing to {connection.path} was interrupted; nothing was acknowledged. "
                f"Look whether it is there, then do it again"
            ),
        )
        self._group.clear()

    def _ring(self) -> None:
        if self._on_commit is None:
            return
        try:
            self._on_commit()
        except Exception:
            # It is committed; a doorbell that does not ring costs time only.
            log.warning("on_commit failed after a commit to %s", self._connection.path, exc_info=True)


class _TransactionLost(Exception):
    """SQLite itself rolled the whole group back while one operation ran."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def translated(error: BaseException, connection: Connection) -> MillpondError:
    """An error that ends a whole group, in words that its members can be told."""
    if isinstance(error, MillpondError):
        return error
    known = translate(error, connection.path) if isinstance(error, apsw.Error) else None
    return known or QueueUnavailable(f"{connection.path}: {error}; nothing was acknowledged")


def refuse_iterator(result: object) -> None:
    """Refuse a generator as a result: it would run when its transaction is long over, or keep it open."""
    if hasattr(type(result), "__next__"):
        raise AssertionError(f"an operation returned {type(result).__name__}; return a list, its transaction ends now")


def _is_interrupt(outcome: object) -> bool:
    return isinstance(outcome, Raised) and not isinstance(outcome.error, Exception)


def _copy(error: MillpondError) -> MillpondError:
    # One exception object in several threads would gather all their tracebacks.
    copy = type(error)(str(error))
    copy.__cause__ = error
    return copy
