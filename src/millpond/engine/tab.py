"""What a drain has done so far, kept as it goes: the figures of its Summary."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any

from millpond.report.summary import LaneSummary, Reason, Summary
from millpond.rules.admission import NOTHING_YET, InARow
from millpond.rules.effects import Ending
from millpond.rules.job import Outcome, Usage
from millpond.rules.outcome import MAY_BE_BILLED
from millpond.rules.price import Cost
from millpond.store.reader import PAGE_ROWS

KEPT = 10_000
"""Calls of unknown end that are remembered, to be counted anew once their end is known: some 3 MB. What ended further
back is known to the ledger: evidence that comes so late is counted there, and here as an attempt of its own."""


@dataclass(slots=True)
class LaneTab:
    """One lane's running figures; `in_flight` counts journeys that hold a slot, detached ones included."""

    in_flight: int = 0
    attempts: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    tokens_in: int = 0
    tokens_out: int = 0
    untold: int = 0
    spent: Decimal = Decimal(0)
    unpriced: int = 0
    in_a_row: InARow = NOTHING_YET

    def summary(self) -> LaneSummary:
        """The same as a frozen value."""
        return LaneSummary(
            attempts=self.attempts,
            ok=self.outcomes["ok"],
            ambiguous=self.outcomes["ambiguous"],
            saturated=self.outcomes["saturated"],
            tokens_in=self.tokens_in,
            tokens_out=self.tokens_out,
            untold=self.untold,
            spent_usd=self.spent,
            unpriced=self.unpriced,
        )


@dataclass(frozen=True, slots=True)
class _Counted:
    """What of an ending is counted: its reply may be megabytes, and is not."""

    outcome: Outcome
    tokens_in: int | None
    tokens_out: int | None
    cost: Cost | None
    worst: Cost | None
    """What it can have cost at most, where its end is unknown."""


@dataclass(slots=True)
class Tab:
    """A drain's running figures."""

    lanes: dict[str, LaneTab]
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    skipped: int = 0
    past_hold: dict[str, bool] = field(default_factory=dict[str, bool])
    """Calls under way that are only listened to, since their jobs go on without them, and whether it is counted already
    how they ended: their lane may have been asked for it."""
    recalled: int = 0
    """Answers that lanes were asked for, since nobody had heard them."""
    given_up: int = 0
    """Calls of unknown end that were decided since nobody waited for them."""
    unasked: dict[str, str] = field(default_factory=dict[str, str])
    """Lanes that could not be asked when that was last tried -> why."""
    unknown: dict[str, _Counted] = field(default_factory=dict[str, _Counted])
    """Attempts that were counted as ambiguous, as long as nothing more is known of them: the last KEPT."""
    unheard: int = 0
    """Calls of unknown end that may have cost something: `unheard_usd` at most, of `unbounded` nobody knows."""
    unheard_usd: Decimal = Decimal(0)
    unbounded: int = 0
    saved: int = 0
    saved_usd: Decimal | None = Decimal(0)
    again: dict[str, Cost | None] = field(default_factory=dict[str, "Cost | None"])
    """Attempts beyond the one that answered which may have been billed, with what they cost at most; None: unknown.

    The oldest beyond KEPT are to be counted for good (`count_again`)."""
    counted_again: int = 0
    counted_again_usd: Decimal | None = Decimal(0)
    after: dict[str, str] = field(default_factory=dict[str, str])
    """Attempts that may still turn out to cost nothing -> the one of unknown end that each was made after. The last
    KEPT."""

    @property
    def in_flight(self) -> int:
        """Journeys under way over all lanes."""
        return sum(lane.in_flight for lane in self.lanes.values())

    def ended(self, lane: str, uid: str, ending: Ending, worst: Cost | None = None) -> None:
        """An attempt came to an end, or to one that is known where it was unknown before.

        `worst`: what it can have cost at most, if its end is unknown; None: nobody knows.
        """
        if uid in self.past_hold:
            if self.past_hold[uid]:
                return
            self.past_hold[uid] = ending.outcome != "ambiguous"
        if before := self.unknown.pop(uid, None):
            self._count(lane, before, -1)
        counted = _counted(ending, worst)
        if ending.outcome == "ambiguous":
            self.unknown[uid] = counted
            _forget_the_oldest(self.unknown)
        self._count(lane, counted, 1)
        tab = self.lanes[lane]
        tab.in_a_row = tab.in_a_row.and_then(ending.classified)
        if ending.outcome not in ("ok", "ambiguous"):
            self.again.pop(uid, None)  # it brought nothing, so another call of its key had to be paid for anyway
        if ending.outcome != "ambiguous":
            before_it = self.after.pop(uid, "")
            if ending.outcome not in MAY_BE_BILLED:
                self.again.pop(before_it, None)  # the call after it was not paid for, so it was not paid for twice yet

    def _count(self, lane: str, one: _Counted, times: int) -> None:
        tab = self.lanes[lane]
        tab.attempts += times
        tab.outcomes[one.outcome] += times
        tab.tokens_in += times * (one.tokens_in or 0)
        tab.tokens_out += times * (one.tokens_out or 0)
        tab.untold += times * (one.outcome in MAY_BE_BILLED and None in (one.tokens_in, one.tokens_out))
        if one.cost is not None:
            tab.spent += times * one.cost.usd
        else:  # a refusal without usage is priced 0, so whatever has no price here did work
            tab.unpriced += times
        if one.cost is None and one.outcome == "ambiguous":
            self.unheard += times
            self.unbounded += times * (one.worst is None)
            self.unheard_usd += times * (one.worst.usd if one.worst is not None else 0)

    def answered(self, requests: int, cost: Cost | None) -> None:
        """A job became done by a call of this cost; all its requests but the first were saved a call of their own."""
        self.done += 1
        self.saved += max(requests - 1, 0)
        if requests > 1 and self.saved_usd is not None:
            self.saved_usd = self.saved_usd + cost.usd * (requests - 1) if cost is not None else None

    def in_force(self, uid: str) -> None:
        """Its reply answers its key, though it may have been taken for lost, and whether or not a job waits for it."""
        self.again.pop(uid, None)

    def called_after(self, uid: str, cost: Cost | None, later: str) -> None:
        """The same work is called for again after a call of unknown end: both may be billed, whoever decided that."""
        self.after[later] = uid
        _forget_the_oldest(self.after)
        self.paid_again(uid, cost)

    def paid_again(self, uid: str, cost: Cost | None) -> None:
        """A call beyond the one that answers may have been billed. One that surely cost nothing is not counted."""
        if cost is None or cost.usd:
            self.again[uid] = cost
        else:
            self.again.pop(uid, None)

    @property
    def paid_twice(self) -> int:
        """Calls beyond the one that answered, as far as this drain knows."""
        return self.counted_again + len(self.again)

    def oldest_again(self) -> list[str]:
        """A page of `again` that is to be counted for good; none while there are few."""
        return list(islice(self.again, PAGE_ROWS)) if len(self.again) > KEPT else []

    def count_again(self, uids: Iterable[str], beyond: Container[str]) -> None:
        """Count some for good. `beyond`: those of which the ledger says so, whoever received what came of the rest."""
        for uid in uids:
            if uid in self.again and uid in beyond:
                self.counted_again += 1
                self.counted_again_usd = _sum([self.again[uid]], self.counted_again_usd)
            self.again.pop(uid, None)

    def summary(self, reason: Reason, counts: dict[str, int], next_due_ms: int | None) -> Summary:
        """The figures, with what the queue holds now."""
        lanes = {name: tab.summary() for name, tab in self.lanes.items()}
        return Summary(
            done=self.done,
            failed=self.failed,
            cancelled=self.cancelled,
            waiting=counts["waiting"],
            held=counts["held"],
            ready=counts["ready"],
            leased=counts["leased"],
            offloaded=counts["offloaded"],
            skipped=self.skipped,
            recalled=self.recalled,
            given_up=self.given_up,
            next_due_ms=next_due_ms,
            attempts=sum(lane.attempts for lane in lanes.values()),
            tokens_in=sum(lane.tokens_in for lane in lanes.values()),
            tokens_out=sum(lane.tokens_out for lane in lanes.values()),
            untold=sum(lane.untold for lane in lanes.values()),
            spent_usd=sum((lane.spent_usd for lane in lanes.values()), Decimal(0)),
            unpriced=sum(lane.unpriced for lane in lanes.values()),
            unknown=self.unheard,
            unknown_usd=None if self.unbounded else self.unheard_usd,
            saved_by_dedup=self.saved,
            saved_usd=self.saved_usd,
            paid_twice=self.paid_twice,
            paid_twice_usd=_sum(self.again.values(), self.counted_again_usd),
            by_lane=lanes,
            reason=reason,
        )


def _forget_the_oldest(known: dict[str, Any]) -> None:
    if len(known) > KEPT:
        del known[next(iter(known))]


def _counted(ending: Ending, worst: Cost | None) -> _Counted:
    evidence = ending.evidence
    usage = evidence.usage or (evidence.reply.usage if evidence.reply else Usage())
    return _Counted(ending.outcome, usage.tokens_in, usage.tokens_out, ending.cost, worst)


def _sum(costs: Iterable[Cost | None], total: Decimal | None) -> Decimal | None:
    """All of them with what came before, None as soon as one is unknown."""
    for cost in costs:
        if cost is None or total is None:
            return None
        total += cost.usd
    return total
