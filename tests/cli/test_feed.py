"""`millpond events` and `millpond watch`: a line a change, from a cursor or from now on, until somebody ends it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane


def test_events_are_lines_that_begin_with_their_cursor(drained: Mill) -> None:
    shown = drained.run("events")
    lines = shown.stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == list(range(1, len(lines) + 1))
    assert re.fullmatch(r" +1  20\S+Z enqueue job 1: request 1 asks for it", lines[0])
    assert any(line.endswith("enqueue job 1: request 3 joined it, and is not billed") for line in lines)
    assert any(line.endswith("answer job 2: answered by lane free") for line in lines)
    assert shown.stderr.strip() == f"that is all for now; next: millpond events --after {len(lines)}"


def test_a_script_reads_on_from_the_last_cursor(drained: Mill) -> None:
    whole = [json.loads(line) for line in drained.run("events", "--json").stdout.splitlines()]
    assert whole[0].keys() == {"cursor", "at_ms", "kind", "job_id", "submission_id", "data"}
    read: list[object] = []
    cursor: list[str] = []
    while page := drained.run("events", "--json", "--limit", "4", *cursor).stdout.splitlines():
        assert len(page) <= 4
        read += map(json.loads, page)
        cursor = ["--after", json.loads(page[-1])["cursor"]]
    assert read == whole
    nothing = drained.run("events", *cursor)
    assert (nothing.stdout, nothing.stderr.strip()) == (
        "", f"that is all for now; next: millpond events --after {cursor[1]}")  # fmt: skip
    assert drained.run("events", "--limit", "4").stderr.strip() == "more: millpond events --after 4"


@pytest.mark.parametrize("cursor", ["x", "-1", "1.5", "99999", "9" * 30, ""])
def test_a_cursor_that_is_none_of_this_queue_is_refused(drained: Mill, cursor: str) -> None:
    for follow in ([], ["--follow"]):
        [line] = drained.run("events", f"--after={cursor}", *follow, code=2).stderr.splitlines()
        assert line.startswith(f"millpond: cursor {cursor!r}: ")


@contextmanager
def following(mill: Mill, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said that it watches, or has shown its first event; killed if it is still there."""
    process = mill.start(*words)
    try:
        if words[0] == "watch":
            assert process.stderr is not None
            assert process.stderr.readline() == f"watching {mill.home} from now on; Ctrl-C ends it\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def lines_of(process: subprocess.Popen[str], n: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip() for _ in range(n)]


def test_watch_starts_now_and_shows_each_change_of_any_process(drained: Mill) -> None:
    with following(drained, "watch") as process:
        drained.run("enqueue", "-", stdin="a duck\n")
        [line] = lines_of(process, 1)
        assert re.fullmatch(r"\d\d:\d\d:\d\d enqueue job 3: request 4 asks for it", line)
        assert drained.process("cancel", "3").returncode == 0
        [line] = lines_of(process, 1)
        assert line[9:] == "cancel job 3: nobody asks for it any more"


def test_watch_in_json_is_an_object_a_line(drained: Mill) -> None:
    with following(drained, "--json", "watch") as process:
        pass
    with following(drained, "watch", "--json") as process:
        drained.run("cancel", "1", code=1)
        drained.run("enqueue", "-", stdin="a duck\n")
        event = json.loads(lines_of(process, 1)[0])
    assert (event["kind"], event["job_id"], event["data"]) == ("enqueue", 3, {"request_id": 4, "disposition": "new"})


def test_watch_shows_only_the_jobs_that_its_filter_admits(drained: Mill) -> None:
    with following(drained, "watch", "--filter", "submission:mine -newt") as process:
        drained.run("enqueue", "-", "--name", "other", stdin="an owl\n")
        drained.run("enqueue", "-", "--name", "mine", stdin="a newt\na duck\n")
        assert [line[9:] for line in lines_of(process, 1)] == ["enqueue job 5: request 6 asks for it"]
        drained.run("cancel", "4", "5")
        assert [line[9:] for line in lines_of(process, 1)] == ["cancel job 5: nobody asks for it any more"]
    assert "did you mean state:failed" in drained.run("watch", "--filter", "state:faild", code=2).stderr


def test_events_may_follow(drained: Mill) -> None:
    with following(drained, "events", "--follow", "--after", "5") as process:
        assert lines_of(process, 1)[0].split()[0] == "6"
        n = int(drained.run("events").stderr.split()[-1])
        lines_of(process, n - 6)
        drained.run("enqueue", "-", stdin="a duck\n")
        assert lines_of(process, 1)[0].split()[0] == str(n + 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 143
    limited = drained.process("events", "--follow", "--limit", "2")
    assert (limited.returncode, len(limited.stdout.splitlines())) == (0, 2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_watch_without_a_word(drained: Mill, number: signal.Signals, code: int) -> None:
    with following(drained, "watch") as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (code, "", "")


def test_a_closed_pipe_ends_a_watch_at_once(drained: Mill) -> None:
    """`millpond watch | head -1`: it ends when its reader does, not at the next change."""
    with following(drained, "watch") as process:
        drained.run("enqueue", "-", stdin="a duck\n")
        lines_of(process, 1)
        assert process.stdout is not None
        process.stdout.close()
        assert process.wait(30) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_reader_that_leaves_ends_a_listing(drained: Mill) -> None:
    for verb in ("events", "ledger", "submissions", "jobs"):
        process = subprocess.run(
            ["sh", "-c", '"$@" | true; :', "sh", *mill_words(drained, verb, "--json")],
            cwd=drained.folder, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (process.returncode, "Traceback" in process.stderr, "Broken" in process.stderr) == (0, False, False)


def mill_words(mill: Mill, *words: str) -> list[str]:
    process = mill.start(*words)
    process.communicate(timeout=60)
    assert isinstance(process.args, list)
    return [str(word) for word in process.args]


def test_what_a_lane_says_is_shown_and_not_obeyed(mill: Mill) -> None:
    with FaultLane(script=["400"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        mill.run("drain")
    [failed] = [line for line in mill.run("events").stdout.splitlines() if " fail job 1" in line]
    assert "failed: " in failed
    assert "\x1b" not in failed
