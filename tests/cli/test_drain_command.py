"""`drain` as a process: what it says, its signals, its lock."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane


@contextmanager
def draining(mill: Mill, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A drain that has said that it drains; ended afterwards, however the test went."""
    process = mill.start("drain", *words)
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("draining "), first or process.communicate()[1]
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_piped_drain_says_one_line_an_event_and_a_summary(mill: Mill) -> None:
    with FaultLane(per_prompt={"one": ["503_proof", "ok"], "two": ["400"]}) as server:
        mill.settings(lanes={"free": chat(server)}, backoff={"first_s": 0.01})
        mill.run("enqueue", "-", stdin="one\ntwo\none\n")
        told = mill.run("drain").stdout.splitlines()
    assert re.fullmatch(rf"draining {mill.home}  pid \d+  lanes free", told[0])
    events = [line.split(" ", 1)[1] for line in told[1:-2]]
    assert {event.partition(":")[0] for event in events} == {
        "ended job 1 free", "ended job 2 free", "failed job 2 free", "done job 1 free",
    }  # fmt: skip
    assert told[-2].startswith("done 1 · failed 1 · spent $0.00 · saved by dedup 1 ($0.00) · paid twice 0 · ")
    assert told[-1] == "next: millpond results -o out.jsonl · millpond results --failed"


def test_json_is_the_summary_alone_on_stdout(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane, price={"call_usd": 0.25})})
    mill.run("enqueue", "-", stdin="a\nb\na\n")
    told = mill.run("--json", "drain")
    summary = json.loads(told.stdout)
    assert (summary["done"], summary["reason"], summary["holder"]) == (2, "empty", None)
    assert (summary["spent_usd"], summary["saved_usd"], summary["by_lane"]["free"]["spent_usd"]) == (0.5, 0.25, 0.5)
    assert "done job 1 free" in told.stderr


def test_max_jobs_and_lanes_are_obeyed(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane), "other": chat(lane)})
    mill.run("enqueue", "-", stdin="a\nb\nc\n")
    assert json.loads(mill.run("--json", "drain", "--max-jobs", "1", "--lanes", "other").stdout)["done"] == 1
    assert [json.loads(line)["lane"] for line in mill.run("results").stdout.splitlines()] == ["other"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_first_signal_lets_calls_in_flight_end(mill: Mill, number: signal.Signals, code: int) -> None:
    with FaultLane(mix={"slow": 1.0}, slow_s=1.0) as server:
        mill.settings(lanes={"free": chat(server, max_in_flight=2)})
        mill.run("enqueue", "-", stdin="a\nb\nc\nd\n")
        with draining(mill) as process:
            assert server.wait_for(2, 30)
            process.send_signal(number)
            out, err = process.communicate(timeout=30)
        assert process.returncode == code, err
        assert server.accepted() == 2, "no new call was made"
    assert "stopping: 2 in flight may finish; once more gives them up" in out
    assert "done 2 " in out
    assert json.loads(mill.run("--json", "status").stdout)["counts"]["ready"] == 2


def test_the_second_signal_gives_up_what_is_in_flight(mill: Mill) -> None:
    with FaultLane(mix={"hang": 1.0}) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\nb\n")
        with draining(mill) as process:
            assert server.wait_for(2, 30)
            process.send_signal(signal.SIGINT)
            assert process.stdout is not None
            while "stopping: 2 in flight" not in process.stdout.readline():
                pass
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert process.returncode == 130, err
    assert "giving up what is in flight" in out
    [attempt] = json.loads(mill.run("--json", "explain", "1").stdout)["attempts"]
    assert attempt["outcome"] == "ambiguous", "what became of it is unknown"


def test_the_grace_bounds_the_first_signal(mill: Mill) -> None:
    with FaultLane(mix={"hang": 1.0}) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        with draining(mill, "--grace", "0.1") as process:
            assert server.wait_for(1, 30)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        assert process.returncode == 143


def test_no_thread_of_a_handler_keeps_the_process_beyond_the_grace(mill: Mill) -> None:
    began = mill.folder / "began"
    os.mkfifo(began)
    mill.file("slow.py", f"import time\n\ndef ask(work):\n    open({str(began)!r}, 'w')\n    time.sleep(600)\n")
    mill.settings(lanes={"free": {"kind": "python", "target": "slow:ask", "price": 0, "effects": True}})
    mill.run("enqueue", "-", stdin="a\n")
    with draining(mill, "--grace", "0.1") as process:
        began.read_text()
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 143, err
    [attempt] = json.loads(mill.run("--json", "explain", "1").stdout)["attempts"]
    assert attempt["outcome"] == "ambiguous", "what became of it is unknown"


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ("nan", "'nan' is not a valid number of seconds"),
        ("abc", "'abc' is not a valid number of seconds"),
        ("inf", "inf is not in the range 0<=x<=86400"),
        ("-1", "-1.0 is not in the range 0<=x<=86400"),
        ("86401", "86401.0 is not in the range 0<=x<=86400"),
    ],
)
def test_a_grace_that_is_no_span_is_refused_before_anything_is_made(mill: Mill, found: str, fault: str) -> None:
    told = mill.process("drain", "--grace", found)
    assert told.returncode == 2
    assert told.stderr.splitlines() == [f"millpond: invalid value for '--grace': {fault}; see millpond drain --help"]
    assert not mill.home.exists()


def test_a_second_drain_exits_75_and_names_the_holder(mill: Mill) -> None:
    with FaultLane(mix={"hang": 1.0}) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        with draining(mill) as process:
            second = mill.process("--json", "drain")
            assert second.returncode == 75
            [line] = second.stderr.splitlines()
            assert f"pid {process.pid} on " in line
            summary = json.loads(second.stdout)
            assert summary["reason"] == "lock_held"
            assert f"pid {process.pid} on " in summary["holder"]
            status = json.loads(mill.run("--json", "status").stdout)
            assert status["drainer"]["pid"] == process.pid
            assert mill.run("status").stdout.splitlines()[0].split("  ")[1].startswith(f"draining: pid {process.pid}")


def test_a_faultlane_of_its_own_serves_until_a_signal(mill: Mill) -> None:
    process = mill.start("faultlane", "--mix", "400=1", "--seed", "3")
    try:
        assert process.stdout is not None
        base_url = process.stdout.readline().strip()
        mill.settings(lanes={"free": {"kind": "chat", "price": 0, "base_url": base_url, "model": "m"}})
        mill.run("enqueue", "-", stdin="a\nb\n")
        assert "failed 2" in mill.run("drain").stdout
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert process.returncode == 143
        assert out.strip() == "accepted 2 · completed 0 · 400=2"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}])
def test_on_a_terminal_a_live_screen_shows_lanes_and_events(mill: Mill, environment: dict[str, str]) -> None:
    with FaultLane(mix={"slow": 1.0}, slow_s=0.6, answer=lambda body: "x") as server:
        mill.settings(lanes={"free": chat(server, max_in_flight=2)})
        mill.run("enqueue", "-", stdin="a\nb\nc\na\n")
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "millpond", "drain"],
            cwd=mill.folder,
            env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **environment},
            stdout=theirs,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # Linux says EIO where the other end of a terminal has closed
            while piece := os.read(ours, 65_536):
                shown += piece
        os.close(ours)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    text = shown.decode()
    for part in ("millpond drain", "3/3", "slots", "2/2", "saved by dedup 1", "done job 1 free", "paid twice 0"):
        assert part in text, part
    assert text.rstrip().endswith("next: millpond results -o out.jsonl")
    colours = re.findall(r"\x1b\[(?:\d+;)*(?:3[0-7]|38;\d+;\d+)(?:;\d+)*m", text)
    assert bool(colours) is not bool(environment)


def test_a_job_that_no_lane_can_serve_is_told_of_when_it_fails(mill: Mill) -> None:
    mill.settings(lanes={"up": {"kind": "command", "price": 0, "command": ["cat"]}})
    mill.run("enqueue", "-", stdin='{"task": "x", "model": "nope"}\n')
    told = mill.run("drain").stdout
    assert "failed job 1: unfit: no configured lane can serve this work: up does not offer the model 'nope'" in told
    assert "done 0 · failed 1" in told


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
@pytest.mark.parametrize("json_too", [False, True])
def test_events_that_cannot_be_written_end_a_drain_with_a_word_and_74(mill: Mill, json_too: bool) -> None:
    """A full disk is no reader that left: that ends it too, with 1 and not a word, and nobody is left to be told."""
    mill.settings(lanes={"p": {"kind": "command", "price": 0, "command": ["cat"]}})
    mill.run("enqueue", "-", stdin="one\n")
    command = [sys.executable, "-m", "millpond", *(["--json"] if json_too else []), "drain"]
    with open("/dev/full", "w") as full:
        streams = (
            {"stdout": subprocess.PIPE, "stderr": full} if json_too else {"stdout": full, "stderr": subprocess.PIPE}
        )
        done = subprocess.run(command, cwd=mill.folder, text=True, timeout=60, **streams)  # type: ignore[call-overload]
    assert done.returncode == 74
    if json_too:
        assert json.loads(done.stdout)["reason"] == "signal"
    else:
        assert done.stderr == "millpond: <stdout>: No space left on device; events are told no more; make room\n"
    mill.run("drain")  # what is left, if the event that could not be written was not its last
    assert json.loads(mill.run("--json", "status").stdout)["counts"]["done"] == 1
