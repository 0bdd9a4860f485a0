"""A process that stood still, stopped or held up, gives nothing up on going on whose answer has come meanwhile.

Each test holds up the drain's own event loop until the time is over that it looks at. The answer is there a moment
after that, as it is of a function in a thread, which was stopped with its process, or of a reply that is still unread.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest
from mill_of_one import Mill, during, free, paid

from millpond.engine import drain, recall
from millpond.lanes.lane import Call, Question
from millpond.rules.evidence import Absent
from millpond.rules.job import Prompt, Reply
from millpond.rules.policy import Policy
from millpond.store.reclaim import Reclaimed
from millpond.testing import ScriptedLane
from millpond.testing.scripted_lane import Held

SOON_MS = 50
NONE = {"realtime": 0, "batch": 0}
BRIEF = {"realtime": 500, "batch": 500}
LATE = [Held(Reply("late"))]


def stand_still(lane: ScriptedLane, for_s: float = 0.3) -> None:
    """Hold up the loop, and let the lane answer soon afterwards."""
    asyncio.get_running_loop().call_later(for_s + 0.05, lane.let_go)
    time.sleep(for_s)


def test_a_soft_timeout_lets_no_job_go_whose_reply_has_come(mill: Mill) -> None:
    first, second = free(LATE, soft_timeout_ms=SOON_MS, hold_ms=NONE), paid()
    mill.ask("a")

    async def act() -> None:
        await first.began()
        stand_still(first)

    assert asyncio.run(during(mill.drainer(first, second).run(), act)).done == 1
    assert (mill.ledger(), second.calls) == ([("free", "ok", None)], [])


def test_a_hold_lets_no_job_go_whose_reply_has_come(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither who listens ends it, nor the look at all holds that have run out."""
    monkeypatch.setattr(drain, "TEND_MS", 20)
    first, second = free(LATE, soft_timeout_ms=SOON_MS, hold_ms=BRIEF), paid()
    mill.ask("a")
    looked = threading.Event()

    def look() -> Reclaimed:
        looked.set()
        return Reclaimed()

    async def act() -> None:
        await mill.hears("held")
        looked.clear()
        assert await asyncio.to_thread(looked.wait, 20)  # the hold has been seen
        stand_still(first, for_s=0.6)

    assert asyncio.run(during(mill.drainer(first, second, tend=look).run(), act)).done == 1
    assert (mill.ledger(), second.calls) == ([("free", "ok", "late")], [])


def test_the_grace_of_a_stop_cuts_no_call_whose_reply_has_come(mill: Mill) -> None:
    lane = paid(LATE)
    mill.ask("a")
    drainer = mill.drainer(lane, grace_ms=SOON_MS)

    async def act() -> None:
        await lane.began()
        drainer.stop()
        await asyncio.sleep(SOON_MS / 2000)
        stand_still(lane)

    asyncio.run(during(drainer.run(), act))
    assert mill.ledger() == [("paid", "ok", None)]


class Remembering(ScriptedLane):
    """Says of a call that it never came, once it is let go."""

    async def recall(self, question: Question) -> Absent:
        await self.call(Call(question.uid, question.work, "key", 1, 0))
        return Absent()


def test_what_a_lane_says_of_a_call_counts_if_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "QUESTION_MS", SOON_MS)
    policy = replace(paid().policy, recall="store", base_url="http://127.0.0.1:1/v1")
    lane = Remembering(policy, LATE)

    async def scenario() -> object:
        asyncio.get_running_loop().call_later(SOON_MS / 2000, stand_still, lane)
        policies = Policy(lanes={"paid": policy})
        return await recall.ask(lane, policies, "u1", Prompt("a"), age_ms=10**9, now_ms=lambda: 0, chance=0.0)

    assert asyncio.run(scenario()) == Absent()
