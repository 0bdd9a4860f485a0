"""The money in a Summary: right by every kind of price, unknown where any of it is, and the same as the report's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from millpond import Policy, Queue, Reply, Summary
from millpond.engine import drain as engine_drain
from millpond.engine import tab
from millpond.engine.drain import Drainer
from millpond.report.words import usd
from millpond.rules.evidence import Evidence
from millpond.rules.job import Usage
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule, cost
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held

OPENAI = "https://api.openai.com/v1"
USAGE = Usage(1_000, 200)
BY_CALL = PriceRule("stated", call_usd=Decimal("0.01"))
BY_TOKEN = PriceRule("stated", Decimal("0.50"), Decimal(2))
AUTO = PriceRule("auto")
LISTED = cost(USAGE, AUTO, model="gpt-5-mini", base_url=OPENAI)
assert LISTED is not None
CUT = Evidence(sent="yes", failure="reset")


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "pond", policy=Policy(backoff=Backoff(1, 5), idle_exit_ms=200)) as queue:
        yield queue


def lane(price: PriceRule, script: Sequence[Any] = (), *, then: Any = "ok", **policy: Any) -> ScriptedLane:
    made = LanePolicy("paid", kind="callable", price=price, base_url=OPENAI, model="gpt-5-mini")
    return ScriptedLane(replace(made, **policy), script, then=then)


def drain(queue: Queue, *lanes: ScriptedLane) -> Summary:
    """Drain, and hold the summary against the report of this queue, which had no other drain."""
    summary = queue.drain(lanes=list(lanes))
    queue.policy = Policy({one.policy.name: one.policy for one in lanes})
    report = queue.report()
    assert summary.spent_usd == report.spent.known_usd
    assert summary.unpriced == report.spent.unpriced + report.undecided + report.estimated.calls
    assert summary.paid_twice == report.paid_twice.calls
    if summary.paid_twice_usd is None:
        assert report.paid_twice.unpriced
    else:
        assert report.paid_twice.known_usd == summary.paid_twice_usd
    assert summary.saved_by_dedup == report.saved.calls
    assert summary.saved_usd == (None if report.saved.unpriced else report.saved.known_usd)
    assert (summary.tokens_in, summary.untold) == (report.tokens_in, report.untold)
    for name, part in summary.by_lane.items():
        assert part.spent_usd == report.by_lane[name].spent.known_usd
    assert sum(part.unpriced for part in summary.by_lane.values()) == summary.unpriced
    assert sum(part.untold for part in summary.by_lane.values()) == summary.untold
    return summary


@pytest.mark.parametrize(
    ("price", "usage", "a_call"),
    [
        (FREE, USAGE, Decimal(0)),
        (FREE, Usage(), Decimal(0)),
        (BY_CALL, Usage(), Decimal("0.01")),
        (BY_TOKEN, USAGE, Decimal("0.0009")),
        (BY_TOKEN, Usage(1_000, None), None),
        (AUTO, USAGE, LISTED.usd),
        (AUTO, Usage(), None),
        (replace(AUTO, provider="nobody"), USAGE, None),
        (UNKNOWN_PRICE, USAGE, None),
    ],
)
def test_what_was_spent_and_saved_by_each_kind_of_price(
    queue: Queue, price: PriceRule, usage: Usage, a_call: Decimal | None
) -> None:
    """Four requests of two works: two calls, and two that were saved."""
    queue.enqueue_many(["a", "a", "a", "b"])
    summary = drain(queue, lane(price, then=Reply("yes", usage=usage)))
    assert (summary.done, summary.saved_by_dedup) == (2, 2)
    if a_call is None:
        assert (summary.spent_usd, summary.unpriced, summary.saved_usd) == (0, 2, None)
        assert "spent $0.00 + 2 calls unpriced · saved by dedup 2 (unknown)" in summary.in_words()
    else:
        assert (summary.spent_usd, summary.unpriced, summary.saved_usd) == (2 * a_call, 0, 2 * a_call)


@pytest.mark.parametrize(
    ("price", "limit", "worst"),
    [
        (FREE, None, "none"),
        (BY_CALL, None, Decimal("0.01")),
        (BY_TOKEN, 4_096, "known"),
        (BY_TOKEN, None, None),
        (UNKNOWN_PRICE, 4_096, None),
    ],
)
def test_what_may_be_paid_twice_by_each_kind_of_price(
    queue: Queue, price: PriceRule, limit: int | None, worst: Any
) -> None:
    queue.enqueue("a")
    one = lane(price, [CUT, Reply("yes", usage=USAGE)], after_hold="same", max_output_tokens=limit, max_attempts=3)
    summary = drain(queue, one)
    assert summary.done == 1
    if worst == "none":
        assert (summary.paid_twice, summary.paid_twice_usd, summary.unpriced) == (0, 0, 0)
    elif worst == "known":
        assert summary.paid_twice_usd is not None
        assert Decimal("0.008") < summary.paid_twice_usd < Decimal("0.009")  # 4,096 tokens out, and few in
    else:
        assert (summary.paid_twice, summary.paid_twice_usd) == (1, worst)


def test_the_prompts_own_limit_bounds_the_worst_case_where_the_lane_has_none(queue: Queue) -> None:
    queue.enqueue({"task": "a", "params": {"max_tokens": 1_000}})
    model = {"kind": "chat", "after_hold": "same", "max_attempts": 3}
    summary = drain(queue, lane(BY_TOKEN, [CUT, Reply("yes", usage=USAGE)], **model))
    assert summary.paid_twice_usd is not None
    assert Decimal("0.002") < summary.paid_twice_usd < Decimal("0.003")


def test_calls_that_were_paid_again_are_counted_for_good_as_the_drain_goes_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon in an outage keeps no list of them all, and its figures are the ledger's nevertheless."""
    monkeypatch.setattr(tab, "KEPT", 3)
    monkeypatch.setattr(engine_drain, "TEND_MS", 5)
    queue.enqueue_many([f"{n}" for n in range(7)])
    one = lane(BY_CALL, [CUT] * 13 + [Held(Reply("yes"))], after_hold="same", max_attempts=2, max_in_flight=1)

    async def run(drainer: Drainer) -> Summary:
        running = asyncio.create_task(drainer.run())
        await one.began(14)
        for _ in range(20_000):  # the tending tells nobody of it
            if drainer.tab.counted_again:
                break
            await asyncio.sleep(0.001)
        assert drainer.tab.counted_again
        one.let_go()
        return await running

    with queue.draining(lanes=[one]) as drainer:
        summary = asyncio.run(run(drainer))
    queue.policy = Policy({"paid": one.policy})
    assert summary.paid_twice == queue.report().paid_twice.calls > 3
    assert summary.paid_twice_usd == summary.paid_twice * Decimal("0.01")


def test_a_refusal_that_says_what_it_used_is_unpriced_where_its_price_is_unknown(queue: Queue) -> None:
    queue.enqueue("a")
    refused = Evidence(sent="yes", said="permanent", usage=USAGE)
    summary = drain(queue, lane(UNKNOWN_PRICE, [refused]))
    assert (summary.failed, summary.spent_usd, summary.unpriced) == (1, 0, 1)
    assert "spent $0.00 + 1 call unpriced · " in summary.in_words()


@pytest.mark.parametrize(
    ("late", "second", "let_go_after"),
    [("retryable", "ok", "done"), ("ok", "permanent", "failed")],
)
def test_a_call_that_was_given_up_is_judged_by_what_it_brings(
    queue: Queue, late: Any, second: Any, let_go_after: str
) -> None:
    """The first lane's call is given up, and the second asked. If that answers and the first is refused, nobody was
    paid for it; if that refuses and the first answers, its reply is the one in force, though the job has failed."""
    queue.enqueue("a", service_class="realtime")
    slow = lane(BY_CALL, [Held(late)], soft_timeout_ms=1, hold_ms={"realtime": 1}, pin_on=frozenset({"ambiguous"}))
    other = lane(BY_CALL, [second], name="second")

    def tell(happening: Any) -> None:
        if happening.kind == let_go_after:
            slow.let_go()

    policy = Policy({"paid": slow.policy, "second": other.policy}, idle_exit_ms=200)
    with queue.draining(policy, lanes=[slow, other], tell=tell) as drainer:
        summary = asyncio.run(drainer.run())
    assert (summary.done, summary.failed) == (int(second == "ok"), int(second != "ok"))
    assert (summary.paid_twice, summary.paid_twice_usd) == (0, 0)
    assert queue.report().paid_twice.calls == 0


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (BY_CALL, "spent $0.00 + 2 calls of unknown end, at most $0.0200 · "),
        (UNKNOWN_PRICE, "spent $0.00 + 2 calls of unknown end, at an unknown cost · "),
        (FREE, "spent $0.00 · "),
    ],
)
def test_a_call_of_unknown_end_is_not_told_as_one_without_a_price(queue: Queue, price: PriceRule, said: str) -> None:
    queue.enqueue_many(["a", "b"])
    summary = drain(queue, lane(price, [CUT, CUT], after_hold="ask"))
    assert said in summary.in_words()


@pytest.mark.parametrize("how", ["cancelled", "cancelled and forgotten", "failed", "decided", "pinned to no lane"])
def test_a_call_is_paid_again_when_its_work_is_called_for_again_whoever_asked(queue: Queue, how: str) -> None:
    after_hold: Any = {"failed": "fail", "pinned to no lane": "pin"}.get(how, "ask")
    one = lane(BY_CALL, [CUT], after_hold=after_hold, max_attempts=1)
    job_id = queue.enqueue("a").job_id
    assert drain(queue, one).paid_twice == 0, "one call was made"
    if how.startswith("cancelled"):
        queue.cancel([job_id])
        if how.endswith("forgotten"):
            queue.reconcile()
        queue.enqueue("a")
    elif how == "decided":
        queue.decide(job_id, "same")
    else:
        queue.retry([job_id])
    assert queue.report().paid_twice.calls == 0, "one call was made still"
    summary, before = queue.drain(lanes=[one]), queue.report().paid_twice.calls
    assert (summary.done, summary.paid_twice, summary.paid_twice_usd) == (1, 1, Decimal("0.01"))
    queue.reconcile()  # its worst case is booked, where nobody had decided it yet
    paid_twice = queue.report().paid_twice
    assert (before, paid_twice.calls, paid_twice.known_usd) == (1, 1, Decimal("0.01"))


def test_a_call_that_nobody_was_paid_for_pays_for_nothing_twice(queue: Queue) -> None:
    queue.enqueue("a")
    one = lane(BY_CALL, [CUT, "retryable", "permanent"], after_hold="same", max_attempts=3)
    assert (drain(queue, one).failed, queue.report().attempts) == (1, 3)
    assert queue.report().paid_twice.calls == 0


def test_tokens_that_nobody_told_are_not_taken_for_none(queue: Queue) -> None:
    queue.enqueue_many(["a", "b"])
    summary = drain(queue, lane(FREE, [Reply("yes", usage=Usage(30, 5)), Reply("yes")]))
    assert (summary.untold, summary.by_lane["paid"].untold) == (1, 1)
    assert "at least 17 tokens/artifact" in summary.in_words()
    queue.enqueue("c")
    assert "tokens/artifact" not in queue.drain(lanes=lane(FREE, [Reply("yes")])).in_words()


@pytest.mark.parametrize(
    ("amount", "words"),
    [
        (None, "unknown"),
        ("0", "$0.00"),
        ("0.00000001", "< $0.0001"),
        ("0.0001", "$0.0001"),
        ("0.0999", "$0.0999"),
        ("1234.5", "$1,234.50"),
    ],
)
def test_only_nothing_is_shown_as_nothing(amount: str | None, words: str) -> None:
    assert usd(None if amount is None else Decimal(amount)) == words


def test_calls_that_cost_less_than_a_micro_dollar_are_told_as_the_ledger_holds_them(queue: Queue) -> None:
    """Each is rounded up: a book may show more than was paid, by a dollar in a million calls, and never less."""
    tiny = PriceRule("stated", Decimal("0.02"), Decimal(0))
    queue.enqueue_many([f"duck {n}" for n in range(50)])
    summary = drain(queue, lane(tiny, then=Reply("Yes.", usage=Usage(1, 1))))
    assert summary.spent_usd == Decimal("0.000050") == sum(row.cost or 0 for row in queue.ledger())
