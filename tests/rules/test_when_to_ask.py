"""What a lane's silence proves, and when it is asked again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.policy import Deadlines, LanePolicy, Policy
from millpond.rules.recall import next_ask_ms, proves_absence, settled_after_ms
from millpond.rules.router import Tried, next_lane

LANE = LanePolicy("paid", deadlines=Deadlines(total_ms=60_000), settling_ms=5_000, max_attempts=1)
POLICY = Policy(lanes={"paid": LANE}, lease_ms=15_000, recall_first_ms=1_000)


def test_silence_proves_something_once_the_call_can_neither_run_nor_settle() -> None:
    assert settled_after_ms(POLICY, LANE) == 15_000 + 60_000 + 5_000
    assert not proves_absence(POLICY, LANE, 79_999)
    assert proves_absence(POLICY, LANE, 80_000)


def test_a_clock_that_is_set_forward_makes_no_interval_longer_than_the_call_is_old() -> None:
    at_ms = next_ask_ms(POLICY, LANE, age_ms=6_000, ended_ms=0, hold_until_ms=100_000, now_ms=1_200_000)
    assert at_ms == 1_206_000


def asks(hold_until_ms: int, end_ms: int) -> list[int]:
    """All times at which a call that began and was lost at 0 is asked for."""
    times = [0]
    while times[-1] < end_ms:
        marks = {"age_ms": times[-1], "ended_ms": 0, "hold_until_ms": hold_until_ms}
        times.append(next_ask_ms(POLICY, LANE, **marks, now_ms=times[-1]))
    return times


def test_a_lane_is_asked_at_growing_intervals_when_silence_proves_something_and_when_the_hold_ends() -> None:
    assert asks(100_000, 200_000) == [0, 1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 80_000, 100_000, 200_000]


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 10**7))
def test_the_next_question_is_always_ahead(started_ms: int, after_ms: int, hold_ms: int) -> None:
    ended_ms, now_ms = started_ms + after_ms, started_ms + 2 * after_ms
    marks = {"age_ms": 2 * after_ms, "ended_ms": ended_ms, "hold_until_ms": ended_ms + hold_ms}
    assert next_ask_ms(POLICY, LANE, **marks, now_ms=now_ms) > now_ms


def test_a_call_of_a_dead_process_that_its_lane_never_had_uses_up_no_attempt() -> None:
    ours, theirs = (Tried("paid", "retryable", "absent", code) for code in ("died", "absent"))
    assert next_lane([ours], POLICY, ("paid",)).__class__.__name__ == "Step"
    assert next_lane([theirs], POLICY, ("paid",)).__class__.__name__ == "Exhausted"
