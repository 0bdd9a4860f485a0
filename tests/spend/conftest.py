"""One queue's hand on a spend book, and an attempt's charge."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.spend.book import SpendBook
from millpond.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def hand(tmp_path: Path, clock: FakeClock) -> Iterator[Callable[[str], SpendBook]]:
    """The hand of a queue, by its uuid, on the one book of this test."""
    opened: list[SpendBook] = []

    def open_hand(queue: str) -> SpendBook:
        opened.append(SpendBook(tmp_path / "spend.db", queue, clock.now_ms))
        return opened[-1]

    yield open_hand
    for book in opened:
        book.close()


@pytest.fixture
def book(hand: Callable[[str], SpendBook]) -> SpendBook:
    return hand("pond")
