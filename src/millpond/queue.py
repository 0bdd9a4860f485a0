"""Queue: everything that a caller asks of a queue, in one object. Opened on a folder; safe from any thread."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, cast, get_args

from millpond import bulk
from millpond.door import Askable, Door, Registry
from millpond.engine.clock import boot, wall_ms
from millpond.engine.drain import Drainer, Until
from millpond.engine.drain_lock import DrainLock, Holder
from millpond.engine.draining import Drains, not_drained, run
from millpond.engine.happening import Happening
from millpond.engine.reconciling import ask_now, reconcile
from millpond.engine.workers import Workers
from millpond.intake import Defaults
from millpond.lanes.given import Lanes, choose_lanes
from millpond.lanes.imported import load_target
from millpond.paged import Paged, as_they_come, by_pages, events_since
from millpond.report import explain, report, status
from millpond.report.estimate import Estimate
from millpond.report.report import Report
from millpond.report.status import Status
from millpond.report.summary import Summary
from millpond.rules import stops
from millpond.rules.errors import LockHeld, UsageError
from millpond.rules.filters import parse
from millpond.rules.html import table
from millpond.rules.job import (
    MAX_ID,
    Attempt,
    BulkReport,
    Event,
    Job,
    Lease,
    Receipt,
    Reply,
    Result,
    ServiceClass,
    Submission,
)
from millpond.rules.numbers import seconds, whole_number
from millpond.rules.policy import Policy
from millpond.rules.router import route_work
from millpond.rules.stops import Stops, Whole
from millpond.rules.times import instant_ms
from millpond.rules.verdict import worst_of
from millpond.settings.home import make_home
from millpond.settings.load import Settings, load
from millpond.spend.book import SpendBook
from millpond.store.deciding import LEADS_NOWHERE, Choice
from millpond.store.looking import number_of
from millpond.store.store import Store, open_sqlite
from millpond.waiters import EVERYTHING, Doorbell, Everything, Waitable, Waiters, no_request, request_id

When = str | datetime | timedelta
"""A moment or a duration, as `rules.times` reads them."""


class Queue:
    """A durable lane queue. Use `Queue.open`; close it, or use it as a context manager."""

    def __init__(
        self,
        store: Store,
        folder: Path,
        policy: Policy,
        *,
        home: Path,
        spend: Path | None = None,
        registry: Registry | Callable[[], Registry] | None = None,
        doorbell: Doorbell | None = None,
    ) -> None:
        """`folder` holds the locks beside the database; `open` finds all of this from settings.

        `spend` is the spend book's file, by default the home's own; it is made when the first money is reserved.
        A `registry` may be given as a function, which is called when the first command is met: looking needs none.
        `doorbell` is the one that the store rings; without it, commits of this process are noticed as others' are.
        """
        self.store = store
        self.folder = folder
        self.policy = policy
        self.home = home
        self._find_registry = registry if callable(registry) else lambda: registry
        self.door = Door(store, lambda: self.policy, lambda: self.registry)
        self.book = SpendBook(spend or home / "spend.db", store.uuid, store.now_ms, durable=policy.durable)
        asking = partial(ask_now, store, policy)
        self._workers = Workers(store, self.book, folder, policy, lambda: self.registry, asking)
        self._drains = Drains(store, self.book, folder)
        self._waiters = Waiters(store, doorbell or Doorbell())

    @classmethod
    def open(
        cls,
        target: str | Path | None = None,
        *,
        policy: Policy | None = None,
        spend: str | Path | None = None,
        registry: Registry | None = None,
    ) -> Queue:
        """Open the queue of a folder (None: the home that settings name), making what is not there.

        `policy` replaces the lanes and limits of the settings; `registry` maps names of command types to their pydantic
        models. `spend` is the file of the spend book, which queues may share (None: where the settings say). Raises
        UsageError for an address, SettingsError, SchemaTooNew, QueueUnavailable.
        """
        if isinstance(target, str) and "://" in target:
            raise UsageError(f"queue {target!r}: PostgreSQL comes with a later version; wanted a folder")
        flags = {"spend.path": str(spend) if spend is not None else None}
        return cls.at(load(home=target, flags=flags), policy=policy, registry=registry)

    @classmethod
    def at(cls, settings: Settings, *, policy: Policy | None = None, registry: Registry | None = None) -> Queue:
        """Open the queue that these settings name, making what is not there. As `open`, for settings that were read."""
        if not isinstance(settings.queue, Path):
            raise UsageError(f"queue {settings.queue!r}: PostgreSQL comes with a later version; wanted a path")
        policy = policy if policy is not None else settings.policy
        policy.check()
        if not settings.queue.is_file():  # a home beside a queue elsewhere is made with the queue, not by a look at it
            make_home(settings.home)
        named = partial(load_target, settings.commands, "commands") if settings.commands else None
        doorbell = Doorbell()
        database = open_sqlite(settings.queue, durable=policy.durable, on_commit=doorbell.ring)
        store = Store(database, wall_ms, boot)
        return cls(
            store,
            database.lock_folder,
            policy,
            home=settings.home,
            spend=settings.spend,
            registry=registry or named,
            doorbell=doorbell,
        )

    @cached_property
    def registry(self) -> Registry | None:
        """The command types that this program knows. Raises SettingsError where `commands:` names what is not there."""
        return self._find_registry()

    def close(self) -> None:
        """Close it. What this process still held under a lease is another's from here on; who waits gets UsageError.

        A drain of this very object is stopped first, and waited for: calls in flight may finish within the policy's
        grace. Raises UsageError, and closes nothing, if that drain runs on the event loop of this very thread.
        """
        self._drains.close()
        try:
            self._workers.leave()
        finally:
            self.store.close()
            self.book.close()
            self._waiters.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Queue({str(self.home)!r})"

    def _repr_html_(self) -> str:
        return table(repr(self), self.counts())

    # --- the door -------------------------------------------------------------------------------------------------

    def enqueue(
        self,
        work: Askable,
        *,
        priority: int = 0,
        service_class: ServiceClass = "batch",
        due: When | None = None,
        not_before: When | None = None,
        lane: str | None = None,
        key: str | None = None,
        sample: int | None = None,
        dedup: bool = True,
        fresh: bool = False,
        custom_id: str | None = None,
        carried: Mapping[str, Any] | None = None,
        label: str | None = None,
        tags: Sequence[str] = (),
        trace_id: str | None = None,
        connection: None = None,
    ) -> Receipt:
        """Accept one piece of work, durably. The Receipt says whether it is new, joined or reused.

        `work` is a Prompt, a text, a mapping of Prompt's fields, a Request, or a model of a registered type. Larger
        `priority` first; `due` and `not_before` are "2h", an ISO instant with its offset, an aware datetime or a
        timedelta. `fresh` retires an answer that is in force. Raises UsageError, KeyConflict, UnknownLane,
        QueueUnavailable, QueueBusy; nothing was accepted then.
        """
        if connection is not None:
            raise UsageError("connection: transactional enqueue comes with PostgreSQL; leave it out")
        defaults = Defaults(
            priority=priority,
            service_class=service_class,
            due=due,
            not_before=not_before,
            lane=lane,
            key=key,
            sample=sample,
            dedup=dedup,
            fresh=fresh,
            custom_id=custom_id,
            carried=carried,
            label=label,
            tags=tags,
            trace_id=trace_id,
        )
        return self.door.enqueue(work, defaults)

    def enqueue_many(
        self,
        works: Iterable[Askable],
        *,
        submission: str | None = None,
        each: bool = False,
        strict: bool = False,
        on_done: None = None,
        source: str = "api",
        **defaults: Any,
    ) -> list[Receipt]:
        """Accept many as one submission; Receipts in their order.

        In chunks of one durable transaction each, or (`strict`) all in one and nothing if one is refused. Without
        `strict` the first refusal is raised after the chunks before it are accepted. `each`: the k-th identical row is
        a sample of its own. `source` is shown with the submission: where it came from. Defaults are the keywords of
        `enqueue`.
        """
        if on_done is not None:
            raise UsageError("on_done: completion hooks come with a later version; leave it out")
        return self.door.enqueue_many(works, defaults, submission=submission, each=each, strict=strict, source=source)

    def estimate(self, works: Iterable[Askable], *, each: bool = False, **defaults: Any) -> Estimate:
        """What `enqueue_many` would do with these works now, and what the new jobs would cost. Nothing is taken in.

        Memory is bounded, however many works there are. Raises what `enqueue_many` would.
        """
        return self.door.estimate(works, defaults, each=each)

    # --- looking --------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job:
        """One job. Raises UsageError if there is none of this id."""
        job = self.store.job(whole_number(job_id, "job"))
        if job is None:
            raise UsageError(f"no job {job_id} in this queue; `millpond jobs` lists them")
        return job

    def jobs(self, filter: str = "", *, limit: int = 100, before_id: int | None = None) -> list[Job]:  # noqa: A002
        """Jobs that match a filter, newest first. Raises UsageError for a filter that cannot be read."""
        terms = parse(filter, self.store.now_ms())
        whole_number(limit, "limit", at_least=0)
        if before_id is not None:
            whole_number(before_id, "before_id", at_least=0)
        return list(islice(self.store.jobs(terms, before_id=before_id), limit))

    def submission(self, id_or_name: int | str) -> Submission:
        """One submission: by its id, or by a text, which is its number or, where none has it, the newest of that name.

        Raises UsageError if there is none.
        """
        if isinstance(id_or_name, int):
            found = self.store.submission(whole_number(id_or_name, "submission"))
        else:
            found = self.store.submission(number_of(id_or_name)) or self.store.submission(id_or_name)
        if found is None:
            raise UsageError(f"no submission {id_or_name!r:.80} in this queue; `millpond submissions` lists them")
        return found

    def submissions(self, *, limit: int = 100) -> list[Submission]:
        """The newest submissions, newest first."""
        return self.store.submissions(whole_number(limit, "limit"))

    def counts(self) -> dict[str, int]:
        """Jobs by state; `held` is part of `waiting`."""
        return self.store.counts()

    def status(self) -> Status:
        """How the queue stands: counts, lanes, alerts, what needs a person. Costs the same at any backlog."""
        return status.build(self.store, self.book, self.policy, self.drainer())

    def explain(self, job_id: int) -> str:
        """Why a job is where it is, its attempts with their evidence, and what comes next. Raises UsageError."""
        return explain.explain(
            self.store, self.policy, whole_number(job_id, "job"), self.store.now_ms(), self.drainer()
        )

    def report(self) -> Report:
        """What the ledger adds up to: tokens and executions an artifact, crossings, what was paid twice or saved.

        Reads the ledger whole: seconds for a million attempts.
        """
        return report.build(self.store, self.policy)

    def results(
        self,
        submission: int | str | None = None,
        *,
        failed: bool = False,
        since: When | None = None,
        follow: bool = False,
    ) -> Paged[Result]:
        """Results of requests that are done, or of those that failed; of one submission in its order, else by id.

        `since` admits only those settled at or after it. `follow` waits, in the order of a submission, for each request
        that is not settled yet, and ends with its last one.
        """
        id_ = self.submission(submission).id if submission is not None else None
        since_ms = instant_ms(since, self.store.now_ms(), field="since", back=True) if since is not None else None
        read = partial(self.store.results, id_, state="failed" if failed else "done", since_ms=since_ms)
        if not follow:
            return by_pages(read())
        if id_ is None:
            raise UsageError("follow: found no submission, wanted one: a queue has no last request")
        return as_they_come(self.store, self._waiters, id_, read)

    def result(self, receipt_or_request_id: Waitable) -> Result | None:
        """The result of one request; None while it has none. Raises UsageError for an unknown request."""
        id_ = request_id(receipt_or_request_id)
        found = self.store.result(id_)
        if found is None:
            raise no_request(id_)
        return found if found.state in ("done", "failed", "cancelled") else None

    def wait(
        self,
        what: Waitable | Iterable[Waitable] | Submission | str | Everything = EVERYTHING,
        timeout: float | None = None,
    ) -> bool:
        """Wait until all of these requests (a whole submission, the whole queue) are answered, failed or cancelled.

        `timeout` in s; False if it passed first. Raises UsageError for an unknown request or submission.
        """
        span_s, ending = seconds(timeout, "timeout"), self.ending_of(what)
        try:
            ending.result(span_s)
        except TimeoutError:
            return False
        finally:
            ending.cancel()  # whatever ended the wait, an interrupt too
        return True

    def ending_of(
        self, what: Waitable | Iterable[Waitable] | Submission | str | Everything = EVERYTHING
    ) -> Future[None]:
        """What `wait` waits for, as a future. All of a queue's futures are looked after by one thread."""
        if what is EVERYTHING:
            return self._waiters.for_all()
        if isinstance(what, Submission | str):
            return self._waiters.for_submission(what.id if isinstance(what, Submission) else self.submission(what).id)
        several = cast("Iterable[Waitable]", what if isinstance(what, Iterable) else [what])
        return self._waiters.for_named(several)

    def ledger(self, job_id: int | None = None, *, last: int | None = None) -> Paged[Attempt]:
        """Attempts in order: of one job and its key, or all; `last`: no more than the last so many."""
        of = whole_number(job_id, "job") if job_id is not None else None
        return by_pages(self.store.attempts(of, last=whole_number(last, "last") if last is not None else None))

    def feed(self, after: str | None = None, *, follow: bool = False) -> Paged[Event]:
        """Events since a cursor, up to now; with `follow` for ever, each as it happens, in whichever process.

        Pass the last one's cursor to read on. Raises UsageError for a cursor that this queue cannot have given.
        """
        return events_since(self.store, self._waiters, self._seq(after), follow=follow)

    def _seq(self, cursor: str | None) -> int:
        if cursor is None:
            return 0
        last = self.store.last_event()
        if not cursor.isdecimal() or len(cursor) > len(str(MAX_ID)) or int(cursor) > last:
            raise UsageError(f"cursor {cursor[:40]!r}: wanted one that this queue gave; its newest event is {last}")
        return int(cursor)

    # --- what persons do ------------------------------------------------------------------------------------------

    def cancel(self, filter_or_ids: bulk.Which, *, dry_run: bool = False) -> BulkReport:
        """Cancel jobs: by ids, or those that match a filter. A call in flight is listened to on; its reply is kept.

        Of a Submission, or where the filter names one (`submission:s3`), only what it asks of the jobs is withdrawn: a
        job that others ask for too goes on for them.
        """
        chosen = bulk.choose(self.store, filter_or_ids)
        return bulk.run(bulk.Cancel(self.store, self.policy, chosen.submissions), chosen.jobs, dry_run=dry_run)

    def retry(self, filter_or_ids: bulk.Which, *, lane: str | None = None, dry_run: bool = False) -> BulkReport:
        """Ask again for failed, cancelled or undeliverable jobs, with the policy's attempts granted anew.

        Of a Submission, or where the filter names one, its own withdrawals are taken back, those of others are not.
        """
        if lane is not None:
            self.policy.lane(lane)
        chosen = bulk.choose(self.store, filter_or_ids)
        return bulk.run(bulk.Retry(self.store, self.policy, chosen.submissions, lane), chosen.jobs, dry_run=dry_run)

    def decide(self, job_id: int, choice: Choice) -> Job:
        """Your word on a job whose call ended in the dark, wherever it waits or is ready. The job as it is now.

        `pin`: pay again on the next lane; `same`: once more on the same lane; `fail`: do not pay again. Its late reply
        is still received if it comes. Raises UsageError for a job of which nothing is to be decided, and for a `pin`
        after which no lane is left.
        """
        if choice not in get_args(Choice):
            raise UsageError(f"decide: found {choice!r:.40}, wanted one of {', '.join(get_args(Choice))}")
        job = self.job(job_id)
        bill, route = partial(worst_of, policy=self.policy), partial(route_work, policy=self.policy)
        done = self.store.decide(job.id, choice, bill=bill, route=route)
        if not done.moved:
            wanted = "wanted one that waits or is ready, with a call of unknown end; `millpond explain ID` tells"
            if done.why == LEADS_NOWHERE:
                wanted = "wanted same, which calls its lane once more, or fail, which pays nothing more"
            raise UsageError(f"job {job.id}: {done.why}; {wanted}")
        return self.job(job.id)

    def decide_many(self, filter_or_ids: bulk.Which, choice: Choice, *, dry_run: bool = False) -> BulkReport:
        """The same for all jobs that are meant; those of which nothing is to be decided are skipped."""
        if choice not in get_args(Choice):
            raise UsageError(f"decide: found {choice!r:.40}, wanted one of {', '.join(get_args(Choice))}")
        chosen = bulk.choose(self.store, filter_or_ids)
        return bulk.run(bulk.Decide(self.store, self.policy, choice), chosen.jobs, dry_run=dry_run)

    def unpin(self, filter_or_ids: bulk.Which, *, dry_run: bool = False) -> BulkReport:
        """Route jobs from their first lane again that an unknown outcome has pinned to a further one."""
        chosen = bulk.choose(self.store, filter_or_ids)
        return bulk.run(bulk.Unpin(self.store), chosen.jobs, dry_run=dry_run)

    def reconcile(self, *, tell: Callable[[Happening], None] = lambda _: None) -> Summary:
        """Look at everything whose end is unknown, once: take back what the dead held, ask the lanes that recall.

        What nobody waits for is decided when its hold is over. No call is made. A running drain does the same as it
        goes round. `tell` is called with each thing that it did. Raises MissingKey where a lane that is to be asked has
        none.
        """
        return reconcile(self.store, self.book, self.folder, self.policy, tell=tell)

    def resume_lane(self, name: str) -> None:
        """Open a lane, whoever closed it. Raises UnknownLane."""
        if name not in self.store.closed_lanes():
            self.policy.lane(name)
        self.store.open_lane(name)

    def stop(self, which: Whole | Iterable[str] = "all", *, origin: str = "api") -> Stops:
        """Let nothing more be sent until `resume`: on all lanes, on those that may cost (`"paid"`), or on some by name.

        Durable. Once it has returned, no drain and no worker leases or records a job there; calls in flight go on to
        their end, and a job that was leased and not yet sent is given back untouched. A lane whose price is not known
        may cost. What is stopped already stays so. Raises UnknownLane.
        """
        wanted = stops.wanted(which)
        for _, lane in wanted:
            if lane is not None:
                self.policy.lane(lane)
        return self.store.stop(wanted, origin=origin)

    def resume(self, which: Whole | Iterable[str] = "all", *, origin: str = "api") -> Stops:
        """End stops: every one (`"all"`), the one of the lanes that may cost, or those of lanes by name.

        What is not stopped stays so, and what still stands is said. Raises UnknownLane.
        """
        wanted, stopped = stops.wanted(which), {stop.lane for stop in self.store.stops()}
        for _, lane in wanted:
            if lane is not None and lane not in stopped:  # one that has left the policy may still be resumed
                self.policy.lane(lane)
        return self.store.resume(wanted, origin=origin)

    # --- draining -------------------------------------------------------------------------------------------------

    def drain(
        self,
        policy: Policy | None = None,
        *,
        lanes: Lanes = None,
        max_jobs: int | None = None,
        until_empty: bool = False,
        daemon: bool = False,
        max_iters: int | None = None,
    ) -> Summary:
        """Drain the queue, and say what was done and what is left.

        Ends when nothing is ready, in flight or due soon; `until_empty` waits for everything that the clock can bring,
        `daemon` for ever; `max_jobs` and `max_iters` end it early, after so many jobs, or rounds of calls. A queue that
        another process drains gives a Summary with reason `lock_held` and its holder. Works inside a running event loop
        too, on a thread of its own.
        """
        until = Until(until_empty=until_empty, daemon=daemon, max_jobs=max_jobs, max_iters=max_iters)
        try:
            with self.draining(policy, lanes=lanes) as drainer:
                return run(drainer, until)
        except LockHeld as held:
            return not_drained(self.store, held)

    @contextmanager
    def draining(
        self, policy: Policy | None = None, *, lanes: Lanes = None, tell: Callable[[Happening], None] | None = None
    ) -> Generator[Drainer]:
        """A Drainer that holds the queue's drain lock, for those who run and stop it themselves. Raises LockHeld."""
        policy, built = choose_lanes(policy or self.policy, lanes)
        with self._drains.begin(policy, built, registry=self.registry, tell=tell) as drainer:
            yield drainer

    def drainer(self) -> Holder | None:
        """Who drains this queue now; None if nobody does."""
        return DrainLock(self.folder).holder()

    # --- workers of one's own -------------------------------------------------------------------------------------

    def lease(self, n: int = 1, *, lanes: Iterable[str] | None = None, owner: str | None = None) -> list[Lease]:
        """Lease up to n jobs for work of one's own: record, make the call, settle. See `Workers.lease`."""
        names = [lanes] if isinstance(lanes, str) else lanes
        return self._workers.lease(whole_number(n, "n", at_least=0), lanes=names, owner=owner)

    def record(self, lease: Lease, lane: str | None = None) -> str | None:
        """Write the ledger row before the call. Its attempt uid; None: send nothing. See `Workers.record`."""
        return self._workers.record(_a_lease(lease), lane)

    def settle(self, lease: Lease, attempt: str, reply_or_text_or_exception: Any) -> bool:
        """End an attempt with what its call gave. Whether it answers the key now. See `Workers.settle`."""
        return self._workers.settle(_a_lease(lease), attempt, reply_or_text_or_exception)

    def renew(self, lease: Lease) -> None:
        """Say that the job is still being worked on. Raises LeaseLost if it is no longer held."""
        self._workers.renew(_a_lease(lease))

    def release(self, lease: Lease) -> None:
        """Give a job back untouched. Raises LeaseLost."""
        self._workers.release(_a_lease(lease))

    def accept(self, attempt_uid: str, reply: Reply) -> bool:
        """Hand in the reply of an attempt, however late. Whether it is in force now."""
        return self._workers.accept(attempt_uid, reply)


def _a_lease(given: object) -> Lease:
    """What `lease` gave, and nothing else. Raises UsageError."""
    if not isinstance(given, Lease):
        raise UsageError(f"lease: found a {type(given).__name__}, wanted a Lease, as `lease` gave it")
    return given
