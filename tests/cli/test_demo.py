"""`millpond demo`, end to end: the same figures every time, and a home on which the next commands work."""

from __future__ import annotations

import csv
import re
import shlex
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from shutil import rmtree
from typing import Any, cast

import pytest
from folder import Mill

from millpond.engine.perform import Happening
from millpond.faces.cli.progress import Progress
from millpond.faces.cli.signals import Signals


def test_the_demo_answers_everything_and_its_next_commands_work(mill: Mill) -> None:
    mill.file("millpond.yaml", "no settings: are read\n")
    shown = mill.process("demo")
    assert shown.returncode == 0, shown.stderr
    [home] = re.findall(r"^home (\S+); free lane", shown.stderr, re.MULTILINE)
    try:
        assert "enqueued 300 requests: 260 new, 40 joined" in shown.stderr
        rows, seen = re.findall(r"the ledger has (\d+) rows, the lanes counted (\d+) requests: the same", shown.stderr)[
            0
        ]
        assert rows == seen
        assert int(rows) > 260, "there were faults to survive"
        summary = next(line for line in shown.stdout.splitlines() if line.startswith("done 260 "))
        assert "failed 0" in summary
        assert "saved by dedup 40" in summary
        assert "paid twice 0" in summary
        assert "spent $0.0" in summary
        events = [line for line in shown.stdout.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
        assert 4 < len(events) < 20, "a sign of life, and no more"
        assert len([line for line in events if " closed lane free" in line]) < 2
        assert f"the folder {home} is kept" in shown.stdout
        (mill.folder / "millpond.yaml").unlink()
        ahead = [line.strip() for line in shown.stdout.splitlines() if line.startswith("  millpond ")]
        assert len(ahead) == 3
        for line in ahead:
            assert mill.process(*shlex.split(line)[1:]).returncode == 0, line
        with (mill.folder / "answers.csv").open(newline="", encoding="utf-8") as file:
            answers = list(csv.DictReader(file))
        assert len(answers) == 300
        assert {row["state"] for row in answers} == {"done"}
        assert "Traceback" not in shown.stderr
    finally:
        rmtree(home)


def test_the_demo_uses_the_home_that_it_is_given_and_the_same_seed_asks_the_same(mill: Mill) -> None:
    figures: list[list[str]] = []
    with ThreadPoolExecutor() as both:  # at the same time, which is nothing to either
        demos = {name: both.submit(mill.process, "--home", name, "demo", "--seed", "11") for name in ("one", "two")}
    for name, demo in demos.items():
        shown = demo.result()
        assert shown.returncode == 0, shown.stderr
        assert (mill.folder / name / "queue.db").exists()
        figures.append(re.findall(r"the ledger has \d+|spent \S+|saved by dedup \d+", shown.stderr + shown.stdout))
    assert figures[0] == figures[1]
    assert len(figures[0]) == 3
    assert sorted(path.name for path in Path(mill.folder).iterdir()) == ["one", "two"]


def test_a_lane_that_closes_again_and_again_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    for every, lines in ((50, 2 + 2), (1, 100 + 6)):
        progress = Progress(cast(Any, None), every=every)
        for n in range(100):
            progress.tell(Happening("done", n, "free", ""))
        for lane in ("free", "free", "paid", "free", "paid", "free"):
            progress.tell(Happening("closed", None, lane, "rate_limited"))
        progress.wait_said(Signals())
        told = capsys.readouterr().out.splitlines()
        assert len(told) == lines
