"""O07: whatever a program does with a queue, and leaves half done, the log does not grow behind it."""

from __future__ import annotations

from pathlib import Path

from millpond import Policy, Queue
from millpond.db.connection import JOURNAL_SIZE_LIMIT_BYTES

ROWS = 2_000
BODY = "x" * 40_000


def test_o07_the_log_stays_small_behind_looks_that_were_left_half_done(tmp_path: Path) -> None:
    log = tmp_path / "home" / "queue.db-wal"
    with Queue.open(tmp_path / "home", policy=Policy(durable=False)) as queue:
        queue.enqueue_many([f"question {n}" for n in range(20)])
        queue.drain(lanes=lambda work, **_: "an answer", until_empty=True)
        half_done = [queue.results(), queue.ledger(), queue.feed()]
        for one in half_done:
            next(one)
        largest = 0
        for at in range(0, ROWS, 100):
            queue.enqueue_many([f"{at + n} {BODY}" for n in range(100)])
            queue.status()
            largest = max(largest, log.stat().st_size)
        for one in half_done:
            assert next(one) is not None, "it goes on where it was left"
    assert JOURNAL_SIZE_LIMIT_BYTES / 2 < largest < 4 * JOURNAL_SIZE_LIMIT_BYTES
