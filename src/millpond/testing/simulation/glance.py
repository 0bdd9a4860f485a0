"""A look at a database: it is read anew only once somebody has written, since most steps of a simulation do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from millpond.db.database import Database, Transaction

T = TypeVar("T")


class Glance(Generic[T]):
    """What an operation reads of a database, as of now. Whoever looks must not change what they are shown."""

    def __init__(self, db: Database, read: Callable[[Transaction], T]) -> None:
        self._db = db
        self._read = read
        self._version = db.data_version()
        self._said = db.read(read)

    def __call__(self) -> T:
        version = self._db.data_version()
        if version != self._version:
            self._version, self._said = version, self._db.read(self._read)
        return self._said
