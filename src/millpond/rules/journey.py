"""One lease, from grant to settlement, as a generator of effects. The order of the steps stands here and nowhere else:

    LookBack -> (Recall -> Settle -> Post) -> (Resolve -> Post)
        -> Admit -> Reserve -> Record -> Call -> (Detach -> Listen) -> Settle -> Post

The drainer performs each effect and sends back what it found; a simulation does the same and may die at any `yield`.
A ledger row is durable (Record) before anything leaves (Call). The spend book is another database, and no transaction
spans both, so the order makes a death between any two steps harmless: money is reserved before the row that it is for,
and the row says what is owed before it is posted; what is left over on either side is found again (engine.bookkeeping).
A worker of one's own takes the same way in two parts:
`approach` up to the ledger row, and `call` from there.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from millpond.rules.admission import Admitted, NotNow
from millpond.rules.effects import (
    ACCEPT,
    UNROUTED,
    Admit,
    Call,
    Charge,
    Detach,
    Effect,
    Facts,
    Give,
    Heard,
    Instead,
    Listen,
    LookBack,
    Post,
    Recall,
    Record,
    Recorded,
    Release,
    Reserve,
    Reserved,
    Resolve,
    Settle,
    Silence,
    StopListening,
    Then,
)
from millpond.rules.errors import LeaseLost
from millpond.rules.evidence import Absent, Unknown
from millpond.rules.job import Lease
from millpond.rules.policy import Policy
from millpond.rules.recall import proven
from millpond.rules.router import Exhausted, Past, Step, Tried, Undecided, decided, hold_ms, next_lane
from millpond.rules.verdict import end, verdict

NO_PAST = Facts(Past(), attempts_made=0, attempts_granted=0)
"""Of a job that was never tried; nothing is read for it."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """A job whose ledger row is written: its call may leave."""

    tried: tuple[Tried, ...]
    step: Step
    recorded: Recorded


def journey(lease: Lease, policy: Policy, order: Sequence[str]) -> Generator[Effect, Any, None]:
    """Take one leased job as far as it goes now. `order`: the lanes that may serve it, in order of preference."""
    cleared = yield from approach(lease, policy, order)
    if cleared is not None:
        yield from call(lease, policy, order, cleared)


def approach(lease: Lease, policy: Policy, order: Sequence[str]) -> Generator[Effect, Any, Cleared | None]:
    """From the grant to the ledger row. None: there is no call to make, and the job was moved."""
    facts: Facts = (yield LookBack()) if lease.has_history else NO_PAST
    undecided, tried = facts.past.undecided, decided(facts.past, policy)
    for one in undecided:
        if one.askable_age_ms is not None and (yield from recall(one, one.askable_age_ms, policy)):
            return None
    choices = [policy.after_hold(one.lane) for one in undecided]
    if "ask" in choices:
        yield Give(Then("ask"))
        return None
    step = next_lane(tried, policy, order)
    if facts.attempts_made >= policy.max_attempts_per_job + facts.attempts_granted:
        step = Exhausted(f"attempts: lifetime cap of {facts.attempts_made} attempts reached")
    for one, choice in zip(undecided, choices, strict=True):  # nothing is paid again for a job that fails
        yield from _post((yield Resolve(one.uid, one.lane, "fail" if isinstance(step, Exhausted) else choice)))
    if isinstance(step, Exhausted):
        yield Give(Then("fail", reason=step.reason))
        return None
    if step.lane != lease.lane:
        yield Give(Then("release", next_lane=step.lane))
        return None
    admission: Admitted | NotNow = yield Admit(step.lane)
    if isinstance(admission, NotNow):
        yield Give(Then("release"))  # the closed lane keeps it; no row is written again until the lane opens
        return None
    reserved: Reserved = yield Reserve(step.lane)
    try:
        recorded: Recorded | Instead = yield Record(step.lane, reserved.uid)
    except LeaseLost:
        yield Release(reserved.uid)
        raise
    if isinstance(recorded, Instead):
        yield Release(reserved.uid)
        return None
    return Cleared(tried, step, recorded)


def recall(one: Undecided, age_ms: int, policy: Policy) -> Generator[Effect, Any, bool]:
    """Ask the lane before the policy decides. True: the attempt ended on evidence, and the job was moved by that."""
    said: Heard | Absent | Unknown = yield Recall(one.uid, one.lane, age_ms)
    if (proof := proven(said, policy, policy.lane(one.lane), one.code)) is None:
        return False
    # Where it is no answer its history decides: that has grown.
    then = ACCEPT if proof.ending.outcome == "ok" else Then("release", next_lane=UNROUTED)
    yield from _post((yield Settle(one.uid, one.lane, proof.ending, then, proof.how)))
    return True


def call(lease: Lease, policy: Policy, order: Sequence[str], cleared: Cleared) -> Generator[Effect, Any, None]:
    """Make the call and settle it; past the soft timeout the job goes on and the call is only listened to.

    Of a call that is only listened to, the end moves no job. One that waits for it is given the pause all the same that
    the lane is owed.
    """
    lane, uid = policy.lane(cleared.step.lane), cleared.recorded.uid
    heard: Heard | Silence = yield Call(uid, lane.name, cleared.recorded.attempt_no, lane.soft_timeout_ms)
    if isinstance(heard, Silence):
        hold = hold_ms(lane, policy, lease.service_class, lease.due_ms, heard.now_ms)
        yield Detach(uid, hold)
        if hold > 0:
            heard = yield Listen(uid, lane.name, hold)
            if isinstance(heard, Silence):
                yield StopListening(uid)
        if isinstance(heard, Silence):
            heard = yield Listen(uid, lane.name, None)
        assert isinstance(heard, Heard)
        ending = end(heard, lane, policy)
        pause = verdict(ending, cleared.tried, policy, order, cleared.step, heard.chance).delay_ms
        yield from _post((yield Settle(uid, lane.name, ending, Then(None, delay_ms=pause))))
        return
    ending = end(heard, lane, policy)
    then = verdict(ending, cleared.tried, policy, order, cleared.step, heard.chance)
    yield from _post((yield Settle(uid, lane.name, ending, then)))


def _post(charge: Charge | None) -> Generator[Effect, Any, None]:
    """Post what the ledger now says that an attempt costs, if it says so."""
    if charge is not None:
        yield Post(charge)
