"""The ledger in words: the two published queries over it, and beside each the number that it was meant to be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from millpond.report.words import columns, counted, number, usd
from millpond.rules.policy import Policy
from millpond.rules.price import from_micro
from millpond.rules.times import age_words, show_ms, took_words
from millpond.store.store import Store
from millpond.store.sums import DUPLICATES_SHOWN, Sums


@dataclass(frozen=True, slots=True)
class Money:
    """What so many calls cost: the known part in USD, and how many calls it leaves out because nobody knows theirs."""

    calls: int
    known_usd: Decimal
    unpriced: int

    def in_words(self) -> str:
        """`$0.37`, `$0.37 + 2 unpriced`, `unknown`."""
        if not self.unpriced:
            return usd(self.known_usd)
        return f"{usd(self.known_usd)} + {self.unpriced:,} unpriced" if self.unpriced < self.calls else "unknown"


@dataclass(frozen=True, slots=True)
class Published:
    """The two queries that *Stop Lane Thrash* published, as printed, over the views `job_rollup` and `job_attempt`.

    `tokens_per_artifact` adds up the artifacts of all jobs, so that one which several jobs share counts several times,
    and takes a call that told no usage for one of 0 tokens. `cross_lane_per_job` is the share of jobs that were ever on
    both tiers. None where there is nothing to divide by.
    """

    tokens_per_artifact: float | None
    cross_lane_per_job: float | None
    duplicates: Mapping[str, int]
    """Key -> artifacts, where there are several; at most 20 keys. The schema keeps it empty."""


@dataclass(frozen=True, slots=True)
class LaneReport:
    """One lane's part of the ledger."""

    attempts: int
    in_flight: int
    """Attempts that have not ended yet."""
    ok: int
    ambiguous: int
    """Attempts whose end is still unknown."""
    undecided: int
    """Those of them that may have cost something and that nobody has decided: that is reserved, and in no sum."""
    ambiguous_once: int
    """Those, and the ones whose reply came after they were given up."""
    ambiguous_rate: float | None
    """`ambiguous_once` as a share (0 to 1) of the attempts that count: all that ended but saturated and lane_down."""
    saturated: int
    executions: int
    """Attempts that did the work, or may have done it: ok, unusable and ambiguous ones."""
    tokens_in: int
    tokens_out: int
    """Tokens that were told."""
    untold: int
    """Executions whose tokens were not told, in full or in part."""
    spent: Money
    """What is booked on evidence. `calls` are all executions but the undecided ones, whose price is not what lacks."""
    estimated: Money
    """Worst cases, booked for calls whose end is unknown and which policy decided. They are not in `spent`."""
    paid_twice: Money
    late: int
    """Replies that came after their call was given up as ambiguous."""
    late_after_hold: int
    """Those of them that came when the hold was over, too."""
    lost: int
    """Good replies that are not in force, since another had come before."""
    p50_ms: int | None
    p95_ms: int | None
    """Duration of good answers, in ms from the ledger row to its end; nearest rank over the newest 10,000."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the ledger adds up to, since its oldest row. Money in USD, times in ms; unknown is None or counted beside.

    `paid_twice` counts calls beyond the one that answers which may have been billed: good replies that lost, and
    ambiguous calls after which the same work was called for again, whoever asked for that; those that surely cost
    nothing are not among them. `saved` counts requests that were joined or reused and have their
    answer. Calls of a lane that is priced 0 now cost nothing, booked or not.
    """

    now_ms: int
    since_ms: int | None
    """When the oldest attempt of the ledger began; None: it is empty."""
    jobs: int
    """Jobs that made an attempt."""
    attempts: int
    executions: int
    artifacts_in_force: int
    artifacts_retired: int
    duplicate_artifacts: int
    """Keys with two artifacts in force: 0, by a unique index."""
    tokens_in: int
    tokens_out: int
    untold: int
    """Executions whose tokens were not told: the tokens are a lower bound where there are any."""
    tokens_per_artifact: float | None
    """All tokens told, over the artifacts in force; None without an artifact, or where nobody told any tokens."""
    executions_per_artifact: float | None
    """Executions over artifacts in force: 1.0 is each asked once. Rework, losers and retired answers are in it."""
    crossings: int
    """Steps of a job from one lane to another."""
    crossed_jobs: int
    """Jobs with at least one."""
    crossings_per_job: float | None
    in_flight: int
    undecided: int
    spent: Money
    estimated: Money
    paid_twice: Money
    late: int
    late_after_hold: int
    lost: int
    joined: int
    reused: int
    """Requests of either kind that have an answer."""
    saved: Money
    published: Published
    by_lane: Mapping[str, LaneReport]

    def in_words(self) -> str:
        """One screen."""
        if self.since_ms is None:
            return "the ledger is empty: nothing was sent yet"
        head = (
            f"{counted(self.jobs, 'job')}, {counted(self.attempts, 'attempt')} since {show_ms(self.since_ms)}"
            f" ({age_words(self.now_ms - self.since_ms)})"
        )
        lines = [head, "", *columns(self._figures()), "", *columns(self._lanes()), ""]
        return "\n".join([*lines, "as the published queries count", *columns(self._published())])

    def _figures(self) -> Iterator[tuple[str, str, str]]:
        found = self.tokens_in + self.tokens_out
        per_artifact = ("at least " if self.untold and found else "") + number(self.tokens_per_artifact, 1)
        untold = f", {counted(self.untold, 'execution')} told none" if self.untold else ""
        yield "tokens/artifact", per_artifact, f"{found:,} tokens{untold}"
        both = f"{counted(self.executions, 'execution')}, {counted(self.artifacts_in_force, 'artifact')} in force"
        retired = f", {self.artifacts_retired:,} retired" if self.artifacts_retired else ""
        yield "executions/artifact", number(self.executions_per_artifact, 2), both + retired
        yield (
            "crossings/job",
            number(self.crossings_per_job, 2),
            f"{self.crossings:,} by {counted(self.crossed_jobs, 'job')}",
        )
        yield "duplicate artifacts", f"{self.duplicate_artifacts:,}", "in force; a unique index keeps it 0"
        yield "paid twice", f"{self.paid_twice.calls:,}", self.paid_twice.in_words()
        late = f"{self.late_after_hold:,} after the hold; {self.lost:,} good replies lost, late or not"
        yield "late replies", f"{self.late:,}", late
        saved = f"{self.saved.in_words()}; {self.joined:,} joined, {self.reused:,} reused"
        yield "saved by dedup", f"{self.saved.calls:,}", saved
        yield "spent", self.spent.in_words(), "; ".join(self._beside_spent())

    def _beside_spent(self) -> Iterator[str]:
        """What the sum leaves out."""
        if self.estimated.calls:
            yield f"and at most {self.estimated.in_words()} for {counted(self.estimated.calls, 'call')} of unknown end"
        if self.undecided:
            yield f"{counted(self.undecided, 'call')} of unknown end not decided yet, and only reserved"
        if self.in_flight:
            yield f"{counted(self.in_flight, 'call')} not over yet, and only reserved"

    def _lanes(self) -> Iterator[tuple[str, ...]]:
        yield ("lane", "attempts", "ok", "ambig", "rate", "sat", "tokens", "spent", "p50", "p95")
        for name, lane in self.by_lane.items():
            rate = "–" if lane.ambiguous_rate is None else f"{lane.ambiguous_rate:.1%}"
            calls = (f"{n:,}" for n in (lane.attempts, lane.ok, lane.ambiguous_once))
            told = lane.tokens_in + lane.tokens_out
            tokens = "unknown" if lane.untold and not told else f"{told:,}" + ("+" if lane.untold else "")
            took = ("–" if ms is None else took_words(ms) for ms in (lane.p50_ms, lane.p95_ms))
            yield (name, *calls, rate, f"{lane.saturated:,}", tokens, lane.spent.in_words(), *took)

    def _published(self) -> Iterator[tuple[str, str, str]]:
        said = self.published
        yield (
            "tokens_per_artifact",
            number(said.tokens_per_artifact, 1),
            "a shared artifact counts once a job, untold tokens count 0",
        )
        yield (
            "cross_lane_per_job",
            number(said.cross_lane_per_job, 3),
            "jobs ever on both tiers, however often; other lanes are not seen",
        )
        more = "+" if len(said.duplicates) == DUPLICATES_SHOWN else ""
        yield (
            "duplicates",
            f"{len(said.duplicates):,}{more}",
            "replies that lost show the artifact in force, so see paid twice",
        )


def build(store: Store, policy: Policy) -> Report:
    """Add the ledger up, in one snapshot: seconds for a million attempts, and no more memory than for ten."""
    free = [name for name, lane in policy.lanes.items() if lane.price.kind == "free"]
    found = store.sums(free)
    lanes = {
        name: _lane(row, found.durations[name], is_free=name in free)
        for name, row in sorted(found.lanes.items(), key=lambda item: _place(item[0], policy))
    }
    of = list(lanes.values())
    in_force = found.artifacts.in_force or 0
    tokens, executions = sum(lane.tokens_in + lane.tokens_out for lane in of), sum(lane.executions for lane in of)
    untold = sum(lane.untold for lane in of)
    joined, reused = found.saved["joined"], found.saved["reused"]
    return Report(
        now_ms=store.now_ms(),
        since_ms=min((row.since_ms for row in found.lanes.values()), default=None),
        jobs=found.rollup.jobs,
        attempts=sum(lane.attempts for lane in of),
        executions=executions,
        artifacts_in_force=in_force,
        artifacts_retired=found.artifacts.accepted - in_force,
        duplicate_artifacts=found.duplicates,
        tokens_in=sum(lane.tokens_in for lane in of),
        tokens_out=sum(lane.tokens_out for lane in of),
        untold=untold,
        tokens_per_artifact=_share(tokens, in_force) if tokens or not untold else None,
        executions_per_artifact=_share(executions, in_force),
        crossings=found.crossings.crossings,
        crossed_jobs=found.crossings.crossed_jobs,
        crossings_per_job=_share(found.crossings.crossings, found.rollup.jobs),
        in_flight=sum(lane.in_flight for lane in of),
        undecided=sum(lane.undecided for lane in of),
        spent=_together(lane.spent for lane in of),
        estimated=_together(lane.estimated for lane in of),
        paid_twice=_together(lane.paid_twice for lane in of),
        late=sum(lane.late for lane in of),
        late_after_hold=sum(lane.late_after_hold for lane in of),
        lost=sum(lane.lost for lane in of),
        joined=joined.requests,
        reused=reused.requests,
        saved=_together(Money(row.requests, from_micro(row.cost), row.unpriced) for row in (joined, reused)),
        published=_published(found),
        by_lane=lanes,
    )


def _lane(row: Any, durations: Any, *, is_free: bool) -> LaneReport:
    unpriced = 0 if is_free else row.unpriced
    again_unpriced = 0 if is_free else row.again_unpriced
    undecided = 0 if is_free else row.undecided
    return LaneReport(
        attempts=row.attempts,
        in_flight=row.in_flight,
        ok=row.ok,
        ambiguous=row.ambiguous,
        undecided=undecided,
        ambiguous_once=row.ambiguous_once,
        ambiguous_rate=_share(row.ambiguous_once, row.counted),
        saturated=row.saturated,
        executions=row.executions,
        tokens_in=row.tokens_in,
        tokens_out=row.tokens_out,
        untold=row.untold,
        spent=Money(row.executions - undecided, from_micro(row.billed), unpriced),
        estimated=Money(row.estimates, from_micro(row.estimated), 0),
        paid_twice=Money(row.again + again_unpriced, from_micro(row.again_cost), again_unpriced),
        late=row.late,
        late_after_hold=row.late_after_hold,
        lost=row.lost,
        p50_ms=durations.p50_ms,
        p95_ms=durations.p95_ms,
    )


def _published(found: Sums) -> Published:
    tokens, crossed = found.rollup.tokens_per_artifact, found.rollup.cross_lane_per_job
    return Published(
        tokens_per_artifact=None if tokens is None else float(tokens),
        cross_lane_per_job=None if crossed is None else float(crossed),
        duplicates={row.idem_key: row.n for row in found.rollup_duplicates},
    )


def _place(lane: str, policy: Policy) -> tuple[int, str]:
    """The user's order, then those that have left it."""
    names = list(policy.lanes)
    return (names.index(lane) if lane in names else len(names), lane)


def _together(amounts: Iterable[Money]) -> Money:
    calls, known, unpriced = 0, Decimal(0), 0
    for one in amounts:
        calls, known, unpriced = calls + one.calls, known + one.known_usd, unpriced + one.unpriced
    return Money(calls, known, unpriced)


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
