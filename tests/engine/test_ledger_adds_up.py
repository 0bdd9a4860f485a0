"""Report and Summary are the ledger, added up: random histories, and the sums of `millpond --json ledger` by hand."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from millpond import Policy, Queue, Reply, Report, Summary
from millpond.faces.cli import cli
from millpond.lanes.lane import Call
from millpond.rules.evidence import Evidence
from millpond.rules.job import Usage
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import evidence_of

Row = dict[str, Any]

PRICES = {
    "free": FREE,
    "metered": PriceRule("stated", Decimal(1), Decimal(2)),  # whole micro-dollars a token, so that sums are exact
    "flat": PriceRule("stated", call_usd=Decimal("0.01")),
    "dark": UNKNOWN_PRICE,
}
ENDINGS = ("ok", "ok", "ok", "cut", "cut", "unusable", "retryable", "saturated", "refused after work", "permanent")
USAGES = (Usage(7, 11), Usage(3, 5), Usage(7, None), Usage())


class Unsteady(ScriptedLane):
    """Ends each call as chance has it, some of them late. Each good reply has a text that names its attempt."""

    def __init__(self, policy: LanePolicy, rng: random.Random) -> None:
        super().__init__(policy)
        self.rng = rng

    async def call(self, call: Call) -> Evidence:
        ending, usage = self.rng.choice(ENDINGS), self.rng.choice(USAGES)
        await asyncio.sleep(self.rng.choice([0, 0, 0.004, 0.02]))  # the lane's own slowness
        if ending == "ok":
            answer = Reply(f"by {call.uid}", usage=usage)
        elif ending == "unusable":
            return replace(evidence_of("unusable"), usage=usage)
        elif ending == "cut":
            return Evidence(sent="yes", failure="reset")
        elif ending == "refused after work":
            return Evidence(sent="yes", said="permanent", usage=usage)
        else:
            return evidence_of(ending)  # type: ignore[arg-type]
        return replace(evidence_of(answer), request_id=answer.text)


def unsteady_lanes(rng: random.Random) -> list[Unsteady]:
    names = rng.sample(list(PRICES), rng.randint(2, 4))
    return [
        Unsteady(
            LanePolicy(
                name, kind="chat", tier=rng.choice(["free", "paid"]), price=PRICES[name], model="m",
                max_attempts=rng.randint(1, 3), max_output_tokens=rng.choice([None, 50]),
                soft_timeout_ms=rng.choice([None, 2]), hold_ms={"realtime": 5, "batch": rng.choice([0, 2, 50])},
                after_hold=rng.choice(["pin", "same", "same", "fail"]),
            ),
            rng,
        )
        for name in names
    ]  # fmt: skip


def shown(*words: str) -> list[Row]:
    """What a command prints, a JSON object a line."""
    found = CliRunner().invoke(cli, ["--home", "pond", "--json", *words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return [json.loads(line, parse_float=Decimal) for line in found.stdout.splitlines()]


# --- the sums, by hand -----------------------------------------------------------------------------------------------


def worked(row: Row) -> bool:
    return row["outcome"] in {"ok", "unusable", "ambiguous"}


def paid_again(rows: Sequence[Row], since: int = 0) -> list[Row]:
    """Good replies that lost, and calls of unknown end that were paid again, by the calls from so many on."""
    found = [row for row in rows[since:] if row["outcome"] == "ok" and row["artifact_id"] is None]
    for at, row in enumerate(rows):
        key = row["idempotency_key"]
        places = (
            place for place, one in enumerate(rows) if place > at and worked(one) and one["idempotency_key"] == key
        )
        found += [row] if row["outcome"] == "ambiguous" and next(places, -1) >= since else []
    return found


def used(row: Row) -> int:
    return (row["tokens_in"] or 0) + (row["tokens_out"] or 0)


def is_dark(row: Row) -> bool:
    """Whether nobody knows what it cost; a call of a free lane cost nothing, booked or not."""
    return row["cost"] is None and row["lane"] != "free"


def is_undecided(row: Row) -> bool:
    return row["outcome"] == "ambiguous" and row["resolution"] is None


def cost_of(rows: Iterable[Row]) -> Decimal:
    return sum((Decimal(row["cost"] or 0) for row in rows), Decimal(0))


def money(calls: int, rows: Iterable[Row], unpriced: int) -> dict[str, Any]:
    return {"calls": calls, "known_usd": cost_of(rows), "unpriced": unpriced}


def ranked(durations: Sequence[int], percent: int) -> int | None:
    """The smallest one that so many percent do not exceed."""
    return next((ms for at, ms in enumerate(sorted(durations), 1) if at * 100 >= percent * len(durations)), None)


def twice_by_hand(again: Sequence[Row]) -> dict[str, Any]:
    calls = sum(is_dark(row) or (row["cost"] or 0) > 0 for row in again)
    return money(calls, again, sum(map(is_dark, again)))


def lane_by_hand(rows: Sequence[Row], again: Sequence[Row]) -> dict[str, Any]:
    outcomes = Counter(row["outcome"] for row in rows)
    ended = [row for row in rows if row["outcome"] not in {None, "saturated", "lane_down"}]
    once = [row for row in rows if row["outcome"] == "ambiguous" or row["resolution"] is not None]
    good = [row for row in rows if row["outcome"] == "ok"]
    billed = [row for row in rows if not row["cost_is_estimate"]]
    executions = sum(map(worked, rows))
    undecided = [row for row in rows if is_undecided(row) and row["lane"] != "free"]
    told_nothing = [row for row in rows if is_dark(row) and not is_undecided(row) and (worked(row) or used(row) > 0)]
    took = [row["ended_ms"] - row["started_ms"] for row in good]
    estimates = [row for row in rows if row["cost_is_estimate"] and row["cost"] is not None]
    return {
        "attempts": len(rows),
        "in_flight": outcomes[None],
        "ok": outcomes["ok"],
        "ambiguous": outcomes["ambiguous"],
        "undecided": len(undecided),
        "ambiguous_once": len(once),
        "ambiguous_rate": len(once) / len(ended) if ended else None,
        "saturated": outcomes["saturated"],
        "executions": executions,
        "tokens_in": sum(row["tokens_in"] or 0 for row in rows),
        "tokens_out": sum(row["tokens_out"] or 0 for row in rows),
        "untold": sum(worked(row) and None in (row["tokens_in"], row["tokens_out"]) for row in rows),
        "spent": money(executions - len(undecided), billed, len(told_nothing)),
        "estimated": money(len(estimates), estimates, 0),
        "paid_twice": twice_by_hand(again),
        "late": sum(row["resolution"] is not None for row in good),
        "late_after_hold": sum(row["ended_ms"] > (row["hold_until_ms"] or 10**15) for row in good),
        "lost": sum(row["artifact_id"] is None for row in good),
        "p50_ms": ranked(took, 50),
        "p95_ms": ranked(took, 95),
    }


def hold_report(report: Report, rows: Sequence[Row], results: Sequence[Row], in_force: int) -> None:
    """Every figure of a report against the ledger, the results, and what was retired."""
    of = {name: [row for row in rows if row["lane"] == name] for name in {row["lane"] for row in rows}}
    again = paid_again(rows)
    lanes = {name: lane_by_hand(mine, [row for row in again if row["lane"] == name]) for name, mine in of.items()}
    for name, by_hand in lanes.items():
        assert asdict(report.by_lane[name]) == by_hand, name
    assert report.by_lane.keys() == lanes.keys()
    for figure in (
        "attempts",
        "in_flight",
        "undecided",
        "executions",
        "tokens_in",
        "tokens_out",
        "untold",
        "late",
        "late_after_hold",
        "lost",
    ):
        assert getattr(report, figure) == sum(by_hand[figure] for by_hand in lanes.values()), figure
    for figure in ("spent", "estimated", "paid_twice"):
        whole = asdict(getattr(report, figure))
        assert whole == {part: sum(by_hand[figure][part] for by_hand in lanes.values()) for part in whole}, figure
    walks = defaultdict(list[str])
    for row in rows:
        walks[row["job_id"]].append(row["lane"])
    steps = [sum(one != other for one, other in pairwise(walk)) for walk in walks.values()]
    assert (report.jobs, report.crossings, report.crossed_jobs) == (len(walks), sum(steps), sum(map(bool, steps)))
    winners = sum(row["artifact_id"] is not None for row in rows)
    assert (report.artifacts_in_force, report.artifacts_retired) == (in_force, winners - in_force)
    told = sum(map(used, rows))
    if in_force:
        assert report.executions_per_artifact == sum(map(worked, rows)) / in_force
        assert report.tokens_per_artifact == (told / in_force if told or not report.untold else None)
    saved = [one for one in results if one["disposition"] in {"joined", "reused"}]
    calls = {row["request_id"]: row for row in rows if row["request_id"]}
    paid = [calls[one["text"]] for one in saved]
    assert asdict(report.saved) == money(len(saved), paid, sum(map(is_dark, paid)))
    assert report.joined == sum(one["disposition"] == "joined" for one in saved)


def hold_summary(summary: Summary, ledger: Sequence[Row], before: int) -> None:
    """Every figure that a drain has of its calls against their rows."""
    rows = ledger[before:]
    for name, part in summary.by_lane.items():
        mine = [row for row in rows if row["lane"] == name]
        by_hand = lane_by_hand(mine, [])
        for figure in ("attempts", "ok", "ambiguous", "saturated", "tokens_in", "tokens_out", "untold"):
            assert getattr(part, figure) == by_hand[figure], (name, figure)
        assert part.spent_usd == by_hand["spent"]["known_usd"]
        assert part.unpriced == sum(is_dark(row) or row["cost_is_estimate"] for row in mine)
    whole = lane_by_hand(rows, paid_again(ledger, before))
    assert (summary.attempts, summary.tokens_in, summary.tokens_out, summary.untold) == tuple(
        whole[name] for name in ("attempts", "tokens_in", "tokens_out", "untold")
    )
    assert summary.spent_usd == whole["spent"]["known_usd"]
    twice = whole["paid_twice"]
    assert summary.paid_twice == twice["calls"]
    assert summary.paid_twice_usd == (None if twice["unpriced"] else twice["known_usd"])


# --- histories -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(16))
def test_the_figures_are_the_sums_of_the_ledger(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rounds: work comes in, some of it again, afresh, withdrawn or retried; a drain meets what chance brings."""
    monkeypatch.chdir(tmp_path)
    rng = random.Random(seed)
    lanes = unsteady_lanes(rng)
    policy = Policy(
        {one.policy.name: one.policy for one in lanes}, backoff=Backoff(1, 5), idle_exit_ms=50,
        saturated_default_ms=4, saturated_floor_ms=1,
    )  # fmt: skip
    rows: list[Row] = []
    in_force: set[str] = set()
    with Queue.open("pond", policy=policy) as queue:
        for _ in range(3):
            is_fresh = rng.random() < 0.3
            receipts = queue.enqueue_many(rng.choices("abcdefgh", k=rng.randint(1, 9)), fresh=is_fresh)
            if is_fresh:
                in_force -= {queue.job(receipt.job_id).idempotency_key for receipt in receipts}
            if rng.random() < 0.3:
                queue.cancel([receipts[0].job_id])
            if rng.random() < 0.5:
                queue.retry("state:failed")
            summary = queue.drain(lanes=lanes, until_empty=True)
            before = len(rows)
            rows = shown("ledger", "--limit", "100000")
            hold_summary(summary, rows, before)
            in_force |= {row["idempotency_key"] for row in rows[before:] if row["artifact_id"] is not None}
            hold_report(queue.report(), rows, shown("results"), len(in_force))
    assert rows
