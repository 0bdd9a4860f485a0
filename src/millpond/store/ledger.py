"""The ledger: one row for each request that left for a lane or was about to, written before it leaves."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.boot import Boot
from millpond.rules.effects import UNROUTED, Facts, Instead, Recorded, Unheard
from millpond.rules.errors import LeaseLost
from millpond.rules.job import Attempt, Lease
from millpond.rules.price import from_micro
from millpond.rules.router import Past, Tried, Undecided
from millpond.rules.stops import stop_of
from millpond.store.holds import age, blocking, hold_end_ms, is_blocking
from millpond.store.moves import move, note
from millpond.store.stops import standing

HISTORY_ROWS = 256
"""Counted attempts of a key that routing reads, the newest. The lifetime cap of a job stands far below."""

UNDECIDED_ROWS = 256
"""Undecided attempts of a key that one look takes, the oldest; the next look takes the rest, once these are decided.
There is seldom more than one: a key is called again only after the one before was decided."""


def record(
    tx: Transaction,
    lease: Lease,
    *,
    uid: str,
    lane: str,
    tier: str,
    now_ms: int,
    free_lanes: Collection[str] = (),
    recall_hold_ms: int | None = None,
    boot: Boot | None = None,
) -> Recorded | Instead:
    """Write the row of an attempt that is about to leave, under the fence.

    Instead: nothing may be sent, and the job was moved. It is done where its key has an artifact in force (not
    billed), held where another attempt of the key is open or may still bring evidence, given back to look back again
    where a hold has ended since, so that its lane was not asked, and given back as it was where a person has stopped
    the lane. Raises LeaseLost if the job is no longer held under this lease, or its owner was declared dead.
    `recall_hold_ms`: the call can be asked for later, and its key is held for so long if nobody hears its end. `boot`:
    now, on the clock of the owner's boot.
    """
    job = tx.one("record_check", job_id=lease.job_id, lease_no=lease.lease_no, owner=lease.owner)
    if job is None or job.owner_lives is None:
        raise LeaseLost(lost(lease))
    if job.artifact_id is not None:
        move(tx, job, "answer", now_ms, artifact_id=job.artifact_id, by="artifact")
        return Instead("answered")
    blocked = blocking(tx, job.idempotency_key, now_ms, boot)
    if blocked:
        move(tx, job, "hold", now_ms, not_before_ms=hold_end_ms(blocked, now_ms, boot))
        return Instead("held")
    page = {"floor_seq": job.floor_seq, "limit": UNDECIDED_ROWS}
    undecided = tx.all("undecided", idempotency_key=job.idempotency_key, **page)
    if any(row.recall_hold_ms is not None for row in undecided):
        move(tx, job, "release", now_ms, next_lane=UNROUTED)
        return Instead("unasked")
    if (stopped := stop_of(standing(tx), lane, free_lanes)) is not None:
        move(tx, job, "release", now_ms, data={"stopped": stopped.words})
        return Instead("stopped")
    tx.all(
        "insert_attempt",
        uid=uid,
        job_id=job.id,
        attempt_no=job.attempt_no,
        lease_no=lease.lease_no,
        owner=lease.owner,
        lane=lane,
        tier=tier,
        idempotency_key=job.idempotency_key,
        fingerprint=job.fingerprint,
        started_ms=now_ms,
        started_boot_ms=boot.ms if boot is not None else None,
        recall_hold_ms=recall_hold_ms,
    )
    tx.all("count_attempt", job_id=job.id)
    note(tx, now_ms, "record", job_id=job.id, data={"attempt": uid, "lane": lane, "attempt_no": job.attempt_no})
    return Recorded(uid, job.attempt_no, after=_unheard_before(tx, job))


def _unheard_before(tx: Transaction, job: Any) -> Unheard | None:
    if job.last_seq is None:
        return None
    key, work = job.idempotency_key, job.fingerprint
    last = tx.one("last_worked", idempotency_key=key, fingerprint=work, seq=job.last_seq)
    return Unheard(last.uid, last.lane) if last is not None and last.outcome == "ambiguous" else None


def look_back(tx: Transaction, lease: Lease, now_ms: int, boot: Boot | None = None) -> Facts:
    """What was tried for this key since the job's floor, and what of it is to be decided now.

    An attempt that is still held is not: a scheduled job may wake within the hold, and `record` then makes it wait.
    """
    job = tx.one("routing_facts", job_id=lease.job_id)
    if job is None:
        raise LeaseLost(lost(lease))
    past = read_past(tx, lease.idempotency_key, job.floor_seq, now_ms, boot)
    return Facts(past, attempts_made=job.attempts_made, attempts_granted=job.attempts_granted)


def read_past(tx: Transaction, key: str, floor_seq: int, now_ms: int | None = None, boot: Boot | None = None) -> Past:
    """The attempts of a key after a floor, oldest first: those that count for routing, and those not yet decided.

    At most HISTORY_ROWS of the first, the newest, and UNDECIDED_ROWS of the others; with `now_ms`, of the latter only
    those whose hold is over.
    """
    undecided = tx.all("undecided", idempotency_key=key, floor_seq=floor_seq, limit=UNDECIDED_ROWS)
    rows = tx.all("history", idempotency_key=key, floor_seq=floor_seq, limit=HISTORY_ROWS)
    return Past(
        tried=tuple(Tried(row.lane, row.outcome, row.resolution, row.code or "") for row in reversed(rows)),
        undecided=tuple(
            Undecided(
                row.uid,
                row.lane,
                row.code or "",
                age(row, now_ms or 0, boot) if row.recall_hold_ms is not None else None,
            )
            for row in undecided
            if now_ms is None or not is_blocking(row, now_ms, boot)
        ),
    )


def routing(tx: Transaction, job_id: int) -> tuple[str, str, Past]:
    """A job's intent or command type, the lane wished for, and its key's past; all empty for an unknown job."""
    row = tx.one("job_route", job_id=job_id)
    if row is None:
        return "", "", Past()
    return row.route, row.wished_lane, read_past(tx, row.idempotency_key, row.floor_seq)


def attempts(rows: Iterable[Any]) -> list[Attempt]:
    """Rows of the ledger as values."""
    return [
        Attempt(
            **{
                name: getattr(row, name)
                for name in Attempt.__dataclass_fields__
                if name not in ("usage", "cost", "cost_is_estimate", "posted")
            },
            usage=json.loads(row.usage) if row.usage else None,
            cost=from_micro(row.cost) if row.cost is not None else None,
            cost_is_estimate=bool(row.cost_is_estimate),
            posted=bool(row.posted),
        )
        for row in rows
    ]


def lost(lease: Lease) -> str:
    """The words of a lost lease."""
    return (
        f"job {lease.job_id} is no longer held under lease {lease.lease_no} of owner {lease.owner}: "
        "it was cancelled, answered, or given to another; nothing was moved"
    )
