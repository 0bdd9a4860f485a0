"""Callables, given or imported: what each makes of its work, and what it says of every ending."""

from __future__ import annotations

import asyncio
import contextvars
import subprocess
import sys
import threading
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from onecall import HI, SCHEMA, ask, call_of, run

from millpond.lanes import CallableLane
from millpond.lanes.callable import PythonLane
from millpond.lanes.completion import read_usage
from millpond.lanes.lane import Lane
from millpond.rules.errors import (
    Ambiguous,
    HandlerSignal,
    Permanent,
    Retryable,
    Saturated,
    SettingsError,
    UsageError,
)
from millpond.rules.evidence import Evidence
from millpond.rules.job import Command, Prompt, Reply, Usage, Work
from millpond.rules.outcome import classify
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE
from millpond.rules.redaction import KEPT_CHARS


def returning(value: Any, work: Work = HI) -> Evidence:
    return ask(CallableLane(lambda _: value), work)


def raising(error: BaseException, **options: Any) -> Evidence:
    def fn(_: Work) -> None:
        raise error

    async def async_fn(_: Work) -> None:
        raise error

    evidence = ask(CallableLane(fn, **options))
    assert ask(CallableLane(async_fn, **options)) == evidence
    return evidence


# ---------------------------------------------------------------- callables: what they are given


def test_the_public_name_needs_no_http_client() -> None:
    script = "import sys; from millpond.lanes import CallableLane; assert 'httpx2' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    assert isinstance(CallableLane(str), Lane)


def test_a_callable_gets_the_work_and_the_three_keywords() -> None:
    given: list[Any] = []

    def fn(work: Work, *, idempotency_key: str, attempt_no: int, deadline_ms: int) -> str:
        given.append((work, idempotency_key, attempt_no, deadline_ms))
        return "done"

    async def async_fn(work: Work, **keywords: Any) -> str:
        return fn(work, **keywords)

    for lane in (CallableLane(fn), CallableLane(async_fn)):
        evidence = ask(lane)
        assert (evidence.sent, evidence.terminal, evidence.has_content) == ("yes", True, True)
        assert (evidence.said, evidence.failure, evidence.finish_reason) == (None, None, "stop")
        assert evidence.reply is not None
        assert evidence.reply.text == "done"
    assert given == [(Prompt("hi"), "key-1", 2, 1_700_000_000_000)] * 2


def one_keyword(work: Prompt, attempt_no: int) -> str:
    return f"{work.task} {attempt_no}"


class Counter:
    async def __call__(self, work: Prompt, *, attempt_no: int) -> str:
        return f"{work.task} {attempt_no}"


async def with_more(extra: str, work: Prompt, *, attempt_no: int) -> str:
    return f"{work.task} {attempt_no}"


@pytest.mark.parametrize(
    "fn",
    [
        lambda work: f"{work.task} 2",
        one_keyword,
        Counter(),
        partial(with_more, "x"),
        lambda work, **keywords: f"{work.task} {keywords['attempt_no']}",
        lambda work, attempt_no=0, other=1: f"{work.task} {attempt_no}",
        lambda work: with_more("x", work, attempt_no=2),  # not async itself, but returns what must be awaited
    ],
)
def test_a_callable_may_take_fewer_keywords_and_have_any_shape(fn: Any) -> None:
    evidence = ask(CallableLane(fn))
    assert evidence.reply is not None, evidence.message
    assert evidence.reply.text == "hi 2"


@pytest.mark.parametrize("fn", [lambda: "", lambda work, second: "", lambda work, *, other: "", "no callable"])
def test_what_cannot_be_called_with_work_is_refused_at_once(fn: Any) -> None:
    with pytest.raises(UsageError, match=r"wanted .*fn\(work") as refused:
        CallableLane(fn)
    assert "\n" not in str(refused.value)


def test_a_command_reaches_the_callable_as_it_is() -> None:
    command = Command("Count", {"n": 3}, "uid-1")
    evidence = ask(CallableLane(lambda work: work.payload), command)
    assert evidence.reply is not None
    assert evidence.reply.data == {"n": 3}


def test_sync_callables_run_beside_each_other_up_to_max_in_flight() -> None:
    barrier = threading.Barrier(3)

    async def scenario() -> list[Evidence]:
        lane = CallableLane(lambda _: str(barrier.wait(20)), max_in_flight=3)
        evidence = await asyncio.gather(*(lane.call(call_of(Prompt(str(n)))) for n in range(6)))
        await lane.close()
        return evidence

    assert all(evidence.terminal for evidence in run(scenario()))


def test_the_callers_context_variables_are_seen_in_the_thread() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")

    async def scenario() -> Evidence:
        variable.set("set by the caller")
        lane = CallableLane(lambda _: variable.get())
        evidence = await lane.call(call_of(Prompt("hi")))
        await lane.close()
        return evidence

    reply = run(scenario()).reply
    assert reply.text == "set by the caller"


def test_the_options_become_the_lanes_policy() -> None:
    policy = CallableLane(str, max_in_flight=3, effects=True, tier="paid", price="0.002", name="hands").policy
    assert (policy.name, policy.kind, policy.tier, policy.max_in_flight) == ("hands", "callable", "paid", 3)
    assert (policy.effects, policy.price.kind, policy.price.call_usd) == (True, "stated", Decimal("0.002"))
    assert CallableLane(str).policy.price == FREE
    assert CallableLane(str, price=None).policy.price == UNKNOWN_PRICE
    serial = CallableLane(str, serial=True).policy
    assert (serial.serial, serial.max_in_flight) == (True, 1)
    for price in (-1, "dear", float("nan")):
        with pytest.raises(UsageError, match=r"^price: found"):
            CallableLane(str, price=price)
    with pytest.raises(UsageError, match="max_in_flight"):
        CallableLane(str, max_in_flight=0)


# ---------------------------------------------------------------- callables: what they return


@pytest.mark.parametrize(
    ("value", "text", "data"),
    [
        ("text", "text", None),
        ({"a": (1, 2)}, '{"a": [1, 2]}', {"a": [1, 2]}),
        ([], "[]", []),
        (0, "0", 0),
        (False, "false", False),
        ({1: "ü"}, '{"1": "ü"}', {"1": "ü"}),
    ],
)
def test_text_and_data_become_a_reply(value: Any, text: str, data: Any) -> None:
    evidence = returning(value)
    assert evidence.reply is not None
    assert (evidence.reply.text, evidence.reply.data, evidence.has_content) == (text, data, True)


def test_a_reply_is_taken_as_it_is() -> None:
    reply = Reply("half", finish_reason="length", model="m", usage=Usage(3, 4), request_id="r")
    evidence = returning(reply)
    assert evidence.reply == reply
    assert (evidence.finish_reason, evidence.model, evidence.request_id) == ("length", "m", "r")
    assert evidence.usage == Usage(3, 4)
    assert returning(Reply("x")).usage is None


@pytest.mark.parametrize("tokens", [-1, 2**63, True, 3.0, "3"])
def test_what_is_no_number_of_tokens_is_unknown(tokens: Any) -> None:
    reply = returning(Reply("x", usage=Usage(tokens, 2**63 - 1))).reply
    assert reply is not None
    assert reply.usage == Usage(None, 2**63 - 1)
    assert read_usage({"prompt_tokens": tokens, "completion_tokens": 0}) == Usage(
        None, 0, {"prompt_tokens": tokens, "completion_tokens": 0}
    )


@pytest.mark.parametrize("value", [None, b"bytes", object(), {1, 2}, float("nan"), {"a": Decimal(1)}])
def test_a_value_of_no_use_is_unusable_because_the_work_was_done(value: Any) -> None:
    evidence = returning(value)
    assert (evidence.sent, evidence.said, evidence.code) == ("yes", "unusable", "bad_output")
    assert "wanted text, JSON-able data or a Reply" in evidence.message
    assert ("None" if value is None else type(value).__name__) in evidence.message


@pytest.mark.parametrize("data", [float("inf"), {"a": [float("nan")]}, {"a": Decimal(1)}])
def test_a_reply_whose_data_is_no_json_is_unusable_and_keeps_its_usage(data: Any) -> None:
    evidence = returning(Reply(data=data, usage=Usage(3, 4)))
    assert evidence.reply == Reply(usage=Usage(3, 4))
    assert evidence.schema_error.startswith("its data is no JSON")
    assert classify(evidence).code == "bad_output"
    asked = returning(Reply("said", data=data, usage=Usage(3, 4)), Prompt("x", schema={"type": "number"}))
    assert (asked.reply, classify(asked).code) == (Reply("said", usage=Usage(3, 4)), "bad_output")


def test_a_text_is_an_answer_whatever_stands_beside_it_in_data() -> None:
    evidence = returning(Reply("said", data=float("inf")))
    assert (classify(evidence).outcome, evidence.reply) == ("ok", Reply("said", data=float("inf")))


def test_an_empty_text_has_no_content() -> None:
    assert not returning("").has_content
    assert not returning(" \n").has_content


@pytest.mark.parametrize(
    ("value", "data", "wrong"),
    [
        ({"n": 1}, {"n": 1}, ""),
        ('{"n": 1}', {"n": 1}, ""),
        (Reply('{"n": 1}'), {"n": 1}, ""),
        (Reply("one", data={"n": 1}), {"n": 1}, ""),
        ({"n": "1"}, None, "at $.n"),
        ("one", None, "no JSON"),
    ],
)
def test_what_is_returned_is_judged_by_the_schema(value: Any, data: Any, wrong: str) -> None:
    evidence = returning(value, Prompt("n?", schema=SCHEMA))
    assert evidence.reply is not None
    assert evidence.reply.data == data
    assert wrong in evidence.schema_error
    assert bool(wrong) == bool(evidence.schema_error)


# ---------------------------------------------------------------- callables: what they raise


@pytest.mark.parametrize(
    ("error", "said", "after_ms"),
    [
        (Retryable("later", after_s=1.5), "retryable", 1500),
        (Saturated("full", after_s=0.0001), "saturated", 1),
        (Saturated("full", after_s=-5), "saturated", 0),
        (Saturated("full", after_s=float("inf")), "saturated", None),
        (Ambiguous("who knows"), "ambiguous", None),
        (Permanent("never"), "permanent", None),
        (type("TooBusy", (Saturated,), {})("full"), "saturated", None),
    ],
)
def test_a_handler_says_how_its_call_ended(error: Any, said: str, after_ms: int | None) -> None:
    for effects in (False, True):
        evidence = raising(error, effects=effects)
        assert (evidence.said, evidence.retry_info_ms, evidence.message) == (said, after_ms, str(error))


def means(lane: CallableLane, evidence: Evidence) -> tuple[str, str]:
    """Outcome and code, by the table, as the engine asks it."""
    classified = classify(evidence, lane.policy.declared)
    return classified.outcome, classified.code


@pytest.mark.parametrize(
    "error",
    [ValueError("bad duck"), StopIteration("x"), TimeoutError("its own"), SystemExit(3), asyncio.CancelledError("x")],
)
def test_any_other_exception_is_ambiguous_where_there_are_effects_else_retryable(error: BaseException) -> None:
    def fn(_: Work) -> None:
        raise error

    for effects, outcome in ((False, "retryable"), (True, "ambiguous")):
        lane = CallableLane(fn, effects=effects)
        evidence = ask(lane)
        assert (evidence.failure, evidence.said, evidence.type) == ("exception", None, type(error).__name__)
        assert evidence.message == str(error)
        assert means(lane, evidence) == (outcome, "handler_failed")


def test_what_a_handler_says_counts_whatever_the_lane_declares() -> None:
    for effects in (False, True):
        for error, outcome in ((Permanent(), "permanent"), (Retryable(), "retryable"), (Ambiguous(), "ambiguous")):
            evidence = raising(error, effects=effects)
            assert means(CallableLane(str, effects=effects), evidence) == (outcome, f"said_{outcome}")
        assert means(CallableLane(str, effects=effects), raising(HandlerSignal(), effects=effects))[0] == "ambiguous"


def test_an_exception_of_an_async_callable_is_told_from_our_own_deadline_and_cancel() -> None:
    for error in (ValueError("bad duck"), TimeoutError("its own"), asyncio.CancelledError("x")):
        evidence = raising(error)
        assert (evidence.failure, evidence.said, evidence.type) == ("exception", None, type(error).__name__)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_what_ends_the_program_is_a_threads_word_and_passes_where_the_loop_runs(error: BaseException) -> None:
    def fn(_: Work) -> str:
        raise error

    async def async_fn(_: Work) -> str:
        raise error

    assert ask(CallableLane(fn)).type == type(error).__name__
    for on_the_loop in (async_fn, lambda work: async_fn(work)):
        with pytest.raises(type(error)):
            ask(CallableLane(on_the_loop))


def test_o22_an_exceptions_words_are_redacted_and_cut() -> None:
    evidence = raising(ValueError("Authorization: Bearer sk-test-0123456789abcdef " + "x" * 9000))
    assert "sk-test" not in repr(evidence)
    assert len(evidence.message) == KEPT_CHARS


# ---------------------------------------------------------------- callables: deadlines and cancelling


def with_deadline(lane: CallableLane, total_ms: int) -> CallableLane:
    lane.policy = replace(lane.policy, deadlines=Deadlines(total_ms=total_ms))
    return lane


def test_an_async_callable_is_stopped_at_its_total_deadline() -> None:
    stopped: list[bool] = []

    async def slow(_: Work) -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            stopped.append(True)
        return ""

    evidence = ask(with_deadline(CallableLane(slow), 30))
    assert (evidence.sent, evidence.failure, evidence.said) == ("yes", "total_timeout", None)
    assert stopped == [True]


def test_a_sync_callable_past_its_deadline_is_left_alone_and_its_thread_stays_taken() -> None:
    let_go, began = threading.Event(), threading.Event()

    def slow(_: Work) -> str:
        began.set()
        let_go.wait(20)
        return "late"

    async def scenario() -> tuple[Evidence, Evidence]:
        lane = with_deadline(CallableLane(slow, max_in_flight=1), 50)
        first = await lane.call(call_of(Prompt("a")))
        second = await lane.call(call_of(Prompt("b")))
        let_go.set()
        await lane.close()
        return first, second

    first, second = run(scenario())
    assert began.is_set()
    assert (first.sent, first.failure) == ("yes", "total_timeout")
    assert (second.sent, second.failure) == ("no", "pool_timeout")  # it never began


def test_cancelling_stops_an_async_callable() -> None:
    async def scenario() -> None:
        began, stopped = asyncio.Event(), asyncio.Event()

        async def slow(_: Work) -> str:
            began.set()
            try:
                await asyncio.sleep(3600)
            finally:
                stopped.set()
            return ""

        lane = CallableLane(slow, effects=True)
        task = asyncio.create_task(lane.call(call_of(Prompt("hi"))))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stopped.is_set()

    run(scenario())


# ---------------------------------------------------------------- imported callables


def python_lane(target: str) -> PythonLane:
    return PythonLane(LanePolicy("py", kind="python", target=target, effects=True))


def test_a_python_lane_calls_what_its_target_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pond_of_test.py").write_text(
        "class Pond:\n    @staticmethod\n    def count(work):\n        return '7'\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    lane = python_lane("pond_of_test:Pond.count")
    assert lane.policy.name == "py"
    reply = ask(lane).reply
    assert reply is not None
    assert reply.text == "7"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", "found '', wanted module:name"),
        ("json", "wanted module:name"),
        ("no_such_pond:count", "no module 'no_such_pond'"),
        ("json:no_such", "'json' has no 'no_such'"),
        ("json:__doc__", "wanted a callable"),
        ("json:tool", "has no 'tool'|wanted a callable"),
    ],
)
def test_a_target_that_names_nothing_is_refused_in_one_line(target: str, words: str) -> None:
    with pytest.raises(SettingsError, match=rf"^lanes\.py\.target: .*({words})") as refused:
        python_lane(target)
    assert "\n" not in str(refused.value)


def test_a_module_that_fails_to_import_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_pond.py").write_text("raise RuntimeError('no water')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SettingsError, match="importing 'broken_pond' failed: RuntimeError: no water"):
        python_lane("broken_pond:count")
