"""Taking jobs for a time: wake what is due, route what is new, lease what ranks first on lanes that have room."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.errors import LeaseLost, Undeliverable
from millpond.rules.job import Lease, Work
from millpond.rules.lifecycle import advance
from millpond.rules.router import Exhausted, Past, Step
from millpond.store.bodies import load_work, rehydrate
from millpond.store.holds import blocking, hold_end_ms
from millpond.store.ledger import read_past
from millpond.store.moves import FAR_FUTURE_MS, Standing, move, note_many

ROUTE_CHUNK_ROWS = 256
"""Jobs routed in one lease; the rest of a large unrouted backlog follows with the next leases."""

Route = Callable[[Work, str, str, Past], Step | Exhausted]
"""Work, its route (intent or command type), the lane wished for, the key's past -> the lane of its next attempt."""

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
    route: Route | None = None,
    registry: Mapping[str, Any] | None = None,
) -> list[Lease]:
    """Lease up to `limit` jobs, at most `room[lane]` of each lane, in the order of rank; lease_no grows by one.

    Lanes that are closed are read in the same transaction and given nothing: a saturated lane costs no row writes.
    Raises LeaseLost if the owner's row is dead: it must take a new uuid and leases nothing under the old one.
    """
    if tx.one("owner_lives", owner=owner) is None:
        raise LeaseLost(f"owner {owner} was declared dead; it leases nothing more under this name")
    wake_due(tx, now_ms, wake_rows)
    if route is not None:
        route_new(tx, route, now_ms)
    closed = {row.lane for row in tx.all("lane_states") if row.closed_until_ms is None or row.closed_until_ms > now_ms}
    open_room = {lane: slots for lane, slots in room.items() if slots > 0 and lane not in closed}
    chosen = _choose(tx, open_room, limit, fair_every)
    if not chosen:
        return []
    ids = [row.id for row in chosen]
    tx.all("lease_jobs", ids=ids, owner=owner, from_state="ready", to_state=advance("ready", "lease"))
    tx.count("ready", -len(chosen))
    tx.count("leased", +len(chosen))
    tx.count(GRANTED, +len(chosen))
    note_many(tx, now_ms, "lease", [row.id for row in chosen], {"owner": owner})
    return _hydrate(tx, chosen, ids, owner, now_ms, registry)


def wake_due(tx: Transaction, now_ms: int, limit: int) -> int:
    """Move a bounded number of due jobs to ready; a held one whose key is still blocked waits on. Returns how many."""
    woken = 0
    for job in tx.all("due_jobs", now_ms=now_ms, limit=limit):
        if job.wait_reason == "held" and (blocked := blocking(tx, job.idempotency_key, now_ms)):
            tx.all("postpone_held", job_id=job.id, not_before_ms=hold_end_ms(blocked))
        else:
            woken += move(tx, job, "wake", now_ms, next_lane="" if job.wait_reason == "held" else None)
    return woken


def route_new(tx: Transaction, route: Route, now_ms: int) -> None:
    """Give jobs without a lane their next one, a bounded chunk at a time; what no lane can serve any more fails."""
    rows = tx.all("unrouted_jobs", limit=ROUTE_CHUNK_ROWS)
    last = _last_attempts(tx, rows)
    for row in rows:
        has_history = last.get(row.idempotency_key, 0) > row.floor_seq
        past = read_past(tx, row.idempotency_key, row.floor_seq) if has_history else Past()
        step = route(load_work(row.body), row.route, row.wished_lane, past)
        if isinstance(step, Step):
            tx.all("route_job", id=row.id, lane=step.lane)
        else:
            move(tx, row, "fail", now_ms, reason=step.reason, by="policy")


def unroute(tx: Transaction, lanes: Mapping[str, Any], limit: int) -> int:
    """Send ready work of lanes the policy no longer has back to be routed: how many rows, at most `limit`."""
    sent, after = 0, ""
    while sent < limit:
        row = tx.one("ready_lane_after", lane=after)
        if row is None or row.lane is None:
            break
        after = row.lane
        if after not in lanes:
            sent += len(tx.all("unroute_lane", lane=after, limit=limit - sent))
    return sent


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
    take("ready_by_rank", limit, lambda row: (-row.priority, row.batch_class, row.due_ms, row.id))
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
            work = rehydrate(load_work(bodies[row.id]), registry)
        except Undeliverable as problem:
            move(tx, Standing(row.id, row.lease_no + 1), "shelve", now_ms, reason=f"undeliverable: {problem}")
            continue
        leases.append(
            Lease(
                job_id=row.id,
                lease_no=row.lease_no + 1,
                work=work,
                idempotency_key=row.idempotency_key,
                attempt_no=row.attempts_made + 1,
                due_ms=None if row.due_ms == FAR_FUTURE_MS else row.due_ms,
                fingerprint=row.fingerprint,
                owner=owner,
                lane=row.next_lane,
                service_class="realtime" if row.batch_class == 0 else "batch",
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
    return {row.idempotency_key: row.seq for row in tx.all("keys_with_history", keys=keys)}
