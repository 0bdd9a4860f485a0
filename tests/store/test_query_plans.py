"""How SQLite finds its rows: every statement by the index that is meant for it, before and after ANALYZE."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import apsw
import pytest
from population import fill, fill_answers

from millpond.db.sqlite import TOKENS
from millpond.db.statements import load
from millpond.store.store import Store, open_sqlite
from millpond.testing import FakeClock

STATEMENTS = load(files("millpond.store").joinpath("statements.sql").read_text(encoding="utf-8"), TOKENS)

HOT = {
    "ready_by_rank": ["job_ready (next_lane=?)"],
    "ready_by_age": ["job_ready_by_age (next_lane=?)"],
    "unrouted_jobs": ["job_ready (next_lane=?)", "p USING INTEGER PRIMARY KEY"],
    "due_jobs": ["job_due (not_before_ms>? AND not_before_ms<?)"],
    "any_ready": ["COVERING INDEX job_ready"],
    "next_due": ["COVERING INDEX job_due"],
    "oldest_ready": ["job_ready_by_age (next_lane=?)"],
    "keys_with_history": ["COVERING INDEX attempt_key (idempotency_key=?)"],
    "record_check": ["j USING INTEGER PRIMARY KEY", "one_in_force (idempotency_key=?)", "attempt_job (job_id=?)"],
    "live_jobs": ["one_live_job (idempotency_key=?)"],
    "live_job": ["one_live_job (idempotency_key=?)"],
    "artifacts_in_force": ["one_in_force (idempotency_key=?)", "COVERING INDEX job_artifact (artifact_id=?)"],
    "open_or_undecided": ["one_open_attempt (idempotency_key=?)", "attempt_undecided (idempotency_key=?)"],
    "accept_check": ["one_in_force (idempotency_key=?)", "artifact_retired (idempotency_key=? AND retired_seq>?)"],
    "history": ["attempt_key (idempotency_key=? AND seq>?)"],
    "living_owners": ["owner USING INDEX owner_living"],
    "leased_by": ["job_leased (lease_owner=?)"],
    "open_attempts_by": ["attempt_open_owner (owner=?)"],
    "listened_by": ["attempt_listener (listener=?)"],
    "jobs_before": ["j USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"],
    "any_pending_request": ["one_live_job (idempotency_key>?)", "request_job (job_id=?)"],
    "jobs_by_id": ["j USING INTEGER PRIMARY KEY (rowid=?)"],
    "ready_ids_before": ["COVERING INDEX job_ready_by_age (next_lane=? AND id>? AND id<?)"],
    "waiting_ids_before": ["COVERING INDEX job_waiting (wait_reason=? AND id>? AND id<?)"],
    "leased_ids_before": ["COVERING INDEX job_leased (lease_owner=? AND id>? AND id<?)"],
    "unanswered_ids_before": ["COVERING INDEX job_unanswered (state=? AND id>? AND id<?)"],
    "submission_jobs_after": ["request_position (submission_id=? AND position>?)"],
    "submissions_named": ["submission_name (name=?)", "submission USING INTEGER PRIMARY KEY (rowid=?)"],
    "withdraw_requests": ["request_job (job_id=?)"],
    "take_back_requests": ["request_job (job_id=?)"],
    "shares_of_job": ["request_job (job_id=?)"],
    "new_requests_of_job": ["request_job (job_id=?)"],
    "join_requests": ["request_job (job_id=?)"],
    "attempt_before_last": ["attempt USING INTEGER PRIMARY KEY (rowid<?)"],
    "attempt_of_job_before_last": ["attempt_key (idempotency_key=? AND seq<?)"],
    "waiting_for_person": ["COVERING INDEX job_waiting (wait_reason=?)"],
    "results_after": ["r USING INTEGER PRIMARY KEY (rowid>?)"],
    "results_of_submission_after": ["request_position (submission_id=? AND position>? AND position<?)"],
    "answered_of_submission_after": ["request_position (submission_id=? AND position>?)"],
    "end_of_page": ["COVERING INDEX request_position (submission_id=? AND position>?)"],
    "first_pending": [
        "request_position (submission_id=? AND position>? AND position<?)",
        "USING INTEGER PRIMARY KEY (rowid=?)",
    ],
    "attempts_of_job": ["attempt_key (idempotency_key=? AND seq>?)"],
    "undecided_after": ["attempt_undecided (idempotency_key>?)", "one_live_job (idempotency_key=?)"],
    "undecided_of_key": ["attempt_undecided (idempotency_key=?)"],
    "to_ask": ["attempt_to_ask (lane=? AND ask_ms>? AND ask_ms<?)"],
    "next_ask": ["attempt_to_ask (lane=? AND ask_ms>?)"],
    "next_lane_to_ask": ["attempt_to_ask (lane>?)"],
    "last_pin": ["j USING INTEGER PRIMARY KEY (rowid=?)", "attempt_key (idempotency_key=? AND seq>?)"],
    "undecided": ["attempt_undecided (idempotency_key=? AND rowid>?)"],
    "events_after": ["event USING INTEGER PRIMARY KEY (rowid>?)"],
    "attempts_after": ["attempt USING INTEGER PRIMARY KEY (rowid>?)"],
    "rank_before": [
        "job_ready (next_lane=? AND priority>?)",
        "job_ready (next_lane=? AND priority=? AND service_class=? AND due_ms=? AND id<?)",
    ],
}
"""Name -> what its plan must say."""

SMALL_TABLES = {"CONSTANT", "json_each", "lane_state", "stop", "tally"}
"""What may be read whole: never more than a handful of rows."""

REPORT = "the report adds the ledger up, for a person who asks for it"

READ_WHOLE = {
    "count_states": "the slow truth that doctor holds against the tally",
    "living_owners": "an index of living owners only, a handful of processes",
    "rank_before": "its own subquery, which its limit bounds",
    "ready_of_lane": "its own subquery, which its limit bounds",
    "ready_after_unknown": "an index of undecided calls only, and its own subquery, which its limit bounds",
    "unwaited": "its own subquery, which its limit bounds",
    "unasked": "its own subquery, which its limit bounds",
    "waiting_for_person": "its own subquery, which its limit bounds",
    "in_flight": "indexes of leased jobs and of calls listened to only, as many as there are calls",
    "calls_in_flight": "an index of open attempts only, as many as there are calls",
    "measured_answers": "its own subquery, which its limit bounds",
    "report_lanes": REPORT,
    "report_lane": REPORT,
    "report_durations": REPORT,
    "report_artifacts": REPORT,
    "report_duplicates": REPORT,
    "report_crossings": REPORT,
    "report_saved": REPORT,
    "report_rollup": REPORT,
    "report_rollup_duplicates": REPORT,
}
SORTED = {
    "count_states": "seven groups",
    "ready_after_unknown": "a group for each lane, of a bounded number of calls",
    "open_or_undecided": "a handful of attempts of the keys asked for",
    "shares_of_job": "a group for each submission that is named",
    "submission_states": "a group for each state and disposition, for showing",
    "waiting_for_person": "a group for each reason, for showing",
    "calls_in_flight": "a group for each lane",
    "measured_answers": "what its limit lets through",
    "report_lanes": "the names of a few lanes",
    "report_durations": "what its limit lets through",
    "report_crossings": "one job's attempts, and the ids of jobs that crossed",
    "report_rollup": "one job's artifact",
    "report_rollup_duplicates": "one key's artifact",
}


@pytest.fixture(scope="module", params=["fresh", "analyzed"])
def queue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[apsw.Connection]:
    path = tmp_path_factory.mktemp("plans") / "queue.db"
    _fill(path)
    connection = apsw.Connection(str(path))
    if request.param == "analyzed":
        connection.execute("ANALYZE").fetchall()
        connection.close()
        connection = apsw.Connection(str(path))  # statistics are read when a file is opened
    yield connection
    connection.close()


def _fill(path: Path) -> None:
    Store(open_sqlite(path, durable=False), FakeClock()).close()
    fill(path)
    fill_answers(path)


def plan(queue: apsw.Connection, name: str) -> list[str]:
    sql = STATEMENTS[name]
    params = dict.fromkeys(re.findall(r":(\w+)", sql))
    return [row[3] for row in queue.execute(f"EXPLAIN QUERY PLAN {sql}", params)]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_statement_uses_its_index(queue: apsw.Connection, name: str) -> None:
    found = plan(queue, name)
    assert [wanted for wanted in HOT[name] if not any(wanted in step for step in found)] == [], found


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_reads_a_large_table_whole(queue: apsw.Connection, name: str) -> None:
    scanned = [step for step in plan(queue, name) if step.startswith("SCAN ") and step.split()[1] not in SMALL_TABLES]
    assert bool(scanned) == (name in READ_WHOLE), scanned


@pytest.mark.parametrize("name", sorted(STATEMENTS))
def test_no_statement_sorts_what_an_index_has_in_order(queue: apsw.Connection, name: str) -> None:
    sorts = [step for step in plan(queue, name) if "TEMP B-TREE" in step]
    assert bool(sorts) == (name in SORTED), sorts
