"""The chat lane: what it makes of every answer, and that whatever a whole reply holds is kept."""

from __future__ import annotations

import json
from typing import Any

import pytest
from byteserver import answers, delta, event, whole
from chatcall import DONE, OPEN, STOP, answered, ask_play, choice, streamed

from millpond.lanes.completion import Completion
from millpond.rules.job import Prompt, Usage
from millpond.rules.outcome import classify
from millpond.store.bodies import dump_reply

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


# ---------------------------------------------------------------- whatever a whole reply holds, it is kept

HUNDREDTHS = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.01}}}


@pytest.mark.parametrize("number", ["1e999", "9" * 5000, "NaN"])
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
