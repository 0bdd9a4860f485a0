"""The chat lane: what it asks, what it makes of every answer, and that it never asks twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import openai
import pytest
from byteserver import STREAM_HEAD, ByteServer, Play, answers, byte_server, delta, event, whole

from millpond.drill.faultlane import FaultLane
from millpond.drill.script import FAULTS
from millpond.lanes.chat import CannotAsk, ChatLane, request_body
from millpond.lanes.completion import Completion
from millpond.lanes.lane import Call, Lane
from millpond.rules.errors import SettingsError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Command, Image, Prompt, Usage, Work
from millpond.rules.outcome import classify
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import FREE
from millpond.rules.redaction import KEPT_CHARS
from millpond.store.bodies import dump_reply

LONG = Deadlines(connect_ms=20_000, first_byte_ms=20_000, idle_ms=20_000, total_ms=20_000)
SHORT = replace(LONG, first_byte_ms=150, idle_ms=150)
POLICY = LanePolicy("free", price=FREE, base_url="http://127.0.0.1:1/v1", model="m0", deadlines=LONG)
OPEN = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
CLOSED = {**OPEN, "additionalProperties": False}
HI = Prompt("hi")


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


def call_of(work: Work, key: str = "k1") -> Call:
    return Call("u1", work, key, attempt_no=1, deadline_ms=0)


def ask(base_url: str, work: Work = HI, *, key: str = "", **policy: Any) -> Evidence:
    async def scenario() -> Evidence:
        lane = ChatLane(replace(POLICY, base_url=base_url, **policy), key)
        try:
            return await lane.call(call_of(work))
        finally:
            await lane.close()

    return run(scenario())


def ask_play(play: Play, work: Work = HI, *, key: str = "", **policy: Any) -> tuple[Evidence, ByteServer]:
    """One call to a server that sends exact bytes; checks that it was at most one POST."""

    async def scenario() -> tuple[Evidence, ByteServer]:
        async with byte_server(play) as server:
            lane = ChatLane(replace(POLICY, base_url=server.url, **policy), key)
            evidence = await lane.call(call_of(work))
            await lane.close()
        assert len(server.requests) <= 1
        return evidence, server

    return run(scenario())


def answered(body: dict[str, Any], work: Work = HI, **policy: Any) -> Evidence:
    return ask_play(answers(whole(body)), work, **policy)[0]


def streamed(*events: bytes, work: Work = HI, **policy: Any) -> Evidence:
    return ask_play(answers(STREAM_HEAD, *events), work, **policy)[0]


def choice(finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    return {"id": "c1", "model": "m1", "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]}


DONE = event("[DONE]")
STOP = delta(finish_reason="stop")


# ---------------------------------------------------------------- what is asked


def test_it_is_a_lane() -> None:
    assert isinstance(ChatLane(POLICY), Lane)


def test_system_and_task_become_two_messages_and_messages_replace_both() -> None:
    body = request_body(POLICY, Prompt("Count.", system="Be brief."))
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count."}]
    assert request_body(POLICY, Prompt("Count."))["messages"] == [{"role": "user", "content": "Count."}]
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert request_body(POLICY, Prompt("ignored", system="ignored", messages=chat))["messages"] == chat


def test_images_join_the_users_last_message() -> None:
    images = (
        Image(b"\x89PNG", "image/png"),
        Image(url="https://pond.example/duck.jpg"),
        "https://pond.example/teal.jpg",
    )
    parts = request_body(POLICY, Prompt("What is it?", images=images))["messages"][0]["content"]
    assert parts == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
        {"type": "image_url", "image_url": {"url": "https://pond.example/duck.jpg"}},
        {"type": "image_url", "image_url": {"url": "https://pond.example/teal.jpg"}},
    ]
    chat = [{"role": "user", "content": "look"}, {"role": "assistant", "content": "ok"}]
    messages = request_body(POLICY, Prompt(messages=chat, images=images[:1]))["messages"]
    assert [part["type"] for part in messages[0]["content"]] == ["text", "image_url"]
    assert chat[0]["content"] == "look"  # the prompt itself is left alone


def test_a_file_path_that_nobody_read_is_the_callers_fault() -> None:
    evidence = ask("http://127.0.0.1:1/v1", Prompt("see", images=("duck.png",)))
    assert (evidence.sent, evidence.said, evidence.code) == ("no", "permanent", "bad_image")


@pytest.mark.parametrize(("schema", "strict"), [(CLOSED, True), (OPEN, False)])
def test_a_schema_is_asked_for_strictly_where_strict_mode_takes_it(schema: dict[str, Any], strict: bool) -> None:
    asked = request_body(POLICY, Prompt("n?", schema=schema))["response_format"]
    assert asked == {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": strict}}


def test_params_of_the_prompt_win_over_the_lanes_and_neither_over_what_the_product_decides() -> None:
    policy = replace(POLICY, params={"temperature": 1, "top_p": 0.5, "stream_options": None})
    prompt = Prompt("hi", params={"temperature": 0, "seed": 7, "stream": False, "model": "x", "messages": []})
    body = request_body(policy, prompt)
    assert body == {
        "temperature": 0,
        "top_p": 0.5,
        "seed": 7,
        "model": "m0",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
    }


def test_how_the_answer_travels_is_the_lanes_decision() -> None:
    body = request_body(POLICY, Prompt("hi"))
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})
    body = request_body(replace(POLICY, streams=False), Prompt("hi", params={"stream": True, "stream_options": {}}))
    assert not {"stream", "stream_options"} & body.keys()


def test_effort_and_tools_are_passed_on() -> None:
    tool = {"type": "function", "function": {"name": "count"}}
    body = request_body(POLICY, Prompt("hi", reasoning="low", tools=[tool], params={"tool_choice": "auto"}))
    assert (body["reasoning_effort"], body["tools"], body["tool_choice"]) == ("low", [tool], "auto")


@pytest.mark.parametrize(
    ("base_url", "params", "expected"),
    [
        ("http://127.0.0.1:11434/v1", {}, {"max_tokens": 100}),
        ("https://api.openai.com/v1", {}, {"max_completion_tokens": 100}),
        ("https://api.openai.com/v1", {"max_tokens": 50}, {"max_tokens": 50}),
        ("http://127.0.0.1:11434/v1", {"max_completion_tokens": 5000}, {"max_completion_tokens": 100}),
        ("http://127.0.0.1:11434/v1", {"max_tokens": -1}, {"max_tokens": 100}),
    ],
)
def test_the_cap_on_output_is_sent_and_bounds_what_the_prompt_asks(
    base_url: str, params: dict[str, Any], expected: dict[str, int]
) -> None:
    body = request_body(replace(POLICY, base_url=base_url, max_output_tokens=100), Prompt("hi", params=params))
    assert {name: body[name] for name in body if name.startswith("max_")} == expected


def test_a_model_named_by_the_caller_goes_through_the_aliases() -> None:
    policy = replace(POLICY, models={"mini": "provider/mini-2"})
    assert request_body(policy, Prompt("hi", model="mini"))["model"] == "provider/mini-2"
    assert request_body(policy, Prompt("hi", model="provider/mini-2"))["model"] == "provider/mini-2"
    assert request_body(policy, Prompt("hi", model="m0"))["model"] == "m0"
    with pytest.raises(CannotAsk) as refused:
        request_body(policy, Prompt("hi", model="other"))
    assert refused.value.evidence.said == "unfit"


UNFIT = [
    (Command("Count", {"n": 1}, "u"), {}, "unfit"),
    (Prompt("hi", model="other"), {}, "unfit"),
    (Prompt("hi", tools=[{}]), {"supports_tools": False}, "unfit"),
    (Prompt("hi", images=(Image(b"x"),)), {"supports_images": False}, "unfit"),
    (
        Prompt(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]),
        {"supports_images": False},
        "unfit",
    ),
    (Prompt("hi", schema=OPEN), {"supports_schema": False}, "unfit"),
    (Prompt("hi", schema={"type": "nonsense"}), {}, "permanent"),
    (Prompt("hi", schema={"$ref": "https://schemas.example/duck.json"}), {}, "permanent"),
    (Prompt("hi", params={"n": 2}), {}, "permanent"),
    (Prompt("hi", params={"temperature": float("nan")}), {}, "permanent"),
    (Prompt("lone \ud800 surrogate"), {}, "permanent"),
]


@pytest.mark.parametrize(("work", "policy", "said"), UNFIT)
def test_work_that_cannot_be_put_is_not_sent(work: Work, policy: dict[str, Any], said: str) -> None:
    evidence, server = ask_play(answers(whole(choice(content="x"))), work, **policy)
    assert (evidence.sent, evidence.said, evidence.status) == ("no", said, None)
    assert evidence.message
    assert server.connections == 0


def test_the_idempotency_key_travels_in_the_lanes_header() -> None:
    async def sent(idempotency_key: str, **policy: Any) -> str:
        async with byte_server(answers(whole(choice(content="x")))) as server:
            lane = ChatLane(replace(POLICY, base_url=server.url, **policy))
            await lane.call(call_of(Prompt("hi"), idempotency_key))
            await lane.close()
        return server.requests[0].partition(b"\r\n\r\n")[0].decode()

    assert "\r\nIdempotency-Key: fp:3#2\r\n" in run(sent("fp:3#2"))
    assert "\r\nX-Key: k\r\n" in run(sent("k", dedup_header="X-Key"))
    assert "dempotency" not in run(sent("k", dedup_header=""))
    assert "\r\nIdempotency-Key: Ente%20%C3%BC%0D%0Ax%3A1\r\n" in run(sent("Ente ü\r\nx:1"))
    assert "\r\nIdempotency-Key: 100%25\r\n" in run(sent("100%"))


def test_the_official_client_sends_the_same_essentials() -> None:
    """The body of `openai` and ours, for the same question, as a server sees them."""
    tool = {"type": "function", "function": {"name": "count", "parameters": CLOSED}}
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Count the ducks 🦆"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
            ],
        },
    ]
    with FaultLane() as lane:
        with openai.OpenAI(base_url=lane.base_url, api_key="k", max_retries=0) as client:
            list(
                client.chat.completions.create(
                    model="m0",
                    messages=messages,
                    tools=[tool],  # type: ignore[list-item]
                    temperature=0.2,
                    seed=7,
                    max_tokens=64,
                    reasoning_effort="low",
                    response_format={
                        "type": "json_schema",
                        "json_schema": {"name": "answer", "schema": CLOSED, "strict": True},
                    },
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_headers={"Idempotency-Key": "k1"},
                )
            )
        prompt = Prompt(
            "Count the ducks 🦆",
            system="Be brief.",
            images=(Image(b"\x89PNG"),),
            tools=[tool],
            schema=CLOSED,
            reasoning="low",
            params={"temperature": 0.2, "seed": 7},
        )
        ask(lane.base_url, prompt, max_output_tokens=64)
        theirs, ours = lane.posts()
    assert ours.body == theirs.body
    assert ours.idempotency_key == theirs.idempotency_key == "k1"


# ---------------------------------------------------------------- settings and secrets


@pytest.mark.parametrize("base_url", ["", "127.0.0.1:11434/v1", "ftp://host/v1", "http://", "http://[::1/v1"])
def test_an_address_that_is_none_is_a_setting_refused(base_url: str) -> None:
    with pytest.raises(SettingsError, match=r"^lanes\.free\.base_url: found .*, wanted an address") as refused:
        ChatLane(replace(POLICY, base_url=base_url))
    assert "\n" not in str(refused.value)


def test_a_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(SettingsError, match="the key holds characters") as refused:
        ChatLane(POLICY, "sk-secret\nx-evil: 1")
    assert "sk-secret" not in str(refused.value)
    with pytest.raises(SettingsError, match="the header 'x-a'"):
        ChatLane(replace(POLICY, headers={"X-A": "ü"}))


def test_query_and_trailing_slash_of_the_address_are_kept_in_order() -> None:
    evidence, server = ask_play(answers(whole(choice(content="x"))))
    assert evidence.reply is not None
    assert server.requests[0].startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    lane = ChatLane(replace(POLICY, base_url="https://h.example/v1/?api-version=3"))
    assert str(lane._url) == "https://h.example/v1/chat/completions?api-version=3"


def test_o22_the_key_stands_in_no_evidence() -> None:
    key = "k3y-7f19a0c55b1d4e"
    words = f"Incorrect API key provided: {key}. Header: Authorization: Bearer {key}"
    refusal = whole({"error": {"message": words, "code": key, "type": key}}, "401 No", f"x-request-id: {key}\r\n")
    evidence, server = ask_play(answers(refusal), key=key)
    assert f"authorization: Bearer {key}".encode() in server.requests[0]
    assert evidence.status == 401
    assert "Incorrect API key provided" in evidence.message
    assert key not in repr(evidence)
    evidence, _ = ask_play(answers(whole(f"<html>{key}</html>".encode(), kind="text/html")), key=key)
    assert evidence.failure == "html"
    assert key not in repr(evidence)
    # A cut must not leave half a key behind.
    long = whole({"error": {"message": "x" * (KEPT_CHARS - 5) + key}}, "400 No")
    evidence, _ = ask_play(answers(long), key=key)
    assert evidence.message == ("x" * (KEPT_CHARS - 5) + "[redacted]")[:KEPT_CHARS]


# ---------------------------------------------------------------- whole replies


def test_a_whole_reply_bears_text_usage_model_and_request_id() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
    body = {**choice(content="fam\u0000ily"), "usage": usage}
    play = answers(whole(body, headers="x-request-id: req_9\r\n"))
    evidence, _ = ask_play(play, streams=False)
    assert (evidence.sent, evidence.failure, evidence.status, evidence.terminal) == ("yes", None, 200, True)
    assert evidence.first_byte_ms is not None
    assert evidence.body_bytes == len(json.dumps(body))
    assert evidence.usage == Usage(5, 2, usage)
    reply = evidence.reply
    assert reply is not None
    assert (reply.text, reply.finish_reason, reply.model, reply.request_id) == ("fam\u0000ily", "stop", "m1", "req_9")
    assert reply.raw == body
    assert reply.usage == evidence.usage
    assert (evidence.request_id, evidence.model, evidence.finish_reason) == ("req_9", "m1", "stop")


def test_unknown_usage_is_not_zero() -> None:
    assert answered(choice(content="x")).usage is None
    half = answered({**choice(content="x"), "usage": {"prompt_tokens": 3, "completion_tokens": None}}).usage
    assert half is not None
    assert (half.tokens_in, half.tokens_out) == (3, None)


def test_a_lane_that_ignores_stream_is_read_all_the_same() -> None:
    evidence = answered(choice(content="x"), streams=True)
    assert (evidence.terminal, evidence.reply and evidence.reply.text) == (True, "x")


def test_content_as_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "reasoning", "text": "no"}, {"type": "output_text", "text": "b"}]
    evidence = answered(choice(content=parts))
    assert evidence.reply is not None
    assert evidence.reply.text == "ab"


def test_a_refusal_is_told_from_an_answer() -> None:
    for evidence in (
        answered(choice(content=None, refusal="I cannot.")),
        streamed(delta(refusal="I can"), delta(refusal="not."), STOP, DONE),
    ):
        assert (evidence.finish_reason, evidence.has_content, evidence.terminal) == ("refusal", False, True)
        assert evidence.message == "I cannot."


@pytest.mark.parametrize("content", ["", None, " \n\t"])
def test_o04_a_reply_without_text_has_no_content(content: str | None) -> None:
    evidence = answered(choice(content=content))
    assert (evidence.terminal, evidence.has_content) == (True, False)


def test_other_choices_are_left_out() -> None:
    body = choice(content="first")
    body["choices"].insert(0, {"index": 1, "message": {"content": "second"}, "finish_reason": "stop"})
    evidence = answered(body)
    assert evidence.reply is not None
    assert evidence.reply.text == "first"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("body", "code", "kind", "message"),
    [
        ({"error": {"code": "x", "type": "t", "message": "m"}}, "x", "t", "m"),
        ({"error": {"code": 429, "message": "m"}}, "429", "", "m"),
        ([{"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "m"}}], "429", "RESOURCE_EXHAUSTED", "m"),
        ({"error": "model is loading"}, "", "", "model is loading"),
        ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, "400", "BadRequestError", "m"),
        ({"detail": "no such thing"}, "", "", "no such thing"),
        ({"detail": [{"msg": "field required"}]}, "", "", '[{"msg": "field required"}]'),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "m"}}, "", "overloaded_error", "m"),
    ],
)
def test_an_errors_words_are_read_in_the_shapes_that_servers_send(
    body: Any, code: str, kind: str, message: str
) -> None:
    evidence, _ = ask_play(answers(whole(json.dumps(body).encode(), "400 No")))
    assert (evidence.status, evidence.failure, evidence.terminal) == (400, None, False)
    assert (evidence.code, evidence.type, evidence.message) == (code, kind, message)
    assert evidence.reply is None


def test_an_error_that_is_no_json_is_its_own_words() -> None:
    evidence, _ = ask_play(answers(whole(b"upstream connect error", "503 No", kind="text/plain")))
    assert (evidence.status, evidence.message) == (503, "upstream connect error")


def test_a_delay_stated_in_the_body_is_found() -> None:
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.0741s"}
    evidence, _ = ask_play(answers(whole({"error": {"code": 429, "details": [{}, info]}}, "429 No")))
    assert evidence.retry_info_ms == 34_075


def test_o26_an_error_inside_a_200() -> None:
    inner = answered({"error": {"code": 429, "message": "slow down"}})
    assert (inner.status, inner.code, inner.message, inner.has_content) == (200, "429", "slow down", False)
    none = answered({"id": "c1", "choices": []})
    assert (none.failure, none.terminal, none.has_content, none.code) == (None, True, False, "")
    failed = answered(choice("error", content=""))
    assert (failed.finish_reason, failed.has_content) == ("error", False)
    worded = choice("error", content="")
    worded["choices"][0]["error"] = {"code": 502, "message": "m"}
    assert (answered(worded).code, answered(worded).finish_reason) == ("502", "error")
    good = answered({"error": None, **choice(content="fine")})
    assert (good.code, good.terminal, good.has_content) == ("", True, True)
    page, _ = ask_play(answers(whole(b"<html>" + b"x" * 500, kind="text/html")))
    assert (page.failure, len(page.message)) == ("html", 200)
    cut, _ = ask_play(answers(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n{"id": "c1", "choi'))
    assert (cut.sent, cut.failure, cut.terminal) == ("yes", "bad_json", False)


@pytest.mark.parametrize("body", [b"[]", b'"words"', b"null", b"", b"[" * 100_000])
def test_a_200_that_is_no_object_is_bad_json(body: bytes) -> None:
    evidence, _ = ask_play(answers(whole(body)))
    assert (evidence.failure, evidence.terminal, evidence.reply) == ("bad_json", False, None)


# ---------------------------------------------------------------- streams


def test_a_stream_is_put_together() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 2}
    events = (
        b": OPENROUTER PROCESSING\n\n",
        delta(role="assistant", content=""),
        delta(content="grü"),
        delta(content="ße"),
        STOP,
        event({"id": "c1", "choices": [], "usage": usage}),
        DONE,
    )
    evidence = streamed(*events)
    assert (evidence.failure, evidence.terminal, evidence.has_content) == (None, True, True)
    assert evidence.usage == Usage(4, 2, usage)
    reply = evidence.reply
    assert reply is not None
    assert (reply.text, reply.finish_reason, reply.model, reply.request_id) == ("grüße", "stop", "m1", "c1")
    assert reply.raw is not None
    assert reply.raw["choices"][0]["message"]["content"] == "grüße"


def test_tool_calls_are_joined_from_their_deltas() -> None:
    def part(index: int | None, **fields: Any) -> bytes:
        function = {name: fields.pop(name) for name in ("name", "arguments") if name in fields}
        return delta(tool_calls=[{**({} if index is None else {"index": index}), **fields, "function": function}])

    for indexes in ((0, 0, 1, 1), (None, None, None, None)):
        evidence = streamed(
            part(indexes[0], id="a", name="count", arguments=""),
            part(indexes[1], arguments='{"pond": 1}'),
            part(indexes[2], id="b", name="weigh", arguments='{"po'),
            part(indexes[3], arguments='nd": 2}'),
            delta(finish_reason="tool_calls"),
            DONE,
        )
        assert evidence.has_content
        assert evidence.reply is not None
        assert evidence.reply.raw is not None
        calls = evidence.reply.raw["choices"][0]["message"]["tool_calls"]
        assert [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls] == [
            ("a", "count", '{"pond": 1}'),
            ("b", "weigh", '{"pond": 2}'),
        ]


@pytest.mark.parametrize(
    ("events", "failure", "terminal"),
    [
        ((delta(content="a"), STOP), None, True),  # the finish reason is the model's own word
        ((delta(content="a"), DONE), None, True),
        ((delta(content="a"),), "stream_unfinished", False),
        ((), "stream_unfinished", False),
        ((delta(content="a"), b"data: [DO"), "stream_unfinished", False),
        ((delta(content="a"), event('{"choi'), STOP, DONE), "bad_json", False),
        ((delta(content="a"), event("[1]"), STOP, DONE), "bad_json", False),
    ],
)
def test_when_a_stream_is_whole(events: tuple[bytes, ...], failure: str | None, terminal: bool) -> None:
    evidence = streamed(*events)
    assert (evidence.failure, evidence.terminal) == (failure, terminal)


def test_a_stream_that_breaks_after_its_finish_reason_is_whole() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\n"
    evidence, _ = ask_play(answers(head, delta(content="a"), STOP))
    assert (evidence.failure, evidence.terminal, evidence.usage) == (None, True, None)
    evidence, _ = ask_play(answers(head, delta(content="a")))
    assert (evidence.failure, evidence.terminal) == ("stream_cut", False)
    assert evidence.reply is not None
    assert evidence.reply.text == "a"  # kept on the attempt, never accepted


def test_an_error_event_says_whether_content_had_come() -> None:
    error = event({"error": {"code": 429, "message": "m"}})
    before = streamed(delta(role="assistant", content=""), error)
    assert (before.failure, before.code, before.content_before_error) == ("stream_error", "429", False)
    after = streamed(delta(content="a"), error)
    assert (after.failure, after.code, after.content_before_error) == ("stream_error", "429", True)
    assert after.reply is not None
    assert after.reply.text == "a"
    named = streamed(b'event: error\ndata: {"message": "m", "type": "overloaded_error"}\n\n')
    assert (named.failure, named.type, named.message) == ("stream_error", "overloaded_error", "m")
    # An error after the finish reason still counts: the provider takes it back.
    late = streamed(delta(content="a"), STOP, error)
    assert (late.failure, late.content_before_error) == ("stream_error", True)


# ---------------------------------------------------------------- a schema was asked


@pytest.mark.parametrize(
    ("text", "data", "wrong"),
    [
        ('{"n": 3}', {"n": 3}, ""),
        ('```json\n{"n": 3}\n```', {"n": 3}, ""),
        ('Here it is: {"n": 3}', None, "no JSON"),
        ('{"n": "3"}', None, "at $.n: '3' is not of type 'integer'"),
        ('{"n": NaN}', None, "NaN is not JSON"),
        ('{"n": 3', None, "no JSON"),
    ],
)
def test_an_answer_is_judged_by_the_schema_that_was_asked(text: str, data: Any, wrong: str) -> None:
    evidence = answered(choice(content=text), Prompt("n?", schema=OPEN))
    assert evidence.reply is not None
    assert (evidence.reply.text, evidence.reply.data) == (text, data)
    assert wrong in evidence.schema_error
    assert bool(wrong) == bool(evidence.schema_error)


def test_a_call_of_a_tool_is_not_judged_by_the_schema() -> None:
    call = {"id": "a", "function": {"name": "count", "arguments": "{}"}}
    evidence = answered(choice("tool_calls", content=None, tool_calls=[call]), Prompt("n?", schema=OPEN))
    assert (evidence.schema_error, evidence.has_content) == ("", True)


# ---------------------------------------------------------------- the local model that never answers


def test_o20_a_lane_that_accepts_and_sends_nothing() -> None:
    with FaultLane(script=["hang"]) as lane:
        evidence = ask(lane.base_url, deadlines=SHORT)
        assert (evidence.sent, evidence.failure, evidence.usage) == ("yes", "first_byte_timeout", None)
        assert lane.accepted() == 1


def test_o20_one_token_for_ever_is_ended_by_the_idle_and_by_the_total_deadline() -> None:
    async def drip(connection: Any) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD)
        while True:
            await connection.send(delta(content="G"))
            await asyncio.sleep(pause_s)

    async def aborted(deadlines: Deadlines) -> Evidence:
        async with byte_server(drip) as server:
            lane = ChatLane(replace(POLICY, base_url=server.url, deadlines=deadlines))
            evidence = await lane.call(call_of(Prompt("hi")))
            await lane.close()
        return evidence

    pause_s = 3600.0
    assert run(aborted(replace(LONG, idle_ms=60))).failure == "idle_timeout"
    pause_s = 0.005
    evidence = run(aborted(replace(LONG, total_ms=150)))
    assert evidence.failure == "total_timeout"
    assert evidence.reply is not None
    assert set(evidence.reply.text) == {"G"}


def test_o20_repeating_for_ever_is_ended_by_the_output_cap_and_aborted_on_the_wire() -> None:
    async def repeat(connection: Any) -> None:
        await connection.request()
        await connection.send(STREAM_HEAD)
        sender = asyncio.ensure_future(flood(connection))
        await connection.client_left()
        sender.cancel()

    async def flood(connection: Any) -> None:
        while True:
            await connection.send(delta(content="G" * 100))

    async def scenario() -> Evidence:
        async with byte_server(repeat) as server:
            lane = ChatLane(replace(POLICY, base_url=server.url, max_output_tokens=50))
            evidence = await lane.call(call_of(Prompt("hi")))
            await asyncio.wait_for(server.left.wait(), 10)
            assert server.bodies()[0]["max_tokens"] == 50
            await lane.close()
        return evidence

    evidence = run(scenario())
    assert (evidence.failure, evidence.terminal, evidence.usage) == ("stream_cut", False, None)
    assert "800 characters" in evidence.message


def test_o20_a_model_that_is_loading_says_so() -> None:
    with FaultLane(script=["loading", "ok"]) as lane:
        evidence = ask(lane.base_url)
        assert (evidence.status, evidence.message) == (503, "Loading model")
        assert ask(lane.base_url).terminal


# ---------------------------------------------------------------- every fault of the fault lane

WHOLE = {"failure": None, "status": 200, "terminal": True, "has_content": True, "code": ""}
BOTH: dict[str, dict[str, Any]] = {
    "ok": {**WHOLE, "finish_reason": "stop"},
    "stream_ok": {**WHOLE, "finish_reason": "stop"},
    "slow": {**WHOLE, "finish_reason": "stop"},
    "tool_calls": {**WHOLE, "finish_reason": "tool_calls"},
    "error_null": {**WHOLE, "finish_reason": "stop"},
    "reset_idle": {**WHOLE, "finish_reason": "stop"},
    "unknown_finish": {**WHOLE, "finish_reason": "eos"},
    "truncated": {**WHOLE, "finish_reason": "length"},
    "bad_schema": {**WHOLE, "finish_reason": "stop"},
    "empty": {**WHOLE, "finish_reason": "stop", "has_content": False},
    "content_filter": {**WHOLE, "finish_reason": "content_filter", "has_content": False},
    "no_choices": {"failure": None, "status": 200, "has_content": False, "terminal": True},
    "finish_error": {"status": 200, "has_content": False, "code": "502", "finish_reason": "error"},
    "429": {"status": 429, "code": "rate_limit_exceeded", "headers": {"retry-after": "1"}},
    "429_bare": {"status": 429, "code": "rate_limit_exceeded"},
    "429_quota": {"status": 429, "code": "insufficient_quota"},
    "503_proof": {"status": 503, "code": "overloaded", "headers": {"retry-after": "1"}},
    "503_bare": {"status": 503, "code": ""},
    "loading": {"status": 503, "code": "model_loading"},
    "500": {"status": 500, "type": "server_error"},
    "400": {"status": 400, "type": "invalid_request_error"},
    "400_context": {"status": 400, "code": "context_length_exceeded"},
    "400_credit": {"status": 400, "message": "Your credit balance is too low to use this API."},
    "401": {"status": 401, "code": "invalid_api_key"},
    "402": {"status": 402, "code": "payment_required"},
    "404_model": {"status": 404, "code": "model_not_found"},
    "408": {"status": 408, "type": "timeout_error"},
    "409": {"status": 409, "type": "conflict_error"},
    "413": {"status": 413, "code": "request_too_large"},
    "422": {"status": 422, "code": "unprocessable_entity"},
    "redirect": {"status": 307, "failure": "redirect"},
    "reset": {"status": None, "failure": "reset"},
    "cut": {"status": 200, "failure": "body_cut"},
    "hang": {"status": None, "failure": "first_byte_timeout"},
    "html": {"status": 200, "failure": "html"},
    "bad_json": {"status": 200, "failure": "bad_json", "terminal": False},
    "error_200": {"status": 200, "type": "server_error", "has_content": False},
}
STREAMED: dict[str, dict[str, Any]] = {
    "cut": {"status": 200, "failure": "stream_cut", "terminal": False},
    "stream_cut": {"status": 200, "failure": "stream_cut", "terminal": False, "has_content": True},
    "stream_unfinished": {"status": 200, "failure": "stream_unfinished", "terminal": False, "has_content": True},
    "stream_error_before": {"failure": "stream_error", "type": "server_error", "content_before_error": False},
    "stream_error_after": {"failure": "stream_error", "type": "server_error", "content_before_error": True},
    "comments": {"status": 200, "failure": "first_byte_timeout", "has_content": False},
    "partial_stream_then_hang": {"status": 200, "failure": "idle_timeout", "has_content": True, "terminal": False},
    "no_choices": {"failure": None, "status": 200, "has_content": False, "terminal": True},
}
NEVER_ENDING = {"hang", "comments", "partial_stream_then_hang"}


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "plain"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_evidence_of_every_fault(fault: str, streams: bool) -> None:
    seen = fault if streams else FAULTS[fault].plain or fault
    expected = {**BOTH.get(seen, {}), **(STREAMED.get(seen, {}) if streams else {})}
    assert expected, f"no row for {seen}"
    deadlines = SHORT if seen in NEVER_ENDING else LONG
    with FaultLane(script=[fault], slow_s=0.05) as lane:
        evidence = ask(lane.base_url, streams=streams, deadlines=deadlines)
        assert lane.accepted() == 1  # one POST an attempt, whatever comes back
        post = lane.posts()[0]
    assert evidence.sent == "yes"
    assert evidence.said is None
    headers = expected.pop("headers", {})
    assert evidence.headers.items() >= headers.items()
    assert {name: getattr(evidence, name) for name in expected} == expected
    if evidence.status is not None and fault != "redirect":
        assert evidence.request_id
    if expected.get("terminal") and expected.get("failure", 0) is None and evidence.has_content:
        assert evidence.reply is not None
        assert evidence.usage is not None
        assert (evidence.usage.tokens_in, evidence.usage.tokens_out) == (post.tokens_in, post.tokens_out)
        if not evidence.reply.raw or "tool_calls" not in evidence.reply.raw["choices"][0]["message"]:
            assert evidence.reply.text == post.result


def test_a_bad_answer_to_a_schema_is_told() -> None:
    with FaultLane(script=["bad_schema", "ok"]) as lane:
        prompt = Prompt("n?", schema=CLOSED)
        assert ask(lane.base_url, prompt).schema_error
        good = ask(lane.base_url, prompt)
    assert (good.schema_error, good.reply and good.reply.data) == ("", {"n": 0})


def test_a_pooled_connection_that_resets_is_ambiguous_and_a_fresh_one_never_meets_it() -> None:
    async def twice(lane: ChatLane) -> list[Evidence]:
        evidence = [await lane.call(call_of(Prompt("hi"))) for _ in range(2)]
        await lane.close()
        return evidence

    with FaultLane(script=["reset_idle"]) as server:
        pooled = ChatLane(replace(POLICY, base_url=server.base_url))
        fresh = ChatLane(replace(POLICY, base_url=server.base_url, price=LanePolicy("x").price))
        second = run(twice(pooled))[1]
        assert second.failure in ("reset", "closed", "write_error")
        assert second.sent in ("yes", "headers")
        assert [evidence.failure for evidence in run(twice(fresh))] == [None, None]


def test_a_lane_serves_in_one_event_loop_after_another() -> None:
    with FaultLane() as server:
        lane = ChatLane(replace(POLICY, base_url=server.base_url))
        for _ in range(2):
            assert run(lane.call(call_of(Prompt("hi")))).terminal
        run(lane.close())
        run(lane.close())


def test_many_calls_at_once_are_one_post_each() -> None:
    async def scenario(url: str) -> list[Evidence]:
        lane = ChatLane(replace(POLICY, base_url=url, max_in_flight=8))
        evidence = await asyncio.gather(*(lane.call(call_of(Prompt(f"q{n}"), f"k{n}")) for n in range(40)))
        await lane.close()
        return evidence

    with FaultLane() as server:
        evidence = run(scenario(server.base_url))
        assert all(one.terminal for one in evidence)
        assert sorted(post.idempotency_key or "" for post in server.posts()) == sorted(f"k{n}" for n in range(40))
        assert all(post.delivered for post in server.posts())


def test_cancelling_the_call_closes_the_connection() -> None:
    async def hang(connection: Any) -> None:
        await connection.request()
        await connection.client_left()

    async def scenario() -> None:
        async with byte_server(hang) as server:
            lane = ChatLane(replace(POLICY, base_url=server.url))
            task = asyncio.create_task(lane.call(call_of(Prompt("hi"))))
            await server.asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.wait_for(server.left.wait(), 10)
            await lane.close()

    run(scenario())


# ---------------------------------------------------------------- whatever a whole reply holds, it is kept

HUNDREDTHS = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.01}}}


@pytest.mark.parametrize("number", ["1e999", "9" * 401, "9" * 5000, "NaN"])
def test_an_answer_that_cannot_be_judged_was_paid_for_and_is_kept(number: str) -> None:
    body = {**choice(content=f'{{"a":{number}}}'), "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    evidence = answered(body, Prompt("hi", schema=HUNDREDTHS))
    assert (evidence.status, evidence.terminal, evidence.failure) == (200, True, None)
    assert evidence.schema_error
    assert evidence.usage == Usage(3, 4, body["usage"])
    assert evidence.reply is not None
    assert (evidence.reply.data, evidence.reply.raw) == (None, body)
    assert classify(evidence).code == "bad_output"


@pytest.mark.parametrize("number", ["1e999", "-1e999", "9" * 5000, "NaN", "-Infinity"])
@pytest.mark.parametrize("name", ["created", "usage", "prompt_tokens", "logprobs", "error_count"])
def test_a_number_that_python_cannot_hold_does_not_take_the_answer_beside_it(name: str, number: str) -> None:
    body: dict[str, Any] = {**choice(content="yes"), "usage": {"completion_tokens": 4}}
    (body["usage"] if name == "prompt_tokens" else body)[name] = "@"
    raw = json.dumps(body).replace('"@"', number).encode()
    evidence = ask_play(answers(whole(raw)))[0]
    assert classify(evidence).outcome == "ok"
    assert evidence.reply is not None
    assert evidence.reply.text == "yes"
    json.loads(dump_reply(evidence.reply), parse_constant=pytest.fail)
    if name == "prompt_tokens":
        assert evidence.usage is not None
        assert (evidence.usage.tokens_in, evidence.usage.tokens_out) == (None, 4)


@pytest.mark.parametrize("where", ["as_body", "take_event"])
def test_a_reply_that_breaks_our_reading_is_unusable_with_all_that_was_seen(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise OverflowError("unforeseen")

    monkeypatch.setattr(Completion, where, broken)
    evidence = streamed(delta(content="yes"), STOP, DONE)
    assert "a reply broke our reading of it (OverflowError)" in caplog.text
    assert (evidence.status, evidence.sent) == (200, "yes")
    if where == "take_event":
        assert evidence.failure == "bad_json"
        return
    assert (evidence.said, evidence.code, evidence.model) == ("unusable", "bad_output", "m1")
    assert "OverflowError: unforeseen" in evidence.message
    assert evidence.reply is not None
    assert evidence.reply.text == "yes"
