"""Holding a queue to drain it: the drain lock, an owner's row, what the dead left; and giving all of it back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millpond.engine.drain import Drainer, Until
from millpond.engine.owner import DrainLock, Owner
from millpond.engine.perform import Happening
from millpond.engine.reconcile import reclaim_dead
from millpond.lanes.lane import Lane
from millpond.report.summary import Summary
from millpond.rules.errors import LockHeld
from millpond.rules.policy import Policy
from millpond.store.store import Store


@contextmanager
def draining(
    store: Store,
    folder: Path,
    policy: Policy,
    lanes: Mapping[str, Lane],
    *,
    registry: Mapping[str, Any] | None = None,
    tell: Callable[[Happening], None] | None = None,
) -> Generator[Drainer]:
    """A Drainer that holds the drain lock of a queue, whose locks stand in `folder`. Raises LockHeld."""
    lock = DrainLock(folder)
    lock.take(store.now_ms())
    tend = partial(reclaim_dead, store, folder, max_leases_lost=policy.max_leases_lost)
    owner: Owner | None = None
    try:
        tend()
        owner = Owner(folder, "drainer", store.now_ms())
        store.enlist(owner.row)
        yield Drainer(store, policy, lanes, owner.uuid, registry=registry, tell=tell, tend=tend, may_lease=lock.stands)
    finally:
        try:
            if owner is not None:
                store.reclaim(owner.uuid, died=False)
        finally:  # whatever the database says, this process neither drains nor owns any more
            if owner is not None:
                owner.leave()
            lock.release()


def run(drainer: Drainer, until: Until) -> Summary:
    """Run a drainer to its end: on this thread, or on one of its own where a loop already runs on this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(drainer.run(until))
    with ThreadPoolExecutor(1, thread_name_prefix="millpond-drain") as thread:
        return thread.submit(lambda: asyncio.run(drainer.run(until))).result()


def not_drained(store: Store, held: LockHeld) -> Summary:
    """The Summary of a drain that could not begin, since somebody else drains: what is left, and who that is."""
    counts = store.counts()
    return Summary(
        reason="lock_held",
        holder=held.holder,
        waiting=counts["waiting"],
        held=counts["held"],
        ready=counts["ready"],
        offloaded=counts["offloaded"],
        next_due_ms=store.next_due_ms(),
    )
