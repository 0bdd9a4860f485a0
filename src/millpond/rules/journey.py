"""One lease, from grant to settlement, as a generator of effects. The order of the steps stands here and nowhere else:

    LookBack -> (Resolve) -> Admit -> Record -> Call -> (Detach -> Listen) -> Settle

The drainer performs each effect and sends back what it found; a simulation does the same and may die at any `yield`.
A ledger row is durable (Record) before anything leaves (Call).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from millpond.rules.admission import Admitted, ParkUntil
from millpond.rules.identity import canonical
from millpond.rules.job import Lease, Outcome, Prompt, Usage
from millpond.rules.lifecycle import Move
from millpond.rules.outcome import Classified, Evidence, classify
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost, cost, worst_case
from millpond.rules.router import (
    NOT_COUNTED,
    Exhausted,
    Past,
    Step,
    Tried,
    backoff_ms,
    hold_ms,
    next_lane,
)

# --- what the journey asks for ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookBack:
    """Read the earlier attempts of the key. Answer: Facts."""


@dataclass(frozen=True, slots=True)
class Resolve:
    """Decide an ambiguous attempt whose hold is over, by the lane's after_hold (`pin`, `same` or `fail`)."""

    uid: str
    lane: str
    choice: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask whether the lane takes a call now. Answer: Admitted or ParkUntil."""

    lane: str


@dataclass(frozen=True, slots=True)
class Record:
    """Write the ledger row, durably, under the fence. Answer: Recorded, or Instead."""

    lane: str


@dataclass(frozen=True, slots=True)
class Call:
    """Make the call. Answer: Heard, or Silence once `soft_timeout_ms` is over and the call still runs."""

    uid: str
    lane: str
    attempt_no: int
    soft_timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Detach:
    """Let the job go on without its call: the attempt is ambiguous, held for `hold_ms`, and still listened to."""

    uid: str
    hold_ms: int


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for a detached call, at most `for_ms` (None: until its own total deadline). Answer: Heard or Silence."""

    uid: str
    for_ms: int | None


@dataclass(frozen=True, slots=True)
class StopListening:
    """The hold is over: nobody waits for this call any more, though its reply is still received if it comes."""

    uid: str


@dataclass(frozen=True, slots=True)
class Settle:
    """End the attempt on evidence, store and accept its reply, move the job, close the lane: one transaction."""

    uid: str
    lane: str
    ending: Ending
    then: Then


@dataclass(frozen=True, slots=True)
class Give:
    """Give the leased job back without a call."""

    then: Then


Effect = LookBack | Resolve | Admit | Record | Call | Detach | Listen | StopListening | Settle | Give

# --- what comes back ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What the store knows of a key's past, and of the job's budget."""

    past: Past
    attempts_made: int
    attempts_granted: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """The open attempt."""

    uid: str
    attempt_no: int


@dataclass(frozen=True, slots=True)
class Instead:
    """No row was written and nothing may be sent: the job was answered by an artifact, or is held."""

    by: Literal["answered", "held"]


@dataclass(frozen=True, slots=True)
class Heard:
    """The call ended. `now_ms` is when, on the wall clock; `chance` in [0, 1) was drawn for the backoff's jitter."""

    evidence: Evidence
    now_ms: int
    chance: float


@dataclass(frozen=True, slots=True)
class Silence:
    """The time given is over and the call still runs."""

    now_ms: int


# --- what is decided ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Closing:
    """A lane closes: until `until_ms`, or (None) until a person opens it."""

    until_ms: int | None
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: what the table said of the evidence, and the evidence itself."""

    classified: Classified
    evidence: Evidence
    cost: Cost | None = None
    """What the provider charges for it; None is unknown."""
    closing: Closing | None = None

    @property
    def outcome(self) -> Outcome:
        """The attempt's outcome."""
        return self.classified.outcome


@dataclass(frozen=True, slots=True)
class Then:
    """What the job does next. None: it waits for no move of ours (an accepted reply moves it, or its hold does)."""

    move: Move | None
    next_lane: str | None = None
    delay_ms: int | None = None
    """From now; the store adds its clock."""
    reason: str | None = None
    uncounted: bool = False


ACCEPT = Then(None)

UNROUTED = ""
"""The next lane of a job that must be routed by its history before it is leased again."""


def journey(lease: Lease, policy: Policy, order: Sequence[str]) -> Generator[Effect, Any, None]:
    """Take one leased job as far as it goes now. `order`: the lanes that may serve it, in order of preference."""
    tried: tuple[Tried, ...] = ()
    if lease.has_history:
        facts: Facts = yield LookBack()
        tried = facts.past.tried
        for one in facts.past.undecided:
            choice = policy.after_hold(one.lane)
            if choice == "ask":
                yield Give(Then("ask"))
                return
            yield Resolve(one.uid, one.lane, choice)
            if choice == "fail":
                yield Give(Then("fail", reason="ambiguous: outcome unknown, and the policy does not pay again"))
                return
            tried = (*tried, Tried(one.lane, "ambiguous", choice))
        if facts.attempts_made >= policy.max_attempts_per_job + facts.attempts_granted:
            yield Give(Then("fail", reason=f"attempts: lifetime cap of {facts.attempts_made} attempts reached"))
            return
    step = next_lane(tried, policy, order, lease.lane)
    if isinstance(step, Exhausted):
        yield Give(Then("fail", reason=step.reason))
        return
    if step.lane != lease.lane:
        yield Give(Then("release", next_lane=step.lane))
        return
    admission: Admitted | ParkUntil = yield Admit(step.lane)
    if isinstance(admission, ParkUntil):
        yield Give(Then("release"))  # the closed lane keeps it; no row is written again until the lane opens
        return
    recorded: Recorded | Instead = yield Record(step.lane)
    if isinstance(recorded, Instead):
        return
    yield from _call(lease, policy, order, tried, step, recorded)


def _call(
    lease: Lease, policy: Policy, order: Sequence[str], tried: tuple[Tried, ...], step: Step, recorded: Recorded
) -> Generator[Effect, Any, None]:
    """Make the call and settle it; past the soft timeout the job goes on and the call is only listened to."""
    lane, uid = policy.lane(step.lane), recorded.uid
    heard: Heard | Silence = yield Call(uid, lane.name, recorded.attempt_no, lane.soft_timeout_ms)
    if isinstance(heard, Silence):
        hold = hold_ms(lane, policy, lease.service_class, lease.due_ms, heard.now_ms)
        yield Detach(uid, hold)
        if hold > 0:
            heard = yield Listen(uid, hold)
            if isinstance(heard, Silence):
                yield StopListening(uid)
        if isinstance(heard, Silence):
            heard = yield Listen(uid, None)
        assert isinstance(heard, Heard)
        yield Settle(uid, lane.name, end(heard, lane, policy), ACCEPT)
        return
    ending = end(heard, lane, policy)
    yield Settle(uid, lane.name, ending, verdict(ending, tried, policy, order, step, heard.chance))


def end(heard: Heard, lane: LanePolicy, policy: Policy) -> Ending:
    """Classify what was heard, and say whether the lane closes for it."""
    classified = classify(
        heard.evidence,
        retry_500=lane.retry_500,
        exceptions_harmless=lane.kind == "command" and not lane.effects,
        local=is_local(lane),
        idempotency=lane.idempotency,
        now_ms=heard.now_ms,
        default_delay_ms=policy.saturated_default_ms,
        cap_ms=policy.saturated_cap_ms,
    )
    cost = bill(classified.outcome, heard.evidence, lane, heard.now_ms)
    return Ending(classified, heard.evidence, cost, _closing(classified, heard, lane, policy))


def bill(outcome: Outcome, evidence: Evidence, lane: LanePolicy, now_ms: int) -> Cost | None:
    """What the call costs: by its usage where it did work, 0 where it was provably refused, unknown where that is."""
    if outcome in WORKED:
        usage = evidence.usage or (evidence.reply.usage if evidence.reply else Usage())
        model = evidence.model or lane.model or None
        return cost(usage, lane.price, model=model, base_url=lane.base_url, when_ms=now_ms)
    if outcome == "ambiguous":
        return None
    if evidence.usage is not None and (evidence.usage.tokens_in or evidence.usage.tokens_out):
        return cost(evidence.usage, lane.price, model=evidence.model or lane.model or None, base_url=lane.base_url,
                    when_ms=now_ms)  # fmt: skip  # a refusal that says what it used is a refusal that is billed
    return Cost(Decimal(0), "refused")


def worst_bill(work: Any, lane: LanePolicy, now_ms: int) -> Cost | None:
    """The most that a call whose end is unknown can have cost; None where price or output is unbounded.

    No token is shorter than a byte, so the work's own bytes bound its input; a picture's tokens are not bounded so.
    """
    tokens_in = len(canonical(work)) if isinstance(work, Prompt) and not work.images else None
    return worst_case(
        tokens_in, lane.max_output_tokens, lane.price, model=lane.model or None, base_url=lane.base_url, when_ms=now_ms
    )


WORKED: frozenset[Outcome] = frozenset({"ok", "unusable"})
"""Outcomes whose call is billed by its usage."""


def _closing(classified: Classified, heard: Heard, lane: LanePolicy, policy: Policy) -> Closing | None:
    """What the lane itself does; "count" is left to the drainer, which sees the calls of a lane in a row."""
    message = classified.message.removeprefix(f"{classified.code}: ")
    why = f"{classified.code}: {message}".strip(": ")
    if classified.lane_close == "until":
        delay = classified.delay_ms if classified.delay_ms is not None else policy.saturated_default_ms
        jitter = int(
            delay * policy.backoff.jitter * heard.chance * 0.2
        )  # added only, so that waiters do not return as one
        return Closing(heard.now_ms + delay + jitter, why, "saturated")
    own_model = classified.lane_close == "model" and heard.evidence.model in (None, lane.model)
    if classified.lane_close == "person" or own_model:
        return Closing(None, why, "down")
    return None


def is_local(lane: LanePolicy) -> bool:
    """Whether the lane is a server on this machine: one that refuses connections is not running, not busy."""
    host = lane.base_url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    return host.startswith(("127.", "localhost", "[::1]"))


def verdict(
    ending: Ending, tried: Sequence[Tried], policy: Policy, order: Sequence[str], step: Step, chance: float
) -> Then:
    """What the job does after this ending, given what was tried before it."""
    outcome, classified = ending.outcome, ending.classified
    if outcome == "ok":
        return ACCEPT
    if outcome in NOT_COUNTED:
        return Then("release", uncounted=True)
    if outcome == "ambiguous":
        return Then("release", next_lane=UNROUTED)  # nobody listens, no lane can be asked: its hold is over at once
    after = next_lane([*tried, Tried(step.lane, outcome, None, classified.code)], policy, order, step.lane)
    if isinstance(after, Exhausted):
        words = f": {classified.message}" if classified.message else ""
        return Then("fail", reason=after.reason + words)
    if after.lane != step.lane:
        return Then("release", next_lane=after.lane)
    pause = backoff_ms(after.tries, policy.backoff, chance)
    return Then("back_off", delay_ms=max(pause, classified.delay_ms or 0))
