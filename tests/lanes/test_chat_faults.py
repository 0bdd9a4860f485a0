"""Every fault of the far side, as evidence."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from byteserver import STREAM_HEAD, byte_server, delta
from chatcall import CLOSED, LONG, POLICY, SHORT, ask, call_of
from onecall import run

from millpond.drill.faultlane import FaultLane
from millpond.drill.script import FAULTS
from millpond.lanes.chat import ChatLane
from millpond.rules.evidence import Evidence
from millpond.rules.job import Prompt
from millpond.rules.policy import Deadlines, LanePolicy

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
