"""What a lane's answer about an earlier call proves, and when the lane is asked again."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from millpond.rules.effects import Ending, EvidenceBy, Heard
from millpond.rules.evidence import Absent, Evidence, Unknown
from millpond.rules.outcome import Classified
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost
from millpond.rules.router import OUR_END
from millpond.rules.verdict import end

NO_WORK = "its lane has no record of the call, and would have one by now: no work was done"

ABSENT = "absent"
"""The code of a call that its lane never had."""

UNSTORABLE = "unstorable"
"""The code of a call whose reply no column can hold. Its lane would say the same again, so it is not asked for it."""


def proves_absence(policy: Policy, lane: LanePolicy, age_ms: int) -> bool:
    """Whether a call of that age that its lane does not list never will be: it can neither run nor settle still."""
    return age_ms >= settled_after_ms(policy, lane)


def settled_after_ms(policy: Policy, lane: LanePolicy) -> int:
    """The age from which a call that is not listed did no work.

    It may have left as late as its lease allowed, have run to its total deadline, and be settling since.
    """
    return policy.lease_ms + lane.deadlines.total_ms + lane.settling_ms


def next_ask_ms(
    policy: Policy, lane: LanePolicy, *, age_ms: int, ended_ms: int, hold_until_ms: int | None, now_ms: int
) -> int:
    """When a lane that is asked now is asked the next time, if its answer settles nothing.

    At growing intervals, none longer than the call is old, whatever the wall clock says; at once when an absence begins
    to prove something, and when the hold ends.
    """
    soonest = now_ms + max(policy.recall_first_ms, min(now_ms - ended_ms, age_ms))
    marks = [now_ms - age_ms + settled_after_ms(policy, lane), *([hold_until_ms] if hold_until_ms is not None else [])]
    return min([soonest, *(mark for mark in marks if mark > now_ms)])


@dataclass(frozen=True, slots=True)
class Proof:
    """How a call ended whose end had been unknown, and how that came to be known."""

    ending: Ending
    how: EvidenceBy


def proven(said: Heard | Absent | Unknown, policy: Policy, lane: LanePolicy, code: str) -> Proof | None:
    """What a lane's answer proves of a call that is unknown by this code; None: it is unknown still."""
    if isinstance(said, Absent):
        return Proof(absence(code), "absent")
    if isinstance(said, Unknown) or (ending := end(said, lane, policy)).outcome == "ambiguous":
        return None
    return Proof(ending, "recalled")


def absence(code: str) -> Ending:
    """The end of a call that its lane never had: nothing was done and nothing costs.

    What our own end broke off keeps its code: that it never arrived is no failure of the lane.
    """
    code = code if code in OUR_END else ABSENT
    classified = Classified("retryable", code, NO_WORK, None, None, "", "recall")
    return Ending(classified, Evidence(said="retryable", code=code, message=NO_WORK), Cost(Decimal(0), "refused"))
