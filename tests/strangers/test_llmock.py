"""llmock, a provider that none of us wrote, as every lane: what it does to us, and its own verdict on our client.

Each drain is followed by the books of both sides and by the verdict (`Pond.drain`), which must be clean, warnings too.
Where llmock is known to blame what is meant, the test says so and docs/decisions/008 says why.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Match, Reply, StreamFault
from pond import FREE_MODEL, PAID_MODEL, Pond

from millpond.lanes.chat import ChatLane
from millpond.rules.policy import Deadlines, LanePolicy
from millpond.testing import exercise_lane

MakePond = Callable[..., Pond]

ANSWER = "Seven ducks, all told."
QUESTIONS = ["How many ducks?", "How many geese?", "How many newts?"]
A_MS_S = 0.001
"""Our clock is read in whole ms, so a moment may be taken for one up to this much earlier."""
SHORT = Deadlines(connect_ms=5_000, first_byte_ms=500, idle_ms=500, total_ms=20_000)

either_way = pytest.mark.parametrize("streams", [True, False], ids=["streamed", "plain"])


@either_way
def test_each_question_is_asked_once_and_its_tokens_are_known(
    make_pond: MakePond, llmock: LLMock, streams: bool
) -> None:
    llmock.reply(ANSWER, times=None)
    pond = make_pond(streams=streams)
    assert pond.drain(*QUESTIONS, QUESTIONS[0]).done == 3
    assert [result.text for result in pond.results()] == [ANSWER] * 4
    assert len(llmock.requests) == 3
    assert all(row.tokens_in and row.tokens_out for row in pond.queue.ledger())


# ---------------------------------------------------------------- refused with a time


@pytest.mark.parametrize(("streams", "retry_after_s"), [(True, 0.7), (False, 0.3)], ids=["streamed", "plain"])
def test_a_429_closes_the_lane_until_retry_after_has_passed_and_uses_up_no_attempt(
    make_pond: MakePond, llmock: LLMock, streams: bool, retry_after_s: float
) -> None:
    llmock.rate_limit(retry_after=retry_after_s)
    pond = make_pond(streams=streams)
    assert pond.drain(*QUESTIONS).done == 3
    assert pond.ledger() == [("free", "saturated", "rate_limited"), *[("free", "ok", "ok")] * 3]
    assert pond.states() == [("done", 1)] * 3
    refused, *later = llmock.requests
    wait_s = min(one.started_at for one in later) - refused.ended_at
    assert wait_s >= retry_after_s - A_MS_S, "nobody's request was sent before, not only that of the job it refused"


def test_a_quota_is_drained_at_its_own_pace(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.limits(rpm=40)
    pond = make_pond(max_in_flight=4, streams=False)
    assert pond.drain(*[f"What is {n} times {n}?" for n in range(41)]).done == 41
    assert pond.states() == [("done", 1)] * 41
    assert {code for _, outcome, code in pond.ledger() if outcome != "ok"} == {"rate_limited"}


@pytest.mark.parametrize(("status", "streams"), [(503, True), (529, False)])
def test_a_refusal_with_proof_lets_its_job_wait_while_the_lane_goes_on(
    make_pond: MakePond, llmock: LLMock, status: int, streams: bool
) -> None:
    llmock.fail(status, retry_after=0.6)
    pond = make_pond(streams=streams)
    assert pond.drain(*QUESTIONS).done == 3
    assert pond.ledger() == [("free", "retryable", "overloaded"), *[("free", "ok", "ok")] * 3]
    first, second, third, again = llmock.requests
    assert (first.fingerprint, first.status) == (again.fingerprint, status)
    assert again.started_at - first.ended_at >= 0.6 - A_MS_S
    assert max(second.ended_at, third.ended_at) < again.started_at


def test_an_outage_fails_jobs_honestly_after_a_bounded_number_of_calls(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.fail(503, times=None, retry_after=0.05)
    pond = make_pond()
    assert pond.drain(*QUESTIONS[:2]).failed == 2
    assert sorted(pond.ledger()) == [(lane, "retryable", "overloaded") for lane in ("free", "paid") for _ in range(4)]
    assert pond.failures() == ["overloaded", "overloaded"]
    assert pond.results() == []


# ---------------------------------------------------------------- nobody knows


def test_a_5xx_without_proof_is_ambiguous_and_asked_again_with_growing_pauses(
    make_pond: MakePond, llmock: LLMock
) -> None:
    llmock.fail(500, times=2).fail(502)
    pond = make_pond(max_attempts=4)
    assert pond.drain(QUESTIONS[0]).done == 1
    assert pond.ledger() == [*[("free", "ambiguous", "server_error")] * 3, ("free", "ok", "ok")]
    seen = llmock.requests
    pauses_s = [after.started_at - before.ended_at for before, after in pairwise(seen)]
    assert all(pause_s >= 0.1 * 2**at - A_MS_S for at, pause_s in enumerate(pauses_s)), pauses_s


def test_a_504_that_says_when_is_asked_again_no_sooner(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.fail(504, retry_after=0.5)
    pond = make_pond()
    assert pond.drain(QUESTIONS[0]).done == 1
    assert pond.ledger() == [("free", "ambiguous", "server_error"), ("free", "ok", "ok")]
    first, again = llmock.requests
    assert again.started_at - first.ended_at >= 0.5 - A_MS_S


BROKEN_STREAMS: dict[str, tuple[Callable[[LLMock], Any], str]] = {
    "ends early, cleanly": (lambda llmock: llmock.truncate(after_chunks=3), "cut"),
    "ends early, with its usage to come": (lambda llmock: llmock.truncate(after_chunks=5), "cut"),
    "drops after the head": (lambda llmock: llmock.disconnect(after_chunks=0), "cut"),
    "drops amid the content": (lambda llmock: llmock.disconnect(after_chunks=3), "cut"),
    # Paced as a model would write it: of what was sent at once, a server cannot know that we did not read it.
    "has a chunk that is no JSON": (lambda llmock: llmock.corrupt(after_chunks=1).pace(50), "cut"),
    "stalls amid the content": (lambda llmock: llmock.stall(after_chunks=3, seconds=20), "timeout"),
    "is slow to begin": (lambda llmock: llmock.slow_first_token(20), "timeout"),
}


@pytest.mark.parametrize("how", sorted(BROKEN_STREAMS))
def test_a_stream_that_breaks_is_no_answer(make_pond: MakePond, llmock: LLMock, how: str) -> None:
    breaks, code = BROKEN_STREAMS[how]
    breaks(llmock).reply(ANSWER, times=None)
    pond = make_pond(deadlines=SHORT)
    assert pond.drain(*QUESTIONS[:2]).done == 2
    assert sorted(pond.ledger()) == sorted([("free", "ambiguous", code), *[("free", "ok", "ok")] * 2])
    assert [result.text for result in pond.results()] == [ANSWER] * 2, "no part of the broken one came through"
    assert [row.resolution for row in pond.queue.ledger() if row.outcome == "ambiguous"] == ["same"]


def test_an_answer_that_is_slower_than_our_deadline_is_ambiguous_and_asked_again(
    make_pond: MakePond, llmock: LLMock
) -> None:
    llmock.delay(0.8)
    pond = make_pond(streams=False, deadlines=SHORT)
    assert pond.drain(QUESTIONS[0]).done == 1
    assert pond.ledger() == [("free", "ambiguous", "timeout"), ("free", "ok", "ok")]


@either_way
def test_an_answer_that_is_late_within_the_hold_is_not_asked_for_again(
    make_pond: MakePond, llmock: LLMock, streams: bool
) -> None:
    llmock.delay(0.4)
    pond = make_pond(streams=streams, soft_timeout_ms=100, hold_ms={"realtime": 20_000, "batch": 20_000})
    assert pond.drain(QUESTIONS[0]).done == 1
    [row] = pond.queue.ledger()
    assert (row.outcome, row.resolution) == ("ok", "late")


def test_a_call_that_may_be_paid_twice_is_counted(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.fail(500, times=2, model=FREE_MODEL)
    llmock.add(StreamFault("disconnect", after_chunks=2, match=Match(model=PAID_MODEL, stream=True)))
    pond = make_pond()
    summary = pond.drain(QUESTIONS[0])
    assert pond.ledger() == [
        *[("free", "ambiguous", "server_error")] * 2, ("paid", "ambiguous", "cut"), ("paid", "ok", "ok"),
    ]  # fmt: skip
    assert (summary.done, summary.paid_twice) == (1, 1), "the free ones cost nothing"


# ---------------------------------------------------------------- answers that are none, and refusals for good

NO_ANSWERS = {
    "truncated": Reply("Seven du", finish_reason="length"),
    "filtered": Reply("", finish_reason="content_filter"),
}


@either_way
@pytest.mark.parametrize("code", sorted(NO_ANSWERS))
def test_an_answer_that_is_none_fails_its_job_and_is_bought_nowhere_else(
    make_pond: MakePond, llmock: LLMock, code: str, streams: bool
) -> None:
    llmock.add(NO_ANSWERS[code]).reply(ANSWER, times=None)
    pond = make_pond(streams=streams)
    summary = pond.drain(*QUESTIONS)
    assert (summary.done, summary.failed, pond.failures()) == (2, 1, [code])
    assert len(llmock.requests) == 3
    assert [result.text for result in pond.results()] == [ANSWER] * 2


def test_an_empty_answer_is_asked_for_once_more(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.reply("").reply(ANSWER, times=None)
    pond = make_pond()
    assert pond.drain(QUESTIONS[0]).done == 1
    assert pond.ledger() == [("free", "unusable", "empty"), ("free", "ok", "ok")]


@either_way
@pytest.mark.parametrize("status", [400, 422])
def test_a_request_that_is_refused_for_good_is_sent_once(
    make_pond: MakePond, llmock: LLMock, status: int, streams: bool
) -> None:
    llmock.fail(status)
    pond = make_pond(streams=streams)
    summary = pond.drain(*QUESTIONS)
    assert (summary.done, summary.failed, pond.failures()) == (2, 1, ["invalid_request"])
    assert [one.status for one in llmock.requests] == [status, 200, 200]


def test_a_prompt_that_is_too_long_for_one_lane_goes_to_the_next(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.context_overflow()
    pond = make_pond()
    assert pond.drain(QUESTIONS[0]).done == 1
    assert pond.ledger() == [("free", "unfit", "context_length"), ("paid", "ok", "ok")]


@pytest.mark.parametrize(("status", "code"), [(401, "no_access"), (402, "no_access"), (404, "no_such_address")])
def test_a_lane_that_refuses_everybody_is_asked_once_and_waits_for_a_person(
    make_pond: MakePond, llmock: LLMock, status: int, code: str
) -> None:
    llmock.fail(status, times=None)
    pond = make_pond()
    assert pond.drain(*QUESTIONS).ready == 3
    assert pond.ledger() == [("free", "lane_down", code)]
    assert pond.states() == [("ready", 0)] * 3


# ---------------------------------------------------------------- what its verdict cannot know (docs/decisions/008)


def test_a_lane_that_a_person_mended_is_asked_again(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.fail(401)
    pond = make_pond()
    assert pond.drain(QUESTIONS[0]).ready == 1
    pond.queue.resume_lane("free")
    assert pond.drain(blames=["retried_non_retryable"]).done == 1


def test_a_stream_that_is_cut_for_good_is_answered_by_the_next_lane(make_pond: MakePond, llmock: LLMock) -> None:
    fault = StreamFault("truncate", after_chunks=2, times=2, match=Match(model=FREE_MODEL, stream=True))
    llmock.add(fault).reply(ANSWER, times=None)
    pond = make_pond()
    assert pond.drain(QUESTIONS[0], blames=["truncated_stream_accepted"]).done == 1
    assert pond.ledger() == [*[("free", "ambiguous", "cut")] * 2, ("paid", "ok", "ok")]
    assert [result.text for result in pond.results()] == [ANSWER]


def test_a_stream_that_breaks_after_its_finish_reason_is_a_whole_answer(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.reply("Seven.").disconnect(after_chunks=3)  # role, text, finish reason; then usage and [DONE]
    pond = make_pond()
    assert pond.drain(QUESTIONS[0], blames=["gave_up"]).done == 1
    [result] = pond.results()
    assert (result.text, result.finish_reason, result.tokens_out) == ("Seven.", "stop", None)


def test_a_lane_without_room_is_asked_for_as_long_as_it_says_when(make_pond: MakePond, llmock: LLMock) -> None:
    llmock.rate_limit(times=11, retry_after=0.01)
    pond = make_pond(policy={"saturated_default_ms": 20, "saturated_floor_ms": 1})
    assert pond.drain(QUESTIONS[0], blames=["retry_storm"]).done == 1
    assert pond.states() == [("done", 1)]


# ---------------------------------------------------------------- the suite that every lane must pass


@either_way
def test_our_lane_passes_the_suite_of_lanes_against_it(llmock: LLMock, streams: bool) -> None:
    def lane() -> ChatLane:
        return ChatLane(LanePolicy("mock", base_url=llmock.base_url(), model=FREE_MODEL, streams=streams), "")

    def ill(**fault: Any) -> Callable[[], ChatLane]:
        def made() -> ChatLane:
            llmock.reset().fail(**fault)
            return lane()

        return made

    exercise_lane(
        lane,
        faults={
            "saturated": ill(status=429, retry_after=1),
            "retryable": ill(status=503, retry_after=1),
            "ambiguous": ill(status=500),
            "permanent": ill(status=422),
            "lane_down": ill(status=401),
        },
    )
