"""Recall: a call that its lane can be asked for holds its key though nobody listens, and says when it is asked for."""

from __future__ import annotations

from millpond.rules.effects import Then
from millpond.rules.job import Lease, Reply
from millpond.rules.recall import absence
from millpond.testing.store_scene import RELEASE, Scene, ending

HOLD_MS = 60_000


def a_call_that_breaks_holds_its_job_while_its_lane_can_be_asked(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    row, job = scene.attempt(uid), scene.job(lease.job_id)
    assert (row.hold_until_ms, row.ask_ms) == (scene.now_ms + HOLD_MS, scene.now_ms)
    assert (scene.state(job.id), job.not_before_ms) == ("waiting/held", row.hold_until_ms)
    scene.clock.advance(HOLD_MS)
    again = scene.take(job.id)
    [undecided] = scene.store.look_back(again).past.undecided
    assert undecided.askable_age_ms == HOLD_MS, "asked once more before it is decided"


def a_dead_owner_s_call_holds_its_job_while_its_lane_can_be_asked(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.store.reclaim(scene.worker)
    assert (scene.attempt(uid).code, scene.state(lease.job_id)) == ("died", "waiting/held")
    assert [one.uid for one in scene.store.to_ask(["free"], until_ms=scene.now_ms)] == [uid]
    assert scene.store.to_ask(["paid"], until_ms=scene.now_ms) == []


def a_hold_goes_on_when_its_listener_dies(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.store.detach(uid, lease, 10_000)
    assert scene.attempt(uid).ask_ms is None, "whoever listens hears it"
    scene.clock.advance(4_000)
    scene.store.reclaim(scene.worker)
    assert (scene.attempt(uid).hold_until_ms, scene.attempt(uid).ask_ms) == (scene.now_ms + 6_000, scene.now_ms)


def no_hold_goes_past_a_due_time_that_can_still_be_met(scene: Scene) -> None:
    lease, uid = _in_flight(scene, due_ms=scene.now_ms + 5_000)
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    assert scene.attempt(uid).hold_until_ms == scene.now_ms + 5_000
    late, uid = _in_flight(scene, "late", due_ms=scene.now_ms - 1)
    scene.settle(uid, "ambiguous", RELEASE, lease=late)
    assert scene.attempt(uid).hold_until_ms == scene.now_ms + HOLD_MS, "nothing is left to be saved"


def a_recalled_reply_answers_the_held_job(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.store.reclaim(scene.worker)
    settled = scene.store.settle(uid, ending(Reply("kept")), Then(None), lane="free", lease=None, how="recalled")
    row = scene.attempt(uid)
    assert (settled.accepted, row.outcome, row.resolution, row.ask_ms) == (True, "ok", "recalled", None)
    assert (scene.state(lease.job_id), scene.text(1)) == ("done", "kept")


def an_absence_wakes_the_job_and_keeps_what_was_seen(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.store.reclaim(scene.worker)
    scene.store.settle(uid, absence("died"), Then(None), lane="free", lease=None, how="absent")
    row = scene.attempt(uid)
    assert (row.outcome, row.resolution, row.code, row.sent, row.cost) == ("retryable", "absent", "died", None, 0)
    assert scene.state(lease.job_id) == "ready"


def of_two_who_look_at_once_one_asks(scene: Scene) -> None:
    _, uid = _in_flight(scene)
    scene.store.reclaim(scene.worker)
    later = {uid: scene.now_ms + 1_000}
    assert (scene.store.ask_again(later), scene.store.ask_again(later)) == ({uid}, set())
    assert scene.store.next_ask_ms(["free"]) == scene.now_ms + 1_000
    assert scene.store.next_ask_ms(["paid"]) is None


def what_nobody_waits_for_is_decided_when_its_hold_is_over(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.store.reclaim(scene.worker)
    assert scene.store.forget(uid) is False, "its job is alive"
    scene.cancel(lease.job_id)
    assert scene.store.forget(uid) is False, "its hold is not over"
    scene.clock.advance(HOLD_MS)
    assert scene.store.forgotten("", ["free"]).uids == [], "its lane is asked first"
    assert scene.store.forget(uid, asked_lanes=["free"]) is False, "its lane is asked first"
    assert scene.store.forgotten("", []).uids == [uid]
    assert scene.store.forget(uid) is True
    assert (scene.attempt(uid).resolution, scene.attempt(uid).ask_ms) == ("nobody", None)
    assert scene.store.forgotten("", []).uids == []


def who_asks_anew_looks_back_at_what_a_lane_can_still_be_asked_for(scene: Scene) -> None:
    """Its hold is over and nobody has decided it: its lane is asked before the key is called again."""
    lease, uid = _in_flight(scene)
    scene.cancel(lease.job_id)
    scene.clock.advance(HOLD_MS)
    heir = scene.ask("k").job_id
    assert scene.state(heir) == "ready"
    [undecided] = scene.store.look_back(scene.take(heir)).past.undecided
    assert (undecided.uid, undecided.askable_age_ms) == (uid, HOLD_MS)


def so_does_who_retries(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.cancel(lease.job_id)
    scene.clock.advance(HOLD_MS)
    assert scene.retry(lease.job_id).moved
    assert (scene.attempt(uid).resolution, scene.state(lease.job_id)) == (None, "ready")
    [undecided] = scene.store.look_back(scene.take(lease.job_id)).past.undecided
    assert (undecided.uid, undecided.askable_age_ms) == (uid, HOLD_MS)


def other_work_of_a_caller_s_key_is_not_judged_by_what_the_key_named_before(scene: Scene) -> None:
    lease, _ = _in_flight(scene)
    scene.cancel(lease.job_id)
    scene.clock.advance(HOLD_MS)
    heir = scene.ask("k", work="other").job_id
    assert scene.take(heir).has_history is False


def whoever_was_asked_is_asked_no_more_once_all_is_known(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.clock.advance(HOLD_MS)
    scene.store.give(scene.take(lease.job_id), Then("ask"))
    assert scene.state(lease.job_id) == "waiting/asked"
    scene.store.settle(uid, absence(""), Then(None), lane="free", lease=None, how="absent")
    assert scene.state(lease.job_id) == "ready"


def a_person_decides_a_job_that_is_held(scene: Scene) -> None:
    lease, uid = _in_flight(scene)
    scene.store.detach(uid, lease, HOLD_MS)
    assert scene.store.decide(lease.job_id, "same").moved
    assert (scene.attempt(uid).resolution, scene.state(lease.job_id)) == ("same", "ready")
    with scene.unchanged():
        assert scene.store.decide(lease.job_id, "fail").why == "nothing of it is unknown"
    scene.settle(uid, "late")
    assert scene.state(lease.job_id) == "done", "its reply is received all the same"


def _in_flight(scene: Scene, key: str = "k", **wishes: int) -> tuple[Lease, str]:
    """A call that has just left, and that its lane can be asked for."""
    lease = scene.take(scene.ask(key, **wishes).job_id)
    scene.store.record(lease, f"call-{key}", "free", recall_hold_ms=HOLD_MS)
    return lease, f"call-{key}"
