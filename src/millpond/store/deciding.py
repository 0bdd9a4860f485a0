"""A person's word on what is unknown: `decide` what follows such a call, and `unpin` what one has led to."""

from __future__ import annotations

from typing import Any, Literal

from millpond.db.database import Transaction
from millpond.rules.router import Step, pinned
from millpond.store.bodies import load_work
from millpond.store.lease import NextLane
from millpond.store.ledger import routing
from millpond.store.moves import move, note
from millpond.store.persons import UNKNOWN, Moved, settle_undecided
from millpond.store.settle import Bill

Choice = Literal["pin", "same", "fail"]

UNDECIDED = "has a call of unknown end that nobody has decided: `millpond decide ID same` asks its lane again"
DECIDED = "ambiguous: outcome unknown, and a person does not pay again"

LEADS_NOWHERE = "no lane is left for it after that"
"""Why a pin is refused: its job would fail uncalled, and nothing be paid again."""


def would_decide(tx: Transaction, job_id: int, choice: Choice, route: NextLane | None = None) -> Moved:
    """Whether anything of a job is to be decided, and this can be the word."""
    can = _can_decide(tx, tx.one("job_moves", job_id=job_id))
    if can.moved and choice == "pin" and route is not None and not _leads_on(tx, job_id, route):
        return Moved(False, LEADS_NOWHERE)
    return can


def decide(
    tx: Transaction, job_id: int, choice: Choice, bill: Bill, now_ms: int, route: NextLane | None = None
) -> Moved:
    """Decide what is unknown of a job's key, held or not: pay again on the next lane, on the same one, or not.

    Wherever the job waits or is ready: only one that is leased has its policy's word already. A call that is still
    listened to goes on, and its reply is received if it comes. `same` grants one more call, on that very lane, whatever
    was tried there. A `pin` after which `route` finds no lane is refused.
    """
    can = would_decide(tx, job_id, choice, route)
    if not can.moved:
        return can
    job = tx.all("job_moves", job_id=job_id)[0]
    undecided = tx.all("undecided_of_key", idempotency_key=job.idempotency_key)
    settle_undecided(tx, job, choice, bill, now_ms)
    if choice == "fail":
        move(tx, tx.all("job_moves", job_id=job_id)[0], "fail", now_ms, reason=DECIDED, by="person")
        return can
    if choice == "same":
        last = undecided[-1]
        tx.all("renew_budget", job_id=job_id, granted=1, floor_seq=last.seq, wished_lane=last.lane)
    if job.state == "ready":  # what it was routed by is decided otherwise now
        tx.all("unroute_jobs", ids=[job_id])
    return can  # the last of its calls that is decided wakes it


def _leads_on(tx: Transaction, job_id: int, route: NextLane) -> bool:
    """Whether a lane is left for a job once all that is unknown of it is pinned."""
    name, wish, past = routing(tx, job_id)
    body = tx.one("payload", job_id=job_id)
    return body is None or isinstance(route(load_work(body.body), name, wish, pinned(past)), Step)


def would_unpin(tx: Transaction, job_id: int) -> Moved:
    """Whether a job is pinned to a lane by its past."""
    job = tx.one("job_moves", job_id=job_id)
    if job is None:
        return UNKNOWN
    if job.state not in ("ready", "waiting"):
        return Moved(False, f"is {job.state}")
    if tx.one("last_pin", job_id=job_id) is not None:
        return Moved(True)
    if tx.one("undecided_of_job", job_id=job_id) is not None:
        return Moved(False, UNDECIDED)
    return Moved(False, "is not pinned")


def unpin(tx: Transaction, job_id: int, now_ms: int) -> Moved:
    """Forget the calls of an unknown end that sent a job past a lane: it is routed from its first lane again."""
    can = would_unpin(tx, job_id)
    if can.moved:
        pin = tx.one("last_pin", job_id=job_id)
        assert pin is not None
        tx.all("unpin_job", job_id=job_id, floor_seq=pin.seq)
        note(tx, now_ms, "unpin", job_id=job_id)
    return can


def _can_decide(tx: Transaction, job: Any) -> Moved:
    if job is None:
        return UNKNOWN
    if job.state not in ("ready", "waiting"):
        return Moved(False, f"is {job.state}")
    if any(one.outcome is None for one in tx.all("open_or_undecided", keys=[job.idempotency_key])):
        return Moved(False, "its call is still under way")
    if tx.one("undecided_of_key", idempotency_key=job.idempotency_key) is None:
        return Moved(False, "nothing of it is unknown")
    return Moved(True)
