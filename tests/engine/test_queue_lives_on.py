"""A queue in a process that goes on living: what is given back, what is left alone, what one fault may not stop."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from mill_of_one import Mill, during, free
from opened import Open
from pydantic import BaseModel, field_validator

from millpond import Prompt, Queue, QueueBusy, QueueUnavailable, Reply, Saturated, SettingsError, UsageError
from millpond.engine import drain, scribe
from millpond.engine.beat import first_note
from millpond.engine.drain import Until
from millpond.engine.lock import Lock
from millpond.engine.owner import lock_file
from millpond.engine.scribe import Scribe
from millpond.lanes import CallableLane
from millpond.rules.evidence import Evidence
from millpond.rules.job import OwnerRow, Usage
from millpond.rules.policy import LanePolicy
from millpond.rules.price import Cost, PriceRule
from millpond.rules.router import route_work
from millpond.rules.verdict import bill
from millpond.store.reclaim import Reclaimed

# --- what a machine held whose disk is here now


def held_elsewhere(open_queue: Open) -> tuple[Queue, int]:
    """A queue, and a job of it that a process of another machine has leased."""
    queue = open_queue(LanePolicy("own", kind="callable"))
    job = queue.enqueue("a").job_id
    queue.store.enlist(OwnerRow("gone", "drainer", "a machine that died", 4242, "another boot", 0))
    lock = Lock(lock_file(queue.folder, "gone"))
    assert lock.take(first_note("gone", 90))
    lock.release()
    assert queue.store.lease("gone", {"own": 1}, 1, route=partial(route_work, policy=queue.policy))
    return queue, job


def test_a_drain_does_not_wait_for_a_machine_that_is_seen_to_live(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "TEND_MS", 20)
    queue, job = held_elsewhere(open_queue)
    enough = threading.Event()

    def beat() -> None:
        number = 0
        while not enough.wait(0.01):
            number += 1
            with lock_file(queue.folder, "gone").open("r+") as file:
                file.write(f"{number:020}")

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        assert queue.drain(lanes={"own": lambda work: "x"}, until_empty=True).reason == "idle"
    finally:
        enough.set()
        beating.join()
    assert queue.job(job).state == "leased"


def test_what_a_machine_held_that_is_gone_is_taken_back_by_a_drain_that_waits(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drain, "TEND_MS", 20)
    queue, job = held_elsewhere(open_queue)
    [need] = queue.status().needs_you
    assert need.words.startswith("1 job leased on another machine (pid 4242 on a machine that died); if that is gone")
    assert "another machine: " in queue.explain(job)
    assert queue.drain(lanes={"own": lambda work: "x"}).reason == "idle"
    assert queue.job(job).state == "leased"
    summary = queue.drain(lanes={"own": lambda work: "x"}, until_empty=True)
    assert (summary.done, queue.job(job).leases_lost) == (1, 1)


# --- what a process holds ends with its holding, not with the process


def test_what_a_closed_queue_held_is_anothers_at_once(open_queue: Open) -> None:
    first, second = open_queue(), open_queue()
    untouched, sent = first.enqueue("a").job_id, first.enqueue("b").job_id
    leases = first.lease(2)
    uid = first.record(leases[1])
    first.close()
    assert sorted(lease.job_id for lease in second.lease(9)) == [untouched, sent]
    assert second.job(untouched).leases_lost == 0
    [attempt] = list(second.ledger())
    assert (attempt.uid, attempt.outcome) == (uid, "ambiguous")


def test_a_drain_that_ends_by_a_fault_gives_back_its_lock_and_its_jobs(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = open_queue()
    queue.enqueue("a")

    def broken(*_: Any, **__: Any) -> None:
        raise QueueBusy("somebody keeps it")

    with monkeypatch.context() as patch:
        patch.setattr(type(queue.store), "reclaim", broken)
        with pytest.raises(QueueBusy):
            queue.drain(lanes=lambda work: "x")
    assert queue.drainer() is None
    assert queue.drain(lanes=lambda work: "x").reason != "lock_held"


def test_o05_a_drain_whose_lock_file_was_deleted_leases_nothing_more(open_queue: Open) -> None:
    queue = open_queue()
    queue.enqueue_many([f"q{n}" for n in range(5)])
    calls: list[Any] = []

    def delete(work: Prompt) -> str:
        calls.append(work)
        (queue.folder / "drain.lock").unlink(missing_ok=True)
        return "x"

    with pytest.raises(QueueUnavailable, match="deleted or replaced"):
        queue.drain(lanes=CallableLane(delete, max_in_flight=1))
    assert len(calls) < 5
    assert queue.counts()["done"] == len(calls), "what was in flight is kept"


def test_a_link_to_the_database_leads_to_the_same_lock(tmp_path: Path) -> None:
    with Queue.open(tmp_path / "a") as real:
        (tmp_path / "b").mkdir()
        (tmp_path / "b" / "queue.db").symlink_to(tmp_path / "a" / "queue.db")
        with Queue.open(tmp_path / "b") as linked:
            assert linked.folder == real.folder


# --- one fault stops nobody else


class Poison(BaseModel):
    """A command whose validator begins to fail after it was accepted."""

    name: str

    @field_validator("name")
    @classmethod
    def check(cls, value: str) -> str:
        if broken:
            raise KeyError("a table that is gone")
        return value


broken: list[bool] = []


def test_a_command_that_no_longer_loads_is_shelved_and_the_others_run(open_queue: Open) -> None:
    queue = open_queue(registry={"Poison": Poison})
    bad = queue.enqueue(Poison(name="x")).job_id
    good = queue.enqueue("a prompt").job_id
    broken.append(True)
    try:
        queue.drain(lanes=lambda work: "x")
    finally:
        broken.clear()
    assert (queue.job(bad).wait_reason, queue.job(good).state) == ("undeliverable", "done")
    assert "KeyError" in (queue.job(bad).reason or "")


@pytest.mark.parametrize(
    "reply",
    [
        Reply("x", raw={"at": datetime.now(UTC)}),
        Reply("x", data=cast("Any", {1, 2})),
        Reply("x", usage=Usage(10**30, -1)),
        Reply("x", usage=cast("Any", {"tokens_in": 3})),
        Reply("x", finish_reason=cast("Any", 5), model=cast("Any", 7), request_id=cast("Any", 9)),
        Reply("x", raw=cast("Any", (lambda loop: loop.update(self=loop) or loop)({}))),
    ],
    ids=["a date", "a set", "tokens beyond counting", "no Usage", "numbers for words", "a circle"],
)
def test_a_reply_that_json_cannot_hold_is_kept_all_the_same(open_queue: Open, reply: Reply) -> None:
    queue = open_queue()
    queue.enqueue_many(["a", "b"])
    answers = iter([reply, "plain"])
    assert queue.drain(lanes=CallableLane(lambda work: next(answers), max_in_flight=1)).done == 2
    assert [result.text for result in queue.results()] == ["x", "plain"]
    assert {attempt.tokens_in for attempt in queue.ledger()} == {None}


def test_what_the_store_does_not_take_yet_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        tries = 0

        def write_all(self, operations: list[Any], *, full: bool) -> list[Any]:
            Busy.tries += 1
            done = [operation(None) for operation in operations] if Busy.tries == 3 else []
            return done or [QueueBusy("kept")] * len(operations)

    monkeypatch.setattr(scribe, "RETRY_S", 0)

    async def write() -> list[int]:
        pen = Scribe(cast("Any", Busy()))
        try:
            return await asyncio.gather(pen.write(lambda _: 1), pen.write(lambda _: 2))
        finally:
            pen.close()

    assert (asyncio.run(write()), Busy.tries) == ([1, 2], 3)


def test_a_busy_store_ends_the_looking_after_others_for_one_round_only(
    mill: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    enough = threading.Event()

    def tend() -> Reclaimed:
        rounds.append(1)
        if len(rounds) == 1:
            raise QueueBusy("kept")
        enough.set()
        return Reclaimed()

    monkeypatch.setattr(drain, "TEND_MS", 5)
    drainer = mill.drainer(free(), tend=tend)

    async def act() -> None:
        assert await asyncio.to_thread(enough.wait, 20)
        drainer.stop()

    asyncio.run(during(drainer.run(Until(daemon=True)), act))
    assert len(rounds) >= 2


# --- money and loops


def test_cancelled_in_flight_and_asked_again_waits_for_the_first_call(open_queue: Open) -> None:
    queue = open_queue()
    began, go_on = threading.Event(), threading.Event()
    calls: list[str] = []

    def slow(work: Prompt) -> str:
        calls.append(work.task)
        began.set()
        assert go_on.wait(20)
        return "kept"

    job = queue.enqueue("a").job_id
    draining = threading.Thread(target=lambda: queue.drain(lanes=slow))
    draining.start()
    assert began.wait(20)
    queue.cancel(job)
    again = queue.enqueue("a").job_id
    assert queue.job(again).wait_reason == "held"
    go_on.set()
    draining.join(20)
    assert (queue.job(again).state, queue.job(job).state, calls) == ("done", "cancelled", ["a"])


def test_a_lane_that_says_not_now_and_at_once_is_asked_less_and_less_often(open_queue: Open) -> None:
    queue = open_queue()
    queue.enqueue("a")
    calls: list[float] = []

    def never(work: Prompt) -> str:
        calls.append(1)
        if len(calls) > 4:
            stop.append(1)
        raise Saturated(after_s=0)

    stop: list[int] = []
    lane = CallableLane(never, max_in_flight=1)
    summary = queue.drain(lanes=lane)
    assert (summary.reason, summary.ready) == ("idle", 1), "the next opening is past idle_exit_ms"
    assert len(calls) < 10


def test_a_refusal_that_says_what_it_used_is_billed() -> None:
    lane = LanePolicy("paid", price=PriceRule("stated", Decimal(1), Decimal(2)))
    used = Evidence(status=200, finish_reason="content_filter", usage=Usage(1_000_000, 500_000))
    assert bill("permanent", used, lane, 0) == Cost(Decimal(2), "stated")
    assert bill("permanent", Evidence(status=400), lane, 0) == Cost(Decimal(0), "refused")


def test_looking_at_a_queue_writes_nothing(open_queue: Open, tmp_path: Path) -> None:
    queue = open_queue()
    before = queue.store.db.data_version()
    with Queue.open(tmp_path / "home") as other:
        other.counts()
    assert queue.store.db.data_version() == before


@pytest.mark.parametrize("verb", ["cancel", "retry"])
def test_an_empty_filter_is_no_filter(open_queue: Open, verb: str) -> None:
    with pytest.raises(UsageError, match="it would admit all jobs"):
        getattr(open_queue(), verb)("")


def test_ids_beyond_any_id_are_unknown(open_queue: Open) -> None:
    queue = open_queue()
    for ask in (queue.job, queue.submission, queue.result):
        with pytest.raises(UsageError, match="a number beyond all ids"):
            ask(2**70)
    assert queue.cancel([2**70]).reasons == {"unknown job": 1}


# --- types of commands are looked for when they are needed


def test_looking_needs_no_command_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "millpond.yaml").write_text('commands: "not_there:REGISTRY"\n')
    with Queue.open() as queue:
        queue.enqueue("a prompt")
        assert queue.counts()["ready"] == 1
        with pytest.raises(SettingsError, match=r"commands: no module 'not_there'"):
            queue.drain(lanes=lambda work: "x")


def test_command_types_beside_the_caller_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_types.py").write_text(
        "from pydantic import BaseModel\nclass Mail(BaseModel):\n    to: str\nREGISTRY = {'Mail': Mail}\n"
    )
    (tmp_path / "millpond.yaml").write_text('commands: "my_types:REGISTRY"\n')
    with Queue.open() as queue:
        assert queue.registry is not None
        queue.enqueue(queue.registry["Mail"](to="a"))
        assert queue.drain(lanes=lambda work: work.to).done == 1
