"""`millpond ledger`: a line a call, in order, unknown where it is unknown."""

from __future__ import annotations

import json

from folder import Mill, chat

from millpond.drill.faultlane import FaultLane


def cells(mill: Mill, *words: str) -> list[list[str]]:
    """The rows of the table below its heading: columns stand two blanks apart."""
    heading, *rows = mill.run("ledger", *words).stdout.splitlines()
    names = heading.split()
    starts = [heading.index(f"{name} " if name != names[-1] else name) for name in names]
    ends = [*starts[1:], None]
    return [[row[start:end].strip() for start, end in zip(starts, ends, strict=True)] for row in rows]


def test_the_ledger_is_a_table_in_the_order_of_the_calls(mill: Mill) -> None:
    with FaultLane(script=["503_proof", "ok", "400"]) as server:
        mill.settings(lanes={"free": chat(server, max_in_flight=1)}, backoff={"first_s": 0.01})
        mill.run("enqueue", "-", stdin="a\nb\n")
        mill.run("drain", "--until-empty")
    heading = mill.run("ledger").stdout.splitlines()[0].split()
    assert heading == ["seq", "job", "lane", "outcome", "code", "started", "took", "tokens", "cost", "answers"]
    rows = cells(mill)
    assert [row[:5] for row in rows] == [
        ["1", "1", "free", "retryable", "overloaded"],
        ["2", "2", "free", "ok", "-"],
        ["3", "1", "free", "permanent", "invalid_request"],
    ]
    assert [row[7:] for row in rows] == [["-", "$0.00", "-"], ["1 + 5", "$0.00", "yes"], ["-", "$0.00", "-"]]
    assert all(row[5].endswith("Z") for row in rows)
    assert all(row[6].endswith("s") for row in rows)


def test_what_is_not_known_is_said_to_be_unknown(mill: Mill) -> None:
    with FaultLane(script=["reset"]) as server:
        settings = chat(server, after_hold="fail", hold_s=0)
        del settings["price"]
        mill.settings(lanes={"paid": settings})
        mill.run("enqueue", "-", stdin="a\n")
        mill.run("drain")
    [row] = cells(mill)
    assert row[2:4] == ["paid", "ambiguous/fail"]
    assert row[7:] == ["unknown", "unknown", "-"]
    [told] = mill.run("--json", "ledger").stdout.splitlines()
    attempt = json.loads(told)
    assert (attempt["outcome"], attempt["resolution"], attempt["cost"], attempt["tokens_in"]) == (
        "ambiguous", "fail", None, None)  # fmt: skip


def test_an_open_call_says_so(mill: Mill) -> None:
    with FaultLane(mix={"hang": 1.0}) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        process = mill.start("drain")
        assert server.wait_for(1, 30)
        [row] = cells(mill)
        process.kill()
        process.communicate()
    assert row[3] == "open"
    assert row[6].endswith("so far")
    assert row[7:] == ["unknown", "unknown", "-"]


def test_the_last_calls_are_shown_and_those_of_one_job(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane, max_in_flight=1)})
    mill.run("enqueue", "-", stdin="a\nb\nc\n")
    mill.run("drain")
    shown = mill.run("ledger", "--limit", "2", "--json")
    assert [json.loads(line)["seq"] for line in shown.stdout.splitlines()] == [2, 3]
    assert shown.stderr.strip() == "the last 2; --limit shows more"
    assert [row[:2] for row in cells(mill, "2")] == [["2", "2"]]
    assert [line.split() for line in mill.run("ledger", "--json", "2").stdout.splitlines()]
    assert "no job 9" in mill.run("ledger", "9", code=2).stderr
    assert "wanted the id of a job" in mill.run("ledger", "x", code=2).stderr


def test_no_calls_are_no_table(mill: Mill) -> None:
    mill.run("enqueue", "-", stdin="a\n")
    for words, told in (
        ([], "no call was made"),
        (["1"], "no call was made for job 1"),
        (["--json"], "no call was made"),
    ):
        shown = mill.run("ledger", *words)
        assert (shown.stdout, shown.stderr.strip()) == ("", told)
