"""Callables, imported callables and programs: what each makes of its work, and what it says of every ending."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import subprocess
import sys
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from millpond.lanes import CallableLane
from millpond.lanes.lane import Call, Lane
from millpond.lanes.local import MESSAGE_CHARS, CommandLane, PythonLane
from millpond.rules.errors import Ambiguous, Permanent, Retryable, Saturated, SettingsError, UsageError
from millpond.rules.job import Command, Image, Prompt, Reply, Usage, Work
from millpond.rules.outcome import Evidence
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
HI = Prompt("hi")


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(scenario)


def call_of(work: Work) -> Call:
    return Call("u1", work, "key-1", attempt_no=2, deadline_ms=1_700_000_000_000)


def ask(lane: Lane, work: Work = HI) -> Evidence:
    async def scenario() -> Evidence:
        try:
            return await lane.call(call_of(work))
        finally:
            await lane.close()

    return run(scenario())


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


@pytest.mark.parametrize("value", [None, b"bytes", object(), {1, 2}, float("nan"), {"a": Decimal(1)}])
def test_a_value_of_no_use_is_unusable_because_the_work_was_done(value: Any) -> None:
    evidence = returning(value)
    assert (evidence.sent, evidence.said, evidence.code) == ("yes", "unusable", "bad_output")
    assert "wanted text, JSON-able data or a Reply" in evidence.message
    assert ("None" if value is None else type(value).__name__) in evidence.message


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


@pytest.mark.parametrize(
    "error",
    [ValueError("bad duck"), StopIteration("x"), TimeoutError("its own"), SystemExit(3), asyncio.CancelledError("x")],
)
def test_any_other_exception_is_ambiguous_where_there_are_effects_else_retryable(error: BaseException) -> None:
    def fn(_: Work) -> None:
        raise error

    for effects, said in ((False, "retryable"), (True, "ambiguous")):
        evidence = ask(CallableLane(fn, effects=effects))
        assert (evidence.failure, evidence.said, evidence.type) == ("exception", said, type(error).__name__)
        assert evidence.message == str(error)


def test_an_exception_of_an_async_callable_is_told_from_our_own_deadline_and_cancel() -> None:
    for error in (ValueError("bad duck"), TimeoutError("its own"), SystemExit(3), asyncio.CancelledError("x")):
        evidence = raising(error)
        assert (evidence.failure, evidence.said, evidence.type) == ("exception", "retryable", type(error).__name__)


def test_o22_an_exceptions_words_are_redacted_and_cut() -> None:
    evidence = raising(ValueError("Authorization: Bearer sk-test-0123456789abcdef " + "x" * 9000))
    assert "sk-test" not in repr(evidence)
    assert len(evidence.message) == MESSAGE_CHARS


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
        ("", "found '', wanted module:callable"),
        ("json", "wanted module:callable"),
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


# ---------------------------------------------------------------- programs


def program(source: str, *, total_ms: int = 60_000, **policy: Any) -> CommandLane:
    command = (sys.executable, "-c", source)
    return CommandLane(
        LanePolicy("cmd", kind="command", command=command, deadlines=Deadlines(total_ms=total_ms), **policy)
    )


ECHO = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"


@pytest.mark.parametrize(
    ("work", "given"),
    [
        (Prompt("Zähle die 🦆"), "Zähle die 🦆"),
        (Prompt("Count.", system="Be brief."), "Be brief.\n\nCount."),
        (Prompt("two\nlines"), "two\nlines"),
        (Prompt("x" * 300_000), "x" * 300_000),
    ],
)
def test_a_program_reads_the_prompt_and_its_output_is_the_answer(work: Work, given: str) -> None:
    evidence = ask(program(ECHO), work)
    assert (evidence.sent, evidence.failure, evidence.terminal, evidence.has_content) == ("yes", None, True, True)
    assert evidence.reply is not None
    assert evidence.reply.text == given


def test_a_program_reads_a_command_as_json() -> None:
    reply = ask(program(ECHO), Command("Count", {"pond": "ü"}, "uid-1", "2")).reply
    assert reply is not None
    assert json.loads(reply.text) == {"type": "Count", "version": "2", "uid": "uid-1", "payload": {"pond": "ü"}}


def test_a_program_knows_its_key_attempt_deadline_and_model() -> None:
    names = ["MILLPOND_IDEMPOTENCY_KEY", "MILLPOND_ATTEMPT_NO", "MILLPOND_DEADLINE_MS", "MILLPOND_MODEL"]
    source = f"import os; print(*[os.environ[name] for name in {names}])"
    lane = program(source, model="m0", models={"mini": "mini-2"})
    for model, seen in ((None, "m0"), ("mini", "mini-2")):
        reply = ask(lane, Prompt("hi", model=model)).reply
        assert reply is not None
        assert reply.text == f"key-1 2 1700000000000 {seen}"


def test_one_line_end_is_taken_off_the_answer_and_bad_bytes_are_replaced() -> None:
    reply = ask(program(r"import sys; sys.stdout.buffer.write(b' a\xff \n\n')")).reply
    assert reply is not None
    assert reply.text == " a\ufffd \n"


def test_a_program_that_reads_nothing_answers_all_the_same() -> None:
    reply = ask(program("print('done')"), Prompt("x" * 3_000_000)).reply
    assert reply is not None
    assert reply.text == "done"


def test_an_exit_status_is_told_with_the_end_of_stderr() -> None:
    source = "import sys; sys.stderr.write('x' * 100_000 + 'no water\\n'); print('half'); sys.exit(3)"
    for effects, said in ((False, "retryable"), (True, "ambiguous")):
        evidence = ask(program(source, effects=effects))
        assert (evidence.sent, evidence.failure, evidence.said) == ("yes", "exit_status", said)
        assert evidence.message.startswith("exit status 3: x")
        assert evidence.message.endswith("no water")
        assert len(evidence.message) <= MESSAGE_CHARS + 20
        assert evidence.reply is None
    killed = ask(program("import os; os.kill(os.getpid(), 9)"))
    assert killed.message == "ended by signal 9"


def test_a_program_that_cannot_be_started_sent_nothing_and_is_down(tmp_path: Path) -> None:
    (tmp_path / "not_executable").write_text("#!/bin/sh\n")
    for path in (tmp_path / "missing", tmp_path / "not_executable"):
        lane = CommandLane(LanePolicy("cmd", kind="command", command=(str(path),)))
        evidence = ask(lane)
        assert (evidence.sent, evidence.said, evidence.code) == ("no", "lane_down", "not_started")
        assert str(path) in evidence.message


def test_a_command_lane_without_a_command_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"^lanes\.cmd\.command: found none"):
        CommandLane(LanePolicy("cmd", kind="command"))


UNFIT = [
    (Prompt("hi", model="other"), "unfit"),
    (Prompt("hi", tools=[{}]), "unfit"),
    (Prompt("hi", images=(Image(b"x"),)), "unfit"),
    (Prompt(messages=[{"role": "user", "content": "hi"}]), "unfit"),
    (Prompt("hi", schema={"type": "nonsense"}), "permanent"),
]


@pytest.mark.parametrize(("work", "said"), UNFIT)
def test_work_that_a_program_cannot_do_starts_nothing(work: Work, said: str, tmp_path: Path) -> None:
    trace = tmp_path / "started"
    evidence = ask(program(f"open({str(trace)!r}, 'w')"), work)
    assert (evidence.sent, evidence.said) == ("no", said)
    assert not trace.exists()


def test_a_programs_answer_is_judged_by_the_schema() -> None:
    good = ask(program("print('{\"n\": 1}')"), Prompt("n?", schema=SCHEMA))
    assert (good.schema_error, good.reply and good.reply.data) == ("", {"n": 1})
    assert ask(program("print('one')"), Prompt("n?", schema=SCHEMA)).schema_error


FAMILY = """
exec 3>"$(cat)"
sleep 3600 &
echo both live >&3
sleep 3600
"""
"""A shell with a child. Both hold the pipe that the prompt names: its reader sees the end when both are dead."""


def family(total_ms: int) -> CommandLane:
    policy = LanePolicy("cmd", kind="command", command=("sh", "-c", FAMILY), deadlines=Deadlines(total_ms=total_ms))
    return CommandLane(policy)


def test_at_the_total_deadline_the_whole_process_group_is_killed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def scenario() -> tuple[Evidence, str]:
        task = asyncio.create_task(family(1000).call(call_of(Prompt(str(pipe)))))
        held = await asyncio.to_thread(pipe.read_text)
        return await task, held

    evidence, held = run(scenario())
    assert held == "both live\n"
    assert (evidence.sent, evidence.failure, evidence.said) == ("yes", "total_timeout", None)


def test_cancelling_kills_the_whole_process_group(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    async def scenario() -> None:
        task = asyncio.create_task(family(600_000).call(call_of(Prompt(str(pipe)))))
        reader = await asyncio.to_thread(pipe.open)
        assert await asyncio.to_thread(reader.readline) == "both live\n"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(reader.read) == ""
        reader.close()

    run(scenario())


def test_a_program_that_prints_for_ever_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.lanes.local.OUTPUT_LIMIT_BYTES", 100_000)
    evidence = ask(program("while True: print('G' * 1000)"))
    assert (evidence.sent, evidence.failure, evidence.terminal) == ("yes", "body_cut", False)


def test_a_program_whose_child_leaves_the_group_and_holds_the_pipes_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = f"""
import os, subprocess, sys, time
child = "open({str(pipe)!r}).read()"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
sys.stdout.write("x" * 500_000)
time.sleep(3600)
"""
    evidence = ask(program(source, total_ms=700))
    assert evidence.failure == "total_timeout"
    with suppress(OSError):  # let the child go
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def test_a_signal_to_us_does_not_reach_the_program() -> None:
    source = "import os; print(os.getpgid(0) == os.getpid())"
    reply = ask(program(source)).reply
    assert reply is not None
    assert reply.text == "True"
