"""What the store may ask of a database, whichever it is. Nothing here knows SQLite or PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Transaction(Protocol):
    """What an operation is given: the named statements, inside its transaction, until it returns."""

    def all(self, name: str, /, **params: Any) -> list[Any]:
        """Run a statement and return its rows, as namedtuples. The cursor is always exhausted."""
        ...

    def one(self, name: str, /, **params: Any) -> Any | None:
        """Run a statement and return its first row, or None."""
        ...

    def many(self, name: str, rows: Iterable[Mapping[str, Any]]) -> list[Any]:
        """Run a statement once for each row of parameters, and return what it returned, in their order."""
        ...

    def count(self, name: str, delta: int) -> None:
        """Change a maintained counter. Written once an operation, by `tally_add`, and undone with the operation."""
        ...


class Database(Protocol):
    """One database. An operation is a function of a Transaction; it may run on another caller's thread, at most once.

    An operation must not call its database again, wait for anything, or let a generator out.
    """

    def write(self, operation: Callable[[Transaction], T], *, full: bool = True) -> T:
        """Run an operation and commit it. It returned = it is committed; it raised = nothing of it is written."""
        ...

    def write_all(self, operations: Sequence[Callable[[Transaction], Any]], *, full: bool = True) -> list[Any]:
        """Run many operations in one commit. Each element is a result, or the exception that its operation met."""
        ...

    def read(self, operation: Callable[[Transaction], T]) -> T:
        """Run an operation that only reads, in one snapshot that ends before this returns."""
        ...

    def data_version(self) -> int:
        """A number that differs from the last one if anybody committed since. Only this process may compare it."""
        ...

    def close(self) -> None:
        """Give back every connection. May be called twice; any use afterwards raises UsageError."""
        ...
