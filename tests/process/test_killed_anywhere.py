"""SIGKILL between every two steps: a real process stands still there, is killed from outside, and the next one goes on.

What the lane saw is read from the lane. Only where a call had begun and its reply was not yet written down may it see a
second one; that is then said, never hidden.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mill import Home
from standing import Step, killed, mended, of_a_journey

from millpond import Queue
from millpond.drill.faultlane import FaultLane
from millpond.testing.promises import check_promises


def lane(fault: FaultLane, **more: Any) -> dict[str, Any]:
    paid = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": {"call_usd": 0.01}}
    return {"lanes": {"paid": {**paid, "max_attempts": 4, "after_hold": "same", **more}}, "backoff": {"first_s": 0.05}}


BEFORE_THE_ROW = of_a_journey("Reserve", "after")
NOTHING_LEFT = of_a_journey("Record", "after")
REPLY_IN_HAND = of_a_journey("Call", "after")
IS_WRITTEN = of_a_journey("Settle", "after")


@pytest.mark.parametrize("step", [BEFORE_THE_ROW, NOTHING_LEFT, REPLY_IN_HAND, IS_WRITTEN], ids=str)
def test_a_drainer_that_is_killed_amid_two_journeys_loses_no_job_and_hides_no_call(tmp_path: Path, step: Step) -> None:
    """One journey at every step is in test_kill_matrix."""
    with FaultLane() as fault:
        home = Home(tmp_path, **lane(fault))
        home.ask("Is a duck a bird?", "Is a newt a fish?")
        killed(home, step, "drain")
        with mended(home) as queue:
            assert queue.counts()["done"] == 2
            assert sorted(result.position for result in queue.results("asked.txt")) == [0, 1]
            ledger = list(queue.ledger())
            unknown = [row for row in ledger if row.outcome == "ambiguous"]
            # Two journeys are under way at once; both may stand on the same side of the step, or the other one before.
            at_most = 0 if step in (BEFORE_THE_ROW, IS_WRITTEN) else 1
            assert [row.code for row in unknown if row.job_id == 1][:at_most] == ["died"] * at_most
            for job_id in (1, 2):
                rows = [row for row in ledger if row.job_id == job_id]
                assert [row.outcome for row in rows] in (["ok"], ["ambiguous", "ok"])
            assert fault.accepted() <= len(ledger) == 2 + len(unknown)
            assert queue.report().paid_twice.calls == len(unknown), "what may be paid twice is said"
            if step == BEFORE_THE_ROW:
                assert all(row.job_id != 1 for row in unknown)
            if step == NOTHING_LEFT:
                assert fault.accepted() < len(ledger)


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("effect", ["Detach", "Listen", "StopListening"])
def test_a_drainer_that_is_killed_while_it_listens_loses_no_job(tmp_path: Path, effect: str, side: str) -> None:
    with FaultLane(script=["slow", "ok"], slow_s=3600) as fault:
        home = Home(tmp_path, **lane(fault, soft_timeout_s=0.1), reconcile={"hold_s": 0.2})
        home.ask("Is a duck a bird?")
        step = of_a_journey(effect, side)
        killed(home, step, "drain", "--until-empty", once=lambda: fault.wait_for(1, timeout_s=60))
        with mended(Home(tmp_path, **lane(fault))) as queue:
            assert queue.counts()["done"] == 1
            ledger = [(row.outcome, row.code) for row in queue.ledger()]
            assert ledger[-1][0] == "ok"
            assert fault.accepted() == len(ledger) == 2
            assert queue.report().paid_twice.calls == 1


ON_EACH_SIDE = [(effect, side) for effect in ("LookBack", "Resolve", "Post") for side in ("before", "after")]


@pytest.mark.parametrize(
    ("effect", "side"),
    [pytest.param(*one, marks=[] if one[0] == "Resolve" else pytest.mark.prove) for one in ON_EACH_SIDE],
)
def test_a_drainer_that_is_killed_while_it_decides_what_nobody_knows_asks_once_more(
    tmp_path: Path, effect: str, side: str
) -> None:
    with FaultLane(script=["reset", "ok"]) as fault:
        home = Home(tmp_path, **lane(fault))
        home.ask("Is a duck a bird?")
        killed(home, of_a_journey(effect, side), "drain", "--until-empty")
        with mended(home) as queue:
            ledger = [(row.outcome, row.resolution) for row in queue.ledger()]
            assert (fault.accepted(), ledger) == (2, [("ambiguous", "same"), ("ok", None)])


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize(
    ("left", "room", "name"),
    [
        (of_a_journey("Reserve", "after"), "millpond.spend.book", "SpendBook.release"),
        (of_a_journey("Post", "before"), "millpond.engine.bookkeeping", "post"),
        (of_a_journey("Post", "before"), "millpond.spend.book", "SpendBook.post"),
    ],
    ids=str,
)
def test_who_is_killed_while_it_brings_the_book_up_to_the_ledger_is_gone_on_with(
    tmp_path: Path, left: Step, room: str, name: str, side: str
) -> None:
    """A first drain leaves a reservation without a row, or a cost without a charge; the next dies mending that."""
    with FaultLane() as fault:
        home = Home(tmp_path, **lane(fault, max_in_flight=1))
        home.ask("Is a duck a bird?")
        killed(home, left, "drain")
        killed(home, Step(room, name, side), "drain")
        with mended(home) as queue:
            assert queue.counts()["done"] == fault.accepted() == len(list(queue.ledger())) == 1


# --- what comes in --------------------------------------------------------------------------------------------------

ROWS = 1_200


def rows(folder: Path) -> str:
    (folder / "rows.txt").write_text("".join(f"question {n}\n" for n in range(ROWS)))
    return "rows.txt"


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_an_enqueue_that_is_killed_between_chunks_is_gone_on_with_by_saying_it_again(
    tmp_path: Path, times: int, side: str
) -> None:
    home = Home(tmp_path, lanes={"free": {"kind": "command", "command": ["cat"], "price": 0}})
    killed(home, Step("millpond.store.store", "Store.enqueue", side, times=times), "enqueue", rows(tmp_path))
    with Queue.open(home.home) as queue:
        taken = queue.counts()["ready"]
        assert taken == 500 * (times - (side == "before"))
    out, err = home.run("enqueue", "rows.txt")
    assert err.splitlines()[-1] == f"{ROWS - taken:,} new · {taken:,} joined · 0 reused · 0 refused"
    assert len(set(out.split())) == ROWS
    with Queue.open(home.home) as queue:
        assert (queue.counts()["ready"], queue.store.miscounted()) == (ROWS, {})


@pytest.mark.parametrize("times", [1, 3])
def test_a_strict_enqueue_that_is_killed_takes_nothing_in(tmp_path: Path, times: int) -> None:
    """Inside its one transaction, after the first and after the last chunk."""
    home = Home(tmp_path, lanes={"free": {"kind": "command", "command": ["cat"], "price": 0}})
    step = Step("millpond.store.store", "enqueue", "after", times=times)
    assert killed(home, step, "enqueue", rows(tmp_path), "--strict") == "", "no id before all of it is durable"
    with Queue.open(home.home) as queue:
        assert (sum(queue.counts().values()), queue.submissions()) == (0, [])
    out, _ = home.run("enqueue", "rows.txt", "--strict")
    assert len(set(out.split())) == ROWS


# --- what persons do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "retry"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_bulk_verb_that_is_killed_between_chunks_is_gone_on_with_by_saying_it_again(
    tmp_path: Path, verb: str, side: str
) -> None:
    home = Home(tmp_path, lanes={"free": {"kind": "command", "command": ["cat"], "price": 0}})
    home.ask(*(f"question {n}" for n in range(250)))
    if verb == "retry":
        with Queue.open(home.home) as queue:
            queue.cancel([job.id for job in queue.jobs(limit=250)])
    asked = (verb, "--filter", "submission:asked.txt", "--yes")
    killed(home, Step("millpond.store.store", f"Store.{verb}", side, times=2), *asked)
    state = "cancelled" if verb == "cancel" else "ready"
    done = 100 if side == "before" else 200
    with Queue.open(home.home) as queue:
        assert (queue.counts()[state], queue.store.miscounted()) == (done, {})
        check_promises(queue.store)
    home.run(*asked)
    with Queue.open(home.home) as queue:
        assert (queue.counts()[state], queue.store.miscounted()) == (250, {})


# --- what goes out --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A queue with two answers, which the tests only read."""
    home = Home(
        tmp_path_factory.mktemp("answered"), lanes={"free": {"kind": "command", "command": ["cat"], "price": 0}}
    )
    home.ask("one", "two")
    home.run("drain")
    return home


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_results_that_are_killed_leave_the_old_file_or_the_whole_new_one(
    answered: Home, suffix: str, side: str
) -> None:
    home = answered
    out = home.folder / f"{side}.{suffix}"
    out.write_text("before")
    killed(home, Step("os", "replace", side), "results", "-o", out.name)
    if side == "before":
        assert out.read_text() == "before"
    halfway = out.read_bytes()
    home.run("results", "-o", out.name)
    assert (out.read_bytes() == halfway) == (side == "after")
