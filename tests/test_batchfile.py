"""OpenAI batch files out: each custom_id once, in the order of the file, with a body that the official client reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import ChatCompletion

from millpond import Permanent, Policy, Queue, Receipt, Reply, Request, UsageError, batch_lines
from millpond.rules.job import Usage


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        yield queue


def body(text: str, **more: Any) -> dict[str, Any]:
    return {"body": {"model": "gpt-5-mini", "messages": [{"role": "user", "content": text}], **more}}


def ask(queue: Queue, *texts: str) -> list[Receipt]:
    return queue.enqueue_many([Request(body(text), custom_id=f"c{at}") for at, text in enumerate(texts)])


def answers(**by_text: Any) -> Any:
    """A callable that answers each text so."""

    def answer(work: Any) -> Any:
        said = by_text[work.messages[0]["content"]]
        if isinstance(said, Exception):
            raise said
        return said

    return answer


def completion_of(queue: Queue, reply: Any) -> tuple[dict[str, Any], ChatCompletion]:
    """The line of one request that a callable answered so, and its body as the official client reads it."""
    [receipt] = ask(queue, "x")
    assert queue.drain(lanes=answers(x=reply)).done == 1
    [line] = batch_lines(queue, receipt.submission_id)
    return line, ChatCompletion.model_validate(line["response"]["body"])


def test_every_custom_id_stands_once_in_the_order_of_the_file(queue: Queue) -> None:
    receipts = ask(queue, "a", "b", "a", "c", "d")
    queue.cancel(receipts[3].job_id)
    queue.drain(lanes=answers(a="A", b=Permanent("no"), d="D"))
    lines = list(batch_lines(queue, receipts[0].submission_id))
    assert [line["custom_id"] for line in lines] == ["c0", "c1", "c2", "c3", "c4"]
    assert [list(line) for line in lines] == [["id", "custom_id", "response", "error"]] * 5
    assert [line["id"] for line in lines] == [f"batch_req_{receipt.request_id}" for receipt in receipts]
    texts = [
        ChatCompletion.model_validate(lines[at]["response"]["body"]).choices[0].message.content for at in (0, 2, 4)
    ]
    assert texts == ["A", "A", "D"]
    assert [line["error"] and line["error"]["code"] for line in lines] == [
        None, "said_permanent", None, "cancelled", None,
    ]  # fmt: skip
    assert lines[1]["error"]["message"]
    assert [line["response"] is None for line in lines] == [False, True, False, True, False]
    assert lines[0]["response"] == lines[2]["response"], "one answer, under two custom_ids"


def test_what_is_pending_has_no_line_yet(queue: Queue) -> None:
    [first, _] = ask(queue, "a", "b")
    assert list(batch_lines(queue, first.submission_id)) == []
    queue.drain(lanes=answers(a="A"), max_jobs=1)
    assert [line["custom_id"] for line in batch_lines(queue, first.submission_id)] == ["c0"]


def test_a_submission_that_is_not_there_is_refused_at_once(queue: Queue) -> None:
    with pytest.raises(UsageError, match="no submission 'gone'"):
        batch_lines(queue, "gone")


def test_only_the_submission_asked_for_is_told(queue: Queue) -> None:
    first, second = ask(queue, "a")[0], ask(queue, "a", "b")[0]
    queue.drain(lanes=answers(a="A", b="B"))
    assert len(list(batch_lines(queue, first.submission_id))) == 1
    assert len(list(batch_lines(queue, second.submission_id))) == 2


def test_a_reply_without_a_body_gets_one(queue: Queue) -> None:
    line, completion = completion_of(queue, Reply("quack", usage=Usage(3, 5), model="pond-1", request_id="req_7"))
    assert line["response"]["request_id"] == "req_7"
    assert line["response"]["status_code"] == 200
    assert (completion.object, completion.model) == ("chat.completion", "pond-1")
    [choice] = completion.choices
    assert (choice.index, choice.message.content, choice.finish_reason) == (0, "quack", "stop")
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens, completion.usage.total_tokens) == (
        3,
        5,
        8,
    )


def test_what_is_not_known_of_a_reply_is_left_out_or_taken_from_its_attempt(queue: Queue) -> None:
    line, completion = completion_of(queue, "quack")
    [attempt] = queue.ledger()
    assert "usage" not in line["response"]["body"]
    assert line["response"]["request_id"] == attempt.uid
    assert completion.id == f"chatcmpl-{attempt.uid}"
    assert attempt.ended_ms is not None
    assert completion.created == attempt.ended_ms // 1000


def test_data_is_told_as_json(queue: Queue) -> None:
    _, completion = completion_of(queue, {"ducks": 7, "kind": "Stockente 🦆"})
    assert completion.choices[0].message.content == '{"ducks": 7, "kind": "Stockente 🦆"}'


def test_a_body_that_was_kept_is_told_unchanged(queue: Queue) -> None:
    raw = {
        "id": "chatcmpl-9", "object": "chat.completion", "created": 5, "model": "m-2026", "x_extra": [1],
        "choices": [
            {
                "index": 0, "finish_reason": "stop", "logprobs": None,
                "message": {"role": "assistant", "content": "quack", "reasoning_content": "hm"},
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cost": 0.1},
    }  # fmt: skip
    line, _ = completion_of(queue, Reply("quack", raw=raw))
    assert line["response"]["body"] == raw


def test_a_body_that_lacks_what_a_completion_must_have_is_completed(queue: Queue) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "count", "arguments": "{}"}}
    raw = {"id": None, "created": None, "choices": [{"message": {"content": None, "tool_calls": [call]}}]}
    line, completion = completion_of(queue, Reply("", finish_reason="tool_calls", model="m", raw=raw))
    assert completion.choices[0].finish_reason == "tool_calls"
    assert completion.choices[0].message.tool_calls is not None
    assert completion.created > 0
    assert line["response"]["body"]["choices"][0]["message"]["tool_calls"] == [call]


@pytest.mark.parametrize("raw", [{}, {"choices": []}, {"choices": "x"}, {"choices": [1]}, {"choices": [{"text": "a"}]}])
def test_what_a_function_calls_its_body_is_not_told_as_one(raw: Any, queue: Queue) -> None:
    _, completion = completion_of(queue, Reply("quack", raw=raw))
    assert completion.choices[0].message.content == "quack"
