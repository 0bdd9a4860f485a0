"""Calls whose end is unknown: which lanes are to be asked for them now, and those for which nobody waits any more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.boot import Boot
from millpond.rules.job import Work
from millpond.rules.price import Cost
from millpond.store.bodies import load_work
from millpond.store.holds import age, is_blocking
from millpond.store.settle import Bill, resolve


@dataclass(frozen=True, slots=True)
class ToAsk:
    """A call that its lane is asked for, with its work, by which a reply is judged; None: that is gone."""

    mark: tuple[int, int]
    """Where a page that ends with it ends."""
    uid: str
    lane: str
    code: str
    job_id: int
    age_ms: int
    """How long ago it was recorded, at this look."""
    ended_ms: int
    hold_until_ms: int | None
    work: Work | None


@dataclass(frozen=True, slots=True)
class Page:
    """Attempts by uid, and the key after which the next page begins; "" after the last."""

    uids: list[str]
    next_key: str


def to_ask(
    tx: Transaction,
    lanes: Collection[str],
    *,
    until_ms: int,
    limit: int,
    after: tuple[int, int] = (0, 0),
    now_ms: int = 0,
    boot: Boot | None = None,
) -> list[ToAsk]:
    """A page of the calls for which these lanes are to be asked by then, longest due first; `after` is its mark."""
    page = {"until_ms": until_ms, "after_ms": after[0], "after": after[1], "limit": limit}
    rows = sorted((row for lane in lanes for row in tx.all("to_ask", lane=lane, **page)), key=_mark)[:limit]
    bodies = {row.job_id: row.body for row in tx.all("payloads", ids=[row.job_id for row in rows])} if rows else {}
    return [
        ToAsk(
            _mark(row),
            row.uid,
            row.lane,
            row.code or "",
            row.job_id,
            age(row, now_ms, boot),
            row.ended_ms,
            row.hold_until_ms,
            load_work(bodies[row.job_id]) if row.job_id in bodies else None,
        )
        for row in rows
    ]


def _mark(row: Any) -> tuple[int, int]:
    return row.ask_ms, row.seq


def lanes_to_ask(tx: Transaction) -> list[str]:
    """The lanes that can be asked for some call whose end is unknown."""
    lanes: list[str] = []
    while (lane := tx.all("next_lane_to_ask", after=lanes[-1] if lanes else "")[0].lane) is not None:
        lanes.append(lane)
    return lanes


def next_ask_ms(tx: Transaction, lanes: Collection[str]) -> int | None:
    """When one of these lanes is next due to be asked for a call; None if none is."""
    found = (tx.one("next_ask", lane=lane) for lane in lanes)
    return min((row.ask_ms for row in found if row is not None), default=None)


def ask_again(tx: Transaction, next_ms: Mapping[str, int], now_ms: int) -> set[str]:
    """Say of each of these calls when it is asked for the next time, before it is asked for now.

    Returns those that are to be asked for now; another may have been first.
    """
    return {
        uid for uid, ask_ms in next_ms.items() if tx.one("ask_again", uid=uid, ask_ms=ask_ms, now_ms=now_ms) is not None
    }


def note_unasked(tx: Transaction, uid: str, why: str | None) -> None:
    """Write down why a lane could not be asked for a call; None: it was."""
    tx.all("note_unasked", uid=uid, why=why)


def unasked(tx: Transaction, limit: int) -> dict[str, tuple[int, str]]:
    """Lane -> for how many calls it could not be asked when that was last tried, of so many, and one reason."""
    found = {lane: tx.all("unasked", lane=lane, limit=limit)[0] for lane in lanes_to_ask(tx)}
    return {lane: (row.n, row.why) for lane, row in found.items() if row.n}


@dataclass(frozen=True, slots=True)
class Forgotten:
    """A call that was decided since nobody waits for it. `cost_usd`: what it cost at most; None: unknown."""

    job_id: int
    lane: str
    cost_usd: Decimal | None


def forget(
    tx: Transaction,
    uid: str,
    bill: Bill,
    now_ms: int,
    boot: Boot | None = None,
    asked_lanes: Collection[str] = (),
) -> Forgotten | None:
    """Decide a call whose hold is over and for whose key no job is alive: nobody pays for it again. None: it is not.

    What `asked_lanes` can be asked for is left to be asked for first.
    """
    attempt = tx.one("attempt_by_uid", uid=uid)
    if attempt is None or attempt.outcome != "ambiguous" or attempt.resolution is not None:
        return None
    if attempt.recall_hold_ms is not None and attempt.lane in asked_lanes:
        return None
    if is_blocking(attempt, now_ms, boot) or tx.one("live_job", key=attempt.idempotency_key) is not None:
        return None
    cost = _decide(tx, attempt, bill, now_ms)
    return Forgotten(attempt.job_id, attempt.lane, cost.usd if cost is not None else None)


def forgotten(tx: Transaction, after: str, limit: int, asked_lanes: Collection[str], now_ms: int) -> Page:
    """Of one page of the calls that nobody has decided, by key, those for which nobody waits.

    What `asked_lanes` can be asked for is left to be asked for first.
    """
    rows = tx.all("undecided_after", after=after, limit=limit)
    over = [
        row.uid
        for row in rows
        if row.live is None
        and not is_blocking(row, now_ms)
        and (row.recall_hold_ms is None or row.lane not in asked_lanes)
    ]
    return Page(over, rows[-1].idempotency_key if len(rows) == limit else "")


def _decide(tx: Transaction, attempt: Any, bill: Bill, now_ms: int) -> Cost | None:
    body = tx.one("payload", job_id=attempt.job_id)
    worst = bill(load_work(body.body), attempt.lane, now_ms) if body is not None else None
    cost, certain = (worst.cost, worst.is_certain) if worst is not None else (None, False)
    resolve(tx, attempt.uid, "nobody", worst=cost, certain=certain, now_ms=now_ms)
    return cost
