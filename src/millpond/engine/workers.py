"""Workers of one's own: lease, record, make the call, settle. This process becomes an owner at its first lease."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from millpond.engine.bookkeeping import Bookkeeper, try_to_post
from millpond.engine.in_hand import InHand
from millpond.engine.kept import UNSTORABLE, Kept, without_its_reply
from millpond.engine.listening import Listening
from millpond.engine.recall import why_unasked
from millpond.engine.spool import Spool
from millpond.engine.taking_back import reclaim_dead, sweep
from millpond.engine.tenure import Tenure
from millpond.engine.watch import Watch
from millpond.lanes.handler import raised, returned
from millpond.rules.admission import InARow, admit
from millpond.rules.effects import (
    ACCEPT,
    Admit,
    Effect,
    Give,
    Heard,
    LookBack,
    Post,
    Recall,
    Record,
    Recorded,
    Release,
    Reserve,
    Reserved,
    Resolve,
    Settle,
    Then,
)
from millpond.rules.errors import REFUSED, LeaseLost, UsageError
from millpond.rules.evidence import LEASE_TOO_OLD, Absent, Evidence, Unknown, uncalled
from millpond.rules.job import Lease, Reply
from millpond.rules.journey import Cleared, approach, call
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.router import Step, Tried, lanes_for, next_lane, route_work
from millpond.rules.verdict import end, worst_bill
from millpond.spend.book import SpendBook
from millpond.store.lanes import load_of
from millpond.store.ledger import lost
from millpond.store.settle import Settled
from millpond.store.store import Store, fence

REPLIES = 8
"""Replies for which a worker's spool has room beforehand; more make it longer. As many as a callable lane's calls."""

NO_JITTER = 0.0
"""A worker's backoff is not spread: chance is drawn by the drainer only."""


Ask = Callable[[Recall, Lease], Heard | Absent | Unknown]
"""The question of a journey, and the lease under which it is asked -> what the lane's answer proves."""


class Workers:
    """The worker protocol over one store. Thread-safe; its owner lives as long as this process or until `leave`."""

    def __init__(
        self,
        store: Store,
        book: SpendBook,
        folder: Path,
        policy: Policy,
        registry: Callable[[], Mapping[str, Any] | None],
        ask: Ask,
    ) -> None:
        """`ask` asks a lane what became of a call that a drain made: who works by hand has no lanes of his own."""
        self._ask = ask
        self._store = store
        self._book = book
        self._bookkeeper = Bookkeeper(store, book)
        self._folder = folder
        self._policy = policy
        self._registry = registry
        self._tenure: Tenure | None = None
        self._spool = Spool(folder, uuid4().hex, REPLIES)
        self._owning = threading.Lock()
        self._watch = Watch(folder)
        self._listening = Listening(store)
        self._in_hand = InHand(policy.lease_ms, look=self._heed_sleep, end_holds=self._end_holds, lapse=self._lapse)
        self._in_a_row: defaultdict[str, InARow] = defaultdict(InARow)

    def lease(self, n: int, *, lanes: Iterable[str] | None = None, owner: str | None = None) -> list[Lease]:
        """Lease up to n jobs. `lanes` are names (None: all of the policy); `owner` another living owner's uuid.

        What owners of this host held who are gone is taken back first. A lease that is neither recorded nor renewed for
        the policy's `lease_ms` is taken back from this process too. Raises UnknownLane, LeaseLost for a dead `owner`,
        and QueueBusy or QueueUnavailable while a reply that was handed in waits to be written, or none could be kept.
        """
        names = list(lanes) if lanes is not None else list(self._policy.lanes)
        room = {self._policy.lane(name).name: n for name in names}
        cap = self._policy.max_leases_lost
        self._spool.write_all(self._store)
        self._spool.prepare()
        reclaim_dead(self._store, self._folder, max_leases_lost=cap, watch=self._watch)
        self._bookkeeper.go_on()
        if owner is not None:
            return self._take(owner, room, n)
        name = self._own()
        try:
            leases = self._take(name, room, n)
        except LeaseLost:  # given up while it slept
            leases = self._take(self._own(instead_of=name), room, n)
        for lease in leases:
            self._in_hand.took(lease)
        return leases

    def _take(self, owner: str, room: dict[str, int], n: int) -> list[Lease]:
        return self._store.lease(
            owner,
            room or {"": n},
            n,
            wake_rows=self._policy.wake_chunk_rows,
            fair_every=self._policy.fair_every,
            route=partial(route_work, policy=self._policy) if room else None,
            registry=self._registry(),
            serial=[lane.name for lane in self._policy.lanes.values() if lane.serial],
            free_lanes=self._policy.free_lanes,
        )

    def record(self, lease: Lease, lane: str | None = None) -> str | None:
        """Take the job as far as its ledger row, on its lane or another, and return the attempt's uid.

        The same way as a drain's: what is still undecided of the key is decided by policy, a closed lane takes nothing,
        the job's attempts are bounded. None: send nothing, the job was moved. Raises LeaseLost, and
        QueueBusy and QueueUnavailable where queue or spend book refuse: then nothing is to be sent either.
        """
        order = self._order(replace(lease, lane=lane or lease.lane))
        if lane:  # the worker's own word: what routing would have done before that lane is passed over
            lease, order = replace(lease, lane=lane), order[order.index(lane) :]
        self._heed_sleep()
        try:
            with self._in_hand.at_work(lease):
                cleared = self._perform(approach(lease, self._with(lease.lane), order), lease)
        except LeaseLost:
            self._in_hand.gave(lease)
            raise
        if cleared is None:
            self._in_hand.gave(lease)
            return None
        if self._tenure is not None and lease.owner == self._tenure.uuid and not self._tenure.stands():
            with suppress(LeaseLost):  # it slept while the row was written: others may have given it up
                self._end(lease, cleared.recorded.uid, lambda _: uncalled("lease_too_old", LEASE_TOO_OLD))
            raise LeaseLost(lost(lease))
        return cleared.recorded.uid

    def settle(self, lease: Lease, attempt: str, said: Any) -> bool:
        """End an attempt with what its call gave: a Reply, text, JSON-able data, or an exception.

        Returns whether it answers the key now. Retryable, Saturated, Ambiguous and Permanent say how the call ended;
        any other exception is ambiguous on a lane with effects, else retryable. The end is written whoever holds the
        job by now; raises LeaseLost, afterwards, if that is no longer this lease: `accepted` says whether a good reply
        counted all the same. QueueBusy and QueueUnavailable say where the end is kept: it is written by the next
        `lease`, `settle`, `accept` or close, by this same call made again, or by whoever finds this process ended.
        An interrupt leaves it in the same place.
        """
        return self._end(lease, attempt, partial(_evidence, said, lease))

    def _end(self, lease: Lease, attempt: str, seen_on: Callable[[LanePolicy], Evidence]) -> bool:
        """As `settle`; `seen_on` says what was seen of the call, on the lane that made it."""
        likely = self._lane(self._in_hand.lane_of(attempt) or lease.lane)
        seen = seen_on(likely)

        def read() -> Kept:
            lane = self._lane_of(attempt)
            tried = self._store.look_back(lease).past.tried
            return self._ending(attempt, lease, lane, seen if lane == likely else seen_on(lane), tried)

        with self._in_hand.at_work(lease):
            kept, settled = self._persist(self._ending(attempt, lease, likely, seen, ()), lease, read)
        self._in_a_row[kept.lane] = self._in_a_row[kept.lane].and_then(kept.ending.classified)
        if not settled.moved:
            raise LeaseLost(lost(lease), accepted=settled.accepted)
        return settled.accepted

    def _ending(self, attempt: str, lease: Lease, lane: LanePolicy, seen: Evidence, tried: tuple[Tried, ...]) -> Kept:
        """How an attempt ended, and what its job does then, given what was tried before."""
        lease, policy = replace(lease, lane=lane.name), self._with(lane.name)
        step = next_lane(tried, policy, self._order(lease), lane.name)
        tries = step.tries if isinstance(step, Step) else 0
        cleared = Cleared(tried, Step(lane.name, tries), Recorded(attempt, lease.attempt_no))
        course = call(lease, policy, self._order(lease), cleared)
        next(course)
        settling = course.send(self._heard(lane.name, seen))
        assert isinstance(settling, Settle)
        return Kept(attempt, lane.name, settling.ending, settling.then, fence(lease), self._store.now_ms())

    def _persist(self, kept: Kept, lease: Lease | None, read: Callable[[], Kept] | None = None) -> tuple[Kept, Settled]:
        """Write how an attempt ended, and what of others waits; keep it where the queue does not take it now.

        `read` says it better, by what the queue tells; where that cannot be read, `kept` is what is kept. It asks for
        no history: what its job does then is decided anew, by all of it, before that is called again.
        """
        if self._spool.keeps_better(kept):  # what is said without it must not be heard first
            self._spool.write_all(self._store)
        try:
            kept, settled = self._write(kept, lease, read)
        except UNSTORABLE as problem:
            lane = self._lane(kept.lane)
            kept, settled = self._write(without_its_reply(kept, problem, lane, self._with(lane.name)), lease, None)
        self._spool.clear(kept.uid)
        self._in_hand.over(kept.uid)
        try_to_post(self._store, self._book, settled.charge)
        with suppress(*REFUSED):
            self._spool.write_all(self._store)
        return kept, settled

    def _write(self, kept: Kept, lease: Lease | None, read: Callable[[], Kept] | None) -> tuple[Kept, Settled]:
        try:
            if read is not None:
                kept = read()
            how, lane = kept.how, kept.lane
            return kept, self._store.settle(kept.uid, kept.ending, kept.then, lane=lane, lease=lease, how=how)
        except (UsageError, *UNSTORABLE):  # there is no such attempt, or it can be written nowhere
            raise
        except REFUSED as problem:
            self._spool.keep(kept)
            raise self._spool.explained(problem) from problem
        except BaseException:  # an interrupt, which may meet any line of the above: it may be written or not
            self._spool.keep(kept)
            raise

    def _perform(self, course: Generator[Effect, Any, Cleared | None], lease: Lease) -> Cleared | None:
        """Perform what a journey asks for up to its call: all of it on the store, one after the other."""
        try:
            effect = next(course)
            while True:
                try:
                    answer = self._do(effect, lease)
                except LeaseLost as lost:
                    effect = course.throw(lost)
                else:
                    effect = course.send(answer)
        except StopIteration as over:
            return over.value

    def _do(self, effect: Effect, lease: Lease) -> Any:
        """Perform one effect; what the journey asked to know."""
        match effect:
            case LookBack():
                return self._store.look_back(lease)
            case Recall():
                said = self._ask(effect, lease)
                if isinstance(said, Unknown):
                    self._store.note_unasked(effect.uid, why_unasked(said))
                return said
            case Settle(uid, name, ending, then, how):
                kept = Kept(uid, name, ending, then, fence(lease), self._store.now_ms(), how)
                self._persist(kept, lease)  # which posts it, too
            case Resolve(uid, name, choice):
                lane = self._lane(name)
                worst = worst_bill(lease.work, lane, self._store.now_ms())
                return self._store.resolve(uid, choice, worst=worst, certain=lane.price.kind == "free")
            case Admit(name):
                return admit(load_of(0, self._store.closed_lanes().get(name)), self._store.now_ms())
            case Reserve(name):
                uid = uuid4().hex
                self._book.reserve(
                    uid, lease.owner, name, worst_bill(lease.work, self._lane(name), self._store.now_ms())
                )
                return Reserved(uid)
            case Release(uid):
                self._release(uid)
            case Record(name, uid):
                tier, free = self._lane(name).tier, self._policy.free_lanes
                try:
                    recorded = self._store.record(lease, uid, name, tier, free)
                except REFUSED:
                    self._release_unless_recorded(uid)
                    raise
                if isinstance(recorded, Recorded):
                    self._in_hand.begin(uid, lease.owner, lease, name)
                return recorded
            case Post(charge):
                try_to_post(self._store, self._book, charge)
            case Give(then):
                self._store.give(lease, then)
            case _:
                raise AssertionError(f"no effect before the ledger row is {type(effect).__name__}")
        return None

    def _release(self, uid: str) -> None:
        with suppress(*REFUSED):  # it falls with this owner, at the latest
            self._book.release(uid)

    def _release_unless_recorded(self, uid: str) -> None:
        """Of a row that was refused nothing is known but what the ledger says: it may be there all the same."""
        with suppress(*REFUSED):
            if self._store.lane_of(uid) is None:
                self._release(uid)

    def renew(self, lease: Lease) -> None:
        """Say that the job is still being worked on, before each `lease_ms` is over. Raises LeaseLost if it is lost."""
        self._heed_sleep()
        if not self._store.holds(lease):
            raise LeaseLost(lost(lease))
        self._in_hand.heard_of(lease)

    def release(self, lease: Lease) -> None:
        """Give a job back untouched. Raises LeaseLost."""
        try:
            self._store.give(lease, Then("release"))
        except LeaseLost:
            self._in_hand.gave(lease)
            raise
        self._in_hand.gave(lease)

    def accept(self, attempt: str, reply: Reply) -> bool:
        """Hand in the reply of an attempt, however late, without a lease. Whether it is in force now."""
        seen = returned(reply, None)

        def made_on(lane: LanePolicy) -> Kept:
            ending = end(self._heard(lane.name, seen), lane, self._policy)
            return Kept(attempt, lane.name, ending, ACCEPT, None, self._store.now_ms())

        likely = made_on(self._lane(self._in_hand.lane_of(attempt)))
        return self._persist(likely, None, lambda: made_on(self._lane_of(attempt)))[1].accepted

    def _end_holds(self, *owners: str) -> Collection[str] | None:
        if self._spool.pending():  # what a hold waits for may be at hand
            return None
        self._listening.end_holds(*owners)
        return self._listening.calls

    def _lapse(self, job_id: int, lease_no: int) -> None:
        """Take back a lease that nobody renewed; not one whose call has ended, which only is to be written."""
        self._spool.write_all(self._store)
        self._store.lapse(job_id, lease_no, max_leases_lost=self._policy.max_leases_lost)

    def leave(self) -> None:
        """Stop being an owner. What is still held under a lease is others' from here on."""
        self._in_hand.stop()
        with self._owning:
            tenure, self._tenure = self._tenure, None
            write_what_waits = partial(self._spool.write_all, self._store)
            try:
                if tenure is not None and tenure.pid == os.getpid():
                    tenure.leave(write_what_waits)
                else:
                    write_what_waits()
            finally:
                self._spool.remove()

    def _own(self, *, instead_of: str = "") -> str:
        """The name to lease under: a new one if the last may have been given up, or is known to be."""
        with self._owning:
            tenure = self._tenure
            if tenure is None or tenure.pid != os.getpid():  # a forked child is an owner of its own
                sweep(self._store, self._folder)
                tenure = self._tenure = Tenure(self._store, self._folder, "worker", lease_ms=self._policy.lease_ms)
            elif tenure.uuid == instead_of or not tenure.stands():
                old = tenure.uuid
                tenure.renew()
                self._in_hand.inherit(old, tenure.uuid)
            return tenure.uuid

    def _heed_sleep(self) -> None:
        """After a sleep the owner's name is laid down, and what was leased under it and not recorded is given back."""
        if self._tenure is not None:
            self._own()

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
