"""What an ending means: for the attempt (`end`), for the bill (`bill`, `worst_bill`), and for the job (`verdict`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from millpond.rules.admission import closing
from millpond.rules.effects import ACCEPT, UNROUTED, Ending, Heard, Then
from millpond.rules.estimate import tokens_in
from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome, Usage
from millpond.rules.outcome import WORKED, Classified, classify
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost, cost, worst_case
from millpond.rules.router import NOT_COUNTED, OUR_END, UNCALLED, Exhausted, Step, Tried, backoff_ms, next_lane


def end(heard: Heard, lane: LanePolicy, policy: Policy) -> Ending:
    """Classify what was heard, price it, and say whether the lane closes for it."""
    classified = classify(
        heard.evidence,
        lane.declared,
        now_ms=heard.now_ms,
        default_delay_ms=policy.saturated_default_ms,
        cap_ms=policy.saturated_cap_ms,
    )
    cost = bill(classified.outcome, heard.evidence, lane, heard.now_ms)
    closes = closing(classified, heard.evidence.model, lane, policy, heard.in_a_row, heard.now_ms, heard.chance)
    return Ending(classified, heard.evidence, cost, closes)


def verdict(
    ending: Ending, tried: Sequence[Tried], policy: Policy, order: Sequence[str], step: Step, chance: float
) -> Then:
    """What the job does after this ending, given what was tried before it."""
    outcome, classified = ending.outcome, ending.classified
    if outcome == "ok":
        return ACCEPT
    if outcome in NOT_COUNTED or (outcome == "retryable" and classified.code in UNCALLED):
        return Then("release", uncounted=True)
    if outcome == "ambiguous":
        return _undecided(ending, tried, policy, order, step, chance)
    if classified.lane_close == "count":
        # A local server that is not running: nothing was sent, and the lane is down rather than the job failed.
        return Then("back_off", delay_ms=backoff_ms(step.tries + 1, policy.backoff, chance), uncounted=True)
    after = next_lane([*tried, Tried(step.lane, outcome, None, classified.code)], policy, order, step.lane)
    if isinstance(after, Exhausted):
        words = f": {classified.message}" if classified.message else ""
        return Then("fail", reason=after.reason + words)
    if after.lane != step.lane:
        return Then("release", next_lane=after.lane)
    return _pause(after.tries, classified, policy, chance)


def _undecided(
    ending: Ending, tried: Sequence[Tried], policy: Policy, order: Sequence[str], step: Step, chance: float
) -> Then:
    """Free the job to be decided: nobody listens and no lane can be asked, so its hold is over at once.

    Where the policy will ask the same lane again, that lane is given a pause first: whatever broke is likely to break
    again, and a Retry-After is meant whether or not it comes with a proof of refusal. What our own end broke off, and a
    lane that closes, need none.
    """
    code, choice = ending.classified.code, policy.after_hold(step.lane)
    if code not in OUR_END and ending.closing is None and choice in ("pin", "same"):
        after = next_lane([*tried, Tried(step.lane, "ambiguous", choice, code)], policy, order, step.lane)
        if isinstance(after, Step) and after.lane == step.lane:
            return _pause(after.tries, ending.classified, policy, chance)
    return Then("release", next_lane=UNROUTED)


def _pause(tries: int, classified: Classified, policy: Policy, chance: float) -> Then:
    """The same lane again, after the backoff or the delay that the server states, whichever is longer."""
    return Then("back_off", delay_ms=max(backoff_ms(tries, policy.backoff, chance), classified.delay_ms or 0))


def bill(outcome: Outcome, evidence: Evidence, lane: LanePolicy, now_ms: int) -> Cost | None:
    """What the call costs: by its usage where it did work, 0 where it was provably refused, unknown where that is."""
    if outcome == "ambiguous":
        return Cost(Decimal(0), "free") if lane.price.kind == "free" else None
    usage = evidence.usage or (evidence.reply.usage if evidence.reply else Usage())
    if outcome not in WORKED and not (usage.tokens_in or usage.tokens_out):
        return Cost(Decimal(0), "refused")  # a refusal that says what it used is billed for it
    model = evidence.model or lane.model or None
    return cost(usage, lane.price, model=model, base_url=lane.base_url, when_ms=now_ms)


@dataclass(frozen=True, slots=True)
class Worst:
    """The most that a call whose end is unknown can have cost, None where nobody knows; `is_certain`: it costs that."""

    cost: Cost | None = None
    is_certain: bool = False


def worst_of(work: object, lane: str, now_ms: int, policy: Policy) -> Worst:
    """The most that a call on a lane of the policy can have cost. One that has left it took its price with it."""
    known = policy.lanes.get(lane)
    if known is None:
        return Worst()
    return Worst(worst_bill(work, known, now_ms), known.price.kind == "free")


def worst_bill(work: object, lane: LanePolicy, now_ms: int) -> Cost | None:
    """The most that a call whose end is unknown can have cost; None where price or output is unbounded.

    The same bounds as an estimate's worst, for one call.
    """
    return worst_case(
        tokens_in(work).worst,
        lane.output_limit(work),
        lane.price,
        model=lane.model_for(work) or None,
        base_url=lane.base_url,
        when_ms=now_ms,
    )
