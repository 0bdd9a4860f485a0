"""What the ledger owes the spend book: charges that are not posted yet, and reservations that it will never know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.effects import Charge
from millpond.rules.price import from_micro, to_micro


def owed(tx: Transaction, uid: str) -> Charge | None:
    """What an attempt costs, as it is to be posted; None while nobody can say, and once it is posted."""
    row = tx.one("owed", uid=uid)
    return _charge(row) if row is not None else None


def unposted(tx: Transaction, after: int, limit: int) -> tuple[list[Charge], int]:
    """A page of what is to be posted, after a seq, and the seq to go on from."""
    rows = tx.all("unposted", after=after, limit=limit)
    return [_charge(row) for row in rows], rows[-1].seq if rows else after


def mark_posted(tx: Transaction, charge: Charge) -> None:
    """Say that a charge is in the book, if it is still what the ledger says."""
    cost = to_micro(charge.usd) if charge.usd is not None else None
    tx.all("mark_posted", uid=charge.uid, cost=cost, is_estimate=int(charge.is_estimate))


def never_recorded(tx: Transaction, owners: Mapping[str, str]) -> list[str]:
    """Those of some attempts (uid -> its owner) that can have no row any more: there is none, and their owner is dead.

    Dead is who is so in this very snapshot: the reclaim is committed, and record requires a living owner. One that this
    ledger does not know is another's to judge: two copies of a queue's file bear one name in the book.
    """
    dead = {row.uuid for row in _named(tx, owners) if row.dead}
    orphans = [uid for uid, owner in owners.items() if owner in dead]
    if not orphans:
        return []
    known = {row.uid for row in tx.all("recorded", keys=orphans)}
    return [uid for uid in orphans if uid not in known]


def of_strangers(tx: Transaction, owners: Mapping[str, str]) -> list[str]:
    """Those of some attempts (uid -> its owner) whose owner this ledger does not know."""
    known = {row.uuid for row in _named(tx, owners)}
    return [uid for uid, owner in owners.items() if owner not in known]


def _named(tx: Transaction, owners: Mapping[str, str]) -> list[Any]:
    return tx.all("owners_named", keys=sorted(set(owners.values())))


def _charge(row: Any) -> Charge:
    usd = from_micro(row.cost) if row.cost is not None else None
    return Charge(row.uid, row.lane, row.started_ms, usd, bool(row.is_estimate))
