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
from millpond.engine.spool import Spool
from millpond.rules import effects as steps
from millpond.rules.admission import Admitted, LaneLoad, NotNow, admit, room
from millpond.rules.effects import Effect, Facts, Heard, Instead, Recorded, Silence
from millpond.rules.errors import LeaseLost
from millpond.rules.evidence import Evidence
from millpond.rules.job import Lease, OwnerRow
from millpond.rules.journey import journey
from millpond.rules.policy import Policy
from millpond.rules.router import lanes_for, route_work
from millpond.rules.verdict import worst_bill
from millpond.store.store import Store, fence
from millpond.testing.clock import FakeClock
from millpond.testing.simulation.calls import Call, Plan, evidence
from millpond.testing.simulation.witness import Witness

WAITING = object()
"""What an effect returns that has no answer yet."""


@dataclass(slots=True)
class Ground:
    """What all drainers of one world share."""

    store: Store
    clock: FakeClock
    policy: Policy
    rng: random.Random
    witness: Witness
    plan: Callable[[str], Plan]
    """Lane -> what becomes of the call that leaves now."""
    log: Callable[..., None]
    folder: Path
    takes: Callable[[], bool]
    """Whether the queue takes what ends now; it is kept in a spool otherwise."""
    uids: int = 0
    owners: int = 0

    def owner(self) -> str:
        """A new living owner."""
        self.owners += 1
        uuid = f"d{self.owners}"
        self.store.enlist(OwnerRow(uuid, "drainer", "host", self.owners, "boot", self.clock()))
        return uuid


class Flight:
    """One journey under way: its generator, and the effect that it asks for next."""

    def __init__(self, ground: Ground, lease: Lease, spool: Spool) -> None:
        self._ = ground
        self._spool = spool
        self.lease = lease
        self.taken_ms = ground.clock()
        self.detached = False
        self.uid = ""
        self.wait_until_ms: int | None = None
        order = lanes_for(lease.work, lease.route, ground.policy, lease.wished_lane)
        self._course: Generator[Effect, Any, None] = journey(lease, ground.policy, order)
        self.next: Effect | None = next(self._course, None)
        self._is_waiting = False

    def can_go(self, now_ms: int) -> bool:
        """Whether the next step does not only wait."""
        at_ms = self.next_ms()
        return self.next is not None and (at_ms is None or at_ms <= now_ms)

    @property
    def waits(self) -> bool:
        """Whether its call is under way."""
        return self._is_waiting

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
            answer = PERFORM[type(self.next)](self, self.next)
        except LeaseLost:
            self._.log("lease lost", self.lease.job_id)
            self._course.close()
            self.next = None
            return
        if answer is WAITING:
            return
        try:
            self.next = self._course.send(answer)
        except StopIteration:
            self.next = None

    def look_back(self, _: steps.LookBack) -> Facts:
        return self._.store.look_back(self.lease)

    def resolve(self, effect: steps.Resolve) -> None:
        lane = self._.policy.lanes[effect.lane]
        worst = worst_bill(self.lease.work, lane, self._.clock())
        self._.store.resolve(effect.uid, effect.choice, worst=worst, certain=lane.price.kind == "free")

    def admit(self, effect: steps.Admit) -> Admitted | NotNow:
        return admit(load(self._.store, effect.lane, 0), self._.clock())

    def record(self, effect: steps.Record) -> Recorded | Instead:
        self._.uids += 1
        lane = self._.policy.lane(effect.lane)
        recorded = self._.store.record(self.lease, f"a{self._.uids}", lane.name, lane.tier)
        if isinstance(recorded, Recorded):
            self.uid = recorded.uid
            self._.witness.recorded(recorded.uid, self.lease, self._.clock())
        return recorded

    def call(self, effect: steps.Call) -> Any:
        if self._is_waiting:
            return self._hear()
        now_ms = self._.clock()
        if now_ms - self.taken_ms >= self._.policy.lease_ms:
            return self._heard(Evidence(sent="no", said="retryable", code="lease_too_old"))
        plan = self._.plan(effect.lane)
        seen = evidence(plan, self.uid, self.lease.fingerprint, self._.rng)
        call = Call(self.uid, effect.lane, seen, ends_ms=now_ms + plan.takes_ms)
        self._.log("sent", self.uid, self.lease.idempotency_key, effect.lane, plan.kind, f"{plan.takes_ms} ms")
        self._.witness.sent(call)
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
        self._spool.clear(self.uid)
        self._.witness.delivered(self.uid, effect.ending)
        lease = None if self.detached else self.lease
        settled = self._.store.settle(self.uid, effect.ending, effect.then, lane=effect.lane, lease=lease)
        self._.log("settled", self.uid, effect.ending.outcome, "accepted" if settled.accepted else "")
        return None

    def _keep(self, effect: steps.Settle) -> None:
        self._.log("kept", self.uid, effect.ending.outcome)
        job = None if self.detached else fence(self.lease)
        self._spool.keep(Kept(self.uid, effect.lane, effect.ending, effect.then, job, self._.clock()))
        self._.witness.keep(self.uid, effect.ending)

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


PERFORM: dict[type[Any], Callable[[Flight, Any], Any]] = {
    steps.LookBack: Flight.look_back,
    steps.Resolve: Flight.resolve,
    steps.Admit: Flight.admit,
    steps.Record: Flight.record,
    steps.Call: Flight.call,
    steps.Detach: Flight.detach,
    steps.Listen: Flight.listen,
    steps.StopListening: Flight.stop_listening,
    steps.Settle: Flight.settle,
    steps.Give: Flight.give,
}


@dataclass(eq=False)
class Drainer:
    """A process: it lives, may be frozen, and may be taken for dead while it only sleeps."""

    ground: Ground
    owner: str = ""
    is_alive: bool = True
    frozen_ms: int = 0
    """When it was last frozen, and its beat stood still."""
    frozen_until_ms: int = 0
    flights: list[Flight] = field(default_factory=list[Flight])
    spool: Spool = field(init=False)
    left: list[str] = field(default_factory=list[str])
    """What stood in its spool when it died."""

    def __post_init__(self) -> None:
        self.owner = self.ground.owner()
        self.spool = Spool(self.ground.folder, self.owner, 8)
        self.spool.prepare()

    def is_awake(self) -> bool:
        """Whether it can do anything now."""
        return self.is_alive and self.frozen_until_ms <= self.ground.clock()

    def lease(self, most: int) -> int:
        """Lease into free slots, unless a reply waits to be written.

        An owner that finds itself dead takes a new name, and leases nothing this time.
        """
        if not self.spool.is_clear():
            return 0
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
            )
        except LeaseLost:
            self.owner = ground.owner()
            return 0
        self.flights += [Flight(ground, lease, self.spool) for lease in leases]
        return len(leases)

    def may_reclaim(self, other: Drainer) -> bool:
        """Whether another's lock is free, or its beat was watched standing still for a whole lease."""
        if other is self or not other.is_alive:
            return other is not self
        return not other.is_awake() and self.ground.clock() - other.frozen_ms >= self.ground.policy.lease_ms

    def kept(self) -> list[str]:
        """The attempts whose ends it could not write."""
        return self.left or [flight.uid for flight in self.flights if flight.uid in self.ground.witness.kept]

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
