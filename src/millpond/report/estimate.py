"""What `enqueue` would do with a set of works, and what the new jobs would cost: the figures, and the same in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from millpond.report.words import columns, counted, usd
from millpond.rules.estimate import Range, most_calls
from millpond.rules.job import Disposition
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import nearest_known
from millpond.rules.total import LaneTotal, Total


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
    tokens_in: Range[int]
    """Tokens of one call a job."""
    tokens_out: Range[int]
    low_usd: Decimal | None
    expected_usd: Decimal | None
    worst_usd: Decimal | None
    measured_calls: int
    """Answers in the ledger from which the expected tokens out were measured; 0: nothing is expected."""
    notes: tuple[str, ...]
    """Where figures come from, and why others are unknown."""

    @classmethod
    def of(cls, lane: LanePolicy, total: LaneTotal, policy: Policy) -> LaneEstimate:
        """A lane's figures as they stand."""
        return cls(
            lane=lane.name,
            jobs=total.jobs,
            first=total.first,
            most_calls=most_calls(lane, policy),
            tokens_in=total.tokens_in,
            tokens_out=total.tokens_out,
            low_usd=total.money.low,
            expected_usd=total.money.expected,
            worst_usd=total.money.worst,
            measured_calls=total.measured_calls,
            notes=tuple(_notes(lane, total)),
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """What `enqueue` would do now, and what the new jobs would cost, in USD; None: unknown.

    `low_usd`: each on the cheapest lane that may serve it. `expected_usd`: each on the lane where routing starts.
    `worst_usd`: each through all its lanes, with all their attempts; it alone is a bound.
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

    @classmethod
    def of(cls, total: Total, policy: Policy, dispositions: Mapping[Disposition, int], refused: int) -> Estimate:
        """The figures as they stand; lanes in the user's order."""
        return cls(
            new=dispositions.get("new", 0),
            joined=dispositions.get("joined", 0),
            reused=dispositions.get("reused", 0),
            refused=refused,
            low_usd=total.money.low,
            expected_usd=total.money.expected,
            worst_usd=total.money.worst,
            unserved=total.unserved,
            lanes=tuple(
                LaneEstimate.of(lane, total.lanes[name], policy)
                for name, lane in policy.lanes.items()
                if name in total.lanes
            ),
        )

    def in_words(self) -> str:
        """What would become of the works, the table by lane, and what to know of its figures."""
        kinds = [f"{getattr(self, name):,} {name}" for name in ("new", "joined", "reused", "refused")]
        table = columns(self._rows()) if self.lanes else []
        return "\n".join(["would be: " + " · ".join(kinds), *table, *self._notes()])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """The table by lane, its heading first, a row for all lanes last where there are several."""
        yield ("lane", "calls", "first", "tokens in", "tokens out", "low", "expected", "worst")
        for lane in self.lanes:
            tokens = (_about(lane.tokens_in.expected), _about(lane.tokens_out.expected))
            amounts = (usd(lane.low_usd), usd(lane.expected_usd), usd(lane.worst_usd))
            yield (lane.lane, f"{lane.jobs:,}", f"{lane.first:,}", *tokens, *amounts)
        if len(self.lanes) > 1:
            amounts = (usd(self.low_usd), usd(self.expected_usd), usd(self.worst_usd))
            yield ("all", f"{self.new - self.unserved:,}", "", "", "", *amounts)

    def _notes(self) -> Iterator[str]:
        for lane in self.lanes:
            yield from (f"{lane.lane}: {note}" for note in lane.notes)
        if self.unserved:
            yield f"no configured lane may serve {self.unserved:,} of them"


def _about(tokens: int | None) -> str:
    return "unknown" if tokens is None else f"~{tokens:,}"


def _notes(lane: LanePolicy, total: LaneTotal) -> Iterator[str]:
    """Where a lane's figures come from, and why some are unknown. A lane that is free needs none."""
    if lane.price.kind == "free":
        return
    if lane.price.kind == "unknown":
        yield f"its price is not set (lanes.{lane.name}.price), so all is unknown"
        return
    if total.unpriced_model is not None:
        model = total.unpriced_model or "(none)"
        near = nearest_known(model, base_url=lane.base_url, provider=lane.price.provider)
        hint = f"; the nearest known is {near}" if near not in (None, model) else ""
        yield f"no price is known for model {model} at its address{hint}"
        return
    if total.measured_calls and total.money.expected is not None:
        yield f"expected as in {counted(total.measured_calls, 'call')} in the ledger"
    if total.unmeasured:
        yield "expected is unknown: the ledger has no answer of this lane whose tokens were told"
    if total.unlimited:
        missing = "no max_output_tokens here, no max_tokens there"
        yield f"worst is unknown: nothing limits the output of {total.unlimited:,} ({missing})"
    if total.with_pictures:
        yield f"the tokens of pictures and files are unknown, and {total.with_pictures:,} have some"
    if total.commands:
        yield f"a command has no tokens to count, and {total.commands:,} are commands"
