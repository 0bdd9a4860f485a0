"""`stop` and `resume`: what they say, and that a drain which runs obeys."""

from __future__ import annotations

import json

from folder import Mill, chat

from millpond.drill.faultlane import FaultLane


def test_a_stop_is_said_and_said_again_and_ended(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane), "paid": chat(lane, price={"call_usd": 0.1})})
    mill.run("enqueue", "-", stdin="a\n")
    assert mill.run("stop", "--paid").stdout.splitlines() == [
        "stopped lanes that may cost: nothing more is sent there, calls in flight go on to their end",
        "next: millpond resume",
    ]
    again = mill.run("stop", "--paid").stdout
    assert again.startswith("lanes that may cost stopped already, ")
    assert "ago by a person (cli)" in again
    assert mill.run("resume", "free").stdout.splitlines()[0] == "nothing was resumed: that was not stopped"
    told = mill.run("resume").stdout.splitlines()
    assert told[0].startswith("resumed lanes that may cost, stopped ")
    assert told[1] == "next: millpond drain"
    assert mill.run("resume").stdout == "nothing was stopped\n"


def test_a_drain_of_what_is_stopped_says_so_and_how_to_go_on(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.run("enqueue", "-", stdin="a\nb\n")
    mill.run("stop", "free")
    told = mill.run("drain", "--until-empty").stdout.splitlines()
    assert told[-3].endswith("left: ready 2 · stopped by a person")
    assert told[-2].startswith("why left: lane free: lane free stopped by a person since ")
    assert told[-1] == "next: millpond resume · millpond status"
    assert json.loads(mill.run("--json", "drain").stdout)["reason"] == "stopped"
    assert mill.run("status", "--exit-status", code=8).stdout.count("millpond resume free") == 1
    assert lane.accepted() == 0
    told = [line.partition("  ")[2] for line in mill.run("events").stdout.splitlines()]
    assert any("lane free stopped by a person (cli)" in line for line in told), told
    mill.run("resume")
    assert json.loads(mill.run("--json", "drain").stdout)["done"] == 2


def test_json_says_what_changed_and_what_stands(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.run("enqueue", "-", stdin="a\n")
    mill.run("stop", "free")
    said = json.loads(mill.run("--json", "stop").stdout)
    assert [(one["scope"], one["lane"]) for one in said["changed"]] == [("all", None)]
    assert [(one["scope"], one["lane"], one["origin"]) for one in said["standing"]] == [
        ("all", None, "cli"), ("lane", "free", "cli"),
    ]  # fmt: skip
    stopped = json.loads(mill.run("--json", "status").stdout)["stopped"]
    assert stopped == said["standing"]
    assert json.loads(mill.run("--json", "resume").stdout)["standing"] == []


def test_what_cannot_be_stopped_is_refused(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    assert "no queue at " in mill.run("stop", code=2).stderr
    assert not mill.home.exists()
    mill.run("enqueue", "-", stdin="a\n")
    assert "unknown lane 'fre'; configured lanes: free" in mill.run("stop", "fre", code=78).stderr
    assert "found --paid and lanes by name" in mill.run("stop", "--paid", "free", code=2).stderr
    assert json.loads(mill.run("--json", "status").stdout)["stopped"] == []


def test_a_drain_that_runs_sends_nothing_after_a_stop(mill: Mill) -> None:
    with FaultLane(mix={"slow": 1.0}, slow_s=1.0) as server:
        mill.settings(lanes={"free": chat(server, max_in_flight=1)})
        mill.run("enqueue", "-", stdin="a\nb\nc\n")
        process = mill.start("drain", "--until-empty")
        try:
            assert server.wait_for(1, 30)
            mill.run("stop")
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0, err
        assert server.accepted() == 1
    assert "stopped lane free: a person has stopped all lanes" in out
    assert "left: ready 2 · stopped by a person" in out
    assert json.loads(mill.run("--json", "status").stdout)["counts"]["done"] == 1
