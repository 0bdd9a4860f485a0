"""`decide`, `unpin` and `reconcile`, and what status and explain say of a call whose outcome is unknown."""

from __future__ import annotations

import json
from typing import Any

from folder import Mill

from millpond.drill.faultlane import FaultLane


def paid(server: FaultLane, **more: Any) -> dict[str, Any]:
    plain = {"kind": "chat", "base_url": server.base_url, "model": "m", "price": {"call_usd": 0.01}, "max_attempts": 1}
    return {"lanes": {"paid": plain | more}}


def test_reconcile_asks_what_became_of_a_call_and_says_so(mill: Mill) -> None:
    with FaultLane(script=["reset"]) as server:
        mill.settings(**paid(server, recall="store"))
        mill.run("enqueue", "-", stdin="q\n")
        mill.run("drain", "--max-iters", "1")
        held = mill.run("explain", "1").stdout
        assert "waits: held until" in held
        assert "lane paid is asked at the next look what became of it" in held
        assert "`millpond decide 1 same|fail` decides now" in held, "there is no other lane"
        assert "its lane can be asked, and nobody does; next: millpond reconcile" in mill.run("status").stdout
        assert "done 1" in (said := mill.run("reconcile").stdout)
        assert "recalled 1" in said
        assert "recalled from its lane" in mill.run("explain", "1").stdout
        assert json.loads(mill.run("--json", "reconcile").stdout)["recalled"] == 0


def test_a_lane_that_cannot_be_asked_is_named_until_the_policy_decides_without_it(mill: Mill) -> None:
    with FaultLane(script=["reset"]) as server:
        mill.settings(**paid(server, recall="store", after_hold="fail", hold_s=2))
        mill.run("enqueue", "-", stdin="q\n")
        mill.run("drain", "--max-iters", "1")
    said = mill.run("reconcile").stdout
    assert "unasked job 1 paid: could not be asked what became of a call: " in said
    assert "why left: lane paid could not be asked what became of 1 call: " in said
    assert "refused" in (explained := mill.run("explain", "1").stdout)
    assert "     lane paid could not be asked what became of it: " in explained
    drained = mill.run("drain", "--until-empty").stdout
    assert "unasked job 1 paid: " in drained
    assert "decided: fail" in (explained := mill.run("explain", "1").stdout)
    assert "     lane paid could not be asked what became of it: " in explained


def test_reconcile_says_what_it_decided(mill: Mill) -> None:
    with FaultLane(script=["reset"]) as server:
        mill.settings(**paid(server, after_hold="ask"))
        mill.run("enqueue", "-", stdin="q\n")
        mill.run("drain")
    mill.run("cancel", "1")
    said = mill.run("reconcile").stdout
    line = "decided job 1 paid: its hold is over and nobody waits for it: not paid again, and it may have cost $0.0100"
    assert line in said
    assert " · given up 1" in said
    spent = "spend today $0.00 and at most $0.0100 for those of unknown end in 1 call of all queues on this book"
    assert spent in mill.run("status").stdout, "an estimate is not spent"
    assert json.loads(mill.run("--json", "reconcile").stdout)["given_up"] == 0


def test_a_person_decides_what_was_asked(mill: Mill) -> None:
    with FaultLane(script=["reset", "ok"]) as server:
        mill.settings(**paid(server, after_hold="ask"))
        mill.run("enqueue", "-", stdin="q\n")
        mill.run("drain")
        assert "millpond jobs state:asked, then millpond decide ID pin|same|fail" in mill.run("status").stdout
        mill.run("decide", "1", "maybe", code=2)
        assert mill.run("decide", "1", "same").stdout == "job 1 is ready; next: millpond drain\n"
        mill.run("drain")
        assert mill.run("decide", "1", "fail", code=1).stdout == "decided 0 · eligible 0 · skipped 1 (1 is done)\n"
        assert "unknown job" in mill.run("decide", "99", "fail", code=1).stdout
        assert server.accepted() == 2


def test_a_filter_decides_many_once_it_is_confirmed(mill: Mill) -> None:
    with FaultLane(script=["reset", "reset", "ok"]) as server:
        mill.settings(**paid(server, after_hold="ask"))
        mill.run("enqueue", "-", stdin="a\nb\nc\n")
        mill.run("drain")
        trial = mill.run("decide", "--filter", "state:asked", "fail", code=2)
        assert "would be decided: 2 · eligible 2" in trial.stdout
        assert "nothing was done: the filter admits 2 jobs; say --yes" in trial.stderr
        done = mill.run("decide", "--filter", "state:asked", "--yes", "fail").stdout
        assert done == "decided 2 · eligible 2\n"
        assert json.loads(mill.run("--json", "status").stdout)["counts"]["failed"] == 2


def test_unpin_says_what_it_did_and_why_not(mill: Mill, lane: FaultLane) -> None:
    mill.settings(**paid(lane))
    mill.run("enqueue", "-", stdin="q\n")
    said = mill.run("unpin", "1", code=1).stdout
    assert said == "unpinned 0 · eligible 0 · skipped 1 (1 is not pinned)\n"


def test_a_lane_that_cannot_be_asked_is_refused_by_name(mill: Mill) -> None:
    mill.settings(lanes={"local": {"kind": "command", "command": ["cat"], "price": 0, "recall": "store"}})
    assert "lanes.local.recall: found store, and a lane of kind 'command'" in mill.run("drain", code=78).stderr


def test_only_the_way_of_asking_that_is_not_read_yet_is_said_aloud(mill: Mill, lane: FaultLane) -> None:
    mill.settings(**paid(lane, recall="background"))
    assert "without effect: lanes.paid.recall" in mill.run("drain").stderr
    mill.settings(**paid(lane, recall="store", settling_s=1))
    assert "without effect" not in mill.run("drain").stderr
