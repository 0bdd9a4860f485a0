"""The testing kit itself: its clock, its scripted lane, and that its suite fails a store that breaks a promise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from millpond import testing
from millpond.lanes.lane import Call, Lane
from millpond.rules.errors import UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome, Prompt, Reply
from millpond.rules.outcome import classify
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.store.persons import Moved, Whose
from millpond.store.store import Store, open_sqlite
from millpond.testing import STORE_CASES, FakeClock, Held, ScriptedLane, evidence_of, exercise_store
from millpond.testing.scripted_lane import OUTCOMES


def call(uid: str = "u", task: str = "say blue") -> Call:
    return Call(uid=uid, work=Prompt(task), idempotency_key="k", attempt_no=1, deadline_ms=0)


# --- the clock --------------------------------------------------------------------------------------------------------


def test_the_clock_moves_only_when_told() -> None:
    clock = FakeClock(1_000)
    assert [clock(), clock.now_ms(), clock()] == [1_000] * 3
    assert clock.advance(5) == 1_005 == clock()
    assert clock.advance(-10) == 995


# --- the lane ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outcome", get_args(Outcome))
def test_a_word_is_evidence_that_the_table_reads_as_that_outcome(outcome: Outcome) -> None:
    assert classify(evidence_of(outcome)).outcome == outcome


def test_the_words_are_all_outcomes() -> None:
    assert get_args(Outcome) == OUTCOMES


def test_a_lane_answers_by_its_script_and_then_goes_on() -> None:
    seen = Evidence(status=500)
    lane = ScriptedLane("free", ["retryable", seen, Reply("red")], then="saturated")
    assert isinstance(lane, Lane)

    async def all_of_it() -> list[Evidence]:
        return [await lane.call(call(str(at))) for at in range(5)]

    retryable, own, red, *rest = asyncio.run(all_of_it())
    assert (retryable.said, own, [one.said for one in rest]) == ("retryable", seen, ["saturated"] * 2)
    assert red.reply is not None
    assert red.reply.text == "red"
    assert [one.uid for one in lane.calls] == ["0", "1", "2", "3", "4"]


def test_an_ok_answers_the_task_that_was_asked() -> None:
    evidence = asyncio.run(ScriptedLane().call(call(task="say blue")))
    assert evidence.reply is not None
    assert evidence.reply.text == "answer to say blue"


def test_an_exception_in_the_script_is_raised() -> None:
    with pytest.raises(RuntimeError, match="a bug"):
        asyncio.run(ScriptedLane("free", [RuntimeError("a bug")]).call(call()))


def test_a_line_that_nobody_can_read_is_refused_when_the_script_is_given() -> None:
    with pytest.raises(UsageError, match="found 'okay'"):
        ScriptedLane("free", ["okay"])  # type: ignore[list-item]


def test_a_policy_may_be_given_whole() -> None:
    policy = LanePolicy("paid", tier="paid")
    assert ScriptedLane(policy).policy is policy
    assert ScriptedLane("free").policy.name == "free"


def test_lines_are_added_to_the_script() -> None:
    lane = ScriptedLane("free", ["retryable"])
    lane.say("saturated", Reply("red"))
    with pytest.raises(UsageError, match="found 'okay'"):
        lane.say("permanent", "okay")  # type: ignore[arg-type]

    async def all_of_it() -> list[str | None]:
        return [(await lane.call(call(str(at)))).said for at in range(4)]

    assert asyncio.run(all_of_it()) == ["retryable", "saturated", None, None], "a refused line adds none of its call"


def test_work_with_a_schema_is_answered_with_data() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    lane = ScriptedLane("free", ["ok", Reply('{"n": 7}'), Reply("seven")])

    async def ask() -> tuple[str, Any]:
        asked = Call(uid="u", work=Prompt("how many?", schema=schema), idempotency_key="k", attempt_no=1, deadline_ms=0)
        evidence = await lane.call(asked)
        return classify(evidence).outcome, evidence.reply.data if evidence.reply else None

    async def all_of_it() -> list[tuple[str, Any]]:
        return [await ask() for _ in range(3)]

    assert asyncio.run(all_of_it()) == [("ok", {"n": 0}), ("ok", {"n": 7}), ("unusable", None)]


def test_a_held_call_ends_by_its_total_deadline() -> None:
    policy = LanePolicy("free", kind="callable", deadlines=Deadlines(total_ms=20))
    evidence = asyncio.run(ScriptedLane(policy, [Held()]).call(call()))
    assert (evidence.failure, classify(evidence).outcome) == ("total_timeout", "ambiguous")


def test_calls_are_held_open_until_they_are_let_go() -> None:
    async def scene() -> None:
        lane = ScriptedLane("free")
        lane.hold()
        first, second = (asyncio.create_task(lane.call(call(uid))) for uid in ("a", "b"))
        await lane.began(2)
        assert (lane.held, first.done(), second.done()) == (["a", "b"], False, False)
        lane.let_go("b")
        await second
        assert (lane.held, first.done()) == (["a"], False)
        lane.let_go()
        await first
        assert (await lane.call(call("c"))).reply is not None, "none is held from now on"

    asyncio.run(scene())


def test_one_line_of_the_script_may_be_held() -> None:
    async def scene() -> None:
        lane = ScriptedLane("free", ["ok", Held("retryable")])
        await lane.call(call("a"))
        slow = asyncio.create_task(lane.call(call("b")))
        await lane.began(2)
        assert lane.held == ["b"]
        lane.let_go("b")
        assert (await slow).said == "retryable"

    asyncio.run(scene())


def test_a_held_call_may_be_let_go_from_another_thread() -> None:
    async def scene() -> None:
        lane = ScriptedLane("free", [Held()])
        slow = asyncio.create_task(lane.call(call("a")))
        await lane.began()
        await asyncio.to_thread(lane.let_go)
        assert (await slow).reply is not None

    asyncio.run(scene())


def test_a_call_that_is_given_up_is_remembered() -> None:
    async def scene() -> None:
        lane = ScriptedLane("free", [Held()])
        slow = asyncio.create_task(lane.call(call("a")))
        await lane.began()
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        assert ([one.uid for one in lane.cancelled], lane.held) == (["a"], [])
        await lane.close()
        assert lane.closed == 1

    asyncio.run(scene())


# --- its names --------------------------------------------------------------------------------------------------------


def test_the_public_names_are_complete_and_load() -> None:
    assert set(testing.__all__) == set(dir(testing))
    assert testing.__all__ == sorted(testing.__all__, key=lambda name: (not name.isupper(), name.islower(), name))
    for name in testing.__all__:
        assert getattr(testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'simulated'"):
        _ = testing.simulated  # type: ignore[attr-defined]


# --- the suite --------------------------------------------------------------------------------------------------------


def test_every_case_has_a_name_of_its_own() -> None:
    names = [name for name, _ in STORE_CASES]
    assert len(set(names)) == len(names) > 100


class Mistaken(Store):
    """A store that takes a cancel for a retry."""

    def cancel(self, holds: Iterable[tuple[int, int]], *, submissions: Whose = None) -> list[Moved]:
        return self.retry([job_id for job_id, _ in holds], submissions=submissions)


def test_a_store_that_breaks_a_promise_fails_by_the_names_of_its_cases(tmp_path: Path) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        exercise_store(new_stores(tmp_path, Mistaken))
    notes = " ".join(note for error in failed.value.exceptions for note in error.__notes__)
    assert "o03_a_job_is_cancelled_in_every_live_state_once" in notes
    assert len(failed.value.exceptions) < len(STORE_CASES) / 4, "all that it does well passes"
    assert "the_larger_priority_goes_first" not in notes


def new_stores(folder: Path, kind: type[Store]) -> Callable[[Callable[[], int]], Store]:
    made: list[Store] = []

    def make(now_ms: Callable[[], int]) -> Store:
        made.append(kind(open_sqlite(folder / f"{len(made)}.db", durable=False), now_ms))
        return made[-1]

    return make
