"""Real prompts, real processes, real HTTP: 1,319 questions against a lane that fails in every way that lanes do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from mill import QUESTIONS, Home, questions

from millpond import Queue
from millpond.drill.faultlane import FaultLane

MIX = {"503_proof": 0.10, "reset": 0.05, "slow": 0.05}


def lane(fault: FaultLane, **more: object) -> dict[str, object]:
    usual = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": 0, "max_in_flight": 32}
    return {**usual, "soft_timeout_s": 0.5, "hold_s": 2, "after_hold": "pin", **more}


def test_1319_questions_through_a_failing_lane_are_each_answered_once(tmp_path: Path) -> None:
    asked = str(questions(tmp_path))
    with FaultLane(mix=MIX, seed=11, slow_s=1.5, retry_after="0") as first, FaultLane(seed=12) as second:
        home = Home(
            tmp_path, lanes={"free": lane(first, max_attempts=5), "paid": lane(second, tier="paid", price=0.001)}
        )
        out, err = home.run("enqueue", asked, "--map", "task=question")
        ids = out.split()
        assert (len(ids), len(set(ids))) == (QUESTIONS, QUESTIONS)
        assert "1,319 new · 0 joined · 0 reused · 0 refused" in err

        again, err = home.run("enqueue", asked, "--map", "task=question")
        assert again.split() == ids
        assert "0 new · 1,319 joined · 0 reused · 0 refused" in err

        home.run("drain", "--until-empty")
        accepted = first.accepted() + second.accepted()
        late_faults = {post.fault for post in first.posts()}

    with Queue.open(home.home) as queue:
        counts, ledger = queue.counts(), list(queue.ledger())
        assert counts == {**dict.fromkeys(counts, 0), "done": QUESTIONS}
        assert queue.store.miscounted() == {}
        assert len(ledger) == accepted, "ledger rows are the requests that the lanes saw"
        winners = Counter(row.idempotency_key for row in ledger if row.artifact_id is not None)
        assert (len(winners), set(winners.values())) == (QUESTIONS, {1})
        assert {row.outcome for row in ledger} == {"ok", "retryable", "ambiguous"}
        assert late_faults == {"ok", *MIX}
        answers = list(queue.results("gsm8k-test.jsonl" if "gsm8k" in asked else "questions.jsonl"))
        assert [one.position for one in answers] == sorted(one.position for one in answers)
        assert len(answers) == QUESTIONS
        assert all(one.text and one.carried and "answer" in one.carried for one in answers)

    out, err = home.run("enqueue", asked, "--map", "task=question")
    assert out.split() == ids
    assert "0 new · 0 joined · 1,319 reused" in err
