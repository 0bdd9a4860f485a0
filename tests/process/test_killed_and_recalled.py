"""SIGKILL where a call may have left, on a lane that can be asked: its reply is there on restart, and bought once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mill import Home
from standing import Step, killed, mended, of_a_journey

from millpond.drill.faultlane import FaultLane

RECORDED, CALLED = of_a_journey("Record", "after"), of_a_journey("Call", "after")


def recalling(fault: FaultLane, **more: Any) -> dict[str, Any]:
    paid = {"kind": "chat", "base_url": fault.base_url, "model": "m", "price": {"call_usd": 0.01}, "recall": "store"}
    deadlines = {"connect_s": 1, "first_byte_s": 1, "total_s": 1.5}
    return {
        "backoff": {"first_s": 0.05},
        "lanes": {"paid": {**paid, "max_attempts": 1, "deadlines": deadlines, **more}},
        "lease_s": 2,
    }


@pytest.mark.parametrize(
    ("fault", "step"),
    [
        ("ok", RECORDED),
        ("ok", CALLED),
        ("reset", CALLED),
        pytest.param("reset", RECORDED, marks=pytest.mark.prove),
    ],
    ids=str,
)
def test_a_drainer_that_is_killed_around_its_call_pays_once_for_each_key(
    tmp_path: Path, fault: str, step: Step
) -> None:
    with FaultLane(script=[fault, fault], settling_s=0.3) as lane:
        home = Home(tmp_path, **recalling(lane, settling_s=1))
        home.ask("Is a duck a bird?", "Is a newt a fish?")
        killed(home, step, "drain", "--until-empty")
        with mended(home) as queue:
            assert queue.counts()["done"] == 2
            by_key: dict[str, int] = {}
            for post in lane.posts():
                by_key[str(post.idempotency_key)] = by_key.get(str(post.idempotency_key), 0) + 1
            assert list(by_key.values()) == [1, 1], "each was bought once"
            for row in queue.ledger():
                assert (row.outcome, row.resolution) in [("ok", None), ("ok", "recalled"), ("retryable", "absent")]
                assert row.outcome != "retryable" or row.code == "died", "nothing of it had left"
            assert queue.report().paid_twice.calls == 0


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("effect", ["Detach", "Listen"])
def test_a_drainer_that_is_killed_while_it_listens_has_its_reply_recalled(
    tmp_path: Path, effect: str, side: str
) -> None:
    with FaultLane(script=["slow"], slow_s=1) as lane:
        home = Home(tmp_path, **recalling(lane, soft_timeout_s=0.1, deadlines={"first_byte_s": 3, "total_s": 5}))
        home.ask("Is a duck a bird?")
        step = of_a_journey(effect, side)
        killed(home, step, "drain", "--until-empty", once=lambda: lane.wait_for(1, timeout_s=60))
        with mended(home) as queue:
            assert (lane.accepted(), queue.counts()["done"]) == (1, 1)
            assert queue.report().paid_twice.calls == 0


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_drainer_that_is_killed_while_it_asks_asks_again(tmp_path: Path, side: str) -> None:
    with FaultLane(script=["reset"]) as lane:
        home = Home(tmp_path, **recalling(lane), reconcile={"hold_s": 0})
        home.ask("Is a duck a bird?")
        killed(home, of_a_journey("Recall", side), "drain", "--until-empty")
        with mended(home) as queue:
            assert (lane.accepted(), [row.resolution for row in queue.ledger()]) == (1, ["recalled"])


def test_reconcile_brings_the_reply_of_a_drainer_that_was_killed(tmp_path: Path) -> None:
    with FaultLane(script=["reset"]) as lane:
        home = Home(tmp_path, **recalling(lane))
        home.ask("Is a duck a bird?")
        killed(home, of_a_journey("Call", "after"), "drain")
        assert "millpond reconcile" not in home.run("status")[0], "its owner is not known to be dead yet"
        said = json.loads(home.run("--json", "reconcile")[0])
        assert (said["done"], said["recalled"], lane.accepted()) == (1, 1, 1)
        assert home.run("results", "--format", "jsonl")[0].count("answer to") == 1
