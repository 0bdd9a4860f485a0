"""Submissions on the command line: listed, shown, waited for, retried and cancelled by name."""

from __future__ import annotations

import json
import signal

import pytest
from folder import Mill, chat

from millpond import Queue
from millpond.drill.faultlane import FaultLane


def test_submissions_are_listed_the_newest_first(drained: Mill) -> None:
    drained.run("enqueue", "cats.csv", "--task", "How many legs has a {animal}?")
    drained.run("enqueue", "-", "--name", "night", stdin="a\n")
    rows = [line.split() for line in drained.run("submissions").stdout.splitlines()]
    assert rows[0] == ["id", "name", "made", "requests", "pending", "done", "failed", "cancelled"]
    assert [(row[0], row[1], *row[3:]) for row in rows[1:]] == [
        ("3", "night", "1", "1", "0", "0", "0"),
        ("2", "cats.csv", "3", "0", "3", "0", "0"),
        ("1", "cats.csv", "3", "0", "3", "0", "0"),
    ]
    newest = drained.run("submissions", "--limit", "1", "--json")
    assert [json.loads(line)["id"] for line in newest.stdout.splitlines()] == [3]
    assert newest.stderr.strip() == "the newest 1; --limit shows more"


@pytest.mark.parametrize("verb", ["submissions", "status"])
def test_one_submission_is_shown_with_its_states_and_what_became_of_its_requests(drained: Mill, verb: str) -> None:
    shown = drained.run(verb, "cats.csv").stdout.splitlines()
    assert shown[0].split() == ["submission", "1", "cats.csv"]
    assert shown[1].startswith("made        20")
    assert shown[1].endswith(" s ago, by cli")
    assert shown[2] == "requests    3: new 2  joined 1  reused 0"
    assert shown[3] == "states      waiting 0  ready 0  leased 0  offloaded 0  done 3  failed 0  cancelled 0"
    assert shown[4] == "next: millpond results cats.csv"
    told = json.loads(drained.run("--json", verb, "1").stdout)
    assert (told["id"], told["name"], told["source"], told["requests"], told["pending"]) == (1, "cats.csv", "cli", 3, 0)
    assert told["dispositions"] == {"new": 2, "joined": 1, "reused": 0}
    assert (told["states"]["done"], sum(told["states"].values())) == (3, 3)


def test_the_next_command_names_the_submission_so_that_no_other_is_meant(mill: Mill) -> None:
    with FaultLane(script=["ok", "400"]) as server:
        mill.settings(lanes={"free": chat(server, max_in_flight=1)})
        for name in ("my file.csv", "twice", "twice", "7"):
            mill.run("enqueue", "-", "--name", name, stdin="a\nb\n")
        mill.run("drain")
    ahead = [mill.run("submissions", name).stdout.splitlines()[-1] for name in ("1", "twice", "2", "4")]
    assert ahead == [
        f"next: millpond results {name} · millpond results {name} --failed" for name in ("'my file.csv'", "3", "2", "4")
    ]


@pytest.mark.parametrize("words", [["submissions"], ["status"], ["wait"], ["wait", "--timeout", "1s"], ["results"]])
def test_an_unknown_submission_is_one_line(drained: Mill, words: list[str]) -> None:
    [line] = drained.run(*words, "nobody", code=2).stderr.splitlines()
    assert line == "millpond: no submission 'nobody' in this queue; `millpond submissions` lists them"


def test_a_queue_without_submissions_says_so(mill: Mill) -> None:
    Queue.open(mill.home).close()
    for words in ([], ["--json"]):
        shown = mill.run("submissions", *words)
        assert (shown.stdout, shown.stderr.strip()) == ("", "no submissions")
    mill.run("wait")
    mill.run("status", "--exit-status")
    assert mill.run("events").stdout == ""


def test_the_exit_status_of_a_submission_speaks_of_it_alone(mill: Mill) -> None:
    with FaultLane(script=["400", "ok"]) as server:
        mill.settings(lanes={"free": chat(server, max_in_flight=1)})
        for name in ("bad", "good"):
            mill.run("enqueue", "-", "--name", name, stdin=f"{name}\n")
        mill.run("status", "good", "--exit-status", code=8)
        mill.run("drain")
    assert "results bad --failed" in mill.run("status", "bad", "--exit-status", code=3).stdout
    mill.run("status", "good", "--exit-status")
    mill.run("status", "bad")
    mill.run("status", "--exit-status", code=3)
    mill.run("cancel", "--filter", "submission:bad")
    mill.run("enqueue", "-", "--name", "gone", stdin="gone\n")
    mill.run("cancel", "--filter", "submission:gone")
    mill.run("status", "gone", "--exit-status")


def test_wait_says_when_all_have_their_end_and_8_when_the_time_is_up(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.run("enqueue", "-", "--name", "night", stdin="a\nb\n")
    mill.run("enqueue", "-", "--name", "later", stdin="c\n")
    late = mill.run("wait", "night", "--timeout", "20ms", code=8)
    assert late.stderr.splitlines() == ["nobody drains this queue; next: millpond drain", "still pending after 20ms"]
    assert "ready 2" in late.stdout
    mill.run("cancel", "--filter", "submission:later")
    mill.run("wait", "later")
    mill.run("wait", "--timeout", "1ms", code=8)
    mill.run("drain")
    assert "done 2" in mill.run("wait", "night", "--timeout", "1ms").stdout
    assert json.loads(mill.run("wait", "night", "--json").stdout)["done"] == 2
    everything = mill.run("wait").stdout.strip()
    assert everything == "waiting 0  ready 0  leased 0  offloaded 0  done 2  failed 0  cancelled 1"
    assert json.loads(mill.run("wait", "--json").stdout)["done"] == 2


def test_wait_tells_of_failures_only_where_it_is_asked_to(mill: Mill) -> None:
    with FaultLane(script=["400"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", "--name", "bad", stdin="a\n")
        mill.run("drain")
    mill.run("wait", "bad")
    mill.run("wait", "bad", "--exit-status", code=3)
    mill.run("wait", "--exit-status", code=3)
    assert "wanted a duration" in mill.run("wait", "--timeout", "soon", code=2).stderr


def test_wait_ends_when_another_process_has_drained(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.run("enqueue", "-", "--name", "night", stdin="a\nb\n")
    waits = [mill.start("wait", "night"), mill.start("wait")]
    for process in waits:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("nobody drains")
    mill.run("drain")
    for process in waits:
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "done 2" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_wait(mill: Mill, number: signal.Signals, code: int) -> None:
    mill.run("enqueue", "-", stdin="a\n")
    process = mill.start("wait")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("nobody drains")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, "")


def test_a_job_that_two_submissions_ask_for_outlives_the_cancel_of_one(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.run("enqueue", "-", "--name", "my file.csv", stdin="duck\nnewt\n")
    mill.run("enqueue", "-", "--name", "other", stdin="newt\n")
    words = 'submission:"my file.csv"'
    dry = mill.run("cancel", "--filter", words, code=2)
    assert dry.stdout.strip() == "would be cancelled: 1 · eligible 2 · 1 goes on for others who ask"
    assert mill.run("cancel", "--filter", words, "--dry-run").stdout == dry.stdout
    assert json.loads(mill.run("--json", "cancel", "--filter", words, "--dry-run").stdout) == {
        "eligible": 2, "done": 0, "skipped": 0, "reasons": {}, "goes_on": 1, "dry_run": True}  # fmt: skip
    assert mill.run("cancel", "--filter", words, "--yes").stdout.strip() == (
        "cancelled 1 · eligible 2 · 1 goes on for others who ask"
    )
    mill.run("drain")
    assert [json.loads(line)["text"] for line in mill.run("results", "other").stdout.splitlines()] == ["NEWT"]
    assert mill.run("results", "my file.csv").stdout == ""
    assert mill.run("retry", "--filter", words, "--yes").stdout.strip() == "retried 2 · eligible 2"
    mill.run("drain")
    answers = [json.loads(line)["text"] for line in mill.run("results", "my file.csv").stdout.splitlines()]
    assert answers == ["DUCK", "NEWT"]
    assert lane.accepted() == 2
