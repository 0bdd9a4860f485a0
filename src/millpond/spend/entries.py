"""What is written into the spend book: each verb is part of one transaction, and may be repeated."""

from __future__ import annotations

from typing import Any

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
    before = tx.one("charge", uid=charge.uid)
    cost = to_micro(charge.usd) if charge.usd is not None else None
    is_estimate = int(charge.is_estimate)
    posted = tx.one(
        "post", uid=charge.uid, queue=queue, lane=charge.lane, at_ms=charge.at_ms, cost=cost, is_estimate=is_estimate
    )
    if posted is None:
        return
    if before is not None:
        _add_up(tx, before, -1)
    _add_up(tx, tx.one("charge", uid=charge.uid), 1)


def _add_up(tx: Transaction, charge: Any, sign: int) -> None:
    known = sign * (charge.cost or 0)
    tx.all(
        "add_spent",
        quarter_ms=charge.at_ms - charge.at_ms % QUARTER_MS,
        lane=charge.lane,
        charges=sign,
        unknown=sign if charge.cost is None else 0,
        actual=0 if charge.is_estimate else known,
        estimated=known if charge.is_estimate else 0,
    )
