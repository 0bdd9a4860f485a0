"""Which lane next, and what follows an outcome. The failure class decides, not the number of retries alone.

The lanes that may serve a job stand in the user's order; routing only ever walks forward along it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from millpond.rules.evidence import Uncalled
from millpond.rules.job import Outcome, Prompt, Resolution, ServiceClass
from millpond.rules.policy import Backoff, LanePolicy, Policy

NOT_COUNTED: frozenset[Outcome] = frozenset({"ok", "saturated", "lane_down"})
"""Outcomes that use up no attempt (OUTCOMES.md, third column)."""

OUR_END: frozenset[str] = frozenset({"died", "given_up"})
"""Codes of ambiguous attempts whose call our own end broke off: the process died, or the drain was stopped."""

UNCALLED: frozenset[str] = frozenset(get_args(Uncalled))
"""Codes of retryable attempts whose call we never made. No lane failed, so none is used up by them."""

NO_BLIND_RETRY = "truncated"
"""The unusable reply that the same cap would only cut again (O04)."""


LANES_NAMED = 5
"""So many lanes are named where none can serve: a reason is one line."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What routing must know of one past attempt of a key."""

    lane: str
    outcome: Outcome
    resolution: Resolution | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class Undecided:
    """An ambiguous attempt that neither evidence nor policy has decided."""

    uid: str
    lane: str
    code: str = ""
    askable_age_ms: int | None = None
    """How long ago its call was recorded, where its lane can be asked for it."""

    def decided(self, choice: Resolution) -> Tried:
        """The same once policy or a person has decided it."""
        return Tried(self.lane, "ambiguous", choice, self.code)


@dataclass(frozen=True, slots=True)
class Past:
    """What was tried for a key, oldest first, and what of it is still undecided."""

    tried: tuple[Tried, ...] = ()
    undecided: tuple[Undecided, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """The lane of the next attempt; `tries` counted attempts were made there already."""

    lane: str
    tries: int = 0


@dataclass(frozen=True, slots=True)
class GivenUp:
    """An undecided attempt of a job that fails: it is decided with it. The lane is None once it has left the policy."""

    uid: str
    lane: LanePolicy | None


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No further attempt: why, as `code: words`."""

    reason: str
    given_up: tuple[GivenUp, ...] = ()


def route_work(work: Any, route: str, wish: str, past: Past, policy: Policy) -> Step | Exhausted:
    """The lane of a job's next attempt, its undecided attempts taken as the policy would decide them.

    Where a lane or a person is to be asked first, or the policy gives up, that is the lane on which the job is leased
    to learn of it.
    """
    order = lanes_for(work, route, policy, wish)
    if order:
        ends = [
            one.lane
            for one in past.undecided
            if one.askable_age_ms is not None or policy.after_hold(one.lane) in ("ask", "fail")
        ]
        step = next_lane(decided(past, policy), policy, order)
        if wish in policy.absent and isinstance(step, Step):  # no other serves while it is the wished one's turn
            its_turn = next_lane(decided(past, policy), replace(policy, absent=frozenset[str]()), order)
            step = its_turn if isinstance(its_turn, Step) and its_turn.lane == wish else step
        if isinstance(step, Exhausted) and ends:
            return Step(ends[0] if ends[0] in order else order[-1])
    else:
        step = Exhausted(f"unfit: no configured lane can serve this work: {why_none(work, route, policy)}")
    if isinstance(step, Exhausted):
        return replace(step, given_up=tuple(GivenUp(one.uid, policy.lanes.get(one.lane)) for one in past.undecided))
    return step


def decided(past: Past, policy: Policy) -> tuple[Tried, ...]:
    """What was tried for a key, its undecided attempts taken as the policy would decide them."""
    return (*past.tried, *(one.decided(policy.after_hold(one.lane)) for one in past.undecided))


def pinned(past: Past) -> Past:
    """What was tried for a key, once a person has pinned all that is undecided of it."""
    return Past((*past.tried, *(one.decided("pin") for one in past.undecided)))


def lanes_for(work: Any, route: str, policy: Policy, wish: str = "") -> tuple[str, ...]:
    """The enabled lanes that may serve this work and declare that they can, in the user's order.

    `route` is its intent or command type. A model that the caller named admits only lanes offering it; schema, tools
    and images only lanes that take them. A command goes to code (`callable`, `python`, `command`), never to a model.
    `wish` is a lane asked for by name: the order begins there, or is that lane alone where routing does not have it.
    Lanes that the settings turn off, or that this policy does not have, are waited for only where no other may serve;
    those that are only absent from a drain keep their place.
    """
    able = [name for name in policy.order_for(route) if name not in policy.lanes or not lacks(policy.lanes[name], work)]
    if wish:
        able = able[able.index(wish) :] if wish in able else [wish]
    present = tuple(name for name in able if name in policy.lanes and policy.lanes[name].enabled)
    return present or tuple(able)


def why_none(work: Any, route: str, policy: Policy) -> str:
    """What each lane that was asked for this work lacks for it, the first few of them."""
    order = policy.order_for(route)
    lacking = [f"{name} {lacks(policy.lanes[name], work)}" for name in order[:LANES_NAMED] if name in policy.lanes]
    more = [f"and {len(order) - LANES_NAMED} more lanes"] if len(order) > LANES_NAMED else []
    return "; ".join([*lacking, *more]) or "there is no lane"


def lacks(lane: LanePolicy, work: Any) -> str:
    """What a lane declares that it cannot do of this work, in words; "" if it can do all of it."""
    if not isinstance(work, Prompt):
        return "" if lane.runs_code else f"is of kind {lane.kind}, and a command wants callable, python or command"
    if work.model is not None and not lane.offers(work.model):
        offered = ", ".join(filter(None, (lane.model, *lane.models))) or "none by name"
        return f"does not offer the model {work.model[:80]!r} (it offers {offered}; its `models` may name more)"
    declared = {
        "takes no schema": not work.schema or lane.supports_schema,
        "takes no tools": not work.tools or lane.supports_tools,
        "takes no images": not work.images or lane.supports_images,
    }
    return next((words for words, can in declared.items() if not can), "")


def next_lane(history: Sequence[Tried], policy: Policy, order: Sequence[str], start: str = "") -> Step | Exhausted:
    """Walk the order by what was tried, oldest first, from `start` on.

    retryable and `same` stay within the lane's max_attempts; a pin, unfit or a spent lane goes one further; permanent
    ends it unless the lane pins on permanent; unusable has its own budget over all lanes. After a call that was decided
    as `fail` there is no other. A lane that is absent from
    this drain is passed over where one further on is there, and waited for where none is.
    """
    if not order:
        return Exhausted("unfit: no configured lane can serve this work")
    at = order.index(start) if start in order else 0
    tries = unusable = 0
    for one in history:
        if one.outcome == "unusable":
            unusable += 1
            if one.code == NO_BLIND_RETRY or unusable >= policy.max_unusable_per_job:
                replies = "reply" if unusable == 1 else "replies"
                return Exhausted(f"{one.code or one.outcome}: {unusable} {replies} not usable, none reused")
        if one.lane not in order or order.index(one.lane) < at or one.outcome in NOT_COUNTED or _is_ours(one, policy):
            continue
        if order.index(one.lane) > at:
            at, tries = order.index(one.lane), 0
        lane = policy.lanes.get(one.lane) or LanePolicy(one.lane)
        pinned = one.outcome in lane.pin_on and (one.outcome != "ambiguous" or one.resolution == "pin")
        if one.outcome == "unusable":
            continue
        if one.outcome == "permanent" and not pinned:
            return Exhausted(f"{one.code or one.outcome}: refused for good by lane {one.lane}")
        tries += 1
        spent = tries >= lane.max_attempts or one.outcome == "unfit"
        if not (pinned or spent):
            continue
        if at + 1 < len(order):
            at, tries = at + 1, 0
        elif spent or one.outcome == "permanent":
            return Exhausted(f"{one.code or one.outcome}: lanes exhausted, last {one.lane} after {tries} attempts")
    if any(one.resolution == "fail" for one in history):  # also where a process died between deciding and giving up
        return Exhausted("ambiguous: outcome unknown, and the policy does not pay again")
    there = next((name for name in order[at:] if name not in policy.absent), order[at])
    return Step(there, tries if there == order[at] else 0)


def _is_ours(one: Tried, policy: Policy) -> bool:
    """Whether a call was never made, or was lost by our own end where trying it again costs nothing.

    A restart is no failure of the lane. It costs nothing on a lane priced 0, and where the lane said that it never had
    the call. The job's lifetime cap of attempts bounds what was called.
    """
    if one.outcome == "retryable" and one.code in UNCALLED:
        return True
    lane = policy.lanes.get(one.lane)
    costs_nothing = one.resolution == "same" and lane is not None and lane.price.kind == "free"
    return one.code in OUR_END and (costs_nothing or one.resolution == "absent")


def backoff_ms(tries: int, backoff: Backoff, chance: float) -> int:
    """The pause after the `tries`-th counted attempt on a lane, from 1; `chance` in [0, 1) adds jitter, never takes."""
    pause = min(backoff.first_ms * 2 ** min(max(tries - 1, 0), 30), backoff.cap_ms)
    return int(pause * (1 + backoff.jitter * chance))


def whole_hold_ms(lane: LanePolicy, policy: Policy, service_class: ServiceClass) -> int:
    """How long an attempt whose end is unknown is held where no due time is to be met: min(hold, late window)."""
    return min(lane.hold_ms.get(service_class, 0), policy.late_completion_window_ms)


def hold_ms(lane: LanePolicy, policy: Policy, service_class: ServiceClass, due_ms: int | None, now_ms: int) -> int:
    """How long an attempt whose end is unknown is held: not past a due time still to be met."""
    hold = whole_hold_ms(lane, policy, service_class)
    if due_ms is not None and due_ms > now_ms:
        hold = min(hold, due_ms - now_ms)
    return hold
