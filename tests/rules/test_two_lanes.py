"""The third seed's rule, as one policy of the router: its three tests, and the rest of its table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.two_lanes import next_lane


def test_an_ambiguous_attempt_pins_the_job_to_the_paid_lane() -> None:
    assert next_lane(1, False, "ambiguous") == ("paid", True)


def test_a_retryable_attempt_stays_on_the_free_lane_once_more() -> None:
    assert next_lane(1, False, "retryable") == ("free", False)


def test_a_spent_free_budget_pins_the_job_to_the_paid_lane() -> None:
    assert next_lane(2, False, "retryable") == ("paid", True)


def test_the_first_attempt_is_free() -> None:
    assert next_lane(0, False, "") == ("free", False)


def test_a_permanent_attempt_pins_too_as_the_seed_lists_it() -> None:
    assert next_lane(1, False, "permanent") == ("paid", True)


@pytest.mark.parametrize("outcome", ["retryable", "ambiguous", "permanent"])
@pytest.mark.parametrize("attempts", range(4))
def test_a_pin_is_final(attempts: int, outcome: str) -> None:
    assert next_lane(attempts, True, outcome) == ("paid", True)


@given(st.integers(1, 9), st.sampled_from(["retryable", "ambiguous", "permanent"]))
def test_the_job_is_paid_for_once_it_is_pinned_and_only_then(attempts: int, outcome: str) -> None:
    lane, pinned = next_lane(attempts, False, outcome)
    assert pinned == (lane == "paid")
    assert pinned == (outcome in ("ambiguous", "permanent") or attempts >= 2)
