"""A stop is told wherever somebody looks for why nothing is done: status, its needs, explain, what is left."""

from __future__ import annotations

from beside_no_book import build

from millpond.engine.drain_lock import Holder
from millpond.report.explain import explain
from millpond.report.left import why_left
from millpond.report.status import UNATTENDED_MS
from millpond.rules.admission import Closing
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import FREE
from millpond.rules.stops import wanted
from millpond.testing.store_scene import Scene

POLICY = Policy(lanes={"free": LanePolicy("free", price=FREE), "dear": LanePolicy("dear"),
                       "spare": LanePolicy("spare", enabled=False)})  # fmt: skip
HOLDER = Holder(4242, "host", 1_800_000_000_000)


def test_a_lane_is_stopped_whatever_it_said_itself(scene: Scene) -> None:
    scene.close_lane("dear", Closing(None, "no_money", "down"))
    scene.store.stop(wanted("paid"), origin="cli")
    found = build(scene.store, POLICY, HOLDER)
    assert [(lane.name, lane.state) for lane in found.lanes] == [
        ("free", "open"), ("dear", "stopped"), ("spare", "off")
    ]  # fmt: skip
    assert [one.scope for one in found.stopped] == ["paid"]
    assert found.lanes[1].since_ms == scene.now_ms
    words = found.in_words()
    assert "dear   stopped  0/8    0      lanes that may cost stopped by a person since " in words
    assert "! a person has stopped lanes that may cost (cli, 0 s ago); next: millpond resume --paid" in words


def test_the_need_names_the_verb_that_ends_just_that_stop(scene: Scene) -> None:
    for which in ("all", "paid", ["free"]):
        scene.store.stop(wanted(which), origin="api")
    needs = build(scene.store, POLICY, None).needs_you
    assert [(need.name, need.next) for need in needs] == [
        ("stopped", "millpond resume"), ("stopped", "millpond resume free"), ("stopped", "millpond resume --paid"),
    ]  # fmt: skip


def test_work_that_is_stopped_is_no_alert_and_needs_no_drain(scene: Scene) -> None:
    scene.ask("a", lane="dear")
    scene.store.stop(wanted("paid"), origin="cli")
    scene.clock.advance(UNATTENDED_MS + 60_000)
    found = build(scene.store, POLICY, None)
    assert (found.alerts, [need.name for need in found.needs_you]) == ((), ["stopped"])
    assert found.oldest_ready_ms is not None, "how old it is stays known"
    scene.ask("b", lane="free")
    scene.clock.advance(UNATTENDED_MS + 60_000)
    found = build(scene.store, POLICY, None)
    assert [alert.value for alert in found.alerts] == [120.0], "what is not stopped is nobody's wish to leave"
    assert [need.name for need in found.needs_you] == ["stopped", "no_drainer"]
    scene.store.stop(wanted("all"), origin="cli")
    assert build(scene.store, POLICY, None).alerts == ()


def test_explain_names_the_stop_and_not_a_drain_that_would_do_nothing(scene: Scene) -> None:
    job_id, new = scene.ask("a", lane="dear").job_id, scene.ask("new").job_id
    scene.store.stop(wanted("all"), origin="cli")
    unrouted, *_ = explain(scene.store, POLICY, new, scene.now_ms, None).splitlines()
    assert "its lane is chosen when it is next looked at; all lanes stopped by a person since " in unrouted
    assert unrouted.endswith("(cli): `millpond resume` ends that")
    scene.store.resume(wanted("all"), origin="cli")
    scene.store.stop(wanted("paid"), origin="cli")
    assert "stopped" not in explain(scene.store, POLICY, new, scene.now_ms, None).splitlines()[0], "it may be free"
    routed, *_ = explain(scene.store, POLICY, job_id, scene.now_ms, None).splitlines()
    assert "is ready: 1st of lane dear; lanes that may cost stopped by a person since " in routed
    assert "`millpond resume --paid` ends that" in routed
    assert "millpond drain" not in routed
    free = scene.ask("b", lane="free").job_id
    assert "stopped" not in explain(scene.store, POLICY, free, scene.now_ms, None).splitlines()[0]


def test_what_is_left_is_told_with_its_stop(scene: Scene) -> None:
    scene.ask("a", lane="dear")
    scene.store.stop(wanted(["dear"]), origin="cli")
    [line] = why_left(scene.store, POLICY, ["free", "dear"], lambda verb: f"mill {verb}")
    assert line.startswith("lane dear: lane dear stopped by a person since ")
    assert line.endswith("(cli); 1 job ready for it; `mill resume dear` ends that")
