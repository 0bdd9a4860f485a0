"""Executors of work: each makes one request an attempt and tells what it saw of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.lanes.build import build_lane, build_lanes
    from millpond.lanes.callable import CallableLane, PythonLane
    from millpond.lanes.chat import ChatLane
    from millpond.lanes.command import CommandLane
    from millpond.lanes.lane import Call, Lane, LaneFactory

__all__ = [
    "Call",
    "CallableLane",
    "ChatLane",
    "CommandLane",
    "Lane",
    "LaneFactory",
    "PythonLane",
    "build_lane",
    "build_lanes",
]

# Loaded when first asked for: a callable lane must not cost the import of an HTTP client.
_ROOM_OF = {
    "Call": "lane",
    "CallableLane": "callable",
    "ChatLane": "chat",
    "CommandLane": "command",
    "Lane": "lane",
    "LaneFactory": "lane",
    "PythonLane": "callable",
    "build_lane": "build",
    "build_lanes": "build",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_ROOM_OF[name]}"), name)
    globals()[name] = value
    return value
