"""Executors of work: each makes one request an attempt and tells what it saw of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.lazily import names

if TYPE_CHECKING:
    from millpond.lanes.build import build_lane, build_lanes
    from millpond.lanes.callable import CallableLane, PythonLane
    from millpond.lanes.chat import ChatLane
    from millpond.lanes.command import CommandLane
    from millpond.lanes.lane import Call, CanRecall, Lane, LaneFactory, Question
    from millpond.rules.evidence import Absent, Recalled, Unknown

__all__ = [
    "Absent",
    "Call",
    "CallableLane",
    "CanRecall",
    "ChatLane",
    "CommandLane",
    "Lane",
    "LaneFactory",
    "PythonLane",
    "Question",
    "Recalled",
    "Unknown",
    "build_lane",
    "build_lanes",
]

# Loaded when first asked for: a callable lane must not cost the import of an HTTP client.
__getattr__, __dir__ = names(
    __name__,
    {
        "build": "build_lane build_lanes",
        "callable": "CallableLane PythonLane",
        "chat": "ChatLane",
        "command": "CommandLane",
        "lane": "Absent Call CanRecall Lane LaneFactory Question Recalled Unknown",
    },
)
