"""A mill, or queues that are opened with given lanes, for one test of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mill_of_one import Mill

from millpond import Policy, Queue
from millpond.engine.bookkeeping import keep_book
from millpond.rules.policy import LanePolicy
from millpond.testing.promises import check_book


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    mill = Mill(tmp_path)
    yield mill
    assert mill.store.miscounted() == {}
    keep_book(mill.store, mill.book)
    check_book(mill.store, mill.book)
    mill.store.close()
    mill.book.close()


@pytest.fixture
def open_queue(tmp_path: Path) -> Iterator[Callable[..., Queue]]:
    opened: list[Queue] = []

    def make(*lanes: LanePolicy, **how: Any) -> Queue:
        registry = how.pop("registry", None)
        policy = Policy(lanes={lane.name: lane for lane in lanes}, idle_exit_ms=200, **how)
        opened.append(Queue.open(tmp_path / "home", policy=policy, registry=registry))
        return opened[-1]

    yield make
    for queue in opened:
        queue.close()
