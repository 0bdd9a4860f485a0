"""A store with a clock, owners and short words for its verbs, so that a case reads as the sentence that it proves."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Generator, Mapping
from decimal import Decimal
from functools import partial
from typing import Any

from millpond.rules.admission import Closing
from millpond.rules.effects import ACCEPT, Ending, Recorded, Then
from millpond.rules.errors import KeyConflict, LeaseLost
from millpond.rules.job import Attempt, Job, Lease, Prompt, Receipt, Reply, Usage
from millpond.rules.outcome import classify
from millpond.rules.price import Cost
from millpond.rules.router import Past, Step
from millpond.store.bodies import dump_work
from millpond.store.enqueue import Asked
from millpond.store.lanes import close_lane
from millpond.store.lease import unroute
from millpond.store.persons import Moved, Whose
from millpond.store.reclaim import OwnerRow
from millpond.store.settle import Settled
from millpond.store.store import Store
from millpond.testing.clock import FakeClock
from millpond.testing.scripted_lane import OUTCOMES, Answer, evidence_of

MakeStore = Callable[[Callable[[], int]], Store]
"""Makes a new, empty store that reads its time from the callable."""

ROOM: Mapping[str, int] = {"free": 1_000}
RELEASE = Then("release")
A_DAY_MS = 86_400_000


class Scene:
    """One empty store. Its lane is `free` unless a case says otherwise; `worker` is an owner that lives."""

    def __init__(self, make_store: MakeStore) -> None:
        self.clock = FakeClock()
        self.store = make_store(self.clock)
        self.worker = self.owner("worker")
        self._uids = 0

    @property
    def now_ms(self) -> int:
        """The clock's time."""
        return self.clock.now_ms()

    def owner(self, name: str) -> str:
        """A new living owner."""
        self.store.enlist(OwnerRow(name, "worker", "host", 1, "boot", self.now_ms))
        return name

    # --- asking -----------------------------------------------------------------------------------------------------

    def ask(self, key: str = "k", **wishes: Any) -> Receipt:
        """Enqueue one request, its fingerprint and text made of `work` (else of the key)."""
        max_age_ms = wishes.pop("max_age_ms", None)
        return self.store.enqueue_one(asked(key, **wishes), max_age_ms=max_age_ms)

    def ask_many(self, *wanted: Asked) -> list[Receipt | KeyConflict]:
        """Enqueue requests as one submission, positions by their order."""
        submission = self.store.open_submission()
        return self.store.enqueue([at_position(one, at) for at, one in enumerate(wanted)], submission)

    # --- the journey ------------------------------------------------------------------------------------------------

    def lease(self, limit: int = 1, *, owner: str | None = None, room: Mapping[str, int] = ROOM, **how: Any
              ) -> list[Lease]:  # fmt: skip
        """Lease what ranks first; what is to be routed goes to the lane it wishes for, else to `free`."""
        settings: dict[str, Any] = {"route": to_free, **how}
        return self.store.lease(owner or self.worker, room, limit, **settings)

    def route(self) -> None:
        """Wake and route what is due, and lease nothing."""
        assert self.lease(0) == []

    def take(self, job_id: int | None = None, *, owner: str | None = None) -> Lease:
        """Lease one job, which must be there, and must be this one if named."""
        [lease] = self.lease(1, owner=owner)
        assert job_id in (None, lease.job_id), f"leased job {lease.job_id}, wanted {job_id}"
        return lease

    def record(self, lease: Lease, lane: str = "free") -> str | None:
        """Write the ledger row; its uid, or None where the job was moved instead."""
        self._uids += 1
        uid = f"attempt-{self._uids}"
        return uid if isinstance(self.store.record(lease, uid, lane), Recorded) else None

    def send(self, lease: Lease, lane: str = "free") -> str:
        """Record an attempt that must be allowed."""
        uid = self.record(lease, lane)
        assert uid is not None, f"record moved job {lease.job_id} instead of writing a row"
        return uid

    def in_flight(self, key: str = "k", *, owner: str | None = None, **wishes: Any) -> tuple[Lease, str]:
        """Ask, lease and record: a call that has just left."""
        lease = self.take(self.ask(key, **wishes).job_id, owner=owner)
        return lease, self.send(lease)

    def asks_a_person(self, key: str = "k", **wishes: Any) -> tuple[Lease, str]:
        """A job that waits for a person's word on a call whose end is unknown: the lease it had, and that call."""
        lease, uid = self.in_flight(key, **wishes)
        self.settle(uid, "ambiguous", Then("ask"), lease=lease)
        assert self.state(lease.job_id) == "waiting/asked"
        return lease, uid

    def settle(self, uid: str, answer: Answer | str = "ok", then: Then = ACCEPT, *, lease: Lease | None = None,
               lane: str = "free", cost: Decimal | None = None) -> Settled:  # fmt: skip
        """End an attempt. A text that is no outcome is the text of a good reply."""
        return self.store.settle(uid, ending(answer, cost), then, lane=lane, lease=lease)

    def answered(self, key: str = "k", text: str = "an answer", **wishes: Any) -> Receipt:
        """Ask and answer, all the way."""
        receipt = self.ask(key, **wishes)
        lease = self.take(receipt.job_id)
        assert self.settle(self.send(lease), Reply(text, usage=Usage(3, 5)), lease=lease).accepted
        return receipt

    def failed(self, key: str = "k") -> int:
        """A job that was tried once and failed for good."""
        lease, uid = self.in_flight(key)
        self.settle(uid, "permanent", Then("fail", reason="refused: no"), lease=lease)
        return lease.job_id

    def unroute(self, lane: str, after: int = 0, limit: int = 1_000) -> int:
        """Send ready work of a lane back to be routed, as a drain does whose policy does not have that lane."""
        return self.store.db.write(partial(unroute, lane=lane, after=after, limit=limit), full=False)

    def close_lane(self, lane: str, closing: Closing) -> None:
        """Close a lane, as the end of a call does."""
        self.store.db.write(partial(close_lane, lane=lane, closing=closing, now_ms=self.now_ms))

    # --- persons ----------------------------------------------------------------------------------------------------

    def cancel(self, job_id: int, *, hold_ms: int = 0, submissions: Whose = None) -> Moved:
        """Cancel one job, or withdraw what some submissions ask of it; a dry run must have said the same."""
        [would] = self.store.would_cancel([job_id], submissions=submissions)
        [done] = self.store.cancel([(job_id, hold_ms)], submissions=submissions)
        assert done == would, f"a dry run said {would}, and it was {done}"
        return done

    def retry(self, job_id: int, *, granted: int = 0, lane: str | None = None, submissions: Whose = None) -> Moved:
        """Ask again for one job, for everyone or for some submissions; a dry run must have said the same."""
        [would] = self.store.would_retry([job_id], submissions=submissions)
        [done] = self.store.retry([job_id], granted=granted, lane=lane, submissions=submissions)
        assert done == would, f"a dry run said {would}, and it was {done}"
        return done

    # --- looking ----------------------------------------------------------------------------------------------------

    def job(self, job_id: int) -> Job:
        """A job that must exist."""
        job = self.store.job(job_id)
        assert job is not None, f"job {job_id} is gone"
        return job

    def state(self, job_id: int) -> str:
        """A job's state, with its reason where it waits: `waiting/held`."""
        job = self.job(job_id)
        return f"{job.state}/{job.wait_reason}" if job.wait_reason else job.state

    def attempt(self, uid: str) -> Attempt:
        """A row of the ledger that must exist."""
        return next(row for row in self.store.attempts() if row.uid == uid)

    def text(self, request_id: int) -> str | None:
        """What a request was answered, or None."""
        result = self.store.result(request_id)
        assert result is not None, f"request {request_id} is gone"
        return result.text

    def kinds(self, after: int = 0) -> list[str]:
        """The kinds of all events after a cursor, in order."""
        return [event.kind for event in self.store.events(after, 10_000)]

    # --- what must not happen -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def refused(self, kind: type[Exception]) -> Generator[None]:
        """What is done inside must raise this and change nothing that can be seen."""
        before = self.snapshot()
        try:
            yield
        except kind:
            assert self.snapshot() == before, f"it raised {kind.__name__} and changed something all the same"
        else:
            raise AssertionError(f"nothing was raised, wanted {kind.__name__}")

    @contextlib.contextmanager
    def unchanged(self) -> Generator[None]:
        """What is done inside must change nothing that can be seen."""
        before = self.snapshot()
        yield
        assert self.snapshot() == before, "something changed that should not have"

    def lease_lost(self) -> contextlib.AbstractContextManager[None]:
        """What is done inside must find the fence closed and change nothing."""
        return self.refused(LeaseLost)

    def snapshot(self) -> tuple[Any, ...]:
        """Everything that a reader of the store can see."""
        store = self.store
        jobs = list(store.jobs())
        return (
            jobs,
            [store.requests(job.id) for job in jobs],
            list(store.attempts()),
            store.tally(),
            store.last_event(),
            store.closed_lanes(),
            store.living_owners(),
        )


def to_free(_work: Any, _route: str, wish: str, _past: Past) -> Step:
    """All work goes to the lane that was asked for, else to `free`."""
    return Step(wish or "free")


def asked(key: str = "k", *, work: str | None = None, **wishes: Any) -> Asked:
    """A request for some work under a key; `work` (default: the key) decides the fingerprint and the stored task."""
    task = key if work is None else work
    plain: dict[str, Any] = {
        "position": 0,
        "kind": "prompt",
        "route": "",
        "fingerprint": hashlib.sha256(task.encode()).hexdigest(),
        "idempotency_key": key,
        "body": dump_work(Prompt(task)),
    }
    made = Asked(**(plain | wishes))
    return dataclasses.replace(made, next_lane=made.next_lane or made.lane)


def at_position(one: Asked, position: int) -> Asked:
    """The same request, at another place in its submission."""
    return dataclasses.replace(one, position=position)


def ending(answer: Answer | str = "ok", cost: Decimal | None = None, closing: Closing | None = None) -> Ending:
    """An ending as the journey makes it of what was heard."""
    if isinstance(answer, str) and answer not in OUTCOMES:
        answer = Reply(answer, usage=Usage(3, 5))
    evidence = evidence_of(answer)  # pyright: ignore[reportArgumentType]  # a text that is no outcome is a Reply by now
    return Ending(classify(evidence), evidence, Cost(cost, "stated") if cost is not None else None, closing)
