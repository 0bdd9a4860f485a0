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
    tx.all("reserve", uid=uid, queue=queue, owner=owner, lane=lane, worst=micro, now_ms=now_ms)


def release(tx: Transaction, *, uid: str, queue: str) -> None:
    """Take back the reservation of a call that was not recorded."""
    tx.all("release", uid=uid, queue=queue)


def post(tx: Transaction, charge: Charge, *, queue: str) -> None:
    """Put a charge in the place of its reservation. An actual replaces an estimate, nothing replaces an actual."""
    release(tx, uid=charge.uid, queue=queue)
    micro = to_micro(charge.usd) if charge.usd is not None else None
    said = {"uid": charge.uid, "cost": micro, "is_estimate": int(charge.is_estimate)}
    if tx.one("insert_charge", queue=queue, lane=charge.lane, at_ms=charge.at_ms, **said) is None:
        before = tx.one("charge", uid=charge.uid)
        if tx.one("replace_charge", **said) is None:
            return
        assert before is not None
        _add_up(tx, charge, before.cost, -1, is_estimate=True)
    _add_up(tx, charge, micro, 1, is_estimate=charge.is_estimate)


def _add_up(tx: Transaction, charge: Charge, cost: int | None, sign: int, *, is_estimate: bool) -> None:
    known = sign * (cost or 0)
    tx.all(
        "add_spent",
        quarter_ms=charge.at_ms - charge.at_ms % QUARTER_MS,
        lane=charge.lane,
        charges=sign,
        unknown=sign if cost is None else 0,
        actual=0 if is_estimate else known,
        estimated=known if is_estimate else 0,
    )
