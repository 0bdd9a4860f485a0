"""Enqueue: what a request finds under its key decides whether it is reused, joined, new, held or refused."""

from __future__ import annotations

from millpond.rules.effects import Then
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Receipt
from millpond.store.enqueue import CHUNK_REQUESTS
from millpond.testing.store_scene import A_DAY_MS, Scene, asked


def a_new_key_makes_a_ready_job(scene: Scene) -> None:
    receipt = scene.ask("k", priority=3, label="spring", tags=("a", "b"), trace_id="t", origin="cli")
    job = scene.job(receipt.job_id)
    assert (receipt.disposition, receipt.answered_by, receipt.answered_ms) == ("new", None, None)
    assert (job.state, job.priority, job.label, job.tags, job.trace_id, job.origin) == (
        "ready", 3, "spring", ("a", "b"), "t", "cli")  # fmt: skip
    assert (job.idempotency_key, job.created_ms, job.due_ms, job.settled_ms) == ("k", scene.now_ms, None, None)


def an_artifact_in_force_answers_at_once(scene: Scene) -> None:
    first = scene.answered("k", "blue")
    scene.clock.advance(1)
    again = scene.ask("k")
    assert (again.disposition, again.job_id) == ("reused", first.job_id)
    assert (again.answered_by, again.answered_ms) == ("free", scene.now_ms - 1)
    assert scene.text(again.request_id) == "blue"
    assert scene.lease(9) == [], "a reused request is no work"


def a_live_job_of_the_key_is_joined(scene: Scene) -> None:
    first, second = scene.ask("k"), scene.ask("k")
    lease = scene.take(first.job_id)
    third = scene.ask("k")
    assert [one.disposition for one in (first, second, third)] == ["new", "joined", "joined"]
    assert {one.job_id for one in (first, second, third)} == {first.job_id}
    assert scene.lease(9) == [], "one job, however many ask for it"
    settled = scene.settle(scene.send(lease), "blue", lease=lease)
    assert (settled.accepted, settled.requests) == (True, 3)
    assert [scene.text(one.request_id) for one in (first, second, third)] == ["blue"] * 3


def joining_keeps_the_larger_priority_the_earlier_due_and_the_more_urgent_class(scene: Scene) -> None:
    early, late = scene.now_ms + 1_000, scene.now_ms + 9_000
    job_id = scene.ask("k", priority=5, due_ms=late).job_id
    scene.ask("k", priority=1, due_ms=early, service_class="realtime")
    scene.ask("k", priority=7)
    job = scene.job(job_id)
    assert (job.priority, job.due_ms, job.service_class) == (7, early, "realtime")


def a_job_may_rank_below_the_ordinary(scene: Scene) -> None:
    job_id = scene.ask("k", priority=-5).job_id
    assert scene.job(job_id).priority == -5
    scene.ask("k", priority=-9)
    assert scene.job(job_id).priority == -5


def a_scheduled_job_waits_for_its_time(scene: Scene) -> None:
    job_id = scene.ask("k", not_before_ms=scene.now_ms + 1_000).job_id
    assert scene.state(job_id) == "waiting/scheduled"
    scene.clock.advance(999)
    assert scene.lease() == []
    scene.clock.advance(1)
    assert [lease.job_id for lease in scene.lease()] == [job_id]


def a_time_that_has_passed_is_no_schedule(scene: Scene) -> None:
    assert scene.state(scene.ask("k", not_before_ms=scene.now_ms).job_id) == "ready"


def joining_brings_a_scheduled_job_forward_never_back(scene: Scene) -> None:
    hour = scene.now_ms + 3_600_000
    job_id = scene.ask("k", not_before_ms=hour).job_id
    scene.ask("k", not_before_ms=hour + 1)
    assert scene.job(job_id).not_before_ms == hour
    scene.ask("k", not_before_ms=hour - 1)
    assert (scene.state(job_id), scene.job(job_id).not_before_ms) == ("waiting/scheduled", hour - 1)
    scene.ask("k")
    assert scene.state(job_id) == "ready"


def a_failed_job_is_never_joined(scene: Scene) -> None:
    failed = scene.failed("k")
    receipt = scene.ask("k")
    assert (receipt.disposition, scene.state(receipt.job_id)) == ("new", "ready")
    assert receipt.job_id != failed


def a_cancelled_job_is_never_joined(scene: Scene) -> None:
    cancelled = scene.ask("k").job_id
    scene.cancel(cancelled)
    receipt = scene.ask("k")
    assert (receipt.disposition, scene.state(receipt.job_id)) == ("new", "ready")
    assert receipt.job_id != cancelled


def a_truncated_reply_answers_nobody_else(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "unusable", Then("fail", reason="truncated: cut"), lease=lease)
    assert scene.ask("k").disposition == "new"


def a_key_whose_call_is_still_open_makes_a_held_job(scene: Scene) -> None:
    lease, _ = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    receipt = scene.ask("k")
    assert (receipt.disposition, scene.state(receipt.job_id)) == ("new", "waiting/held")
    assert scene.job(receipt.job_id).not_before_ms is None, "its listener says when, not the clock"


def a_job_held_at_birth_knows_what_was_tried_before_it(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    job_id = scene.ask("k").job_id
    scene.store.stop_listening(uid)
    heir = scene.take(job_id)
    assert heir.has_history
    [undecided] = scene.store.look_back(heir).past.undecided
    assert undecided.uid == uid
    scene.store.resolve(uid, "pin")
    [tried] = scene.store.look_back(heir).past.tried
    assert (tried.lane, tried.outcome, tried.resolution) == ("free", "ambiguous", "pin")


def a_job_born_behind_a_hold_keeps_its_own_schedule_too(scene: Scene) -> None:
    tomorrow = scene.now_ms + A_DAY_MS
    lease, _ = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    receipt = scene.ask("k", not_before_ms=tomorrow)
    scene.store.reclaim(scene.worker)
    scene.clock.advance(60_000)
    other = scene.owner("other")
    assert scene.lease(owner=other) == []
    scene.clock.advance(A_DAY_MS)
    [lease] = scene.lease(owner=other)
    assert (lease.job_id, lease.has_history) == (receipt.job_id, True)


def what_was_tried_for_a_failed_job_does_not_count_for_the_next(scene: Scene) -> None:
    scene.failed("k")
    scene.ask("k")
    assert scene.take().has_history is False


def a_stale_artifact_is_retired_and_asked_for_again(scene: Scene) -> None:
    first = scene.answered("k", "old")
    scene.clock.advance(1_000)
    assert scene.ask("k", max_age_ms=1_000).disposition == "reused"
    again = scene.ask("k", max_age_ms=999)
    assert (again.disposition, scene.state(again.job_id)) == ("new", "ready")
    lease = scene.take(again.job_id)
    assert scene.settle(scene.send(lease), "new", lease=lease).accepted
    assert (scene.text(first.request_id), scene.text(again.request_id)) == ("old", "new")


def fresh_retires_the_artifact_and_asks_again(scene: Scene) -> None:
    first = scene.answered("k", "old")
    again = scene.ask("k", fresh=True)
    assert (again.disposition, scene.state(again.job_id)) == ("new", "ready")
    lease = scene.take(again.job_id)
    assert lease.has_history is False, "a fresh answer starts on its first lane"
    assert scene.settle(scene.send(lease), "new", lease=lease).accepted
    assert (scene.text(first.request_id), scene.text(again.request_id)) == ("old", "new")
    assert scene.ask("k").disposition == "reused"


def fresh_without_an_artifact_joins_what_is_under_way(scene: Scene) -> None:
    job_id = scene.ask("k").job_id
    again = scene.ask("k", fresh=True)
    assert (again.disposition, again.job_id) == ("joined", job_id)


def a_request_for_an_artifact_without_a_done_job_gets_a_job_born_done(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    assert scene.settle(uid, "late but good", lease=lease).accepted
    receipt = scene.ask("k")
    assert (receipt.disposition, scene.state(receipt.job_id)) == ("reused", "done")
    assert receipt.job_id != lease.job_id
    assert scene.text(receipt.request_id) == "late but good"
    assert scene.ask("k").job_id == receipt.job_id, "one such job is enough"


def a_key_names_one_work_while_its_job_lives(scene: Scene) -> None:
    scene.ask("mine", work="one")
    with scene.refused(KeyConflict):
        scene.ask("mine", work="another")


def a_key_names_one_work_while_its_artifact_is_in_force(scene: Scene) -> None:
    scene.answered("mine", work="one")
    with scene.refused(KeyConflict):
        scene.ask("mine", work="another", fresh=True)


def a_key_names_one_work_while_its_attempt_may_still_speak(scene: Scene) -> None:
    lease, _ = scene.in_flight("mine", work="one")
    scene.cancel(lease.job_id, hold_ms=60_000)
    with scene.refused(KeyConflict):
        scene.ask("mine", work="another")


def a_key_is_free_for_other_work_once_its_job_has_failed(scene: Scene) -> None:
    lease, uid = scene.in_flight("mine", work="one")
    scene.settle(uid, "permanent", Then("fail", reason="refused: no"), lease=lease)
    assert scene.ask("mine", work="another").disposition == "new"


def equal_requests_of_one_submission_share_one_job(scene: Scene) -> None:
    answers = scene.ask_many(asked("a"), asked("b"), asked("a", priority=4), asked("a"))
    receipts = [one for one in answers if isinstance(one, Receipt)]
    assert [one.disposition for one in receipts] == ["new", "new", "joined", "joined"]
    assert [one.position for one in receipts] == [0, 1, 2, 3]
    assert receipts[0].job_id == receipts[2].job_id == receipts[3].job_id != receipts[1].job_id
    assert scene.job(receipts[0].job_id).priority == 4
    assert scene.store.tally()["joined"] == 2


def the_earliest_start_within_one_submission_counts(scene: Scene) -> None:
    later = scene.now_ms + 1_000
    answers = scene.ask_many(
        asked("a", not_before_ms=later), asked("a", not_before_ms=later - 1),
        asked("b", not_before_ms=later), asked("b"),
    )  # fmt: skip
    a, _, b, _ = (one.job_id for one in answers if isinstance(one, Receipt))
    assert (scene.state(a), scene.job(a).not_before_ms) == ("waiting/scheduled", later - 1)
    assert scene.state(b) == "ready"


def reused_and_fresh_may_stand_in_one_submission(scene: Scene) -> None:
    """The first is answered by the artifact that the second retires; the third joins the second."""
    first = scene.answered("k", "old")
    answers = scene.ask_many(asked("k"), asked("k", fresh=True), asked("k"))
    receipts = [one for one in answers if isinstance(one, Receipt)]
    assert [one.disposition for one in receipts] == ["reused", "new", "joined"]
    assert (receipts[0].job_id, receipts[0].answered_by) == (first.job_id, "free")
    assert scene.text(receipts[0].request_id) == "old"
    lease = scene.take(receipts[1].job_id)
    assert scene.settle(scene.send(lease), "new", lease=lease).requests == 2


def a_job_born_done_and_a_fresh_one_may_stand_in_one_submission(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    scene.settle(uid, "old", lease=lease)
    answers = scene.ask_many(asked("k"), asked("k", fresh=True))
    receipts = [one for one in answers if isinstance(one, Receipt)]
    assert [one.disposition for one in receipts] == ["reused", "new"]
    assert [scene.state(one.job_id) for one in receipts] == ["done", "ready"]
    assert scene.text(receipts[0].request_id) == "old"


def a_conflict_refuses_one_request_of_many(scene: Scene) -> None:
    answers = scene.ask_many(asked("a", work="one"), asked("a", work="two"), asked("b"))
    assert [type(one) for one in answers] == [Receipt, KeyConflict, Receipt]
    submission = scene.store.submissions()[0]
    assert (submission.requests, submission.pending) == (2, 2)


def a_strict_submission_is_taken_whole_or_not_at_all(scene: Scene) -> None:
    def hand_in(*works: str) -> list[Receipt]:
        wanted = [asked("same", work=work, position=at) for at, work in enumerate(works)]
        return scene.store.enqueue_all([asked("first", position=9), *wanted], name="strict", source="api")

    with scene.refused(KeyConflict):
        hand_in("one", "two")
    assert scene.store.submissions() == []
    assert len(hand_in("one", "one")) == 3


def a_large_submission_is_taken_in_chunks_and_stays_in_order(scene: Scene) -> None:
    size = 2 * CHUNK_REQUESTS + 3
    answers = scene.ask_many(*(asked(f"k{at % (size - 2)}") for at in range(size)))
    receipts = [one for one in answers if isinstance(one, Receipt)]
    assert [one.position for one in receipts] == list(range(size))
    assert [one.disposition for one in receipts[-3:]] == ["new", "joined", "joined"], "dedup reaches over chunks"
    assert [one.job_id for one in receipts] == [*sorted({one.job_id for one in receipts}), 1, 2]
    [submission] = scene.store.submissions()
    assert (submission.requests, scene.store.counts()["ready"]) == (size, size - 2)


def o23_different_works_never_share_a_job_or_an_answer(scene: Scene) -> None:
    """Whatever the keys look like: one is the beginning of another, they differ in case, in width, in one emoji."""
    keys = ["ab", "abc", "Ab", "a b", "a\tb", "ａｂ", "ab ", "é", "e\u0301", "🙂", "🙃", "1", "01", "k%", "k_", "kx"]
    for key in keys:
        scene.answered(key, f"answer for {key}")
    again = [scene.ask(key) for key in keys]
    assert [scene.text(one.request_id) for one in again] == [f"answer for {key}" for key in keys]
    assert scene.store.counts()["done"] == len(keys)
