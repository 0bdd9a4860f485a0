"""Who stands still, as one look can know it: told by status, doctor and explain, where it is known."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator

import pytest
from beside_no_book import build

from millpond.db.sqlite import SqliteDatabase
from millpond.engine.clock import awake_ms, boot_id
from millpond.engine.drain_lock import Holder
from millpond.engine.lock import Lock
from millpond.engine.owner import lock_file
from millpond.report.explain import explain
from millpond.report.standing import stalled, standing
from millpond.rules.job import OwnerRow
from millpond.rules.policy import LanePolicy, Policy
from millpond.testing.store_scene import Scene

LEASE_MS = 60_000
HERE = socket.gethostname()
POLICY = Policy(lanes={"free": LanePolicy("free")})
DRAINER = Holder(os.getpid(), HERE, 1_800_000_000_000)

Frozen = Callable[..., OwnerRow]


@pytest.fixture
def frozen(scene: Scene) -> Iterator[Frozen]:
    """Makes owners that hold their locks, and whose last beat was so long ago."""
    locks: list[Lock] = []

    def make(role: str, still_ms: int, boot: str = boot_id()) -> OwnerRow:
        assert isinstance(scene.store.db, SqliteDatabase)
        row = OwnerRow(f"frozen-{len(locks)}", role, HERE, 4242, boot, scene.now_ms)
        locks.append(Lock(lock_file(scene.store.db.lock_folder, row.uuid)))
        assert locks[-1].take(f"{7:020} {awake_ms() - still_ms:020} {LEASE_MS} {row.uuid}\n")
        scene.store.enlist(row)
        return row

    yield make
    for lock in locks:
        lock.release()


def test_a_drain_that_stands_still_for_longer_than_its_lease_is_an_alert(scene: Scene, frozen: Frozen) -> None:
    frozen("drainer", LEASE_MS + 10_000)
    found = build(scene.store, POLICY, DRAINER)
    [alert] = found.alerts
    assert (alert.name, alert.limit) == ("stands_still_s:4242", 60.0)
    assert 70 <= alert.value < 90
    assert scene.now_ms - 30_000 < alert.since_ms <= scene.now_ms - 10_000
    [need] = found.needs_you
    assert need.words == f"pid 4242 on {HERE} drains, but has stood still for 1 m (its lease is 1 m)"
    assert "kill -CONT 4242" in need.next


def test_a_beat_within_its_lease_is_no_alert(scene: Scene, frozen: Frozen) -> None:
    frozen("drainer", LEASE_MS - 10_000)
    assert build(scene.store, POLICY, DRAINER).alerts == ()


def test_a_worker_that_stands_still_is_told_of_if_it_holds_a_job(scene: Scene, frozen: Frozen) -> None:
    worker = frozen("worker", 2 * LEASE_MS)
    assert stalled(scene.store) == []
    scene.ask("a", lane="free")
    scene.store.lease(worker.uuid, {"free": 1}, 1)
    [one] = stalled(scene.store)
    assert one.in_words() == f"pid 4242 on {HERE} holds 1 job, but has stood still for 2 m (its lease is 1 m)"
    [line, *_] = explain(scene.store, POLICY, 1, scene.now_ms, None).splitlines()
    assert line.startswith(f"job 1 is leased, but {one.in_words()}")


def test_a_job_that_waits_for_a_drain_that_stands_still_says_so(scene: Scene, frozen: Frozen) -> None:
    scene.ask("a", lane="free")
    frozen("drainer", 2 * LEASE_MS)
    [line, *_] = explain(scene.store, POLICY, 1, scene.now_ms, DRAINER).splitlines()
    assert "drains, but has stood still for 2 m" in line


@pytest.mark.parametrize("still_ms", [2 * LEASE_MS, -2 * LEASE_MS])
def test_a_beat_of_another_clock_is_not_judged(scene: Scene, frozen: Frozen, still_ms: int) -> None:
    """Of another boot, or ahead of us, as where a container has a clock of its own."""
    row = frozen("drainer", still_ms, boot="another boot" if still_ms > 0 else boot_id())
    assert isinstance(scene.store.db, SqliteDatabase)
    found = standing(scene.store.db.lock_folder, row)
    assert (found.how, found.age_ms) == ("living", None)
    assert build(scene.store, POLICY, DRAINER).alerts == ()


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_call_whose_listener_has_died_is_not_said_to_be_listened_to(scene: Scene, cancelled: bool) -> None:
    """Soft timeout, or cancelled in flight and asked for again: the next job of the key is held either way."""
    scene.store.enlist(OwnerRow("gone", "drainer", HERE, 4242, "an earlier boot", scene.now_ms))
    lease, uid = scene.in_flight("a", owner="gone")
    if cancelled:
        scene.cancel(lease.job_id, hold_ms=600_000)
        scene.ask("a")
    else:
        scene.store.detach(uid, lease, 600_000)
    job = scene.ask("a").job_id
    [line, *_] = explain(scene.store, POLICY, job, scene.now_ms, None).splitlines()
    assert "its listener has died; the next drain takes it back: run `millpond drain` (it was pid 4242)" in line
    assert "listened to" not in line
    [need] = build(scene.store, POLICY, None).needs_you
    assert (need.name, need.next) == ("unheard", "millpond drain")
    assert need.words == "1 call of unknown end, but its listener has died; the next drain ends its hold"
    [line, *_] = explain(scene.store, POLICY, job, scene.now_ms, DRAINER).splitlines()
    assert f"its listener has died; {DRAINER} drains and takes it back" in line
    assert build(scene.store, POLICY, DRAINER).needs_you == ()
