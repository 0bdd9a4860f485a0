"""Why a job is where it is, in one true sentence for each way to be there."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from millpond.engine.drain_lock import Holder
from millpond.report.explain import explain
from millpond.rules.admission import Closing
from millpond.rules.effects import Then
from millpond.rules.errors import UsageError
from millpond.rules.job import OwnerRow
from millpond.rules.policy import LanePolicy, Policy
from millpond.testing.store_scene import Scene

POLICY = Policy(lanes={"free": LanePolicy("free"), "paid": LanePolicy("paid")})
HOLDER = Holder(4242, "host", 1_800_000_000_000)


def told(scene: Scene, job_id: int = 1, *, policy: Policy = POLICY, drainer: Holder | None = HOLDER) -> list[str]:
    """The lines of an explanation."""
    return explain(scene.store, policy, job_id, scene.now_ms, drainer).splitlines()


def first(scene: Scene, job_id: int = 1, **more: Any) -> str:
    """The one sentence."""
    return told(scene, job_id, **more)[0]


def test_a_ready_job_names_its_rank_and_its_lane(scene: Scene) -> None:
    for key in ("a", "b", "c"):
        scene.ask(key, lane="free")
    scene.ask("urgent", lane="free", priority=5)
    assert first(scene, 1) == "job 1 is ready: 2nd of lane free, which is open"
    assert first(scene, 3) == "job 3 is ready: 4th of lane free, which is open"
    assert first(scene, 4) == "job 4 is ready: 1st of lane free, which is open"
    assert first(scene, 1, drainer=None).endswith("; nobody drains this queue: run `millpond drain`")


def test_a_ready_job_of_a_closed_lane_says_until_when_and_why(scene: Scene) -> None:
    scene.ask("a", lane="free")
    scene.close_lane("free", Closing(scene.now_ms + 65_000, "rate_limited", "saturated"))
    assert first(scene).endswith("which is closed until 2027-01-15T08:01:05.000Z, 1 m from now (rate_limited)")
    scene.store.open_lane("free")
    scene.close_lane("free", Closing(None, "no_money", "down"))
    assert first(scene).endswith("which is closed until a person opens it (no_money): `millpond lanes free resume`")


def test_a_ready_job_of_a_lane_whose_slots_are_taken_says_so(scene: Scene) -> None:
    lease, uid = scene.in_flight("a")
    scene.store.detach(uid, lease, 60_000)
    scene.ask("b", lane="free")
    narrow = Policy(lanes={"free": LanePolicy("free", max_in_flight=1)})
    assert first(scene, 2, policy=narrow).endswith("which has no slot free: 1 of 1 calls are under way")
    assert first(scene, 2).endswith("which is open")


def test_a_ready_job_whose_lane_left_the_settings_says_so(scene: Scene) -> None:
    scene.ask("a", lane="free")
    assert "the settings have no lane free any more" in first(scene, policy=Policy(lanes={"paid": LanePolicy("paid")}))
    off = Policy(lanes={"free": LanePolicy("free", enabled=False)})
    assert "which the settings turn off" in first(scene, policy=off)


def test_a_job_at_work_says_how_long_its_call_has_run(scene: Scene) -> None:
    scene.ask("a", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    assert first(scene) == "job 1 is being worked on: leased, and about to be sent to lane free"
    scene.store.record(lease, "uid", "free")
    scene.clock.advance(3_000)
    lines = told(scene)
    assert lines[0] == "job 1 is being worked on: attempt 1 has been with lane free for 3 s"
    assert "  1  free  open  2027-01-15T08:00:00.000Z, 3.0 s" in lines
    assert lines[-1] == "next         its call ends, and the outcome decides"


@pytest.mark.parametrize("is_sent", [False, True])
def test_a_job_whose_worker_died_says_so_until_it_is_taken_back(scene: Scene, is_sent: bool) -> None:
    scene.store.enlist(OwnerRow("gone", "drainer", socket.gethostname(), 4242, "an earlier boot", scene.now_ms))
    scene.ask("a", lane="free")
    scene.ask("b", lane="free")
    [lease] = scene.store.lease("gone", {"free": 1}, 1)
    scene.store.lease(scene.worker, {"free": 1}, 1)
    if is_sent:
        scene.store.record(lease, "uid", "free")
    assert "its worker has died; the next drain takes it back" in first(scene, drainer=None)
    assert "the next drain takes it back" in told(scene, drainer=None)[-1]
    assert "its worker has died; pid 4242 on host drains and takes it back" in first(scene)
    assert "is being worked on" in first(scene, 2), "the living one's job is another matter"
    scene.store.reclaim("gone")
    assert "died" not in first(scene)


def test_requests_are_called_answered_only_once_they_are(scene: Scene) -> None:
    scene.ask("a", lane="free")
    assert "requests     1 waits for this job" in told(scene)
    scene.cancel(1)
    assert "requests     1 cancelled with this job" in told(scene)


def test_a_waiting_job_says_what_it_waits_for(scene: Scene) -> None:
    scene.ask("later", lane="free", not_before_ms=scene.now_ms + 7_200_000)
    assert first(scene) == ("job 1 waits: it was not to start before its time, until 2027-01-15T10:00:00.000Z (in 2 h)")
    scene.ask("a", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    scene.store.give(lease, Then("back_off", delay_ms=4_000))
    assert "a pause before it is tried again, until 2027-01-15T08:00:04.000Z (in 4 s)" in first(scene, 2)
    scene.clock.advance(5_000)
    assert "(due; the next lease takes it up)" in first(scene, 2)
    [lease] = scene.lease()
    scene.settle(scene.send(lease), "ambiguous", Then("ask"), lease=lease)
    lines = told(scene, 2)
    assert lines[0] == "job 2 waits: the outcome of a call is unknown and your word is wanted: pay again, or not"
    assert lines[-1].startswith("next         nothing without you: `millpond decide 2 pin|same|fail`")
    assert "pin pays again on lane paid, same on the same lane, fail does not" in lines[-1]


def test_a_held_job_names_the_call_that_is_listened_to(scene: Scene) -> None:
    scene.ask("a", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    scene.store.record(lease, "uid", "free")
    scene.store.detach("uid", lease, 60_000)
    lines = told(scene)
    assert lines[0] == (
        "job 1 waits: held while attempt 1 on lane free is still listened to by pid 1 on host, "
        "at most until 2027-01-15T08:01:00.000Z, "
        "since the outcome of an earlier call is unknown"
    )
    assert lines[-1].startswith("next         if its call stays unknown, attempt 1 of 2 on lane paid; "), (
        "its lane pins after a hold in vain"
    )


def test_a_pin_that_would_be_refused_is_not_offered(scene: Scene) -> None:
    scene.asks_a_person("a", lane="free")
    policy = Policy(lanes={"free": LanePolicy("free", max_attempts=1)})
    assert told(scene, policy=policy)[-1] == (
        "next         nothing without you: `millpond decide 1 same|fail`: same pays again on the same lane, fail does "
        "not; no lane is left to pin it to"
    )


@pytest.mark.parametrize(("after_hold", "words"), [("ask", "you are asked whether to pay again"),
                                                   ("fail", "it fails: the policy does not pay again")])  # fmt: skip
def test_what_is_next_follows_the_policy(scene: Scene, after_hold: Any, words: str) -> None:
    scene.ask("a", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    scene.store.record(lease, "uid", "free")
    scene.store.detach("uid", lease, 60_000)
    policy = Policy(lanes={"free": LanePolicy("free", after_hold=after_hold)})
    assert words in told(scene, policy=policy)[-1]
    assert told(scene, policy=policy)[-1].endswith("`millpond decide 1 pin|same|fail` decides now")


@pytest.mark.parametrize("how", ["cancelled", "failed"])
def test_a_job_that_is_over_names_the_reply_that_came_late(scene: Scene, how: str) -> None:
    lease, uid = scene.in_flight("a")
    if how == "cancelled":
        scene.cancel(1, hold_ms=60_000)
    else:
        scene.store.detach(uid, lease, 60_000)
        scene.store.decide(1, "fail")
    assert told(scene)[-1] == "next         " + (
        "its call may still be heard of; once that is over, a drain or `millpond reconcile` decides what it may have "
        "cost. To ask again: millpond retry 1"
        if how == "cancelled"
        else "nothing, unless you ask again: millpond retry 1"
    )
    scene.settle(uid, "late")
    assert scene.state(1) == how
    assert told(scene)[-1] == "next         its key has an answer by now: `millpond retry 1` takes it, without a call"
    assert "came late" in " ".join(told(scene))
    scene.retry(1)
    assert scene.state(1) == "done"


def test_settled_jobs_say_what_became_of_them(scene: Scene) -> None:
    scene.ask("a", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    scene.store.give(lease, Then("fail", reason="permanent: refused\njob 1 is done"))
    assert first(scene) == "job 1 failed, 2027-01-15T08:00:00.000Z: permanent: refused job 1 is done"
    assert told(scene)[-1] == "next         nothing, unless you ask again: millpond retry 1"
    scene.ask("c", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    scene.store.give(lease, Then("fail", reason="unfit: no configured lane can serve this work: free takes no tools"))
    assert told(scene, 2)[-1] == "next         nothing; once a lane can serve it, ask again: millpond retry 2"
    scene.ask("b", lane="free")
    scene.cancel(3)
    assert first(scene, 3) == "job 3 was cancelled, 2027-01-15T08:00:00.000Z, by a person"
    with pytest.raises(UsageError, match="no job 4 in this queue"):
        told(scene, 4)


def test_keys_are_never_abbreviated_and_twins_are_listed(scene: Scene) -> None:
    for n in range(12):
        scene.ask("a", lane="free", custom_id=f"c{n}")
    lines = told(scene)
    job = scene.store.job(1)
    assert job is not None
    assert f"key          {job.idempotency_key}" in lines
    assert f"fingerprint  {job.fingerprint}" in lines
    assert "requests     12 wait for this job" in lines
    assert "  request 2: submission 2, position 0 custom_id c1, joined" in lines
    assert "  and 2 more" in lines


def test_evidence_stands_with_the_words_of_its_row(scene: Scene) -> None:
    from millpond.rules.effects import Heard
    from millpond.rules.evidence import Evidence
    from millpond.rules.verdict import end

    scene.ask("a", lane="free")
    [lease] = scene.store.lease(scene.worker, {"free": 1}, 1)
    scene.store.record(lease, "uid", "free")
    evidence = Evidence(sent="yes", status=429, headers={"retry-after": "7"}, message="slow down", request_id="req_1")
    ending = end(Heard(evidence, scene.now_ms, 0.0), POLICY.lane("free"), POLICY)
    scene.store.settle("uid", ending, Then("release", uncounted=True), lane="free", lease=lease)
    lines = told(scene)
    assert "attempts (outcomes by version 1 of the table of outcomes)" in lines
    assert "  1  free  saturated (rate_limited)  2027-01-15T08:00:00.000Z, 0 ms" in lines
    assert "     sent yes  status 429  retry-after 7  request req_1  cost $0.00" in lines
    assert any(line.startswith("     table row 429: 429 otherwise") for line in lines)
