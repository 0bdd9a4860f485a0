"""Settings as one test loads them, and a lane of theirs."""

from __future__ import annotations

from collections.abc import Callable

from millpond.rules.policy import LanePolicy
from millpond.settings import Settings

Load = Callable[..., Settings]


def lane(settings: Settings, name: str = "free") -> LanePolicy:
    return settings.policy.lanes[name]
