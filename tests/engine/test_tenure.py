"""A drain that slept: it takes a new name, sends nothing under the old one, and loses no call that is under way."""

from __future__ import annotations

import asyncio

from mill_of_one import Mill, during, free

from millpond.engine.drain import Until
from millpond.testing import FakeClock
from millpond.testing.promises import check_promises

LEASE_MS = 60_000


def living(mill: Mill) -> list[str]:
    return [owner.uuid for owner in mill.store.living_owners()]


async def renamed(mill: Mill, old: str) -> None:
    """Until the drain has a new name. It looks every second."""
    while mill.owner.uuid == old:  # noqa: ASYNC110  # nobody is told of it but the log
        await asyncio.sleep(0.01)


def test_a_drain_that_slept_leases_under_a_new_name(mill: Mill) -> None:
    clock = FakeClock()
    mill.ask("a", "b")
    drainer = mill.drainer(free(), beat_ms=clock)
    old = mill.owner.uuid
    clock.advance(LEASE_MS)
    assert asyncio.run(drainer.run()).done == 2
    assert (living(mill) == [mill.owner.uuid], mill.owner.uuid == old) == (True, False)
    assert {row.owner for row in mill.store.attempts()} == {mill.owner.uuid}


def test_a_drain_that_was_given_up_in_its_sleep_goes_on_under_a_new_name(mill: Mill) -> None:
    """It may not even know that it slept."""
    [job] = mill.ask("a")
    drainer = mill.drainer(free())
    old = mill.owner.uuid
    mill.store.reclaim(old)
    assert asyncio.run(drainer.run()).done == 1
    assert (mill.state(job), living(mill) == [mill.owner.uuid], mill.owner.uuid == old) == ("done", True, False)


def test_a_call_under_way_goes_on_under_the_new_name_and_is_paid_for_once(mill: Mill) -> None:
    clock = FakeClock()
    lane = free()
    lane.hold()
    [job] = mill.ask("a")
    drainer = mill.drainer(lane, beat_ms=clock)
    old = mill.owner.uuid

    async def sleep() -> None:
        await lane.began()
        clock.advance(LEASE_MS)
        await renamed(mill, old)
        mill.store.reclaim(old)  # too late: whoever saw it sleep writes so only now
        lane.let_go()

    assert asyncio.run(during(drainer.run(), sleep)).done == 1
    assert (mill.state(job), mill.ledger(), len(lane.calls)) == ("done", [("free", "ok", None)], 1)
    check_promises(mill.store)


def test_a_call_of_a_drain_that_was_given_up_still_answers(mill: Mill) -> None:
    """Others hold its job by then, and are told that it is answered."""
    clock = FakeClock()
    lane = free(max_in_flight=1)
    lane.hold()
    [job] = mill.ask("a")
    drainer = mill.drainer(lane, beat_ms=clock)
    old = mill.owner.uuid

    async def sleep() -> None:
        await lane.began()
        mill.store.reclaim(old)
        clock.advance(LEASE_MS)
        await renamed(mill, old)
        assert mill.state(job) == "ready"
        lane.let_go()
        await mill.hears("done")
        drainer.stop()

    assert asyncio.run(during(drainer.run(Until(daemon=True)), sleep)).done == 1
    assert (mill.state(job), mill.ledger(), len(lane.calls)) == ("done", [("free", "ok", "late")], 1)
    check_promises(mill.store)


def test_nothing_leaves_under_a_name_whose_beat_is_old(mill: Mill) -> None:
    """It sleeps right after its first ledger row: the lease is young, the beat is not."""
    lane = free()
    mill.ask("a")
    drainer = mill.drainer(lane, beat_ms=lambda: LEASE_MS if mill.ledger() else 0)
    asyncio.run(drainer.run())
    assert [outcome for _, outcome, _ in mill.ledger()] == ["retryable", "ok"]
    assert next(row.code for row in mill.store.attempts()) == "lease_too_old"
    assert len(lane.calls) == 1
    mill.owner.leave()  # its clock reads the store, which is closed after the test


def test_o05_a_drain_whose_owner_file_was_deleted_takes_a_new_name(mill: Mill) -> None:
    lane = free()
    lane.hold()
    mill.ask("a")
    drainer = mill.drainer(lane, lease_ms=600)
    old = mill.owner.uuid

    async def delete() -> None:
        await lane.began()
        (mill.folder / "owners" / f"{old}.lock").unlink()
        await renamed(mill, old)
        lane.let_go()

    assert asyncio.run(during(drainer.run(), delete)).done == 1
    assert (mill.ledger(), len(lane.calls)) == ([("free", "ok", None)], 1)


def test_an_idle_drain_that_slept_takes_a_new_name_before_work_comes(mill: Mill) -> None:
    clock = FakeClock()
    drainer = mill.drainer(free(), beat_ms=clock)
    old = mill.owner.uuid

    async def sleep() -> None:
        clock.advance(LEASE_MS)
        await renamed(mill, old)
        mill.ask("a")
        await mill.hears("done")
        drainer.stop()

    assert asyncio.run(during(drainer.run(Until(daemon=True)), sleep)).done == 1
