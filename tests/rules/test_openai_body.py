"""OpenAI request bodies as work: nothing that determines the answer is lost, and what cannot be answered is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai.types.chat import completion_create_params

from millpond.intake import take
from millpond.lanes.chat import request_body
from millpond.rules.errors import UsageError
from millpond.rules.identity import fingerprint
from millpond.rules.job import Prompt, Request
from millpond.rules.openai_body import BODY_FIELDS, is_body, prompt_of_body, request_of_line
from millpond.rules.policy import LanePolicy
from millpond.rules.prompt import PROMPT_FIELDS, SAMPLING_PARAMS
from millpond.store.bodies import load_work

RECORDED = sorted((Path(__file__).parent.parent / "drill" / "recorded").glob("*.http"))
POSTS = [file for file in RECORDED if file.read_bytes().startswith(b"POST ")]
ASKED: list[Any] = [{"role": "user", "content": "How many ducks?"}]
CLOSED = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}}
TOOL = {"type": "function", "function": {"name": "count", "parameters": {"type": "object"}, "strict": False}}


def body(**more: Any) -> dict[str, Any]:
    return {"model": "gpt-5-mini", "messages": ASKED, **more}


def json_schema(**around: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": around}


def sent(asked: dict[str, Any]) -> dict[str, Any]:
    """What a chat lane sends for a body that went through the store."""
    stored = load_work(take({"body": asked}, position=0, now_ms=0).body)
    assert isinstance(stored, Prompt)
    lane = LanePolicy("plain", base_url="http://127.0.0.1:1/v1", model=str(asked.get("model", "m")), streams=False)
    return request_body(lane, stored)


def refusal(asked: Any) -> str:
    with pytest.raises(UsageError) as caught:
        prompt_of_body(asked)
    return str(caught.value)


def test_each_field_finds_its_place() -> None:
    asked = body(
        tools=[TOOL], tool_choice="required", reasoning_effort="low", temperature=0.5, logit_bias={"5": 1}, seed=7,
        metadata={"run": "a"}, guided_choice=["a", "b"],
    )  # fmt: skip
    assert prompt_of_body(asked) == Prompt(
        messages=ASKED,
        model="gpt-5-mini",
        tools=[TOOL],
        reasoning="low",
        params={
            "tool_choice": "required", "temperature": 0.5, "logit_bias": {"5": 1}, "seed": 7, "metadata": {"run": "a"},
            "guided_choice": ["a", "b"],
        },
    )  # fmt: skip


def test_a_schema_is_the_prompts_and_the_words_around_it_stay() -> None:
    prompt = prompt_of_body(body(response_format=json_schema(name="pond", strict=True, description="d", schema=CLOSED)))
    assert prompt.schema == CLOSED
    assert prompt.params == {"response_format": json_schema(name="pond", strict=True, description="d")}


@pytest.mark.parametrize(
    "said",
    [
        {"type": "text"},
        {"type": "json_object"},
        json_schema(name="pond", strict=True, schema=CLOSED),
        json_schema(name="pond", strict=False, schema=CLOSED),
        json_schema(name="pond", strict=None, schema=CLOSED),
        json_schema(name="pond", schema=CLOSED),
        json_schema(name="pond", schema=OPEN, description="what swims"),
        json_schema(name="pond", strict=True, schema=OPEN),
        json_schema(name="pond", strict=True),
        json_schema(name="pond", schema={}),
    ],
)
def test_a_lane_sends_the_response_format_that_was_asked(said: dict[str, Any]) -> None:
    assert sent(body(response_format=said)) == body(response_format=said)


@pytest.mark.parametrize("file", POSTS, ids=lambda file: file.stem)
def test_what_the_official_client_sends_is_sent_again(file: Path) -> None:
    asked = json.loads(file.read_bytes().partition(b"\n\n")[2])
    if asked.pop("stream", None):  # the lane decides
        del asked["stream_options"]
    assert sent(asked) == asked


def test_a_full_body_is_sent_again() -> None:
    asked = body(
        messages=[{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, *ASKED],
        tools=[TOOL], tool_choice={"type": "function", "function": {"name": "count"}}, parallel_tool_calls=False,
        reasoning_effort="none", max_completion_tokens=9, stop=["\n"], top_p=1, logprobs=True, top_logprobs=2,
        service_tier="flex", store=False, metadata={"a": "b"}, user="u", prediction={"type": "content", "content": "x"},
        top_k=4,
    )  # fmt: skip
    assert sent(asked) == asked


def test_every_field_that_the_official_client_has_makes_a_body() -> None:
    official = set(completion_create_params.CompletionCreateParamsBase.__annotations__) | {"stream"}
    assert official - BODY_FIELDS == set()
    assert set(SAMPLING_PARAMS) <= BODY_FIELDS
    for name in official - {"messages", "model", "tools"}:
        assert is_body({"messages": ASKED, name: None}), name


def test_a_bare_body_is_work_too() -> None:
    bare = take(body(temperature=0, reasoning_effort="low"), position=0, now_ms=0)
    line = take({"body": body(temperature=0, reasoning_effort="low")}, position=0, now_ms=0)
    assert bare.fingerprint == line.fingerprint
    assert load_work(bare.body) == Prompt(
        messages=ASKED, model="gpt-5-mini", reasoning="low", params={"temperature": 0}
    )


def test_what_may_be_a_prompt_is_one() -> None:
    assert not is_body(body())
    assert not is_body(body(tools=[TOOL]))
    assert not is_body({"task": "x", "temperature": 0})
    assert not is_body(body(temperature=0, params={}))
    assert not is_body(body(temprature=0))
    as_prompt = take(body(tools=[TOOL]), position=0, now_ms=0)
    assert as_prompt.fingerprint == take({"body": body(tools=[TOOL])}, position=0, now_ms=0).fingerprint
    assert set(PROMPT_FIELDS) & BODY_FIELDS == {"messages", "model", "tools"}


@pytest.mark.parametrize(
    "more",
    [
        {"n": 1}, {"n": None}, {"stream": False}, {"stream": None}, {"stream_options": {"include_usage": True}},
        {"user": "u"}, {"metadata": {"a": "b"}}, {"service_tier": "flex"}, {"store": True}, {"modalities": None},
        {"temperature": None}, {"tools": []}, {"tools": None}, {"reasoning_effort": None}, {"response_format": None},
    ],
)  # fmt: skip
def test_what_does_not_change_the_answer_does_not_change_the_work(more: dict[str, Any]) -> None:
    assert fingerprint(prompt_of_body(body(**more))) == fingerprint(prompt_of_body(body()))


@pytest.mark.parametrize(
    "more",
    [
        {"model": "gpt-5"}, {"model": None}, {"temperature": 0}, {"seed": 1}, {"tools": [TOOL]},
        {"tool_choice": "none"}, {"reasoning_effort": "low"}, {"unheard_of": 1},
        {"response_format": json_schema(name="a", schema=CLOSED)},
        {"messages": [*ASKED, {"role": "assistant", "content": "Seven."}, *ASKED]},
    ],
)  # fmt: skip
def test_what_changes_the_answer_changes_the_work(more: dict[str, Any]) -> None:
    assert fingerprint(prompt_of_body(body(**more))) != fingerprint(prompt_of_body(body()))


def test_strictness_and_the_name_of_a_schema_are_part_of_the_work() -> None:
    formats = [json_schema(name="a", schema=OPEN), json_schema(name="b", schema=OPEN)]
    formats += [json_schema(name="a", schema=OPEN, strict=strict) for strict in (True, False)]
    assert len({fingerprint(prompt_of_body(body(response_format=said))) for said in formats}) == 4


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (None, "body: found NoneType None, wanted the body of a chat completions request"),
        ([], "body: found list, wanted the body"),
        ({}, "body.messages: found NoneType None, wanted a list of messages"),
        (body(messages=[]), "body.messages: found an empty list, wanted"),
        (body(messages="hi"), "body.messages: found text 'hi', wanted a list"),
        (body(messages=["hi"]), "body.messages[0]: found text 'hi', wanted a mapping"),
        (body(messages=[{"content": "hi"}]), "body.messages[0].role: found NoneType None, wanted a role"),
        (body(model=5), "body.model: found int 5, wanted text"),
        (body(tools={}), "body.tools: found dict, wanted a list of mappings"),
        (body(reasoning_effort=3), "body.reasoning_effort: found int 3, wanted text such as 'low'"),
        (body(temperature=float("nan")), "body.temperature: found nan, wanted a finite number"),
        (body(n=2), "body.n: found int 2, wanted 1"),
        (body(n=0), "body.n: found int 0, wanted 1"),
        (body(n=True), "body.n: found bool True, wanted 1"),
        (body(stream=True), "body.stream: found bool True, wanted it left out"),
        (body(stream="no"), "body.stream: found text 'no', wanted it left out"),
        (body(modalities=["text", "audio"]), "body.modalities: found a wish for more than text"),
        (body(audio={"voice": "ash", "format": "mp3"}), "body.audio: found a wish for more than text"),
        ({1: 2}, "body: found int 1 as a key, wanted text"),
    ],
)  # fmt: skip
def test_what_cannot_be_answered_is_refused_by_its_field(asked: Any, words: str) -> None:
    assert words in refusal(asked)


def test_a_line_says_its_custom_id_and_its_body() -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body()}
    assert request_of_line(line) == Request(prompt_of_body(body()), custom_id="a")
    assert request_of_line({**line, "url": "/chat/completions"}).custom_id == "a"
    assert request_of_line({"body": body()}).custom_id is None


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"method": "GET"}, "method: found text 'GET', wanted POST"),
        ({"url": "/v1/embeddings"}, "url: found text '/v1/embeddings', wanted /v1/chat/completions; other endpoints"),
        ({"url": "/v1/responses"}, "url: found text '/v1/responses'"),
        ({"url": ["/v1/chat/completions"]}, "url: found list"),
        ({"custom_id": 5}, "custom_id: found int 5, wanted text"),
        ({"custom_id": "a\n"}, "custom_id: found the control character U+000A at 1"),
        ({"custm_id": "a"}, "unknown key 'custm_id' beside the body; did you mean 'custom_id'?"),
        ({"temperature": 0}, "unknown key 'temperature' beside the body; known: custom_id, method, url, body"),
        ({5: 0}, "found int 5 as a key"),
    ],
)
def test_a_line_that_is_none_is_refused(more: dict[Any, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_of_line({"custom_id": "a", "body": body(), **more})
    assert words in str(caught.value)


def test_the_custom_id_of_a_line_goes_with_it_unless_its_request_has_one() -> None:
    line = {"custom_id": "a", "body": body()}
    assert take(line, position=0, now_ms=0).custom_id == "a"
    assert take(Request(line), position=0, now_ms=0).custom_id == "a"
    assert take(Request(line, custom_id="mine"), position=0, now_ms=0).custom_id == "mine"
