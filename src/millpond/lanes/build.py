"""From the policy of a lane to the lane: by its kind, with its key out of the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points

from millpond.lanes.lane import CanRecall, Lane
from millpond.rules.errors import MillpondError, MissingKey, SettingsError, UsageError
from millpond.rules.policy import LanePolicy, Policy

ENTRY_POINTS = "millpond.lanes"
"""Group of the entry points that add kinds: the name is the kind, the object a LaneFactory."""


def build_lanes(
    policy: Policy, names: Iterable[str] | None = None, *, environ: Mapping[str, str] | None = None
) -> dict[str, Lane]:
    """Build the lanes of those names, else all enabled ones, in the policy's order.

    Raises UnknownLane, and what `build_lane` raises. Nothing is connected yet.
    """
    wanted = [policy.lane(name) for name in names] if names is not None else policy.lanes.values()
    for lane in wanted if names is not None else ():
        if not lane.enabled:
            raise UsageError(f"lane {lane.name!r} is disabled; enable it in the settings, or name another")
    return {lane.name: build_lane(lane, environ=environ) for lane in wanted if lane.enabled}


def build_lane(policy: LanePolicy, *, environ: Mapping[str, str] | None = None) -> Lane:
    """Build one lane. `environ` is where `key_env` is looked up; None: the process's environment.

    Raises MissingKey for a key variable that is not set, SettingsError for a kind that is not known or a policy that
    its kind cannot use.
    """
    lane = _build(policy, _key(policy, os.environ if environ is None else environ))
    if policy.can_recall and not isinstance(lane, CanRecall):
        raise SettingsError(
            f"lanes.{policy.name}.recall: found {policy.recall}, and a lane of kind {policy.kind!r} cannot be asked"
            " what became of a call; leave it out, or use kind: chat"
        )
    return lane


def _build(policy: LanePolicy, key: str) -> Lane:
    if policy.kind in _BUILT_IN:
        return _BUILT_IN[policy.kind](policy, key)
    if policy.kind == "callable":
        raise SettingsError(f"lanes.{policy.name}: a callable is given in code: Queue.drain(lanes=…); see kind: python")
    if not policy.kind:
        raise SettingsError(
            f"lanes.{policy.name}: has no kind; it serves drill, report and router only, to drain it say kind: chat"
        )
    added = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if policy.kind not in added:
        known = ", ".join(sorted({*_BUILT_IN, *added}))
        raise SettingsError(f"lanes.{policy.name}.kind: unknown kind {policy.kind!r}; known kinds: {known}")
    return _from_entry_point(added[policy.kind], policy)


def _from_entry_point(point: EntryPoint, policy: LanePolicy) -> Lane:
    try:
        lane = point.load()(policy)
    except MillpondError:
        raise
    except Exception as error:  # A package's own code: whatever it raises, its lane cannot be built.
        raise SettingsError(
            f"lanes.{policy.name}: the entry point {point.value} of kind {policy.kind!r} failed:"
            f" {type(error).__name__}: {error}"
        ) from error
    if not isinstance(lane, Lane):
        raise SettingsError(
            f"lanes.{policy.name}: the entry point {point.value} gave {type(lane).__name__}, not a Lane"
        )
    return lane


def _key(policy: LanePolicy, environ: Mapping[str, str]) -> str:
    """The lane's key; "" for a lane without one. Blanks around it are dropped: files end in a newline."""
    if not policy.key_env:
        return ""
    key = environ.get(policy.key_env, "").strip()
    if not key:
        raise MissingKey(
            f"lane {policy.name!r} needs the key in {policy.key_env}, which is not set;"
            f" set it with: export {policy.key_env}=…"
        )
    return key


def _chat(policy: LanePolicy, key: str) -> Lane:
    from millpond.lanes.chat import ChatLane

    return ChatLane(policy, key)


def _command(policy: LanePolicy, key: str) -> Lane:
    from millpond.lanes.command import CommandLane

    return CommandLane(policy, key)


def _python(policy: LanePolicy, key: str) -> Lane:
    from millpond.lanes.callable import PythonLane

    return PythonLane(policy, key)


_BUILT_IN: Mapping[str, Callable[[LanePolicy, str], Lane]] = {"chat": _chat, "command": _command, "python": _python}
