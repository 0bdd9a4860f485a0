"""What the schema refuses by itself, whatever the code above it does."""

from __future__ import annotations

import apsw
import pytest

from millpond.rules.lifecycle import LIVE
from millpond.testing.store_scene import Scene

IMPOSSIBLE = {
    "leased without an owner": "UPDATE job SET state = 'leased' WHERE id = 1",
    "an owner without a lease": "UPDATE job SET lease_owner = 'x' WHERE id = 1",
    "waiting for nothing": "UPDATE job SET state = 'waiting' WHERE id = 1",
    "a reason without waiting": "UPDATE job SET wait_reason = 'held' WHERE id = 1",
    "an unknown reason": "UPDATE job SET state = 'waiting', wait_reason = 'bored' WHERE id = 1",
    "scheduled for no time": "UPDATE job SET state = 'waiting', wait_reason = 'scheduled' WHERE id = 1",
    "a time without waiting": "UPDATE job SET not_before_ms = 1 WHERE id = 1",
    "done without an artifact": "UPDATE job SET state = 'done', settled_ms = 1 WHERE id = 1",
    "an artifact without being done": "UPDATE job SET artifact_id = 1 WHERE id = 1",
    "failed without a reason": "UPDATE job SET state = 'failed', settled_ms = 1 WHERE id = 1",
    "over without a time": "UPDATE job SET state = 'cancelled' WHERE id = 1",
    "settled while alive": "UPDATE job SET settled_ms = 1 WHERE id = 1",
    "an unknown state": "UPDATE job SET state = 'lost', settled_ms = 1 WHERE id = 1",
    "fewer than no attempts": "UPDATE job SET attempts_made = -1 WHERE id = 1",
    "fewer than no requests": "UPDATE job SET requests = -1 WHERE id = 1",
    "a due time that is unknown": "UPDATE job SET due_ms = NULL WHERE id = 1",
    "an unknown class": "UPDATE job SET service_class = 'urgent' WHERE id = 1",
    "an unknown outcome": "UPDATE attempt SET outcome = 'fine', ended_ms = 1 WHERE seq = 1",
    "an outcome without an end": "UPDATE attempt SET ended_ms = NULL WHERE seq = 1",
    "an end without an outcome": "UPDATE attempt SET outcome = NULL, artifact_id = NULL WHERE seq = 1",
    "a listener to what has ended": "UPDATE attempt SET listener = 'x' WHERE seq = 1",
    "an artifact of a failure": "UPDATE attempt SET outcome = 'retryable' WHERE seq = 1",
    "an unknown resolution": "UPDATE attempt SET resolution = 'maybe' WHERE seq = 1",
    "retired at no attempt": "UPDATE artifact SET retired_ms = 1",
    "an unknown disposition": "UPDATE request SET disposition = 'lost'",
    "a request for no job": "UPDATE request SET job_id = 99",
    "a request of no submission": "UPDATE request SET submission_id = 99 WHERE id = 1",
    "a reply to no attempt": "INSERT INTO reply (attempt_uid, body) VALUES ('nobody', '{}')",
    "an artifact of no attempt": "UPDATE artifact SET attempt_uid = 'nobody'",
    "a payload of no job": "INSERT INTO payload (job_id, body) VALUES (99, '{}')",
    "a lane closed by nobody": "INSERT INTO lane_state VALUES ('l', 1, 'r', 'nobody', 1)",
    "an owner half dead": "UPDATE owner SET dead = 2",
    "a done job losing its artifact": "DELETE FROM artifact",
    "an attempt losing its artifact's reply": "DELETE FROM attempt",
}

TWICE = {
    "two live jobs of one key": "UPDATE job SET idempotency_key = 'a' WHERE id = 2",
    "two open attempts of one key": "UPDATE attempt SET idempotency_key = 'b' WHERE seq = 3",
    "two artifacts in force of one key": (
        "INSERT INTO artifact (idempotency_key, fingerprint, attempt_uid, accepted_ms) "
        "SELECT 'answered', 'f', uid, 1 FROM attempt WHERE seq = 2"
    ),
    "one reply in force twice": (
        "INSERT INTO artifact (idempotency_key, fingerprint, attempt_uid, accepted_ms) "
        "SELECT 'other', 'f', attempt_uid, 1 FROM artifact"
    ),
    "one attempt twice": "UPDATE attempt SET uid = 'attempt-1' WHERE seq = 2",
    "one place in a submission twice": "UPDATE request SET submission_id = 1",
}


@pytest.fixture
def furnished(scene: Scene) -> Scene:
    """Job 1 and 2 are ready, 3 is answered by attempt 1, 4 and 5 have open attempts 2 and 3."""
    scene.ask("a", priority=-1)
    scene.ask("also", priority=-1)
    scene.answered("answered")
    scene.in_flight("b")
    scene.in_flight("c")
    return scene


@pytest.mark.parametrize("what", IMPOSSIBLE)
@pytest.mark.usefixtures("furnished")
def test_the_schema_refuses(sql: apsw.Connection, what: str) -> None:
    with pytest.raises(apsw.ConstraintError, match=r"CHECK|FOREIGN KEY|NOT NULL"):
        sql.execute(IMPOSSIBLE[what]).fetchall()


@pytest.mark.parametrize("what", TWICE)
@pytest.mark.usefixtures("furnished")
def test_the_schema_has_but_one(sql: apsw.Connection, what: str) -> None:
    with pytest.raises(apsw.ConstraintError, match="UNIQUE"):
        sql.execute(TWICE[what]).fetchall()


def test_an_id_is_never_given_again(furnished: Scene, sql: apsw.Connection) -> None:
    last = furnished.ask("last").job_id
    for table in ("payload WHERE job_id", "request WHERE job_id", "job WHERE id"):
        sql.execute(f"DELETE FROM {table} = {last}").fetchall()
    assert furnished.ask("next").job_id > last


def test_the_live_column_says_what_the_lifecycle_says(furnished: Scene, sql: apsw.Connection) -> None:
    furnished.failed("failed")
    furnished.cancel(furnished.ask("cancelled").job_id)
    found = {state: bool(live) for state, live in sql.execute("SELECT DISTINCT state, live FROM job")}
    assert found == {state: state in LIVE for state in found}
    assert set(found) == {"ready", "leased", "done", "failed", "cancelled"}
