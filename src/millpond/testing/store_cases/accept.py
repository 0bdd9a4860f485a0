"""Settle and accept: an end is written by uid, an artifact comes into force by key, and the first in force wins."""

from __future__ import annotations

from decimal import Decimal

from millpond.rules.admission import Closing
from millpond.rules.effects import ACCEPT, Then
from millpond.rules.errors import UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Artifact, Reply, Usage
from millpond.testing.store_scene import RELEASE, Scene, ending


def a_good_reply_makes_its_job_done(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.clock.advance(40)
    settled = scene.settle(uid, Reply("blue", model="m", usage=Usage(7, 9, {"raw": 1})), lease=lease,
                           cost=Decimal("0.25"))  # fmt: skip
    job, row = scene.job(lease.job_id), scene.attempt(uid)
    assert (settled.accepted, settled.moved, settled.job_id) == (True, True, lease.job_id)
    assert (job.state, job.settled_ms, job.settled_by, job.cost) == ("done", scene.now_ms, "free", Decimal("0.25"))
    assert (row.outcome, row.ended_ms, row.model, row.tokens_in, row.tokens_out, row.usage) == (
        "ok", scene.now_ms, "m", 7, 9, {"raw": 1})  # fmt: skip
    assert (row.cost, row.cost_is_estimate, row.resolution) == (Decimal("0.25"), False, None)
    assert row.artifact_id is not None
    assert scene.store.artifact("k") == Artifact(row.artifact_id, "k", row.fingerprint, uid, scene.now_ms, None)


def the_first_reply_in_force_wins_and_the_loser_is_kept_and_costed(scene: Scene) -> None:
    first, uid_a = scene.in_flight("k")
    scene.store.detach(uid_a, first, 1_000)
    scene.store.stop_listening(uid_a)
    second = scene.take(first.job_id)
    scene.store.resolve(uid_a, "same")
    uid_b = scene.send(second)
    assert scene.settle(uid_b, "winner", lease=second, cost=Decimal(1)).accepted
    settled = scene.settle(uid_a, "loser", cost=Decimal(2))
    assert (settled.accepted, settled.moved) == (False, False)
    assert scene.text(1) == "winner"
    loser = scene.attempt(uid_a)
    assert (loser.outcome, loser.artifact_id, loser.cost, loser.cost_is_estimate) == ("ok", None, Decimal(2), False)
    assert scene.job(first.job_id).cost == Decimal(3), "what was paid twice is counted"


def a_reply_older_than_the_last_retirement_is_never_in_force(scene: Scene) -> None:
    """Its call began before a person asked for a fresh answer: what it says may be what was to be replaced."""
    first, old = scene.in_flight("k")
    scene.store.detach(old, first, 1_000)
    scene.store.stop_listening(old)
    second = scene.take(first.job_id)
    scene.store.resolve(old, "same")
    scene.settle(scene.send(second), "first answer", lease=second)
    fresh = scene.ask("k", fresh=True)
    assert scene.state(fresh.job_id) == "ready"
    assert scene.store.artifact("k") is None
    assert not scene.settle(old, "from before").accepted
    assert (scene.state(fresh.job_id), scene.text(fresh.request_id)) == ("ready", None)
    lease = scene.take(fresh.job_id)
    assert scene.settle(scene.send(lease), "fresh answer", lease=lease).accepted
    assert scene.text(fresh.request_id) == "fresh answer"


def a_reply_that_was_in_force_does_not_come_into_force_again(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "old", lease=lease)
    fresh = scene.ask("k", fresh=True)
    assert not scene.settle(uid, "old", lease=lease).accepted
    assert scene.state(fresh.job_id) == "ready"


def a_reply_to_other_work_is_never_in_force(scene: Scene) -> None:
    """A caller's key is free again once its job has failed; what still comes for the earlier work answers nobody."""
    lease, uid = scene.in_flight("mine", work="one")
    scene.store.detach(uid, lease, 1_000)
    scene.store.stop_listening(uid)
    again = scene.take(lease.job_id)
    scene.store.resolve(uid, "fail")
    scene.store.give(again, Then("fail", reason="ambiguous: not paid again"))
    other = scene.ask("mine", work="another")
    settled = scene.settle(uid, "answer to one")
    assert not settled.accepted
    assert (scene.state(other.job_id), scene.text(other.request_id)) == ("ready", None)
    assert scene.attempt(uid).outcome == "ok"


def a_cancelled_job_stays_so_and_its_artifact_serves_the_next_request(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    settled = scene.settle(uid, "late", lease=lease)
    assert (settled.accepted, settled.moved) == (True, False)
    assert scene.state(lease.job_id) == "cancelled"
    again = scene.ask("k")
    assert (again.disposition, scene.text(again.request_id)) == ("reused", "late")


def a_failed_job_stays_so_and_its_artifact_serves_the_next_request(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.store.detach(uid, lease, 1_000)
    scene.store.stop_listening(uid)
    scene.store.give(scene.take(lease.job_id), Then("fail", reason="ambiguous: not paid again"))
    assert scene.settle(uid, "late").accepted
    assert scene.state(lease.job_id) == "failed"
    assert scene.ask("k").disposition == "reused"


def settling_twice_is_settling_once(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "blue", lease=lease, cost=Decimal(1))
    with scene.unchanged():
        again = scene.settle(uid, "blue", lease=lease, cost=Decimal(1))
    assert (again.moved, again.requests) == (False, 0)


def settling_a_failure_twice_is_settling_it_once(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    then = Then("back_off", delay_ms=100)
    scene.settle(uid, "retryable", then, lease=lease)
    with scene.unchanged():
        assert not scene.settle(uid, "retryable", then, lease=lease).moved


def nothing_replaces_evidence(scene: Scene) -> None:
    """Whoever says something else of an ended attempt later is kept out, and a good reply among it is not lost."""
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "retryable", RELEASE, lease=lease)
    settled = scene.settle(uid, "contradiction")
    assert (settled.accepted, scene.attempt(uid).outcome) == (False, "retryable")
    assert scene.state(lease.job_id) == "ready"
    scene.settle(uid, "ambiguous")
    assert scene.attempt(uid).outcome == "retryable"


def a_job_whose_call_was_ended_by_another_is_not_left_under_its_lease(scene: Scene) -> None:
    """Somebody else handed in what the call brought; who made it says otherwise, and goes home."""
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "unusable")
    assert scene.state(lease.job_id) == "leased"
    settled = scene.settle(uid, "another answer", lease=lease)
    assert (settled.accepted, settled.moved, scene.attempt(uid).outcome) == (False, False, "unusable")
    assert scene.state(lease.job_id) == "ready"
    assert scene.take(lease.job_id).lease_no == lease.lease_no + 1


def an_attempt_that_is_not_in_the_ledger_cannot_be_settled(scene: Scene) -> None:
    scene.ask("k")
    with scene.refused(UsageError):
        scene.settle("nobody")


def o06_odd_characters_and_nul_come_back_as_they_were(scene: Scene) -> None:
    odd = "fam\0ily \ud800 \x01\x7f \u2028 \U0001f9ff \ufffe 'quoted\" \\u0000 \r\n"
    raw = {"said": odd, odd: [odd, None, 1.5, float("inf")]}
    lease, uid = scene.in_flight("k", work="prompt with \0 in it", carried='{"a":"\\u0000"}')
    reply = Reply(odd, data={"x": [odd]}, usage=Usage(1, 2, {"note": odd, "x": float("inf")}), raw=raw)
    assert scene.settle(uid, reply, lease=lease).accepted
    result = scene.store.result(1)
    assert result is not None
    assert (result.text, result.data, result.carried) == (odd, {"x": [odd]}, {"a": "\0"})
    assert scene.attempt(uid).usage == {"note": odd, "x": "Infinity"}  # JSON has no such number
    assert getattr(lease.work, "task", None) == "prompt with \0 in it"
    assert scene.text(scene.ask("k", work="prompt with \0 in it").request_id) == odd


def o06_odd_characters_in_an_error_do_not_stop_its_settling(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    evidence = Evidence(said="permanent", code="no\0pe", message="fam\0ily \ud800", request_id="\0",
                        headers={"retry-after": "\ud800"})  # fmt: skip
    assert scene.settle(uid, evidence, Then("fail", reason="re\0fused: \ud800"), lease=lease).moved
    assert scene.state(lease.job_id) == "failed"
    result = scene.store.result(1)
    assert result is not None
    assert result.error is not None
    assert "fam" in (scene.attempt(uid).message or "")


def a_saturated_call_is_not_counted_and_closes_its_lane(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    closing = Closing(scene.now_ms + 1_000, "429", "saturated")
    end = ending("saturated", closing=closing)
    assert scene.store.settle(uid, end, Then("release", uncounted=True), lane="free", lease=lease).moved
    assert (scene.state(lease.job_id), scene.job(lease.job_id).attempts_made) == ("ready", 0)
    assert [row.reason for row in scene.store.closed_lanes().values()] == ["429"]
    assert scene.lease() == []
    scene.clock.advance(1_000)
    assert scene.take(lease.job_id).attempt_no == 1


def an_unusable_reply_is_kept_and_answers_nothing(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    cut = Reply("half an ans", finish_reason="length", usage=Usage(3, 5))
    settled = scene.settle(uid, cut, Then("fail", reason="truncated: cut"), lease=lease, cost=Decimal("0.5"))
    assert (settled.accepted, scene.state(lease.job_id)) == (False, "failed")
    row = scene.attempt(uid)
    assert (row.outcome, row.code, row.tokens_out, row.cost) == ("unusable", "truncated", 5, Decimal("0.5"))
    assert scene.text(1) is None


def what_the_call_of_another_job_answers_bears_no_cost(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    again = scene.ask("k")
    scene.settle(uid, Reply("blue", usage=Usage(7, 9)), cost=Decimal("0.25"))
    result = scene.store.result(again.request_id)
    assert result is not None
    assert again.job_id != lease.job_id
    assert (result.text, result.tokens_out, result.cost) == ("blue", None, None)


def unknown_cost_is_not_zero(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, Reply("blue"), lease=lease)
    assert scene.attempt(uid).cost is None
    assert scene.attempt(uid).tokens_in is None
    assert scene.job(lease.job_id).cost is None
    result = scene.store.result(1)
    assert result is not None
    assert (result.cost, result.tokens_in) == (None, None)


def a_dollar_is_kept_to_the_micro_dollar(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "blue", ACCEPT, lease=lease, cost=Decimal("12345.678901"))
    assert scene.attempt(uid).cost == Decimal("12345.678901")
