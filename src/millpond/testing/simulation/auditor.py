"""The spend book held against a ledger, step by step: whoever shares the book, and whoever dies between two entries."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from millpond.db.database import Database, Transaction
from millpond.spend.entries import QUARTER_MS
from millpond.testing.simulation.glance import Glance
from millpond.testing.simulation.witness import PromiseBroken, Seen


@dataclass(frozen=True, slots=True)
class Entries:
    """The book's tables between two steps: one queue's reservations and charges by attempt, and everybody's sums."""

    reserved: dict[str, Any] = field(default_factory=dict[str, Any])
    charged: dict[str, Any] = field(default_factory=dict[str, Any])
    all_charges: Counter[Any] = field(default_factory=Counter[Any])
    spent: Counter[Any] = field(default_factory=Counter[Any])


class Auditor:
    """Everything that must be so of one queue's entries."""

    def __init__(self, db: Database, queue: str) -> None:
        self._queue = queue
        self._look = Glance(db, self._read)
        self.entries = self._look()

    def leaves(self, uid: str) -> None:
        """A call leaves: the book knows of it, by its reservation, or a charge if a person decided it just before."""
        if uid not in self.entries.reserved and uid not in self.entries.charged:
            raise PromiseBroken(f"call {uid} left, and the book does not know of it")

    def check(self, ledger: Seen) -> None:
        """Look again. What is undecided is reserved, what is posted is what the ledger says, an actual stays."""
        before, now = self.entries, self._look()
        self.entries = now
        for uid, row in ledger.attempts.items():
            if _is_undecided(row):
                if uid not in now.reserved:
                    raise PromiseBroken(f"the reservation of {uid} is gone, and what it costs is not decided")
                if uid in now.charged:
                    raise PromiseBroken(f"{uid} is charged, and what it costs is not decided")
            elif row.posted:
                _check_charge(row, now.charged.get(uid))
        for uid, row in before.charged.items():
            if not row.is_estimate and now.charged.get(uid) != row:
                raise PromiseBroken(f"the charge of {uid} was on evidence, and was changed")
        if now.spent != now.all_charges:
            raise PromiseBroken(f"the charges add up to {now.all_charges}, the book says {now.spent}")

    def check_end(self, ledger: Seen) -> None:
        """At rest every attempt that is decided has its one charge, and nothing else is reserved."""
        for uid, row in ledger.attempts.items():
            if not _is_undecided(row):
                _check_charge(row, self.entries.charged.get(uid))
        for uid in self.entries.reserved:
            row = ledger.attempts.get(uid)
            if row is None or not _is_undecided(row):
                raise PromiseBroken(f"the reservation of {uid} stands for ever, for nothing")
        if extra := self.entries.charged.keys() - ledger.attempts.keys():
            raise PromiseBroken(f"{', '.join(sorted(extra))} is charged, and the ledger does not know it")

    def _read(self, tx: Transaction) -> Entries:
        charges, spent = tx.all("charges"), tx.all("spent")
        sums: Counter[Any] = Counter()
        for row in charges:
            _add(sums, row)
        return Entries(
            reserved={row.uid: row for row in tx.all("reservations") if row.queue == self._queue},
            charged={row.uid: row for row in charges if row.queue == self._queue},
            all_charges=sums,
            spent=Counter(
                {
                    (row.quarter_ms, row.lane, name): n
                    for row in spent
                    for name in ("charges", "unknown", "actual", "estimated")
                    if (n := getattr(row, name))
                }
            ),
        )


def _is_undecided(row: Any) -> bool:
    return row.outcome is None or (row.outcome == "ambiguous" and row.resolution is None)


def _check_charge(row: Any, charge: Any) -> None:
    """An attempt is charged what the ledger says; an estimate only while its end is unknown; unknown is not zero."""
    if charge is None:
        raise PromiseBroken(f"{row.uid} ({row.outcome}, {row.resolution}) is decided and not charged")
    said, found = (row.cost, int(row.outcome == "ambiguous")), (charge.cost, charge.is_estimate)
    if found != said:
        raise PromiseBroken(f"{row.uid} costs {said[0]} ({row.outcome}), and the book says {found[0]}, {found[1]}")


def _add(sums: Counter[Any], row: Any) -> None:
    where = (row.at_ms - row.at_ms % QUARTER_MS, row.lane)
    sums[(*where, "charges")] += 1
    if row.cost is None:
        sums[(*where, "unknown")] += 1
    elif row.cost:
        sums[(*where, "estimated" if row.is_estimate else "actual")] += row.cost
