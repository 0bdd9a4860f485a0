"""What is written into the spend book: each verb is part of one transaction, and may be repeated."""

from __future__ import annotations

from millpond.db.database import Transaction
from millpond.rules.effects import Charge
from millpond.rules.price import Cost, to_micro

QUARTER_MS = 900_000
"""A quarter of an hour: the offsets of all time zones are multiples of it."""


def reserve(tx: Transaction, *, uid: str, queue: str, owner: str, lane: str, worst: Cost | None, now_ms: int) -> None:
    """Say that a call is about to be recorded, and the most that it can cost; None: that is unknown."""
    micro = to_micro(worst.usd) if worst is not None else None
    if tx.one("reserve", uid=uid, queue=queue, owner=owner, lane=lane, worst=micro, now_ms=now_ms) is not None:
        tx.all("add_reserved", lane=lane, unknown=int(micro is None), worst=micro or 0)


def release(tx: Transaction, *, uid: str, queue: str) -> None:
    """Take back the reservation of a call that was not recorded."""
    if (row := tx.one("release", uid=uid, queue=queue)) is not None:
        tx.all("take_reserved", lane=row.lane, unknown=int(row.worst is None), worst=row.worst or 0)


def post(tx: Transaction, charge: Charge, *, queue: str) -> None:
    """Put a charge in the place of its reservation. An actual replaces an estimate, nothing replaces an actual."""
    release(tx, uid=charge.uid, queue=queue)
    cost = to_micro(charge.usd) if charge.usd is not None else None
    said = {"uid": charge.uid, "cost": cost, "is_estimate": int(charge.is_estimate)}
    where = {"quarter_ms": charge.at_ms - charge.at_ms % QUARTER_MS, "lane": charge.lane}
    known = cost or 0
    actual, estimated = (0, known) if charge.is_estimate else (known, 0)
    if tx.one("insert_charge", queue=queue, lane=charge.lane, at_ms=charge.at_ms, **said) is not None:
        unknown = int(cost is None)
        tx.all("add_spent", charges=1, unknown=unknown, actual=actual, estimated=estimated, **where)
        return
    before = tx.all("charge", uid=charge.uid)[0].cost
    if tx.one("replace_charge", **said) is not None:
        unknown = int(cost is None) - int(before is None)
        tx.all("replace_spent", unknown=unknown, actual=actual, estimated=estimated - (before or 0), **where)
