"""Paid replies beside the queue are told by status and doctor, as long as they are not known to be in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from beside_no_book import build

from millpond.db.sqlite import SqliteDatabase
from millpond.engine.kept import Kept
from millpond.engine.spool import Spool, replay
from millpond.report.explain import explain
from millpond.report.spooled import spooled
from millpond.rules.effects import Heard, Then
from millpond.rules.job import Reply
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.verdict import end
from millpond.testing.scripted_lane import evidence_of
from millpond.testing.store_scene import Scene

LANE = LanePolicy("free", kind="callable")
POLICY = Policy(lanes={"free": LANE})


@pytest.fixture
def folder(scene: Scene) -> Path:
    assert isinstance(scene.store.db, SqliteDatabase)
    return scene.store.db.lock_folder


@pytest.fixture
def spool(folder: Path) -> Spool:
    """Of a process that was killed with what it keeps."""
    spool = Spool(folder, "killed", 4)
    spool.prepare()
    return spool


def keep(spool: Spool, *uids: str) -> None:
    for uid in uids:
        spool.keep(
            Kept(uid, "free", end(Heard(evidence_of(Reply("quack")), 0, 0.0), LANE, POLICY), Then(None), None, 0)
        )


def test_a_job_whose_reply_waits_to_be_written_is_not_said_to_be_worked_on(scene: Scene, spool: Spool) -> None:
    lease, uid = scene.in_flight()
    keep(spool, uid)
    said = explain(scene.store, POLICY, lease.job_id, scene.now_ms, None).splitlines()[0]
    assert said == (
        f"job 1 is leased, and attempt 1 on lane free is over: how it ended is kept in {spool.path}, "
        "and written as soon as the queue takes it"
    )


def test_replies_that_wait_are_told_until_they_are_written(scene: Scene, folder: Path, spool: Spool) -> None:
    assert build(scene.store, POLICY, None).needs_you == ()
    _, uid = scene.in_flight()
    keep(spool, uid, "of another queue")
    [need] = [one for one in build(scene.store, POLICY, None).needs_you if one.name == "spooled"]
    assert need.words == f"2 paid replies in {spool.path}, to be written to the queue"
    assert need.next.startswith("millpond drain")
    spool.remove()  # its lock is free, and what it kept is left
    replay(scene.store, folder)
    [one] = spooled(folder)
    refused = spool.path.with_suffix(".refused")
    assert one.words.startswith(f"2 paid replies in {refused}, which this queue cannot take")
    refused.unlink()
    assert list(spooled(folder)) == []


def test_a_spool_that_cannot_be_read_may_hold_some(folder: Path, spool: Spool) -> None:
    other = spool.path.with_name("other.spool")
    other.mkdir()
    [one] = spooled(folder)
    assert one.words == f"{other}: Is a directory; replies that were paid for may stand there"
    spool.remove()
