"""Owners: who may hold leases, and what becomes of a dead one's work. Who is dead is decided elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.job import OwnerRow
from millpond.store.holds import blocking, hold_end_ms, left_at_ms, unheard_until_ms, wake_key
from millpond.store.moves import move, note
from millpond.store.settle import make_ambiguous


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """What a reclaim did: jobs sent back untouched, jobs whose calls are now ambiguous, jobs failed by the cap."""

    released: int = 0
    ambiguous: int = 0
    failed: int = 0


def enlist(tx: Transaction, owner: OwnerRow) -> None:
    """Write the row that lease and record require of an owner."""
    tx.all(
        "insert_owner",
        uuid=owner.uuid,
        role=owner.role,
        host=owner.host,
        pid=owner.pid,
        boot_id=owner.boot_id,
        started_ms=owner.started_ms,
    )


def living_owners(tx: Transaction) -> list[OwnerRow]:
    """All owners that nobody has declared dead, oldest first."""
    return [OwnerRow(**row._asdict()) for row in tx.all("living_owners")]


def reclaim(tx: Transaction, owner: str, *, max_leases_lost: int, died: bool = True, now_ms: int) -> Reclaimed:
    """Declare an owner dead and take back all it held, in one transaction; a second time does nothing.

    An owner that leaves by itself (`died` False) gives back the same way, and no lost lease is counted for that.

    Every open attempt of the owner becomes ambiguous, whatever its job's state; what it listened to is listened to no
    more. Those holds are over, unless the lane can be asked. A leased job without an open attempt had sent nothing:
    it goes back to ready, and the lost lease is counted, up to the cap.
    """
    if tx.one("bury_owner", owner=owner) is None:
        return Reclaimed()
    opened: list[Any] = tx.all("open_attempts_by", owner=owner)
    listened: list[Any] = tx.all("listened_by", owner=owner)
    for attempt in opened:
        make_ambiguous(tx, attempt.uid, now_ms, hold_until_ms=unheard_until_ms(attempt, now_ms), code="died")
        note(tx, now_ms, "ambiguous", job_id=attempt.job_id, data={"attempt": attempt.uid, "code": "died"})
    for attempt in listened:
        until_ms = left_at_ms(attempt, now_ms)
        tx.all("stop_listening", uid=attempt.uid, listener=owner, hold_until_ms=until_ms, now_ms=now_ms)
    sent = {attempt.job_id for attempt in opened}
    counts = Reclaimed(ambiguous=len(opened))
    for job in tx.all("leased_by", owner=owner):
        blocked = blocking(tx, job.idempotency_key, now_ms)
        if blocked:
            counted = died and job.id not in sent
            move(tx, job, "hold", now_ms, not_before_ms=hold_end_ms(blocked), lease_lost=counted)
        elif job.id in sent:
            move(tx, job, "release", now_ms, next_lane="")
        elif died and job.leases_lost + 1 >= max_leases_lost:
            times = job.leases_lost + 1
            move(
                tx, job, "fail", now_ms, reason=f"leases_lost: worker died {times} times", by="policy", lease_lost=True
            )
            counts = Reclaimed(counts.released, counts.ambiguous, counts.failed + 1)
        else:
            move(tx, job, "release", now_ms, lease_lost=died, data={"owner": owner})
            counts = Reclaimed(counts.released + 1, counts.ambiguous, counts.failed)
    for attempt in (*opened, *listened):
        wake_key(tx, attempt.idempotency_key, now_ms)
    return counts


def end_own_holds(tx: Transaction, owner: str, now_ms: int) -> int:
    """An owner ends its holds that have run out while their calls go on; their replies are still received.

    Returns how many.
    """
    over = tx.all("holds_run_out", owner=owner, now_ms=now_ms)
    for attempt in over:
        tx.all("stop_listening", uid=attempt.uid, listener=owner, hold_until_ms=now_ms, now_ms=now_ms)
        wake_key(tx, attempt.idempotency_key, now_ms)
    return len(over)
