"""docs/own-lanes.md is true: every field and word stands in it, its rows are the table's, its kind is drained with."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from millpond.drill.faultlane import FaultLane
from millpond.lanes.lane import Call
from millpond.rules.evidence import Evidence, Failure
from millpond.rules.outcome import TABLE, classify
from millpond.rules.view import Declared

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "own-lanes.md").read_text(encoding="utf-8")


def section(heading: str) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    text = PAGE.partition(f" {heading}\n")[2].partition("\n#")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


@pytest.mark.parametrize(
    ("heading", "kind"),
    [("What it gets: `Call`", Call), ("What it says: `Evidence`", Evidence)],
    ids=["call", "evidence"],
)
def test_every_field_is_explained_and_no_other(heading: str, kind: type[Call | Evidence]) -> None:
    named = [name for row in section(heading) for name in words(row[0])]
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(kind))


def test_every_word_of_failure_stands_with_its_row() -> None:
    said = {words(word)[0]: words(row)[0] for word, _, row in section("The words of `failure`")}
    assert said == {word: classify(Evidence(failure=word)).row for word in get_args(Failure)}


def test_every_row_that_the_page_names_is_in_the_table() -> None:
    rows = {row.name for row in TABLE}
    named = {name for row in section("What it says: `Evidence`") for name in words(row[2])}
    assert named - rows - {"retryable", "saturated", "ok", "unusable", "no"} == set()


def test_a_failure_of_what_was_not_sent_is_read_as_the_page_says() -> None:
    local = {"refused", "dns", "tls", "connect_timeout"}
    for word in set(get_args(Failure)) - {"died"}:
        elsewhere, here = (
            classify(Evidence(sent="no", failure=word), Declared(local=at_home)).row for at_home in (False, True)
        )
        assert elsewhere == ("unsent-pool" if word == "pool_timeout" else "unsent")
        assert here == ("unsent-local" if word in local else elsewhere)


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found, language
    return found[1]


def test_the_kind_of_the_page_is_drained_with(tmp_path: Path) -> None:
    """The package of the page, as an installer would leave it, and its settings, at another address."""
    package = tomllib.loads(block("toml"))["project"]
    [(group, points)] = package["entry-points"].items()
    site = tmp_path / "site"
    info = site / "acme_lane-1.dist-info"
    info.mkdir(parents=True)
    (site / "acme_lane.py").write_text(block("python"), encoding="utf-8")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package['name']}\nVersion: 1\n", encoding="utf-8")
    lines = "".join(f"{name} = {value}\n" for name, value in points.items())
    (info / "entry_points.txt").write_text(f"[{group}]\n{lines}", encoding="utf-8")
    with FaultLane(answer=lambda body: f"{body['voice']}, {body['temperature']}") as server:
        address = f"{server.base_url}/chat/completions"
        settings, count = re.subn(r'base_url: ".*"', f'base_url: "{address}"', block("yaml"))
        assert count == 1
        (tmp_path / "millpond.yaml").write_text(settings, encoding="utf-8")
        path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
        environ = {name: value for name, value in os.environ.items() if not name.startswith("MILLPOND_")}
        environ |= {"PYTHONPATH": path, "XDG_CONFIG_HOME": str(tmp_path)}
        for verb, given in (("enqueue -", "Is a duck a bird?"), ("drain", ""), ("results", "")):
            run = subprocess.run(
                [sys.executable, "-m", "millpond", *verb.split()],
                cwd=tmp_path, env=environ, input=given, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert run.returncode == 0, run.stderr
    assert "low, 0.2" in run.stdout
