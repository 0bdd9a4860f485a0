"""Numbers that callers give."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.rules.errors import UsageError
from millpond.rules.job import MAX_ID
from millpond.rules.numbers import seconds, whole_number


@pytest.mark.parametrize("value", [0, -1, MAX_ID + 1, 2**70, 1.0, "1", True, None, b"1", [1]])
def test_what_is_no_whole_number_within_the_bounds_is_refused_by_name(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^limit: found .*, wanted a whole number from 1 to "):
        whole_number(value, "limit")


def test_a_whole_number_is_given_back() -> None:
    assert (whole_number(1, "limit"), whole_number(MAX_ID, "limit"), whole_number(0, "limit", at_least=0)) == (
        1,
        MAX_ID,
        0,
    )


def test_a_span_is_none_below_nothing_and_none_beyond_a_year() -> None:
    spans = [seconds(value, "timeout") for value in (None, -1, 0, 1.5, 2, float("inf"), float("-inf"), 10**30)]
    assert spans == [None, 0, 0, 1.5, 2, 366 * 86_400, 0, 366 * 86_400]


@pytest.mark.parametrize("value", ["3", True, float("nan"), [3]])
def test_what_is_no_span_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"^timeout: found .*, wanted seconds"):
        seconds(value, "timeout")
