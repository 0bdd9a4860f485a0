"""What pytest gives to users of Millpond: a home, a real queue and a lane by a script, new for each test.

pytest loads this module in every project of the environment, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millpond.queue import Queue
    from millpond.testing.scripted_lane import ScriptedLane

# The plain assertions of the suites then say what they found.
pytest.register_assert_rewrite("millpond.testing.store_cases", "millpond.testing.scene", "millpond.testing.lane_cases")


@pytest.fixture
def millpond_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's queue. The environment names it, so that `Queue.open()` and the shell find it too."""
    home = tmp_path / "millpond"
    monkeypatch.setenv("MILLPOND_HOME", str(home))
    monkeypatch.setenv("MILLPOND_QUEUE__PATH", str(home / "queue.db"))  # whatever file of settings lies about
    return home


@pytest.fixture
def millpond_queue(millpond_home: Path) -> Iterator[Queue]:
    """A real queue in `millpond_home`, without lanes; what would be tried again later is so after 1 ms.

    Closed after the test.
    """
    from millpond.queue import Queue
    from millpond.rules.policy import Backoff, Policy

    soon = Policy(backoff=Backoff(first_ms=1, cap_ms=1), saturated_default_ms=1, saturated_floor_ms=1, durable=False)
    with Queue.open(millpond_home, policy=soon) as queue:
        yield queue


@pytest.fixture
def millpond_lane() -> Iterator[ScriptedLane]:
    """A lane that answers `ok` unless it is told what to `say`: `millpond_queue.drain(lanes=millpond_lane)`.

    Calls that it still holds after the test are let go.
    """
    from millpond.testing.scripted_lane import ScriptedLane

    lane = ScriptedLane("scripted")
    yield lane
    lane.let_go()
