"""What is the same work and what is not, through a whole queue: which requests share an answer, and which never do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from millpond import KeyConflict, Permanent, Policy, Prompt, Queue, Reply, Request
from millpond.lanes import CallableLane
from millpond.rules.policy import LanePolicy


class Mail(BaseModel):
    """A command."""

    to: str


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "home", policy=Policy(idle_exit_ms=100), registry={"Mail": Mail}) as queue:
        yield queue


def chat(*turns: str) -> list[dict[str, str]]:
    return [{"role": "user" if at % 2 == 0 else "assistant", "content": turn} for at, turn in enumerate(turns)]


class Counting:
    """A handler that counts its calls and numbers its answers."""

    def __init__(self, *answers: Any) -> None:
        self.calls: list[Any] = []
        self.answers = list(answers)

    def __call__(self, work: Any) -> Any:
        self.calls.append(work)
        answer = self.answers.pop(0) if self.answers else f"answer {len(self.calls)}"
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_two_models_asked_for_by_name_are_two_answers(queue: Queue) -> None:
    handler = Counting()
    lanes = {name: CallableLane(handler, name=name) for name in ("small", "large")}
    for name, lane in lanes.items():
        lane.policy = LanePolicy(name, kind="chat", model=name)
    queue.enqueue_many([Prompt("q", model="small"), Prompt("q", model="large"), Prompt("q", model="small")])
    queue.drain(lanes=lanes)
    first, second, third = queue.results()
    assert (first.lane, second.lane) == ("small", "large")
    assert first.text != second.text
    assert third.text == first.text
    assert len(handler.calls) == 2


def test_two_chats_with_equal_last_turns_are_two_answers(queue: Queue) -> None:
    handler = Counting()
    queue.enqueue_many([Prompt(messages=chat("a", "b", "and?")), Prompt(messages=chat("x", "y", "and?"))])
    queue.drain(lanes=handler)
    assert len({result.text for result in queue.results()}) == len(handler.calls) == 2


def test_a_failed_job_is_never_reused(queue: Queue) -> None:
    handler = Counting(Permanent("no"))
    failed = queue.enqueue("q")
    queue.drain(lanes=handler)
    again = queue.enqueue("q")
    assert (again.disposition, again.job_id != failed.job_id) == ("new", True)
    queue.drain(lanes=handler)
    assert queue.job(failed.job_id).state == "failed"
    result = queue.result(again)
    assert result is not None
    assert result.text == "answer 2"


@pytest.mark.parametrize("cut", [Reply("half an ans", finish_reason="length"), Reply("", finish_reason="stop")])
def test_o04_a_truncated_or_empty_answer_is_never_reused_and_not_asked_again_blindly(queue: Queue, cut: Reply) -> None:
    handler = Counting(*[cut] * (1 if cut.text else 2))
    first = queue.enqueue("q")
    queue.drain(lanes=handler, until_empty=True)
    result = queue.result(first)
    assert result is not None
    assert result.error is not None
    assert (result.state, result.error.code) == ("failed", "truncated" if cut.text else "empty")
    assert len(handler.calls) == (1 if cut.text else 2)
    assert queue.enqueue("q").disposition == "new"
    queue.drain(lanes=handler)
    assert [result.text for result in queue.results()] == [f"answer {len(handler.calls)}"]


def test_putting_the_same_command_twice_is_two_jobs(queue: Queue) -> None:
    handler = Counting()
    first, second = queue.enqueue(Mail(to="a")), queue.enqueue(Mail(to="a"))
    assert first.job_id != second.job_id
    queue.drain(lanes=handler)
    assert handler.calls == [Mail(to="a"), Mail(to="a")]


def test_a_command_with_its_callers_key_is_one_job(queue: Queue) -> None:
    receipts = [queue.enqueue(Mail(to="a"), key="mail-a") for _ in range(2)]
    assert [receipt.disposition for receipt in receipts] == ["new", "joined"]
    with pytest.raises(KeyConflict, match="mail-a"):
        queue.enqueue(Mail(to="b"), key="mail-a")


def test_samples_and_repeats_are_answers_of_their_own_and_a_rerun_of_samples_costs_nothing(queue: Queue) -> None:
    handler = Counting()
    rows = ["q", "q", "q"]
    queue.enqueue_many(rows, each=True)
    queue.drain(lanes=handler)
    assert len(handler.calls) == 3
    assert {receipt.disposition for receipt in queue.enqueue_many(rows, each=True)} == {"reused"}
    queue.enqueue("q", sample=2)
    queue.enqueue("q", dedup=False)
    queue.enqueue("q", dedup=False)
    queue.drain(lanes=handler)
    assert len(handler.calls) == 5


def test_fresh_retires_the_answer_in_force_and_asks_again(queue: Queue) -> None:
    handler = Counting()
    old = queue.enqueue("q")
    queue.drain(lanes=handler)
    new = queue.enqueue("q", fresh=True)
    queue.drain(lanes=handler)
    texts = [result.text for receipt in (old, new) if (result := queue.result(receipt))]
    assert texts == ["answer 1", "answer 2"]
    assert queue.enqueue("q").disposition == "reused"


def test_carried_columns_and_custom_ids_come_back_with_each_request_of_one_job(queue: Queue) -> None:
    queue.enqueue_many([Request("q", custom_id=name, carried={"row": name}) for name in ("a", "b")], submission="two")
    queue.drain(lanes=Counting())
    results = list(queue.results("two"))
    assert [(one.custom_id, one.carried, one.disposition) for one in results] == [
        ("a", {"row": "a"}, "new"),
        ("b", {"row": "b"}, "joined"),
    ]
    assert [one.cost is not None for one in results] == [True, False], "only the request that paid bears the cost"
