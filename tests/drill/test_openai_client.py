"""The official `openai` client against the fault lane: what it sends is taken, what comes back it understands."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import openai
import pytest
from pydantic import BaseModel
from record_openai import ASKED, CALLS, PIXEL, TOOL, record, without_the_machine

from millpond.drill.faultlane import FaultLane

RECORDED = {file.stem: file for file in (Path(__file__).parent / "recorded").glob("*.http")}


@pytest.fixture
def lane() -> Iterator[FaultLane]:
    with FaultLane() as lane:
        yield lane


def client_of(lane: FaultLane, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=lane.base_url, api_key="placeholder", max_retries=0, **options)


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_recorded_requests_of_the_official_client_are_taken(lane: FaultLane, name: str) -> None:
    head, _, body = RECORDED[name].read_bytes().partition(b"\n\n")
    port = int(lane.base_url.split(":")[2].split("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as wire:
        wire.sendall(head.replace(b"\n", b"\r\n") + b"\r\nHost: 127.0.0.1:%d\r\n\r\n" % port + body)
        status = wire.makefile("rb").readline()
    assert status.startswith(b"HTTP/1.1 200 "), status
    assert [post.body for post in lane.posts()] == ([json.loads(body)] if body else [])
    assert all(post.fault == "ok" for post in lane.posts())


@pytest.mark.parametrize("name", sorted(CALLS))
def test_the_recordings_are_what_the_installed_client_sends(name: str) -> None:
    recorded = RECORDED[name].read_bytes().partition(b"\n\n")
    sent = without_the_machine(record(CALLS[name])).partition(b"\n\n")
    assert sent[0].splitlines()[0] == recorded[0].splitlines()[0]
    assert json.loads(sent[2] or "null") == json.loads(recorded[2] or "null"), "record again: record_openai.py"


def test_the_models_are_listed(lane: FaultLane) -> None:
    with client_of(lane) as client:
        assert [model.id for model in client.models.list()] == ["fault-1"]


def test_a_plain_answer_bears_text_usage_and_finish_reason(lane: FaultLane) -> None:
    with client_of(lane) as client:
        reply = client.chat.completions.create(model="duck-2", messages=ASKED)
    (post,) = lane.posts()
    assert reply.choices[0].message.content == f"answer to {post.prompt_digest[:8]}" == post.result
    assert (reply.choices[0].finish_reason, reply.model) == ("stop", "duck-2")
    assert reply.usage is not None
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (post.tokens_in, post.tokens_out)


def test_a_streamed_answer_is_the_plain_one_in_pieces_with_its_usage(lane: FaultLane) -> None:
    with client_of(lane) as client:
        plain = client.chat.completions.create(model="m", messages=ASKED)
        stream = client.chat.completions.create(
            model="m", messages=ASKED, stream=True, stream_options={"include_usage": True}
        )
        parts = list(stream)
    texts = [part.choices[0].delta.content or "" for part in parts if part.choices]
    assert "".join(texts) == plain.choices[0].message.content
    assert sum(map(bool, texts)) >= 2, "it came in pieces"
    assert [part.choices[0].finish_reason for part in parts if part.choices][-1] == "stop"
    assert parts[-1].usage == plain.usage


def test_a_tool_is_called(lane: FaultLane) -> None:
    with FaultLane(script=["tool_calls"]) as calling, client_of(calling) as client:
        reply = client.chat.completions.create(model="m", messages=ASKED, tools=[TOOL])
    (call,) = reply.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "count_ducks"
    assert set(json.loads(call.function.arguments)) == {"pond"}
    assert (reply.choices[0].finish_reason, reply.choices[0].message.content) == ("tool_calls", None)


def test_a_tool_is_called_in_a_stream(lane: FaultLane) -> None:
    with FaultLane(script=["tool_calls"]) as calling, client_of(calling) as client:
        parts = list(client.chat.completions.create(model="m", messages=ASKED, tools=[TOOL], stream=True))
    deltas = [call for part in parts for call in part.choices[0].delta.tool_calls or []]
    assert [delta.function.name for delta in deltas if delta.function and delta.function.name] == ["count_ducks"]
    arguments = "".join(delta.function.arguments or "" for delta in deltas if delta.function)
    assert set(json.loads(arguments)) == {"pond"}
    assert parts[-1].choices[0].finish_reason == "tool_calls"


def test_a_tool_that_must_be_called_is_called(lane: FaultLane) -> None:
    other: Any = {"type": "function", "function": {"name": "count_geese", "parameters": {"type": "object"}}}
    with client_of(lane) as client:
        free = client.chat.completions.create(model="m", messages=ASKED, tools=[TOOL])
        bound = client.chat.completions.create(
            model="m",
            messages=ASKED,
            tools=[TOOL, other],
            tool_choice={"type": "function", "function": {"name": "count_geese"}},
        )
    assert free.choices[0].message.tool_calls is None
    (call,) = bound.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "count_geese"


class Bird(BaseModel):
    kind: Literal["mallard", "teal"]
    weight_g: float


class Pond(BaseModel):
    count: int
    clean: bool
    note: str
    birds: list[Bird]
    best: Bird
    worst: Bird | None


def test_an_answer_satisfies_the_schema_that_was_asked(lane: FaultLane) -> None:
    with client_of(lane) as client:
        reply = client.chat.completions.parse(model="m", messages=ASKED, response_format=Pond)
    assert isinstance(reply.choices[0].message.parsed, Pond)


def test_an_answer_of_the_wrong_shape_does_not_satisfy_it() -> None:
    with FaultLane(script=["bad_schema"]) as lane, client_of(lane) as client, pytest.raises(ValueError, match="Pond"):
        client.chat.completions.parse(model="m", messages=ASKED, response_format=Pond)


def test_a_prompt_with_a_picture_is_taken(lane: FaultLane) -> None:
    picture: Any = {"type": "image_url", "image_url": {"url": PIXEL}}
    with client_of(lane) as client:
        for parts in ([picture], [{"type": "text", "text": "What is it?"}, picture]):
            reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": parts}])
            assert reply.choices[0].message.content
    assert len({post.prompt_digest for post in lane.posts()}) == 2


def test_a_hanging_server_is_a_timeout() -> None:
    with FaultLane(script=["hang"]) as lane, client_of(lane, timeout=0.2) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(model="m", messages=ASKED)
        assert [post.completed for post in lane.posts()] == [False]


def test_a_client_that_follows_redirects_pays_with_a_second_post() -> None:
    with FaultLane(script=["redirect", "ok"]) as lane, client_of(lane) as client:
        client.chat.completions.create(model="m", messages=ASKED)
        assert [post.fault for post in lane.posts()] == ["redirect", "ok"]


def test_a_client_with_retries_sends_one_call_three_times() -> None:
    soon = [("retry-after-ms", "1")]
    with FaultLane(script=["503_proof"], headers=soon) as lane, client_of(lane, timeout=20) as client:
        with pytest.raises(openai.InternalServerError):
            client.with_options(max_retries=2).chat.completions.create(model="m", messages=ASKED)
        assert [post.ordinal for post in lane.posts()] == [1, 2, 3]
