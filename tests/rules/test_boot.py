"""How long ago a call was recorded, whatever was done to the clock on the wall."""

from __future__ import annotations

import pytest

from millpond.rules.boot import Boot, age_ms

NOW_MS = 1_000_000
HERE = Boot("one", 50_000)


@pytest.mark.parametrize(
    ("said_ms", "began", "aged_ms"),
    [
        (NOW_MS - 3_600_000, Boot("one", 49_000), 1_000),  # the wall was an hour behind
        (NOW_MS + 3_600_000, Boot("one", 49_000), 1_000),  # the wall was an hour ahead
        (NOW_MS - 20_000, Boot("another", 7), 20_000),
        (NOW_MS - 3_600_000, Boot("another", 7), HERE.ms),  # surely no older, and no more is known
        (NOW_MS - 20_000, None, 20_000),
    ],
)
def test_the_age_of_a_call_is_not_told_by_a_clock_that_was_set(said_ms: int, began: Boot | None, aged_ms: int) -> None:
    assert age_ms(said_ms, began, HERE, NOW_MS) == aged_ms


def test_without_a_clock_of_the_boot_the_wall_is_believed() -> None:
    assert age_ms(7, HERE, None, NOW_MS) == NOW_MS - 7
