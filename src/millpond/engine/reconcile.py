"""Setting right what the dead left behind. Late replies by recall and unposted charges come with the safety issue."""

from __future__ import annotations

from pathlib import Path

from millpond.engine.owner import forget, is_dead
from millpond.store.reclaim import Reclaimed
from millpond.store.store import Store


def reclaim_dead(store: Store, folder: Path, *, max_leases_lost: int) -> Reclaimed:
    """Take back what owners of this host held whose lock is free. Safe at any time, by anybody, any number of times."""
    total = Reclaimed()
    for owner in store.living_owners():
        if is_dead(folder, owner):
            one = store.reclaim(owner.uuid, max_leases_lost=max_leases_lost)
            forget(folder, owner)
            total = Reclaimed(total.released + one.released, total.ambiguous + one.ambiguous, total.failed + one.failed)
    return total
