"""A stream put together again is the body that an unstreamed answer would have had."""

from __future__ import annotations

import json
from typing import Any

from httpx2 import ServerSentEvent
from openai.types.chat import ChatCompletion

from millpond.lanes.completion import Completion


def streamed(*chunks: Any) -> Completion:
    completion = Completion()
    for chunk in chunks:
        completion.take_event(ServerSentEvent(data=chunk if isinstance(chunk, str) else json.dumps(chunk)))
    return completion


def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None, **more}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m1", "choices": [choice]}


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -0.5, "bytes": None, "top_logprobs": []}


def test_a_stream_keeps_when_it_was_made_by_what_and_how_likely_each_token_was() -> None:
    body = streamed(
        {**chunk({"role": "assistant", "content": "seven "}, logprobs={"content": [token("seven ")], "refusal": None}),
         "system_fingerprint": "fp_1"},
        chunk({"content": "ducks"}, logprobs={"content": [token("du"), token("cks")], "refusal": None}),
        {**chunk({}, finish_reason="stop"), "service_tier": "default"},
        "[DONE]",
    ).as_body()  # fmt: skip
    completion = ChatCompletion.model_validate(body)
    assert (completion.created, completion.system_fingerprint, completion.service_tier) == (7, "fp_1", "default")
    [choice] = completion.choices
    assert choice.logprobs is not None
    assert [one.token for one in choice.logprobs.content or []] == ["seven ", "du", "cks"]
    assert choice.logprobs.refusal is None
    assert choice.message.content == "seven ducks"


def test_calls_of_a_stream_bear_no_numbers_of_its_parts() -> None:
    parts = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "count", "arguments": '{"p'}},
        {"index": 0, "function": {"arguments": 'ond": 1}'}},
    ]
    body = streamed(*(chunk({"tool_calls": [part]}) for part in parts), chunk({}, finish_reason="tool_calls")).as_body()
    assert body["choices"][0]["message"]["tool_calls"] == [
        {"id": "call_1", "type": "function", "function": {"name": "count", "arguments": '{"pond": 1}'}}
    ]


def test_a_stream_that_says_nothing_of_itself_gets_nothing_made_up() -> None:
    body = streamed(chunk({"content": "x"}) | {"created": None}, "[DONE]").as_body()
    assert "created" not in body
    assert "logprobs" not in body["choices"][0]
