"""Bulk verbs: cancel, retry and unpin of many jobs, chosen by ids, by a filter or by a submission; tried dry, or done.

Jobs are read a page at a time and moved CHUNK_JOBS to a commit; nothing is held in between.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Protocol, TypeAlias, cast

from millpond.rules.errors import UsageError
from millpond.rules.filters import parse
from millpond.rules.job import MAX_ID, BulkReport, Job, Submission
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.router import hold_ms, route_work
from millpond.rules.verdict import worst_of
from millpond.store.deciding import Choice
from millpond.store.lease import NextLane
from millpond.store.persons import UNKNOWN, Moved, Whose
from millpond.store.store import Store

CHUNK_JOBS = 100
"""Jobs moved in one commit: enough to share it, few enough to let a drainer in between."""

Which: TypeAlias = "str | int | Iterable[int] | Submission"
"""Jobs by a filter, by id, by ids, or a submission's."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The jobs that are meant; None is an id that no job has.

    Where `submissions` are named, the verb is about what these ask of the jobs, and leaves to others what they ask.
    """

    jobs: Iterable[Job | None]
    submissions: Whose = None


def choose(store: Store, which: Which) -> Chosen:
    """Find the jobs. Raises UsageError for a filter that cannot be read, and for one that is empty."""
    if isinstance(which, Submission):
        return Chosen(store.jobs_asked_by([which.id]), [which.id])
    if isinstance(which, str):
        if not which.strip():
            raise UsageError(
                "filter: found nothing, wanted words such as state:failed, or ids; it would admit all jobs"
            )
        terms = parse(which, store.now_ms())
        return Chosen(store.jobs(terms), store.submissions_of(terms))
    several = cast("Iterable[int]", which if isinstance(which, Iterable) else [which])
    ids = dict.fromkeys(_id(one) for one in several)  # one that is given twice is meant once
    return Chosen(store.job(id_) if 0 < id_ <= MAX_ID else None for id_ in ids)


def _id(one: object) -> int:
    if type(one) is not int:
        raise UsageError(f"job: found a {type(one).__name__}, wanted ids, a filter or a Submission")
    return one


class Verb(Protocol):
    """What is done to each job."""

    def would(self, jobs: Sequence[Job]) -> list[Moved]:
        """What it would do to these as they stand."""
        ...

    def do(self, jobs: Sequence[Job]) -> list[Moved]:
        """Do it to all of these in one commit."""
        ...


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel jobs that are alive, or withdraw what some submissions ask of them."""

    store: Store
    policy: Policy
    submissions: Whose

    def would(self, jobs: Sequence[Job]) -> list[Moved]:
        """Whether they are alive, and who else asks for them."""
        return self.store.would_cancel([job.id for job in jobs], submissions=self.submissions)

    def do(self, jobs: Sequence[Job]) -> list[Moved]:
        """Cancel them. A call in flight is listened to for as long as its lane's policy says."""
        return self.store.cancel([(job.id, self._hold_ms(job)) for job in jobs], submissions=self.submissions)

    def _hold_ms(self, job: Job) -> int:
        called = next((row.lane for row in self.store.attempts(job.id) if row.outcome is None), job.next_lane)
        lane = self.policy.lanes.get(called) or LanePolicy(called)
        return hold_ms(lane, self.policy, job.service_class, job.due_ms, self.store.now_ms())


@dataclass(frozen=True, slots=True)
class Retry:
    """Ask again for jobs that failed, were cancelled or cannot be delivered, and for what was withdrawn."""

    store: Store
    policy: Policy
    submissions: Whose
    lane: str | None = None

    def would(self, jobs: Sequence[Job]) -> list[Moved]:
        """Whether there is anything to ask again."""
        return self.store.would_retry([job.id for job in jobs], submissions=self.submissions)

    def do(self, jobs: Sequence[Job]) -> list[Moved]:
        """Ask again, with the policy's attempts granted anew."""
        granted = self.policy.max_attempts_per_job
        ids = [job.id for job in jobs]
        bill = partial(worst_of, policy=self.policy)
        return self.store.retry(ids, granted=granted, lane=self.lane, submissions=self.submissions, bill=bill)


@dataclass(frozen=True, slots=True)
class Unpin:
    """Route jobs from their first lane again that an unknown outcome has pinned to a further one."""

    store: Store

    def would(self, jobs: Sequence[Job]) -> list[Moved]:
        """Whether their past pins them."""
        return self.store.would_unpin([job.id for job in jobs])

    def do(self, jobs: Sequence[Job]) -> list[Moved]:
        """Forget what pinned them."""
        return self.store.unpin([job.id for job in jobs])


@dataclass(frozen=True, slots=True)
class Decide:
    """Say what follows the calls of jobs whose end is unknown."""

    store: Store
    policy: Policy
    choice: Choice

    def would(self, jobs: Sequence[Job]) -> list[Moved]:
        """Whether anything of them is to be decided."""
        return self.store.would_decide([job.id for job in jobs], self.choice, route=self._route)

    def do(self, jobs: Sequence[Job]) -> list[Moved]:
        """Decide it."""
        bill = partial(worst_of, policy=self.policy)
        return [self.store.decide(job.id, self.choice, bill=bill, route=self._route) for job in jobs]

    @property
    def _route(self) -> NextLane:
        return partial(route_work, policy=self.policy)


def run(verb: Verb, jobs: Iterable[Job | None], *, dry_run: bool) -> BulkReport:
    """Do it to all jobs that can be moved, a chunk at a time, or say only which these are."""
    eligible = done = goes_on = 0
    reasons: Counter[str] = Counter()
    for chunk in _chunks(jobs):
        known = [job for job in chunk if job is not None]
        tried = verb.would(known)
        can_move = [job for job, one in zip(known, tried, strict=True) if one.moved]
        ended = verb.do(can_move) if can_move and not dry_run else [one for one in tried if one.moved]
        eligible += len(can_move)
        done += 0 if dry_run else sum(one.moved for one in ended)
        goes_on += sum(one.goes_on for one in ended)
        reasons.update(UNKNOWN.why for job in chunk if job is None)
        reasons.update(one.why for one in (*tried, *ended) if one.why)
    return BulkReport(eligible, done, reasons.total(), dict(reasons), goes_on=goes_on, dry_run=dry_run)


def _chunks(jobs: Iterable[Job | None]) -> Iterator[list[Job | None]]:
    left = iter(jobs)
    while chunk := list(islice(left, CHUNK_JOBS)):
        yield chunk
