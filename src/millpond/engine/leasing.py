"""What a drain takes from the queue, and under which name: what its lanes have room for, and what is ready or due."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from millpond.engine.happening import Happening
from millpond.engine.scribe import Scribe
from millpond.engine.tab import Tab
from millpond.engine.tenure import Tenure
from millpond.lanes.lane import Lane
from millpond.rules.admission import LaneLoad, room
from millpond.rules.effects import UNROUTED
from millpond.rules.errors import LeaseLost
from millpond.rules.policy import Policy
from millpond.rules.router import route_work
from millpond.rules.stops import Stop, stop_of
from millpond.store.lanes import LaneRow, load_of
from millpond.store.lease import Taken, lease, unroute
from millpond.store.reclaim import succeed
from millpond.store.store import Store

UNROUTE_ROWS = 500
"""Rows of a lane that the drain does not have, looked at in one go."""

log = logging.getLogger("millpond.engine")


@dataclass(frozen=True, slots=True)
class Room:
    """For how many jobs there is room, of each lane and in all, as of `now_ms`."""

    lanes: Mapping[str, int]
    limit: int
    now_ms: int


class Leasing:
    """The hand of one drain that takes jobs. Of one event loop."""

    def __init__(
        self,
        store: Store,
        scribe: Scribe,
        policy: Policy,
        lanes: Mapping[str, Lane],
        owner: Tenure,
        tab: Tab,
        *,
        registry: Mapping[str, Any] | None,
        tell: Callable[[Happening], None],
    ) -> None:
        """`policy` routes; `lanes` are those of it that this drain has, work for the others is left to wait for them.

        `owner` is the name under which it leases; after a sleep it takes a new one.
        """
        self._store = store
        self._scribe = scribe
        self._policy = policy
        self._lanes = lanes
        self._owner = owner
        self._tab = tab
        self._registry = registry
        self._tell = tell
        self._serial = [name for name in lanes if policy.lanes[name].serial]
        self._looked_at: dict[str, int] = {}
        self._closed: dict[str, LaneRow] = {}
        self.stopped: dict[str, Stop] = {}
        """Those of its lanes that a person has stopped, by the last look."""
        self._naming = asyncio.Lock()

    async def look(self, most: int | None) -> Room | None:
        """Whether there is anything to take, `most` jobs at most: then for how many jobs there is room."""
        self._closed = await self._scribe.look(self._store.closed_lanes)
        self._heed_stops(await self._scribe.look(self._store.stops))
        now_ms = self._store.now_ms()
        free = {
            name: room(lane.policy, self._load(name), now_ms)
            for name, lane in self._lanes.items()
            if name not in self.stopped
        }
        limit = sum(free.values()) if most is None else min(sum(free.values()), most)
        has_room = {name for name, slots in free.items() if slots and limit > 0}
        ready = set(await self._scribe.look(self._store.ready_lanes))
        for lane in ready - self._lanes.keys() - {UNROUTED}:
            ready |= await self._unroute(lane)
        if not ready & {UNROUTED, *has_room} and not await self._scribe.look(self._is_due):
            return None
        return Room(free, max(limit, 0), now_ms)

    async def stand(self) -> None:
        """See to it that nobody can have given up the name under which it leases."""
        if not self._owner.stands():
            await self._take_new_name(self._owner.uuid)

    async def take(self, room: Room) -> Taken | None:
        """Lease what ranks first. None: others had given this drain up; it has a new name now, and may look again."""
        name = self._owner.uuid
        try:
            return await self._scribe.write(
                partial(
                    lease,
                    owner=name,
                    room=room.lanes,
                    limit=room.limit,
                    now_ms=room.now_ms,
                    wake_rows=self._policy.wake_chunk_rows,
                    fair_every=self._policy.fair_every,
                    route=partial(route_work, policy=self._policy),
                    registry=self._registry,
                    serial=self._serial,
                    free_lanes=self._policy.free_lanes,
                ),
                full=False,
            )
        except LeaseLost:  # it slept, and others gave it up
            await self._take_new_name(name)
            return None

    def look_everywhere(self) -> None:
        """Jobs are back where they were, perhaps behind what was looked at there."""
        self._looked_at.clear()

    def next_ms(self) -> int | None:
        """When the clock alone brings something: a job that is due, a lane with ready work that opens again.

        Ready work of an open lane is not among it: it is leased already, or waits for a slot, whose end wakes us.
        """
        due = self._store.next_due_ms()
        opening = [
            row.closed_until_ms
            for name, row in self._closed.items()
            if name in self._lanes
            and name not in self.stopped
            and row.closed_until_ms is not None
            and self._store.any_ready(name)
        ]
        unrouted = [self._store.now_ms()] if self._store.any_ready(UNROUTED) else []
        return min([*([due] if due is not None else []), *opening, *unrouted], default=None)

    async def _take_new_name(self, old: str) -> None:
        """Others may have given this drain up, or have: what it does from now on it does under a new name.

        Calls under way go on. Their replies count by their keys, whoever holds the jobs by then.
        """
        async with self._naming:
            if self._owner.uuid != old:
                return
            with self._owner.renewing() as heir:
                kept = await self._scribe.write(partial(succeed, old=old, heir=heir, now_ms=self._store.now_ms()))
        became = "its calls go on" if kept else "others have taken its work back"
        log.warning("this drain slept for its lease, or its lock file was deleted; it has a new name, and %s", became)

    async def _unroute(self, lane: str) -> set[str]:
        """Send work of a lane that this drain does not have back to be routed: what came since we last looked.

        What no lane of this drain may serve comes back to where it was, and is not looked at a second time.
        """
        after = self._looked_at.get(lane, 0)
        last = await self._scribe.write(partial(unroute, lane=lane, after=after, limit=UNROUTE_ROWS), full=False)
        self._looked_at[lane] = last
        return {UNROUTED} if last > after else set()

    def _is_due(self) -> bool:
        """Whether a waiting job's time has come: asked before a lease, so that an idle drainer writes nothing."""
        due = self._store.next_due_ms()
        return due is not None and due <= self._store.now_ms()

    def _load(self, lane: str) -> LaneLoad:
        return load_of(self._tab.lanes[lane].in_flight, self._closed.get(lane))

    def _heed_stops(self, stops: Sequence[Stop]) -> None:
        """Note which of our lanes a person has stopped, and tell of what is new in that."""
        before = self.stopped
        found = {name: stop_of(stops, name, self._policy.free_lanes) for name in self._lanes}
        self.stopped = {name: stop for name, stop in found.items() if stop is not None}
        for name in self._lanes:
            if name in self.stopped and name not in before:
                self._tell(Happening("stopped", None, name, f"a person has stopped {self.stopped[name].words}"))
            elif name in before and name not in self.stopped:
                self._tell(Happening("resumed", None, name, ""))
