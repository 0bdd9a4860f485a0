"""Taking jobs for a time: wake what is due, route what is new, lease what ranks first on lanes that have room."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.errors import LeaseLost, Undeliverable
from millpond.rules.job import Lease, Work
from millpond.rules.lifecycle import advance
from millpond.rules.router import Exhausted, Past, Step
from millpond.rules.stops import stop_of
from millpond.rules.verdict import worst_bill
from millpond.store.bodies import load_work, rehydrate
from millpond.store.holds import blocking, hold_end_ms
from millpond.store.lanes import closed_lanes
from millpond.store.ledger import read_past
from millpond.store.moves import FAR_FUTURE_MS, Fence, move, note_many
from millpond.store.settle import resolve
from millpond.store.stops import standing

ROUTE_CHUNK_ROWS = 256
"""Jobs routed in one lease; the rest of a large unrouted backlog follows with the next leases."""

NextLane = Callable[[Work, str, str, Past], Step | Exhausted]
"""Work, its route (intent or command type), the lane wished for, the key's past -> the lane of its next attempt."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a lease took, and the jobs that it failed because no lane can serve them, each with the reason."""

    leases: list[Lease]
    failed: Mapping[int, str] = field(default_factory=dict[int, str])


GRANTED = "granted"
"""The tally's name for leases granted in all, by which one in `fair_every` goes by age."""


def lease(
    tx: Transaction,
    *,
    owner: str,
    room: Mapping[str, int],
    limit: int,
    now_ms: int,
    wake_rows: int,
    fair_every: int,
    route: NextLane | None = None,
    registry: Mapping[str, Any] | None = None,
    serial: Collection[str] = (),
    free_lanes: Collection[str] = (),
) -> Taken:
    """Lease up to `limit` jobs, at most `room[lane]` of each lane, in the order of rank; lease_no grows by one.

    Lanes that are closed or stopped are read in the same transaction and given nothing: a saturated lane costs no row
    writes. `free_lanes` are those that surely cost nothing, which a stop of the others leaves open.
    Raises LeaseLost if the owner's row is dead: it must take a new uuid and leases nothing under the old one.
    """
    if tx.one("owner_lives", owner=owner) is None:
        raise LeaseLost(f"owner {owner} was declared dead; it leases nothing more under this name")
    wake_due(tx, now_ms, wake_rows)
    failed = route_new(tx, route, now_ms) if route is not None else {}
    shut = closed_lanes(tx, now_ms).keys() | stopped_lanes(tx, room, free_lanes)
    open_room = {lane: slots for lane, slots in room.items() if slots > 0 and lane not in shut}
    for lane in open_room.keys() & set(serial):  # one at a time across processes: others' leases count
        open_room[lane] = min(open_room[lane], max(1 - tx.all("in_flight", lane=lane)[0].n, 0))
    chosen = _choose(tx, open_room, limit, fair_every)
    if not chosen:
        return Taken([], failed)
    ids = [row.id for row in chosen]
    tx.all("lease_jobs", ids=ids, owner=owner, from_state="ready", to_state=advance("ready", "lease"))
    tx.count("ready", -len(chosen))
    tx.count("leased", +len(chosen))
    tx.count(GRANTED, +len(chosen))
    note_many(tx, now_ms, "lease", [row.id for row in chosen], {"owner": owner})
    return Taken(_hydrate(tx, chosen, ids, owner, now_ms, registry), failed)


def stopped_lanes(tx: Transaction, lanes: Iterable[str], free_lanes: Collection[str]) -> set[str]:
    """Those of these lanes that a person has stopped."""
    stops = standing(tx)
    return {lane for lane in lanes if stop_of(stops, lane, free_lanes)}


def wake_due(tx: Transaction, now_ms: int, limit: int) -> int:
    """Move a bounded number of due jobs to ready; a held one whose key is still blocked waits on. Returns how many."""
    woken = 0
    for job in tx.all("due_jobs", now_ms=now_ms, limit=limit):
        if job.wait_reason == "held" and (blocked := blocking(tx, job.idempotency_key, now_ms)):
            tx.all("postpone_held", job_id=job.id, not_before_ms=hold_end_ms(blocked))
        else:
            woken += move(tx, job, "wake", now_ms, next_lane="")  # its history, or the policy, may have changed
    return woken


def route_new(tx: Transaction, route: NextLane, now_ms: int) -> dict[int, str]:
    """Give jobs without a lane their next one, a bounded chunk at a time; what no lane can serve any more fails.

    What is still held of a key's past is left out: the job waits for it at `record`. With a job that fails its
    undecided attempts are decided, at their worst cost. Returns those that failed, each with the reason.
    """
    failed: dict[int, str] = {}
    rows = tx.all("unrouted_jobs", limit=ROUTE_CHUNK_ROWS)
    last = _last_attempts(tx, rows)
    for row in rows:
        has_history = last.get(row.idempotency_key, 0) > row.floor_seq
        past = read_past(tx, row.idempotency_key, row.floor_seq, now_ms) if has_history else Past()
        work = load_work(row.body)
        step = route(work, row.route, row.wished_lane, past)
        if isinstance(step, Step):
            tx.all("route_job", id=row.id, lane=step.lane)
            continue
        for one in step.given_up:
            worst = worst_bill(work, one.lane, now_ms) if one.lane else None
            certain = one.lane is not None and one.lane.price.kind == "free"
            resolve(tx, one.uid, "fail", worst=worst, certain=certain, now_ms=now_ms)
        if move(tx, row, "fail", now_ms, reason=step.reason, by="policy"):
            failed[row.id] = step.reason
    return failed


def unroute(tx: Transaction, lane: str, after: int, limit: int) -> int:
    """Send ready work of a lane that a drain does not have back to be routed: that says whether it waits on there.

    Looks at `limit` rows with an id above `after`; returns the last id looked at, or `after` if there was none.
    """
    rows = tx.all("ready_after", lane=lane, after=after, limit=limit)
    if rows:
        tx.all("unroute_jobs", ids=[row.id for row in rows])
    return rows[-1].id if rows else after


def ready_lanes(tx: Transaction) -> list[str]:
    """The lanes that have ready work, `''` for work to be routed: one step into the index for each."""
    found: list[str] = [""] if tx.one("any_ready", lane="") else []
    after = ""
    while (row := tx.one("ready_lane_after", lane=after)) is not None and row.lane is not None:
        found.append(row.lane)
        after = row.lane
    return found


def _choose(tx: Transaction, room: Mapping[str, int], limit: int, fair_every: int) -> list[Any]:
    """The jobs that rank first over all open lanes, with every `fair_every`-th lease given by age."""
    chosen = _take(tx, room, limit, 0)
    if not fair_every or not chosen:
        return chosen
    granted = next((row.n for row in tx.all("tally") if row.name == GRANTED), 0)
    # By what is granted, not by what there was room for: beside idle lanes most leases would go by age.
    by_age = (granted + len(chosen)) // fair_every - granted // fair_every
    return _take(tx, room, limit, by_age) if by_age else chosen


def _take(tx: Transaction, room: Mapping[str, int], limit: int, by_age: int) -> list[Any]:
    """The `by_age` oldest jobs of these lanes and then what ranks first, `limit` in all."""
    chosen: dict[int, Any] = {}
    left = dict(room)

    def take(name: str, most: int, rank: Callable[[Any], Any]) -> None:
        rows: list[Any] = []
        for lane, slots in left.items():
            rows += tx.all(name, lane=lane, limit=min(slots, most) + len(chosen))
        for row in sorted(rows, key=rank):
            if len(chosen) >= limit or most <= 0:
                return
            if row.id not in chosen and left[row.next_lane] > 0:
                chosen[row.id] = row
                left[row.next_lane] -= 1
                most -= 1

    if by_age:
        take("ready_by_age", by_age, lambda row: row.id)
    take("ready_by_rank", limit, lambda row: (-row.priority, row.service_class == "batch", row.due_ms, row.id))
    return list(chosen.values())


def _hydrate(
    tx: Transaction, chosen: list[Any], ids: list[int], owner: str, now_ms: int, registry: Mapping[str, Any] | None
) -> list[Lease]:
    """Leases with their work; a command that cannot be loaded is shelved with the reason, and the others go on."""
    bodies = {row.job_id: row.body for row in tx.all("payloads", ids=ids)}
    last = _last_attempts(tx, chosen)
    leases: list[Lease] = []
    for row in chosen:
        try:
            stored = load_work(bodies[row.id])
            work = rehydrate(stored, registry)
        except Undeliverable as problem:
            move(tx, Fence(row.id, row.lease_no + 1), "shelve", now_ms, reason=f"undeliverable: {problem}")
            continue
        leases.append(
            Lease(
                job_id=row.id,
                lease_no=row.lease_no + 1,
                work=work,
                stored=stored,
                idempotency_key=row.idempotency_key,
                attempt_no=row.attempts_made + 1,
                due_ms=None if row.due_ms == FAR_FUTURE_MS else row.due_ms,
                fingerprint=row.fingerprint,
                owner=owner,
                lane=row.next_lane,
                service_class=row.service_class,
                route=row.route,
                wished_lane=row.wished_lane,
                has_history=row.attempts_made > 0 or last.get(row.idempotency_key, 0) > row.floor_seq,
            )
        )
    return leases


def _last_attempts(tx: Transaction, rows: list[Any]) -> dict[str, int]:
    """The newest attempt's seq of each key that has one."""
    if not rows:
        return {}
    keys = [row.idempotency_key for row in rows]
    return {row.idempotency_key: row.seq or 0 for row in tx.all("keys_with_history", keys=keys)}
