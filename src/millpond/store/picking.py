"""Picking jobs by a filter: the fewest rows that its words leave to be read, newest first, a page at a time.

One word drives: a range of ids, a state that has an index of its own, or a submission; else all jobs are walked. The
other words are asked of each job that is read. A page ends at an id, so what is done to its jobs moves no page to come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from millpond.db.database import Database, Transaction
from millpond.rules.filters import WAIT_REASONS, Term, matches
from millpond.rules.job import Job
from millpond.store import looking
from millpond.store.lease import ready_lanes


@dataclass(frozen=True, slots=True)
class IdRange:
    """Ids from `low` up to, and without, `before`."""

    low: int = 0
    before: int = looking.NO_END


class Source(Protocol):
    """Where the jobs that a filter can admit are found."""

    @property
    def rows(self) -> int:
        """How many must be read at most, roughly: the least is chosen."""
        ...

    def pages(self, db: Database, within: IdRange, limit: int) -> Iterator[list[Any]]:
        """Rows of v_job, newest first, up to `limit` a page; no read outlives a page."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """All jobs within a range of ids, one after the other."""

    rows: int

    def pages(self, db: Database, within: IdRange, limit: int) -> Iterator[list[Any]]:
        """Rows of v_job by id."""
        before = within.before
        while rows := db.read(
            lambda tx, at=before: tx.all("jobs_before", from_id=within.low, before_id=at, limit=limit)
        ):
            yield rows
            before = rows[-1].id


@dataclass(frozen=True, slots=True)
class InState:
    """Jobs of one state, by the partial index of that state, whose parts are each in the order of ids."""

    rows: int
    statement: str
    parts: Callable[[Transaction], Sequence[str]]

    def pages(self, db: Database, within: IdRange, limit: int) -> Iterator[list[Any]]:
        """Rows of v_job: each page is the newest of all parts together, in one snapshot, so none is passed over."""
        before = within.before
        while rows := db.read(partial(self._page, low=within.low, before=before, limit=limit)):
            yield rows
            before = rows[-1].id

    def _page(self, tx: Transaction, *, low: int, before: int, limit: int) -> list[Any]:
        found = [
            row.id
            for part in self.parts(tx)
            for row in tx.all(self.statement, part=part, from_id=low, before_id=before, limit=limit)
        ]
        return _rows(tx, sorted(found, reverse=True)[:limit])


@dataclass(frozen=True, slots=True)
class InSubmissions:
    """Jobs that some submissions ask for. Only their ids are kept in memory."""

    rows: int
    submissions: Sequence[int]

    def pages(self, db: Database, within: IdRange, limit: int) -> Iterator[list[Any]]:
        """Rows of v_job. What joins the submissions while they are read is left out."""
        found = {
            id_ for one in self.submissions for id_ in self._ids(db, one, limit) if within.low <= id_ < within.before
        }
        ids = sorted(found, reverse=True)
        for at in range(0, len(ids), limit):
            yield db.read(partial(_rows, ids=ids[at : at + limit]))

    @staticmethod
    def _ids(db: Database, submission_id: int, limit: int) -> Iterator[int]:
        after = -1
        while rows := db.read(
            lambda tx, at=after: tx.all("submission_jobs_after", id=submission_id, after=at, limit=limit)
        ):
            yield from (row.job_id for row in rows)
            after = rows[-1].position


def _each(*parts: str) -> Callable[[Transaction], Sequence[str]]:
    return lambda _: parts


def _owners(tx: Transaction) -> list[str]:
    return [row.uuid for row in tx.all("living_owners")]  # a dead one holds no lease: reclaim buries it and takes them


INDEX_OF: dict[str, tuple[str, Callable[[Transaction], Sequence[str]]]] = {
    "ready": ("ready_ids_before", ready_lanes),
    "leased": ("leased_ids_before", _owners),
    "waiting": ("waiting_ids_before", _each(*WAIT_REASONS)),
    **{reason: ("waiting_ids_before", _each(reason)) for reason in WAIT_REASONS},
    "failed": ("unanswered_ids_before", _each("failed")),
    "cancelled": ("unanswered_ids_before", _each("cancelled")),
}
"""State or reason to wait -> the statement that finds its jobs, once for each part of its index. `done` and `offloaded`
have none: an index of what is done would be paid for by every answer."""


def matching(db: Database, terms: Sequence[Term], *, before_id: int | None, page_rows: int) -> Iterator[Job]:
    """Jobs of which every term is true, newest first."""
    within = _id_range(terms, before_id)
    source = db.read(partial(narrowest, terms=terms, within=within))
    asked = terms
    if isinstance(source, InSubmissions) and sum(map(_names_submission, terms)) == 1:
        asked = [term for term in terms if not _names_submission(term)]  # true of all that it finds

    def look(term: Term, job: Job) -> bool:
        return db.read(partial(looking.look_into, term=term, job_id=job.id))

    for page in source.pages(db, within, page_rows):
        yield from (job for job in map(looking.job, page) if matches(asked, job, look))


def asked_by(db: Database, submissions: Sequence[int], *, page_rows: int) -> Iterator[Job]:
    """Jobs that these submissions ask for, newest first."""
    for page in InSubmissions(0, submissions).pages(db, IdRange(), page_rows):
        yield from map(looking.job, page)


def submissions_of(tx: Transaction, terms: Sequence[Term]) -> list[int] | None:
    """The submissions that a filter means, by id; None where it names none. A negated word means none."""
    named = [term for term in terms if _names_submission(term)]
    return [row.id for term in named for row in _named(tx, term)] if named else None


def narrowest(tx: Transaction, *, terms: Sequence[Term], within: IdRange) -> Source:
    """The source that reads the least, judged by kept counts alone."""
    sources: list[Source] = [Walk(min(within.before, tx.all("last_job_id")[0].id + 1) - within.low)]
    for term in terms:
        if term.field == "state" and not term.is_negated and term.value in INDEX_OF:
            statement, parts = INDEX_OF[term.value]
            sources.append(InState(_count(looking.tally(tx), term.value), statement, parts))
        elif _names_submission(term):
            found = _named(tx, term)
            # Twice: the ids of all its jobs are read before the first job is.
            sources.append(InSubmissions(2 * sum(row.requests for row in found), [row.id for row in found]))
    return min(sources, key=lambda source: source.rows)


def _id_range(terms: Sequence[Term], before_id: int | None) -> IdRange:
    bounds = [term for term in terms if term.field == "id" and not term.is_negated]
    low = max((term.low for term in bounds if term.low is not None), default=0)
    high = min((term.high for term in bounds if term.high is not None), default=looking.NO_END)
    return IdRange(low, min(high + 1, before_id if before_id is not None else looking.NO_END))


def _count(tally: dict[str, int], state: str) -> int:
    """How many are in a state; of a reason that is not counted apart, all that wait."""
    return tally.get(state, tally.get("waiting", 0) if state in WAIT_REASONS else 0)


def _names_submission(term: Term) -> bool:
    return term.field == "submission" and not term.is_negated


def _named(tx: Transaction, term: Term) -> list[Any]:
    return tx.all("submissions_named", name=term.value, id=looking.number_of(term.value))


def _rows(tx: Transaction, ids: Sequence[int]) -> list[Any]:
    """Rows of v_job in the order of their ids, newest first."""
    return sorted(tx.all("jobs_by_id", ids=ids), key=lambda row: row.id, reverse=True) if ids else []
