"""Workers of one's own: lease, record, make the call, settle. This process becomes an owner at its first lease."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from millpond.engine.kept import UNSTORABLE, Kept, without_its_reply
from millpond.engine.listening import Listening
from millpond.engine.owner import Owner
from millpond.engine.reconcile import reclaim_dead
from millpond.engine.spool import Spool
from millpond.lanes.handler import raised, returned
from millpond.rules.admission import InARow, admit
from millpond.rules.effects import (
    ACCEPT,
    Admit,
    Effect,
    Give,
    Heard,
    LookBack,
    Record,
    Recorded,
    Resolve,
    Settle,
    Then,
)
from millpond.rules.errors import REFUSED, LeaseLost, UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Lease, Reply
from millpond.rules.journey import Cleared, approach, call
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.router import Step, lanes_for, next_lane, route_work
from millpond.rules.verdict import end, worst_bill
from millpond.store.lanes import load_of
from millpond.store.ledger import lost
from millpond.store.settle import Settled
from millpond.store.store import Store, fence

REPLIES = 8
"""Replies for which a worker's spool has room beforehand; more make it longer. As many as a callable lane's calls."""

NO_JITTER = 0.0
"""A worker's backoff is not spread: chance is drawn by the drainer only."""


class Workers:
    """The worker protocol over one store. Thread-safe; its owner lives as long as this process or until `leave`."""

    def __init__(
        self, store: Store, folder: Path, policy: Policy, registry: Callable[[], Mapping[str, Any] | None]
    ) -> None:
        self._store = store
        self._folder = folder
        self._policy = policy
        self._registry = registry
        self._owner: Owner | None = None
        self._spool = Spool(folder, uuid4().hex, REPLIES)
        self._owning = threading.Lock()
        self._listening = Listening(self._end_holds)
        self._in_a_row: defaultdict[str, InARow] = defaultdict(InARow)

    def lease(self, n: int, *, lanes: Iterable[str] | None = None, owner: str | None = None) -> list[Lease]:
        """Lease up to n jobs. `lanes` are names (None: all of the policy); `owner` another living owner's uuid.

        What dead owners of this host held is taken back first. Raises UnknownLane, LeaseLost for a dead `owner`, and
        QueueBusy or QueueUnavailable while a reply that was handed in waits to be written, or none could be kept.
        """
        names = list(lanes) if lanes is not None else list(self._policy.lanes)
        room = {self._policy.lane(name).name: n for name in names}
        self._spool.write_all(self._store)
        self._spool.prepare()
        reclaim_dead(self._store, self._folder, max_leases_lost=self._policy.max_leases_lost)
        return self._store.lease(
            owner or self._own(),
            room or {"": n},
            n,
            wake_rows=self._policy.wake_chunk_rows,
            fair_every=self._policy.fair_every,
            route=partial(route_work, policy=self._policy) if room else None,
            registry=self._registry(),
            serial=[lane.name for lane in self._policy.lanes.values() if lane.serial],
        )

    def record(self, lease: Lease, lane: str | None = None) -> str | None:
        """Take the job as far as its ledger row, on its lane or another, and return the attempt's uid.

        The same way as a drain's: what is still undecided of the key is decided by policy, a closed lane takes nothing,
        the job's attempts are bounded. None: send nothing, the job was moved. Raises LeaseLost.
        """
        order = self._order(replace(lease, lane=lane or lease.lane))
        if lane:  # the worker's own word: what routing would have done before that lane is passed over
            lease, order = replace(lease, lane=lane), order[order.index(lane) :]
        cleared = self._perform(approach(lease, self._with(lease.lane), order), lease)
        return cleared.recorded.uid if cleared is not None else None

    def settle(self, lease: Lease, attempt: str, said: Any) -> bool:
        """End an attempt with what its call gave: a Reply, text, JSON-able data, or an exception.

        Returns whether it answers the key now. Retryable, Saturated, Ambiguous and Permanent say how the call ended;
        any other exception is ambiguous on a lane with effects, else retryable. The end is written whoever holds the
        job by now; raises LeaseLost, afterwards, if that is no longer this lease: `accepted` says whether a good reply
        counted all the same. QueueBusy and QueueUnavailable say where the end is kept: it is written by the next
        `lease`, `settle`, `accept` or close, by this same call made again, or by whoever finds this process ended.
        """
        lane = self._lane_of(attempt)
        lease, policy = replace(lease, lane=lane.name), self._with(lane.name)
        tried = self._store.look_back(lease).past.tried
        step = next_lane(tried, policy, self._order(lease), lane.name)
        tries = step.tries if isinstance(step, Step) else 0
        cleared = Cleared(tried, Step(lane.name, tries), Recorded(attempt, lease.attempt_no))
        course = call(lease, policy, self._order(lease), cleared)
        next(course)
        settling = course.send(self._heard(lane.name, _evidence(said, lease, lane)))
        assert isinstance(settling, Settle)
        now_ms = self._store.now_ms()
        kept = Kept(attempt, lane.name, settling.ending, settling.then, fence(lease), now_ms)
        self._in_a_row[lane.name] = self._in_a_row[lane.name].and_then(settling.ending.classified)
        settled = self._persist(kept, lane, lease)
        if not settled.moved:
            raise LeaseLost(lost(lease), accepted=settled.accepted)
        return settled.accepted

    def _persist(self, kept: Kept, lane: LanePolicy, lease: Lease | None) -> Settled:
        """Write how an attempt ended, and what of others waits; keep it where the queue does not take it now."""
        try:
            settled = self._write(kept, lease)
        except UNSTORABLE as problem:
            kept = without_its_reply(kept, problem, lane, self._with(lane.name))
            settled = self._write(kept, lease)
        self._spool.clear(kept.uid)
        with suppress(*REFUSED):
            self._spool.write_all(self._store)
        return settled

    def _write(self, kept: Kept, lease: Lease | None) -> Settled:
        self._listening.over(kept.uid)
        try:
            return self._store.settle(kept.uid, kept.ending, kept.then, lane=kept.lane, lease=lease)
        except REFUSED as problem:
            self._spool.keep(kept)
            raise self._spool.explained(problem) from problem

    def _perform(self, course: Generator[Effect, Any, Cleared | None], lease: Lease) -> Cleared | None:
        """Perform what a journey asks for up to its call: all of it on the store, one after the other."""
        answer: Any = None
        try:
            while True:
                match course.send(answer):
                    case LookBack():
                        answer = self._store.look_back(lease)
                    case Resolve(uid, name, choice):
                        lane = self._lane(name)
                        worst = worst_bill(lease.work, lane, self._store.now_ms())
                        answer = self._store.resolve(uid, choice, worst=worst, certain=lane.price.kind == "free")
                    case Admit(name):
                        answer = admit(load_of(0, self._store.closed_lanes().get(name)), self._store.now_ms())
                    case Record(name):
                        answer = self._store.record(lease, uuid4().hex, name, self._lane(name).tier)
                        if isinstance(answer, Recorded):
                            self._listening.begin(answer.uid, lease.owner)
                    case Give(then):
                        answer = self._store.give(lease, then)
                    case effect:
                        raise AssertionError(f"no effect before the ledger row is {type(effect).__name__}")
        except StopIteration as over:
            return over.value

    def renew(self, lease: Lease) -> None:
        """Say that the job is still being worked on. Raises LeaseLost if it is no longer held."""
        if not self._store.holds(lease):
            raise LeaseLost(lost(lease))

    def release(self, lease: Lease) -> None:
        """Give a job back untouched. Raises LeaseLost."""
        self._store.give(lease, Then("release"))

    def accept(self, attempt: str, reply: Reply) -> bool:
        """Hand in the reply of an attempt, however late, without a lease. Whether it is in force now."""
        lane = self._lane_of(attempt)
        ending = end(self._heard(lane.name, returned(reply, None)), lane, self._policy)
        kept = Kept(attempt, lane.name, ending, ACCEPT, None, self._store.now_ms())
        return self._persist(kept, lane, None).accepted

    def _end_holds(self, owner: str) -> None:
        if not self._spool.pending():  # what a hold waits for may be at hand
            self._store.end_own_holds(owner)

    def leave(self) -> None:
        """Stop being an owner. What is still held under a lease is others' from here on."""
        self._listening.stop()
        with self._owning:
            owner, self._owner = self._owner, None
            try:
                if owner is not None and owner.row.pid == os.getpid():
                    owner.leave(partial(self._leave, owner.uuid))
                else:
                    self._spool.write_all(self._store)
            finally:
                self._spool.remove()

    def _leave(self, uuid: str) -> None:
        """Write what waits, then take back what was held: what has a reply must not be given to anybody else."""
        self._spool.write_all(self._store)
        self._store.reclaim(uuid, died=False)

    def _own(self) -> str:
        with self._owning:
            if self._owner is None or self._owner.row.pid != os.getpid():  # a forked child is an owner of its own
                self._owner = Owner(self._folder, "worker", self._store.now_ms())
                self._store.enlist(self._owner.row)
            return self._owner.uuid

    def _lane_of(self, attempt: str) -> LanePolicy:
        name = self._store.lane_of(attempt)
        if name is None:
            raise UsageError(f"attempt {attempt!r} is not in the ledger; attempts are named by what record returned")
        return self._lane(name)

    def _heard(self, lane: str, evidence: Evidence) -> Heard:
        return Heard(evidence, self._store.now_ms(), NO_JITTER, self._in_a_row[lane])

    def _order(self, lease: Lease) -> tuple[str, ...]:
        """The lanes that may serve a job; the one it is worked on at all events."""
        order = lanes_for(lease.work, lease.route, self._policy, lease.wished_lane)
        return order if lease.lane in order else (lease.lane,)

    def _with(self, name: str) -> Policy:
        """The policy, and in it the lane that a worker brought."""
        return replace(self._policy, lanes={**self._policy.lanes, name: self._lane(name)})

    def _lane(self, name: str) -> LanePolicy:
        """A worker may bring lanes that no policy names: such a one is a callable of unknown price."""
        return self._policy.lanes.get(name) or LanePolicy(name, kind="callable")


def _evidence(said: Any, lease: Lease, lane: LanePolicy) -> Evidence:
    """What a worker hands in. Of its own exceptions the lane's `effects` decide, whatever kind the lane is of."""
    if not isinstance(said, BaseException):
        return returned(said, lease.work)
    seen = raised(said)
    return seen if seen.said else replace(seen, said="ambiguous" if lane.effects else "retryable")
