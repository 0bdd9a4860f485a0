"""Rows go in by `enqueue` and come out by `results`, in order, with what was carried."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
import threading
from typing import Any

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import terminal


def lines(text: str) -> list[dict[str, Any]]:
    """JSON lines as values."""
    return [json.loads(line) for line in text.splitlines()]


def test_one_id_a_row_in_the_order_of_the_file_and_the_counts_on_stderr(mill: Mill) -> None:
    mill.file("asked.jsonl", '{"task": "a"}\n{"task": "b"}\n{"task": "a"}\n')
    first = mill.run("enqueue", "asked.jsonl")
    assert first.stdout.split() == ["1", "2", "1"]
    assert first.stderr.splitlines()[0] == "2 new · 1 joined · 0 reused · 0 refused"
    again = mill.run("enqueue", "asked.jsonl")
    assert again.stdout == first.stdout
    assert again.stderr.startswith("0 new · 3 joined · 0 reused · 0 refused")


def test_a_refused_line_is_named_and_the_good_ones_are_in(mill: Mill) -> None:
    mill.file("asked.jsonl", '{"task": "a"}\n{"tsk": "b"}\nno json\n{"task": "c"}\n')
    done = mill.run("enqueue", "asked.jsonl", code=1)
    assert done.stdout.split() == ["1", "2"]
    second, third, counts = done.stderr.splitlines()
    assert second.startswith("asked.jsonl line 2: unknown key 'tsk'; did you mean 'task'?")
    assert third.startswith("asked.jsonl line 3: ")
    assert counts == "2 new · 0 joined · 0 reused · 2 refused"


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_terminal_is_not_flooded_with_refusals(
    mill: Mill, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda stream=None: is_terminal and stream is sys.stderr)
    mill.file("rows.csv", "q,a\n" + ",1\n" * 296)
    told = mill.run("enqueue", "rows.csv", "--task", "{q}?", code=1).stderr.splitlines()
    named = [line for line in told if line.startswith("rows.csv line ")]
    assert len(named) == (20 if is_terminal else 296)
    assert [line for line in told if line.startswith("and 276 more")] == told[20:21] * is_terminal
    assert told[-1].endswith("296 refused")


@pytest.mark.parametrize("rows", [["two.txt"], ["one.txt", "one.txt"], ["-"]])
def test_a_key_is_for_a_single_row(mill: Mill, rows: list[str]) -> None:
    mill.file("one.txt", "a\n")
    mill.file("two.txt", "a\nb\n")
    refused = mill.run("enqueue", *rows, "--key", "mine", code=2, stdin="a\nb\n")
    assert (refused.stdout, len(refused.stderr.splitlines())) == ("", 1)
    assert "--key" in refused.stderr
    assert not mill.home.exists()
    assert mill.run("enqueue", "one.txt", "--key", "mine").stdout.split() == ["1"]


def test_refusals_speak_of_options_and_not_of_python(mill: Mill) -> None:
    mill.file("rows.csv", "question,n\nx,1\n")
    mill.file("rows.dat", "x\n")
    mill.file("list", "[{}]\n")
    for name in ("rows.csv", "rows.dat", "list"):
        words = mill.run("enqueue", name, code=2).stderr
        assert not re.search(r"\b(map|task|format)=", words), words


def test_strict_takes_all_rows_or_none(mill: Mill) -> None:
    mill.file("asked.jsonl", '{"task": "a"}\n{"tsk": "b"}\n')
    refused = mill.run("enqueue", "--strict", "asked.jsonl", code=1)
    assert refused.stdout == ""
    assert "nothing was taken in" in refused.stderr
    assert json.loads(mill.run("--json", "status").stdout)["counts"]["ready"] == 0
    mill.file("asked.jsonl", '{"task": "a"}\n{"task": "b"}\n')
    assert mill.run("enqueue", "--strict", "asked.jsonl").stdout.split() == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        ("rows.csv", "n,animal\n1,cat\n2,bird\n", ["--task", "A {animal}?"]),
        ("rows.jsonl", '{"n": "1", "animal": "cat"}\n{"n": "2", "animal": "bird"}\n', ["--task", "A {animal}?"]),
        ("rows.csv", "n,animal\n1,A cat?\n2,A bird?\n", ["--map", "task=animal"]),
        ("rows.txt", "A cat?\nA bird?\n", []),
    ],
)
def test_columns_that_are_not_mapped_come_back(
    mill: Mill, lane: FaultLane, name: str, text: str, options: list[str]
) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.file(name, text)
    mill.run("enqueue", name, *options)
    mill.run("drain")
    found = lines(mill.run("results", name).stdout)
    assert [one["text"] for one in found] == ["A CAT?", "A BIRD?"]
    assert [one["position"] for one in found] == [0, 1]
    animals = [{"animal": "cat"}, {"animal": "bird"}] if "--task" in options else [{}, {}]
    if name != "rows.txt":
        assert [one["carried"] for one in found] == [{"n": "1", **animals[0]}, {"n": "2", **animals[1]}]


def test_standard_input_is_a_file_like_others(mill: Mill) -> None:
    assert mill.run("enqueue", "-", stdin="a\nb\n").stdout.split() == ["1", "2"]
    assert mill.run("enqueue", "--name", "mine", stdin='{"task": "c"}\n').stdout.split() == ["3"]
    names = [line.split()[1] for line in mill.run("submissions").stdout.splitlines()[1:]]
    assert names == ["mine", "stdin"]


def test_a_pipe_by_name_is_read_once(mill: Mill) -> None:
    pipe = mill.folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("a\nb\n"))
    writer.start()
    assert mill.run("enqueue", "pipe").stdout.split() == ["1", "2"]
    writer.join()


def test_results_keep_ids_order_and_who_paid(drained: Mill) -> None:
    found = lines(drained.run("results", "cats.csv").stdout)
    assert [one["custom_id"] for one in found] == ["a", "b", "c"]
    assert [one["carried"] for one in found] == [
        {"animal": animal, "legs": legs} for animal, legs in (("cat", "4"), ("bird", "2"), ("cat", "4"))
    ]
    assert found[0]["text"] == found[2]["text"] == "HOW MANY LEGS HAS A CAT?"
    assert [one["disposition"] for one in found] == ["new", "new", "joined"]
    assert [one["cost"] for one in found] == [0, 0, None]


def test_csv_results_have_the_carried_columns_under_their_names(drained: Mill) -> None:
    told = drained.run("results", "-o", "out.csv")
    assert told.stdout == ""
    assert told.stderr.strip() == "wrote 3 results to out.csv"
    with (drained.folder / "out.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:2] == ["animal", "legs"]
    assert [(row["legs"], row["custom_id"], row["text"]) for row in rows] == [
        ("4", "a", "HOW MANY LEGS HAS A CAT?"),
        ("2", "b", "HOW MANY LEGS HAS A BIRD?"),
        ("4", "c", "HOW MANY LEGS HAS A CAT?"),
    ]
    assert list(csv.DictReader(io.StringIO(drained.run("results", "--format", "csv").stdout))) == rows


def test_a_carried_column_that_bears_a_name_of_ours_is_kept_beside_it(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.file("rows.csv", "q,text\nduck?,original\n")
    mill.run("enqueue", "rows.csv", "--map", "task=q")
    mill.run("drain")
    [row] = csv.DictReader(io.StringIO(mill.run("results", "--format", "csv").stdout))
    assert (row["carried.text"], row["text"]) == ("original", "DUCK?")


def test_what_is_not_in_a_results_file_is_said(mill: Mill) -> None:
    with FaultLane(script=["ok", "400"]) as server:
        mill.settings(lanes={"free": chat(server, serial=True)})
        mill.run("enqueue", "-", "--name", "four", stdin="a\nb\nc\nd\n")
        mill.run("drain", "--max-jobs", "2")
    mill.run("cancel", "4")
    for which in ([], ["four"]):
        told = mill.run("results", *which, "-o", "out.csv").stderr.splitlines()
        assert told == ["wrote 1 result to out.csv", "not in it: 1 failed (--failed), 1 cancelled, 1 pending"]
    told = mill.run("results", "--failed", "-o", "out.csv").stderr.splitlines()
    assert told[1] == "not in it: 1 done (without --failed), 1 cancelled, 1 pending"
    mill.run("enqueue", "-", "--name", "none", stdin="a\n")
    assert mill.run("results", "none", "-o", "out.csv").stderr.splitlines() == ["wrote 1 result to out.csv"]


@pytest.mark.parametrize(("name", "first"), [("o.csv", "a"), ("o.JSONL", "{"), ("o.json", "{"), ("o", "{")])
def test_the_suffix_says_the_format_of_results(drained: Mill, name: str, first: str) -> None:
    drained.run("results", "-o", name)
    assert (drained.folder / name).read_text()[0] == first


def test_a_suffix_that_says_no_format_is_refused_unless_one_is_said(drained: Mill) -> None:
    assert "unknown suffix '.xlsx'" in drained.run("results", "-o", "out.xlsx", code=2).stderr
    assert not (drained.folder / "out.xlsx").exists()
    drained.run("results", "-o", "out.xlsx", "--format", "csv")
    assert (drained.folder / "out.xlsx").exists()


def test_a_results_file_appears_whole_or_not_at_all(drained: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    out = drained.file("out.jsonl", "before\n")

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        refused = drained.run("results", "-o", "out.jsonl", code=74)
    assert refused.stderr.splitlines() == [
        "millpond: out.jsonl: cannot be written (No space left on device); name another file with -o"
    ]
    assert out.read_text() == "before\n"
    before = out.stat().st_ino
    drained.run("results", "-o", "out.jsonl")
    assert len(lines(out.read_text())) == 3
    assert out.stat().st_ino != before, "it was not renamed over the old one"
    assert [path.name for path in drained.folder.iterdir() if path.name.endswith(".part")] == []


def test_failed_requests_have_results_of_their_own(mill: Mill) -> None:
    with FaultLane(script=["400"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        mill.run("drain")
    assert "no results" in mill.run("results").stderr
    [failed] = lines(mill.run("results", "--failed").stdout)
    assert failed["error"]["code"] == "invalid_request"
    [row] = csv.DictReader(io.StringIO(mill.run("results", "--failed", "--format", "csv").stdout))
    assert row["error_code"] == "invalid_request"


def test_reused_answers_say_whose_they_are_and_fresh_asks_again(drained: Mill) -> None:
    options = ["enqueue", "cats.csv", "--task", "How many legs has a {animal}?", "--map", "custom_id=id"]
    again = drained.run(*options)
    assert again.stdout.split() == ["1", "2", "1"]
    counts, reused = again.stderr.splitlines()
    assert counts == "0 new · 0 joined · 3 reused · 0 refused"
    assert reused.startswith("reused: answered 3 by m, up to ")
    assert reused.endswith("--fresh asks again")
    fresh = drained.run(*options, "--fresh")
    assert fresh.stderr.startswith("2 new · 1 joined · 0 reused")


def test_each_separate_and_sample_ask_again_on_purpose(mill: Mill) -> None:
    mill.file("same.txt", "a\na\n")
    assert mill.run("enqueue", "same.txt", "--each").stdout.split() == ["1", "2"]
    assert mill.run("enqueue", "same.txt", "--each").stdout.split() == ["1", "2"]
    assert mill.run("enqueue", "same.txt", "--separate").stdout.split() == ["3", "4"]
    assert mill.run("enqueue", "same.txt", "--sample", "9").stdout.split() == ["5", "5"]


def test_options_reach_the_job(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.file("shape.json", '{"type": "string"}')
    mill.run("enqueue", "-", "--priority", "3", "--class", "realtime", "--due", "2h", "--lane", "free", "--key", "mine",
             "--intent", "label", "--model", "m", "--param", "temperature=0.5", "--system", "Be brief.",
             "--schema", "shape.json", stdin="a\n")  # fmt: skip
    job = json.loads(mill.run("--json", "show", "1").stdout)
    assert (job["priority"], job["service_class"], job["idempotency_key"]) == (3, "realtime", "mine")
    assert 7_100_000 < job["due_ms"] - job["created_ms"] <= 7_200_000
    words = mill.run("show", "1").stdout
    for part in ('"intent":"label"', '"model":"m"', '"temperature":0.5', '"system":"Be brief."', '"type":"string"'):
        assert part in words


def test_a_row_keeps_its_own_intent_and_model(mill: Mill) -> None:
    asked = '{"task": "a", "intent": "own", "model": "mine"}\n{"task": "b"}\n'
    mill.run("enqueue", "-", "--intent", "label", "--model", "m", stdin=asked)
    for job, parts in (("1", ('"intent":"own"', '"model":"mine"')), ("2", ('"intent":"label"', '"model":"m"'))):
        words = mill.run("show", job).stdout
        assert all(part in words for part in parts)


def test_json_receipts_say_everything(mill: Mill) -> None:
    [receipt] = lines(mill.run("--json", "enqueue", "-", stdin="a\n").stdout)
    assert receipt["job_id"] == receipt["request_id"] == receipt["submission_id"] == 1
    assert receipt["disposition"] == "new"
