"""Programs: what each makes of its work, and what it says of every ending."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from onecall import SCHEMA, ask, call_of, run

from millpond.lanes.command import CommandLane
from millpond.rules.errors import SettingsError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Command, Image, Prompt, Work
from millpond.rules.outcome import classify
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.redaction import KEPT_CHARS


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
    for effects, outcome in ((False, "retryable"), (True, "ambiguous")):
        lane = program(source, effects=effects)
        evidence = ask(lane)
        assert (evidence.sent, evidence.failure, evidence.said) == ("yes", "exit_status", None)
        assert classify(evidence, lane.policy.declared).outcome == outcome
        assert evidence.message.startswith("exit status 3: x")
        assert evidence.message.endswith("no water")
        assert len(evidence.message) <= KEPT_CHARS + 20
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
    monkeypatch.setattr("millpond.lanes.command.OUTPUT_LIMIT_BYTES", 100_000)
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
