"""Trouble that no call has part in: what is in flight goes on to its own end, and what can wait is tried again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mill_of_one import Mill, during, paid

from millpond import QueueUnavailable
from millpond.engine import drain, scribe
from millpond.engine.drain import Drainer, Until
from millpond.engine.owner import lock_file
from millpond.engine.taking_back import reclaim_dead
from millpond.engine.tenure import Tenure
from millpond.store.reclaim import Reclaimed
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held


@contextmanager
def once_said(words: str, do: Callable[[], None]) -> Iterator[None]:
    """Do this as soon as the engine logs these words."""

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                do()

    ear, log = Ear(), logging.getLogger("millpond.engine")
    log.addHandler(ear)
    try:
        yield
    finally:
        log.removeHandler(ear)


def loses_its_lock(mill: Mill, lane: ScriptedLane) -> tuple[Drainer, Callable[[], Awaitable[None]]]:
    """A drainer with work in hand, and what takes its lock away once the call has begun."""
    mill.ask("a")
    may_lease = threading.Event()
    may_lease.set()

    async def act() -> None:
        await lane.began()
        may_lease.clear()

    return mill.drainer(lane, grace_ms=10, may_lease=may_lease.is_set), act


def test_a_drain_that_ends_by_trouble_lets_its_calls_come_to_their_own_end(mill: Mill) -> None:
    """The grace is of who stops it; nobody has."""
    drainer, act = loses_its_lock(mill, lane := paid([Held("ok")]))
    with (
        once_said("in flight may end", lane.let_go),
        pytest.raises(QueueUnavailable, match="the drain lock was deleted"),
    ):
        asyncio.run(during(drainer.run(), act))
    assert mill.ledger() == [("paid", "ok", None)]


def test_a_stop_still_bounds_what_trouble_has_left_in_flight(mill: Mill) -> None:
    drainer, act = loses_its_lock(mill, paid([Held("ok")]))
    with once_said("in flight may end", drainer.stop), pytest.raises(QueueUnavailable):
        asyncio.run(during(drainer.run(), act))
    assert [(row.outcome, row.code) for row in mill.store.attempts()] == [("ambiguous", "given_up")]


def test_what_the_system_refuses_of_others_ends_no_drain(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(drain, "TEND_MS", 5)
    lane = paid([Held("ok")])
    mill.ask("a")
    looks = iter(range(5))

    def tend() -> Reclaimed:
        if next(looks, None) is None:
            lane.let_go()
        raise PermissionError(13, "Permission denied")

    assert asyncio.run(mill.drainer(lane, tend=tend).run()).done == 1
    assert len([line for line in caplog.messages if "could not look after" in line]) == 1, "said once"


def test_a_lock_file_that_cannot_be_opened_keeps_nobody_else_from_being_judged(mill: Mill) -> None:
    owners = sorted(Tenure(mill.store, mill.folder, "worker", lease_ms=60_000).uuid for _ in range(2))
    for uuid, stand_in in zip(owners, (Path.mkdir, Path.touch), strict=True):  # no file at all, and one without a lock
        lock_file(mill.folder, uuid).unlink()
        stand_in(lock_file(mill.folder, uuid))
    reclaim_dead(mill.store, mill.folder, max_leases_lost=3)
    assert [owner.uuid for owner in mill.store.living_owners()] == owners[:1]


def test_what_the_system_refuses_is_told_as_a_refusal_of_the_queue(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    path = lock_file(mill.folder, Tenure(mill.store, mill.folder, "worker", lease_ms=60_000).uuid)
    path.unlink()
    path.touch()

    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(QueueUnavailable, match="is not taken back before"):
        reclaim_dead(mill.store, mill.folder, max_leases_lost=3)


@pytest.mark.parametrize("until", [Until(), Until(daemon=True)])
def test_a_book_that_is_gone_ends_a_drain_in_its_time(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, until: Until
) -> None:
    """A daemon's, too: only a new start makes another. A call that ends meanwhile keeps its slot for no posting."""
    monkeypatch.setattr(drain, "TEND_MS", 20)
    for module in (drain, scribe):
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    monkeypatch.setattr(scribe, "RETRY_CAP_S", 0.1)
    lane = paid([Held("ok")], max_in_flight=1)
    mill.ask("a", "b", "c")

    async def act() -> None:
        await lane.began()
        for path in mill.folder.parent.glob("spend.db*"):
            path.rename(path.with_name(f"moved-{path.name}"))
        lane.let_go()

    async def scenario() -> float:
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(QueueUnavailable, match="was deleted or moved away"):
            await during(mill.drainer(lane).run(until), act)
        return asyncio.get_running_loop().time() - began_s

    with caplog.at_level(logging.WARNING):
        assert 1.0 <= asyncio.run(scenario()) < 1.9
    assert len([line for line in caplog.messages if line.startswith("the spend book lags")]) == 1
    assert len([line for line in caplog.messages if line.startswith("the queue or the spend book does not take")]) == 1
    for path in mill.folder.parent.glob("moved-spend.db*"):
        path.rename(path.with_name(path.name.removeprefix("moved-")))


def test_a_daemon_waits_for_a_book_that_somebody_holds_for_as_long_as_it_takes(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (drain, scribe):
        monkeypatch.setattr(module, "PATIENCE_S", 0.0)
    monkeypatch.setattr(scribe, "RETRY_S", 0.01)
    mill.ask("a")
    lane = paid()
    drainer = mill.drainer(lane)
    refused = iter([True, True, True])
    write_all = mill.book.db.write_all

    def busy(*given: object, **named: object) -> object:
        if next(refused, False):
            raise QueueUnavailable("the disk is full")
        return write_all(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(mill.book.db, "write_all", busy)

    async def act() -> None:
        await mill.hears("done")
        drainer.stop()

    assert asyncio.run(during(drainer.run(Until(daemon=True)), act)).done == 1
