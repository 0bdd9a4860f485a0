"""Rows go in by `enqueue` and come out by `results`, in order, with what was carried."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import threading
import tracemalloc
from typing import Any

import pytest
from folder import Mill, chat

import millpond.rows.lines
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


@pytest.mark.parametrize("dry_run", [[], ["--dry-run"]])
def test_strict_names_each_key_that_names_other_work_and_takes_nothing(mill: Mill, dry_run: list[str]) -> None:
    mill.run("enqueue", "-", "--key", "kk", stdin="taken\n")
    works = [("a", "ka"), ("b", "kk"), ("c", "kc"), ("d", "ka")]
    mill.file("c.jsonl", "\n" + "".join(json.dumps({"task": task, "key": key}) + "\n" for task, key in works))
    mill.file("next.txt", "next\n")
    told = mill.run("enqueue", "--strict", *dry_run, "c.jsonl", "next.txt", code=1)
    refused = [line.partition(" already")[0] for line in told.stderr.splitlines() if "already names" in line]
    assert refused == ["c.jsonl line 3: key 'kk'", "c.jsonl line 5: key 'ka'"]
    assert told.stdout.split() == ["2"] or dry_run
    names = [line.split()[1] for line in mill.run("submissions").stdout.splitlines()[1:]]
    assert names == [*([] if dry_run else ["next.txt"]), "stdin"]


def test_strict_holds_no_more_memory_for_more_rows(mill: Mill) -> None:
    def peak(rows: int, *options: str) -> int:
        mill.file("rows.txt", "".join(f"How many ducks swim in pond {n}?\n" for n in range(rows)))
        tracemalloc.start()
        try:
            mill.run("enqueue", *options, "rows.txt", "--name", str(rows))
            return tracemalloc.get_traced_memory()[1] - len("1234\n") * rows  # what the test's own stdout holds
        finally:
            tracemalloc.stop()

    peak(1)
    plain, strict = peak(2_000), peak(12_000, "--strict")
    assert strict < 1.5 * plain + 2_000_000


def test_what_is_taken_in_is_counted_though_the_reader_has_left(mill: Mill) -> None:
    mill.file("rows.txt", "".join(f"{n}\n" for n in range(1_200)))
    for options in ([], ["--strict"]):
        started = mill.start("enqueue", "rows.txt", "--separate", *options)
        assert started.stdout is not None
        started.stdout.close()
        assert started.stderr is not None
        told = started.stderr.read()
        assert started.wait(60) == 1
        stored = next(line.split()[3] for line in mill.run("submissions").stdout.splitlines()[1:])
        assert told.startswith(f"{int(stored):,} new ·")
        assert stored == ("1200" if options else "500")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
def test_what_is_taken_in_is_counted_though_stdout_is_full(mill: Mill) -> None:
    mill.file("rows.txt", "a\nb\nc\n")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "millpond", "enqueue", "rows.txt"]
        done = subprocess.run(command, cwd=mill.folder, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 74
    assert done.stderr.startswith("3 new · 0 joined")


def test_rows_before_a_line_that_spoils_the_file_are_taken_in(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(millpond.rows.lines, "MAX_LINE_BYTES", 100)
    for good in (500, 700):
        mill.file("long.jsonl", "".join(f'{{"task": "{good} {n}"}}\n' for n in range(good)) + "x" * 101)
        words = f"millpond: long.jsonl line {good + 1}: found more than 100 bytes, wanted shorter lines; nothing after "
        told = mill.run("enqueue", "long.jsonl", "--strict", code=2)
        assert told.stdout == ""
        assert told.stderr.splitlines()[0].startswith("0 new")
        assert words in told.stderr
        for options in (["--dry-run"], ["--dry-run", "--strict"]):
            told = mill.run("enqueue", "long.jsonl", *options, code=2)
            assert (told.stdout, words in told.stderr) == ("", True)
        told = mill.run("enqueue", "long.jsonl", code=2)
        assert len(told.stdout.split()) == good
        assert told.stderr.splitlines()[0].startswith(f"{good} new · 0 joined")
        assert f"{words}line {good} was read" in told.stderr


def test_what_follows_a_broken_csv_row_is_not_asked(mill: Mill) -> None:
    mill.file("q.csv", 'text\nWhat is 1+1?\n"The "duck" said:\nline two of the same cell\nline three"\nWhat is 2+2?\n')
    told = mill.run("enqueue", "q.csv", "--map", "task=text", code=1)
    assert told.stdout.split() == ["1"]
    assert told.stderr.splitlines()[0].startswith("q.csv line 3: found broken CSV: ")
    assert told.stderr.splitlines()[1] == "1 new · 0 joined · 0 reused · 1 refused"
    assert mill.run("enqueue", "--strict", "q.csv", "--map", "task=text", code=1).stdout == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-", "-"], "found - more than once, wanted it once"),
        (["-", "--map", "task=text", "--map", "task=a"], "--map: found 'task' twice, wanted each name once"),
        (["-", "--param", "a=1", "--param", "a=2"], "--param: found 'a' twice"),
        (["-", "--sample", "9" * 20], "sample: found an int, wanted a whole number from 0"),
        (["-", "--sample", "1", "--separate"], "found sample and unique, wanted at most one of"),
        (["-", "--delimiter", ";;"], "delimiter: found text ';;', wanted one character"),
    ],
)
def test_what_can_never_be_is_refused_once_at_the_door(mill: Mill, options: list[str], words: str) -> None:
    refused = mill.run("enqueue", *options, code=2, stdin="a\nb\n")
    assert (refused.stdout, len(refused.stderr.splitlines())) == ("", 1)
    assert words in refused.stderr
    assert not mill.home.exists()


def test_a_schema_may_come_through_a_pipe(mill: Mill) -> None:
    pipe = mill.folder / "schema"
    os.mkfifo(pipe)
    mill.file("a.txt", "a\n")
    mill.file("b.txt", "b\n")
    writer = threading.Thread(target=lambda: pipe.write_text('{"type": "object"}'))
    writer.start()
    assert mill.run("enqueue", "a.txt", "b.txt", "--schema", "schema").stdout.split() == ["1", "2"]
    writer.join()
    assert '"type":"object"' in mill.run("show", "2").stdout


@pytest.mark.parametrize(("delimiter", "said"), [(";", ";"), ("\t", "tab"), ("\t", r"\t"), ("\t", "\t")])
def test_columns_may_be_parted_by_what_is_said(mill: Mill, delimiter: str, said: str) -> None:
    mill.file("rows.csv", f"id{delimiter}frage\n7{delimiter}a, b\n")
    assert "is the delimiter" in mill.run("enqueue", "rows.csv", "--map", "task=frage", code=2).stderr
    mill.run("enqueue", "rows.csv", "--map", "task=frage", "--map", "custom_id=id", "--delimiter", said)
    assert "a, b" in mill.run("show", "1").stdout


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
