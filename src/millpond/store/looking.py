"""Reading: counts, events, jobs, requests with their results, submissions; each list in a stable order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast, get_args

from millpond.db.database import Transaction
from millpond.rules.filters import Term
from millpond.rules.job import Disposition, Error, Event, Job, Reply, Result, State, Submission
from millpond.rules.lifecycle import LIVE, STATES
from millpond.rules.price import from_micro
from millpond.rules.total import Measured
from millpond.store.bodies import contains, load_reply
from millpond.store.moves import FAR_FUTURE_MS

COUNTED: tuple[str, ...] = ("waiting", "held", "ready", "leased", "offloaded", "done", "failed", "cancelled")

NO_END = 2**62
"""Beyond every position and every id."""


def counts(tx: Transaction) -> dict[str, int]:
    """Jobs by state, from the tally; `held` is part of `waiting`."""
    kept = tally(tx)
    return {name: kept.get(name, 0) for name in COUNTED}


def tally(tx: Transaction) -> dict[str, int]:
    """Every maintained count by name: states, `held`, `joined` and `reused` requests, `granted` leases."""
    return {row.name: row.n for row in tx.all("tally")}


def recount(tx: Transaction) -> dict[str, int]:
    """The same counts read off the jobs themselves: slow at a million, and what doctor holds the tally against."""
    found = {row.state: row.n for row in tx.all("count_states")}
    found["held"] = tx.all("count_held")[0].n
    return {name: found.get(name, 0) for name in COUNTED}


def miscounted(tx: Transaction) -> dict[str, tuple[int, int]]:
    """Names whose kept count differs from the jobs in this snapshot: kept, and counted."""
    kept, counted = counts(tx), recount(tx)
    return {name: (kept[name], n) for name, n in counted.items() if kept[name] != n}


def events(tx: Transaction, after: int, limit: int) -> list[Event]:
    """Events with a seq above `after`, in order."""
    return [
        Event(str(row.seq), row.at_ms, row.kind, row.job_id, row.submission_id, json.loads(row.data))
        for row in tx.all("events_after", after=after, limit=limit)
    ]


def job(row: Any) -> Job:
    """A row of v_job as a value."""
    return Job(
        id=row.id,
        kind=row.kind,
        state=row.state,
        wait_reason=row.wait_reason,
        not_before_ms=row.not_before_ms,
        priority=row.priority,
        service_class=row.service_class,
        due_ms=None if row.due_ms == FAR_FUTURE_MS else row.due_ms,
        next_lane=row.next_lane,
        idempotency_key=row.idempotency_key,
        fingerprint=row.fingerprint,
        attempts_made=row.attempts_made,
        leases_lost=row.leases_lost,
        label=row.label,
        origin=row.origin,
        tags=tuple(json.loads(row.tags)),
        trace_id=row.trace_id,
        created_ms=row.created_ms,
        settled_ms=row.settled_ms,
        settled_by=row.settled_by,
        reason=row.reason,
        cost=None if row.unpriced else from_micro(row.cost or 0),
    )


def rank(tx: Transaction, job: Job, limit: int) -> int:
    """How many ready jobs of its lane go before a ready job, counted up to `limit`."""
    [row] = tx.all(
        "rank_before",
        lane=job.next_lane,
        priority=job.priority,
        service_class=job.service_class,
        due_ms=job.due_ms if job.due_ms is not None else FAR_FUTURE_MS,
        id=job.id,
        limit=limit,
    )
    return row.n


def look_into(tx: Transaction, term: Term, job_id: int) -> bool:
    """Answer for the fields of a filter that a Job does not hold: its submission, its intent or command type, its text.

    A submission is named by its number or, where none has that, by its name.
    """
    if term.field == "submission":
        number = number_of(term.value)
        return tx.one("job_in_submission", job_id=job_id, name=term.value, id=number) is not None
    if term.field == "intent":
        row = tx.one("job_route", job_id=job_id)
        return row is not None and row.route == term.value
    assert term.field == "text", f"no look-up for the filter field {term.field!r}"
    row = tx.one("payload", job_id=job_id)
    return row is not None and contains(row.body, term.value)


def number_of(name: str) -> int:
    """The number that the name of a submission may be; 0, which none has, where it is no number."""
    return int(name) if name.isascii() and name.isdecimal() and len(name) < 19 else 0


def result(row: Any) -> Result:
    """A row of v_result as a value. Tokens and cost stand only on the request that paid, its job's first."""
    state = cast("State", "cancelled" if row.withdrawn_ms is not None else row.state)
    reply = load_reply(row.body) if row.body is not None and state == "done" else None
    paid = row.disposition == "new" and row.state == "done"
    # Nothing at all is booked where another job's call answered this one, which made none.
    cost = from_micro(row.cost) if paid and not row.unpriced and row.cost is not None else None
    paid_here = paid and row.answered_by_job == row.job_id
    return Result(
        request_id=row.request_id,
        job_id=row.job_id,
        custom_id=row.custom_id,
        position=row.position,
        carried=json.loads(row.carried) if row.carried is not None else None,
        disposition=row.disposition,
        state=state,
        text=reply.text if reply else None,
        data=reply.data if reply else None,
        finish_reason=reply.finish_reason if reply else None,
        model=(reply.model or row.model) if reply else None,
        lane=row.lane if row.state == "done" else None,
        tokens_in=row.tokens_in if paid_here else None,
        tokens_out=row.tokens_out if paid_here else None,
        cost=cost,
        cost_is_estimate=cost is not None and bool(row.cost_is_estimate),
        error=error(state, row.reason),
    )


def error(state: str, reason: str | None) -> Error | None:
    """Why there is no answer, from a job's `code: words`."""
    if state == "cancelled":
        return Error("cancelled", "withdrawn before it was answered")
    if state != "failed":
        return None
    code, _, words = (reason or "failed").partition(": ")
    return Error(code, words or code)


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with the whole reply that answered it, for those who hand on the provider's own body.

    `attempt_uid`, `lane` and `model` are those of the answering attempt; None while nothing has answered.
    """

    request_id: int
    custom_id: str | None
    state: State
    error: Error | None
    reply: Reply | None
    attempt_uid: str | None
    answered_ms: int | None
    lane: str | None
    model: str | None


def answered(row: Any) -> Answered:
    """A row of v_result, with its artifact, as a value."""
    state = cast("State", "cancelled" if row.withdrawn_ms is not None else row.state)
    return Answered(
        request_id=row.request_id,
        custom_id=row.custom_id,
        state=state,
        error=error(state, row.reason),
        reply=load_reply(row.body) if row.body is not None and state == "done" else None,
        attempt_uid=row.attempt_uid,
        answered_ms=row.accepted_ms,
        lane=row.lane,
        model=row.model,
    )


def measured_answers(tx: Transaction, limit: int) -> list[Measured]:
    """The good answers among the newest attempts of the ledger, whose tokens were told."""
    return [Measured(**row._asdict()) for row in tx.all("measured_answers", limit=limit)]


@dataclass(frozen=True, slots=True)
class RequestRow:
    """A request as it stands on a job, for showing."""

    id: int
    submission_id: int
    position: int
    custom_id: str | None
    disposition: str
    withdrawn_ms: int | None


def requests(rows: Iterable[Any]) -> list[RequestRow]:
    """Rows of request as values."""
    return [RequestRow(**row._asdict()) for row in rows]


def submission(tx: Transaction, row: Any) -> Submission:
    """A submission with how its requests stand; counts all its requests."""
    states: dict[str, int] = dict.fromkeys(STATES, 0)
    dispositions: dict[str, int] = dict.fromkeys(get_args(Disposition), 0)
    for group in tx.all("submission_states", id=row.id):
        states[group.state] += group.n
        dispositions[group.disposition] += group.n
    return Submission(
        id=row.id,
        name=row.name,
        created_ms=row.created_ms,
        source=row.source,
        requests=row.requests,
        pending=sum(states[state] for state in LIVE),
        done=states["done"],
        failed=states["failed"],
        cancelled=states["cancelled"],
        states=states,
        dispositions=dispositions,
    )


def first_pending(tx: Transaction, submission_id: int, after: int, limit: int) -> tuple[int | None, int | None]:
    """The first request of one page that still waits for its answer, and where the next page begins to be read.

    Of a page of `limit` requests after a position. None: none on this page; None for the second: this page is the last.
    """
    end = tx.one("end_of_page", id=submission_id, after=after, rows=limit - 1)
    until = end.position if end is not None else NO_END
    found = tx.one("first_pending", id=submission_id, after=after, until=until)
    return found.position if found is not None else None, end.position if end is not None else None
