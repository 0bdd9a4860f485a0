"""Lanes that a drain does not have."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from opened import Open, command

from millpond import Ambiguous, Prompt, Retryable, SettingsError, UsageError
from millpond.report.left import why_left
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import PriceRule

CENT = PriceRule("stated", call_usd=Decimal("0.01"))
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}


def test_a_drain_leaves_work_that_only_another_lane_may_serve_where_it_is(open_queue: Open) -> None:
    queue = open_queue(
        command("text", supports_schema=False), command("cloud"), routing={"private": ("text",), "off": ("text",)}
    )
    shaped = queue.enqueue(Prompt("a", schema=SCHEMA)).job_id
    private = queue.enqueue(Prompt("b", intent="private")).job_id
    wished = queue.enqueue(Prompt("c"), lane="cloud").job_id
    queue.drain(lanes=["text"])
    assert [queue.job(job).state for job in (shaped, private, wished)] == ["ready", "done", "ready"]
    queue.drain(lanes="cloud")
    assert [queue.job(job).settled_by for job in (private, wished)] == ["text", "cloud"]


def test_work_routed_to_a_disabled_lane_alone_waits_and_goes_nowhere_else(open_queue: Open) -> None:
    queue = open_queue(command("own", enabled=False), command("cloud"), routing={"private": ("own",)})
    job = queue.enqueue(Prompt("a", intent="private")).job_id
    assert queue.drain().ready == 1
    assert queue.job(job).state == "ready"
    with pytest.raises(UsageError, match="lane 'own' is disabled"):
        queue.drain(lanes="own")


def test_a_drain_with_one_lane_takes_what_it_may_serve_of_another_lanes_work(open_queue: Open) -> None:
    queue = open_queue(command("first"), command("second"))
    queue.enqueue("a")
    assert queue.drain(lanes=["second"]).by_lane["second"].ok == 1


def python(name: str, does: str, **more: Any) -> LanePolicy:
    return LanePolicy(name, kind="python", target=f"{__name__}:{does}", price=CENT, **more)


def breaks(_work: Prompt) -> str:
    raise Retryable("not today")


def vanishes(_work: Prompt) -> str:
    raise Ambiguous("who knows")


def answers(_work: Prompt) -> str:
    return "an answer"


def test_work_that_waits_for_another_lane_is_not_failed_by_a_drain_without_it(open_queue: Open) -> None:
    """Its own lane is spent, and a drain that lacks the next one neither tries again nor gives up."""
    queue = open_queue(python("free", "breaks"), python("paid", "answers"), backoff=Backoff(0, 0))
    job = queue.enqueue("a").job_id
    spent = queue.drain(lanes=["free"], until_empty=True)
    assert (spent.attempts, spent.failed, spent.ready, queue.job(job).next_lane) == (2, 0, 1, "paid")
    again = queue.drain(lanes=["free"], until_empty=True)
    assert (again.attempts, again.failed, again.ready) == (0, 0, 1)
    assert list(why_left(queue.store, queue.policy, {"free"}, str)) == [
        "lane paid was not drained, since this drain did not have it; 1 job ready for it"
    ]
    assert queue.drain().done == 1


def test_a_drain_without_the_next_lane_does_not_pay_again_on_its_own(open_queue: Open) -> None:
    queue = open_queue(python("a", "vanishes", max_attempts=4), python("b", "answers"), backoff=Backoff(0, 0))
    queue.enqueue("a")
    for _ in range(2):
        assert queue.drain(lanes=["a"], until_empty=True).ready == 1
    assert [attempt.lane for attempt in queue.ledger()] == ["a"]
    assert queue.drain().done == 1
    assert [(attempt.lane, attempt.resolution) for attempt in queue.ledger()] == [("a", "pin"), ("b", None)]


def test_what_a_drain_with_the_dearer_lane_left_goes_to_the_first_lane_again(open_queue: Open) -> None:
    """A pilot of one job on the paid lane does not send the rest of the backlog there."""
    queue = open_queue(python("free", "answers"), python("paid", "answers"))
    queue.enqueue_many(f"work {n}" for n in range(6))
    assert queue.drain(lanes=["paid"], max_jobs=1).by_lane["paid"].ok == 1
    rest = queue.drain()
    assert rest.by_lane["free"].ok == 5


def test_a_job_that_fails_takes_its_last_unknown_call_with_it_at_its_worst_cost(open_queue: Open) -> None:
    queue = open_queue(python("a", "vanishes", max_attempts=2), backoff=Backoff(0, 0))
    job = queue.enqueue("a").job_id
    summary = queue.drain(until_empty=True)
    assert (summary.failed, summary.paid_twice, summary.paid_twice_usd) == (1, 1, Decimal("0.01"))
    rows = [(one.resolution, one.cost, one.cost_is_estimate) for one in queue.ledger()]
    assert rows == [("pin", Decimal("0.01"), True), ("fail", Decimal("0.01"), True)]
    assert queue.job(job).cost == Decimal("0.02")


def test_a_lane_that_asks_asks_though_its_attempts_are_spent(open_queue: Open) -> None:
    queue = open_queue(python("a", "vanishes", max_attempts=1, after_hold="ask"))
    job = queue.enqueue("a").job_id
    queue.drain(until_empty=True)
    assert (queue.job(job).state, queue.job(job).wait_reason) == ("waiting", "asked")


def test_work_that_comes_during_a_drain_with_lanes_of_its_own_is_served(open_queue: Open) -> None:
    queue = open_queue(command("free"))

    def first(work: Prompt) -> str:
        if work.task == "first":
            queue.enqueue("second")
        return "done"

    queue.enqueue("first")
    assert queue.drain(lanes=first).done == 2


def test_a_lane_is_named_once_in_a_route(open_queue: Open) -> None:
    with pytest.raises(SettingsError, match="wanted each lane once"):
        open_queue(command("a"), routing={"x": ("a", "a")})


def test_jobs_that_no_lane_can_serve_count_as_failed(open_queue: Open) -> None:
    queue = open_queue(command("text", supports_schema=False))
    queue.enqueue(Prompt("a", schema=SCHEMA))
    assert queue.drain().failed == 1
