"""Whether a lane takes one more call now: its width, and when it closes. Caps and rates will speak here too."""

from __future__ import annotations

from dataclasses import dataclass

from millpond.rules.outcome import Classified
from millpond.rules.policy import LanePolicy, Policy


@dataclass(frozen=True, slots=True)
class LaneLoad:
    """What a lane carries: calls in flight, detached ones included, and until when it is closed (None: open)."""

    in_flight: int
    closed_until_ms: int | None = None
    needs_person: bool = False

    def is_closed(self, now_ms: int) -> bool:
        """Whether it takes no call now."""
        return self.needs_person or (self.closed_until_ms is not None and self.closed_until_ms > now_ms)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The call may be made."""


@dataclass(frozen=True, slots=True)
class NotNow:
    """The lane has closed since the job was leased, or the drain is stopping: the job is given back untouched."""


def room(lane: LanePolicy, load: LaneLoad, now_ms: int) -> int:
    """How many more calls the lane takes now; 0 while it is closed."""
    return 0 if load.is_closed(now_ms) else max(lane.width - load.in_flight, 0)


def admit(load: LaneLoad, now_ms: int) -> Admitted | NotNow:
    """The last look before a ledger row is written: the lane may have closed since the job was leased."""
    return NotNow() if load.is_closed(now_ms) else Admitted()


@dataclass(frozen=True, slots=True)
class InARow:
    """What a lane did just before: closings for want of room since its last good reply, refused connections."""

    saturations: int = 0
    refusals: int = 0

    def and_then(self, classified: Classified) -> InARow:
        """The same after one more ending."""
        return InARow(
            saturations=0 if classified.outcome == "ok" else self.saturations + (classified.lane_close == "until"),
            refusals=self.refusals + 1 if classified.lane_close == "count" else 0,
        )


NOTHING_YET = InARow()


@dataclass(frozen=True, slots=True)
class Closing:
    """A lane closes: until `until_ms`, or (None) until a person opens it."""

    until_ms: int | None
    reason: str
    by: str


JITTER_SHARE = 0.1
"""Up to this share of a closing is added by chance, so that drainers do not come back as one. Ours."""


def closing(
    classified: Classified,
    model: str | None,
    lane: LanePolicy,
    policy: Policy,
    in_a_row: InARow,
    now_ms: int,
    chance: float,
) -> Closing | None:
    """Whether an ending closes its lane, until when and why. `model` is the one that the evidence names.

    A lane that says "not now" again and again is asked less and less often, whatever it says of when; one that refuses
    connection after connection is down for a while, rather than burn attempts.
    """
    message = classified.message.removeprefix(f"{classified.code}: ")
    why = f"{classified.code}: {message}".strip(": ")
    if classified.lane_close == "until":
        stated_ms = classified.delay_ms if classified.delay_ms is not None else policy.saturated_default_ms
        doubled_ms = policy.saturated_floor_ms * 2 ** min(in_a_row.saturations, 20)
        floor_ms = max(min(doubled_ms, policy.saturated_default_ms), policy.saturated_floor_ms)
        jitter_ms = int(stated_ms * JITTER_SHARE * chance)
        return Closing(now_ms + max(stated_ms + jitter_ms, floor_ms), why, "saturated")
    own_model = classified.lane_close == "model" and model in (None, lane.model)
    if classified.lane_close == "person" or own_model:
        return Closing(None, why, "down")
    if classified.lane_close == "count" and in_a_row.refusals + 1 >= policy.lane_down_after:
        times = in_a_row.refusals + 1
        return Closing(now_ms + policy.lane_down_probe_ms, f"connection refused {times} times in a row", "down")
    return None
