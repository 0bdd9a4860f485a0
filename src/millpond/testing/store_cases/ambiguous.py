"""Ambiguous: a call whose end is unknown holds its key while somebody listens, and then a policy decides."""

from __future__ import annotations

from decimal import Decimal

from millpond.rules.effects import Then
from millpond.rules.price import Cost
from millpond.testing.store_scene import RELEASE, Scene


def a_soft_timeout_holds_the_job_while_its_call_is_listened_to(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    assert scene.store.detach(uid, lease, 60_000) is True
    row = scene.attempt(uid)
    assert (row.outcome, row.listener, row.resolution) == ("ambiguous", scene.worker, None)
    assert row.hold_until_ms == scene.now_ms + 60_000
    assert scene.state(lease.job_id) == "waiting/held"
    assert scene.store.counts()["held"] == 1
    scene.clock.advance(10**9)
    assert scene.lease() == [], "only the listener's own clock ends its hold, never the wall's"


def without_a_hold_a_soft_timeout_frees_the_job_at_once(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    assert scene.store.detach(uid, lease, 0) is True
    assert (scene.attempt(uid).listener, scene.state(lease.job_id)) == (None, "ready")
    again = scene.take(lease.job_id)
    [undecided] = scene.store.look_back(again).past.undecided
    assert (undecided.uid, undecided.lane) == (uid, "free")


def a_detached_call_that_answers_makes_the_job_done(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    settled = scene.settle(uid, "late", cost=Decimal(1))
    assert (settled.accepted, settled.moved, settled.requests) == (True, True, 1)
    row = scene.attempt(uid)
    assert (row.outcome, row.resolution, row.listener, row.cost) == ("ok", "late", None, Decimal(1))
    assert (scene.state(lease.job_id), scene.text(1)) == ("done", "late")


def a_detached_call_that_was_refused_wakes_the_job(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    scene.settle(uid, "retryable")
    assert (scene.attempt(uid).outcome, scene.attempt(uid).resolution) == ("retryable", "late")
    assert scene.state(lease.job_id) == "ready"


def a_detached_call_whose_lane_is_owed_a_pause_lets_its_job_back_off(scene: Scene) -> None:
    for key, end in (("k", "retryable"), ("m", "ambiguous")):
        lease, uid = scene.in_flight(key)
        scene.store.detach(uid, lease, 60_000)
        scene.settle(uid, end, Then(None, delay_ms=2_000))
        assert (scene.state(lease.job_id), scene.store.counts()["held"]) == ("waiting/backoff", 0)
        assert scene.job(lease.job_id).not_before_ms == scene.now_ms + 2_000
        scene.clock.advance(1_999)
        assert scene.lease() == []
        scene.clock.advance(1)
        assert scene.take(lease.job_id).has_history


def a_pause_is_not_given_to_a_job_that_waits_for_another_call(scene: Scene) -> None:
    """The hold of the first call was over and the second is listened to when the first one ends."""
    lease, first = scene.in_flight("k")
    scene.store.detach(first, lease, 1_000)
    scene.store.stop_listening(first)
    again = scene.take(lease.job_id)
    scene.store.resolve(first, "same")
    second = scene.send(again)
    scene.store.detach(second, again, 60_000)
    scene.settle(first, "retryable", Then(None, delay_ms=2_000))
    assert scene.state(lease.job_id) == "waiting/held"
    assert scene.job(lease.job_id).not_before_ms is None


def a_soft_timeout_after_the_end_holds_nothing(scene: Scene) -> None:
    """Nobody would wake the job: its attempt has ended already."""
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "retryable")
    assert scene.store.detach(uid, lease, 60_000) is True
    assert (scene.attempt(uid).outcome, scene.state(lease.job_id)) == ("retryable", "ready")


def a_hold_that_is_given_up_wakes_the_job(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    assert scene.store.detach(uid, lease, 0) is False
    assert (scene.attempt(uid).listener, scene.state(lease.job_id)) == (None, "ready")


def a_scheduled_job_that_wakes_within_a_hold_decides_nothing(scene: Scene) -> None:
    """The call of a cancelled job is still listened to when the next job of its key is due: it waits, unpaid."""
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    receipt = scene.ask("k", not_before_ms=scene.now_ms + 1_000)
    scene.clock.advance(1_000)
    heir = scene.take(receipt.job_id)
    assert scene.store.look_back(heir).past.undecided == ()
    assert scene.record(heir) is None
    assert (scene.state(heir.job_id), scene.attempt(uid).listener) == ("waiting/held", scene.worker)
    scene.store.stop_listening(uid)
    [undecided] = scene.store.look_back(scene.take(heir.job_id)).past.undecided
    assert undecided.uid == uid


def a_soft_timeout_begins_no_second_hold(scene: Scene) -> None:
    """A cancel gave the call its hold. Whoever asks again may be deciding it already."""
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=5_000)
    heir = scene.ask("k").job_id
    scene.clock.advance(5_000)
    scene.store.stop_listening(uid)
    again = scene.take(heir)
    [undecided] = scene.store.look_back(again).past.undecided
    assert scene.store.detach(uid, lease, 60_000) is False
    assert (undecided.uid, scene.attempt(uid).listener) == (uid, None)
    scene.store.resolve(uid, "same")
    scene.send(again)


def a_decision_wakes_the_job_that_waits_for_it(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    scene.store.resolve(uid, "pin")
    assert (scene.attempt(uid).listener, scene.state(lease.job_id)) == (None, "ready")


def a_detached_call_that_breaks_ends_its_hold(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    scene.settle(uid, "ambiguous")
    row = scene.attempt(uid)
    assert (row.outcome, row.resolution, row.listener, row.hold_until_ms) == ("ambiguous", None, None, scene.now_ms)
    assert scene.state(lease.job_id) == "ready"


def when_the_listener_stops_the_job_is_free(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 60_000)
    scene.clock.advance(60_000)
    scene.store.stop_listening(uid)
    assert (scene.attempt(uid).listener, scene.state(lease.job_id)) == (None, "ready")
    with scene.unchanged():
        scene.store.stop_listening(uid)
        scene.store.stop_listening("nobody")


def a_call_that_breaks_before_the_soft_timeout_frees_the_job_for_a_decision(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    assert scene.settle(uid, "ambiguous", RELEASE, lease=lease).moved
    again = scene.take(lease.job_id)
    facts = scene.store.look_back(again)
    assert ([one.uid for one in facts.past.undecided], facts.past.tried, facts.attempts_made) == ([uid], (), 1)


def a_decision_is_written_once_with_its_estimate(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.store.resolve(uid, "pin", worst=Cost(Decimal("0.7"), "stated"))
    with scene.unchanged():
        scene.store.resolve(uid, "same", worst=Cost(Decimal(9), "stated"))
    row = scene.attempt(uid)
    assert (row.resolution, row.cost, row.cost_is_estimate) == ("pin", Decimal("0.7"), True)
    facts = scene.store.look_back(scene.take(lease.job_id))
    assert facts.past.undecided == ()
    assert [(one.lane, one.outcome, one.resolution) for one in facts.past.tried] == [("free", "ambiguous", "pin")]


def on_a_lane_that_costs_nothing_the_estimate_is_certain(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.store.resolve(uid, "same", worst=Cost(Decimal(0), "free"), certain=True)
    assert (scene.attempt(uid).cost, scene.attempt(uid).cost_is_estimate) == (Decimal(0), False)


def a_worst_case_that_nobody_knows_stays_unknown(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.store.resolve(uid, "pin")
    assert (scene.attempt(uid).cost, scene.attempt(uid).cost_is_estimate) == (None, False)
    assert scene.job(lease.job_id).cost is None


def an_actual_cost_replaces_an_estimate(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.store.resolve(uid, "pin", worst=Cost(Decimal(9), "stated"))
    scene.settle(uid, "late", cost=Decimal(1))
    assert (scene.attempt(uid).cost, scene.attempt(uid).cost_is_estimate) == (Decimal(1), False)


def a_good_reply_is_welcome_from_wherever_its_job_has_got_to(scene: Scene) -> None:
    """Waiting for a pause, ready, leased by another, called again: the reply that comes makes the job done."""

    def lost_sight_of(key: str) -> tuple[int, str]:
        lease, uid = scene.in_flight(key)
        scene.settle(uid, "ambiguous", RELEASE, lease=lease)
        return lease.job_id, uid

    ready, ready_uid = lost_sight_of("ready")
    assert scene.settle(ready_uid, "late").moved
    leased, leased_uid = lost_sight_of("leased")
    lease = scene.take(leased)
    assert scene.settle(leased_uid, "late").moved
    with scene.lease_lost():
        scene.record(lease)
    called, called_uid = lost_sight_of("called")
    lease = scene.take(called)
    scene.store.resolve(called_uid, "same")
    second = scene.send(lease)
    assert scene.settle(called_uid, "late").moved
    assert not scene.settle(second, "later still", lease=lease).accepted
    paused, paused_uid = lost_sight_of("paused")
    lease = scene.take(paused)
    scene.store.resolve(paused_uid, "same")
    scene.settle(scene.send(lease), "retryable", Then("back_off", delay_ms=9_000), lease=lease)
    assert scene.settle(paused_uid, "late").moved
    asked_of, asked_uid = lost_sight_of("asked")
    scene.store.give(scene.take(asked_of), Then("ask"))
    assert scene.state(asked_of) == "waiting/asked"
    assert scene.settle(asked_uid, "late").moved
    assert [scene.state(one) for one in (ready, leased, called, paused, asked_of)] == ["done"] * 5


def a_job_that_waits_for_a_person_is_not_woken_by_the_clock(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.store.give(scene.take(lease.job_id), Then("ask"))
    scene.clock.advance(10**9)
    assert scene.lease() == []


def nobody_is_asked_about_what_has_ended_meanwhile(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    again = scene.take(lease.job_id)
    scene.settle(uid, "retryable")
    scene.store.give(again, Then("ask"))
    assert (scene.state(again.job_id), scene.job(again.job_id).settled_by) == ("ready", None)


def whatever_ends_an_attempt_wakes_the_held_job_of_its_key(scene: Scene) -> None:
    """The job that made the attempt is cancelled; the one that waits is another."""
    first, uid = scene.in_flight("k")
    scene.cancel(first.job_id, hold_ms=60_000)
    second = scene.ask("k").job_id
    assert scene.state(second) == "waiting/held"
    scene.settle(uid, "retryable", lease=first)
    assert scene.state(second) == "ready"


def a_result_says_whether_its_cost_holds_an_estimate(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    scene.store.resolve(uid, "pin", worst=Cost(Decimal(9), "stated"))
    again = scene.take(lease.job_id)
    scene.settle(scene.send(again), "an answer", lease=again, cost=Decimal(1))
    joined = scene.ask("k").request_id
    [first, other] = scene.store.results()
    assert (first.cost, first.cost_is_estimate) == (Decimal(10), True)
    assert (other.request_id, other.cost, other.cost_is_estimate) == (joined, None, False)
    scene.settle(uid, "late", cost=Decimal(2))
    first = next(iter(scene.store.results()))
    assert (first.cost, first.cost_is_estimate) == (Decimal(3), False)
