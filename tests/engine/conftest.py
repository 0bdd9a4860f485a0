"""A mill, or queues that are opened with given lanes, for one test of the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mill_of_one import Mill

from millpond import Policy, Queue
from millpond.rules.policy import LanePolicy


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    mill = Mill(tmp_path)
    yield mill
    assert mill.store.miscounted() == {}
    mill.store.close()


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
