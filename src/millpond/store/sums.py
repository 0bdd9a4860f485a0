"""The ledger as sums, for the report: all of them from one snapshot, money in micro-dollars as it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.db.database import Transaction

DURATIONS = 10_000
"""The newest good answers of a lane whose durations are ranked."""

DUPLICATES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Sums:
    """Rows of the statements `report_…`, by their own names."""

    lanes: Mapping[str, Any]
    """Lane -> its row of report_lane."""
    durations: Mapping[str, Any]
    """Lane -> p50_ms, p95_ms."""
    artifacts: Any
    duplicates: int
    crossings: Any
    saved: Mapping[str, Any]
    """`joined`, `reused` -> requests, cost, unpriced."""
    rollup: Any
    rollup_duplicates: Sequence[Any]


def sums(tx: Transaction, free_lanes: Sequence[str]) -> Sums:
    """Add the ledger up. `free_lanes` are priced 0: a call of theirs whose cost was never booked costs nothing.

    Reads each table whole, once for each statement and lane; memory does not grow with the ledger.
    """
    lanes = [row.lane for row in tx.all("report_lanes")]
    saved = {name: tx.one("report_saved", disposition=name, keys=list(free_lanes)) for name in ("joined", "reused")}
    return Sums(
        lanes={lane: tx.one("report_lane", lane=lane) for lane in lanes},
        durations={lane: tx.one("report_durations", lane=lane, limit=DURATIONS) for lane in lanes},
        artifacts=tx.one("report_artifacts"),
        duplicates=tx.all("report_duplicates")[0].n,
        crossings=tx.one("report_crossings"),
        saved=saved,
        rollup=tx.one("report_rollup"),
        rollup_duplicates=tx.all("report_rollup_duplicates", limit=DUPLICATES_SHOWN),
    )
