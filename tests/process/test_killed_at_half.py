"""1,319 questions, and the drain is killed twice amid them: what was in flight is all that may be asked again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mill import QUESTIONS, Home, questions
from standing import mended

from millpond.drill.faultlane import FaultLane

AT_ONCE = 32

LANES: dict[str, dict[str, Any]] = {
    "plain": {"after_hold": "same"},
    "recalls": {"after_hold": "same", "recall": "store", "settling_s": 0.3, "hold_s": 15},
}


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.prove), "recalls"])
def test_1319_questions_whose_drain_is_killed_twice_cost_at_most_what_was_in_flight(tmp_path: Path, kind: str) -> None:
    with FaultLane(latency_s=0.03) as fault:
        paid = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": {"call_usd": 0.01}}
        deadlines = {"connect_s": 3, "first_byte_s": 3, "total_s": 3}
        lane = {**paid, "max_in_flight": AT_ONCE, "max_attempts": 5, "deadlines": deadlines, **LANES[kind]}
        home = Home(tmp_path, lanes={"paid": lane}, lease_s=2)
        _, err = home.run("enqueue", str(questions(tmp_path)), "--map", "task=question")
        assert "1,319 new" in err
        for share in (1 / 3, 2 / 3):
            drain = home.start("drain", "--until-empty")
            assert fault.wait_for(int(QUESTIONS * share), timeout_s=100)
            drain.kill()
            drain.communicate(timeout=60)
            assert drain.returncode == -9, "it was killed amid its work"
        with mended(home) as queue:
            counts, ledger = queue.counts(), list(queue.ledger())
            assert counts == {**dict.fromkeys(counts, 0), "done": QUESTIONS}
            winners = Counter(row.idempotency_key for row in ledger if row.artifact_id is not None)
            assert (len(winners), set(winners.values())) == (QUESTIONS, {1})
            died = [row for row in ledger if row.code == "died" or row.resolution is not None]
            assert 0 < len(died) <= 2 * AT_ONCE, "at each kill some were in flight, and no more than that are in doubt"
            report = queue.report()
        extra = fault.accepted() - QUESTIONS
        if kind == "recalls":
            assert (extra, report.paid_twice.calls) == (0, 0)
        else:
            assert 0 <= extra <= len(died) == report.paid_twice.calls
