"""A queue file with many rows in every state, written by SQL: for tests of what a verb reads, not of what it does."""

from __future__ import annotations

from pathlib import Path

import apsw

JOB = """
INSERT INTO job (kind, route, fingerprint, idempotency_key, state, wait_reason, not_before_ms, priority, service_class,
  due_ms, next_lane, wished_lane, lease_owner, artifact_id, reason, origin, tags, created_ms, settled_ms, requests)
WITH RECURSIVE n (i) AS (SELECT :start UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :start + :rows)
SELECT 'prompt', '', 'f' || i, 'k' || i, :state, :wait_reason, :not_before_ms + i % 97, i % 5,
  CASE i % 2 WHEN 0 THEN 'realtime' ELSE 'batch' END,
  1000000 + i % 89, :lane, '', :owner, CASE WHEN :artifact_id IS NOT NULL THEN i END, :reason,
  'api', '[]', i, :settled_ms, 1 FROM n
"""


def fill(
    path: Path, *, done: int = 3_000, waiting: int = 1_500, ready: int = 1_500, unrouted: int = 1_500, failed: int = 300
) -> None:
    """Fill an empty queue file: `ready` jobs on each of three lanes, every done job with its attempt and artifact."""
    connection = apsw.Connection(str(path))
    start = 1

    def jobs(rows: int, state: str, **columns: object) -> int:
        nonlocal start
        if not rows:
            return start
        plain = {"wait_reason": None, "not_before_ms": None, "lane": "free", "owner": None, "artifact_id": None,
                 "reason": None, "settled_ms": None}  # fmt: skip
        connection.execute(JOB, plain | {"start": start, "rows": rows, "state": state} | columns).fetchall()
        first, start = start, start + rows
        return first

    with connection:
        for lane in ("free", "paid", "night"):
            jobs(ready, "ready", lane=lane)
        jobs(unrouted, "ready", lane="")
        jobs(waiting, "waiting", wait_reason="backoff", not_before_ms=5_000)
        jobs(waiting, "waiting", wait_reason="scheduled", not_before_ms=10**15)
        jobs(50, "waiting", wait_reason="held")
        jobs(50, "leased", owner="worker")
        jobs(failed, "failed", reason="refused: no", settled_ms=1)
        jobs(failed, "cancelled", settled_ms=1)
        first = start
        connection.execute(
            "INSERT INTO attempt (uid, job_id, attempt_no, lease_no, owner, lane, tier, idempotency_key, fingerprint, "
            "started_ms, ended_ms, outcome, cost) WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n "
            "WHERE i + 1 < :first + :rows) SELECT 'u' || i, i, 1, 1, 'worker', 'free', 'free', 'k' || i, 'f' || i, i, "
            "i, CASE i % 9 WHEN 0 THEN 'ambiguous' ELSE 'ok' END, 1 FROM n",
            {"first": first - 500, "rows": done + 500},
        ).fetchall()
        connection.execute(
            "INSERT INTO artifact (id, idempotency_key, fingerprint, attempt_uid, accepted_ms) "
            "SELECT job_id, idempotency_key, fingerprint, uid, started_ms FROM attempt WHERE job_id >= ?",
            (first,),
        ).fetchall()
        jobs(done, "done", artifact_id=0, settled_ms=1)
    connection.close()


def fill_answers(path: Path) -> None:
    """Requests, payloads, replies and events for every job."""
    connection = apsw.Connection(str(path))
    with connection:
        for sql in (
            'INSERT INTO payload SELECT id, \'{"prompt":{"task":"x"}}\' FROM job',
            "INSERT INTO submission (name, created_ms, source) SELECT 's' || id, 1, 'api' FROM job WHERE id <= 500",
            "INSERT INTO request SELECT NULL, 1 + id % 2, id, NULL, NULL, id, 'new', NULL FROM job",
            'INSERT INTO reply SELECT uid, \'{"text":"x","usage":{}}\' FROM attempt WHERE outcome = \'ok\'',
            "INSERT INTO event (at_ms, kind, job_id, data) SELECT 1, 'enqueue', id, '{}' FROM job",
        ):
            connection.execute(sql).fetchall()
    connection.close()
