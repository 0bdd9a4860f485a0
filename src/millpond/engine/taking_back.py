"""Setting right what those left behind who are gone: first what they could not write, then what they held."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from millpond.engine.owner import forget, left_locks
from millpond.engine.spool import replay
from millpond.engine.watch import Watch
from millpond.rules.errors import QueueUnavailable
from millpond.store.reclaim import Reclaimed
from millpond.store.store import Store


def reclaim_dead(store: Store, folder: Path, *, max_leases_lost: int, watch: Watch | None = None) -> Reclaimed:
    """Take back what owners of this host held who are gone, after the replies that they left are written.

    Gone is whose lock is free, and whose beat `watch` has seen stand still for a lease. Without a watch, which is the
    memory of one who looks again and again, frozen owners are left alone.

    Safe at any time, by anybody, any number of times. Raises QueueBusy and QueueUnavailable, and takes nothing back of
    an owner whose replies cannot be written.
    """
    with _refusals(folder):
        replay(store, folder, only_left=True)
        total = Reclaimed()
        for owner in (watch or Watch(folder)).gone(store.living_owners()):
            total += take_back(store, folder, owner.uuid, max_leases_lost=max_leases_lost)
            forget(folder, owner.uuid)
    return total


def sweep(store: Store, folder: Path) -> None:
    """Delete lock files that are of no use: their owners are gone, and reclaimed, or never came into the table.

    Whoever reclaims an owner deletes its file last, and may die before that.
    """
    if left := left_locks(folder):  # first, so that whoever is enlisted by now is among the living
        for uuid in set(left) - {owner.uuid for owner in store.living_owners()}:
            forget(folder, uuid)


def take_back(store: Store, folder: Path, owner: str, *, max_leases_lost: int) -> Reclaimed:
    """Reclaim one owner, once the replies that it could not write are written: else their calls would be made again.

    In whichever spool: an owner that was given up before and has taken another name keeps to the one that it has.
    """
    with _refusals(folder):
        replay(store, folder)
    return store.reclaim(owner, max_leases_lost=max_leases_lost)


@contextmanager
def _refusals(folder: Path) -> Generator[None]:
    """Tell what the system refuses as what it is: trouble of this queue, which may be over the next time."""
    try:
        yield
    except OSError as problem:
        raise QueueUnavailable(
            f"{problem.filename or folder}: {problem.strerror or problem}; what others left is not taken back before "
            f"that is mended. Check owner and mode (`ls -l`)"
        ) from problem
