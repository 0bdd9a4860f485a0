"""What a stop is of, and what a caller means by one."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.rules.errors import UsageError
from millpond.rules.stops import Stop, stop_of, wanted

FREE = frozenset({"free"})


@pytest.mark.parametrize(
    ("stop", "stopped"),
    [
        (Stop("all", None, 0, "cli"), ["free", "paid", "unknown"]),
        (Stop("paid", None, 0, "cli"), ["paid", "unknown"]),
        (Stop("lane", "free", 0, "cli"), ["free"]),
        (Stop("lane", "paid", 0, "cli"), ["paid"]),
    ],
)
def test_a_stop_is_of_its_lanes_and_what_is_not_known_to_be_free_may_cost(stop: Stop, stopped: list[str]) -> None:
    assert [lane for lane in ("free", "paid", "unknown") if stop_of([stop], lane, FREE)] == stopped


def test_nothing_is_stopped_by_no_stop() -> None:
    assert stop_of([], "free", ()) is None


def test_a_word_is_a_scope_and_a_list_names_lanes() -> None:
    assert wanted("all") == [("all", None)]
    assert wanted("paid") == [("paid", None)]
    assert wanted(["paid", "all", "paid"]) == [("lane", "paid"), ("lane", "all")]


@pytest.mark.parametrize(("which", "said"), [("free", r"found 'free'.*\['free'\]"), ("", "found ''"), ([], "no lane")])
def test_a_bare_name_or_none_is_refused_in_words_that_help(which: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        wanted(which)
