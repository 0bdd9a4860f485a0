"""What a set of works will use and cost, added up lane by lane. What was measured is expected; unknown stays so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, reduce

from millpond.rules import estimate
from millpond.rules.estimate import NO_MONEY, NO_TOKENS, Range
from millpond.rules.job import Prompt, Usage, Work
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import cost
from millpond.rules.router import lanes_for

ENOUGH_CALLS = 10
"""Answers of the same lane, intent and label from which their own mean counts; below it, that of all of the lane."""

PRICES_KEPT = 50_000
"""Prices of (model, tokens) that are kept, since a price list is slow to ask; most rows of a file are alike."""


@dataclass(frozen=True, slots=True)
class Measured:
    """How long answers were, of one lane, route (intent or command type) and label: calls, and all their tokens."""

    lane: str
    route: str
    label: str | None
    calls: int
    tokens_out: int


Basis = tuple[str, "str | None"] | None
"""What a mean is the mean of: a route with a label, or (ALL_OF_LANE) all of a lane."""
ALL_OF_LANE: Basis = None


@dataclass(frozen=True, slots=True)
class Mean:
    """The mean length of some answers, in tokens out; None from no calls."""

    tokens_out: float | None
    basis: Basis
    calls: int


class Means:
    """The mean length of answers, as measured: of the same lane, route and label, else of the lane."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self._own: dict[tuple[str, str, str | None], Measured] = {}
        self._of_lane: dict[str, tuple[int, int]] = {}
        for one in measured:
            if one.calls >= ENOUGH_CALLS:
                self._own[one.lane, one.route, one.label] = one
            calls, tokens = self._of_lane.get(one.lane, (0, 0))
            self._of_lane[one.lane] = calls + one.calls, tokens + one.tokens_out

    def of(self, lane: str, route: str, label: str | None) -> Mean:
        """What an answer of this lane to such work is expected to be like."""
        own = self._own.get((lane, route, label))
        if own is not None:
            return Mean(own.tokens_out / own.calls, (route, label), own.calls)
        calls, tokens = self._of_lane.get(lane, (0, 0))
        return Mean(tokens / calls if calls else None, ALL_OF_LANE, calls)


@dataclass(slots=True)
class LaneTotal:
    """One lane's running figures, a call for each job that it may serve, and how many of them are unknown, and why."""

    jobs: int = 0
    first: int = 0
    """Jobs that routing starts here."""
    tokens_in: Range[int] = NO_TOKENS
    tokens_out: Range[int] = NO_TOKENS
    money: Range[Decimal] = NO_MONEY
    bases: dict[Basis, int] = field(default_factory=dict[Basis, int])
    """The means that were used, and the calls of each. Bounded: no more than were measured."""
    unmeasured: int = 0
    """Jobs whose expected cost is unknown for want of a mean."""
    unlimited: int = 0
    """Jobs whose worst cost is unknown for want of a limit of output."""
    with_pictures: int = 0
    """Jobs whose worst cost is unknown and that show more than text."""
    commands: int = 0
    """Jobs whose cost is unknown since they are commands, and have no tokens."""
    unpriced_model: str | None = None
    """The first model for which the price list has no price; "" where none is named."""

    @property
    def measured_calls(self) -> int:
        """Answers from which the expected tokens out were measured."""
        return self.bases.get(ALL_OF_LANE) or sum(self.bases.values())


class Total:
    """Adds works up. Memory grows with lanes and means, not with works."""

    def __init__(self, policy: Policy, means: Means, now_ms: int) -> None:
        """Prices are those of `now_ms`."""
        self.lanes: dict[str, LaneTotal] = {}
        self.money = NO_MONEY
        """Each job on its cheapest lane, on the lane where routing starts it, through all its lanes."""
        self.unserved = 0
        """Works that no configured lane may serve; they are in no other figure."""
        self._policy = policy
        self._means = means
        self._now_ms = now_ms
        self._price = lru_cache(PRICES_KEPT)(self._priced)

    def add(self, work: Work, route: str, label: str | None, wish: str) -> None:
        """Count one job, on every lane that may serve it."""
        names = [name for name in lanes_for(work, route, self._policy, wish) if name in self._policy.lanes]
        if not names:
            self.unserved += 1
            return
        tokens_in = estimate.tokens_in(work)
        amounts = [self._add(self._policy.lanes[name], work, tokens_in, route, label) for name in names]
        self.lanes[names[0]].first += 1
        together = reduce(Range[Decimal].and_also, amounts)
        lows = [one.low for one in amounts if one.low is not None]
        cheapest = min(lows) if together.low is not None else None
        self.money = self.money.and_also(Range(cheapest, amounts[0].expected, together.worst))

    def _add(
        self, lane: LanePolicy, work: Work, tokens_in: Range[int], route: str, label: str | None
    ) -> Range[Decimal]:
        total = self.lanes.setdefault(lane.name, LaneTotal())
        mean = self._means.of(lane.name, route, label)
        limit, model = lane.output_limit(work), lane.model_for(work)
        is_prompt = isinstance(work, Prompt)
        tokens_out = estimate.tokens_out(limit, mean.tokens_out) if is_prompt else Range[int]()
        calls = estimate.most_calls(lane, self._policy)
        amount = estimate.money(tokens_in, tokens_out, calls, lambda usage: self._price(lane.name, model, usage))
        total.jobs += 1
        total.tokens_in = total.tokens_in.and_also(tokens_in)
        total.tokens_out = total.tokens_out.and_also(tokens_out)
        total.money = total.money.and_also(amount)
        if mean.calls:
            total.bases[mean.basis] = mean.calls
        total.unmeasured += amount.expected is None and mean.tokens_out is None
        total.unlimited += amount.worst is None and limit is None
        total.with_pictures += amount.worst is None and is_prompt and estimate.shows_more_than_text(work)
        total.commands += amount.low is None and not is_prompt
        if lane.price.kind == "auto" and amount.low is None and is_prompt and total.unpriced_model is None:
            total.unpriced_model = model
        return amount

    def _priced(self, name: str, model: str, usage: Usage) -> Decimal | None:
        lane = self._policy.lanes[name]
        found = cost(usage, lane.price, model=model or None, base_url=lane.base_url, when_ms=self._now_ms)
        return found.usd if found is not None else None
