"""`Queue.estimate`: what `enqueue_many` would do with the same words, said without doing it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millpond import KeyConflict, Policy, Prompt, Queue, Request, UnknownLane, UsageError, read
from millpond.faces.cli import cli
from millpond.rules.policy import LanePolicy
from millpond.rules.price import PriceRule

POLICY = Policy({name: LanePolicy(name, price=PriceRule("stated", call_usd=Decimal(1))) for name in ("first", "other")})


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    """A queue with an answer to `old` and a job for `waiting`."""
    with Queue.open(tmp_path / "pond", policy=POLICY) as queue:
        queue.enqueue("old")
        queue.drain(lanes=lambda work, **_: "yes")
        queue.enqueue("waiting")
        yield queue


@pytest.mark.parametrize(
    ("said", "counts"),
    [
        ({}, (2, 3, 1)),
        ({"each": True}, (6, 0, 0)),
        ({"fresh": True}, (3, 3, 0)),
        ({"dedup": False}, (6, 0, 0)),
        ({"sample": 1}, (4, 2, 0)),
    ],
)
def test_the_counts_are_those_of_enqueue_many(queue: Queue, said: dict[str, Any], counts: tuple[int, int, int]) -> None:
    works = ["new", Prompt("old"), "new", {"task": "newer"}, Request("waiting"), "new"]
    found = queue.estimate(works, **said)
    assert (found.new, found.joined, found.reused, found.refused) == (*counts, 0)
    dispositions = Counter(receipt.disposition for receipt in queue.enqueue_many(works, **said))
    assert (found.new, found.joined, found.reused) == tuple(dispositions[name] for name in ("new", "joined", "reused"))


def test_nothing_is_taken_in(queue: Queue) -> None:
    before = queue.counts(), queue.submissions(), list(queue.feed())
    assert queue.estimate(["new", "old"], fresh=True).new == 2
    assert (queue.counts(), queue.submissions(), list(queue.feed())) == before


def test_a_lane_that_is_asked_for_is_where_it_starts(queue: Queue) -> None:
    assert [(lane.lane, lane.first) for lane in queue.estimate(["new"]).lanes] == [("first", 1), ("other", 0)]
    assert [(lane.lane, lane.first) for lane in queue.estimate(["new"], lane="other").lanes] == [("other", 1)]


def test_a_generator_is_read_once(queue: Queue) -> None:
    assert queue.estimate(str(n) for n in range(1_200)).new == 1_200


@pytest.mark.parametrize(
    ("works", "said", "error"),
    [
        ([7], {}, UsageError),
        (["new", {"tsk": "misspelt"}], {}, UsageError),
        ([Request("a", key="mine"), Request("b", key="mine")], {}, KeyConflict),
        (["new"], {"lane": "nowhere"}, UnknownLane),
        (["new"], {"priorty": 5}, UsageError),
    ],
)
def test_what_enqueue_many_would_refuse_is_raised(
    queue: Queue, works: list[Any], said: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error) as estimated:
        queue.estimate(works, **said)
    with pytest.raises(error) as real:
        queue.enqueue_many(works, **said)
    assert str(estimated.value) == str(real.value)


def test_the_command_line_says_the_same(queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = Path("rows.csv")
    rows.write_text("text\nold\nwaiting\nnew\nnew\n", encoding="utf-8")
    Path("millpond.yaml").write_text("lanes: {first: {kind: command, command: [cat], price: 1}}", encoding="utf-8")
    words = ["--home", "pond", "--json", "enqueue", str(rows), "--task", "{text}", "--dry-run"]
    shown = json.loads(CliRunner().invoke(cli, words, catch_exceptions=False).stdout)
    with Queue.open("pond") as again:
        found = again.estimate(read(rows, task="{text}"))
    assert (found.new, found.joined, found.reused) == (1, 2, 1)
    names = ("new", "joined", "reused", "refused", "low_usd", "expected_usd", "worst_usd", "unserved")
    assert {name: shown[name] for name in names} == {name: getattr(found, name) for name in names}
    assert shown["lanes"][0]["tokens_in"]["worst"] == found.lanes[0].tokens_in.worst
