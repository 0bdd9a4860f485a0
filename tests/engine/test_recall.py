"""What a lane remembers of a call that nobody heard: real calls over HTTP, to a server that keeps its answers."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from decimal import Decimal
from typing import Any

import apsw
import pytest
from opened import Open

from millpond import AsyncQueue, Queue
from millpond.drill.faultlane import FaultLane
from millpond.engine import drain, recall, reconciling
from millpond.engine.clock import boot, boot_ms, wall_ms
from millpond.lanes.lane import Call, Question
from millpond.rules.evidence import Evidence, Recalled, Unknown
from millpond.rules.job import Attempt, Prompt, Reply, Usage
from millpond.rules.policy import AfterHold, Deadlines, LanePolicy, Policy
from millpond.rules.price import PriceRule
from millpond.store import reader
from millpond.testing.promises import check_promises
from millpond.testing.scripted_lane import evidence_of

CALL = PriceRule("stated", call_usd=Decimal("0.01"))
SOON = Deadlines(total_ms=400)
"""After these and the settling time, an absence proves something."""
HOLD = {"realtime": 600_000, "batch": 600_000}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain looks ten times as often whether a lane is to be asked; when it is, the lane and the policy say."""
    monkeypatch.setattr(drain, "TEND_MS", 100)


def paid(server: FaultLane, **more: Any) -> LanePolicy:
    plain: dict[str, Any] = {"tier": "paid", "price": CALL, "model": "m", "recall": "store", "hold_ms": HOLD}
    return LanePolicy("paid", **(plain | {"base_url": server.base_url, "max_attempts": 1} | more))


def ledger(queue: Queue) -> list[tuple[str | None, str | None]]:
    return [(row.outcome, row.resolution) for row in queue.ledger()]


def only(queue: Queue) -> Attempt:
    [row] = queue.ledger()
    return row


@pytest.mark.parametrize("fault", ["reset", "cut", "stream_cut", "stream_error_after", "bad_json"])
def test_a_reply_that_was_lost_on_the_way_is_recalled_and_nothing_is_paid_twice(open_queue: Open, fault: str) -> None:
    with FaultLane(script=[fault]) as server:
        queue = open_queue(paid(server))
        job = queue.enqueue("q")
        summary = queue.drain(until_empty=True)
        assert (summary.done, summary.recalled, summary.paid_twice) == (1, 1, 0)
        assert (summary.attempts, summary.spent_usd, summary.unpriced) == (1, Decimal("0.01"), 0)
        assert (ledger(queue), server.accepted()) == ([("ok", "recalled")], 1)
        result = queue.result(job)
        assert result is not None
        [post] = server.posts()
        assert (result.text, result.tokens_in, result.tokens_out) == (post.result, post.tokens_in, post.tokens_out)
        assert (result.cost, result.cost_is_estimate, result.finish_reason) == (Decimal("0.01"), False, "stop")
        check_promises(queue.store)


def test_a_lane_that_has_not_settled_yet_is_asked_again_until_it_has(open_queue: Open) -> None:
    with FaultLane(script=["reset"], settling_s=1.5) as server:
        queue = open_queue(paid(server, settling_ms=60_000))
        queue.enqueue("q")
        assert queue.drain(until_empty=True).recalled == 1
        assert (ledger(queue), server.accepted()) == ([("ok", "recalled")], 1)
        assert 2 <= server.listings() <= 4, "asked early, and at growing intervals"


def test_a_call_that_its_lane_never_had_is_made_again(open_queue: Open) -> None:
    with FaultLane(script=["503_bare", "ok"]) as server:
        queue = open_queue(paid(server, max_attempts=2, deadlines=SOON), lease_ms=800)
        queue.enqueue("q")
        assert queue.drain(until_empty=True).done == 1
        assert ledger(queue) == [("retryable", "absent"), ("ok", None)]
        first = next(iter(queue.ledger()))
        assert (first.code, first.cost, first.status) == ("absent", Decimal(0), 503)
        assert queue.report().paid_twice.calls == 0


def test_an_absence_proves_nothing_before_the_call_can_have_ended_and_settled(open_queue: Open) -> None:
    with FaultLane(script=["503_bare", "ok"]) as server:
        queue = open_queue(paid(server, deadlines=SOON, settling_ms=600_000))
        job = queue.enqueue("q")
        queue.drain(max_iters=1)
        queue.reconcile()
        assert (queue.job(job.job_id).wait_reason, ledger(queue)) == ("held", [("ambiguous", None)])
        assert server.listings() == 1


def test_a_clock_that_is_set_forward_makes_no_absence_a_proof(open_queue: Open) -> None:
    """By the wall the call should be over for minutes; its lane has it listed in a second and a half."""
    with FaultLane(script=["reset"], settling_s=1.5) as server:
        queue = open_queue(paid(server, settling_ms=2_000, deadlines=SOON), lease_ms=800)
        queue.enqueue("q")
        queue.drain(max_iters=1)
        queue.store.now_ms = lambda: wall_ms() + 300_000
        queue.reconcile()
        assert (ledger(queue), server.listings()) == ([("ambiguous", None)], 1)
        assert queue.drain(until_empty=True).recalled == 1
        assert (ledger(queue), server.accepted()) == ([("ok", "recalled")], 1)


@pytest.mark.parametrize(
    ("after_hold", "state", "resolution", "calls"),
    [("same", "done", "same", 2), ("fail", "failed", "fail", 1), ("ask", "waiting", None, 1)],
)
def test_what_stays_unknown_until_the_hold_ends_is_decided_by_the_policy(
    open_queue: Open, after_hold: AfterHold, state: str, resolution: str | None, calls: int
) -> None:
    with FaultLane(script=["503_bare", "ok"]) as server:
        lane = paid(server, max_attempts=2, after_hold=after_hold, hold_ms={"realtime": 0, "batch": 1_500})
        queue = open_queue(lane)
        job = queue.enqueue("q")
        queue.drain(until_empty=True)
        assert (queue.job(job.job_id).state, server.accepted()) == (state, calls)
        assert ledger(queue)[0] == ("ambiguous", resolution)
        assert server.listings() >= 2, "asked at once, and when the hold ended"


def test_a_listing_that_fails_says_nothing(open_queue: Open) -> None:
    with FaultLane(script=["reset"], settling_s=0) as server:
        queue = open_queue(paid(server))
        job = queue.enqueue("q")
        queue.drain(max_iters=1)
        server.stop()
        queue.reconcile()
        assert queue.job(job.job_id).wait_reason == "held"
        server.start()
        assert queue.reconcile().done == 1
        assert ledger(queue) == [("ok", "recalled")]


def test_an_unusable_answer_that_is_recalled_counts_as_one_that_came(open_queue: Open) -> None:
    lengthy = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    with FaultLane(script=["reset", "ok"], answer=lambda _: "no JSON at all") as server:
        queue = open_queue(paid(server, max_attempts=3), max_unusable_per_job=1)
        job = queue.enqueue(Prompt("q", schema=lengthy))
        queue.drain(until_empty=True)
        assert ledger(queue) == [("unusable", "recalled")]
        assert only(queue).cost == Decimal("0.01"), "it was paid for"
        assert queue.job(job.job_id).state == "failed"


def test_a_cancelled_call_that_is_recalled_answers_the_next_who_asks_at_no_cost(open_queue: Open) -> None:
    with FaultLane(script=["reset"], settling_s=0.3) as server:
        queue = open_queue(paid(server))
        job = queue.enqueue("q")
        queue.drain(max_iters=1)
        assert queue.cancel(job.job_id).done == 1
        assert server.wait_for(1, 5)
        while not queue.reconcile().recalled:
            assert ledger(queue) == [("ambiguous", None)]
        again = queue.enqueue("q")
        assert (again.disposition, server.accepted()) == ("reused", 1)
        assert queue.job(job.job_id).state == "cancelled"


def test_what_nobody_waits_for_is_decided_when_its_hold_is_over_and_its_worst_case_is_booked(open_queue: Open) -> None:
    with FaultLane(script=["503_bare"]) as server:
        queue = open_queue(paid(server, hold_ms={"realtime": 0, "batch": 0}, after_hold="ask"))
        job = queue.enqueue("q")
        queue.drain()
        assert queue.job(job.job_id).wait_reason == "asked"
        queue.cancel(job.job_id)
        queue.reconcile()
        row = only(queue)
        assert (row.resolution, row.cost, row.cost_is_estimate) == ("nobody", Decimal("0.01"), True)


def test_all_that_nobody_waits_for_is_decided_however_many_pages_it_takes(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "PAGE_ROWS", 2)
    with FaultLane(script=["503_bare"] * 5) as server:
        queue = open_queue(paid(server, recall="none", hold_ms={"realtime": 0, "batch": 0}, after_hold="ask"))
        jobs = queue.enqueue_many([f"q {n}" for n in range(5)])
        queue.drain()
        queue.cancel([job.job_id for job in jobs])
        queue.reconcile()
        assert [row.resolution for row in queue.ledger()] == ["nobody"] * 5


class Strange:
    """A lane of one's own that answers nothing, or nonsense, when it is asked."""

    policy = LanePolicy("strange", recall="store")

    def __init__(self, says: object) -> None:
        self.says = says

    async def call(self, call: Call) -> Evidence:
        raise AssertionError("no call is made")

    async def recall(self, question: Question) -> Any:
        if self.says is None:
            await asyncio.Event().wait()
        return self.says

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("says", [None, "an answer"])
def test_a_lane_that_answers_nothing_or_nonsense_is_not_waited_for(
    says: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recall, "QUESTION_MS", 20)
    policy = Policy(lanes={"strange": Strange.policy})
    asked = recall.ask(Strange(says), policy, "uid", Prompt("q"), age_ms=0, now_ms=lambda: 0, chance=0.0)
    said = asyncio.run(asyncio.wait_for(asked, 20))
    assert isinstance(said, Unknown)
    assert said.why == ("its lane did not answer in time" if says is None else
                        "TypeError: found a str, wanted Recalled, Absent or Unknown")  # fmt: skip


class Remembers:
    """Answers no call, and when it is asked for the n-th one, by the n-th of its answers."""

    def __init__(self, *answers: Reply, **more: Any) -> None:
        self.policy = LanePolicy("paid", tier="paid", price=CALL, recall="store", max_attempts=1, **more)
        self.answers = answers
        self.uids: list[str] = []
        self.asked: list[str] = []

    async def call(self, call: Call) -> Evidence:
        self.uids.append(call.uid)
        return Evidence(sent="yes", failure="reset")

    async def recall(self, question: Question) -> Recalled:
        self.asked.append(question.uid)
        answer = self.answers[self.uids.index(question.uid)]
        return Recalled(replace(evidence_of(answer), usage=answer.usage))

    async def close(self) -> None:
        """Nothing is open."""


UNSTORABLE = Reply("an answer", usage=Usage(10**30, 1))
"""A lane of somebody's own that counts without measure: no column of SQLite holds the number."""


@pytest.mark.parametrize("hold_ms", [0, 600_000])
def test_a_recalled_reply_that_no_column_can_hold_holds_up_no_other(open_queue: Open, hold_ms: int) -> None:
    """Whether it is asked for within its hold, or before the policy decides."""
    lane = Remembers(UNSTORABLE, Reply("another"), hold_ms={"realtime": 0, "batch": hold_ms}, after_hold="ask")
    queue = open_queue(lane.policy)
    first, second = (queue.enqueue(text).job_id for text in ("q", "r"))
    summary = queue.drain(lanes=[lane], until_empty=True)
    assert (summary.done, summary.reason) == (1, "idle")
    assert (queue.job(first).wait_reason, queue.job(second).state) == ("asked", "done")
    lost, found = queue.ledger()
    assert (lost.outcome, lost.code, found.resolution) == ("ambiguous", "unstorable", "recalled")
    assert "could not be stored: OverflowError" in (lost.message or "")
    assert sorted(lane.asked) == sorted(lane.uids), "each once: the lane would only say it again"


def test_a_reply_that_no_column_can_hold_and_a_worker_recalls_is_decided_by_policy(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Remembers(UNSTORABLE, kind="chat", model="m", hold_ms={"realtime": 0, "batch": 0}, after_hold="ask")
    queue = open_queue(lane.policy)
    job = queue.enqueue("q").job_id
    queue.drain(lanes=[lane], max_iters=1)
    monkeypatch.setattr(reconciling, "build_lane", lambda _: lane)
    while queue.job(job).wait_reason != "asked":
        [lease] = queue.lease(1)
        assert queue.record(lease) is None, "nothing is to be sent"
    assert [row.code for row in queue.ledger()] == ["unstorable"]
    assert len(lane.asked) == 1


def test_a_call_whose_work_is_gone_is_passed_over_and_said(
    open_queue: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stands before others on their page, and alone on its own; nobody asks for it when its hold is over."""
    monkeypatch.setattr(recall, "PAGE_CALLS", 1)
    with FaultLane(script=["reset"] * 2) as server:
        queue = open_queue(paid(server))
        jobs = queue.enqueue_many(["q", "r"])
        queue.drain(max_iters=1)
        purged = next(iter(queue.ledger()))
        other = next(job.job_id for job in jobs if job.job_id != purged.job_id)
        queue.cancel(purged.job_id)
        connection = apsw.Connection(str(queue.home / "queue.db"))
        connection.execute("DELETE FROM payload WHERE job_id = ?", (purged.job_id,)).fetchall()
        connection.close()
        assert queue.reconcile().done == 1
        assert queue.job(other).state == "done"
        assert f"attempt {purged.uid}: the work of job {purged.job_id}" in caplog.text
        queue.store.now_ms = lambda: wall_ms() + 601_000
        queue.drain()
        assert purged.uid in [row.uid for row in queue.ledger() if row.resolution is None], "by the wall alone"
        queue.store.boot = lambda: replace(boot(), ms=boot_ms() + 601_000)
        queue.reconcile()
        assert [(row.outcome, row.resolution) for row in queue.ledger()] == [
            ("ambiguous", "nobody"),
            ("ok", "recalled"),
        ]


def test_a_lane_is_asked_before_a_job_fails_for_want_of_another(open_queue: Open) -> None:
    with FaultLane(script=["reset"]) as server:
        queue = open_queue(paid(server, hold_ms={"realtime": 0, "batch": 0}))
        queue.enqueue("q")
        assert queue.drain().done == 1
        assert ledger(queue) == [("ok", "recalled")]


def test_a_lane_that_cannot_be_asked_holds_nothing(open_queue: Open) -> None:
    with FaultLane(script=["reset", "ok"]) as server:
        queue = open_queue(paid(server, recall="none", max_attempts=2, after_hold="same"))
        queue.enqueue("q")
        assert queue.drain(until_empty=True).done == 1
        assert (ledger(queue), server.listings()) == ([("ambiguous", "same"), ("ok", None)], 0)


def test_a_worker_asks_before_it_pays_again(open_queue: Open) -> None:
    with FaultLane(script=["reset"]) as server:
        queue = open_queue(paid(server, hold_ms={"realtime": 0, "batch": 0}))
        job = queue.enqueue("q")
        queue.drain(max_iters=1)
        [lease] = queue.lease(1)
        assert queue.record(lease) is None, "nothing is to be sent"
        assert (queue.job(job.job_id).state, ledger(queue)) == ("done", [("ok", "recalled")])


def test_an_async_queue_reconciles_on_a_running_loop(open_queue: Open) -> None:
    with FaultLane(script=["reset"]) as server:
        queue = open_queue(paid(server))
        queue.enqueue("q")
        queue.drain(max_iters=1)

        async def reconcile() -> int:
            return queue.reconcile().done + (await AsyncQueue(queue).reconcile()).done

        assert asyncio.run(reconcile()) == 1


class Forgets(Remembers):
    """Cannot be asked just now."""

    async def recall(self, question: Question) -> Unknown:  # type: ignore[override] # pyright: ignore
        self.asked.append(question.uid)
        return Unknown("later")


class AskedByTwo(Remembers):
    """Answers who asks for its calls once a second one asks beside him."""

    def __init__(self, before: Remembers) -> None:
        super().__init__(*before.answers, hold_ms=before.policy.hold_ms)
        self.uids = before.uids
        self.is_second = asyncio.Event()

    async def recall(self, question: Question) -> Recalled:
        said = await super().recall(question)
        if len(self.asked) == 2:
            self.is_second.set()
        await self.is_second.wait()
        return said


def test_an_answer_for_which_two_ask_at_once_is_counted_once(open_queue: Open) -> None:
    """Whoever goes round asking, and the journey of its job, whose hold is over."""
    before = Forgets(Reply("an answer", usage=Usage(1, 5)), hold_ms={"realtime": 0, "batch": 0})
    queue = open_queue(before.policy)
    queue.enqueue("q")
    queue.drain(lanes=[before], max_iters=1)
    assert ledger(queue) == [("ambiguous", None)]
    lane, told = AskedByTwo(before), list[str]()
    with queue.draining(lanes=[lane], tell=lambda one: told.append(one.kind)) as drainer:
        summary = asyncio.run(drainer.run(drain.Until(until_empty=True)))
    assert (len(lane.asked), ledger(queue)) == (2, [("ok", "recalled")])
    assert (summary.attempts, summary.spent_usd, summary.tokens_out) == (1, Decimal("0.01"), 5)
    assert (summary.done, summary.recalled, told.count("recalled")) == (1, 1, 1)


class Overtaken(Remembers):
    """Its call goes on until it has been asked for it."""

    async def call(self, call: Call) -> Evidence:
        await super().call(call)
        while not self.asked:  # noqa: ASYNC110  # the answer is still to be written after it
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        return replace(evidence_of(self.answers[0]), usage=self.answers[0].usage)


def test_a_call_that_is_recalled_while_it_still_runs_is_counted_once(open_queue: Open) -> None:
    """Nobody waits for it any more, and it is listened to all the same."""
    lane = Overtaken(Reply("an answer", usage=Usage(1, 5)), hold_ms={"realtime": 0, "batch": 0}, soft_timeout_ms=20)
    queue = open_queue(lane.policy)
    queue.enqueue("q")
    summary = queue.drain(lanes=[lane], until_empty=True)
    assert (len(lane.uids), ledger(queue)) == (1, [("ok", "recalled")])
    assert (summary.attempts, summary.spent_usd, summary.tokens_out, summary.done) == (1, Decimal("0.01"), 5, 1)
