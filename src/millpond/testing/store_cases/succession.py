"""A new name for an owner that slept, and leases that nobody renewed."""

from __future__ import annotations

from millpond.rules.job import OwnerRow
from millpond.testing.store_scene import Scene


def succeed(scene: Scene, old: str = "", heir: str = "heir") -> bool:
    return scene.store.succeed(old or scene.worker, OwnerRow(heir, "worker", "host", 1, "boot", scene.now_ms))


def under_a_new_name_calls_go_on_and_their_jobs_are_settled(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    assert succeed(scene)
    assert (scene.attempt(uid).owner, scene.attempt(uid).outcome) == ("heir", None)
    assert scene.store.holds(lease)
    settled = scene.settle(uid, "an answer", lease=lease)
    assert (settled.accepted, settled.moved, scene.state(lease.job_id)) == (True, True, "done")


def under_a_new_name_a_soft_timeout_still_begins_a_hold(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    succeed(scene)
    assert scene.store.detach(uid, lease, 60_000)
    assert (scene.attempt(uid).listener, scene.state(lease.job_id)) == ("heir", "waiting/held")


def under_a_new_name_it_listens_on(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    succeed(scene)
    assert (scene.store.own_holds("heir"), scene.store.own_holds(scene.worker)) == ({uid: 60_000}, {})
    assert scene.state(lease.job_id) == "waiting/held"


def what_was_leased_and_not_recorded_goes_back_uncounted(scene: Scene) -> None:
    lease = scene.take(scene.ask("k").job_id)
    succeed(scene)
    assert (scene.state(lease.job_id), scene.job(lease.job_id).leases_lost) == ("ready", 0)
    with scene.lease_lost():
        scene.record(lease)
    assert scene.take(lease.job_id, owner="heir").lease_no == lease.lease_no + 1


def nothing_is_done_under_the_old_name(scene: Scene) -> None:
    scene.ask("k")
    succeed(scene)
    assert [owner.uuid for owner in scene.store.living_owners()] == ["heir"]
    with scene.lease_lost():
        scene.lease()
    with scene.unchanged():
        scene.store.reclaim(scene.worker)


def who_gave_the_old_name_up_too_late_takes_nothing(scene: Scene) -> None:
    """Another saw its beat stand still, and writes so only now: its calls are still listened to."""
    _, uid = scene.in_flight("k")
    succeed(scene)
    scene.store.reclaim(scene.worker)
    assert scene.attempt(uid).outcome is None


def a_name_that_was_given_up_leaves_nothing_to_its_heir(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    listened, other = scene.in_flight("l")
    scene.store.detach(other, listened, 60_000)
    scene.store.reclaim(scene.worker)
    assert not succeed(scene)
    assert (scene.attempt(uid).listener, scene.attempt(other).listener) == (None, None)
    assert not scene.store.holds(lease)
    assert scene.settle(uid, "from the grave", lease=lease).accepted
    assert scene.take(listened.job_id, owner="heir").job_id == listened.job_id


def others_keep_their_names(scene: Scene) -> None:
    other = scene.owner("other")
    theirs, uid = scene.in_flight("theirs", owner=other)
    succeed(scene)
    assert (scene.attempt(uid).owner, scene.store.holds(theirs)) == (other, True)


# --- leases that nobody renewed ---------------------------------------------------------------------------------------


def a_lease_that_lapses_takes_nothing_else_from_its_owner(scene: Scene) -> None:
    silent, kept = scene.take(scene.ask("a").job_id), scene.take(scene.ask("b").job_id)
    _, uid = scene.in_flight("c")
    lapsed = scene.store.lapse(silent.job_id, silent.lease_no)
    assert (lapsed.released, lapsed.ambiguous, lapsed.failed) == (1, 0, 0)
    assert (scene.state(silent.job_id), scene.job(silent.job_id).leases_lost) == ("ready", 1)
    assert scene.store.holds(kept)
    assert scene.attempt(uid).outcome is None
    assert scene.take(silent.job_id).lease_no == silent.lease_no + 1, "its owner lives, and leases on"


def a_call_whose_lease_lapses_is_ambiguous_and_its_late_reply_counts(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    lapsed = scene.store.lapse(lease.job_id, lease.lease_no)
    assert (lapsed.released, lapsed.ambiguous, lapsed.failed) == (0, 1, 0)
    assert (scene.attempt(uid).outcome, scene.job(lease.job_id).leases_lost) == ("ambiguous", 0)
    assert scene.settle(uid, "late", lease=lease).accepted
    assert scene.state(lease.job_id) == "done"


def a_call_under_a_lease_that_is_over_is_ended_by_its_lapse_all_the_same(scene: Scene) -> None:
    """Found by a simulation: its job was answered by an older call, its worker never came back."""
    lease, old = scene.in_flight("k")
    scene.store.lapse(lease.job_id, lease.lease_no)
    again = scene.take(lease.job_id)
    scene.store.resolve(old, "same")
    uid = scene.send(again)
    assert scene.settle(old, "late").moved
    assert scene.attempt(uid).outcome is None
    assert scene.store.lapse(again.job_id, again.lease_no).ambiguous == 1
    assert (scene.attempt(uid).outcome, scene.state(again.job_id)) == ("ambiguous", "done")


def a_lease_that_is_over_does_not_lapse(scene: Scene) -> None:
    lease = scene.take(scene.ask("k").job_id)
    scene.store.lapse(lease.job_id, lease.lease_no)
    scene.take(lease.job_id)
    with scene.unchanged():
        scene.store.lapse(lease.job_id, lease.lease_no)
        scene.store.lapse(999, 1)


def leases_that_lapse_are_capped_too(scene: Scene) -> None:
    receipt = scene.ask("k")
    for _ in range(3):
        lease = scene.take(receipt.job_id)
        scene.store.lapse(lease.job_id, lease.lease_no, max_leases_lost=3)
    job = scene.job(receipt.job_id)
    assert (job.state, job.reason) == ("failed", "leases_lost: worker died 3 times")
