"""Holds without a listener: they end by the clock. No verb makes one yet (that needs a lane that can be asked, as the
safety issue builds it), so the listener is struck out by SQL here, and what follows is the verbs' own doing."""

from __future__ import annotations

import apsw
import pytest

from millpond.testing.store_scene import Scene

HOLD_MS = 60_000


@pytest.fixture
def held(scene: Scene, sql: apsw.Connection) -> tuple[int, str]:
    """A cancelled job whose attempt may still speak for a minute, though nobody listens."""
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=HOLD_MS)
    sql.execute("UPDATE attempt SET listener = NULL WHERE uid = ?", (uid,)).fetchall()
    return lease.job_id, uid


@pytest.mark.usefixtures("held")
def test_a_new_job_waits_for_the_end_of_the_hold(scene: Scene) -> None:
    job_id = scene.ask("k").job_id
    assert (scene.state(job_id), scene.job(job_id).not_before_ms) == ("waiting/held", scene.now_ms + HOLD_MS)
    scene.clock.advance(HOLD_MS - 1)
    assert scene.lease() == []
    scene.clock.advance(1)
    assert scene.take(job_id).has_history, "the new job inherits what was tried"


def test_a_persons_retry_waits_for_the_end_of_the_hold(scene: Scene, held: tuple[int, str]) -> None:
    job_id, _ = held
    scene.retry(job_id)
    assert (scene.state(job_id), scene.job(job_id).not_before_ms) == ("waiting/held", scene.now_ms + HOLD_MS)
    scene.clock.advance(HOLD_MS)
    assert scene.take(job_id).job_id == job_id


def test_record_waits_for_the_end_of_the_hold(scene: Scene, held: tuple[int, str]) -> None:
    """The job was scheduled for before the hold's end: it is leased then, and record looks again."""
    job_id = scene.ask("k", not_before_ms=scene.now_ms + 10).job_id
    ends = scene.attempt(held[1]).hold_until_ms
    scene.clock.advance(10)
    assert scene.record(scene.take(job_id)) is None
    assert (scene.state(job_id), scene.job(job_id).not_before_ms) == ("waiting/held", ends)


def test_a_hold_that_was_made_longer_is_waited_for(scene: Scene, sql: apsw.Connection, held: tuple[int, str]) -> None:
    job_id = scene.ask("k").job_id
    longer = scene.now_ms + 2 * HOLD_MS
    sql.execute("UPDATE attempt SET hold_until_ms = ? WHERE uid = ?", (longer, held[1])).fetchall()
    scene.clock.advance(HOLD_MS)
    assert scene.lease() == []
    assert (scene.state(job_id), scene.job(job_id).not_before_ms) == ("waiting/held", longer)


def test_a_decision_ends_the_hold_and_wakes_who_waits_for_it(scene: Scene, held: tuple[int, str]) -> None:
    waits = scene.ask("k").job_id
    scene.store.resolve(held[1], "fail")
    assert scene.state(waits) == "ready"


def test_a_late_reply_answers_the_job_that_waits_for_the_clock(scene: Scene, held: tuple[int, str]) -> None:
    receipt = scene.ask("k")
    assert scene.settle(held[1], "late").moved
    assert scene.text(receipt.request_id) == "late"
