"""What the parser of a provider that none of us wrote makes of our requests: what was meant, and nothing beside it."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock
from openai.types.chat import ChatCompletion
from pond import FREE_MODEL, Pond

from millpond import Image, Prompt, Request, batch_lines
from millpond.rules.job import Work

MakePond = Callable[..., Pond]

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"type": "string", "enum": ["mallard", "teal"]},
        "count": {"type": "integer", "minimum": 3},
        "seen": {"type": "array", "items": {"type": "string"}, "minItems": 1},
    },
    "required": ["kind", "count", "seen"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "count_ducks",
        "description": "Counts the ducks of a pond.",
        "parameters": {
            "type": "object",
            "properties": {"pond": {"type": "string"}, "at_least": {"type": "integer"}},
            "required": ["pond", "at_least"],
        },
    },
}
CALL = {"id": "call_1", "type": "function", "function": {"name": "count_ducks", "arguments": '{"pond": "mill"}'}}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "How many ducks? Wie viele Stockenten 🦆?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "7"},
]
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8//8/AwAF/gL+py3ltAAAAABJRU5ErkJggg=="

either_way = pytest.mark.parametrize("streams", [True, False], ids=["streamed", "plain"])


def asked(pond: Pond, work: Work | dict[str, Any], streams: bool) -> tuple[dict[str, Any], ChatCompletion]:
    """What llmock parsed of the one request for this work, and its answer as OpenAI's own types read it."""
    [receipt] = pond.queue.enqueue_many([Request(work, custom_id="a")])
    assert pond.drain().done == 1
    [seen] = pond.provider.requests
    assert (seen.status, seen.stream, seen.path) == (200, streams, "/v1/chat/completions")
    travel = {"stream": True, "stream_options": {"include_usage": True}} if streams else {}
    assert {name: seen.body.get(name) for name in travel} == travel
    [line] = batch_lines(pond.queue, receipt.submission_id)
    [row] = pond.queue.ledger()
    completion = ChatCompletion.model_validate(line["response"]["body"])
    assert completion.usage is not None
    assert (row.tokens_in, row.tokens_out) == (completion.usage.prompt_tokens, completion.usage.completion_tokens)
    return {name: value for name, value in seen.body.items() if name not in travel}, completion


@either_way
def test_a_schema_is_asked_for_strictly_and_its_answer_is_data(make_pond: MakePond, streams: bool) -> None:
    pond = make_pond(streams=streams)
    work = Prompt("Which ducks?", system="Be brief.", schema=SCHEMA, params={"temperature": 0}, reasoning="low")
    body, completion = asked(pond, work, streams)
    assert body == {
        "model": FREE_MODEL,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which ducks?"}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "strict": True, "schema": SCHEMA},
        },
        "temperature": 0,
        "reasoning_effort": "low",
    }
    [result] = pond.results()
    assert result.data == json.loads(completion.choices[0].message.content or "")
    assert (result.data["kind"], result.data["count"] >= 3) == ("mallard", True)


@either_way
def test_an_answer_that_is_not_of_the_schema_is_not_taken(make_pond: MakePond, llmock: LLMock, streams: bool) -> None:
    llmock.reply('{"kind": "goose", "count": 3, "seen": ["a"]}')
    pond = make_pond(streams=streams)
    assert pond.drain(Prompt("Which ducks?", schema=SCHEMA)).done == 1
    assert pond.ledger() == [("free", "unusable", "bad_output"), ("free", "ok", "ok")]
    assert [result.data["kind"] for result in pond.results()] == ["mallard"]


@either_way
def test_tools_are_offered_and_the_call_comes_back_whole(make_pond: MakePond, streams: bool) -> None:
    pond = make_pond(streams=streams)
    body, completion = asked(pond, Prompt("Count the ducks.", tools=[TOOL], params={"tool_choice": "auto"}), streams)
    assert body == {
        "model": FREE_MODEL,
        "messages": [{"role": "user", "content": "Count the ducks."}],
        "tools": [TOOL],
        "tool_choice": "auto",
    }
    [choice] = completion.choices
    [call] = choice.message.tool_calls or []
    assert choice.finish_reason == "tool_calls"
    assert call.type == "function"
    assert call.function.name == "count_ducks"
    assert set(json.loads(call.function.arguments)) == {"pond", "at_least"}
    assert [result.finish_reason for result in pond.results()] == ["tool_calls"]


@either_way
def test_a_chat_goes_on_where_it_was_a_tools_result_included(make_pond: MakePond, streams: bool) -> None:
    body, completion = asked(make_pond(streams=streams), Prompt(messages=CHAT, tools=[TOOL]), streams)
    assert body == {"model": FREE_MODEL, "messages": CHAT, "tools": [TOOL]}
    assert completion.choices[0].finish_reason == "stop", "it was given the result, so it answers"
    assert completion.choices[0].message.content


@pytest.mark.parametrize("given", ["bytes", "file", "url"])
def test_an_image_stands_beside_the_text(make_pond: MakePond, tmp_path: Path, given: str) -> None:
    file = tmp_path / "duck.png"
    file.write_bytes(b64decode(PIXEL))
    elsewhere = "https://pond.example/duck.png"
    image: Any = {"bytes": Image(b64decode(PIXEL)), "file": str(file), "url": elsewhere}[given]
    body, _ = asked(make_pond(), Prompt("What is it?", images=(image,)), streams=True)
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": elsewhere if given == "url" else f"data:image/png;base64,{PIXEL}"}},
    ]
    assert body == {"model": FREE_MODEL, "messages": [{"role": "user", "content": parts}]}


@either_way
def test_a_body_of_openais_arrives_as_it_was_written(make_pond: MakePond, streams: bool) -> None:
    said = {
        "model": FREE_MODEL,
        "messages": CHAT[:2],
        "max_tokens": 99,
        "seed": 7,
        "metadata": {"run": "7"},
        "response_format": {"type": "json_object"},
    }
    body, completion = asked(make_pond(streams=streams), {"custom_id": "a", "body": said}, streams)
    assert body == said
    assert json.loads(completion.choices[0].message.content or "")
