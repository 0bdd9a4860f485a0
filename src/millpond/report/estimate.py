"""What it would cost to ask a set of works, before any is accepted: how many would be new, and by lane how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache, reduce
from itertools import islice
from types import TracebackType

from millpond.db.scratch import Scratch
from millpond.report.summary import usd
from millpond.rules.errors import KeyConflict
from millpond.rules.estimate import (
    NO_MONEY,
    NO_TOKENS,
    Span,
    model_of,
    money,
    most_calls,
    output_limit,
    shows_more_than_text,
    tokens_in,
    tokens_out,
)
from millpond.rules.job import Disposition, Prompt, Usage, Work
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import cost, nearest_known
from millpond.rules.router import lanes_for
from millpond.store.bodies import load_work
from millpond.store.enqueue import CHUNK_REQUESTS, Asked, foresee
from millpond.store.looking import Measured
from millpond.store.store import Store

MEASURED_ATTEMPTS = 2_000
"""The newest attempts of the ledger from which the length of answers is measured, whatever their lane."""

ENOUGH_CALLS = 10
"""Answers of the same lane, intent and label from which their own mean counts; below it, that of all of the lane."""

PRICES_KEPT = 50_000
"""Prices of (model, tokens) that are kept, since a price list is slow to ask; most rows of a file are alike."""


@dataclass(frozen=True, slots=True)
class LaneEstimate:
    """What one lane would take for the new jobs that it may serve, if it served them all. Money in USD; None: unknown.

    `low`: each is answered by one call, of the fewest tokens. `expected`: by one call, of the expected tokens.
    `worst`: by as many calls of the most tokens as the lane can bill for a job (`most_calls`).
    """

    lane: str
    jobs: int
    """New jobs that it may serve."""
    first: int
    """Those of them that routing starts here."""
    most_calls: int
    tokens_in: Span[int]
    """Tokens of one call a job."""
    tokens_out: Span[int]
    low_usd: Decimal | None
    expected_usd: Decimal | None
    worst_usd: Decimal | None
    measured_calls: int
    """Answers in the ledger from which the expected tokens out were measured; 0: nothing is expected."""
    notes: tuple[str, ...]
    """Where figures come from, and why others are unknown."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `enqueue` would do now, and what the new jobs would cost, in USD; None: unknown.

    `low_usd`: each on the cheapest lane that may serve it. `expected_usd`: each on the lane where routing starts.
    `worst_usd`: each through all its lanes, with all their attempts.
    """

    new: int
    joined: int
    reused: int
    refused: int
    low_usd: Decimal | None
    expected_usd: Decimal | None
    worst_usd: Decimal | None
    unserved: int
    """New jobs that no configured lane may serve: they cost nothing, and get no answer. They are in no figure."""
    lanes: tuple[LaneEstimate, ...]

    def counts_in_words(self) -> str:
        """`would be: 1,300 new · 12 joined · 7 reused · 0 refused`."""
        return "would be: " + " · ".join(
            f"{getattr(self, name):,} {name}" for name in ("new", "joined", "reused", "refused")
        )

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The table by lane, its heading first, a row for all lanes last where there are several."""
        yield ("lane", "calls", "first", "tokens in", "tokens out", "low", "expected", "worst")
        for lane in self.lanes:
            tokens = (_about(lane.tokens_in.expected), _about(lane.tokens_out.expected))
            amounts = (usd(lane.low_usd), usd(lane.expected_usd), usd(lane.worst_usd))
            yield (lane.lane, f"{lane.jobs:,}", f"{lane.first:,}", *tokens, *amounts)
        if len(self.lanes) > 1:
            amounts = (usd(self.low_usd), usd(self.expected_usd), usd(self.worst_usd))
            yield ("all", f"{self.new - self.unserved:,}", "", "", "", *amounts)

    def notes(self) -> Iterator[str]:
        """What to know of the figures: a line each."""
        for lane in self.lanes:
            yield from (f"{lane.lane}: {note}" for note in lane.notes)
        if self.unserved:
            yield f"no configured lane may serve {self.unserved:,} of them"


def _about(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"~{tokens:,}"


class Foresight:
    """Says of a stream of requests what `enqueue` would answer, and adds up what it would cost. Writes nothing.

    `store` None: there is no queue yet. Memory is bounded: what is new is remembered on disk, and figures are sums.
    """

    def __init__(self, store: Store | None, policy: Policy, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._policy = policy
        self._now_ms = now_ms
        self._new = Scratch()
        self._dispositions: Counter[Disposition] = Counter()
        measured = store.measured_answers(MEASURED_ATTEMPTS) if store is not None else []
        self._sum = _Sum(policy, _Means(measured), now_ms())

    def __enter__(self) -> Foresight:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._new.__exit__(kind, error, at)

    def stream(self, asked: Iterable[Asked]) -> Iterator[Disposition | KeyConflict]:
        """An answer for each request, in their order; what is new is counted into the estimate."""
        requests = iter(asked)
        while chunk := list(islice(requests, CHUNK_REQUESTS)):
            before = self._new.of([one.idempotency_key for one in chunk])
            max_age_ms = self._policy.artifact_max_age_ms
            answers = (
                self._store.foresee(chunk, before, max_age_ms=max_age_ms)
                if self._store is not None
                else foresee(None, chunk, before, now_ms=self._now_ms(), max_age_ms=max_age_ms)
            )
            new = [one for one, answer in zip(chunk, answers, strict=True) if answer == "new"]
            self._new.keep({one.idempotency_key: one.fingerprint for one in new})
            for one in new:
                self._sum.add(load_work(one.body), one.route, one.label, one.lane)
            self._dispositions.update(answer for answer in answers if not isinstance(answer, KeyConflict))
            yield from answers

    def estimate(self, refused: int) -> Estimate:
        """The figures of what was streamed so far; `refused` were refused, by the caller's count."""
        return self._sum.estimate(self._dispositions, refused)


def nothing(refused: int) -> Estimate:
    """The estimate of a file of which nothing would be taken in."""
    return Estimate(0, 0, 0, refused, Decimal(0), Decimal(0), Decimal(0), 0, ())


_Basis = tuple[str, "str | None"] | None
"""What a mean is the mean of: an intent with a label, or (ALL_OF_LANE) all of a lane."""
ALL_OF_LANE: _Basis = None


class _Means:
    """The mean length of answers, as measured: of the same lane, intent and label, else of the lane."""

    def __init__(self, measured: Iterable[Measured]) -> None:
        self._own = {(one.lane, one.route, one.label): one for one in measured if one.calls >= ENOUGH_CALLS}
        self._of_lane: dict[str, tuple[int, int]] = {}
        for one in measured:
            calls, tokens = self._of_lane.get(one.lane, (0, 0))
            self._of_lane[one.lane] = calls + one.calls, tokens + one.tokens_out

    def of(self, lane: str, route: str, label: str | None) -> tuple[float | None, _Basis, int]:
        """The mean, in tokens out, what it is the mean of, and how many calls that is; None from none."""
        own = self._own.get((lane, route, label))
        if own is not None:
            return own.tokens_out / own.calls, (route, label), own.calls
        calls, tokens = self._of_lane.get(lane, (0, 0))
        return (tokens / calls if calls else None), ALL_OF_LANE, calls


@dataclass(slots=True)
class _LaneSum:
    """One lane's running figures, and the reasons why some are unknown."""

    jobs: int = 0
    first: int = 0
    taken: Span[int] = NO_TOKENS
    given: Span[int] = NO_TOKENS
    money: Span[Decimal] = NO_MONEY
    measured: dict[_Basis, int] = field(default_factory=dict[_Basis, int])
    """Calls whose mean was used. Bounded: no more entries than were measured."""
    unmeasured: int = 0
    unbounded: int = 0
    with_pictures: int = 0
    commands: int = 0
    unknown_model: str | None = None


class _Sum:
    """Adds works up, lane by lane."""

    def __init__(self, policy: Policy, means: _Means, now_ms: int) -> None:
        self._policy = policy
        self._means = means
        self._now_ms = now_ms
        self._lanes: dict[str, _LaneSum] = {}
        self._money = NO_MONEY
        self._unserved = 0
        self._price = lru_cache(PRICES_KEPT)(self._priced)

    def add(self, work: Work, route: str, label: str | None, wish: str) -> None:
        """Count one new job, on every lane that may serve it."""
        names = [name for name in lanes_for(work, route, self._policy, wish) if name in self._policy.lanes]
        if not names:
            self._unserved += 1
            return
        taken = tokens_in(work)
        amounts = [self._add(self._policy.lanes[name], work, taken, route, label) for name in names]
        self._lanes[names[0]].first += 1
        together = reduce(Span[Decimal].and_also, amounts)
        lows = [one.low for one in amounts if one.low is not None]
        cheapest = min(lows) if together.low is not None else None
        self._money = self._money.and_also(Span(cheapest, amounts[0].expected, together.worst))

    def _add(self, lane: LanePolicy, work: Work, taken: Span[int], route: str, label: str | None) -> Span[Decimal]:
        kept = self._lanes.setdefault(lane.name, _LaneSum())
        mean, basis, calls = self._means.of(lane.name, route, label)
        limit, model = output_limit(work, lane), model_of(work, lane)
        given = tokens_out(limit, mean) if isinstance(work, Prompt) else Span[int]()
        amount = money(taken, given, most_calls(lane, self._policy), lambda usage: self._price(lane.name, model, usage))
        kept.jobs += 1
        kept.taken, kept.given = kept.taken.and_also(taken), kept.given.and_also(given)
        kept.money = kept.money.and_also(amount)
        if calls:
            kept.measured[basis] = calls
        kept.unmeasured += amount.expected is None and mean is None
        kept.unbounded += amount.worst is None and limit is None
        kept.with_pictures += amount.worst is None and isinstance(work, Prompt) and shows_more_than_text(work)
        kept.commands += amount.low is None and not isinstance(work, Prompt)
        if lane.price.kind == "auto" and amount.low is None and isinstance(work, Prompt):
            kept.unknown_model = kept.unknown_model or model or "(none)"
        return amount

    def _priced(self, name: str, model: str, usage: Usage) -> Decimal | None:
        lane = self._policy.lanes[name]
        found = cost(usage, lane.price, model=model or None, base_url=lane.base_url, when_ms=self._now_ms)
        return found.usd if found is not None else None

    def estimate(self, dispositions: Mapping[Disposition, int], refused: int) -> Estimate:
        lanes = [self._lane(self._policy.lanes[name], kept) for name, kept in self._lanes.items()]
        order = list(self._policy.lanes)
        return Estimate(
            new=dispositions.get("new", 0),
            joined=dispositions.get("joined", 0),
            reused=dispositions.get("reused", 0),
            refused=refused,
            low_usd=self._money.low,
            expected_usd=self._money.expected,
            worst_usd=self._money.worst,
            unserved=self._unserved,
            lanes=tuple(sorted(lanes, key=lambda lane: order.index(lane.lane))),
        )

    def _lane(self, lane: LanePolicy, kept: _LaneSum) -> LaneEstimate:
        calls = kept.measured.get(ALL_OF_LANE) or sum(kept.measured.values())
        return LaneEstimate(
            lane=lane.name,
            jobs=kept.jobs,
            first=kept.first,
            most_calls=most_calls(lane, self._policy),
            tokens_in=kept.taken,
            tokens_out=kept.given,
            low_usd=kept.money.low,
            expected_usd=kept.money.expected,
            worst_usd=kept.money.worst,
            measured_calls=calls,
            notes=tuple(_notes(lane, kept, calls)),
        )


def _notes(lane: LanePolicy, kept: _LaneSum, calls: int) -> Iterator[str]:
    """Where a lane's figures come from, and why some are unknown. A lane that is free needs none."""
    if lane.price.kind == "free":
        return
    if lane.price.kind == "unknown":
        yield f"its price is not set (lanes.{lane.name}.price), so all is unknown"
        return
    if kept.unknown_model is not None:
        near = nearest_known(kept.unknown_model, base_url=lane.base_url, provider=lane.price.provider)
        hint = f"; the nearest known is {near}" if near not in (None, kept.unknown_model) else ""
        yield f"no price is known for model {kept.unknown_model} at its address{hint}"
        return
    if calls and kept.money.expected is not None:
        yield f"expected as in {calls:,} {'call' if calls == 1 else 'calls'} in the ledger"
    if kept.unmeasured:
        yield "expected is unknown: the ledger has no answer of this lane whose tokens were told"
    if kept.unbounded:
        missing = "no max_output_tokens here, no max_tokens there"
        yield f"worst is unknown: nothing limits the output of {kept.unbounded:,} ({missing})"
    if kept.with_pictures:
        yield f"the tokens of pictures and files are unknown, and {kept.with_pictures:,} have some"
    if kept.commands:
        yield f"a command has no tokens to count, and {kept.commands:,} are commands"
