"""The lanes that a caller gave to `drain`: callables, Lanes, names of the policy, in a list or a mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from millpond.lanes.build import build_lanes
from millpond.lanes.lane import Lane
from millpond.lanes.local import CallableLane
from millpond.rules.errors import SettingsError, UsageError
from millpond.rules.policy import Policy

Lanes = Any
"""A callable, a Lane, a name of the policy's lanes; a list of these; a mapping of names to callables or Lanes."""


def choose_lanes(policy: Policy, lanes: Lanes) -> tuple[Policy, dict[str, Lane]]:
    """The lanes to drain with, and the policy that names just these."""
    if lanes is None:
        built = build_lanes(policy)
    elif isinstance(lanes, str):
        built = build_lanes(policy, [lanes])
    elif isinstance(lanes, Mapping):
        built = {name: _as_lane(one, name) for name, one in lanes.items()}
    elif isinstance(lanes, Sequence):
        named = [one for one in lanes if isinstance(one, str)]
        if len(named) == len(lanes):
            built = build_lanes(policy, named)
        else:
            given = [_as_lane(one, None) for one in lanes]
            built = {lane.policy.name: lane for lane in given}
            if len(built) < len(given):
                names = ", ".join(lane.policy.name for lane in given)
                raise UsageError(f"lanes: found the same name twice in {names}; wanted names that differ: a mapping")
    else:
        lane = _as_lane(lanes, None)
        built = {lane.policy.name: lane}
    if not built:
        raise SettingsError(
            "no lanes to drain with; name one in millpond.yaml (`millpond init` writes it) or give lanes="
        )
    kept = {route: tuple(n for n in names if n in built) for route, names in policy.routing.items()}
    routing = {route: names for route, names in kept.items() if names}
    return replace(policy, lanes={name: lane.policy for name, lane in built.items()}, routing=routing), built


def _as_lane(one: Any, name: str | None) -> Lane:
    if isinstance(one, Lane):
        lane = one
    elif callable(one):
        lane = CallableLane(one)
    else:
        raise UsageError(f"lanes: found {type(one).__name__}, wanted a callable, a Lane, or the name of a lane")
    if name is not None and lane.policy.name != name:
        lane.policy = replace(lane.policy, name=name)
    return lane
