"""The views that others read: the two published queries as they were printed, on a ledger of ours."""

from __future__ import annotations

import apsw
import pytest
from published import DUPLICATES, TOKENS_AND_CROSSINGS

from millpond.rules.effects import Then
from millpond.rules.job import Reply, Usage
from millpond.testing.store_scene import RELEASE, Scene


@pytest.fixture
def ledger(scene: Scene) -> Scene:
    """Four answered jobs: one on free, one crossed to paid, one paid twice for, one asked afresh."""
    scene.answered("plain")  # 3 + 5 tokens
    lease, uid = scene.in_flight("crossed")
    scene.settle(uid, "retryable", Then("release", next_lane="paid"), lease=lease)
    [lease] = scene.lease(room={"paid": 1})
    paid(scene, lease, "crossed, answered", Usage(100, 20))
    lease, ghost = scene.in_flight("twice")
    scene.settle(ghost, "ambiguous", Then("release", next_lane="paid"), lease=lease)
    scene.store.resolve(ghost, "pin")
    [lease] = scene.lease(room={"paid": 1})
    paid(scene, lease, "first in force", Usage(100, 20))
    scene.settle(ghost, Reply("loser", usage=Usage(10, 1)))
    scene.answered("fresh")
    scene.answered("fresh", fresh=True)
    return scene


def paid(scene: Scene, lease: object, text: str, usage: Usage) -> None:
    uid = "paid-" + text
    assert scene.store.record(lease, uid, "paid", "paid") is not None  # type: ignore[arg-type]
    assert scene.settle(uid, Reply(text, usage=usage), lease=lease, lane="paid").accepted  # type: ignore[arg-type]


@pytest.mark.usefixtures("ledger")
def test_tokens_for_each_artifact_and_crossings_for_each_job(sql: apsw.Connection) -> None:
    """8 + 120 + 131 + 8 + 8 tokens for 5 jobs with an artifact each; two of them were tried on both tiers."""
    assert sql.execute(TOKENS_AND_CROSSINGS).fetchall() == [(55.0, 0.4)]


@pytest.mark.usefixtures("ledger")
def test_no_key_has_two_artifacts(sql: apsw.Connection) -> None:
    assert sql.execute(DUPLICATES).fetchall() == []


@pytest.mark.usefixtures("ledger")
def test_the_query_of_duplicates_would_find_one(sql: apsw.Connection) -> None:
    """Not vacuous: the keys are all there, with one artifact each."""
    found = sql.execute(DUPLICATES.replace("n > 1", "n = 1")).fetchall()
    assert found == [("crossed", 1), ("fresh", 1), ("plain", 1), ("twice", 1)]


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("ok", "ok"), ("ambiguous", "ambiguous"), ("retryable", "retryable"), ("saturated", "retryable"),
        ("lane_down", "retryable"), ("permanent", "permanent"), ("unfit", "permanent"), ("unusable", "permanent"),
    ],
)  # fmt: skip
def test_our_eight_outcomes_are_shown_in_the_four_published_words(
    scene: Scene, sql: apsw.Connection, outcome: str, word: str
) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, outcome, RELEASE, lease=lease)
    assert sql.execute("SELECT idem_key, attempt_no, lane, outcome FROM job_attempt").fetchall() == [
        ("k", 1, "free", word)
    ]


def test_an_open_attempt_has_no_outcome_and_unknown_tokens_count_as_none(scene: Scene, sql: apsw.Connection) -> None:
    scene.in_flight("k")
    shown = sql.execute("SELECT outcome, ended_at, tokens_in, tokens_out, artifact_id FROM job_attempt").fetchall()
    assert shown == [(None, None, 0, 0, None)]
    assert sql.execute("SELECT free_attempts, paid_attempts, artifacts FROM job_rollup").fetchall() == [(1, 0, 0)]


def test_a_loser_shows_the_artifact_in_force_of_its_key(ledger: Scene, sql: apsw.Connection) -> None:
    shown = sql.execute("SELECT attempt_no, lane, artifact_id FROM job_attempt WHERE idem_key = 'twice'").fetchall()
    assert [(number, lane) for number, lane, _ in shown] == [(1, "free"), (2, "paid")]
    assert len({artifact for *_, artifact in shown}) == 1
    assert [row.artifact_id is None for row in ledger.store.attempts() if row.idempotency_key == "twice"] == [
        True,
        False,
    ]


def test_a_view_refuses_to_be_written(scene: Scene, sql: apsw.Connection) -> None:
    scene.ask("k")
    for view in ("v_job", "v_result", "job_attempt", "job_rollup"):
        with pytest.raises(apsw.SQLError, match="cannot modify"):
            sql.execute(f"DELETE FROM {view}").fetchall()
