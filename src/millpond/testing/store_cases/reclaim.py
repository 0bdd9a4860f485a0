"""Reclaim: a dead owner's work is taken back; what it may have sent is ambiguous, what it had not sent goes again."""

from __future__ import annotations

from millpond.rules.effects import Then
from millpond.testing.store_scene import Scene


def what_was_leased_and_not_sent_is_ready_again(scene: Scene) -> None:
    lease = scene.take(scene.ask("k").job_id)
    reclaimed = scene.store.reclaim(scene.worker)
    assert (reclaimed.released, reclaimed.ambiguous, reclaimed.failed) == (1, 0, 0)
    job = scene.job(lease.job_id)
    assert (job.state, job.leases_lost, job.attempts_made) == ("ready", 1, 0)
    assert scene.take(lease.job_id, owner=scene.owner("next")).has_history is False


def what_was_sent_is_ambiguous_and_its_hold_is_over(scene: Scene) -> None:
    """Nobody listens and no lane can be asked yet: the policy decides at the next lease."""
    lease, uid = scene.in_flight("k")
    reclaimed = scene.store.reclaim(scene.worker)
    assert (reclaimed.released, reclaimed.ambiguous, reclaimed.failed) == (0, 1, 0)
    row = scene.attempt(uid)
    assert (row.outcome, row.code, row.listener, row.hold_until_ms) == (
        "ambiguous", "died", None, scene.now_ms)  # fmt: skip
    assert (scene.state(lease.job_id), scene.job(lease.job_id).leases_lost) == ("ready", 0)
    again = scene.take(lease.job_id, owner=scene.owner("next"))
    assert [one.uid for one in scene.store.look_back(again).past.undecided] == [uid]


def what_was_listened_to_is_listened_to_no_more(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    scene.store.reclaim(scene.worker)
    assert (scene.attempt(uid).listener, scene.attempt(uid).hold_until_ms) == (None, scene.now_ms)
    assert scene.state(lease.job_id) == "ready"


def an_open_attempt_of_a_job_that_is_cancelled_is_ended_too(scene: Scene) -> None:
    """Its listener was the dead owner; the next job of the key waits for it no longer."""
    first, uid = scene.in_flight("k")
    scene.cancel(first.job_id, hold_ms=60_000)
    second = scene.ask("k").job_id
    assert scene.state(second) == "waiting/held"
    scene.store.reclaim(scene.worker)
    assert scene.attempt(uid).listener is None
    assert (scene.state(first.job_id), scene.state(second)) == ("cancelled", "ready")


def lost_leases_are_capped_and_counted_for_the_job(scene: Scene) -> None:
    receipt = scene.ask("k")
    reclaimed: list[tuple[int, int]] = []
    for lost in range(3):
        assert scene.job(receipt.job_id).leases_lost == lost
        owner = scene.owner(f"mortal{lost}")
        scene.take(receipt.job_id, owner=owner)
        did = scene.store.reclaim(owner, max_leases_lost=3)
        reclaimed.append((did.released, did.failed))
    assert reclaimed == [(1, 0), (1, 0), (0, 1)]
    job, result = scene.job(receipt.job_id), scene.store.result(receipt.request_id)
    assert (job.state, job.leases_lost) == ("failed", 3)
    assert result is not None
    assert result.error is not None
    assert result.error.code == "leases_lost"


def others_keep_what_they_hold(scene: Scene) -> None:
    mine = scene.take(scene.ask("mine").job_id)
    other = scene.owner("other")
    theirs, uid = scene.in_flight("theirs", owner=other)
    scene.store.reclaim(scene.worker)
    assert scene.store.holds(theirs)
    assert not scene.store.holds(mine)
    assert scene.attempt(uid).outcome is None


def reclaiming_twice_is_reclaiming_once(scene: Scene) -> None:
    scene.in_flight("a")
    scene.take(scene.ask("b").job_id)
    scene.store.reclaim(scene.worker)
    with scene.unchanged():
        again = scene.store.reclaim(scene.worker)
        assert (again.released, again.ambiguous, again.failed) == (0, 0, 0)
        scene.store.reclaim("never enlisted")


def the_dead_are_not_among_the_living(scene: Scene) -> None:
    scene.owner("other")
    scene.store.reclaim(scene.worker)
    assert [owner.uuid for owner in scene.store.living_owners()] == ["other"]


def a_call_of_the_dead_that_answers_after_all_is_accepted(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.reclaim(scene.worker)
    assert scene.settle(uid, "from the grave", lease=lease).accepted
    assert (scene.state(lease.job_id), scene.text(1)) == ("done", "from the grave")


def a_reclaimed_job_behind_anothers_call_is_held_and_its_lost_lease_counted(scene: Scene) -> None:
    other = scene.owner("other")
    first, uid = scene.in_flight("k", owner=other)
    scene.cancel(first.job_id, hold_ms=60_000)
    second = scene.ask("k", not_before_ms=scene.now_ms + 1).job_id
    scene.clock.advance(1)
    scene.take(second)
    scene.store.reclaim(scene.worker)
    assert (scene.state(second), scene.job(second).leases_lost) == ("waiting/held", 1)
    scene.settle(uid, "late")
    assert scene.state(second) == "done"


def an_owner_that_leaves_gives_back_what_it_holds_and_no_lost_lease_is_counted(scene: Scene) -> None:
    untouched = scene.take(scene.ask("a").job_id)
    sent, uid = scene.in_flight("b")
    scene.store.reclaim(scene.worker, died=False, max_leases_lost=1)
    assert (scene.state(untouched.job_id), scene.job(untouched.job_id).leases_lost) == ("ready", 0)
    assert (scene.state(sent.job_id), scene.attempt(uid).outcome) == ("ready", "ambiguous")
    assert scene.store.living_owners() == []


def an_owner_ends_its_hold_and_still_hears_the_late_reply(scene: Scene) -> None:
    """How long it is to be held is told as a length: by what the clocks show meanwhile no hold is ended."""
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=1_000)
    again = scene.ask("k").job_id
    scene.clock.advance(1_000_000)
    scene.route()
    assert (scene.store.own_holds(scene.worker), scene.state(again)) == ({uid: 1_000}, "waiting/held")
    scene.store.stop_listening(uid)
    assert (scene.store.own_holds(scene.worker), scene.state(again)) == ({}, "ready")
    scene.settle(uid, "late")
    assert (scene.state(again), scene.attempt(uid).resolution) == ("done", "late")


def a_serial_lane_counts_what_other_workers_hold(scene: Scene) -> None:
    other = scene.owner("other")
    first, uid = scene.in_flight("a")
    scene.ask("b")
    assert scene.lease(owner=other, serial=["free"]) == []
    scene.store.detach(uid, first, 60_000)
    assert scene.lease(owner=other, serial=["free"]) == [], "its call is still listened to"
    scene.settle(uid, "late")
    assert len(scene.lease(owner=other, serial=["free"])) == 1


def o09_the_work_of_a_worker_that_died_ends_all_the_same(scene: Scene) -> None:
    done: list[bool] = []
    for at in range(4):
        owner = scene.owner(f"mortal{at}")
        scene.ask(f"k{at}")
        lease = scene.take(owner=owner)
        if at % 2:
            scene.send(lease)
        scene.store.reclaim(owner)
    while leases := scene.lease(2):
        for lease in leases:
            for undecided in scene.store.look_back(lease).past.undecided:
                scene.store.resolve(undecided.uid, "same")
            done.append(scene.settle(scene.send(lease), "ok", Then(None), lease=lease).accepted)
    assert done == [True] * 4
    assert scene.store.counts()["done"] == 4
