"""The door: requests come in, and each is answered by an artifact, joined to a live job, or given a job of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Disposition, Receipt
from millpond.rules.lifecycle import UNBORN, WAIT_REASON, Move, advance
from millpond.store.bodies import dump
from millpond.store.holds import hold_end_ms, is_blocking, may_speak
from millpond.store.moves import FAR_FUTURE_MS, HELD, move, note

CHUNK_REQUESTS = 500
"""Requests stored in one transaction of a bulk enqueue: enough to share the commit, few enough to let others in."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as the door takes it: validated, named, and in the form in which it is stored."""

    position: int
    kind: str
    route: str
    fingerprint: str
    idempotency_key: str
    body: str
    custom_id: str | None = None
    carried: str | None = None
    priority: int = 0
    service_class: str = "batch"
    due_ms: int | None = None
    not_before_ms: int | None = None
    lane: str = ""
    """The lane that the caller asked for by name."""
    next_lane: str = ""
    """The lane that routing starts it on; "" leaves it to be routed when it is leased."""
    fresh: bool = False
    label: str | None = None
    origin: str = "api"
    tags: tuple[str, ...] = ()
    trace_id: str | None = None


@dataclass(slots=True)
class _Job:
    """A job that requests of this transaction hang on.

    It is alive (`row`), done (`id` and `artifact_id`), or to be inserted (`how`; no id yet).
    """

    asked: Asked
    how: Move | None = None
    row: Any = None
    id: int = 0
    wait_until_ms: int | None = None
    floor_seq: int = 0
    artifact_id: int | None = None
    priority: int = 0
    service_class: str = "batch"
    due_ms: int = FAR_FUTURE_MS
    requests: int = 0

    def take(self, asked: Asked) -> None:
        """One more request: the larger priority, realtime before batch, the earlier due, the earlier start."""
        self.priority = max(self.priority, asked.priority) if self.requests or self.row else asked.priority
        self.service_class = max(self.service_class, asked.service_class)  # as text, "realtime" is the larger
        self.due_ms = min(self.due_ms, asked.due_ms if asked.due_ms is not None else FAR_FUTURE_MS)
        if self.is_scheduled:
            assert self.wait_until_ms is not None
            self.wait_until_ms = min(self.wait_until_ms, asked.not_before_ms or 0)
        self.requests += 1

    @property
    def is_scheduled(self) -> bool:
        return self.how == "schedule" or (self.row is not None and self.row.wait_reason == "scheduled")


@dataclass(slots=True)
class _Key:
    """What stands under one idempotency key: an artifact in force, a live job, attempts that may still speak."""

    fingerprint: str | None = None
    artifact: Any = None
    job: _Job | None = None
    blocked: list[Any] = field(default_factory=list[Any])
    speaking: list[Any] = field(default_factory=list[Any])
    """Those that block, and those past their hold that their lane can still be asked for."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one request goes: its job, and the artifact that answers it, if one does."""

    asked: Asked
    job: _Job
    disposition: Disposition
    artifact: Any


def open_submission(tx: Transaction, *, name: str | None, source: str, now_ms: int) -> int:
    """A new submission's id. Without a name it is called `s` and its id."""
    created = tx.one("insert_submission", name=name or "", created_ms=now_ms, source=source)
    assert created is not None
    if name is None:
        tx.all("name_submission", name=f"s{created.id}", id=created.id)
    return created.id


def enqueue(
    tx: Transaction,
    asked: Sequence[Asked],
    *,
    submission_id: int,
    now_ms: int,
    max_age_ms: int | None = None,
) -> list[Receipt | KeyConflict]:
    """Take requests in, in their order. One answer a request: its Receipt, or the KeyConflict that refused it.

    The artifact is asked first, then the live job, then the open and held attempts of the key. Three look-ups serve
    the whole chunk, and a job that many requests join is written once.
    """
    keys = _look_up(tx, asked, now_ms)
    last_seq = tx.all("last_attempt_seq")[0].seq
    plan: list[_Place | KeyConflict] = []
    jobs: dict[int, _Job] = {}
    for one in asked:
        key = keys[one.idempotency_key]
        judged, retired = _judge(one, key, now_ms, max_age_ms)
        if isinstance(judged, KeyConflict):
            plan.append(judged)
            continue
        if retired is not None:
            tx.all("retire_artifact", id=retired.id, now_ms=now_ms, seq=last_seq)
            note(tx, now_ms, "retire", data={"artifact_id": retired.id})
        if key.job is None:
            key.job = _new_job(one, key, last_seq, now_ms)
        key.job.take(one)
        jobs[id(key.job)] = key.job  # one key may have two here: the job of an artifact, and that of its retirement
        plan.append(_Place(one, key.job, judged, key.artifact))
    standing = [job for job in jobs.values() if job.id]
    _insert_jobs(tx, [job for job in jobs.values() if not job.id], now_ms)
    _join_jobs(tx, standing, now_ms)
    return _insert_requests(tx, plan, submission_id, now_ms)


def would_enqueue(
    tx: Transaction,
    asked: Sequence[Asked],
    before: Mapping[str, str],
    *,
    now_ms: int,
    max_age_ms: int | None = None,
) -> list[Disposition | KeyConflict]:
    """What `enqueue` would answer now, and write nothing.

    `before`: keys for which earlier requests of the same dry run would have made a job, with their fingerprints.
    """
    keys = _look_up(tx, asked, now_ms)
    answers: list[Disposition | KeyConflict] = []
    for one in asked:
        key = keys[one.idempotency_key]
        if one.idempotency_key in before:  # whatever answered it was retired by that request
            key.fingerprint, key.artifact, key.job = before[one.idempotency_key], None, _Job(one)
        judged, _ = _judge(one, key, now_ms, max_age_ms)
        if not isinstance(judged, KeyConflict):
            key.job = key.job or _Job(one)
        answers.append(judged)
    return answers


def _judge(one: Asked, key: _Key, now_ms: int, max_age_ms: int | None) -> tuple[Disposition | KeyConflict, Any]:
    """What becomes of a request by what stands under its key, and the artifact that it retires, if it does.

    The key takes what the request changes: its fingerprint, and an artifact that no longer counts.
    """
    if key.fingerprint not in (None, one.fingerprint):
        return _conflict(one, key), None
    key.fingerprint = one.fingerprint
    retired = None
    if key.artifact is not None and (one.fresh or _is_stale(key.artifact, now_ms, max_age_ms)):
        retired, key.artifact, key.job = key.artifact, None, None
    return "reused" if key.artifact is not None else "joined" if key.job else "new", retired


def _look_up(tx: Transaction, asked: Sequence[Asked], now_ms: int) -> dict[str, _Key]:
    """What stands under every key of the chunk, in three look-ups."""
    found = {one.idempotency_key: _Key() for one in asked}
    first = {one.idempotency_key: one for one in reversed(asked)}
    wanted = list(found)
    for row in tx.all("artifacts_in_force", keys=wanted):
        key = found[row.idempotency_key]
        key.fingerprint, key.artifact = row.fingerprint, row
        if row.job_id is not None:
            key.job = _Job(first[row.idempotency_key], id=row.job_id, artifact_id=row.id)
    for row in tx.all("live_jobs", keys=wanted):
        key = found[row.idempotency_key]
        key.fingerprint = row.fingerprint
        key.job = _Job(
            first[row.idempotency_key],
            row=row,
            id=row.id,
            wait_until_ms=row.not_before_ms,
            priority=row.priority,
            service_class=row.service_class,
            due_ms=row.due_ms,
        )
    for row in tx.all("open_or_undecided", keys=wanted):
        key = found[row.idempotency_key]
        if is_blocking(row, now_ms):
            key.fingerprint = key.fingerprint or row.fingerprint
            key.blocked.append(row)
        if may_speak(row, now_ms):
            key.speaking.append(row)
    return found


def _conflict(one: Asked, key: _Key) -> KeyConflict:
    return KeyConflict(
        f"key {one.idempotency_key!r} already names other work: found fingerprint {(key.fingerprint or '')[:12]}…, "
        f"asked {one.fingerprint[:12]}…; give this work a key of its own"
    )


def _is_stale(artifact: Any, now_ms: int, max_age_ms: int | None) -> bool:
    return max_age_ms is not None and now_ms - artifact.accepted_ms > max_age_ms


def _new_job(one: Asked, key: _Key, last_seq: int, now_ms: int) -> _Job:
    """A job for a key that has none: born done beside an artifact, held behind an open end, scheduled, or ready."""
    if key.artifact is not None:
        return _Job(one, "enqueue_answered", artifact_id=key.artifact.id, floor_seq=last_seq)
    # The job looks back at what may still speak. Past its hold, what a caller's own key named before is not its work.
    speaking = [attempt.seq for attempt in key.speaking if attempt.fingerprint == one.fingerprint]
    floor = min(speaking) - 1 if speaking else last_seq
    if one.not_before_ms is not None and one.not_before_ms > now_ms:
        # Scheduled even where the key is blocked: a hold that ends sooner must not start it, and record looks again.
        return _Job(one, "schedule", wait_until_ms=one.not_before_ms, floor_seq=floor)
    if key.blocked:
        return _Job(one, "enqueue_held", wait_until_ms=hold_end_ms(key.blocked), floor_seq=floor)
    return _Job(one, "enqueue", floor_seq=floor)


def _insert_jobs(tx: Transaction, jobs: Sequence[_Job], now_ms: int) -> None:
    rows: list[dict[str, Any]] = []
    for job in jobs:
        one = job.asked
        if job.how == "schedule" and (job.wait_until_ms or 0) <= now_ms:
            job.how, job.wait_until_ms = "enqueue", None  # a later request of this chunk wants it now
        assert job.how is not None
        state = advance(UNBORN, job.how)
        rows.append(
            {
                "kind": one.kind,
                "route": one.route,
                "fingerprint": one.fingerprint,
                "idempotency_key": one.idempotency_key,
                "state": state,
                "wait_reason": WAIT_REASON.get(job.how),
                "not_before_ms": job.wait_until_ms,
                "priority": job.priority,
                "service_class": job.service_class,
                "due_ms": job.due_ms,
                "wished_lane": one.lane,
                "next_lane": "" if job.how == "enqueue_held" else one.next_lane,
                "floor_seq": job.floor_seq,
                "requests": job.requests,
                "artifact_id": job.artifact_id,
                "label": one.label,
                "origin": one.origin,
                "tags": dump(list(one.tags)),
                "trace_id": one.trace_id,
                "created_ms": now_ms,
                "settled_ms": now_ms if state == "done" else None,
                "settled_by": "artifact" if state == "done" else None,
            }
        )
        tx.count(state, +1)
        if WAIT_REASON.get(job.how) == HELD:
            tx.count(HELD, +1)
    for job, row in zip(jobs, tx.many("insert_job", rows), strict=True):
        job.id = row.id
    tx.many("insert_payload", [{"job_id": job.id, "body": job.asked.body} for job in jobs])


def _join_jobs(tx: Transaction, jobs: Sequence[_Job], now_ms: int) -> None:
    for job in jobs:
        if job.row is not None:
            tx.all(
                "join_job",
                id=job.id,
                priority=job.priority,
                service_class=job.service_class,
                due_ms=job.due_ms,
                requests=job.requests,
            )
            _bring_forward(tx, job, now_ms)
        else:
            tx.all("count_requests", id=job.id, requests=job.requests)


def _bring_forward(tx: Transaction, job: _Job, now_ms: int) -> None:
    """A scheduled job starts when its earliest request wants it."""
    if not job.is_scheduled or job.wait_until_ms == job.row.not_before_ms:
        return
    if (job.wait_until_ms or 0) <= now_ms:
        move(tx, job.row, "wake", now_ms)
    else:
        tx.all("reschedule", job_id=job.id, not_before_ms=job.wait_until_ms)


def _insert_requests(
    tx: Transaction,
    plan: Sequence[_Place | KeyConflict],
    submission_id: int,
    now_ms: int,
) -> list[Receipt | KeyConflict]:
    taken = [entry for entry in plan if not isinstance(entry, KeyConflict)]
    rows = tx.many(
        "insert_request",
        [
            {
                "submission_id": submission_id,
                "position": place.asked.position,
                "custom_id": place.asked.custom_id,
                "carried": place.asked.carried,
                "job_id": place.job.id,
                "disposition": place.disposition,
            }
            for place in taken
        ],
    )
    tx.all("grow_submission", id=submission_id, delta=len(taken))
    ids = iter(rows)
    answers: list[Receipt | KeyConflict] = []
    for entry in plan:
        if isinstance(entry, KeyConflict):
            answers.append(entry)
            continue
        job, disposition, artifact = entry.job, entry.disposition, entry.artifact
        request_id = next(ids).id
        note(
            tx,
            now_ms,
            "enqueue",
            job_id=job.id,
            submission_id=submission_id,
            data={"request_id": request_id, "disposition": disposition},
        )
        if disposition != "new":
            tx.count(disposition, +1)
        answers.append(
            Receipt(
                request_id,
                job.id,
                submission_id,
                entry.asked.position,
                disposition,
                answered_by=(artifact.model or artifact.lane) if artifact else None,
                answered_ms=artifact.accepted_ms if artifact else None,
            )
        )
    return answers
