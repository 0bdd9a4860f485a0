"""Workers that died with jobs in hand: what they held stays leased until a drain takes it back."""

from __future__ import annotations

from millpond.db.sqlite import SqliteDatabase
from millpond.engine.owner import is_dead
from millpond.rules.job import OwnerRow
from millpond.store.store import Store


def abandoned(store: Store) -> dict[int, OwnerRow]:
    """The jobs that a dead owner of this host still holds, each with that owner. Reads nothing else."""
    if not isinstance(store.db, SqliteDatabase):
        return {}
    held: dict[int, OwnerRow] = {}
    for owner in store.living_owners():
        if is_dead(store.db.lock_folder, owner):
            rows = store.db.read(lambda tx, uuid=owner.uuid: tx.all("leased_by", owner=uuid))
            held.update((row.id, owner) for row in rows)
    return held
