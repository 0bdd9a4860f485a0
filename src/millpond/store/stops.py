"""Stops: a person's word that nothing is sent, kept in a table, so that it counts for every drainer and survives it.

Lease and record read it in their own transaction: once `stop` has returned, nothing that is not recorded yet leaves.
"""

from __future__ import annotations

from collections.abc import Iterable

from millpond.db.database import Transaction
from millpond.rules.lifecycle import EventKind
from millpond.rules.stops import Stop, Stops, Wanted
from millpond.store.moves import note


def standing(tx: Transaction) -> tuple[Stop, ...]:
    """All stops that stand; there are at most two more than lanes."""
    return tuple(Stop(row.scope, row.lane or None, row.since_ms, row.origin) for row in tx.all("stops"))


def stop(tx: Transaction, wanted: Iterable[Wanted], *, origin: str, now_ms: int) -> Stops:
    """Begin stops. One that stands already stays as it is, since when it does."""
    changed: list[Stop] = []
    for scope, lane in wanted:
        if tx.one("begin_stop", scope=scope, lane=lane or "", since_ms=now_ms, origin=origin) is not None:
            changed.append(Stop(scope, lane, now_ms, origin))
    _tell(tx, "stop", changed, origin, now_ms)
    return Stops(tuple(changed), standing(tx))


def resume(tx: Transaction, wanted: Iterable[Wanted], *, origin: str, now_ms: int) -> Stops:
    """End stops: `all` ends every one that stands, anything else the stop of just that scope or lane."""
    before = {(one.scope, one.lane): one for one in standing(tx)}
    ending = before if ("all", None) in (asked := list(wanted)) else asked
    changed = [one for key in ending if (one := before.get(key)) is not None]
    for one in changed:
        tx.all("end_stop", scope=one.scope, lane=one.lane or "")
    _tell(tx, "resume", changed, origin, now_ms)
    return Stops(tuple(changed), standing(tx))


def _tell(tx: Transaction, kind: EventKind, changed: Iterable[Stop], origin: str, now_ms: int) -> None:
    for one in changed:
        note(tx, now_ms, kind, data={"scope": one.scope, "lane": one.lane, "origin": origin})
