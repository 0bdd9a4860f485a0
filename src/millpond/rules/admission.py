"""Whether a lane takes one more call now: its width. Caps and rates come with the money issue and speak here too."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.rules.policy import LanePolicy


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane carries: calls in flight, detached ones included, and until when it is closed (None: open)."""

    in_flight: int
    closed_until_ms: int | None = None
    needs_person: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """The call may be made."""


@dataclass(frozen=True, slots=True)
class ParkUntil:
    """Not now. `until_ms` is when to ask again; None: when an event or a person opens the lane."""

    until_ms: int | None
    why: str


def room(lane: LanePolicy, load: LaneLoad, now_ms: int) -> int:
    """How many more calls the lane takes now; 0 while it is closed."""
    if load.needs_person or (load.closed_until_ms is not None and load.closed_until_ms > now_ms):
        return 0
    return max((1 if lane.serial else lane.max_in_flight) - load.in_flight, 0)


def admit(lane: LanePolicy, load: LaneLoad, now_ms: int) -> Admitted | ParkUntil:
    """The last look before a ledger row is written: the lane may have closed since the job was leased."""
    if load.needs_person:
        return ParkUntil(None, f"lane {lane.name} is closed until a person opens it")
    if load.closed_until_ms is not None and load.closed_until_ms > now_ms:
        return ParkUntil(load.closed_until_ms, f"lane {lane.name} is closed until {load.closed_until_ms}")
    return Admitted()
