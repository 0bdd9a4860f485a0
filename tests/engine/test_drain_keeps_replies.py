"""A drain whose queue takes no write for a while: what its calls brought is written in the end, nothing is leased."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from mill_of_one import Mill, during, free, paid

from millpond.engine import drain, perform, scribe
from millpond.engine.drain import Until
from millpond.report.summary import Summary
from millpond.rules.errors import QueueUnavailable
from millpond.rules.evidence import Evidence
from millpond.rules.job import Reply
from millpond.testing.scripted_lane import Held, ScriptedLane

LONG = Reply("an answer that needs pages of its own " * 2_000)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "RETRY_S", 0.02)
    monkeypatch.setattr(drain, "RETRY_S", 0.02)


@pytest.fixture
def disk(mill: Mill) -> Iterator[Disk]:
    disk = Disk(mill)
    yield disk
    disk.has_room()


class Disk:
    """The database may have no page more than it has (PRAGMA max_page_count), until there is room."""

    def __init__(self, mill: Mill) -> None:
        self._connection: Any = mill.store.db._connection  # type: ignore[attr-defined] # pyright: ignore

    def is_full(self) -> None:
        with self._connection.lock:
            self._connection.run(f"PRAGMA max_page_count = {self._connection.value('PRAGMA page_count')}")

    def has_room(self) -> None:
        with self._connection.lock:
            self._connection.run("PRAGMA max_page_count = 1000000")


def kinds(mill: Mill) -> list[str]:
    return [happening.kind for happening in mill.told]


def held_up(mill: Mill, disk: Disk, lane: ScriptedLane, then: Callable[[], Awaitable[None]]) -> Callable[..., Any]:
    """Once its calls are under way the disk is full; then their replies come."""

    async def act() -> None:
        await lane.began(2)
        disk.is_full()
        lane.let_go()
        await mill.hears("kept")
        await then()

    return act


def test_nothing_is_leased_while_a_reply_waits(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = free([Held(LONG), Held(LONG)], max_in_flight=3)
    mill.ask("a", "b")
    calls: list[int] = []

    def refused(*_: Any, **__: Any) -> None:
        raise QueueUnavailable("no room left")

    async def act() -> None:
        await lane.began(2)
        with monkeypatch.context() as patch:
            patch.setattr(perform.settle, "settle", refused)
            lane.let_go()
            await mill.hears("kept")
            await asyncio.sleep(0.2)  # a lease that was under way by then comes to its end
            mill.ask("c")
            await asyncio.sleep(0.3)  # that nothing happens can only be waited for
            calls.append(len(lane.calls))

    async def run() -> Summary:
        return await during(mill.drainer(lane).run(Until(until_empty=True)), act)

    assert asyncio.run(run()).done == 3
    assert calls == [2]
    assert (kinds(mill).count("kept"), kinds(mill).count("written")) == (1, 1)
    assert mill.spool.pending() == 0


def test_what_waits_when_a_drain_is_stopped_is_found_in_its_spool(mill: Mill, disk: Disk) -> None:
    lane = free([Held(LONG), Held(LONG)], max_in_flight=2)
    mill.ask("a", "b")
    drainer = mill.drainer(lane, grace_ms=50)

    async def stop() -> None:
        drainer.stop()

    async def run() -> Summary:
        return await during(drainer.run(Until(daemon=True)), held_up(mill, disk, lane, stop))

    with pytest.raises(QueueUnavailable, match=r"no room left.*2 replies not written yet; kept in .*\.spool"):
        asyncio.run(run())
    disk.has_room()
    mill.spool.write_all(mill.store)
    assert mill.store.counts()["done"] == 2


def test_a_daemon_tries_on_and_others_end_where_that_does_not_help(
    mill: Mill, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "PATIENCE_S", 0.1)
    lane = free([Held(LONG), Held(LONG)], max_in_flight=2)
    mill.ask("a", "b")

    async def wait() -> None:
        await asyncio.sleep(0.4)

    async def daemon() -> Summary:
        drainer = mill.drainer(lane, grace_ms=50)

        async def then() -> None:
            await wait()
            assert mill.spool.pending() == 2
            disk.has_room()
            await mill.hears("written")
            drainer.stop()

        return await during(drainer.run(Until(daemon=True)), held_up(mill, disk, lane, then))

    assert asyncio.run(daemon()).done == 2
    mill.told.clear()
    lane = free([Held(LONG), Held(LONG)], max_in_flight=2)
    mill.ask("c", "d")
    with pytest.raises(QueueUnavailable, match="2 replies not written yet"):
        asyncio.run(during(mill.drainer(lane, grace_ms=50).run(), held_up(mill, disk, lane, wait)))


def test_a_reply_that_is_in_memory_alone_is_not_given_up_by_a_stop(
    mill: Mill, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = free([Held(LONG), Held(LONG)], max_in_flight=2)
    mill.ask("a", "b")
    drainer = mill.drainer(lane, grace_ms=10)

    def refused(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mill.spool, "_write", refused)

    async def stop() -> None:
        drainer.stop()
        drainer.stop()
        await asyncio.sleep(0.3)
        disk.has_room()

    async def run() -> Summary:
        return await during(drainer.run(Until(daemon=True)), held_up(mill, disk, lane, stop))

    assert asyncio.run(run()).done == 2


def test_a_call_whose_soft_timeout_cannot_be_written_is_not_lost_with_it(mill: Mill, disk: Disk) -> None:
    """It settles as if it had been in time, good or bad: nobody else sends its job on its way."""
    lane = paid([Held(LONG), Held(Evidence(sent="yes", failure="reset")), "ok"],
                soft_timeout_ms=60, max_in_flight=2, max_attempts=3, after_hold="same")  # fmt: skip
    mill.ask("a", "b")

    async def run() -> Summary:
        async def act() -> None:
            await lane.began(2)
            refuse_detach(disk)
            await asyncio.sleep(0.2)
            lane.let_go()

        return await during(mill.drainer(lane).run(Until(until_empty=True)), act)

    def refuse_detach(_: Disk) -> None:
        def refused(*_: Any, **__: Any) -> None:
            raise QueueUnavailable("no room left")

        patch.setattr(perform.settle, "detach", refused)

    with pytest.MonkeyPatch.context() as patch:
        assert asyncio.run(run()).done == 2
    assert "held" not in kinds(mill)
    assert [row[1] for row in mill.ledger()] == ["ok", "ambiguous", "ok"]
    assert mill.store.counts()["leased"] == 0


def test_what_is_no_reply_is_tried_for_a_while_then_said(
    mill: Mill, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ledger row that cannot be written: nothing was sent, and nothing is lost."""
    monkeypatch.setattr(scribe, "PATIENCE_S", 0.1)
    lane = free()
    [job] = mill.ask("a")

    def refused(*_: Any, **__: Any) -> None:
        raise QueueUnavailable("no room left")

    with monkeypatch.context() as patch:
        patch.setattr(perform.ledger, "record", refused)
        with pytest.raises(QueueUnavailable, match="no room left"):
            mill.drain(lane, grace_ms=10)
    assert (lane.calls, mill.state(job)) == ([], "leased")
    mill.store.reclaim(mill.store.living_owners()[0].uuid, died=False)
    assert mill.drain(lane).done == 1
