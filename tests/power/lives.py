"""What is done to a store before the power fails: small histories by intent, long ones by chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from uuid import uuid4

from disk import Disk
from watched import FILE, Commit, Watched, left, look

from millpond.rules.effects import ACCEPT, Then
from millpond.rules.errors import KeyConflict, LeaseLost
from millpond.rules.job import Lease, OwnerRow
from millpond.store.store import Store, open_sqlite
from millpond.testing.store_scene import A_DAY_MS, Scene, asked

History = Callable[[Scene], object]


def enqueue(scene: Scene) -> None:
    """New, joined, reused and fresh; one by one, many at once."""
    scene.answered("a")
    scene.ask("a")
    scene.ask("b", priority=1)
    scene.ask("b")
    scene.ask_many(*(asked(f"many {n}") for n in range(3)))
    scene.ask("a", max_age_ms=-1)


def record(scene: Scene) -> None:
    """Rows of the ledger, before anything is heard."""
    scene.in_flight("a")
    scene.in_flight("b")


def settle(scene: Scene) -> None:
    """Every kind of end."""
    scene.answered("a", "x" * 20_000)
    scene.failed("b")
    lease, uid = scene.in_flight("c")
    scene.settle(uid, "ambiguous", Then("ask"), lease=lease)
    lease, uid = scene.in_flight("d")
    scene.settle(uid, "ambiguous", Then("release"), lease=lease)
    scene.settle(uid, "late but good")


def cancel(scene: Scene) -> None:
    """Jobs at rest and in flight, for all and for some who asked."""
    scene.cancel(scene.ask("a").job_id)
    lease, uid = scene.in_flight("b")
    scene.cancel(lease.job_id, hold_ms=1_000)
    scene.settle(uid, "after the cancel")
    first, second = scene.ask("c"), scene.ask("c")
    scene.cancel(first.job_id, submissions=[second.submission_id])


def retry(scene: Scene) -> None:
    """What failed, and what was cancelled, is asked again."""
    scene.retry(scene.failed("a"), granted=1)
    job_id = scene.ask("b").job_id
    scene.cancel(job_id)
    scene.retry(job_id)


def detach(scene: Scene) -> None:
    """A soft timeout; its hold ends."""
    lease, uid = scene.in_flight("a")
    scene.store.detach(uid, lease, 1_000)
    scene.store.stop_listening(uid)


def resolve(scene: Scene) -> None:
    """A call whose end is unknown, and what the policy says."""
    calls = [(*scene.in_flight(key), choice) for key, choice in (("a", "pin"), ("b", "fail"))]
    for lease, uid, choice in calls:
        scene.settle(uid, "ambiguous", Then("ask"), lease=lease)
        scene.store.resolve(uid, choice)


def reclaim(scene: Scene) -> None:
    """An owner dies with one job leased and another in flight."""
    scene.in_flight("a")
    scene.ask("b")
    scene.lease(1)
    scene.store.reclaim(scene.worker)


def enlist(scene: Scene) -> None:
    """Owners begin, and take new names: what they reserve in the book is theirs to take back only as long as they are
    known."""
    for n in range(3):
        scene.owner(f"owner {n}")
    scene.store.succeed("owner 1", OwnerRow("heir", "worker", "host", 1, "boot", scene.now_ms))
    scene.owner("last")


def give(scene: Scene) -> None:
    """Jobs are given back, and given up."""
    scene.ask("a")
    scene.store.give(scene.take(), Then("release"))
    scene.store.give(scene.take(), Then("fail", reason="no lane will do"))
    scene.answered("b")


def checkpoint(scene: Scene) -> None:
    """The log is brought into the file and begun anew, more than once."""
    for n in range(3):
        scene.answered(f"key {n}", "x" * 9_000)
        assert scene.store.db.checkpoint()  # type: ignore[attr-defined]
    scene.ask("last")


DIRECTED: Mapping[str, History] = {
    history.__name__: history
    for history in (enqueue, record, settle, cancel, retry, detach, resolve, reclaim, enlist, give, checkpoint)
}  # fmt: skip


def run(
    disk: Disk,
    *histories: History,
    scene: Scene | None = None,
    durable: bool = True,
    weak: str = "",
) -> tuple[Scene, list[Commit]]:
    """Do histories to the store on a disk, new or left by an earlier cut, the file closed and opened between two.

    Returns the scene, for its clock, and what was acknowledged. `weak` names a verb that is committed as if it might be
    lost.
    """
    commits: list[Commit] = []

    def make(now_ms: Callable[[], int]) -> Store:
        database = open_sqlite(disk.folder / FILE, durable=durable)
        return Store(Watched(database, disk, commits, weak=weak), now_ms)  # type: ignore[arg-type]

    with disk.mounted():
        if FILE in disk.before:
            commits.append(left(look(disk.folder / FILE)))
        for history in histories:
            if scene is None:
                scene = Scene(make)
            else:
                scene.store = make(scene.clock)
                scene.worker = new_owner(scene)
            try:
                history(scene)
            finally:
                scene.store.close()
    assert scene is not None, "no history was given"
    return scene, commits


def new_owner(scene: Scene) -> str:
    """One that never was."""
    return scene.owner(uuid4().hex)


def by_chance(chance: Random, moves: int) -> History:
    """A long history: whatever may be asked of a store, in any order, late and twice."""

    def storm(scene: Scene) -> None:
        keys = [f"key {n}" for n in range(6)]
        leases: list[Lease] = []
        calls: list[tuple[str, Lease]] = []
        jobs: list[int] = []

        def ask() -> None:
            key = chance.choice(keys)
            with suppress(KeyConflict):
                wishes = {"max_age_ms": -1} if chance.random() < 0.2 else {}
                jobs.append(scene.ask(key, work=key + chance.choice(("", "", "", "!")), **wishes).job_id)

        def ask_many() -> None:
            jobs.extend(one.job_id for one in scene.ask_many(*(asked(chance.choice(keys)) for _ in range(4)))
                        if not isinstance(one, KeyConflict))  # fmt: skip

        def lease() -> None:
            leases.extend(scene.lease(chance.randint(1, 3), owner=scene.worker))

        def record() -> None:
            if leases:
                one = chance.choice(leases[-4:])
                with suppress(LeaseLost):
                    uid = scene.record(one)
                    if uid is not None:
                        calls.append((uid, one))

        def settle() -> None:
            if calls:
                uid, one = chance.choice(calls[-4:])
                good = "x" * chance.choice((10, 3_000, 40_000))
                end = chance.choice((good, good, "retryable", "ambiguous", "permanent", "unusable"))
                then = ACCEPT if end == good else chance.choice(
                    (Then("release"), Then("back_off", delay_ms=30), Then("fail", reason="no"), Then("ask"))
                )  # fmt: skip
                then = Then("release") if end == "ambiguous" else then
                with suppress(LeaseLost):
                    scene.settle(uid, end, then, lease=one)

        def detach() -> None:
            if calls:
                uid, one = chance.choice(calls[-4:])
                scene.store.detach(uid, one, 1_000)

        def resolve() -> None:
            if calls:
                scene.store.resolve(chance.choice(calls[-4:])[0], chance.choice(("pin", "same", "fail")))

        def cancel() -> None:
            if jobs:
                scene.cancel(chance.choice(jobs), hold_ms=chance.choice((0, 1_000)))

        def retry() -> None:
            if jobs:
                scene.retry(chance.choice(jobs), granted=1)

        def give() -> None:
            if leases:
                with suppress(LeaseLost):
                    scene.store.give(chance.choice(leases[-4:]), Then("release"))

        def die() -> None:
            scene.store.reclaim(scene.worker)
            scene.worker = new_owner(scene)

        def checkpoint() -> None:
            scene.store.db.checkpoint()  # type: ignore[attr-defined]

        def wait() -> None:
            scene.clock.advance(chance.choice((1, 50, 2_000, A_DAY_MS)))

        often = (ask, lease, record, settle)
        moves_made = (ask_many, detach, resolve, cancel, retry, give, die, checkpoint, wait, *often * 5)
        for _ in range(moves):
            chance.choice(moves_made)()

    return storm


def folder_of(path: Path, name: str) -> Path:
    """A new folder, its real path."""
    folder = path.resolve() / name
    folder.mkdir(parents=True)
    return folder
