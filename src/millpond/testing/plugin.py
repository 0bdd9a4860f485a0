"""What pytest gives to users of Millpond: a home with settings, a real queue and a lane by a script, new for each test.

pytest loads this module in every project of the environment, so it imports nothing but pytest until a fixture is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from millpond.queue import Queue
    from millpond.rules.policy import LanePolicy
    from millpond.testing.scripted_lane import ScriptedLane

# The plain assertions of the suites then say what they found.
pytest.register_assert_rewrite(
    "millpond.testing.store_cases", "millpond.testing.store_scene", "millpond.testing.lane_cases"
)


SETTINGS = """\
lanes: {scripted: {kind: scripted, price: 0}}
durability: normal
backoff: {first_s: 0.001, cap_s: 0.001}
saturated_default_s: 0.001
"""
"""What code that opens a queue by itself finds: no lane but the scripted one, and no pause worth waiting for."""

_lanes: list[ScriptedLane] = []


@pytest.fixture
def millpond_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of this test's queue, and settings whose one lane is `millpond_lane`.

    The environment names both, for this process and those that it starts: `Queue.open()` and the shell find this queue,
    and no lane of the project or the user, which might cost money. Their own `MILLPOND_…` variables are taken away.
    """
    home = tmp_path / "millpond"
    settings = tmp_path / "millpond-settings"
    settings.mkdir()
    (settings / "millpond.yaml").write_text(SETTINGS, encoding="utf-8")
    for name in [name for name in os.environ if name.startswith("MILLPOND_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MILLPOND_HOME", str(home))
    monkeypatch.setenv("MILLPOND_CONFIG", str(settings / "millpond.yaml"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))  # where the user's own file would be
    return home


@pytest.fixture
def millpond_queue(millpond_home: Path) -> Iterator[Queue]:
    """A real queue in `millpond_home`; its `drain()` asks `millpond_lane`, and waits for no pause.

    Closed after the test.
    """
    from millpond.queue import Queue
    from millpond.settings.load import load

    settings = load(home=millpond_home)
    with Queue.at(settings, policy=replace(settings.policy, saturated_floor_ms=1)) as queue:
        yield queue


@pytest.fixture
def millpond_lane() -> Iterator[ScriptedLane]:
    """The lane of this test's settings. It answers `ok` unless it is told what to `say`.

    Calls that it still holds after the test are let go.
    """
    from millpond.testing.scripted_lane import ScriptedLane

    lane = ScriptedLane("scripted")
    _lanes.append(lane)
    yield lane
    _lanes.remove(lane)
    lane.let_go()


def scripted(policy: LanePolicy) -> ScriptedLane:
    """The lane of kind `scripted`: `millpond_lane`, or one that answers `ok` where no test has asked for it."""
    from millpond.testing.scripted_lane import ScriptedLane

    lane = _lanes[-1] if _lanes else ScriptedLane(policy)
    lane.policy = policy
    return lane
