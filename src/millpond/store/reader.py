"""What can be read of a queue, a page at a time; nothing here writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from millpond.db.database import Database, Transaction
from millpond.rules.boot import Boot
from millpond.rules.effects import Facts
from millpond.rules.errors import KeyConflict
from millpond.rules.filters import Term
from millpond.rules.job import Artifact, Attempt, Disposition, Event, Job, Lease, OwnerRow, Result, Submission
from millpond.rules.router import Past
from millpond.rules.stops import Stop
from millpond.rules.total import Measured
from millpond.store import asking, deciding, lanes, ledger, looking, persons, picking, stops
from millpond.store import lease as leasing
from millpond.store import reclaim as owners
from millpond.store.asking import Page, ToAsk
from millpond.store.enqueue import Asked, would_enqueue
from millpond.store.lanes import LaneRow
from millpond.store.sums import Sums, sums

PAGE_ROWS = 500
"""Rows read at a time by the iterators: no read transaction outlives one page."""

COUNT_LIMIT = 10_000
"""Where counting rows for a look stops: a look must not cost what the backlog costs."""


class Reader:
    """All that can be asked of a queue's tables. An iterator reads each page in a snapshot of its own."""

    def __init__(self, db: Database, now_ms: Callable[[], int], boot: Callable[[], Boot] | None = None) -> None:
        """`boot` is the clock that nobody sets, by which the age of a call is told; without it the wall's is."""
        self.db = db
        self.now_ms = now_ms
        self.boot = boot or (lambda: None)

    def close(self) -> None:
        """Close the database's connections. May be called twice."""
        self.db.close()

    # --- counts, lanes and owners -------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Jobs by state, from the tally: no scan at a million jobs."""
        return self.db.read(looking.counts)

    def tally(self) -> dict[str, int]:
        """Every maintained count."""
        return self.db.read(looking.tally)

    def miscounted(self) -> dict[str, tuple[int, int]]:
        """Names whose kept count differs from the jobs in one snapshot: kept, and counted. Nothing: all is well."""
        return self.db.read(looking.miscounted)

    def any_ready(self, lane: str) -> bool:
        """Whether a lane (or '' for unrouted) has ready work."""
        return self.db.read(lambda tx: tx.one("any_ready", lane=lane)) is not None

    def next_due_ms(self) -> int | None:
        """When the next waiting job is due; None if none waits for a time."""
        return self.db.read(lambda tx: tx.all("next_due")[0].at_ms)

    def oldest_ready_ms(self, lanes: Sequence[str]) -> int | None:
        """When the oldest ready job of these lanes was made."""
        rows = self.db.read(lambda tx: [tx.one("oldest_ready", lane=lane) for lane in lanes])
        return min((row.created_ms for row in rows if row is not None), default=None)

    def ready_of_lane(self, lane: str, limit: int = COUNT_LIMIT) -> int:
        """How many ready jobs a lane (or '' for unrouted) has, counted up to `limit`."""
        return self.db.read(lambda tx: tx.all("ready_of_lane", lane=lane, limit=limit)[0].n)

    def ready_lanes(self) -> list[str]:
        """The lanes that have ready work, `''` for work to be routed."""
        return self.db.read(leasing.ready_lanes)

    def calls_in_flight(self) -> dict[str, int]:
        """Lane -> calls that hold one of its slots, detached ones included."""
        return {row.lane: row.n for row in self.db.read(lambda tx: tx.all("calls_in_flight"))}

    def waiting_for_person(self, limit: int = COUNT_LIMIT) -> dict[str, int]:
        """`asked` and `undeliverable` -> how many jobs wait for a person's word, counted up to `limit`."""
        return {row.wait_reason: row.n for row in self.db.read(lambda tx: tx.all("waiting_for_person", limit=limit))}

    def ready_after_unknown(self, limit: int = COUNT_LIMIT) -> dict[str, int]:
        """Lane -> jobs about to run though nobody has decided a call of theirs on it, of up to `limit` such calls."""
        return {row.lane: row.n for row in self.db.read(lambda tx: tx.all("ready_after_unknown", limit=limit))}

    def is_undecided(self, job_id: int) -> bool:
        """Whether a call of this job's key has an end that is unknown, and nobody has decided it."""
        return self.db.read(lambda tx: tx.one("undecided_of_job", job_id=job_id)) is not None

    def unwaited_of(self, uids: Iterable[str]) -> list[str]:
        """Those of some attempts of unknown end that nobody has decided and no job waits for."""
        return [row.uid for row in self.db.read(lambda tx: tx.all("unwaited_of", keys=list(uids)))]

    def unwaited(self, limit: int = COUNT_LIMIT) -> int:
        """Calls of unknown end that nobody has decided and no job waits for, of up to `limit` undecided ones."""
        return self.db.read(lambda tx: tx.all("unwaited", limit=limit))[0].n

    def to_ask(
        self, lanes_: Collection[str], *, until_ms: int, after: tuple[int, int] = (0, 0), limit: int = PAGE_ROWS
    ) -> list[ToAsk]:
        """A page of the calls for which these lanes are to be asked by then. See `asking.to_ask`."""
        now = {"now_ms": self.now_ms(), "boot": self.boot()}
        return self.db.read(partial(asking.to_ask, lanes=lanes_, until_ms=until_ms, limit=limit, after=after, **now))

    def lanes_to_ask(self) -> list[str]:
        """The lanes that can be asked for some call whose end is unknown."""
        return self.db.read(asking.lanes_to_ask)

    def unasked(self, limit: int) -> dict[str, tuple[int, str]]:
        """Lane -> for how many calls it could not be asked when that was last tried, of so many, and one reason."""
        return self.db.read(partial(asking.unasked, limit=limit))

    def next_ask_ms(self, lanes_: Collection[str]) -> int | None:
        """When one of these lanes is next due to be asked for a call; None if none is."""
        return self.db.read(partial(asking.next_ask_ms, lanes=lanes_))

    def forgotten(self, after: str, asked_lanes: Collection[str]) -> Page:
        """Calls of an unknown end for which nobody waits any more, out of one page. See `asking.forgotten`."""
        now_ms = self.now_ms()
        return self.db.read(
            partial(asking.forgotten, after=after, limit=PAGE_ROWS, asked_lanes=asked_lanes, now_ms=now_ms)
        )

    def would_decide(
        self, job_ids: Iterable[int], choice: deciding.Choice, *, route: leasing.NextLane | None = None
    ) -> list[persons.Moved]:
        """What `decide` would do with each of these."""
        return self.db.read(lambda tx: [deciding.would_decide(tx, id_, choice, route) for id_ in job_ids])

    def would_unpin(self, job_ids: Iterable[int]) -> list[persons.Moved]:
        """What `unpin` would do with each of these."""
        return self.db.read(lambda tx: [deciding.would_unpin(tx, id_) for id_ in job_ids])

    def closed_lanes(self) -> dict[str, LaneRow]:
        """Lanes that are closed now."""
        return self.db.read(partial(lanes.closed_lanes, now_ms=self.now_ms()))

    def stops(self) -> tuple[Stop, ...]:
        """What persons have stopped, and nobody has resumed."""
        return self.db.read(stops.standing)

    def living_owners(self) -> list[OwnerRow]:
        """Owners that nobody has declared dead."""
        return self.db.read(owners.living_owners)

    def own_holds(self, owner: str) -> dict[str, int]:
        """The calls that this owner listens to: attempt uid -> how long each is to be held, in ms."""
        return {row.uid: row.hold_ms for row in self.db.read(lambda tx: tx.all("own_holds", owner=owner))}

    # --- events -------------------------------------------------------------------------------------------------------

    def events(self, after: int = 0, limit: int = PAGE_ROWS) -> list[Event]:
        """Events by seq, after a cursor."""
        return self.db.read(partial(looking.events, after=after, limit=limit))

    def last_event(self) -> int:
        """The seq of the newest event, 0 if there is none."""
        return self.db.read(lambda tx: tx.all("last_event_seq")[0].seq)

    def count_events(self, kind: str, after: int, upto: int) -> int:
        """How many events of a kind have a seq above `after` and at most `upto`. Reads all between them."""
        return self.db.read(lambda tx: tx.all("count_events", kind=kind, after=after, upto=upto)[0].n)

    # --- jobs ---------------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job | None:
        """One job, or None."""
        row = self.db.read(lambda tx: tx.one("job", job_id=job_id))
        return looking.job(row) if row is not None else None

    def jobs(self, terms: Sequence[Term] = (), *, before_id: int | None = None) -> Iterator[Job]:
        """Jobs of which every term is true, newest first, read a page at a time."""
        return picking.matching(self.db, terms, before_id=before_id, page_rows=PAGE_ROWS)

    def jobs_asked_by(self, submissions: Sequence[int]) -> Iterator[Job]:
        """Jobs that these submissions ask for, newest first, read a page at a time."""
        return picking.asked_by(self.db, submissions, page_rows=PAGE_ROWS)

    def submissions_of(self, terms: Sequence[Term]) -> list[int] | None:
        """The submissions that a filter means, by id; None where it names none."""
        return self.db.read(partial(picking.submissions_of, terms=terms))

    def look_into(self, term: Term, job: Job) -> bool:
        """Answer for the fields of a filter that a Job does not hold: its intent or command type, submission, text."""
        return self.db.read(partial(looking.look_into, term=term, job_id=job.id))

    def payload(self, job_id: int) -> str | None:
        """A job's stored work as JSON text."""
        row = self.db.read(lambda tx: tx.one("payload", job_id=job_id))
        return row.body if row is not None else None

    def routing(self, job_id: int) -> tuple[str, str, Past]:
        """What routing goes by: a job's intent or command type, the lane wished for, and its key's past."""
        return self.db.read(partial(ledger.routing, job_id=job_id))

    def rank(self, job: Job, limit: int = 10_000) -> int:
        """How many ready jobs of its lane go before a ready job, counted up to `limit`."""
        return self.db.read(partial(looking.rank, job=job, limit=limit))

    def requests_of_job(self, job_id: int) -> int:
        """How many requests hang on a job, withdrawn ones included."""
        return self.db.read(lambda tx: tx.all("requests_of_job", job_id=job_id)[0].n)

    def requests(self, job_id: int, limit: int = PAGE_ROWS) -> list[looking.RequestRow]:
        """The first requests that hang on a job."""
        return looking.requests(self.db.read(lambda tx: tx.all("requests_for_job", job_id=job_id, limit=limit)))

    # --- the ledger ---------------------------------------------------------------------------------------------------

    def attempts(self, job_id: int | None = None, *, last: int | None = None) -> Iterator[Attempt]:
        """The ledger in order of seq, read a page at a time: of one job and its key, or all of it.

        `last`: no more than the last so many.
        """
        name = "attempts_after" if job_id is None else "attempts_of_job"
        of: dict[str, int] = {} if job_id is None else {"job_id": job_id}
        after = 0
        if last is not None:
            before = "attempt_before_last" if job_id is None else "attempt_of_job_before_last"
            end = self.db.read(lambda tx: tx.one(before, last=looking.NO_END, rows=last, **of))
            after = end.seq if end is not None else 0
        for rows in self._pages(name, by="seq", after=after, **of):
            yield from ledger.attempts(rows)

    def lane_of(self, uid: str) -> str | None:
        """The lane of an attempt; None if the ledger does not have it."""
        row = self.db.read(lambda tx: tx.one("attempt_by_uid", uid=uid))
        return row.lane if row is not None else None

    def beyond(self, uids: Iterable[str]) -> set[str]:
        """Those of some attempts, a page at most, that are beyond the one that answered, or may be: kept, or unknown.

        Not among them are the one that answered, whoever received its reply, and those that brought nothing.
        """
        return self.db.read(lambda tx: {uid for uid in uids if tx.one("is_beyond", uid=uid) is not None})

    def look_back(self, lease: Lease) -> Facts:
        """What was tried for a lease's key."""
        return self.db.read(partial(ledger.look_back, lease=lease, now_ms=self.now_ms(), boot=self.boot()))

    def holds(self, lease: Lease) -> bool:
        """Whether the job is still held under this lease."""
        return (
            self.db.read(lambda tx: tx.one("job_under_lease", job_id=lease.job_id, lease_no=lease.lease_no)) is not None
        )

    def artifact(self, key: str) -> Artifact | None:
        """The artifact in force for a key, or None."""
        row = self.db.read(lambda tx: tx.one("artifact_of_key", key=key))
        return Artifact(**row._asdict()) if row is not None else None

    def measured_answers(self, limit: int) -> list[Measured]:
        """How long good answers were, among the newest attempts: no more of them than the limit are read."""
        return self.db.read(partial(looking.measured_answers, limit=limit))

    def sums(self, free_lanes: Sequence[str] = ()) -> Sums:
        """The ledger added up, for the report: reads it whole, in one snapshot. See `sums.sums`."""
        return self.db.read(partial(sums, free_lanes=free_lanes))

    # --- submissions and their requests -------------------------------------------------------------------------------

    def submission(self, id_or_name: int | str) -> Submission | None:
        """One submission by id or name (the newest of that name), or None."""
        by = "submission_by_id" if isinstance(id_or_name, int) else "submission_by_name"
        key = "id" if isinstance(id_or_name, int) else "name"

        def read(tx: Transaction) -> Submission | None:
            row = tx.one(by, **{key: id_or_name})
            return looking.submission(tx, row) if row is not None else None

        return self.db.read(read)

    def submissions(self, limit: int = 100) -> list[Submission]:
        """Submissions, newest first. Counts all their requests, each submission's in a read of its own."""
        rows = self.db.read(lambda tx: tx.all("submissions", before_id=looking.NO_END, limit=limit))
        return [self.db.read(partial(looking.submission, row=row)) for row in rows]

    def submission_names(self, limit: int = 100) -> list[str]:
        """The names of the newest submissions, newest first, each once."""
        rows = self.db.read(lambda tx: tx.all("submission_names", before_id=looking.NO_END, limit=limit))
        return list(dict.fromkeys(row.name for row in rows))

    def results(
        self,
        submission_id: int | None = None,
        *,
        state: str = "done",
        since_ms: int | None = None,
        after: int = -1,
        until: int = looking.NO_END,
    ) -> Iterator[Result]:
        """Results by request id; of one submission, in its order. Requests in other states are passed over.

        Of a submission those at positions above `after` and up to `until`.
        """

        if submission_id is None:
            pages = self._pages("results_after", by="request_id", after=0, state=state)
        else:
            of = {"submission_id": submission_id, "until": until}
            pages = self._pages("results_of_submission_after", by="position", after=after, **of)
        for rows in pages:
            new = (row for row in rows if since_ms is None or (row.settled_ms or 0) >= since_ms)
            yield from (one for one in map(looking.result, new) if one.state == state)

    def answered(self, submission_id: int) -> Iterator[looking.Answered]:
        """All requests of a submission, in its order, with the reply of each as it was stored."""
        for rows in self._pages("answered_of_submission_after", by="position", after=-1, submission_id=submission_id):
            yield from map(looking.answered, rows)

    def result(self, request_id: int) -> Result | None:
        """One request as it stands, answered or not; None if there is no such request."""
        row = self.db.read(lambda tx: tx.one("result_of_request", request_id=request_id))
        return looking.result(row) if row is not None else None

    def request_at(self, submission_id: int, position: int) -> int | None:
        """The id of the request at a position of a submission; None: there is none."""
        row = self.db.read(lambda tx: tx.one("request_at", submission_id=submission_id, position=position))
        return row.id if row is not None else None

    def first_pending(self, submission_id: int, after_position: int = -1) -> int | None:
        """The position of the first request, after this one, that still waits for its answer; None: there is none.

        Read a page at a time. To wait for all of them, keep what was found, less 1, as the next cursor: then a wait
        reads each request once, however often it asks. A request before the cursor that is retried is not seen again.
        """
        at: int | None = after_position
        while at is not None:
            position, at = self.db.read(
                partial(looking.first_pending, submission_id=submission_id, after=at, limit=PAGE_ROWS)
            )
            if position is not None:
                return position
        return None

    def any_pending_request(self) -> int | None:
        """The id of some request that still waits for its answer; None: there is none in the queue."""
        row = self.db.read(lambda tx: tx.one("any_pending_request"))
        return row.id if row is not None else None

    def standing(self, request_ids: Collection[int]) -> dict[int, bool]:
        """Request -> whether it still waits for its answer; those that do not exist are left out. One read."""
        rows = self.db.read(lambda tx: tx.all("standing", ids=list(request_ids)))
        return {row.id: bool(row.pending) for row in rows}

    # --- what a verb would do -----------------------------------------------------------------------------------------

    def would_enqueue(
        self, asked: Sequence[Asked], before: Mapping[str, str], *, max_age_ms: int | None = None
    ) -> list[Disposition | KeyConflict]:
        """What `enqueue` would answer to one chunk of requests now; nothing is written. See `enqueue.would_enqueue`."""
        return self.db.read(
            partial(would_enqueue, asked=asked, before=before, now_ms=self.now_ms(), max_age_ms=max_age_ms)
        )

    def would_cancel(self, job_ids: Iterable[int], *, submissions: persons.Whose = None) -> list[persons.Moved]:
        """What `cancel` would do to jobs as they stand, in one read."""
        return self.db.read(lambda tx: [persons.would_cancel(tx, id_, submissions) for id_ in job_ids])

    def would_retry(self, job_ids: Iterable[int], *, submissions: persons.Whose = None) -> list[persons.Moved]:
        """What `retry` would do to jobs as they stand, in one read."""
        now_ms = self.now_ms()
        return self.db.read(lambda tx: [persons.would_retry(tx, id_, submissions, now_ms) for id_ in job_ids])

    def _pages(self, name: str, *, by: str, after: int, **of: Any) -> Iterator[list[Any]]:
        """The rows of a statement, a page at a time. `:after` is its cursor, in the column that orders them (`by`)."""
        while rows := self.db.read(lambda tx, at=after: tx.all(name, after=at, limit=PAGE_ROWS, **of)):
            yield rows
            after = getattr(rows[-1], by)
