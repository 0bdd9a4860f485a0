"""The lanes that a caller gave to `drain`: callables, Lanes, names of the policy, in a list or a mapping."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from millpond.lanes.build import build_lanes
from millpond.lanes.callable import CallableLane, is_async
from millpond.lanes.lane import Lane
from millpond.rules.errors import SettingsError, UsageError
from millpond.rules.policy import LanePolicy, Policy

OneLane = Callable[..., Any] | Lane | str
Lanes = OneLane | Sequence[OneLane] | Mapping[str, Callable[..., Any] | Lane] | None
"""A callable, a Lane, a name of the policy's lanes; a list of these; a mapping of names to callables or Lanes."""


def choose_lanes(policy: Policy, lanes: Lanes) -> tuple[Policy, dict[str, Lane]]:
    """The lanes to drain with (None: all enabled ones), and the policy to route by.

    Names choose among the policy's lanes: the others are absent from this drain, and work that only they may serve now
    waits for them. Callables and Lanes given in code are the policy's lanes; a route is kept if it names one of them.

    Raises UnknownLane, UsageError for what is no lane or a name given twice, SettingsError where there is none at all.
    """
    built = build_lanes(policy) if lanes is None else _given(policy, lanes)
    if not built:
        raise SettingsError("no lanes to drain with; name one in millpond.yaml, as `millpond init` does (or in lanes=)")
    if lanes is None or all(isinstance(one, str) for _, one in _named(lanes)):
        return replace(policy, absent=frozenset(policy.lanes.keys() - built.keys())), built
    routing = {route: names for route, names in policy.routing.items() if built.keys() & set(names)}
    return replace(policy, lanes={name: lane.policy for name, lane in built.items()}, routing=routing), built


def flaw_of(lane: Lane) -> str:
    """What keeps something that has the names of a Lane from being one, in words; "" for a lane.

    A mock has every name, and a lane's class has those of its instances.
    """
    given: object = lane
    if isinstance(given, type):
        return f"found the class {given.__name__}, wanted a lane of it: {given.__name__}(…)"
    kind, policy = type(lane).__name__, cast("object", lane.policy)
    if not isinstance(policy, LanePolicy):
        return f"found {kind} whose policy is {type(policy).__name__}, wanted a LanePolicy"
    for name in ("call", "close"):
        if not is_async(getattr(lane, name)):
            return f"found {kind} whose {name} is not async, wanted `async def {name}`"
    return ""


def _given(policy: Policy, lanes: Lanes) -> dict[str, Lane]:
    built: dict[str, Lane] = {}
    for name, one in _named(lanes):
        lane = build_lanes(policy, [one])[one] if isinstance(one, str) else _as_lane(one, name)
        if lane.policy.name in built:
            raise UsageError(f"lanes: found {lane.policy.name!r} twice, wanted names that differ: give a mapping")
        built[lane.policy.name] = lane
    return built


def _named(lanes: Lanes) -> list[tuple[str | None, Any]]:
    if isinstance(lanes, Mapping):
        return list(cast("Mapping[str, Any]", lanes).items())
    if isinstance(lanes, Sequence) and not isinstance(lanes, str):
        return [(None, one) for one in cast("Sequence[Any]", lanes)]
    return [(None, lanes)]


def _as_lane(one: Any, name: str | None) -> Lane:
    if isinstance(one, Lane):
        if flaw := flaw_of(one):
            raise UsageError(f"lanes: {flaw}; what is to be called as a function goes into CallableLane(…)")
        lane = one
    elif callable(one):
        lane = CallableLane(one)
    else:
        raise UsageError(f"lanes: found {type(one).__name__}, wanted a callable, a Lane, or the name of a lane")
    if name is not None and lane.policy.name != name:
        lane.policy = replace(lane.policy, name=name)
    return lane
