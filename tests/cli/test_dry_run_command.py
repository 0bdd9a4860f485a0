"""`enqueue --dry-run`: what it says is what happens, and nothing is made or taken in."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from folder import Mill
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond import Queue
from millpond.faces.cli import cli
from millpond.report import dry_run

COUNTS = ("new", "joined", "reused", "refused")
STATED = {"input_usd_per_mtok": 2.0, "output_usd_per_mtok": 10.0}


def lane(**more: Any) -> dict[str, Any]:
    """A lane that is never called here."""
    return {"kind": "chat", "base_url": "http://127.0.0.1:9/v1", "model": "m", **more}


def told_of(mill: Mill, *words: str, code: int = 0) -> dict[str, Any]:
    """What the dry run says, in JSON."""
    return json.loads(mill.run("enqueue", *words, "--dry-run", "--json", code=code).stdout)


# --- nothing is made or taken in -------------------------------------------------------------------------------------


def test_it_works_where_there_is_no_queue_and_makes_none(
    mill: Mill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aside = tmp_path / "temporary files"
    aside.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(aside))
    mill.settings(lanes={"free": lane(price=0)})
    mill.file("asked.txt", "a\nb\na\n")
    told = mill.run("enqueue", "asked.txt", "--dry-run")
    assert told.stdout.splitlines() == [
        "would be: 2 new · 1 joined · 0 reused · 0 refused",
        "lane  calls  first  tokens in  tokens out  low    expected  worst",
        "free  2      2      ~2         unknown     $0.00  $0.00     $0.00",
    ]
    assert sorted(set(os.listdir(mill.folder)) - {aside.name}) == ["asked.txt", "millpond.yaml"]
    assert os.listdir(aside) == []


def test_a_queue_beside_no_home_is_looked_at_without_making_one(mill: Mill) -> None:
    mill.settings(lanes={"free": lane(price=0)})
    mill.file("asked.txt", "a\nb\n")
    elsewhere = str(mill.folder / "elsewhere" / "queue.db")
    mill.run("--home", "made", "--queue", elsewhere, "enqueue", "asked.txt")
    assert told_of(mill, "--queue", elsewhere, "asked.txt")["joined"] == 2
    assert "ready 2" in mill.run("--queue", elsewhere, "status").stdout  # nor does any other look
    assert not mill.home.exists()


def test_a_queue_is_left_as_it_was(mill: Mill) -> None:
    mill.file("asked.txt", "a\nb\n")
    mill.run("enqueue", "asked.txt")
    before = mill.run("--json", "submissions").stdout, mill.run("--json", "jobs").stdout
    mill.file("more.txt", "b\nc\n")
    assert [told_of(mill, "more.txt", "--fresh")[name] for name in COUNTS] == [1, 1, 0, 0]
    assert (mill.run("--json", "submissions").stdout, mill.run("--json", "jobs").stdout) == before


# --- what it says is what happens ------------------------------------------------------------------------------------


@contextmanager
def folder_of_its_own() -> Iterator[None]:
    """A new working folder, for one example of many."""
    back = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(back)


def run(*words: str) -> Any:
    return CliRunner().invoke(cli, [*words], prog_name="millpond")


rows = st.lists(
    st.one_of(
        st.fixed_dictionaries({"task": st.sampled_from("abcdef")}),
        st.fixed_dictionaries({"task": st.sampled_from("abc"), "key": st.sampled_from(["mine", "yours"])}),
        st.fixed_dictionaries({"tsk": st.just("misspelt")}),
    ),
    min_size=1,
    max_size=14,
)
options = st.sampled_from(
    [[], ["--each"], ["--separate"], ["--fresh"], ["--sample", "2"], ["--fresh", "--each"], ["--strict"]]
)


@settings(max_examples=60, deadline=None)
@given(answered=rows, waiting=rows, asked=rows, options=options)
def test_the_counts_are_those_of_the_real_enqueue(
    answered: list[dict[str, str]], waiting: list[dict[str, str]], asked: list[dict[str, str]], options: list[str]
) -> None:
    if "--separate" in options or "--sample" in options:  # neither goes with a key of one's own
        answered, waiting, asked = ([{**row, "key": None} for row in one] for one in (answered, waiting, asked))
    chunk = pytest.MonkeyPatch()
    chunk.setattr(dry_run, "CHUNK_REQUESTS", 3)  # so that repeats stand in other chunks, too
    with chunk.context(), folder_of_its_own():
        for name, some in (("answered", answered), ("waiting", waiting), ("asked", asked)):
            lines = [json.dumps({field: value for field, value in row.items() if value}) for row in some]
            Path(f"{name}.jsonl").write_text("\n".join(lines))
        run("enqueue", "answered.jsonl", *[word for word in options if word != "--strict"])
        if Path(".millpond").exists():
            with Queue.open() as queue:
                queue.drain(lanes=lambda work, **_: "yes")
        run("enqueue", "waiting.jsonl", *[word for word in options if word not in ("--strict", "--fresh")])
        dry = run("enqueue", "asked.jsonl", *options, "--dry-run", "--json")
        real = run("enqueue", "asked.jsonl", *options)
    chunk.undo()
    assert dry.exit_code == real.exit_code
    told = json.loads(dry.stdout)
    said = re.search(r"^(\d+) new · (\d+) joined · (\d+) reused · (\d+) refused$", real.stderr, re.MULTILINE)
    assert said is not None, real.output
    assert [told[name] for name in COUNTS[:3]] == [int(n) for n in said.groups()[:3]]
    assert told["refused"] == int(said[4])
    refusals = [sorted(line for line in one.stderr.splitlines() if " line " in line) for one in (dry, real)]
    assert refusals[0] == refusals[1]


def test_repeats_past_a_chunk_and_past_a_file_are_joined(mill: Mill) -> None:
    mill.file("one.txt", "".join(f"{n % 700}\n" for n in range(1_300)))
    mill.file("two.txt", "".join(f"{n}\n" for n in range(650, 750)))
    told = told_of(mill, "one.txt", "two.txt")
    assert [told[name] for name in COUNTS] == [750, 650, 0, 0]
    mill.run("enqueue", "one.txt", "two.txt")
    receipts = [
        line for name in ("one.txt", "two.txt") for line in mill.run("--json", "enqueue", name).stdout.splitlines()
    ]
    dispositions = Counter(json.loads(receipt)["disposition"] for receipt in receipts)
    assert dispositions == {"joined": 1_400}
    assert json.loads(mill.run("--json", "status").stdout)["counts"]["ready"] == 750


def test_refused_rows_are_named_and_strict_would_take_nothing(mill: Mill) -> None:
    mill.settings(lanes={"free": lane(price=0)})
    mill.file("asked.jsonl", '{"task": "a"}\n{"tsk": "b"}\n')
    told = mill.run("enqueue", "asked.jsonl", "--dry-run", code=1)
    assert told.stderr.startswith("asked.jsonl line 2: unknown key 'tsk'")
    assert told.stdout.startswith("would be: 1 new · 0 joined · 0 reused · 1 refused\n")
    strict = mill.run("enqueue", "asked.jsonl", "--dry-run", "--strict", code=1)
    assert strict.stdout == "would be: 0 new · 0 joined · 0 reused · 1 refused\n"
    assert "nothing would be taken in" in strict.stderr


def test_a_file_that_strict_refuses_takes_no_other_with_it(mill: Mill) -> None:
    mill.file("one.jsonl", '{"task": "a"}\n{"task": "b"}\n')
    mill.file("two.jsonl", '{"task": "b"}\n{"task": "c"}\n{"tsk": "d"}\n')
    mill.file("three.jsonl", '{"task": "b"}\n{"task": "c"}\n')
    words = ["one.jsonl", "two.jsonl", "three.jsonl", "--strict"]
    told = mill.run("enqueue", *words, "--dry-run", code=1)
    assert told.stdout.startswith("would be: 3 new · 1 joined · 0 reused · 1 refused\n")
    assert "millpond: two.jsonl: nothing would be taken in" in told.stderr
    said = re.findall(r"(\d) new · (\d) joined", mill.run("enqueue", *words, code=1).stderr)
    assert said == [("2", "0"), ("0", "0"), ("1", "1")]


def test_a_key_of_other_work_refuses_a_whole_file_as_strictly_as_in_the_real_one(mill: Mill) -> None:
    mill.file("asked.jsonl", '{"task": "c"}\n{"task": "a", "key": "mine"}\n{"task": "b", "key": "mine"}\n')
    mill.file("next.jsonl", '{"task": "b", "key": "mine"}\n')
    files = ["asked.jsonl", "next.jsonl", "--strict"]
    dry = mill.run("enqueue", *files, "--dry-run", code=1)
    assert dry.stdout == "would be: 1 new · 0 joined · 0 reused · 1 refused\nno configured lane may serve 1 of them\n"
    assert dry.stderr.splitlines()[0] in mill.run("enqueue", *files, code=1).stderr.splitlines()
    mill.file("last.jsonl", '{"task": "d", "key": "new"}\n')
    mill.file("other.jsonl", '{"task": "e", "key": "new"}\n')
    dry = mill.run("enqueue", "last.jsonl", "other.jsonl", "--strict", "--dry-run", code=1)
    assert dry.stderr.startswith("other.jsonl line 1: key 'new' already names other work")


def test_standard_input_and_a_key_for_a_single_row(mill: Mill) -> None:
    told = mill.run("enqueue", "-", "--dry-run", "--key", "mine", stdin="a\n")
    assert told.stdout.startswith("would be: 1 new")
    assert "--key" in mill.run("enqueue", "-", "--dry-run", "--key", "mine", stdin="a\nb\n", code=2).stderr


# --- what it would cost ----------------------------------------------------------------------------------------------


def test_each_lane_that_may_serve_has_its_own_figures_and_unknown_stays_unknown(mill: Mill) -> None:
    mill.settings(
        lanes={
            "free": lane(price=0),
            "paid": lane(price=STATED, max_output_tokens=100, max_attempts=1),
            "open": lane(price=STATED),
            "dark": lane(max_output_tokens=100),
            "call": lane(price=0.25, max_attempts=1),
        }
    )
    mill.file("asked.txt", f"{'x' * 400}\n{'y' * 400}\n")
    told = told_of(mill, "asked.txt")
    figures = {one["lane"]: (one["low_usd"], one["expected_usd"], one["worst_usd"]) for one in told["lanes"]}
    worst_tokens = told["lanes"][1]["tokens_in"]["worst"]
    assert told["lanes"][1]["tokens_in"] == {"low": 50, "expected": 200, "worst": worst_tokens}
    assert told["lanes"][1]["tokens_out"] == {"low": 2, "expected": None, "worst": 200}
    assert figures == {
        "free": (0, 0, 0),
        "paid": (0.00012, None, pytest.approx(2 * (worst_tokens * 2e-6 + 200 * 1e-5))),
        "open": (0.00012, None, None),
        "dark": (None, None, None),
        "call": (0.5, 0.5, 1),  # one attempt, and one reply of the wrong shape before it
    }
    assert (told["low_usd"], told["expected_usd"], told["worst_usd"]) == (None, 0, None)
    words = mill.run("enqueue", "asked.txt", "--dry-run").stdout
    assert re.search(r"^paid .* \$0\.0001 +unknown +\$0\.\d\d", words, re.MULTILINE), words
    assert re.search(r"^dark .* unknown +unknown +unknown$", words, re.MULTILINE), words
    assert "open: worst is unknown: nothing limits the output of 2" in words
    assert "dark: its price is not set" in words


def test_all_lanes_together_are_the_cheapest_the_first_and_every_one(mill: Mill) -> None:
    mill.settings(lanes={"dear": lane(price=0.5, max_attempts=1), "cheap": lane(price=0.1, max_attempts=1)})
    mill.file("asked.txt", "a\n")
    told = told_of(mill, "asked.txt")
    assert [told[name] for name in ("low_usd", "expected_usd", "worst_usd")] == [0.1, 0.5, 1.2]
    wished = told_of(mill, "asked.txt", "--lane", "cheap")
    assert [wished[name] for name in ("low_usd", "expected_usd", "worst_usd")] == [0.1, 0.1, 0.2]
    assert [(one["lane"], one["jobs"], one["first"]) for one in told["lanes"]] == [("dear", 1, 1), ("cheap", 1, 0)]


def test_what_is_joined_or_reused_costs_nothing(mill: Mill) -> None:
    mill.settings(lanes={"paid": lane(price=0.5)})
    mill.file("asked.txt", "a\nb\n")
    with Queue.open() as queue:
        queue.enqueue("a")
        queue.drain(lanes=lambda work, **_: "yes")
        queue.enqueue("b")
    told = told_of(mill, "asked.txt")
    assert [told[name] for name in (*COUNTS, "low_usd", "worst_usd", "lanes")] == [0, 1, 1, 0, 0, 0, []]
    assert told_of(mill, "asked.txt", "--fresh")["low_usd"] == 0.5


def test_work_that_no_lane_may_serve_is_said_and_costs_nothing(mill: Mill) -> None:
    mill.settings(lanes={"paid": lane(price=0.5)})
    mill.file("asked.jsonl", '{"task": "a", "model": "another"}\n{"task": "b"}\n')
    told = told_of(mill, "asked.jsonl")
    assert (told["new"], told["unserved"], told["expected_usd"]) == (2, 1, 0.5)
    assert "no configured lane may serve 1 of them" in mill.run("enqueue", "asked.jsonl", "--dry-run").stdout
