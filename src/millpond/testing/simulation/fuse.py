"""A death in the middle of an errand: between two transactions of who reclaims, asks lanes or keeps the book.

A journey is performed one effect at a time, so it can die between any two. An errand of the product runs by itself to
its end. So it is given a fuse: when that has burnt down, the next transaction kills it before it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from millpond.db.database import Transaction
from millpond.db.sqlite import SqliteDatabase
from millpond.rules.effects import Charge
from millpond.spend.book import SpendBook

T = TypeVar("T")


class Died(Exception):
    """The process is no more. No error of ours, so that no errand catches it."""


class Fuse:
    """Counts down the transactions of whoever is to die, and nothing while nobody is."""

    def __init__(self) -> None:
        self._left: int | None = None

    @contextmanager
    def lit(self, transactions: int) -> Generator[None]:
        """Inside, this many transactions are made, and the next one raises Died."""
        self._left = transactions
        try:
            yield
        finally:
            self._left = None

    def burn(self) -> None:
        """A transaction is about to begin."""
        if self._left == 0:
            raise Died
        if self._left is not None:
            self._left -= 1


class MortalDatabase:
    """A database whose writer may die before a transaction."""

    def __init__(self, db: SqliteDatabase, fuse: Fuse) -> None:
        self.path = db.path
        self._db = db
        self._fuse = fuse

    def write(self, operation: Callable[[Transaction], T], *, full: bool = True) -> T:
        self._fuse.burn()
        return self._db.write(operation, full=full)

    def write_all(self, operations: Sequence[Callable[[Transaction], Any]], *, full: bool = True) -> list[Any]:
        self._fuse.burn()
        return self._db.write_all(operations, full=full)

    def read(self, operation: Callable[[Transaction], T]) -> T:
        return self._db.read(operation)

    def data_version(self) -> int:
        return self._db.data_version()

    def close(self) -> None:
        self._db.close()


class MortalBook(SpendBook):
    """A spend book whose keeper may die before an entry."""

    def __init__(self, path: Path, queue: str, now_ms: Callable[[], int], fuse: Fuse) -> None:
        super().__init__(path, queue, now_ms, durable=False)
        self._fuse = fuse

    def release(self, uid: str) -> None:
        self._fuse.burn()
        super().release(uid)

    def post(self, charges: Iterable[Charge]) -> None:
        self._fuse.burn()
        super().post(charges)
