"""The one place where a job changes its state: asks the lifecycle, moves the row under its fence, counts, and tells.

Every verb that moves a job calls `move`; a verb that creates or leases many in one statement takes its states from
`advance` as well and reports through `note`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from millpond.db.database import Transaction
from millpond.rules.lifecycle import LIVE, WAIT_REASON, EventKind, Move, advance
from millpond.rules.times import MAX_MS
from millpond.store.bodies import dump, storable

FAR_FUTURE_MS = MAX_MS + 1
"""The due time of a job without one: NULL sorts first on SQLite and last on PostgreSQL. It is later than any time that
can be given, so that none that was given reads back as none."""

HELD = "held"
"""The tally's name for waiting jobs whose reason is `held`; every other name there is a state or a kind of request."""


class Movable(Protocol):
    """A row of a job with what a move must know: its fence and what it is counted as."""

    @property
    def id(self) -> int: ...
    @property
    def state(self) -> str: ...
    @property
    def lease_no(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Fence:
    """Where the mover saw a job, and under which lease number, if no row was read: a lease in hand."""

    id: int
    lease_no: int
    state: str = "leased"


def move(
    tx: Transaction,
    job: Movable,
    how: Move,
    now_ms: int,
    *,
    not_before_ms: int | None = None,
    next_lane: str | None = None,
    artifact_id: int | None = None,
    reason: str | None = None,
    by: str | None = None,
    uncounted: bool = False,
    lease_lost: bool = False,
    data: Mapping[str, Any] | None = None,
) -> bool:
    """Move one job and say whether it moved. False: the fence held, it is no longer where the mover saw it.

    `uncounted` takes back the attempt that record counted (a saturated lane), `lease_lost` counts a lost lease. A move
    that another party makes while the job is leased (cancel, answer) makes the lease number grow, so that the holder's
    own moves find the fence closed.
    """
    after = advance(job.state, how)
    settled = after not in LIVE
    moved = tx.one(
        "move",
        job_id=job.id,
        from_state=job.state,
        lease_no=job.lease_no,
        to_state=after,
        wait_reason=WAIT_REASON.get(how),
        not_before_ms=not_before_ms,
        lease_bump=1 if how in ("cancel", "answer") else 0,
        next_lane=next_lane,
        attempts_delta=-1 if uncounted else 0,
        lost_delta=1 if lease_lost else 0,
        artifact_id=artifact_id,
        reason=storable(reason),
        settled_ms=now_ms if settled else None,
        settled_by=by if settled else None,
    )
    if moved is None:
        return False
    count_move(tx, job.state, getattr(job, "wait_reason", None), after, WAIT_REASON.get(how))
    told = dict(data or {})
    if reason:
        told["reason"] = reason
    if not_before_ms is not None:
        told["not_before_ms"] = not_before_ms
    note(tx, now_ms, how, job_id=job.id, data=told)
    return True


def count_move(tx: Transaction, before: str, before_reason: str | None, after: str, after_reason: str | None) -> None:
    """Keep the tally: one out of a state, one into another; held ones are counted a second time by name."""
    tx.count(before, -1)
    tx.count(after, +1)
    if before_reason == HELD:
        tx.count(HELD, -1)
    if after_reason == HELD:
        tx.count(HELD, +1)


def note(
    tx: Transaction,
    now_ms: int,
    kind: EventKind,
    *,
    job_id: int | None = None,
    submission_id: int | None = None,
    data: Mapping[str, Any] | None = None,
) -> None:
    """Append one event in the transaction that it tells of."""
    body = dump(data) if data else "{}"
    tx.all("append_event", at_ms=now_ms, kind=kind, job_id=job_id, submission_id=submission_id, data=body)


def note_many(tx: Transaction, now_ms: int, kind: EventKind, job_ids: Iterable[int], data: Mapping[str, Any]) -> None:
    """Append the same event for many jobs."""
    body = dump(data)
    rows = [{"at_ms": now_ms, "kind": kind, "job_id": id_, "submission_id": None, "data": body} for id_ in job_ids]
    tx.many("append_event", rows)
