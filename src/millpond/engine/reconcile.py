"""Setting right what the dead left behind. Late replies by recall and unposted charges come with the safety issue."""

from __future__ import annotations

from pathlib import Path

from millpond.engine.owner import forget
from millpond.engine.watch import Watch
from millpond.store.reclaim import Reclaimed
from millpond.store.store import Store


def reclaim_dead(store: Store, folder: Path, *, max_leases_lost: int, watch: Watch | None = None) -> Reclaimed:
    """Take back what owners of this host held who are gone. Safe at any time, by anybody, any number of times.

    Gone is whose lock is free, and whose beat `watch` has seen stand still for a lease. Without a watch, which is the
    memory of one who looks again and again, frozen owners are left alone.
    """
    total = Reclaimed()
    for owner in (watch or Watch(folder)).gone(store.living_owners()):
        total += store.reclaim(owner.uuid, max_leases_lost=max_leases_lost)
        forget(folder, owner)
    return total
