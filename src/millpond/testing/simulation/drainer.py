"""A drainer that performs journeys one effect at a time: what `engine.perform` does, without a loop, lanes or threads.

Between two effects it may be frozen, or die. Each effect of the store is one transaction, so a crash before or after an
effect is a crash between two steps.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from millpond.engine.kept import Kept
from millpond.engine.listening import Listening
from millpond.engine.spool import Spool
from millpond.rules import effects as steps
from millpond.rules.admission import Admitted, LaneLoad, NotNow, admit, room
from millpond.rules.effects import ACCEPT, Charge, Effect, Facts, Heard, Instead, Recorded, Reserved, Silence
from millpond.rules.errors import LeaseLost
from millpond.rules.evidence import LEASE_TOO_OLD, Absent, Evidence, Unknown, uncalled
from millpond.rules.job import Lease, OwnerRow
from millpond.rules.journey import journey
from millpond.rules.policy import Policy
from millpond.rules.recall import next_ask_ms, proven, proves_absence
from millpond.rules.router import lanes_for, route_work, whole_hold_ms
from millpond.rules.verdict import Worst, worst_bill, worst_of
from millpond.spend.book import SpendBook
from millpond.store.asking import ToAsk
from millpond.store.store import Store, fence
from millpond.testing.clock import FakeClock
from millpond.testing.simulation.auditor import Auditor
from millpond.testing.simulation.calls import Call, Plan, evidence, memory
from millpond.testing.simulation.witness import Witness

WAITING = object()
"""What an effect returns that has no answer yet."""


@dataclass(slots=True)
class Ground:
    """What all drainers of one world share."""

    store: Store
    book: SpendBook
    clock: FakeClock
    policy: Policy
    rng: random.Random
    witness: Witness
    auditor: Auditor
    plan: Callable[[str], Plan]
    """Lane -> what becomes of the call that leaves now."""
    log: Callable[..., None]
    folder: Path
    takes: Callable[[], bool]
    """Whether the queue takes what ends now; it is kept in a spool otherwise."""
    letters: str = "ad"
    """What the names of this queue's attempts and of its owners begin with: no two queues of a world give the same."""
    uids: int = 0
    owners: int = 0

    def bill(self, work: Any, lane: str, now_ms: int) -> Worst:
        """The most that a call can have cost."""
        return worst_of(work, lane, now_ms, self.policy)

    def owner(self) -> OwnerRow:
        """A name that nobody had before."""
        self.owners += 1
        return OwnerRow(f"{self.letters[1]}{self.owners}", "drainer", "host", self.owners, "boot", self.clock())


class Flight:
    """One journey under way: its generator, and the effect that it asks for next."""

    def __init__(self, ground: Ground, lease: Lease, drainer: Drainer) -> None:
        self._ = ground
        self.lease = lease
        self._drainer = drainer
        self.taken_ms = ground.clock()
        self.detached = False
        self.uid = ""
        self.wait_until_ms: int | None = None
        order = lanes_for(lease.work, lease.route, ground.policy, lease.wished_lane)
        self._course: Generator[Effect, Any, None] = journey(lease, ground.policy, order)
        self.next: Effect | None = next(self._course, None)
        self._is_waiting = False
        self._has_posted = False
        self._looked_ms = 0

    def can_go(self, now_ms: int) -> bool:
        """Whether the next step does not only wait."""
        at_ms = self.next_ms()
        return self.next is not None and (at_ms is None or at_ms <= now_ms)

    @property
    def waits(self) -> bool:
        """Whether its call is under way."""
        return self._is_waiting

    @property
    def may_be_dropped(self) -> bool:
        """Whether its task may die alone: a worker's steps from the reservation to the ledger row are one call."""
        return not isinstance(self.next, steps.Record | steps.Release)

    def next_ms(self) -> int | None:
        """When its waiting ends; None if it does not wait."""
        if not self._is_waiting:
            return None
        ends = self._.witness.calls[self.uid].ends_ms
        return ends if self.wait_until_ms is None else min(ends, self.wait_until_ms)

    def step(self) -> None:
        """Perform the next effect; one that only waits is asked again later."""
        assert self.next is not None
        try:
            try:
                answer = PERFORM[type(self.next)](self, self.next)
            except LeaseLost as lost:
                self._.log("lease lost", self.lease.job_id)
                self.next = self._course.throw(lost)
            else:
                if answer is not WAITING:
                    self.next = self._course.send(answer)
        except (StopIteration, LeaseLost):
            self.next = None

    def look_back(self, _: steps.LookBack) -> Facts:
        self._looked_ms = self._.store.now_ms()
        return self._.store.look_back(self.lease)

    def recall(self, effect: steps.Recall) -> Heard | Absent | Unknown:
        return recollect(self._, effect.uid, effect.lane, effect.age_ms, self._looked_ms)

    def resolve(self, effect: steps.Resolve) -> Charge | None:
        self._.witness.decided(effect.uid)
        lane = self._.policy.lanes[effect.lane]
        worst = worst_bill(self.lease.work, lane, self._.clock())
        return self._.store.resolve(effect.uid, effect.choice, worst=worst, certain=lane.price.kind == "free")

    def admit(self, effect: steps.Admit) -> Admitted | NotNow:
        return admit(load(self._.store, effect.lane, 0), self._.clock())

    def reserve(self, effect: steps.Reserve) -> Reserved:
        self._.uids += 1
        uid, lane = f"{self._.letters[0]}{self._.uids}", self._.policy.lane(effect.lane)
        worst = worst_bill(self.lease.work, lane, self._.clock())
        self._.book.reserve(uid, self.lease.owner, lane.name, worst)
        return Reserved(uid)

    def release(self, effect: steps.Release) -> None:
        self._.book.release(effect.uid)

    def post(self, effect: steps.Post) -> Any:
        """Two transactions, so two steps: in the book, then in the ledger."""
        if not self._has_posted:
            self._.book.post([effect.charge])
            self._has_posted = True
            return WAITING
        self._.store.mark_posted([effect.charge])
        self._has_posted = False
        return None

    def record(self, effect: steps.Record) -> Recorded | Instead:
        lane = self._.policy.lane(effect.lane)
        hold = whole_hold_ms(lane, self._.policy, self.lease.service_class) if lane.can_recall else None
        free = self._.policy.free_lanes
        recorded = self._.store.record(self.lease, effect.uid, lane.name, lane.tier, free, recall_hold_ms=hold)
        if isinstance(recorded, Recorded):
            self.uid = recorded.uid
            self._.witness.recorded(recorded.uid, self.lease, lane.name, self._.clock())
        return recorded

    def call(self, effect: steps.Call) -> Any:
        if self._is_waiting:
            return self._hear()
        now_ms = self._.clock()
        if now_ms - self.taken_ms >= self._.policy.lease_ms or not self._drainer.may_send(self.lease.owner):
            return self._heard(uncalled("lease_too_old", LEASE_TOO_OLD))
        if not self._.store.holds(self.lease):
            return self._heard(uncalled("lease_lost", "cancelled before the call"))
        plan = self._.plan(effect.lane)
        seen = evidence(plan, self.uid, self.lease.fingerprint, self._.rng)
        kept = memory(plan, seen, self.uid, self.lease.fingerprint, self._.rng)
        ends_ms = now_ms + plan.takes_ms
        settling_ms = self._.policy.lane(effect.lane).settling_ms
        listed_ms = ends_ms + self._.rng.randint(0, settling_ms) if kept is not None else None
        call = Call(self.uid, effect.lane, seen, ends_ms, kept, listed_ms)
        self._.log("sent", self.uid, self.lease.idempotency_key, effect.lane, plan.kind, f"{plan.takes_ms} ms")
        self._.witness.sent(call, self.lease)
        self._.auditor.leaves(self.uid)
        return self._wait(effect.soft_timeout_ms)

    def detach(self, effect: steps.Detach) -> None:
        self.detached = True
        self._.store.detach(self.uid, self.lease, effect.hold_ms)
        self._.witness.held(self.uid, self._.clock() + effect.hold_ms)

    def listen(self, effect: steps.Listen) -> Any:
        return self._hear() if self._is_waiting else self._wait(effect.for_ms)

    def stop_listening(self, _: steps.StopListening) -> None:
        self._.store.stop_listening(self.uid)
        self._.witness.held(self.uid, self._.clock())

    def settle(self, effect: steps.Settle) -> Any:
        if not self._.takes():
            self._keep(effect)
            return WAITING  # it is tried again
        self._drainer.spool.clear(effect.uid)
        self._.witness.delivered(effect.uid, effect.ending)
        lease = None if self.detached else self.lease
        settled = self._.store.settle(
            effect.uid, effect.ending, effect.then, lane=effect.lane, lease=lease, how=effect.how
        )
        self._.log("settled", effect.uid, effect.ending.outcome, "accepted" if settled.accepted else "")
        return settled.charge

    def _keep(self, effect: steps.Settle) -> None:
        self._.log("kept", effect.uid, effect.ending.outcome)
        job = None if self.detached else fence(self.lease)
        kept = Kept(effect.uid, effect.lane, effect.ending, effect.then, job, self._.clock(), effect.how)
        self._drainer.keep(kept)
        self._.witness.keep(effect.uid, effect.ending)

    def give(self, effect: steps.Give) -> None:
        self._.store.give(self.lease, effect.then)

    def _wait(self, for_ms: int | None) -> Any:
        self._is_waiting = True
        self.wait_until_ms = self._.clock() + for_ms if for_ms is not None else None
        return WAITING

    def _hear(self) -> Any:
        now_ms = self._.clock()
        call = self._.witness.calls[self.uid]
        if call.ends_ms <= now_ms:
            self._is_waiting = False
            return self._heard(call.evidence)
        if self.wait_until_ms is not None and self.wait_until_ms <= now_ms:
            self._is_waiting = False
            return Silence(now_ms)
        return WAITING

    def _heard(self, seen: Evidence) -> Heard:
        return Heard(seen, self._.clock(), self._.rng.random())


def recollect(ground: Ground, uid: str, lane: str, age_ms: int, looked_ms: int) -> Heard | Absent | Unknown:
    """What a lane says of an earlier call, by the truth of it. Whether its hold was over was judged at `looked_ms`."""
    now_ms, call = ground.clock(), ground.witness.calls.get(uid)
    said: Heard | Absent | Unknown = Unknown()
    if call is not None and call.memory is not None and call.listed_ms is not None and call.listed_ms <= now_ms:
        said = Heard(call.memory, now_ms, ground.rng.random())
    elif proves_absence(ground.policy, ground.policy.lane(lane), age_ms):
        said = Absent()
    ground.log("recalled", uid, type(said).__name__)
    ground.witness.asked(uid, said, looked_ms)
    return said


PERFORM: dict[type[Any], Callable[[Flight, Any], Any]] = {
    steps.LookBack: Flight.look_back,
    steps.Recall: Flight.recall,
    steps.Resolve: Flight.resolve,
    steps.Admit: Flight.admit,
    steps.Reserve: Flight.reserve,
    steps.Release: Flight.release,
    steps.Record: Flight.record,
    steps.Call: Flight.call,
    steps.Detach: Flight.detach,
    steps.Listen: Flight.listen,
    steps.StopListening: Flight.stop_listening,
    steps.Settle: Flight.settle,
    steps.Post: Flight.post,
    steps.Give: Flight.give,
}


@dataclass(eq=False)
class Drainer:
    """A process: it lives, may be frozen, and may be taken for dead while it only sleeps."""

    ground: Ground
    owner: str = ""
    is_alive: bool = True
    beat_ms: int = 0
    """When it last beat before it was frozen."""
    frozen_until_ms: int = 0
    is_late: bool = False
    """Its beat stood still for a lease under its present name."""
    skew_ms: int = 0
    """By how much the wall clock differs that it reads. No clock that judges leases does."""
    flights: list[Flight] = field(default_factory=list[Flight])
    spool: Spool = field(init=False)
    """It is kept under whatever name."""
    kept: list[str] = field(default_factory=list[str])
    """The attempts whose ends it could not write at first."""
    silent: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """Leases whose tasks died, and when."""

    def __post_init__(self) -> None:
        row = self.ground.owner()
        self.owner = row.uuid
        self.ground.store.enlist(row)
        self.listening = Listening(self.ground.store, self.ground.clock)
        self.spool = Spool(self.ground.folder, self.owner, 8)
        self.spool.prepare()

    def is_awake(self) -> bool:
        """Whether it can do anything now."""
        return self.is_alive and self.frozen_until_ms <= self.ground.clock()

    def freeze(self, for_ms: int, beat_age_ms: int) -> None:
        """Stand still; the last beat was so long ago."""
        self.is_late = not self.stands()
        self.beat_ms = self.ground.clock() - beat_age_ms
        self.frozen_until_ms = self.ground.clock() + for_ms

    def stands(self) -> bool:
        """Whether nobody can have given it up: its beat has not stood still for a lease under this name."""
        still_ms = min(self.ground.clock(), self.frozen_until_ms) - self.beat_ms
        return not self.is_late and (not self.frozen_until_ms or still_ms < self.ground.policy.lease_ms)

    def may_send(self, name: str) -> bool:
        """Whether what was leased under this name may be sent."""
        return name == self.owner and self.stands()

    def take_new_name(self) -> None:
        """Lay the old name down: what is under way goes on under the new one, unless it was given up."""
        heir = self.ground.owner()
        self.ground.store.succeed(self.owner, heir)
        self.owner, self.is_late, self.beat_ms, self.frozen_until_ms = heir.uuid, False, 0, 0

    def lease(self, most: int) -> int:
        """Lease into free slots, unless a reply waits to be written.

        Who slept for a lease takes a new name first; who finds itself dead leases nothing.
        """
        if not self.spool.is_clear():
            return 0
        if not self.stands():
            self.take_new_name()
        ground, policy = self.ground, self.ground.policy
        now_ms = ground.clock()
        free = {
            name: room(lane, load(ground.store, name, self._in_flight(name)), now_ms)
            for name, lane in policy.lanes.items()
        }
        try:
            leases = ground.store.lease(
                self.owner,
                free,
                min(sum(free.values()), most),
                wake_rows=policy.wake_chunk_rows,
                fair_every=policy.fair_every,
                route=partial(route_work, policy=policy),
                serial=[lane.name for lane in policy.lanes.values() if lane.serial],
                free_lanes=policy.free_lanes,
            )
        except LeaseLost:
            self.take_new_name()
            return 0
        for lease in leases:
            ground.witness.leased(lease)
        self.flights += [Flight(ground, lease, self) for lease in leases]
        return len(leases)

    def may_reclaim(self, other: Drainer) -> bool:
        """Whether another's lock is free, or its beat was watched standing still for a whole lease.

        Who watched it may come to write so only when it has woken.
        """
        return other is not self and not (other.is_alive and other.stands())

    def lapsed(self) -> list[tuple[int, int]]:
        """The leases of its own that nobody has renewed for a lease."""
        now_ms = self.ground.clock()
        return [name for name, died_ms in self.silent.items() if now_ms - died_ms >= self.ground.policy.lease_ms]

    def ask_lanes(self) -> int:
        """Ask for the calls that are due to be asked for, and decide what nobody waits for; how many of both."""
        ground, policy, store = self.ground, self.ground.policy, self.ground.store
        lanes = [name for name, lane in policy.lanes.items() if lane.can_recall]
        due = store.to_ask(lanes, until_ms=ground.clock())
        marks = {one.uid: self._next_ms(one) for one in due}
        ours = store.ask_again(marks) if marks else set[str]()
        for one in due:
            if one.uid in ours:
                self._ask(one)
        forgotten = [uid for uid in store.forgotten("", lanes).uids if store.forget(uid, ground.bill)]
        if forgotten:
            ground.log("forgotten", *forgotten)
        return len(ours) + len(forgotten)

    def _next_ms(self, one: ToAsk) -> int:
        ground = self.ground
        return next_ask_ms(
            ground.policy,
            ground.policy.lane(one.lane),
            age_ms=one.age_ms,
            ended_ms=one.ended_ms,
            hold_until_ms=one.hold_until_ms,
            now_ms=ground.clock(),
        )

    def _ask(self, one: ToAsk) -> None:
        ground = self.ground
        said = recollect(ground, one.uid, one.lane, one.age_ms, ground.store.now_ms())
        if (proof := proven(said, ground.policy, ground.policy.lane(one.lane), one.code)) is not None:
            ground.witness.delivered(one.uid, proof.ending)
            ground.store.settle(one.uid, proof.ending, ACCEPT, lane=one.lane, lease=None, how=proof.how)
        elif one.hold_until_ms is None or one.hold_until_ms <= ground.clock():
            ground.store.forget(one.uid, ground.bill)

    def keep(self, kept: Kept) -> None:
        """Keep how an attempt ended until the queue has it."""
        self.spool.keep(kept)
        if kept.uid not in self.kept:
            self.kept.append(kept.uid)

    def land(self) -> None:
        """Let go of journeys that have ended."""
        self.flights = [flight for flight in self.flights if flight.next is not None]

    def _in_flight(self, lane: str) -> int:
        return sum(flight.lease.lane == lane for flight in self.flights)


def load(store: Store, lane: str, in_flight: int) -> LaneLoad:
    """What a lane carries, and whether it is closed."""
    closed = store.closed_lanes().get(lane)
    return LaneLoad(
        in_flight, closed.closed_until_ms if closed else None, closed is not None and closed.closed_until_ms is None
    )
