"""The spend book as one object of one queue: its file is made when the first money is reserved, never by a look."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from millpond.db import fork
from millpond.db.database import Transaction
from millpond.db.migrations import read_folder
from millpond.db.sqlite import SqliteDatabase
from millpond.db.statements import load
from millpond.rules.effects import Charge
from millpond.rules.price import Cost, from_micro
from millpond.spend import entries

RESOURCES = "millpond.spend"

APPLICATION_ID = 0x4D_50_53_42
"""`MPSB` in the file's header: a queue's database is no spend book."""


@dataclass(frozen=True, slots=True)
class Spent:
    """Charges added up. `unknown` of them have no cost, and are in neither sum."""

    charges: int = 0
    unknown: int = 0
    actual_usd: Decimal = Decimal(0)
    estimated_usd: Decimal = Decimal(0)
    """Worst cases of calls whose end is unknown."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """What stands reserved: calls in flight, and those whose end is unknown and undecided."""

    calls: int = 0
    unknown: int = 0
    worst_usd: Decimal = Decimal(0)


def open_book(path: Path, *, durable: bool = True) -> SqliteDatabase:
    """Open, and create or migrate, a spend book's file."""
    from importlib.resources import files

    room = files(RESOURCES)
    return SqliteDatabase(
        path,
        statements=load(room.joinpath("statements.sql").read_text(encoding="utf-8")),
        migrations=read_folder(room.joinpath("schema")),
        durable=durable,
        application_id=APPLICATION_ID,
    )


class SpendBook(fork.Bystander):
    """One queue's hand on a spend book. Thread-safe. Every entry bears the queue's uuid, so that others may share it.

    The file is opened, and made if need be, by the first verb that writes; `spent` and `reserved` of a book that nobody
    has made are empty. Raises QueueUnavailable and QueueBusy as SQLite refuses: nothing was written then.
    """

    def __init__(self, path: Path, queue: str, now_ms: Callable[[], int], *, durable: bool = True) -> None:
        """`queue` is the uuid of the queue whose entries these are."""
        self.path = path
        self.queue = queue
        self.now_ms = now_ms
        self._durable = durable
        self._db: SqliteDatabase | None = None
        self._opening = threading.Lock()
        fork.join(self)

    @property
    def db(self) -> SqliteDatabase:
        """Its database, made if it is not there."""
        with self._opening:
            if self._db is None:
                self._db = open_book(self.path, durable=self._durable)
            return self._db

    # --- entries ----------------------------------------------------------------------------------------------------

    def reserve(self, uid: str, owner: str, lane: str, worst: Cost | None) -> None:
        """Reserve the most that a call can cost, before its ledger row. None: that is unknown."""
        self.db.write(self.reserving(uid, owner, lane, worst))

    def release(self, uid: str) -> None:
        """Take back a reservation whose attempt was not recorded."""
        self.db.write(self.releasing(uid))

    def post(self, charges: Iterable[Charge]) -> None:
        """Put charges in the place of their reservations, all of them or none."""
        posting = [self.posting(charge) for charge in charges]

        def all_of_them(tx: Transaction) -> None:
            for post in posting:
                post(tx)

        self.db.write(all_of_them)

    def reserving(self, uid: str, owner: str, lane: str, worst: Cost | None) -> Callable[[Transaction], None]:
        """`reserve`, to be committed with other entries."""
        return partial(
            entries.reserve, uid=uid, queue=self.queue, owner=owner, lane=lane, worst=worst, now_ms=self.now_ms()
        )

    def releasing(self, uid: str) -> Callable[[Transaction], None]:
        """`release`, to be committed with other entries."""
        return partial(entries.release, uid=uid, queue=self.queue)

    def posting(self, charge: Charge) -> Callable[[Transaction], None]:
        """`post` of one charge, to be committed with other entries."""
        return partial(entries.post, charge=charge, queue=self.queue)

    # --- looking ----------------------------------------------------------------------------------------------------

    def reservations(self, after: str, limit: int) -> Mapping[str, str]:
        """A page of this queue's reservations, after a uid, in their order: uid -> owner."""
        rows = self.db.read(lambda tx: tx.all("reservations", queue=self.queue, after=after, limit=limit))
        return {row.uid: row.owner for row in rows}

    def charge(self, uid: str) -> Charge | None:
        """What an attempt was charged, if it was."""
        row = self.db.read(lambda tx: tx.one("charge", uid=uid))
        if row is None:
            return None
        usd = from_micro(row.cost) if row.cost is not None else None
        return Charge(row.uid, row.lane, row.at_ms, usd, bool(row.is_estimate))

    def spent(self, since_ms: int) -> dict[str, Spent]:
        """Lane -> its charges since a quarter of an hour, of all queues that share the book."""
        if not self.is_made():
            return {}
        return {
            row.lane: Spent(row.charges, row.unknown, from_micro(row.actual), from_micro(row.estimated))
            for row in self.db.read(lambda tx: tx.all("spent_since", since_ms=since_ms))
        }

    def reserved(self) -> Reserved:
        """What stands reserved now, by all queues that share the book."""
        if not self.is_made():
            return Reserved()
        [row] = self.db.read(lambda tx: tx.all("reserved"))
        return _reserved(row)

    def reserved_by_queue(self, limit: int) -> list[tuple[str, int, Reserved]]:
        """Queue, since when, and what it has reserved: the oldest first, so many at most. Reads every reservation."""
        if not self.is_made():
            return []
        rows = self.db.read(lambda tx: tx.all("reserved_by_queue", limit=limit))
        return [(row.queue, row.since_ms, _reserved(row)) for row in rows]

    def miscounted(self) -> tuple[Reserved, Reserved] | None:
        """What is kept of all that is reserved, and what it comes to, if these differ. Reads every reservation."""
        if not self.is_made():
            return None
        kept, counted = self.db.read(lambda tx: [tx.all(name)[0] for name in ("reserved", "reserved_recounted")])
        return (_reserved(kept), _reserved(counted)) if kept != counted else None

    def is_made(self) -> bool:
        """Whether there is a file to look into. Where that cannot be told, opening it will say why."""
        try:
            return self.path.exists()
        except OSError:
            return True

    # --- closing ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it. May be called twice."""
        with self._opening:
            if self._db is not None:
                self._db.close()

    def after_fork(self, *, child: bool) -> None:
        """A thread that was opening the file is not in the child, which opens it anew."""
        if child:
            self._opening = threading.Lock()


def _reserved(row: Any) -> Reserved:
    return Reserved(row.calls, row.unknown, from_micro(row.worst))
