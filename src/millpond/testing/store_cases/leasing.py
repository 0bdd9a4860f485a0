"""Lease: who goes first, on which lanes, how much is woken, and what cannot be delivered."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from millpond.rules.admission import Closing
from millpond.rules.effects import Then
from millpond.rules.errors import LeaseLost
from millpond.rules.job import Command, Prompt
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE, PriceRule
from millpond.rules.router import Exhausted, GivenUp, Past, Step, Undecided
from millpond.store.bodies import dump_work
from millpond.store.lease import ROUTE_CHUNK_ROWS, NextLane
from millpond.testing.store_scene import ROOM, Scene, asked


def realtime_goes_before_batch_of_its_priority_and_after_a_larger_one(scene: Scene) -> None:
    realtime = {"service_class": "realtime"}
    wishes: list[dict[str, Any]] = [{}, realtime, {"priority": 1}, realtime, {"due_ms": scene.now_ms}]
    ids = [scene.ask(f"k{at}", **wish).job_id for at, wish in enumerate(wishes)]
    assert [scene.take().job_id for _ in ids] == [ids[at] for at in (2, 1, 3, 4, 0)]


def the_larger_priority_goes_first(scene: Scene) -> None:
    low, high, mid = (scene.ask(f"k{p}", priority=p).job_id for p in (-1, 5, 2))
    assert [lease.job_id for lease in scene.lease(3)] == [high, mid, low]


def at_equal_priority_realtime_goes_before_batch(scene: Scene) -> None:
    batch, realtime = scene.ask("b").job_id, scene.ask("r", service_class="realtime").job_id
    assert [lease.job_id for lease in scene.lease(2)] == [realtime, batch]


def at_equal_class_the_earliest_due_goes_first_and_no_due_last(scene: Scene) -> None:
    none = scene.ask("n").job_id
    late, early = (scene.ask(f"d{ms}", due_ms=scene.now_ms + ms).job_id for ms in (9_000, 1_000))
    assert [lease.job_id for lease in scene.lease(3)] == [early, late, none]


def at_equal_due_the_oldest_goes_first(scene: Scene) -> None:
    ids = [scene.ask(f"k{at}").job_id for at in range(4)]
    assert [lease.job_id for lease in scene.lease(9)] == ids


def a_lease_says_what_is_to_be_done(scene: Scene) -> None:
    due = scene.now_ms + 5_000
    scene.ask("k", work="say blue", due_ms=due, service_class="realtime", route="colours")
    [lease] = scene.lease()
    assert lease.work == Prompt("say blue")
    assert (lease.idempotency_key, lease.attempt_no, lease.due_ms, lease.lane) == ("k", 1, due, "free")
    assert (lease.service_class, lease.route, lease.owner, lease.has_history) == (
        "realtime", "colours", scene.worker, False)  # fmt: skip


def the_lease_number_grows_with_each_lease(scene: Scene) -> None:
    job_id = scene.ask("k").job_id
    first = scene.take(job_id)
    scene.store.give(first, Then("release"))
    assert scene.take(job_id).lease_no > first.lease_no


def a_leased_job_is_not_leased_again(scene: Scene) -> None:
    scene.ask("k")
    scene.take()
    other = scene.owner("other")
    assert scene.lease(9, owner=other) == []


def no_lane_is_given_more_than_it_has_room_for(scene: Scene) -> None:
    for at in range(5):
        scene.ask(f"f{at}", lane="free")
        scene.ask(f"p{at}", lane="paid")
    lanes = [lease.lane for lease in scene.lease(9, room={"free": 2, "paid": 1})]
    assert sorted(lanes) == ["free", "free", "paid"]
    assert scene.lease(9, room={"free": 0}) == []
    assert scene.lease(9, room={}) == []


def the_limit_holds_over_all_lanes_and_rank_decides_between_them(scene: Scene) -> None:
    for lane, priority in (("free", 1), ("paid", 3), ("free", 2), ("paid", 4)):
        scene.ask(f"{lane}{priority}", lane=lane, priority=priority)
    leases = scene.lease(3, room={"free": 9, "paid": 9})
    assert [lease.idempotency_key for lease in leases] == ["paid4", "paid3", "free2"]


def a_full_lane_does_not_hide_the_work_of_another(scene: Scene) -> None:
    for at in range(20):
        scene.ask(f"f{at}", lane="free", priority=9)
    paid = scene.ask("p", lane="paid").job_id
    assert [lease.job_id for lease in scene.lease(9, room={"free": 0, "paid": 1})] == [paid]


def a_closed_lane_gives_nothing_and_nothing_is_written(scene: Scene) -> None:
    scene.ask("k")
    scene.route()
    scene.close_lane("free", Closing(scene.now_ms + 1_000, "429", "saturated"))
    with scene.unchanged():
        assert scene.lease(9) == []
    scene.clock.advance(1_000)
    assert len(scene.lease(9)) == 1


def a_lane_that_a_person_must_open_stays_closed(scene: Scene) -> None:
    scene.ask("k")
    scene.close_lane("free", Closing(None, "no money", "down"))
    scene.close_lane("free", Closing(scene.now_ms + 1, "429", "saturated"))
    scene.clock.advance(10**9)
    assert scene.lease(9) == []
    scene.store.open_lane("free")
    assert len(scene.lease(9)) == 1


def the_longer_closing_stands(scene: Scene) -> None:
    for ms in (5_000, 1_000):
        scene.close_lane("free", Closing(scene.now_ms + ms, "429", "saturated"))
    scene.clock.advance(4_999)
    assert set(scene.store.closed_lanes()) == {"free"}
    scene.clock.advance(1)
    assert scene.store.closed_lanes() == {}


def o02_one_lease_in_every_few_goes_by_age_alone(scene: Scene) -> None:
    old = [scene.ask(f"old{at}", priority=-9).job_id for at in range(3)]
    for at in range(30):
        scene.ask(f"new{at}", priority=9)
    taken = [scene.lease(1, fair_every=4)[0].job_id for _ in range(12)]
    assert [at for at, job_id in enumerate(taken, 1) if job_id in old] == [4, 8, 12]
    assert [job_id for job_id in taken if job_id in old] == old


def fairness_counts_what_was_granted_not_what_there_was_room_for(scene: Scene) -> None:
    """A lane of one slot beside idle lanes: 16 leases, one of them by age, however many were asked for at once."""
    scene.ask("old", priority=-9)
    for at in range(30):
        scene.ask(f"new{at}", priority=9)
    room = {"free": 1, "idle": 8}
    keys = [scene.lease(9, room=room, fair_every=16)[0].idempotency_key for _ in range(16)]
    assert [at for at, key in enumerate(keys, 1) if key == "old"] == [16]


def fairness_takes_its_share_of_a_large_lease(scene: Scene) -> None:
    old = [scene.ask(f"old{at}", priority=-9).job_id for at in range(9)]
    for at in range(30):
        scene.ask(f"new{at}", priority=9)
    taken = [lease.job_id for lease in scene.lease(16, fair_every=4)]
    assert (len(taken), len(set(taken) & set(old))) == (16, 4)


def only_a_bounded_number_is_woken_at_once_the_longest_due_first(scene: Scene) -> None:
    ids = [scene.ask(f"k{at}", not_before_ms=scene.now_ms + 100 - at).job_id for at in range(5)]
    scene.clock.advance(100)
    assert [lease.job_id for lease in scene.lease(9, wake_rows=2)] == [ids[3], ids[4]]
    assert scene.store.counts()["waiting"] == 3
    assert [lease.job_id for lease in scene.lease(9, wake_rows=2)] == [ids[1], ids[2]]


def what_is_next_due_is_known(scene: Scene) -> None:
    assert scene.store.next_due_ms() is None
    scene.ask("a", not_before_ms=scene.now_ms + 70)
    scene.ask("b", not_before_ms=scene.now_ms + 50)
    assert scene.store.next_due_ms() == scene.now_ms + 50


def a_backed_off_job_waits_for_its_pause(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "retryable", Then("back_off", delay_ms=500), lease=lease)
    assert (scene.state(lease.job_id), scene.job(lease.job_id).not_before_ms) == ("waiting/backoff", scene.now_ms + 500)
    scene.clock.advance(500)
    assert scene.take(lease.job_id).has_history


def work_without_a_lane_is_routed_before_it_is_leased(scene: Scene) -> None:
    scene.ask("a", route="letters")
    scene.ask("b", route="numbers")
    scene.ask("c", route="letters", lane="paid")
    seen: list[tuple[Any, str, str, Past]] = []

    def route(work: Any, name: str, wish: str, past: Past) -> Step:
        seen.append((work, name, wish, past))
        return Step(wish or {"letters": "free", "numbers": "paid"}[name])

    assert scene.lease(9, room={"free": 9, "paid": 0}, route=None) == []
    leases = scene.lease(9, room={"free": 9, "paid": 9}, route=route)
    assert [(lease.idempotency_key, lease.lane) for lease in leases] == [
        ("a", "free"), ("b", "paid"), ("c", "paid")]  # fmt: skip
    assert seen[:2] == [(Prompt("a"), "letters", "", Past()), (Prompt("b"), "numbers", "", Past())]
    assert [lease.wished_lane for lease in leases] == ["", "", "paid"]


def what_ranks_first_is_routed_first(scene: Scene) -> None:
    """A large backlog is routed in chunks; what is urgent does not wait for its end."""
    scene.ask_many(*(asked(f"k{at}") for at in range(ROUTE_CHUNK_ROWS)))
    urgent = scene.ask("urgent", priority=1)
    assert scene.take().job_id == urgent.job_id


def a_job_whose_last_call_is_undecided_is_routed_by_what_was_tried(scene: Scene) -> None:
    lease, uid = scene.in_flight("k")
    scene.settle(uid, "ambiguous", Then("release", next_lane=""), lease=lease)
    seen: list[Past] = []

    def route(_work: Any, _route: str, _wish: str, past: Past) -> Step:
        seen.append(past)
        return Step("paid")

    [again] = scene.lease(room={"paid": 1}, route=route)
    assert (again.job_id, again.lane) == (lease.job_id, "paid")
    assert seen == [Past(undecided=(Undecided(uid, "free", scene.attempt(uid).code or ""),))]


def _always(step: Step | Exhausted) -> NextLane:
    return lambda _work, _route, _wish, _past: step


def _nowhere(_work: Any, _route: str, _wish: str, _past: Past) -> Exhausted:
    """No lane can serve it."""
    return Exhausted("unfit: no lane")


def work_that_no_lane_can_serve_fails_with_the_reason(scene: Scene) -> None:
    receipt = scene.ask("k", lane="")
    assert scene.lease(9, route=_nowhere) == []
    result = scene.store.result(receipt.request_id)
    assert result is not None
    assert result.error is not None
    assert (scene.state(receipt.job_id), result.error.code) == ("failed", "unfit")


def what_is_undecided_is_decided_with_the_job_that_no_lane_can_serve_any_more(scene: Scene) -> None:
    """Nothing is paid again for it, and what the call can have cost is booked as its worst case."""
    per_call = PriceRule("stated", call_usd=Decimal("0.01"))
    lanes = (LanePolicy("paid", price=per_call), LanePolicy("free", price=FREE), None)
    booked: list[tuple[str | None, Decimal | None, bool]] = []
    for at, lane in enumerate(lanes):
        lease, uid = scene.in_flight(f"k{at}")
        scene.settle(uid, "ambiguous", Then("release", next_lane=""), lease=lease)
        assert scene.lease(9, route=_always(Exhausted("spent: lanes exhausted", (GivenUp(uid, lane),)))) == []
        row = scene.attempt(uid)
        booked.append((row.resolution, row.cost, row.cost_is_estimate))
        assert scene.state(lease.job_id) == "failed"
    assert booked == [("fail", Decimal("0.01"), True), ("fail", Decimal(0), False), ("fail", None, False)]


def what_is_still_held_is_no_part_of_what_routing_reads(scene: Scene) -> None:
    """Its reply may still come: no job fails for it, and none is sent elsewhere."""
    lease, _ = scene.in_flight("k")
    scene.cancel(lease.job_id, hold_ms=60_000)
    heir = scene.ask("k", not_before_ms=scene.now_ms + 1_000).job_id
    scene.clock.advance(1_000)
    pasts: list[Past] = []

    def route(_work: Any, _route: str, _wish: str, past: Past) -> Step:
        pasts.append(past)
        return Step("free")

    [again] = scene.lease(route=route)
    assert (again.job_id, pasts) == (heir, [Past()])


def work_of_lanes_that_the_policy_no_longer_has_is_routed_again(scene: Scene) -> None:
    for at in range(3):
        scene.ask(f"g{at}", next_lane="gone", lane="")
        scene.ask(f"f{at}", lane="free")
    last_id = scene.ask("w", lane="gone").job_id
    assert scene.store.ready_lanes() == ["free", "gone"]
    last = scene.unroute("gone", 0, limit=2)
    assert scene.store.ready_lanes() == ["", "free", "gone"]
    assert scene.unroute("gone", last, limit=10) == last_id
    assert scene.unroute("gone", last_id) == last_id
    assert [lease.idempotency_key for lease in scene.lease(9, route=None)] == ["f0", "f1", "f2"]
    assert scene.store.ready_lanes() == [""]

    def as_wished(_work: Any, _route: str, wish: str, _past: Past) -> Step:
        return Step(wish or "free")

    scene.lease(route=as_wished)
    assert scene.job(last_id).next_lane == "gone", "its caller asked for this lane by name: it waits for it"


def a_dead_owner_leases_nothing(scene: Scene) -> None:
    scene.ask("k")
    scene.store.reclaim(scene.worker)
    with scene.lease_lost():
        scene.lease()
    try:
        scene.lease(owner="never enlisted")
    except LeaseLost:
        return
    raise AssertionError("an owner without a row leased")


class _Sum(BaseModel):
    """A registered type of command."""

    a: int


def o12_a_command_that_cannot_be_loaded_is_shelved_and_the_others_go_on(scene: Scene) -> None:
    for uid, type_, payload in (("u1", "sum", {"a": 1}), ("u2", "sum", {"a": "x"}), ("u3", "gone", {}),
                                ("u4", "sum", {"a": 4})):  # fmt: skip
        scene.ask(uid, kind="command", route=type_, body=dump_work(Command(type_, payload, uid)))
    leases = scene.lease(9, registry={"sum": _Sum})
    assert [lease.work for lease in leases] == [_Sum(a=1), _Sum(a=4)]
    shelved = [job for job in scene.store.jobs() if job.wait_reason == "undeliverable"]
    assert [job.idempotency_key for job in shelved] == ["u3", "u2"]
    assert [(job.reason or "").split(":")[0] for job in shelved] == ["undeliverable", "undeliverable"]
    assert "a: " in (shelved[1].reason or ""), "the reason names the field"
    assert scene.lease(9, registry={"sum": _Sum}) == [], "it is not tried again and again"
    assert scene.store.miscounted() == {}


def o12_a_shelved_command_goes_on_when_a_person_says_so(scene: Scene) -> None:
    job_id = scene.ask("u", kind="command", route="gone", body=dump_work(Command("gone", {"a": 1}, "u"))).job_id
    assert scene.lease(registry={}) == []
    scene.clock.advance(10**9)
    assert scene.lease(registry={"gone": _Sum}) == [], "time alone mends no command"
    assert scene.retry(job_id).moved
    assert [lease.work for lease in scene.lease(registry={"gone": _Sum})] == [_Sum(a=1)]


def without_a_registry_a_command_stays_a_command(scene: Scene) -> None:
    command = Command("sum", {"a": 1}, "u", version="2")
    scene.ask("u", kind="command", route="sum", body=dump_work(command))
    assert [lease.work for lease in scene.lease()] == [command]


def leasing_many_takes_the_same_as_leasing_one_by_one(scene: Scene) -> None:
    for at in range(12):
        scene.ask(f"k{at}", priority=at % 3, lane="free" if at % 2 else "paid")
    room = {**ROOM, "paid": 9}
    wanted = [(job.idempotency_key, -job.priority, job.id) for job in scene.store.jobs()]
    taken = [lease.idempotency_key for _ in range(6) for lease in scene.lease(2, room=room)]
    assert taken == [key for key, *_ in sorted(wanted, key=lambda one: one[1:])]
