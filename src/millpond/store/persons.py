"""What people ask of jobs that exist: cancel, and retry; of a whole job, or of what some submissions ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.lifecycle import EventKind, may
from millpond.store.holds import blocking, hold_end_ms
from millpond.store.moves import move, note
from millpond.store.settle import make_ambiguous


@dataclass(frozen=True, slots=True)
class Moved:
    """Whether a verb took effect on a job, and if not, why. `goes_on`: the job itself did not move, for others ask."""

    moved: bool
    why: str = ""
    goes_on: bool = False


MOVED_AWAY = "its requests have moved to another job"


def cancel(tx: Transaction, job_id: int, *, hold_ms: int, now_ms: int) -> Moved:
    """Withdraw every request of a job, and cancel it. A job in flight is cancelled at once; its call is listened to on.

    `hold_ms` is how long the call in flight may still bring its reply: it is accepted for the key if it comes.
    """
    job = tx.one("job_moves", job_id=job_id)
    if job is None:
        return Moved(False, "unknown job")
    if not may(job.state, "cancel"):
        return Moved(False, f"already {job.state}")
    tx.all("withdraw_requests_of_job", job_id=job_id, now_ms=now_ms)
    tx.all("set_requests", job_id=job_id, requests=0)
    open_attempts = tx.all("open_attempts_of_job", job_id=job_id)
    move(tx, job, "cancel", now_ms, by="person")
    for attempt in open_attempts:
        lives = tx.one("owner_lives", owner=attempt.owner) is not None
        make_ambiguous(
            tx,
            attempt.uid,
            now_ms,
            hold_until_ms=now_ms + hold_ms,
            listener=attempt.owner if lives and hold_ms > 0 else None,
            code="cancelled",
        )
    return Moved(True)


def withdraw(tx: Transaction, request_id: int, *, hold_ms: int, now_ms: int) -> Moved:
    """Withdraw one request; its job is cancelled when none is left."""
    request = tx.one("request", request_id=request_id)
    if request is None:
        return Moved(False, "unknown request")
    if request.withdrawn_ms is not None:
        return Moved(False, "already cancelled")
    if not may(request.state, "cancel"):
        return Moved(False, f"already {request.state}")
    tx.all("withdraw_request", request_id=request_id, now_ms=now_ms)
    tx.all("count_requests", id=request.job_id, requests=-1)
    job = tx.one("job_moves", job_id=request.job_id)
    assert job is not None, f"request {request_id} hangs on job {request.job_id}, which does not exist"
    note(tx, now_ms, "withdraw", job_id=job.id, data={"request_id": request_id})
    if job.requests == 0:
        return cancel(tx, job.id, hold_ms=hold_ms, now_ms=now_ms)
    return Moved(True)


def withdraw_submissions(
    tx: Transaction, job_id: int, submissions: Sequence[int], *, hold_ms: int, now_ms: int
) -> Moved:
    """Withdraw what some submissions ask of a job. It is cancelled when nobody else asks for it, and goes on else."""
    job = tx.one("job_moves", job_id=job_id)
    if job is None:
        return Moved(False, "unknown job")
    if not may(job.state, "cancel"):
        return Moved(False, f"already {job.state}")
    withdrawn = tx.all("withdraw_requests_of_job_in", job_id=job_id, ids=submissions, now_ms=now_ms)
    if not withdrawn:
        return Moved(False, "already cancelled")
    tx.all("count_requests", id=job_id, requests=-len(withdrawn))
    _note_each(tx, now_ms, "withdraw", job_id, withdrawn)
    if len(withdrawn) == job.requests:
        return cancel(tx, job_id, hold_ms=hold_ms, now_ms=now_ms)
    return Moved(True, goes_on=True)


def would_withdraw(tx: Transaction, job_id: int, submissions: Sequence[int]) -> Moved:
    """What `withdraw_submissions` would do to a live job."""
    share = tx.one("share_of_job", job_id=job_id, ids=submissions)
    assert share is not None, "a statement that counts has a row"
    return Moved(True, goes_on=share.others > 0) if share.asking else Moved(False, "already cancelled")


def has_withdrawn(tx: Transaction, job_id: int, submissions: Sequence[int]) -> bool:
    """Whether some submissions have withdrawn anything that they asked of a job."""
    share = tx.one("share_of_job", job_id=job_id, ids=submissions)
    return share is not None and share.withdrawn > 0


def retry(
    tx: Transaction,
    job_id: int,
    *,
    granted: int,
    lane: str | None,
    now_ms: int,
    submissions: Sequence[int] | None = None,
) -> Moved:
    """Ask again for a failed, cancelled or undeliverable job; withdrawals are taken back.

    An artifact in force answers it; another live job of the key takes its requests over; otherwise it is ready, or held
    behind an attempt that may still speak, with `granted` further attempts. A job whose requests have all moved to
    another is refused, and so is one whose key now names other work. With `submissions` only what they withdrew is
    taken back, from a job that lives or is done too: whoever asks for it again has its answer.
    """
    job = tx.one("job_moves", job_id=job_id)
    if job is None:
        return Moved(False, "unknown job")
    if job.state == "waiting" and job.wait_reason == "undeliverable":
        if submissions is not None:
            _join_again(tx, job_id, submissions, now_ms)
        return Moved(move(tx, job, "wake", now_ms, next_lane=""))
    if not may(job.state, "retry"):
        if submissions is not None and _join_again(tx, job_id, submissions, now_ms):
            return Moved(True)
        return Moved(False, f"is {job.state}")
    if _hanging(tx, job_id, submissions) == 0:
        return Moved(False, MOVED_AWAY)
    key = [job.idempotency_key]
    artifact = tx.one("artifacts_in_force", keys=key)
    live = tx.one("live_jobs", keys=key)
    blocked = blocking(tx, job.idempotency_key, now_ms)
    if any(one.fingerprint != job.fingerprint for one in (artifact, live, *blocked) if one is not None):
        return Moved(False, "its key names other work by now")
    if submissions is None:
        tx.all("unwithdraw_requests_of_job", job_id=job_id)
    else:
        _take_back(tx, job_id, submissions, now_ms)
    asking = tx.all("asking_of_job", job_id=job_id)[0].n
    if live is not None:
        tx.count("joined", len(tx.all("join_requests", job_id=job_id)))
        tx.all("move_requests", from_job=job_id, to_job=live.id)
        tx.all("set_requests", job_id=job_id, requests=0)
        tx.all("count_requests", id=live.id, requests=asking)
        note(tx, now_ms, "retry_joined", job_id=job_id, data={"job_id": live.id})
        return Moved(True)
    tx.all("set_requests", job_id=job_id, requests=asking)
    if artifact is not None:
        return Moved(move(tx, job, "retry_answered", now_ms, artifact_id=artifact.id, by="artifact"))
    floor = min(one.seq for one in blocked) - 1 if blocked else tx.all("last_attempt_seq")[0].seq
    tx.all("renew_budget", job_id=job_id, granted=granted, floor_seq=floor, wished_lane=lane)
    if blocked:
        return Moved(move(tx, job, "retry_held", now_ms, not_before_ms=hold_end_ms(blocked), next_lane=""))
    tx.all("decide_undecided", idempotency_key=job.idempotency_key)
    return Moved(move(tx, job, "retry", now_ms, next_lane=""))


def _hanging(tx: Transaction, job_id: int, submissions: Sequence[int] | None) -> int:
    """How many requests hang on a job, withdrawn ones included: all of them, or those of some submissions."""
    if submissions is None:
        return tx.all("requests_of_job", job_id=job_id)[0].n
    share = tx.one("share_of_job", job_id=job_id, ids=submissions)
    return share.asking + share.withdrawn if share is not None else 0


def _join_again(tx: Transaction, job_id: int, submissions: Sequence[int], now_ms: int) -> int:
    """Take back what some submissions withdrew from a job that lives or is done. How many requests."""
    taken = _take_back(tx, job_id, submissions, now_ms)
    tx.all("count_requests", id=job_id, requests=taken)
    return taken


def _take_back(tx: Transaction, job_id: int, submissions: Sequence[int], now_ms: int) -> int:
    taken = tx.all("unwithdraw_requests_of_job_in", job_id=job_id, ids=submissions)
    _note_each(tx, now_ms, "take_back", job_id, taken)
    return len(taken)


def _note_each(tx: Transaction, now_ms: int, kind: EventKind, job_id: int, requests: Iterable[Any]) -> None:
    for one in requests:
        note(tx, now_ms, kind, job_id=job_id, submission_id=one.submission_id, data={"request_id": one.id})
