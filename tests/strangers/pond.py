"""A queue whose lanes, the free one and the paid one, are both a provider that none of us wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from llmock.pytest_plugin import LLMock

from millpond import Policy, Queue, Result
from millpond.report.summary import Summary
from millpond.rules.policy import Backoff, LanePolicy
from millpond.rules.price import FREE, PriceRule
from millpond.testing.promises import check_promises

FREE_MODEL, PAID_MODEL = "gpt-4o-mini", "gpt-4o"
A_CENT = PriceRule("stated", call_usd=Decimal("0.01"))


class Pond:
    """A queue, its two lanes, and the books of both sides."""

    def __init__(self, folder: Path, provider: LLMock, *, policy: Mapping[str, Any] | None = None, **lane: Any) -> None:
        self.provider = provider
        free = LanePolicy("free", price=FREE, base_url=provider.base_url(), model=FREE_MODEL, after_hold="same")
        free = replace(free, **{"max_in_flight": 1, **lane})
        paid = replace(free, name="paid", tier="paid", price=A_CENT, model=PAID_MODEL, after_hold="pin")
        lanes = {one.name: one for one in (free, paid)}
        limits = {"backoff": Backoff(100, 400), "idle_exit_ms": 3_000, **(policy or {})}
        self.queue = Queue.open(folder, policy=Policy(lanes=lanes, **limits))

    def drain(self, *works: Any, blames: Sequence[str] = ()) -> Summary:
        """Hand it in, drain, and go through the books of both sides.

        `blames` are the findings that llmock's verdict is known to have without cause; it must have no other, not even
        a warning.
        """
        if works:
            self.queue.enqueue_many(list(works))
        summary = self.queue.drain()
        rows = list(self.queue.ledger())
        seen = [one for one in self.provider.requests if one.path.endswith("/chat/completions")]
        models = Counter({"free": FREE_MODEL, "paid": PAID_MODEL}[row.lane] for row in rows)
        assert models == Counter(one.model for one in seen), "the ledger has a row for each request that was seen"
        answers = Counter(row.idempotency_key for row in rows if row.artifact_id is not None)
        assert set(answers.values()) <= {1}, "at most one artifact a key"
        check_promises(self.queue.store)
        verdict = self.provider.verdict()
        assert [finding.code for finding in verdict.findings] == list(blames), verdict.render()
        return summary

    def ledger(self) -> list[tuple[str, str | None, str | None]]:
        """Lane, outcome and code of every attempt, oldest first."""
        return [(row.lane, row.outcome, row.code) for row in self.queue.ledger()]

    def states(self) -> list[tuple[str, int]]:
        """State of every job and the attempts counted for it, oldest first."""
        return [(job.state, job.attempts_made) for job in reversed(self.queue.jobs())]

    def failures(self) -> list[str]:
        """The codes of what failed."""
        return [result.error.code for result in self.queue.results(failed=True) if result.error]

    def results(self) -> list[Result]:
        """What was answered."""
        return list(self.queue.results())
