"""The third seed's rule as one policy of the router: two attempts on the free lane, then the paid; a pin is final."""

from __future__ import annotations

from typing import Literal, cast

from millpond.rules.job import Outcome
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.router import Step, Tried
from millpond.rules.router import next_lane as walk

Tier = Literal["free", "paid"]

POLICY = Policy(
    lanes={
        "free": LanePolicy("free", max_attempts=2, pin_on=frozenset({"ambiguous", "permanent"})),
        "paid": LanePolicy("paid", tier="paid", max_attempts=1),
    }
)
"""The seed's lane.yaml, as far as routing goes."""


def next_lane(free_attempts: int, pinned: bool, last_outcome: str) -> tuple[Tier, bool]:
    """The lane of the next attempt and whether the job is pinned to it, after `free_attempts` on the free lane."""
    earlier = [Tried("free", "retryable")] * max(free_attempts - 1, 0)
    last = [Tried("free", cast("Outcome", last_outcome), "pin")] if free_attempts else []
    step = walk([*earlier, *last], POLICY, ("free", "paid"), "paid" if pinned else "")
    assert isinstance(step, Step)
    return cast("Tier", step.lane), step.lane == "paid"
