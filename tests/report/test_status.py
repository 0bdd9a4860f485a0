"""How the queue stands: every figure from the queue as it is, at any backlog, and what needs a person."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from beside_no_book import build

from millpond.engine.drain_lock import Holder
from millpond.report.status import UNATTENDED_MS
from millpond.rules.admission import Closing
from millpond.rules.job import OwnerRow
from millpond.rules.policy import LanePolicy, Policy
from millpond.store import reader
from millpond.testing.store_scene import Scene

POLICY = Policy(lanes={"free": LanePolicy("free", max_in_flight=4), "paid": LanePolicy("paid", serial=True),
                       "spare": LanePolicy("spare", enabled=False)})  # fmt: skip
HOLDER = Holder(4242, "host", 1_800_000_000_000)


def test_lanes_say_how_they_stand_and_why(scene: Scene) -> None:
    scene.close_lane("free", Closing(scene.now_ms + 22_000, "rate_limited: slow\ndown", "saturated"))
    scene.close_lane("paid", Closing(None, "no_money", "down"))
    scene.close_lane("old", Closing(None, "gone", "down"))
    found = build(scene.store, POLICY, HOLDER)
    assert [(lane.name, lane.state) for lane in found.lanes] == [
        ("free", "saturated"), ("paid", "down"), ("spare", "off"), ("old", "unknown"),
    ]  # fmt: skip
    assert (found.lanes[0].reason, found.lanes[0].closed_until_ms) == ("rate_limited: slow down", scene.now_ms + 22_000)
    assert [lane.max_in_flight for lane in found.lanes] == [4, 1, 8, 0]
    words = found.in_words()
    assert "for 22 s more: rate_limited: slow down" in words
    assert "until a person opens it: no_money" in words
    assert "! lane paid is down: no_money; next: millpond lanes paid resume, once it is mended" in words
    assert [(alert.name, alert.since_ms) for alert in found.alerts] == [("lane_down:paid", scene.now_ms)]


def test_a_lane_that_opens_by_the_clock_is_open_again(scene: Scene) -> None:
    scene.close_lane("free", Closing(scene.now_ms + 1_000, "rate_limited", "saturated"))
    scene.clock.advance(1_001)
    assert build(scene.store, POLICY, HOLDER).lanes[0].state == "open"


def test_calls_in_flight_count_even_when_they_are_only_listened_to(scene: Scene) -> None:
    for key in ("a", "b"):
        scene.ask(key, lane="free")
    leases = scene.store.lease(scene.worker, {"free": 2}, 2)
    for lease in leases:
        assert scene.store.record(lease, f"uid-{lease.job_id}", "free") is not None
    scene.store.detach("uid-1", leases[0], 5_000)
    found = build(scene.store, POLICY, HOLDER)
    assert found.lanes[0].in_flight == 2
    assert found.counts["held"] == 1
    assert "waiting 1 (1 held)" in found.in_words()


def test_work_that_nobody_drains_becomes_an_alert_with_its_age(scene: Scene) -> None:
    scene.ask("a", lane="free")
    assert build(scene.store, POLICY, None).alerts == ()
    assert [need.name for need in build(scene.store, POLICY, None).needs_you] == ["no_drainer"]
    scene.clock.advance(UNATTENDED_MS + 60_000)
    [alert] = build(scene.store, POLICY, None).alerts
    assert (alert.name, alert.value, alert.limit) == ("no_drainer_s", 120.0, 60.0)
    assert alert.since_ms == scene.now_ms - 60_000
    assert "work is ready and nobody drains; the oldest was made 2 m ago" in build(scene.store, POLICY, None).in_words()
    assert build(scene.store, POLICY, HOLDER).alerts == ()


def test_next_is_a_drain_that_has_something_to_do(scene: Scene) -> None:
    def following() -> list[str]:
        return [need.next for need in build(scene.store, POLICY, None).needs_you]

    scene.ask("a", lane="free")
    assert following() == ["millpond drain"]
    scene.close_lane("free", Closing(scene.now_ms + 22_000, "rate_limited", "saturated"))
    assert following() == ["millpond drain --until-empty"]
    scene.ask("b", lane="paid")
    assert following() == ["millpond drain"], "a lane with ready work is open"
    scene.close_lane("paid", Closing(None, "no_money", "down"))
    assert following() == ["millpond lanes paid resume, once it is mended", "millpond drain --until-empty"]
    scene.close_lane("free", Closing(None, "no_money", "down"))
    assert "millpond drain" not in " ".join(following())
    assert [need.name for need in build(scene.store, POLICY, HOLDER).needs_you] == ["lane_down", "lane_down"]


def test_jobs_of_a_worker_that_died_need_a_drain(scene: Scene) -> None:
    scene.store.enlist(OwnerRow("gone", "drainer", socket.gethostname(), 4242, "an earlier boot", scene.now_ms))
    scene.ask("a", lane="free")
    scene.store.lease("gone", {"free": 1}, 1)
    [need] = build(scene.store, POLICY, None).needs_you
    assert (need.name, need.next) == ("abandoned", "millpond drain")
    assert "1 job leased, but its worker has died" in need.words
    assert build(scene.store, POLICY, HOLDER).needs_you == ()


def test_what_waits_for_a_persons_word_is_told(scene: Scene) -> None:
    scene.asks_a_person("a", lane="free")
    [need] = build(scene.store, POLICY, HOLDER).needs_you
    assert (need.name, need.next) == ("asked", "millpond jobs state:asked, then millpond decide ID pin|same|fail")
    assert need.words == "1 job waiting for your word after an unknown outcome"


def test_a_call_of_unknown_end_that_no_job_waits_for_is_shown_where_nobody_drains(scene: Scene) -> None:
    job, uid = scene.in_flight("a", lane="free")
    scene.cancel(job.job_id, hold_ms=60_000)
    scene.asks_a_person("b", lane="free")
    [first, _] = build(scene.store, POLICY, None).needs_you
    scene.settle(uid, "ambiguous")
    needs = {need.name: need for need in build(scene.store, POLICY, None).needs_you}
    assert first.name == "asked"
    assert (needs["undecided"].words, needs["undecided"].next) == (
        "1 call of unknown end for which no job waits any more; the cost stays reserved", "millpond reconcile",
    )  # fmt: skip
    assert [need.name for need in build(scene.store, POLICY, HOLDER).needs_you] == ["asked"]


def test_the_ready_jobs_of_a_lane_are_counted_up_to_a_limit(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        scene.ask(f"k{n}", lane="free")
    assert scene.store.ready_of_lane("free", limit=3) == 3
    assert build(scene.store, POLICY, HOLDER).lanes[0].ready == 5
    assert reader.COUNT_LIMIT == 10_000


def test_a_status_reads_through_indexes_alone(scene: Scene) -> None:
    """No statement of a status may walk over jobs or attempts: it costs the same at a million of them."""
    import apsw

    texts = (Path(reader.__file__).with_name("statements.sql")).read_text()
    from millpond.db.sqlite import TOKENS
    from millpond.db.statements import expand, load

    named = load(texts)
    database = apsw.Connection(str(scene.store.db.path))  # type: ignore[attr-defined]
    for name in ("tally", "lane_states", "calls_in_flight", "ready_of_lane", "oldest_ready", "next_due",
                 "waiting_for_person", "ready_after_unknown", "unwaited"):  # fmt: skip
        sql = expand(named[name], TOKENS, name)
        bound = {"lane": "free", "limit": 10, "now_ms": 0}
        plan = [row[3] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}", bound).fetchall()]
        walks = [step for step in plan if step.startswith("SCAN") and "USING" not in step]
        assert [step for step in walks if "job" in step or "attempt" in step] == [], (name, plan)
    database.close()
