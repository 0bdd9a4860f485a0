"""What people ask of jobs: cancel and retry, for everyone or for a submission; one terminal state, whatever races."""

from __future__ import annotations

from collections.abc import Callable

from millpond.rules.effects import Then
from millpond.store.persons import Moved
from millpond.testing.store_scene import RELEASE, Scene, asked


def o03_a_job_is_cancelled_in_every_live_state_once(scene: Scene) -> None:
    def ready(key: str) -> int:
        return scene.ask(key).job_id

    def scheduled(key: str) -> int:
        return scene.ask(key, not_before_ms=scene.now_ms + 1_000).job_id

    def backed_off(key: str) -> int:
        lease, uid = scene.in_flight(key)
        scene.settle(uid, "retryable", Then("back_off", delay_ms=1_000), lease=lease)
        return lease.job_id

    def held(key: str) -> int:
        lease, uid = scene.in_flight(key)
        scene.store.detach(uid, lease, 1_000)
        return lease.job_id

    def waiting_for_a_person(key: str) -> int:
        return scene.asks_a_person(key)[0].job_id

    def leased_before_the_call(key: str) -> int:
        return scene.take(scene.ask(key).job_id).job_id

    def during_the_call(key: str) -> int:
        return scene.in_flight(key)[0].job_id

    ways: list[Callable[[str], int]] = [
        ready, scheduled, backed_off, held, waiting_for_a_person, leased_before_the_call, during_the_call]  # fmt: skip
    for way in ways:
        job_id = way(way.__name__)
        assert scene.cancel(job_id, hold_ms=1_000).moved, way.__name__
        job = scene.job(job_id)
        assert (job.state, job.settled_ms, job.settled_by) == ("cancelled", scene.now_ms, "person")
        assert [one.withdrawn_ms for one in scene.store.requests(job_id)] == [scene.now_ms]
        with scene.unchanged():
            again = scene.cancel(job_id)
        assert (again.moved, again.why) == (False, "already cancelled")
    scene.clock.advance(10**6)
    assert scene.lease(99) == [], "nothing goes on after it was cancelled"


def o03_what_has_ended_says_so_when_it_is_cancelled(scene: Scene) -> None:
    done, failed = scene.answered("done"), scene.failed("failed")
    with scene.unchanged():
        assert scene.cancel(done.job_id).why == "already done"
        assert scene.cancel(failed).why == "already failed"
        assert scene.cancel(999).why == "unknown job"
    assert scene.text(done.request_id) == "an answer"


def o03_cancelled_during_the_call_the_answer_is_kept_and_the_job_stays_cancelled(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    row = scene.attempt(uid)
    assert (row.outcome, row.code, row.listener) == ("ambiguous", "cancelled", scene.worker)
    settled = scene.settle(uid, "late", lease=lease)
    assert (settled.accepted, settled.moved) == (True, False)
    assert (scene.attempt(uid).outcome, scene.attempt(uid).tokens_out) == ("ok", 5)
    assert scene.state(lease.job_id) == "cancelled"
    result = scene.store.result(1)
    assert result is not None
    assert (result.state, result.text) == ("cancelled", None)


def o03_a_failure_that_comes_after_the_cancel_schedules_nothing(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    for answer, then in (("retryable", Then("back_off", delay_ms=1)), ("permanent", Then("fail", reason="no: no"))):
        assert not scene.settle(uid, answer, then, lease=lease).moved
    assert scene.state(lease.job_id) == "cancelled"


def o03_a_worker_finds_out_at_its_next_step(scene: Scene) -> None:
    before_call = scene.take(scene.ask("a").job_id)
    scene.cancel(before_call.job_id)
    with scene.lease_lost():
        scene.record(before_call)
    during_call, uid = scene.in_flight("b")
    scene.cancel(during_call.job_id, hold_ms=60_000)
    assert scene.store.detach(uid, during_call, 60_000) is False
    assert scene.state(during_call.job_id) == "cancelled"


def o03_settled_first_wins_over_the_cancel(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "blue", lease=lease)
    assert not scene.cancel(lease.job_id).moved
    assert (scene.state(lease.job_id), scene.text(1)) == ("done", "blue")


def what_has_its_answer_is_not_withdrawn(scene: Scene) -> None:
    receipt = scene.answered("k", "blue")
    with scene.unchanged():
        withdrawn = scene.cancel(receipt.job_id, submissions=[receipt.submission_id])
    assert withdrawn == Moved(False, "already done")
    result = scene.store.result(receipt.request_id)
    assert result is not None
    assert (result.state, result.text) == ("done", "blue")


def retry_takes_a_cancelled_job_up_again(scene: Scene) -> None:
    first, second = scene.ask("k"), scene.ask("k")
    scene.cancel(first.job_id, submissions=[first.submission_id])
    scene.cancel(first.job_id)
    assert scene.retry(first.job_id).moved
    assert [one.withdrawn_ms for one in scene.store.requests(first.job_id)] == [None, None]
    lease = scene.take(first.job_id)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 2
    assert scene.text(second.request_id) == "blue"


def retry_of_a_failed_job_starts_its_routing_anew(scene: Scene) -> None:
    job_id = scene.failed("k")
    assert scene.retry(job_id, granted=5).moved
    assert (scene.state(job_id), scene.job(job_id).next_lane) == ("ready", "")
    facts = scene.store.look_back(scene.take(job_id))
    assert (facts.past.tried, facts.past.undecided, facts.attempts_made, facts.attempts_granted) == ((), (), 1, 5)


def retry_may_name_the_lane(scene: Scene) -> None:
    job_id = scene.failed("k")
    scene.retry(job_id, lane="paid")
    assert [lease.lane for lease in scene.lease(room={"paid": 1})] == ["paid"]


def retry_of_an_answered_key_makes_the_job_done(scene: Scene) -> None:
    failed = scene.failed("k")
    scene.answered("k", "blue")
    assert scene.retry(failed).moved
    assert scene.state(failed) == "done"
    assert scene.text(1) == "blue"


def retry_hands_the_requests_to_the_live_job_of_the_key(scene: Scene) -> None:
    failed = scene.failed("k")
    alive = scene.ask("k").job_id
    assert scene.retry(failed).moved
    assert (scene.state(failed), scene.state(alive)) == ("failed", "ready")
    assert scene.store.requests(failed) == []
    assert [(one.id, one.disposition) for one in scene.store.requests(alive)] == [(1, "joined"), (2, "new")]
    assert scene.store.tally()["joined"] == 1
    lease = scene.take(alive)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 2
    assert scene.text(1) == "blue"
    with scene.unchanged():
        again = scene.retry(failed)
    assert (again.moved, again.why) == (False, "its requests have moved to another job")


def retry_behind_a_call_that_may_still_answer_is_held(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    assert scene.retry(lease.job_id).moved
    assert scene.state(lease.job_id) == "waiting/held"
    assert scene.settle(uid, "late", lease=lease).requests == 1
    assert (scene.state(lease.job_id), scene.text(1)) == ("done", "late")


def retry_behind_another_jobs_call_is_held_too(scene: Scene) -> None:
    failed = scene.failed("k")
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    assert scene.retry(failed).moved
    assert scene.state(failed) == "waiting/held"
    scene.settle(uid, "late", lease=lease)
    assert (scene.state(failed), scene.state(lease.job_id), scene.text(1)) == ("done", "cancelled", "late")


def retry_of_a_cancelled_job_finds_the_answer_that_came_meanwhile(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    scene.settle(uid, "late", lease=lease)
    assert scene.retry(lease.job_id).moved
    assert (scene.state(lease.job_id), scene.text(1)) == ("done", "late")


def retry_of_what_is_not_over_is_refused(scene: Scene) -> None:
    done, ready = scene.answered("done").job_id, scene.ask("ready").job_id
    with scene.unchanged():
        assert scene.retry(done).why == "is done"
        assert scene.retry(ready).why == "is ready"
        assert scene.retry(999).why == "unknown job"


def retry_of_a_key_that_names_other_work_by_now_is_refused(scene: Scene) -> None:
    lease, uid = scene.in_flight("mine", work="one")
    scene.settle(uid, "permanent", Then("fail", reason="refused: no"), lease=lease)
    other = scene.ask("mine", work="another")
    with scene.unchanged():
        assert not scene.retry(lease.job_id).moved
    scene.settle(scene.send(scene.take(other.job_id)), "blue")
    with scene.unchanged():
        assert not scene.retry(lease.job_id).moved


def retry_grants_a_stated_number_of_further_attempts(scene: Scene) -> None:
    job_id = scene.failed("k")
    scene.retry(job_id, granted=2)
    lease = scene.take(job_id)
    scene.settle(scene.send(lease), "permanent", Then("fail", reason="refused: no"), lease=lease)
    scene.retry(job_id, granted=3)
    lease = scene.take(job_id)
    facts = scene.store.look_back(lease)
    assert (facts.attempts_made, facts.attempts_granted) == (2, 5)
    assert lease.has_history, "what it has used up is read before it is used up further"


def retry_forgives_lost_leases(scene: Scene) -> None:
    job_id = scene.ask("k").job_id
    scene.take(job_id)
    scene.store.reclaim(scene.worker, max_leases_lost=1)
    assert scene.state(job_id) == "failed"
    scene.retry(job_id)
    assert (scene.state(job_id), scene.job(job_id).leases_lost) == ("ready", 0)


def withdrawing_a_submission_leaves_the_job_to_the_others(scene: Scene) -> None:
    scene.ask_many(asked("k"), asked("mine"), asked("k"))
    other = scene.ask("k")
    shared, mine = other.job_id, 2
    would = scene.store.would_cancel([shared, mine, 99], submissions=[1])
    assert would == [Moved(True, goes_on=True), Moved(True), Moved(False, "unknown job")]
    assert scene.store.cancel([(shared, 0), (mine, 0), (99, 0)], submissions=[1]) == would
    assert (scene.state(shared), scene.state(mine)) == ("ready", "cancelled")
    with scene.unchanged():
        for job_id in (shared, mine):
            assert scene.cancel(job_id, submissions=[1]) == Moved(False, "already cancelled")
    lease = scene.take(shared)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 1
    assert scene.text(other.request_id) == "blue"
    submission = scene.store.submission(1)
    assert submission is not None
    assert (submission.cancelled, submission.pending, submission.done) == (3, 0, 0)


def withdrawing_the_last_submission_cancels_the_job_and_keeps_its_reply(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    other = scene.ask("k")
    assert scene.cancel(lease.job_id, hold_ms=1_000, submissions=[1]) == Moved(True, goes_on=True)
    assert scene.state(lease.job_id) == "leased"
    assert scene.cancel(lease.job_id, hold_ms=1_000, submissions=[other.submission_id]) == Moved(True)
    assert (scene.state(lease.job_id), scene.attempt(uid).outcome) == ("cancelled", "ambiguous")
    assert scene.settle(uid, "late", lease=lease).accepted


def a_submission_that_asks_again_takes_back_its_own_withdrawals_alone(scene: Scene) -> None:
    scene.ask_many(asked("k"), asked("k"))
    second, third = scene.ask("k"), scene.ask("k")
    job_id = second.job_id
    scene.cancel(job_id, submissions=[1, second.submission_id])
    assert scene.retry(job_id, submissions=[1]) == Moved(True)
    with scene.unchanged():
        assert scene.retry(job_id, submissions=[1]) == Moved(False, "is ready")
    lease = scene.take(job_id)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 3
    assert (scene.text(1), scene.text(2), scene.text(third.request_id)) == ("blue", "blue", "blue")
    result = scene.store.result(second.request_id)
    assert result is not None
    assert (result.state, result.text) == ("cancelled", None)
    assert scene.retry(job_id, submissions=[second.submission_id]) == Moved(True), "done answers it too"
    assert scene.text(second.request_id) == "blue"


def retry_of_a_job_that_goes_on_leaves_withdrawn_what_others_withdrew(scene: Scene) -> None:
    first, second, third = scene.ask("k"), scene.ask("k"), scene.ask("k")
    scene.cancel(first.job_id, submissions=[first.submission_id, second.submission_id])
    with scene.unchanged():
        assert scene.retry(first.job_id) == Moved(False, "is ready")
    lease = scene.take(first.job_id)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 1
    assert scene.text(third.request_id) == "blue"
    with scene.unchanged():
        assert scene.retry(first.job_id) == Moved(False, "is done")
    assert scene.retry(first.job_id, submissions=[second.submission_id]) == Moved(True)
    assert [one.withdrawn_ms is None for one in scene.store.requests(first.job_id)] == [False, True, True]


def requests_are_withdrawn_and_taken_back_in_one_event_a_submission(scene: Scene) -> None:
    scene.ask_many(asked("k"), asked("k"))
    job_id = scene.ask("k").job_id
    before = scene.store.last_event()
    scene.cancel(job_id, submissions=[1, 2, 99])
    scene.retry(job_id, submissions=[1])
    scene.cancel(job_id)
    scene.retry(job_id)
    told = [(one.kind, one.submission_id, dict(one.data)) for one in scene.store.events(before, 100)]
    assert told == [
        ("withdraw", 1, {"requests": 2}), ("withdraw", 2, {"requests": 1}), ("cancel", None, {}),
        ("take_back", 1, {"requests": 2}), ("retry", None, {}),
        ("cancel", None, {}),
        ("take_back", None, {"requests": 3}), ("retry", None, {}),
    ]  # fmt: skip


def a_cancelled_job_that_one_submission_takes_up_again_is_asked_for_by_that_one(scene: Scene) -> None:
    first, second = scene.ask("k"), scene.ask("k")
    scene.cancel(first.job_id)
    assert scene.retry(first.job_id, submissions=[second.submission_id]) == Moved(True)
    assert scene.state(first.job_id) == "ready"
    assert [one.withdrawn_ms is None for one in scene.store.requests(first.job_id)] == [False, True]
    lease = scene.take(first.job_id)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 1


def retry_for_a_submission_counts_who_asks_where_another_job_takes_over(scene: Scene) -> None:
    failed = scene.failed("k")
    joined = scene.ask("k")
    scene.cancel(joined.job_id)
    alive = scene.ask("k").job_id
    assert scene.store.retry([joined.job_id, failed], submissions=[1]) == [
        Moved(False, "its requests have moved to another job"), Moved(True)]  # fmt: skip
    assert [one.id for one in scene.store.requests(alive)] == [1, 3]
    with scene.unchanged():
        assert not scene.retry(failed, submissions=[1]).moved
    lease = scene.take(alive)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 2


def retry_of_what_cannot_be_delivered_takes_withdrawals_back_too(scene: Scene) -> None:
    first, second = scene.ask("k"), scene.ask("k")
    scene.cancel(first.job_id, submissions=[first.submission_id])
    scene.store.give(scene.take(first.job_id), Then("shelve"))
    assert scene.retry(first.job_id, submissions=[first.submission_id]) == Moved(True)
    assert scene.state(first.job_id) == "ready"
    lease = scene.take(first.job_id)
    assert scene.settle(scene.send(lease), "blue", lease=lease).requests == 2
    assert (scene.text(first.request_id), scene.text(second.request_id)) == ("blue", "blue")


def a_released_job_keeps_its_rank(scene: Scene) -> None:
    first = scene.ask("a", priority=1).job_id
    scene.ask("b")
    scene.store.give(scene.take(first), RELEASE)
    assert scene.take().job_id == first
