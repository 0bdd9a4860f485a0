"""The fence and record: only the holder of a lease moves its job, and nothing leaves without a row in the ledger."""

from __future__ import annotations

from millpond.rules.effects import Then
from millpond.testing.store_scene import RELEASE, Scene


def a_stale_worker_cannot_move_a_job(scene: Scene) -> None:
    """Its lease was taken back while it slept, and another holds the job now: record, give, detach, settle all miss."""
    job_id = scene.ask("k").job_id
    stale = scene.take(job_id)
    scene.store.reclaim(scene.worker)
    other = scene.owner("other")
    current = scene.take(job_id, owner=other)
    with scene.lease_lost():
        scene.record(stale)
    with scene.lease_lost():
        scene.store.give(stale, RELEASE)
    with scene.lease_lost():
        scene.store.give(stale, Then("fail", reason="refused: by a ghost"))
    assert scene.store.holds(current)
    assert not scene.store.holds(stale)
    assert scene.job(job_id).state == "leased"


def a_stale_worker_of_the_same_name_cannot_move_a_job(scene: Scene) -> None:
    """The number is the fence, not the name: the same owner holds the job again, under another lease."""
    job_id = scene.ask("k").job_id
    stale = scene.take(job_id)
    scene.store.give(stale, RELEASE)
    current = scene.take(job_id)
    assert current.owner == stale.owner
    with scene.lease_lost():
        scene.record(stale)
    with scene.lease_lost():
        scene.store.give(stale, RELEASE)
    assert scene.store.holds(current)


def a_stale_worker_cannot_settle_a_job_as_failed(scene: Scene) -> None:
    stale, uid = scene.in_flight("k")
    scene.store.reclaim(scene.worker)
    current = scene.take(stale.job_id, owner=scene.owner("other"))
    scene.store.resolve(uid, "same")
    scene.send(current)
    settled = scene.settle(uid, "permanent", Then("fail", reason="refused: no"), lease=stale)
    assert (settled.accepted, settled.moved) == (False, False)
    assert scene.store.holds(current)
    assert scene.attempt(uid).outcome == "permanent", "what it saw is written all the same"


def a_stale_worker_cannot_hold_a_job(scene: Scene) -> None:
    stale, uid = scene.in_flight("k")
    scene.store.reclaim(scene.worker)
    current = scene.take(stale.job_id, owner=scene.owner("other"))
    assert scene.store.detach(uid, stale, 60_000) is False
    assert scene.store.holds(current)
    assert scene.record(current) is not None, "a dead owner counts as no listener, so its hold is over"


def a_stale_workers_good_reply_is_accepted_if_it_is_first(scene: Scene) -> None:
    stale, uid = scene.in_flight("k")
    scene.store.reclaim(scene.worker)
    current = scene.take(stale.job_id, owner=scene.owner("other"))
    scene.store.resolve(uid, "same")
    second = scene.send(current)
    settled = scene.settle(uid, "first", lease=stale)
    assert (settled.accepted, settled.moved, settled.job_id) == (True, True, stale.job_id)
    assert scene.state(stale.job_id) == "done"
    with scene.lease_lost():
        scene.store.give(current, RELEASE)
    late = scene.settle(second, "second", lease=current)
    assert (late.accepted, late.moved) == (False, False)
    assert scene.text(1) == "first"
    assert scene.attempt(uid).resolution == "late"


def o24_a_late_settle_keeps_the_first_answer_and_its_own_costs_are_in_the_ledger(scene: Scene) -> None:
    stale, uid = scene.in_flight("k")
    scene.store.reclaim(scene.worker)
    current = scene.take(stale.job_id, owner=scene.owner("other"))
    scene.store.resolve(uid, "same")
    assert scene.settle(scene.send(current), "B-text", lease=current).accepted
    assert not scene.settle(uid, "A-text", lease=stale).accepted
    assert scene.text(1) == "B-text"
    ghost = scene.attempt(uid)
    assert (ghost.outcome, ghost.resolution, ghost.tokens_in, ghost.tokens_out) == ("ok", "late", 3, 5)
    assert ghost.artifact_id is None


def an_answer_closes_the_fence_behind_it(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "blue", lease=lease)
    with scene.lease_lost():
        scene.record(lease)
    with scene.lease_lost():
        scene.store.give(lease, RELEASE)


def a_row_stands_in_the_ledger_before_the_call(scene: Scene) -> None:
    lease = scene.take(scene.ask("k", work="w").job_id)
    assert list(scene.store.attempts()) == []
    uid = scene.send(lease)
    [row] = scene.store.attempts()
    assert (row.uid, row.job_id, row.attempt_no, row.lease_no, row.owner) == (
        uid, lease.job_id, 1, lease.lease_no, scene.worker)  # fmt: skip
    assert (row.lane, row.idempotency_key, row.fingerprint, row.started_ms) == (
        "free", "k", lease.fingerprint, scene.now_ms)  # fmt: skip
    assert (row.outcome, row.ended_ms, row.cost, row.tokens_in) == (None, None, None, None), "unknown is not zero"
    assert scene.job(lease.job_id).attempts_made == 1


def attempts_of_a_job_are_numbered_from_one(scene: Scene) -> None:
    job_id = scene.ask("k").job_id
    for wanted in (1, 2, 3):
        lease = scene.take(job_id)
        assert lease.attempt_no == wanted
        uid = scene.send(lease)
        assert scene.attempt(uid).attempt_no == wanted
        scene.settle(uid, "retryable", RELEASE, lease=lease)


def record_of_an_answered_key_makes_the_job_done_without_a_call(scene: Scene) -> None:
    """The answer came while this job was held; it is not billed again, and no row says that it was called."""
    first, uid = scene.in_flight("k")
    scene.cancel(first.job_id, hold_ms=60_000)
    second = scene.ask("k")
    scene.store.stop_listening(uid)
    lease = scene.take(second.job_id)
    scene.settle(uid, "late", lease=first)
    assert scene.state(second.job_id) == "done", "the live job of the key is answered wherever it stands"
    with scene.lease_lost():
        scene.record(lease)
    assert len(list(scene.store.attempts())) == 1


def record_behind_an_open_attempt_holds_the_job(scene: Scene) -> None:
    """Another job of the key has a call in the air: this one was ready when it was cancelled and asked for anew."""
    first, uid = scene.in_flight("k")
    scene.cancel(first.job_id, hold_ms=60_000)
    second = scene.ask("k", not_before_ms=scene.now_ms + 5)
    scene.clock.advance(5)
    lease = scene.take(second.job_id)
    assert scene.record(lease) is None
    assert scene.state(second.job_id) == "waiting/held"
    assert scene.settle(uid, "late", lease=first).requests == 1
    assert scene.text(second.request_id) == "late"


def record_of_a_dead_owner_is_refused(scene: Scene) -> None:
    lease = scene.take(scene.ask("k").job_id)
    scene.store.reclaim(scene.worker)
    with scene.lease_lost():
        scene.record(lease)


def a_second_record_under_one_lease_never_calls_twice(scene: Scene) -> None:
    lease, _ = scene.in_flight("k")
    assert scene.record(lease) is None
    assert scene.state(lease.job_id) == "waiting/held"
    assert len(list(scene.store.attempts())) == 1
