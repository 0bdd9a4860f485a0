"""What opens a queue for one test with lanes of its own, and the simplest of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millpond import Queue
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE

Open = Callable[..., Queue]


def command(name: str, **more: Any) -> LanePolicy:
    return LanePolicy(name, kind="command", command=("cat",), price=FREE, **more)
