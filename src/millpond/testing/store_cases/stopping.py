"""Stop and resume: a person's word that holds for lease and record from the commit on, and loses nothing."""

from __future__ import annotations

from millpond.rules.effects import Instead, Recorded
from millpond.rules.errors import LeaseLost
from millpond.rules.stops import Stop, Wanted, wanted
from millpond.testing.store_scene import Scene

ALL, PAID = wanted("all"), wanted("paid")
FREE = ("free",)
"""The lanes that are known to be free; `paid`, and whatever is not named here, may cost."""
BOTH = {"free": 10, "paid": 10}


def nothing_is_leased_while_all_is_stopped(scene: Scene) -> None:
    job_id = scene.ask("a").job_id
    scene.store.stop(ALL, origin="cli")
    assert scene.lease(5, room=BOTH, free_lanes=FREE) == []
    assert scene.state(job_id) == "ready", "what is due is woken and routed all the same"
    scene.store.resume(ALL, origin="cli")
    assert [lease.job_id for lease in scene.lease(5, room=BOTH, free_lanes=FREE)] == [job_id]


def a_stop_of_what_may_cost_leaves_free_lanes_at_work(scene: Scene) -> None:
    free, paid = scene.ask("a", lane="free").job_id, scene.ask("b", lane="paid").job_id
    scene.store.stop(PAID, origin="cli")
    assert [lease.job_id for lease in scene.lease(5, room=BOTH, free_lanes=FREE)] == [free]
    assert scene.state(paid) == "ready"


def a_lane_of_unknown_price_may_cost(scene: Scene) -> None:
    scene.ask("a", lane="free")
    scene.store.stop(PAID, origin="cli")
    assert scene.lease(5, room=BOTH) == [], "nobody said that it is free"


def one_lane_is_stopped_by_its_name(scene: Scene) -> None:
    scene.ask("a", lane="free")
    paid = scene.ask("b", lane="paid").job_id
    scene.store.stop(wanted(["free"]), origin="cli")
    assert [lease.job_id for lease in scene.lease(5, room=BOTH, free_lanes=FREE)] == [paid]


def record_gives_a_job_back_untouched(scene: Scene) -> None:
    for stop in (ALL, PAID, wanted(["paid"])):
        _gives_back(scene, stop)


def _gives_back(scene: Scene, stop: list[Wanted]) -> None:
    scene.ask(f"k{stop}", lane="paid")
    [lease] = scene.lease(1, room=BOTH)
    scene.store.stop(stop, origin="cli")
    assert scene.store.record(lease, "never", "paid", "paid", FREE) == Instead("stopped")
    after = scene.job(lease.job_id)
    assert (after.state, after.next_lane, after.attempts_made, after.leases_lost) == ("ready", "paid", 0, 0)
    assert list(scene.store.attempts(lease.job_id)) == []
    told = list(scene.store.events(0, 10_000))[-1]
    assert (told.kind, told.job_id, list(told.data)) == ("release", lease.job_id, ["stopped"])
    scene.store.resume(stop, origin="cli")
    [again] = scene.lease(1, room=BOTH)
    assert again.attempt_no == lease.attempt_no
    assert isinstance(scene.store.record(again, f"sent {stop}", "paid", "paid", FREE), Recorded)
    scene.settle(f"sent {stop}", lease=again, lane="paid")


def a_stopped_record_is_fenced_as_any_other(scene: Scene) -> None:
    lease = scene.take(scene.ask("a").job_id)
    scene.cancel(lease.job_id)
    scene.store.stop(ALL, origin="cli")
    with scene.refused(LeaseLost):
        scene.record(lease)


def calls_in_flight_go_on_to_their_end(scene: Scene) -> None:
    lease, uid = scene.in_flight("a")
    scene.store.stop(ALL, origin="cli")
    assert scene.settle(uid, lease=lease).accepted
    assert scene.state(lease.job_id) == "done"


def stopping_twice_changes_nothing(scene: Scene) -> None:
    first = scene.store.stop(ALL, origin="cli")
    scene.clock.advance(5_000)
    second = scene.store.stop(ALL, origin="api")
    assert (first.changed, second.changed) == (first.standing, ())
    assert second.standing == (Stop("all", None, scene.now_ms - 5_000, "cli"),)
    assert scene.kinds().count("stop") == 1


def resuming_what_is_not_stopped_changes_nothing(scene: Scene) -> None:
    assert scene.store.resume(ALL, origin="cli").changed == ()
    scene.store.stop(ALL, origin="cli")
    left = scene.store.resume(PAID, origin="cli")
    assert (left.changed, [one.scope for one in left.standing]) == ((), ["all"])
    assert scene.kinds().count("resume") == 0


def to_resume_all_ends_every_stop(scene: Scene) -> None:
    for stop in (PAID, wanted(["free", "paid"]), ALL):
        scene.store.stop(stop, origin="cli")
    assert [one.words for one in scene.store.stops()] == ["all lanes", "lane free", "lane paid", "lanes that may cost"]
    assert len(scene.store.resume(ALL, origin="cli").changed) == 4
    assert scene.store.stops() == ()


def a_stop_of_a_lane_called_paid_is_not_one_of_what_may_cost(scene: Scene) -> None:
    scene.store.stop(wanted(["paid"]), origin="cli")
    scene.ask("a", lane="other")
    assert len(scene.lease(1, room={"other": 1})) == 1


def stop_and_resume_are_told_in_the_feed(scene: Scene) -> None:
    scene.store.stop(wanted(["free"]), origin="cli")
    scene.store.resume(ALL, origin="api")
    told = [(event.kind, event.job_id, dict(event.data)) for event in scene.store.events(0, 10)]
    assert told == [
        ("stop", None, {"scope": "lane", "lane": "free", "origin": "cli"}),
        ("resume", None, {"scope": "lane", "lane": "free", "origin": "api"}),
    ]
