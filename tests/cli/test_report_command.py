"""`report`: the ledger added up, in words and as JSON."""

from __future__ import annotations

import json

from folder import Mill, chat

from millpond.drill.faultlane import FaultLane


def test_a_drained_file_is_reported_in_words(drained: Mill) -> None:
    words = drained.run("report").stdout
    assert words.startswith("2 jobs, 2 attempts since ")
    for line in (
        "executions/artifact  1.00",
        "duplicate artifacts  0 ",
        "saved by dedup       1 ",
        "\nfree  2         2 ",
    ):
        assert line in words


def test_json_has_every_number_and_null_where_nothing_is_known(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane, price=None)})
    mill.run("enqueue", "-", stdin="a\nb\na\n")
    assert mill.run("drain").stdout.splitlines()[-1] == "next: millpond results -o out.jsonl · millpond report"
    found = json.loads(mill.run("--json", "report").stdout)
    assert found["spent"] == {"calls": 2, "known_usd": 0, "unpriced": 2}
    assert found["saved"] == {"calls": 1, "known_usd": 0, "unpriced": 1}
    assert (found["artifacts_in_force"], found["crossings"], found["published"]["duplicates"]) == (2, 0, {})
    assert found["by_lane"]["free"]["ok"] == 2
    assert "spent                unknown" in mill.run("report").stdout


def test_reporting_makes_no_queue(mill: Mill) -> None:
    assert "no queue at" in mill.run("report", code=2).stderr
    assert not mill.home.exists()
    mill.file("asked.txt", "a\n")
    mill.run("enqueue", "asked.txt")
    assert mill.run("report").stdout == "the ledger is empty: nothing was sent yet\n"
    assert json.loads(mill.run("report", "--json").stdout)["tokens_per_artifact"] is None
