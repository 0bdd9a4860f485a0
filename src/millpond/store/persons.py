"""What people ask of jobs that exist: cancel, and retry; for everyone who asks for a job, or for some submissions.

A verb looks first, and a dry run ends there: both go by the same look. Then requests are moved (`withdraw`,
`take_back`), and last the job itself (`give_up`, `ask_again`), which knows nothing of who asks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from millpond.db.database import Transaction
from millpond.rules.lifecycle import EventKind, may
from millpond.store.bodies import load_work
from millpond.store.holds import blocking, hold_end_ms, is_blocking, may_speak
from millpond.store.moves import move, note
from millpond.store.settle import Bill, make_ambiguous, resolve, unpriced

Whose: TypeAlias = "Sequence[int] | None"
"""Whose requests are meant: those of some submissions, by id; None: everyone's. The statements read it as it is."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Whether a verb took effect on a job, and if not, why. `goes_on`: the job itself did not move, for others ask."""

    moved: bool
    why: str = ""
    goes_on: bool = False


UNKNOWN = Moved(False, "unknown job")


def would_cancel(tx: Transaction, job_id: int, whose: Whose) -> Moved:
    """What `cancel` would do."""
    return _can_cancel(_look(tx, job_id, whose))


def cancel(tx: Transaction, job_id: int, whose: Whose, *, hold_ms: int, now_ms: int) -> Moved:
    """Withdraw what is asked of a job. It is cancelled when nobody asks for it any more, and goes on else.

    `hold_ms` is how long a call in flight may still bring its reply: it is accepted for the key if it comes.
    """
    seen = _look(tx, job_id, whose)
    can = _can_cancel(seen)
    if can.moved:
        withdraw(tx, job_id, whose, seen.shares, now_ms)
    if can.moved and not can.goes_on:
        give_up(tx, seen.job, hold_ms, now_ms)
    return can


def would_retry(tx: Transaction, job_id: int, whose: Whose, now_ms: int) -> Moved:
    """What `retry` would do."""
    return _can_retry(tx, _look(tx, job_id, whose), whose, now_ms)


def retry(
    tx: Transaction,
    job_id: int,
    whose: Whose,
    *,
    granted: int,
    lane: str | None,
    bill: Bill = unpriced,
    now_ms: int,
) -> Moved:
    """Take withdrawals back, and ask again for a job that failed, was cancelled or cannot be delivered.

    One that goes on, or is done, answers the submissions that ask for it again. Refused: a job whose requests have all
    moved to another, and one whose key now names other work.
    """
    seen = _look(tx, job_id, whose)
    can = _can_retry(tx, seen, whose, now_ms)
    if can.moved:
        take_back(tx, job_id, whose, seen.shares, now_ms)
        ask_again(tx, job_id, granted=granted, lane=lane, bill=bill, now_ms=now_ms)
    return can


# --- what can be done ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Seen:
    """A job (None: there is none), and the requests that are meant: `asking` and `withdrawn` of each submission.

    Everyone's are one share without a submission.
    """

    job: Any
    shares: Sequence[Any]


def _look(tx: Transaction, job_id: int, whose: Whose) -> _Seen:
    return _Seen(tx.one("job_moves", job_id=job_id), tx.all("shares_of_job", job_id=job_id, ids=whose))


def _can_cancel(seen: _Seen) -> Moved:
    if seen.job is None:
        return UNKNOWN
    if not may(seen.job.state, "cancel"):
        return Moved(False, f"already {seen.job.state}")
    asking = sum(share.asking for share in seen.shares)
    return Moved(True, goes_on=asking < seen.job.requests) if asking else Moved(False, "already cancelled")


def _can_retry(tx: Transaction, seen: _Seen, whose: Whose, now_ms: int) -> Moved:
    job = seen.job
    if job is None:
        return UNKNOWN
    if not may(job.state, "retry") and job.wait_reason != "undeliverable":
        # What others withdrew is theirs to take back: who asks for a job that goes on must say for whom.
        is_theirs = whose is not None and any(share.withdrawn for share in seen.shares)
        return Moved(True) if is_theirs else Moved(False, f"is {job.state}")
    if not seen.shares:
        return Moved(False, "its requests have moved to another job")
    key = [job.idempotency_key]
    named = [*tx.all("artifacts_in_force", keys=key), *tx.all("live_jobs", keys=key), *blocking(tx, key[0], now_ms)]
    if any(one.fingerprint != job.fingerprint for one in named):
        return Moved(False, "its key names other work by now")
    return Moved(True)


# --- requests -----------------------------------------------------------------------------------------------------


def withdraw(tx: Transaction, job_id: int, whose: Whose, shares: Sequence[Any], now_ms: int) -> None:
    """Withdraw what is asked of a job; the job itself stays what it is."""
    tx.all("withdraw_requests", job_id=job_id, ids=whose, now_ms=now_ms)
    tx.all("count_requests", id=job_id, requests=-sum(share.asking for share in shares))
    # What everyone asked is told by the job's own `cancel`.
    asking = {share.submission_id: share.asking for share in shares if share.submission_id is not None}
    _note_each(tx, now_ms, "withdraw", job_id, asking)


def take_back(tx: Transaction, job_id: int, whose: Whose, shares: Sequence[Any], now_ms: int) -> None:
    """Take withdrawals back; the job itself stays what it is."""
    withdrawn = {share.submission_id: share.withdrawn for share in shares}
    tx.all("take_back_requests", job_id=job_id, ids=whose)
    tx.all("count_requests", id=job_id, requests=sum(withdrawn.values()))
    _note_each(tx, now_ms, "take_back", job_id, withdrawn)


def _note_each(tx: Transaction, now_ms: int, kind: EventKind, job_id: int, counts: Mapping[int | None, int]) -> None:
    """One event for each submission, however many requests: what a verb writes beside them does not grow with them."""
    for submission_id, count in counts.items():
        if count:
            note(tx, now_ms, kind, job_id=job_id, submission_id=submission_id, data={"requests": count})


# --- the job itself -----------------------------------------------------------------------------------------------


def give_up(tx: Transaction, job: Any, hold_ms: int, now_ms: int) -> None:
    """Cancel a job for which nobody asks any more. One in flight is cancelled at once; its call is listened to on."""
    move(tx, job, "cancel", now_ms, by="person")
    for attempt in tx.all("open_attempts_of_job", job_id=job.id):
        lives = tx.one("owner_lives", owner=attempt.owner) is not None
        make_ambiguous(
            tx,
            attempt.uid,
            now_ms,
            hold_until_ms=now_ms + hold_ms,
            listener=attempt.owner if lives and hold_ms > 0 else None,
            code="cancelled",
        )


def ask_again(tx: Transaction, job_id: int, *, granted: int, lane: str | None, bill: Bill, now_ms: int) -> None:
    """Ask again for a job that is over or undeliverable, for all whose requests hang on it; another is left as it is.

    Another live job of the key takes its requests over; an artifact in force answers it; otherwise it starts anew.
    """
    job = tx.all("job_moves", job_id=job_id)[0]
    if job.wait_reason == "undeliverable":
        move(tx, job, "wake", now_ms, next_lane="")
    if not may(job.state, "retry"):
        return
    key = [job.idempotency_key]
    if live := tx.one("live_jobs", keys=key):
        _hand_over(tx, job, live.id, now_ms)
    elif artifact := tx.one("artifacts_in_force", keys=key):
        move(tx, job, "retry_answered", now_ms, artifact_id=artifact.id, by="artifact")
    else:
        _start_anew(tx, job, granted=granted, lane=lane, bill=bill, now_ms=now_ms)


def _hand_over(tx: Transaction, job: Any, to_job: int, now_ms: int) -> None:
    tx.count("joined", tx.all("new_requests_of_job", job_id=job.id)[0].n)
    tx.all("join_requests", from_job=job.id, to_job=to_job)
    tx.all("count_requests", id=job.id, requests=-job.requests)
    tx.all("count_requests", id=to_job, requests=job.requests)
    note(tx, now_ms, "retry_joined", job_id=job.id, data={"job_id": to_job})


def _start_anew(tx: Transaction, job: Any, *, granted: int, lane: str | None, bill: Bill, now_ms: int) -> None:
    """Ready, or held behind an attempt that may still bring its reply, with `granted` further attempts.

    What is unknown, no longer held, and can be asked of no lane is decided by that: who asks again may pay a second
    time. Where a lane can be asked it is asked first, and then the policy decides, as after a hold.
    """
    unknown = tx.all("open_or_undecided", keys=[job.idempotency_key])
    blocked = [one for one in unknown if is_blocking(one, now_ms)]
    is_asked = any(may_speak(one, now_ms) for one in unknown)
    floor = unknown[0].seq - 1 if is_asked else tx.all("last_attempt_seq")[0].seq
    tx.all("renew_budget", job_id=job.id, granted=granted, floor_seq=floor, wished_lane=lane)
    if blocked:
        move(tx, job, "retry_held", now_ms, not_before_ms=hold_end_ms(blocked), next_lane="")
    else:
        if not is_asked:
            settle_undecided(tx, job, "same", bill, now_ms)
        move(tx, job, "retry", now_ms, next_lane="")


def settle_undecided(tx: Transaction, job: Any, choice: str, bill: Bill, now_ms: int) -> None:
    """Decide whatever is unknown of a job's key; the most that it can have cost is booked as an estimate."""
    body = tx.one("payload", job_id=job.id)
    for one in tx.all("undecided_of_key", idempotency_key=job.idempotency_key):
        worst = bill(load_work(body.body) if body is not None else None, one.lane, now_ms)
        resolve(tx, one.uid, choice, worst=worst.cost, certain=worst.is_certain, now_ms=now_ms)
