"""What an operation holds in its hands: the named statements, run on one connection, until it returns."""

from __future__ import annotations

import json
import re
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol, cast

import apsw

from millpond.db.failures import raise_translated

_LIST_PARAMETER = re.compile(r"json_each\(:(\w+)\)")
Row = Callable[[Iterable[Any]], Any]


class Cursor(Protocol):
    """What is used of apsw.Cursor, whose own types name some that Python 3.11 does not have."""

    connection: apsw.Connection
    description: Any

    def execute(self, sql: str, params: Any = None, /) -> Cursor: ...
    def executemany(self, sql: str, rows: Iterable[Any], /) -> Cursor: ...
    def fetchall(self) -> list[Any]: ...
    def __iter__(self) -> Iterator[Any]: ...


class Statement:
    """One named statement, and the class of its rows once it has returned one."""

    __slots__ = ("lists", "name", "row", "sql")

    def __init__(self, name: str, sql: str) -> None:
        self.name = name
        self.sql = sql
        self.lists = tuple(dict.fromkeys(_LIST_PARAMETER.findall(sql)))
        """Parameters that are lists: SQLite gets them as JSON text."""
        self.row: Row | None = None


class SqliteTransaction:
    """A database.Transaction. It ends with its operation; whoever keeps it longer is told so.

    A statement's parameters that stand in a `{list …}` token may be any sequence of numbers or strings.
    Refusals of disk, file or lock are raised as QueueUnavailable and QueueBusy; what the SQL itself did wrong
    (a constraint, a missing parameter) is raised as apsw says it, with the statement's name as a note.
    """

    __slots__ = ("_cursor", "_ended", "_handle", "_path", "_statements", "_tallies", "_writes")

    def __init__(self, cursor: Cursor, statements: Mapping[str, Statement], path: Path, *, writes: bool) -> None:
        self._cursor = cursor
        self._handle = cursor.connection
        self._statements = statements
        self._path = path
        self._writes = writes
        self._ended = ""
        self._tallies: dict[str, int] | None = None

    def all(self, name: str, /, **params: Any) -> list[Any]:
        """Run a statement and return its rows, as namedtuples. The cursor is always exhausted."""
        statement = self._find(name)
        if statement.lists:
            _bind_lists(statement, params)
        try:
            cursor = self._cursor.execute(statement.sql, params)
            row = statement.row or _row_class(statement, cursor)
            return [] if row is None else list(map(row, cursor))
        except Exception as error:
            self._raise_named(error, name)

    def one(self, name: str, /, **params: Any) -> Any | None:
        """Run a statement and return its first row, or None."""
        rows = self.all(name, **params)
        return rows[0] if rows else None

    def many(self, name: str, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Run a statement once for each row of parameters, and return what it returned, in their order."""
        statement = self._find(name)
        if statement.lists:
            rows = (_bind_lists(statement, dict(row)) for row in rows)
        try:
            # A cursor of its own: `rows` may itself ask this transaction for things.
            cursor = cast(Cursor, self._handle.cursor()).executemany(statement.sql, rows)
            row = statement.row or _row_class(statement, cursor)
            return [] if row is None else list(map(row, cursor))
        except Exception as error:
            self._raise_named(error, name)

    def count(self, name: str, delta: int) -> None:
        """Change a maintained counter, once an operation, by the statement `tally_add` (name, delta)."""
        self._check()
        if not self._writes:
            raise AssertionError(f"count({name!r}) in a read: counters are changed by operations that write")
        if self._tallies is None:
            self._tallies = {}
        self._tallies[name] = self._tallies.get(name, 0) + delta

    def flush(self) -> None:
        """Write the counters that this operation has changed, in one order (no deadlock where rows are locked)."""
        if self._tallies:
            for name, delta in sorted(self._tallies.items()):
                if delta:
                    self.all("tally_add", name=name, delta=delta)

    def end(self, why: str = "an operation must not keep it, nor return a generator that uses it") -> None:
        """From now on refuse every call, saying why."""
        self._ended = why

    def _check(self) -> None:
        if self._ended:
            raise AssertionError(f"this transaction on {self._path} has ended: {self._ended}")

    def _find(self, name: str) -> Statement:
        if self._ended:
            self._check()
        try:
            return self._statements[name]
        except KeyError:
            raise AssertionError(f"no statement is named {name!r}; they stand in the statements file") from None

    def _raise_named(self, error: Exception, name: str) -> NoReturn:
        error.add_note(f"in the statement {name!r} on {self._path}")
        if not self._writes and isinstance(error, apsw.ReadOnlyError):
            raise AssertionError(f"the statement {name!r} writes, in an operation that was said to read") from error
        if not self._handle.in_transaction:
            # SQLite rolled everything back. What the operation did next would be committed statement by statement.
            self.end(f"SQLite rolled it back ({error})")
        if isinstance(error, apsw.Error):
            raise_translated(error, self._path)
        raise error


def _row_class(statement: Statement, cursor: Cursor) -> Row | None:
    """The class for a statement's rows, made at the first row ever; None while there is no row to name."""
    try:
        columns = tuple(column[0] for column in cursor.description)
    except apsw.ExecutionCompleteError:
        return None
    statement.row = _row_of(columns)
    return statement.row


@cache  # To make a class takes longer than to run most statements, and each database opened anew asks for all of them.
def _row_of(columns: tuple[str, ...]) -> Row:
    # Made at run time from what the statement returns, so no type checker can know its fields.
    kind = namedtuple("Row", columns, rename=True)  # pyright: ignore[reportUntypedNamedTuple]
    return kind._make


def _bind_lists(statement: Statement, params: dict[str, Any]) -> dict[str, Any]:
    for name in statement.lists:
        value = params.get(name)
        if not isinstance(value, str | None):
            params[name] = json.dumps(list(value))
    return params
