"""The two queries over a ledger that *Stop Lane Thrash* published, as printed: our views answer them unchanged."""

from __future__ import annotations

TOKENS_AND_CROSSINGS = """
SELECT ROUND(SUM(tokens) * 1.0 / SUM(artifacts), 1)   AS tokens_per_artifact,
       ROUND(SUM(free_attempts > 0 AND paid_attempts > 0) * 1.0
             / COUNT(*), 3)                          AS cross_lane_per_job
FROM job_rollup;
"""

DUPLICATES = """
SELECT idem_key, COUNT(DISTINCT artifact_id) AS n
FROM job_attempt
WHERE artifact_id IS NOT NULL
GROUP BY idem_key
HAVING n > 1;
"""
