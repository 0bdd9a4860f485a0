"""Lanes that are closed: kept in a table, so that one drainer's word counts for all of them, and survives it."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.db.database import Transaction
from millpond.rules.admission import Closing, LaneLoad
from millpond.store.bodies import storable
from millpond.store.moves import note


@dataclass(frozen=True, slots=True)
class LaneRow:
    """A lane that is closed: until when (None: until a person opens it), why, by whom, since when."""

    lane: str
    closed_until_ms: int | None
    reason: str
    closed_by: str
    since_ms: int


def close_lane(tx: Transaction, lane: str, closing: Closing, now_ms: int) -> None:
    """Close a lane, for all drainers: a person's word stands above a clock's, the longer above the shorter."""
    until, reason, by = closing.until_ms, storable(closing.reason), closing.by
    tx.all("close_lane", lane=lane, until_ms=until, reason=reason, closed_by=by, now_ms=now_ms)
    note(tx, now_ms, "close_lane", data={"lane": lane, "until_ms": until, "reason": reason})


def open_lane(tx: Transaction, lane: str) -> None:
    """Open a lane, whoever closed it. An open one stays so."""
    tx.all("open_lane", lane=lane)


def closed_lanes(tx: Transaction, now_ms: int) -> dict[str, LaneRow]:
    """The lanes that are closed now, by name."""
    rows = [LaneRow(**row._asdict()) for row in tx.all("lane_states")]
    return {row.lane: row for row in rows if row.closed_until_ms is None or row.closed_until_ms > now_ms}


def load_of(in_flight: int, closed: LaneRow | None) -> LaneLoad:
    """What admission must know of a lane: how much it carries, and whether it is closed."""
    if closed is None:
        return LaneLoad(in_flight)
    return LaneLoad(in_flight, closed.closed_until_ms, needs_person=closed.closed_until_ms is None)
