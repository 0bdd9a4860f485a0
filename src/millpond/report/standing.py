"""How they stand that may hold leases: what one look can know of each, which does not watch and so acts on nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from millpond.db.sqlite import SqliteDatabase
from millpond.engine.beat import sight
from millpond.engine.clock import awake_ms, boot_id
from millpond.engine.owner import is_dead, is_here, lock_file
from millpond.report.words import counted
from millpond.rules.job import OwnerRow
from millpond.rules.times import age_words
from millpond.store.store import Store


@dataclass(frozen=True, slots=True)
class Standing:
    """One owner. `still`: its last beat is older than its lease. `away`: on another machine.

    `hidden`: this user may not open its lock file, as where the owner ran as another.
    """

    owner: OwnerRow
    how: Literal["living", "still", "dead", "away", "hidden"]
    age_ms: int | None = None
    """Of its last beat, the machine's sleep left out; None where that cannot be known."""
    lease_ms: int = 0
    why: str = ""
    """That it is hidden."""

    def __str__(self) -> str:
        return f"pid {self.owner.pid} on {self.owner.host}"


@dataclass(frozen=True, slots=True)
class Stalled:
    """An owner that stands still, and what stands still with it."""

    standing: Standing
    jobs: frozenset[int]
    """What it has leased."""

    @property
    def pid(self) -> int:
        """Of its process."""
        return self.standing.owner.pid

    @property
    def age_ms(self) -> int:
        """Of its last beat."""
        return self.standing.age_ms or 0

    def in_words(self) -> str:
        """Who it is, and for how long it has done nothing."""
        does = "drains" if self.standing.owner.role == "drainer" else f"holds {counted(len(self.jobs), 'job')}"
        lease = age_words(self.standing.lease_ms)
        return f"{self.standing} {does}, but has stood still for {age_words(self.age_ms)} (its lease is {lease})"

    @property
    def next(self) -> str:
        """What a person can do."""
        return (
            f"kill -CONT {self.pid} if it was stopped; else kill -KILL {self.pid}, and millpond drain takes back what "
            "it held"
        )


def standing(folder: Path, owner: OwnerRow, now_ms: Callable[[], int] = awake_ms) -> Standing:
    """Look once. Of another boot, and so of another clock, nobody's beat is judged by its age."""
    if not is_here(owner):
        return Standing(owner, "away")
    try:
        if is_dead(folder, owner):
            return Standing(owner, "dead")
    except OSError as problem:
        return Standing(owner, "hidden", why=f"{problem.filename}: {problem.strerror}")
    seen = sight(lock_file(folder, owner.uuid))
    if seen is None or owner.boot_id != boot_id() or (age_ms := now_ms() - seen.at_ms) < 0:
        return Standing(owner, "living")
    return Standing(owner, "still" if age_ms > seen.lease_ms else "living", age_ms, seen.lease_ms)


def abandoned(store: Store) -> dict[int, OwnerRow]:
    """The jobs that a dead owner of this host still holds, each with that owner. Reads nothing else."""
    return {job: one.owner for one in _standings(store) if one.how == "dead" for job in _leased_by(store, one.owner)}


def elsewhere(store: Store) -> dict[int, OwnerRow]:
    """The jobs that owners of other machines hold, each with that owner. Only who watches learns whether these live."""
    return {job: one.owner for one in _standings(store) if one.how == "away" for job in _leased_by(store, one.owner)}


def whose(held: Mapping[int, OwnerRow]) -> str:
    """The processes that hold these jobs."""
    return ", ".join(sorted({f"pid {owner.pid} on {owner.host}" for owner in held.values()}))


def elsewhere_words(held: Mapping[int, OwnerRow]) -> str:
    """How much is held on other machines, by whom, and what becomes of that where they are gone."""
    return (
        f"{counted(len(held), 'job')} leased on another machine ({whose(held)}); if that is gone, a drain takes back "
        "what it held, once it has seen no beat of it for a lease"
    )


def at_work(store: Store) -> dict[int, OwnerRow]:
    """The jobs that owners of this host hold who are not known to be dead, each with that owner."""
    here = [one.owner for one in _standings(store) if one.how not in ("dead", "away")]
    return {job: owner for owner in here for job in _leased_by(store, owner)}


def unheard(store: Store) -> dict[str, OwnerRow]:
    """The calls to which a dead owner of this host is still said to listen, by uid, each with that owner."""
    dead = [one.owner for one in _standings(store) if one.how == "dead"]
    return {
        row.uid: owner
        for owner in dead
        for row in store.db.read(lambda tx, uuid=owner.uuid: tx.all("listened_by", owner=uuid))
    }


def stalled(store: Store) -> list[Stalled]:
    """Who stands still with something in hand: a drain, or a worker with jobs. An idle one keeps nobody waiting."""
    found = [Stalled(one, _leased_by(store, one.owner)) for one in _standings(store) if one.how == "still"]
    return [one for one in found if one.jobs or one.standing.owner.role == "drainer"]


def hidden(store: Store) -> list[Standing]:
    """Whose lock file this user may not open, so that nobody knows whether they live."""
    return [one for one in _standings(store) if one.how == "hidden"]


def _standings(store: Store) -> list[Standing]:
    if not isinstance(store.db, SqliteDatabase):
        return []
    folder = store.db.lock_folder
    return [standing(folder, owner) for owner in store.living_owners()]


def _leased_by(store: Store, owner: OwnerRow) -> frozenset[int]:
    return frozenset(row.id for row in store.db.read(lambda tx: tx.all("leased_by", owner=owner.uuid)))
