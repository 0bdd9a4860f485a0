"""The row of an owner, as another program may leave it: reclaim takes leases back in the same transaction, so that only
by SQL an owner is dead and still holds one."""

from __future__ import annotations

import apsw

from millpond.testing.store_scene import Scene


def test_record_requires_a_living_row_whoever_holds_the_lease(scene: Scene, sql: apsw.Connection) -> None:
    lease = scene.take(scene.ask("k").job_id)
    sql.execute("UPDATE owner SET dead = 1 WHERE uuid = ?", (scene.worker,)).fetchall()
    with scene.lease_lost():
        scene.record(lease)
    assert scene.store.holds(lease), "it is reclaimed by whoever declared the owner dead, not by record"
