"""Looking: jobs, ranks, results, submissions and events, each in a stable order."""

from __future__ import annotations

import json
from decimal import Decimal

from millpond.rules.effects import Then
from millpond.rules.job import Reply
from millpond.rules.times import MAX_MS
from millpond.testing.store_scene import Scene, asked


def counts_are_kept_as_jobs_move(scene: Scene) -> None:
    scene.answered("done")
    scene.failed("failed")
    scene.cancel(scene.ask("cancelled").job_id)
    scene.ask("scheduled", not_before_ms=scene.now_ms + 1)
    lease, uid = scene.in_flight("held")
    scene.store.detach(uid, lease, 1_000)
    scene.take(scene.ask("leased").job_id)
    scene.ask("ready")
    scene.ask("ready")
    scene.ask("done")
    counts = scene.store.counts()
    assert counts == {
        "waiting": 2, "held": 1, "ready": 1, "leased": 1, "offloaded": 0, "done": 1, "failed": 1, "cancelled": 1,
    }  # fmt: skip
    assert scene.store.miscounted() == {}
    tally = scene.store.tally()
    assert (tally["joined"], tally["reused"]) == (1, 1)


def jobs_come_newest_first(scene: Scene) -> None:
    ids = [scene.ask(f"k{at}").job_id for at in range(5)]
    assert [job.id for job in scene.store.jobs()] == ids[::-1]
    assert [job.id for job in scene.store.jobs(before_id=ids[2])] == ids[1::-1]


def a_jobs_rank_is_how_many_go_first(scene: Scene) -> None:
    wishes = [
        {"priority": 5}, {"priority": 5, "service_class": "realtime"}, {"priority": 9}, {}, {"due_ms": scene.now_ms},
        {"due_ms": scene.now_ms + 1}, {"priority": 5}, {"service_class": "realtime"}, {"due_ms": scene.now_ms},
    ]  # fmt: skip
    ids = [scene.ask(f"k{at}", **wish).job_id for at, wish in enumerate(wishes)]
    scene.ask("elsewhere", lane="paid", priority=99)
    ranks = {job_id: scene.store.rank(scene.job(job_id)) for job_id in ids}
    assert sorted(ranks.values()) == list(range(len(ids)))
    assert [lease.job_id for lease in scene.lease(99)] == sorted(ids, key=ranks.__getitem__)


def a_rank_is_counted_up_to_a_limit(scene: Scene) -> None:
    last = [scene.ask(f"k{at}").job_id for at in range(6)][-1]
    assert scene.store.rank(scene.job(last), limit=3) == 3


def events_are_read_on_from_a_cursor(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "blue", lease=lease)
    assert scene.kinds() == ["enqueue", "lease", "record", "end", "answer"]
    seen: list[str] = []
    after = 0
    while page := scene.store.events(after, 2):
        seen += [event.kind for event in page]
        after = int(page[-1].cursor)
    assert seen == scene.kinds()
    assert after == scene.store.last_event()
    assert [event.job_id for event in scene.store.events(0)] == [lease.job_id] * 5


def an_event_tells_of_a_change_that_was_made(scene: Scene) -> None:
    receipt = scene.ask("k", custom_id="mine")
    [event] = scene.store.events()
    assert (event.kind, event.at_ms, event.job_id, event.submission_id) == (
        "enqueue", scene.now_ms, receipt.job_id, receipt.submission_id)  # fmt: skip
    assert event.data == {"request_id": receipt.request_id, "disposition": "new"}


def results_bring_back_what_was_carried(scene: Scene) -> None:
    carried = {"row": 7, "ümlaut": ["🙂", None, 1.5]}
    scene.answered("k", "blue", custom_id="c1", carried=json.dumps(carried))
    [result] = scene.store.results()
    assert (result.custom_id, result.carried, result.position) == ("c1", carried, 0)
    assert (result.state, result.text, result.lane, result.finish_reason) == ("done", "blue", "free", None)
    assert result.error is None


def results_of_a_submission_come_in_its_order_and_all_results_by_request(scene: Scene) -> None:
    scene.ask_many(*(asked(f"k{at}") for at in range(5)))
    scene.ask_many(asked("other"), asked("k3"))
    for lease in scene.lease(99):
        if lease.idempotency_key != "k2":
            scene.settle(scene.send(lease), f"answer to {lease.idempotency_key}", lease=lease)
    assert [one.text for one in scene.store.results(1)] == [f"answer to k{at}" for at in (0, 1, 3, 4)]
    assert [one.text for one in scene.store.results(2)] == ["answer to other", "answer to k3"]
    everything = list(scene.store.results())
    assert [one.request_id for one in everything] == sorted(one.request_id for one in everything)
    assert len(everything) == 6


def results_that_failed_are_read_apart(scene: Scene) -> None:
    scene.answered("good")
    lease, uid = scene.in_flight("bad")
    scene.settle(uid, "permanent", Then("fail", reason="refused: no lane will"), lease=lease)
    [bad] = scene.store.results(state="failed")
    assert (bad.state, bad.text, bad.lane) == ("failed", None, None)
    assert bad.error is not None
    assert (bad.error.code, bad.error.message) == ("refused", "no lane will")
    assert len(list(scene.store.results())) == 1


def a_submission_is_read_whole_with_its_replies(scene: Scene) -> None:
    keys = ("done", "failed", "cancelled", "done", "ready")
    scene.ask_many(*(asked(key, custom_id=f"c{at}") for at, key in enumerate(keys)))
    scene.ask_many(asked("other"))
    for lease in scene.lease(3):
        match lease.idempotency_key:
            case "done":
                raw = {"id": "chatcmpl-1", "model": "m"}
                uid = scene.send(lease)
                scene.settle(uid, Reply("blue", model="m", raw=raw), lease=lease)
            case "failed":
                scene.store.give(lease, Then("fail", reason="refused: no"))
            case _:
                scene.cancel(lease.job_id)
    found = list(scene.store.answered(1))
    assert [(one.custom_id, one.state) for one in found] == [(f"c{at}", key) for at, key in enumerate(keys)]
    for one in (found[0], found[3]):
        assert one.reply is not None
        assert (one.reply.text, one.reply.raw) == ("blue", {"id": "chatcmpl-1", "model": "m"})
        assert (one.attempt_uid, one.answered_ms, one.lane) == ("attempt-1", scene.now_ms, "free")
    assert [one.error.code if one.error else None for one in found] == [None, "refused", "cancelled", None, None]
    assert [one.request_id for one in scene.store.answered(2)] == [6]


def tokens_and_cost_stand_on_the_request_that_paid(scene: Scene) -> None:
    first = scene.ask("k")
    joined = scene.ask("k")
    lease = scene.take(first.job_id)
    scene.settle(scene.send(lease), "blue", lease=lease, cost=Decimal("0.5"))
    reused = scene.ask("k")
    by_id = {one.request_id: one for one in scene.store.results()}
    paid = by_id[first.request_id]
    assert (paid.cost, paid.tokens_in, paid.tokens_out) == (Decimal("0.5"), 3, 5)
    for free in (by_id[joined.request_id], by_id[reused.request_id]):
        assert (free.text, free.cost, free.tokens_in, free.tokens_out) == ("blue", None, None, None)


def a_submission_says_how_its_requests_stand(scene: Scene) -> None:
    scene.ask_many(*(asked(f"k{at}") for at in range(5)))
    leases = {lease.idempotency_key: lease for lease in scene.lease(3)}
    scene.settle(scene.send(leases["k0"]), "blue", lease=leases["k0"])
    scene.store.give(leases["k1"], Then("fail", reason="refused: no"))
    scene.cancel(leases["k2"].job_id)
    submission = scene.store.submission(1)
    assert submission is not None
    assert (submission.name, submission.source, submission.created_ms) == ("s1", "api", scene.now_ms)
    assert (submission.requests, submission.pending, submission.done, submission.failed, submission.cancelled) == (
        5, 2, 1, 1, 1)  # fmt: skip
    assert submission.states == {
        "waiting": 0, "ready": 2, "leased": 0, "offloaded": 0, "done": 1, "failed": 1, "cancelled": 1}  # fmt: skip
    scene.ask_many(asked("k0"), asked("k3"), asked("new"), asked("new"))
    again = scene.store.submission(2)
    assert again is not None
    assert again.dispositions == {"new": 1, "joined": 2, "reused": 1}
    assert (again.states["done"], again.states["ready"], again.pending) == (1, 3, 3)


def a_submission_is_found_by_id_and_by_name_the_newest_first(scene: Scene) -> None:
    for name in ("night", None, "night"):
        scene.store.open_submission(name)
    found = scene.store.submission("night")
    assert found is not None
    assert found.id == 3
    assert [one.name for one in scene.store.submissions()] == ["night", "s2", "night"]
    assert scene.store.submission("nobody") is None
    assert scene.store.submission(99) is None


def the_first_pending_request_of_a_submission_is_the_first_without_an_end(scene: Scene) -> None:
    scene.ask_many(*(asked(f"k{at}", priority=-at) for at in range(6)))
    scene.ask("k1")
    assert [scene.store.first_pending(1, after) for after in (-1, 0, 4, 5)] == [0, 1, 5, None]
    leases = {lease.idempotency_key: lease for lease in scene.lease(4)}
    scene.settle(scene.send(leases["k0"]), "blue", lease=leases["k0"])
    assert scene.store.first_pending(1) == 1, "a request whose job is leased still waits"
    scene.store.give(leases["k1"], Then("fail", reason="refused: no"))
    scene.cancel(leases["k2"].job_id)
    assert scene.store.first_pending(1) == 3
    scene.ask("k3")
    scene.cancel(leases["k3"].job_id, submissions=[1])
    assert scene.store.first_pending(1) == 4
    for key in ("k4", "k5"):
        scene.answered(key)
    assert scene.store.first_pending(1) is None
    assert scene.store.first_pending(99) is None


def a_withdrawn_request_waits_no_more_while_its_job_goes_on(scene: Scene) -> None:
    scene.ask("k")
    left = scene.ask("k")
    assert scene.cancel(left.job_id, submissions=[left.submission_id]).moved
    assert scene.store.first_pending(left.submission_id) is None
    assert scene.store.first_pending(1) == 0


def a_request_that_waits_is_found_as_long_as_there_is_one(scene: Scene) -> None:
    assert scene.store.any_pending_request() is None
    scene.answered("done")
    scene.failed("failed")
    assert scene.store.any_pending_request() is None
    first, second = scene.ask("k"), scene.ask("k")
    scene.cancel(first.job_id, submissions=[first.submission_id])
    assert scene.store.any_pending_request() == second.request_id
    scene.take(first.job_id)
    assert scene.store.any_pending_request() == second.request_id
    scene.cancel(first.job_id)
    assert scene.store.any_pending_request() is None


def the_latest_due_that_can_be_given_is_a_due(scene: Scene) -> None:
    receipt = scene.ask("k", due_ms=MAX_MS)
    never = scene.ask("never")
    assert scene.job(receipt.job_id).due_ms == MAX_MS
    assert [(lease.job_id, lease.due_ms) for lease in scene.lease(2)] == [
        (receipt.job_id, MAX_MS), (never.job_id, None)]  # fmt: skip


def what_is_not_there_is_none(scene: Scene) -> None:
    assert scene.store.artifact("k") is None
    assert scene.store.job(1) is None
    assert scene.store.payload(1) is None
    assert scene.store.result(1) is None
    assert list(scene.store.jobs()) == list(scene.store.results()) == list(scene.store.attempts()) == []
    assert scene.store.events() == []
    assert scene.store.last_event() == 0
    assert scene.store.oldest_ready_ms(["free"]) is None


def the_ledger_of_a_job_shows_its_key_whole(scene: Scene) -> None:
    failed = scene.failed("k")
    scene.failed("other")
    second, _ = scene.in_flight("k")
    assert [row.job_id for row in scene.store.attempts(second.job_id)] == [failed, second.job_id]
    assert [row.seq for row in scene.store.attempts()] == [1, 2, 3]


def the_last_of_the_ledger_is_read_in_order(scene: Scene) -> None:
    for _ in range(3):
        scene.failed("k")
        scene.failed("other")
    assert [row.seq for row in scene.store.attempts(last=2)] == [5, 6]
    assert [row.seq for row in scene.store.attempts(1, last=2)] == [3, 5]
    assert [row.seq for row in scene.store.attempts(1, last=3)] == [1, 3, 5]
    assert [row.seq for row in scene.store.attempts(last=99)] == [1, 2, 3, 4, 5, 6]


def the_names_of_submissions_are_known_the_newest_first(scene: Scene) -> None:
    for name in ("night", None, "night"):
        scene.store.open_submission(name)
    assert scene.store.submission_names() == ["night", "s2"]
    assert scene.store.submission_names(1) == ["night"]


def the_oldest_ready_job_of_some_lanes_is_known(scene: Scene) -> None:
    born = scene.now_ms
    for lane in ("free", "paid"):
        scene.ask(lane, lane=lane)
        scene.clock.advance(5)
    assert scene.store.oldest_ready_ms(["free", "paid"]) == born
    assert scene.store.oldest_ready_ms(["paid"]) == born + 5
    assert scene.store.any_ready("paid")
    assert not scene.store.any_ready("gone")
