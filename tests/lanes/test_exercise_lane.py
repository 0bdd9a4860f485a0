"""Every lane of ours passes the suite for lanes, and each of its cases fails a lane that breaks its promise."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from wrong_lanes import WRONG, ClosesOnce

from millpond.drill.faultlane import FaultLane
from millpond.drill.least import least
from millpond.lanes.callable import CallableLane
from millpond.lanes.chat import ChatLane
from millpond.lanes.command import CommandLane
from millpond.lanes.lane import Lane
from millpond.rules.errors import Ambiguous, Permanent, Retryable, Saturated, UsageError
from millpond.rules.job import Prompt, Reply
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.rules.price import FREE
from millpond.testing import LANE_CASES, Fault, Held, MakeLane, ScriptedLane, exercise_lane, lane_scene, run_lane_case
from millpond.testing.lane_scene import names_no_other
from millpond.testing.lane_suite import LaneCase

USUAL = Deadlines()
SOON = Deadlines(total_ms=500)
"""Deadlines of a lane whose far side is silent."""
LESS_SOON = Deadlines(total_ms=2_000)
"""The same where its good answers come over a socket or from a program, on a machine that is busy."""

Kit = Mapping[str, Any]
"""The arguments of `run_lane_case`, by name."""


# --- a chat lane and the fault lane -----------------------------------------------------------------------------------

POSTS: Mapping[Fault, str] = {
    "retryable": "503_proof",
    "saturated": "429",
    "lane_down": "401",
    "ambiguous": "reset",
    "unfit": "400_context",
    "permanent": "422",
    "unusable": "truncated",
    "silence": "hang",
}


def parrot(body: dict[str, Any]) -> str:
    """What a model would say that repeats its task; of the shape that was asked."""
    task = next(message["content"] for message in reversed(body["messages"]) if message["role"] == "user")
    if "response_format" in body:
        return json.dumps(least(body["response_format"]["json_schema"]["schema"], "blue"))
    return f"You said: {task}"


def chat_kit(stack: ExitStack, *, streams: bool) -> Kit:
    well = stack.enter_context(FaultLane(answer=parrot))

    def lane(server: FaultLane = well, deadlines: Deadlines = USUAL) -> Lane:
        policy = LanePolicy("chat", base_url=server.base_url, model="m", deadlines=deadlines, streams=streams)
        return ChatLane(policy, "a-key")

    def ill(fault: Fault) -> MakeLane:
        def make() -> Lane:
            server = stack.enter_context(FaultLane(answer=parrot, script=[POSTS[fault], *["ok"] * 20]))
            return lane(server, LESS_SOON if fault == "silence" else USUAL)

        return make

    def keys_seen(_: Lane) -> list[str]:
        return [post.idempotency_key or "" for post in well.posts()]

    return {"make_lane": lane, "faults": {fault: ill(fault) for fault in POSTS}, "keys_seen": keys_seen}


# --- callables --------------------------------------------------------------------------------------------------------


class Handler:
    """A function that repeats its task, once it has done its first deed; it remembers its keys."""

    def __init__(self, deed: Callable[[], Any] | None = None) -> None:
        self.deed = deed
        self.keys: list[str] = []

    def __call__(self, work: Any, *, idempotency_key: str) -> Any:
        self.keys.append(idempotency_key)
        deed, self.deed = self.deed, None
        if deed is not None:
            return deed()
        if isinstance(work, Prompt) and work.schema is not None:
            return least(work.schema, "blue")
        return f"You said: {work.task}" if isinstance(work, Prompt) else "done"


def raising(error: Exception) -> Callable[[], Any]:
    def deed() -> Any:
        raise error

    return deed


DEEDS: Mapping[Fault, Callable[[], Any]] = {
    "retryable": raising(Retryable()),
    "saturated": raising(Saturated(after_s=1)),
    "ambiguous": raising(Ambiguous()),
    "permanent": raising(Permanent()),
    "unusable": lambda: "",
}


def callable_kit(stack: ExitStack, *, is_async: bool) -> Kit:
    handlers: list[tuple[Lane, Handler]] = []
    over = asyncio.Event if is_async else threading.Event

    def lane(deed: Callable[[], Any] | None = None, deadlines: Deadlines = USUAL) -> Lane:
        handler = Handler(deed)

        async def later(work: Any, *, idempotency_key: str) -> Any:
            await asyncio.sleep(0)
            gave = handler(work, idempotency_key=idempotency_key)
            return await gave if asyncio.iscoroutine(gave) else gave

        made = CallableLane(later if is_async else handler)
        made.policy = replace(made.policy, deadlines=deadlines)
        handlers.append((made, handler))
        return made

    def silent() -> Lane:
        end = over()
        stack.callback(end.set)
        return lane(end.wait, SOON)

    ill: dict[Fault, MakeLane] = {fault: lambda deed=deed: lane(deed) for fault, deed in DEEDS.items()}
    return {
        "make_lane": lane,
        "faults": {**ill, "silence": silent},
        "keys_seen": lambda lane: next(handler.keys for made, handler in handlers if made is lane),
    }


# --- programs ---------------------------------------------------------------------------------------------------------


def command_kit(folder: Path) -> Kit:
    numbers = count()

    def lane(first: str = ":", effects: bool = False, deadlines: Deadlines = USUAL) -> Lane:
        here = shlex.quote(str(folder / f"lane-{next(numbers)}"))
        source = f'echo "$MILLPOND_IDEMPOTENCY_KEY" >> {here}.keys; mkdir {here} 2>&- && {{ {first}; }}; exec cat'
        command = ("sh", "-c", source)
        return CommandLane(LanePolicy("cmd", kind="command", command=command, effects=effects, deadlines=deadlines))

    def keys_seen(lane: Lane) -> list[str]:
        [keys] = [word for word in shlex.split(lane.policy.command[2]) if word.endswith(".keys;")]
        path = Path(keys.removesuffix(";"))
        return path.read_text().splitlines() if path.exists() else []

    faults: dict[Fault, MakeLane] = {
        "retryable": lambda: lane("exit 3"),
        "ambiguous": lambda: lane("exit 3", effects=True),
        "unusable": lambda: lane("exit 0"),
        "silence": lambda: lane("exec sleep 60", deadlines=LESS_SOON),
    }
    return {"make_lane": lane, "faults": faults, "keys_seen": keys_seen}


# --- a script ---------------------------------------------------------------------------------------------------------


def scripted_kit(kind: type[ScriptedLane] = ScriptedLane) -> dict[str, Any]:
    def silent() -> Lane:
        return kind(LanePolicy("scripted", kind="callable", price=FREE, deadlines=SOON), [Held()])

    said: list[Fault] = ["retryable", "saturated", "lane_down", "ambiguous", "unfit", "permanent", "unusable"]
    ill: dict[Fault, MakeLane] = {fault: lambda fault=fault: kind(script=[fault]) for fault in said}  # type: ignore[misc]
    return {
        "make_lane": kind,
        "faults": {**ill, "silence": silent},
        "keys_seen": lambda lane: [call.idempotency_key for call in lane.calls],
    }


# --- ours pass --------------------------------------------------------------------------------------------------------

KITS: dict[str, Callable[[ExitStack, Path], Kit]] = {
    "chat, streamed": lambda stack, _: chat_kit(stack, streams=True),
    "chat, whole": lambda stack, _: chat_kit(stack, streams=False),
    "callable, async": lambda stack, _: callable_kit(stack, is_async=True),
    "callable, in threads": lambda stack, _: callable_kit(stack, is_async=False),
    "command": lambda _, folder: command_kit(folder),
    "scripted": lambda *_: scripted_kit(),
}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize("kind", KITS)
def test_every_lane_of_ours_passes_the_suite(kind: str, stack: ExitStack, tmp_path: Path) -> None:
    kit = KITS[kind](stack, tmp_path)
    left_out = [name for name, case in LANE_CASES if not run_lane_case(case, **kit)]
    assert left_out == []


# --- a wrong lane for each case ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "kind"), WRONG, ids=[kind.__name__ for _, kind in WRONG])
def test_a_lane_that_breaks_a_promise_fails_its_case(
    name: str, kind: type[ScriptedLane], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_scene, "SILENCE_S", SOON.total_ms / 1000)  # no silence of theirs is longer
    case: LaneCase = dict(LANE_CASES)[name]
    with pytest.raises((AssertionError, IndexError)):
        run_lane_case(case, **scripted_kit(kind))


def test_every_case_has_a_lane_that_fails_it() -> None:
    assert {name for name, _ in WRONG} == {name for name, _ in LANE_CASES}


def test_what_fails_is_raised_together_by_the_names_of_the_cases() -> None:
    kit = scripted_kit(ClosesOnce) | {"faults": {}}
    with pytest.raises(ExceptionGroup, match=f"2 of {len(LANE_CASES)} cases failed") as failed:
        exercise_lane(**kit)
    assert [error.__notes__ for error in failed.value.exceptions] == [
        ["in the case it_may_be_closed_twice"],
        ["in the case it_serves_the_next_drain_on_another_loop"],
    ]


def test_a_case_that_needs_what_was_not_given_says_so() -> None:
    cases = dict(LANE_CASES)
    assert run_lane_case(cases["a_prompt_is_answered"], ScriptedLane)
    for name in ("the_key_is_handed_on_as_it_is", "after_a_fault_it_goes_on", "waiting_does_not_stop_the_loop"):
        assert not run_lane_case(cases[name], ScriptedLane)


def test_a_far_side_may_show_whose_reply_it_is_in_its_own_way() -> None:
    lane = ScriptedLane(then=Reply("quack"))
    case = dict(LANE_CASES)["a_prompt_is_answered"]
    assert run_lane_case(case, lambda: lane)
    with pytest.raises(AssertionError, match="was answered 'quack', which is not its reply"):
        run_lane_case(case, lambda: lane, shows=lambda work, reply: work.task in reply.text)


@pytest.mark.parametrize("answer", [lambda work: work.task, lambda _: "yes"], ids=["repeats", "says-yes"])
def test_a_lane_itself_will_do_if_it_lives_on_after_it_was_closed(answer: Callable[[Prompt], str]) -> None:
    exercise_lane(CallableLane(answer))


class CallableToo(ScriptedLane):
    async def __call__(self, work: Prompt) -> str:
        raise NotImplementedError(work)


def test_a_lane_that_can_be_called_itself_is_no_factory_and_keeps_its_policy() -> None:
    lane = CallableToo()
    policy = lane.policy
    exercise_lane(lane)
    assert lane.calls
    assert lane.policy is policy


def silent_threads(*, serial: bool) -> Lane:
    """A function that falls silent in its thread for longer than its deadline, once, and cannot be stopped."""
    deeds = [threading.Event().wait]

    def slow(work: Prompt) -> str:
        if deeds:
            deeds.pop()(1.2)
        return work.task if isinstance(work, Prompt) else "done"

    lane = CallableLane(slow, serial=serial)
    lane.policy = replace(lane.policy, deadlines=SOON)
    return lane


@pytest.mark.parametrize("serial", [False, True], ids=["wide", "serial"])
def test_work_that_cannot_be_stopped_keeps_its_slot_until_it_ends(serial: bool) -> None:
    exercise_lane(lambda: CallableLane(str), faults={"silence": lambda: silent_threads(serial=serial)})


@pytest.mark.parametrize(
    "says",
    [
        lambda task: re.sub(r"[^\w: ]", "", task),
        lambda task: task[:-4],
        str.upper,
        lambda task: json.dumps({"asked": task}),
        lambda task: task.replace(" ", " - "),
        lambda _: "A duck has 100002 feathers.",
    ],
    ids=["without-marks", "cut-short", "in-capitals", "as-json", "spaced", "another-number"],
)
def test_a_far_side_may_say_a_task_again_as_it_likes(says: Callable[[str], str]) -> None:
    exercise_lane(lambda: CallableLane(lambda work: says(work.task)))


def test_a_reply_that_names_another_task_belongs_to_that() -> None:
    work = Prompt("Say: duck 100001!")
    assert names_no_other(work, Reply("Duck 100001, you say."))
    assert not names_no_other(work, Reply("You said: Say: duck 100002!"))
    assert not names_no_other(work, Reply("Title: Say duck 100002"))
    assert not names_no_other(work, Reply("DUCK 100001 and DUCK 100002"))


def test_faults_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(UsageError, match="found 'hang', wanted one of: retryable"):
        exercise_lane(ScriptedLane, faults={"hang": ScriptedLane})  # type: ignore[dict-item]
    case = dict(LANE_CASES)["waiting_does_not_stop_the_loop"]
    with pytest.raises(UsageError, match="total deadline of 600000 ms, wanted at most 5000"):
        run_lane_case(case, ScriptedLane, faults={"silence": ScriptedLane})
