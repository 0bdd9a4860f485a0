"""What a chat lane asks, and with which secrets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import openai
import pytest
from byteserver import answers, byte_server, whole
from chatcall import CLOSED, OPEN, POLICY, ask, ask_play, call_of, choice
from onecall import run

from millpond.drill.faultlane import FaultLane
from millpond.lanes.chat import CannotAsk, ChatLane, request_body
from millpond.lanes.lane import Lane
from millpond.rules.errors import SettingsError
from millpond.rules.job import Command, Image, Prompt, Work
from millpond.rules.redaction import KEPT_CHARS

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
