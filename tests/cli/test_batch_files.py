"""An OpenAI batch input file goes in unchanged and comes out as an output file and an error file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folder import Mill, chat
from openai.types.chat import ChatCompletion

from millpond.drill.faultlane import FaultLane

CLOSED = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "count": {"type": "integer"}},
    "required": ["reason", "count"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "count_ducks",
        "parameters": {"type": "object", "properties": {"pond": {"type": "string"}}, "required": ["pond"]},
    },
}


def line(custom_id: str, text: str, **more: Any) -> dict[str, Any]:
    body = {"model": "duck-1", "messages": [{"role": "user", "content": text}], **more}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


INPUT = [
    line("same-1", "How many ducks?", temperature=0),
    line("refused", "please fail"),
    line("calls", "Count them.", tools=[TOOL], tool_choice="required", reasoning_effort="low"),
    line("same-2", "How many ducks?", temperature=0),
    line(
        "shaped",
        "And geese?",
        response_format={"type": "json_schema", "json_schema": {"name": "geese", "strict": True, "schema": CLOSED}},
        metadata={"run": "7"},
        store=True,
    ),
    line("last", "How many newts?", max_tokens=99),
]


@pytest.fixture
def server() -> Iterator[FaultLane]:
    with FaultLane(per_prompt={"please fail": ["400"]}) as server:
        yield server


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]


def text_of(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"])


def entered(mill: Mill, server: FaultLane, **lane: Any) -> Mill:
    mill.settings(lanes={"free": chat(server, model="duck-1", **lane)})
    mill.file("batch.jsonl", "".join(json.dumps(one) + "\n" for one in INPUT))
    told = mill.run("enqueue", "batch.jsonl")
    assert told.stdout.split() == ["1", "2", "3", "1", "4", "5"]
    assert told.stderr.startswith("5 new · 1 joined · 0 reused · 0 refused")
    return mill


def test_a_batch_file_comes_back_as_two_files_with_each_custom_id_once(mill: Mill, server: FaultLane) -> None:
    entered(mill, server).run("drain")
    told = mill.run("results", "batch.jsonl", "--format", "openai-batch", "-o", "out.jsonl", "--errors", "errors.jsonl")
    assert told.stdout == ""
    assert told.stderr.splitlines() == ["wrote 5 results to out.jsonl", "wrote 1 error to errors.jsonl"]

    output, errors = lines(mill.folder / "out.jsonl"), lines(mill.folder / "errors.jsonl")
    asked = [one["custom_id"] for one in INPUT]
    assert [one["custom_id"] for one in output] == [name for name in asked if name != "refused"]
    [error] = errors
    assert list(error) == ["id", "custom_id", "response", "error"]
    assert (error["custom_id"], error["response"]) == ("refused", None)
    assert error["error"]["code"] == "invalid_request"
    assert error["error"]["message"]
    assert len({one["id"] for one in [*output, *errors]}) == len(INPUT)

    found = {one["custom_id"]: ChatCompletion.model_validate(one["response"]["body"]) for one in output}
    assert {one["response"]["status_code"] for one in output} == {200}
    assert all(one["response"]["request_id"] and one["error"] is None for one in output)
    assert {completion.object for completion in found.values()} == {"chat.completion"}
    assert found["same-1"] == found["same-2"]
    assert found["same-1"].usage is not None
    [call] = found["calls"].choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "count_ducks"
    assert set(json.loads(call.function.arguments)) == {"pond"}
    assert found["calls"].choices[0].finish_reason == "tool_calls"
    assert set(json.loads(found["shaped"].choices[0].message.content or "")) == {"reason", "count"}


@pytest.mark.parametrize("streams", [True, False])
def test_the_provider_is_asked_what_the_file_asks_and_each_work_once(
    mill: Mill, server: FaultLane, streams: bool
) -> None:
    entered(mill, server, streams=streams).run("drain")
    travel = {"stream", "stream_options"}
    sent = [{name: value for name, value in post.body.items() if name not in travel} for post in server.posts()]
    wanted = [one["body"] for one in INPUT if one["custom_id"] != "same-2"]
    assert sorted(sent, key=text_of) == sorted(wanted, key=text_of)


def test_the_body_of_an_answer_is_the_providers_own(mill: Mill) -> None:
    with FaultLane(answer=lambda body: "seven") as server:
        mill.settings(lanes={"free": chat(server, model="duck-1", streams=False)})
        mill.file("one.jsonl", json.dumps(line("a", "x")) + "\n")
        mill.run("enqueue", "one.jsonl")
        mill.run("drain")
        [told] = [json.loads(text) for text in mill.run("results", "1", "--format", "openai-batch").stdout.splitlines()]
        assert told["response"]["body"]["choices"][0] == {
            "index": 0,
            "message": {"role": "assistant", "content": "seven", "refusal": None, "annotations": []},
            "logprobs": None,
            "finish_reason": "stop",
        }
        assert told["response"]["body"]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "audio_tokens": 0}


def test_the_error_file_can_be_asked_for_alone(mill: Mill, server: FaultLane) -> None:
    entered(mill, server).run("drain")
    told = mill.run("results", "batch.jsonl", "--format", "openai-batch", "--failed")
    assert [json.loads(text)["custom_id"] for text in told.stdout.splitlines()] == ["refused"]
    assert told.stderr == ""
    mill.run("results", "batch.jsonl", "--format", "openai-batch", "--failed", "-o", "errors.jsonl")
    assert (mill.folder / "errors.jsonl").read_text() == told.stdout


def test_what_is_left_out_is_said(mill: Mill, server: FaultLane) -> None:
    entered(mill, server)
    mill.run("cancel", "5")
    told = mill.run("results", "batch.jsonl", "--format", "openai-batch")
    assert told.stdout == ""
    assert told.stderr.splitlines() == [
        "1 failed or cancelled, and are left out; --errors FILE writes them",
        "5 requests pending, in neither file: millpond drain",
    ]
    mill.run("drain")
    told = mill.run("results", "batch.jsonl", "--format", "openai-batch", "--errors", "errors.jsonl")
    assert len(told.stdout.splitlines()) == 4
    assert told.stderr.splitlines() == ["wrote 2 errors to errors.jsonl"]
    assert [one["error"]["code"] for one in lines(mill.folder / "errors.jsonl")] == ["invalid_request", "cancelled"]


def test_an_error_file_of_an_earlier_time_does_not_stay(mill: Mill, server: FaultLane) -> None:
    mill.settings(lanes={"free": chat(server, model="duck-1")})
    mill.file("errors.jsonl", "of yesterday\n")
    mill.run("enqueue", "-", stdin=json.dumps(line("a", "x")) + "\n")
    mill.run("drain")
    mill.run("results", "stdin", "--format", "openai-batch", "-o", "out.jsonl", "--errors", "errors.jsonl")
    assert (mill.folder / "errors.jsonl").read_text() == ""


def test_refused_lines_are_named_and_strict_takes_all_or_none(mill: Mill) -> None:
    rows = [line("a", "x"), line("a", "y"), line("b", "z", n=2)]
    mill.file("batch.jsonl", "".join(json.dumps(one) + "\n" for one in rows))
    strict = mill.run("enqueue", "batch.jsonl", "--strict", code=1)
    assert strict.stdout == ""
    done = mill.run("enqueue", "batch.jsonl", "--format", "openai-batch", code=1)
    assert done.stdout.split() == ["1"]
    second, third, counts = done.stderr.splitlines()
    assert second == "batch.jsonl line 2: custom_id: found 'a' again, which names line 1; wanted each once"
    assert third.startswith("batch.jsonl line 3: body.n: found int 2, wanted 1")
    assert counts == "1 new · 0 joined · 0 reused · 2 refused"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--format", "openai-batch"], "found no SUBMISSION, wanted its name or number"),
        (["1", "--format", "openai-batch", "--since", "2h"], "--since: found with --format openai-batch"),
        (["1", "--errors", "e"], "--errors: found without --format openai-batch"),
        (["1", "--format", "csv", "--errors", "e"], "--errors: found without --format openai-batch"),
        (["1", "--format", "openai-batch", "--failed", "--errors", "e"], "--errors: found with --failed"),
        (["1", "--format", "openai-batch", "-o", "e", "--errors", "./e"], "--errors: found the file of -o"),
    ],
)
def test_what_two_files_cannot_be_is_refused(mill: Mill, options: list[str], words: str) -> None:
    mill.run("enqueue", "-", stdin=json.dumps(line("a", "x")) + "\n")
    assert words in mill.run("results", *options, code=2).stderr
    assert not (mill.folder / "e").exists()
