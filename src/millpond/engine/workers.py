"""Workers of one's own: lease, record, make the call, settle. This process becomes an owner at its first lease."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from millpond.engine.owner import Owner
from millpond.engine.reconcile import reclaim_dead
from millpond.lanes.handler import raised, returned
from millpond.rules.errors import LeaseLost, UsageError
from millpond.rules.job import Lease, Reply
from millpond.rules.journey import ACCEPT, Heard, Recorded, Then, end, verdict
from millpond.rules.outcome import Evidence
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.router import Step, lanes_for, next_lane, route_work
from millpond.store.ledger import lost
from millpond.store.store import Store

NO_JITTER = 0.0
"""A worker's backoff is not spread: chance is drawn by the drainer only."""


class Workers:
    """The worker protocol over one store. Thread-safe; its owner lives as long as this process or until `leave`."""

    def __init__(self, store: Store, folder: Path, policy: Policy, registry: Mapping[str, Any] | None) -> None:
        self._store = store
        self._folder = folder
        self._policy = policy
        self._registry = registry
        self._owner: Owner | None = None
        self._owning = threading.Lock()

    def lease(self, n: int, *, lanes: Iterable[str] | None = None, owner: str | None = None) -> list[Lease]:
        """Lease up to n jobs. `lanes` are names (None: all of the policy); `owner` another living owner's uuid.

        What dead owners of this host held is taken back first. Raises UnknownLane, LeaseLost for a dead `owner`.
        """
        names = list(lanes) if lanes is not None else list(self._policy.lanes)
        room = {self._policy.lane(name).name: n for name in names}
        reclaim_dead(self._store, self._folder, max_leases_lost=self._policy.max_leases_lost)
        return self._store.lease(
            owner or self._own(),
            room or {"": n},
            n,
            wake_rows=self._policy.wake_chunk_rows,
            fair_every=self._policy.fair_every,
            route=partial(route_work, policy=self._policy) if room else None,
            registry=self._registry,
            serial=[lane.name for lane in self._policy.lanes.values() if lane.serial],
        )

    def record(self, lease: Lease, lane: str | None = None) -> str | None:
        """Write the ledger row before the call and return its attempt uid.

        None: send nothing, the job was answered or held instead. Raises LeaseLost.
        """
        name = lane or lease.lane
        recorded = self._store.record(lease, uuid4().hex, name, self._lane(name).tier)
        return recorded.uid if isinstance(recorded, Recorded) else None

    def settle(self, lease: Lease, attempt: str, said: Any) -> bool:
        """End an attempt with what its call gave: a Reply, text, JSON-able data, or an exception.

        Returns whether it answers the key now. Retryable, Saturated, Ambiguous and Permanent say how the call ended;
        any other exception is ambiguous on a lane with effects, else retryable. The end is written whoever holds the
        job by now; raises LeaseLost, afterwards, if that is no longer this lease: `accepted` says whether a good reply
        counted all the same.
        """
        lane = self._lane_of(attempt)
        ending = end(Heard(_evidence(said, lease, lane), self._store.now_ms(), NO_JITTER), lane, self._policy)
        tried = self._store.look_back(lease).past.tried
        order = lanes_for(lease.work, lease.route, self._policy, lease.wished_lane) or (lane.name,)
        step = next_lane(tried, self._policy, order, lane.name)
        tries = step.tries if isinstance(step, Step) else 0
        then = verdict(ending, tried, self._policy, order, Step(lane.name, tries), NO_JITTER)
        settled = self._store.settle(attempt, ending, then, lane=lane.name, lease=lease)
        if not settled.moved:
            raise LeaseLost(lost(lease), accepted=settled.accepted)
        return settled.accepted

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
        ending = end(Heard(returned(reply, None), self._store.now_ms(), NO_JITTER), lane, self._policy)
        return self._store.settle(attempt, ending, ACCEPT, lane=lane.name, lease=None).accepted

    def leave(self) -> None:
        """Stop being an owner. What is still held under a lease is others' from here on."""
        with self._owning:
            owner, self._owner = self._owner, None
            if owner is not None and owner.row.pid == os.getpid():
                try:
                    self._store.reclaim(owner.uuid, died=False)
                finally:
                    owner.leave()

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

    def _lane(self, name: str) -> LanePolicy:
        """A worker may bring lanes that no policy names: such a one is a callable of unknown price."""
        return self._policy.lanes.get(name) or LanePolicy(name, kind="callable")


def _evidence(said: Any, lease: Lease, lane: LanePolicy) -> Evidence:
    if isinstance(said, BaseException):
        return raised(said)
    return returned(said, lease.work)
