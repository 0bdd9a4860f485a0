"""Short histories that chance rarely writes: each is a function of a world, and ends in its calm."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import apsw

from millpond.rules import effects as steps
from millpond.rules.effects import ACCEPT, Heard
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Receipt, Reply
from millpond.rules.policy import AfterHold, Backoff, Deadlines, LanePolicy, Policy
from millpond.rules.price import FREE, PriceRule
from millpond.rules.verdict import end
from millpond.testing.scripted_lane import evidence_of
from millpond.testing.simulation.calls import TOTAL_MS, Plan, reply_text
from millpond.testing.simulation.drainer import Drainer, Flight
from millpond.testing.simulation.world import World, asked, fingerprint

SOFT_MS, HOLD_MS, LEASE_MS = 10_000, 20_000, 15_000
OK = Plan("ok", 1_000)
LATE = Plan("late", 25_000)
"""Answers after its soft timeout, within its hold."""
LATER = Plan("late", 55_000)
"""Answers when its hold is over as well."""


DEAR = PriceRule("stated", Decimal(1), Decimal(2))


def two_lanes(after_hold: AfterHold = "pin", **free: Any) -> Policy:
    """A free lane, then one that costs."""
    plain: dict[str, Any] = {
        "kind": "callable",
        "soft_timeout_ms": SOFT_MS,
        "after_hold": after_hold,
        "hold_ms": {"realtime": 0, "batch": HOLD_MS},
    }
    paid = LanePolicy("paid", tier="paid", price=DEAR, **plain)
    lanes = {"free": LanePolicy("free", **({"price": FREE} | plain | free)), "paid": paid}
    return Policy(lanes=lanes, backoff=Backoff(first_ms=500), max_leases_lost=2, fair_every=0, lease_ms=LEASE_MS)


REMEMBERS: dict[str, Any] = {"recall": "store", "deadlines": Deadlines(total_ms=TOTAL_MS)}
"""Of a lane that can be asked what became of its calls."""
NO_HOLD, LONG_HOLD = {"realtime": 0, "batch": 0}, {"realtime": 0, "batch": 200_000}


def one_lane(after_hold: AfterHold = "pin", **more: Any) -> Policy:
    """A lane that costs, and can be asked."""
    policy = two_lanes(after_hold)
    lane = replace(policy.lanes["paid"], **(REMEMBERS | more))
    return replace(policy, lanes={"paid": lane})


@contextmanager
def world(policy: Policy | None = None) -> Iterator[World]:
    """A world with nothing in it yet."""
    made = World(0, policy=policy or two_lanes())
    try:
        yield made
    finally:
        made.close()


def ask(world: World, key: str = "k", work: str = "", **wishes: Any) -> int:
    """Ask for some work; the id of its job."""
    [receipt] = world.ask(asked(key, work, **wishes))
    assert isinstance(receipt, Receipt)
    return receipt.job_id


def take(world: World, drainer: Drainer, job_id: int) -> Flight:
    """Let a drainer lease this job."""
    world.lease(drainer, 8)
    return next(flight for flight in drainer.flights if flight.lease.job_id == job_id)


def until(world: World, flight: Flight, effect: type[Any]) -> Flight:
    """Perform its effects, and let its call take its time, until it is about to do this one."""
    while not isinstance(flight.next, effect):
        assert flight.next is not None, f"it never came to {effect.__name__}"
        at_ms = flight.next_ms()
        if at_ms is not None and at_ms > world.clock():
            world.pass_time(at_ms - world.clock())
        world.fly(flight)
    return flight


def finish(world: World, flight: Flight) -> None:
    """Perform all the effects that are left."""
    until(world, flight, type(None))


def in_flight(world: World, drainer: Drainer, job_id: int, plan: Plan) -> Flight:
    """A call that has just left."""
    world.plans.append(plan)
    flight = until(world, take(world, drainer, job_id), steps.Call)
    world.fly(flight)
    assert flight.waits
    return flight


def state(world: World, job_id: int) -> str:
    job = world.witness.seen.jobs[job_id]
    return f"{job.state}/{job.wait_reason}" if job.wait_reason else job.state


def answered_by(world: World, job_id: int) -> str:
    """The attempt that answered a job."""
    seen = world.witness.seen
    return next(row.attempt_uid for row in seen.artifacts if row.id == seen.jobs[job_id].artifact_id)


def run_sql(world: World, statement: str) -> None:
    """What no verb does, done to the file itself."""
    connection = apsw.Connection(str(world.path))
    try:
        connection.execute(statement).fetchall()
    finally:
        connection.close()


# --- the histories ----------------------------------------------------------------------------------------------------


def a_job_that_is_due_within_a_hold_pays_no_second_time(world: World) -> None:
    """Found by chance (seeds 118 and 300 of their day): it decided the call that was still listened to."""
    first, second, *_ = world.drainers
    cancelled = ask(world)
    call = in_flight(world, first, cancelled, LATE)
    world.cancel(cancelled, HOLD_MS)
    heir = ask(world, not_before_ms=world.clock() + 1_000)
    world.pass_time(1_000)
    finish(world, take(world, second, heir))
    assert state(world, heir) == "waiting/held"
    finish(world, call)
    assert (state(world, heir), answered_by(world, heir)) == ("done", call.uid)
    world.calm()


def a_lease_that_is_over_records_nothing(world: World) -> None:
    """Cancelled and asked for again while its first holder thought about it, and leased by another."""
    first, second, *_ = world.drainers
    job = ask(world)
    stale = until(world, take(world, first, job), steps.Record)
    world.cancel(job, 0)
    world.retry(job)
    current = until(world, take(world, second, job), steps.Record)
    finish(world, stale)
    assert (stale.uid, state(world, job)) == ("", "leased")
    world.plans.append(OK)
    finish(world, current)
    world.calm()
    assert answered_by(world, job) == current.uid


def a_lease_that_is_over_fails_nothing(world: World) -> None:
    """The end of the first call says `permanent`; by then the job is another's, whose call answers it."""
    first, second, *_ = world.drainers
    job = ask(world)
    stale = in_flight(world, first, job, Plan("permanent", 2_000))
    world.cancel(job, 0)
    world.retry(job)
    current = in_flight(world, second, job, Plan("ok", 5_000))
    finish(world, stale)
    assert state(world, job) == "leased"
    finish(world, current)
    assert (state(world, job), answered_by(world, job)) == ("done", current.uid)
    world.calm()


def a_reply_older_than_the_fresh_wish_answers_nothing(world: World) -> None:
    """The first call is given up, the second answers, a fresh answer is wanted, and then the first's reply comes."""
    first, second, *_ = world.drainers
    job = ask(world)
    old = until(world, in_flight(world, first, job, LATER), steps.StopListening)
    world.fly(old)
    finish(world, in_flight(world, second, job, OK))
    assert state(world, job) == "done"
    fresh = ask(world, fresh=True)
    finish(world, old)
    assert state(world, fresh) == "ready"
    world.calm()
    assert answered_by(world, fresh) not in (old.uid, answered_by(world, job))


def a_reply_of_other_work_answers_nothing(world: World) -> None:
    """A caller's own key: cancelled in flight, then used for other work, and then the first reply comes."""
    first, *_ = world.drainers
    job = ask(world, "own", "one")
    call = in_flight(world, first, job, OK)
    world.cancel(job, 0)
    other = ask(world, "own", "another")
    finish(world, call)
    assert state(world, other) == "ready"
    world.calm()


def a_frozen_drainer_s_reply_is_taken_from_it(world: World) -> None:
    """Frozen in its call, given up, called again by another: its good reply still comes first, and counts."""
    zombie, heir, *_ = world.drainers
    job = ask(world)
    old = in_flight(world, zombie, job, OK)
    world.freeze(zombie, 40_000)
    world.pass_time(LEASE_MS)
    world.tend(heir)
    new = in_flight(world, heir, job, Plan("slow", 39_000))
    world.pass_time(25_000)
    finish(world, old)
    assert (state(world, job), answered_by(world, job)) == ("done", old.uid)
    finish(world, new)
    world.calm()
    assert answered_by(world, job) == old.uid


def a_frozen_drainer_sends_nothing_when_it_wakes(world: World) -> None:
    """Frozen between record and call, given up, called again by another: its own call never leaves."""
    zombie, heir, *_ = world.drainers
    job = ask(world)
    old = until(world, take(world, zombie, job), steps.Call)
    world.freeze(zombie, 20_000)
    world.pass_time(LEASE_MS)
    world.tend(heir)
    new = in_flight(world, heir, job, Plan("ok", 9_000))
    world.pass_time(5_000)
    finish(world, old)
    assert list(world.witness.calls) == [new.uid]
    finish(world, new)
    world.calm()


def a_cancelled_call_answers_who_asks_again(world: World) -> None:
    """Its reply is neither lost nor bought twice."""
    first, *_ = world.drainers
    job = ask(world)
    call = in_flight(world, first, job, OK)
    world.cancel(job, HOLD_MS)
    again = ask(world)
    assert state(world, again) == "waiting/held"
    finish(world, call)
    assert (state(world, job), state(world, again)) == ("cancelled", "done")
    world.calm()


def a_cancelled_call_that_nobody_waited_for_answers_the_next(world: World) -> None:
    """By a job of his own, which is done: the one that made the call stays cancelled."""
    first, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.cancel(job, HOLD_MS)
    finish(world, call)
    again = ask(world)
    assert (state(world, job), state(world, again)) == ("cancelled", "done")
    world.calm()


def what_kills_its_worker_again_and_again_fails(world: World) -> None:
    """Not for ever: a poisonous job must not kill all workers there are."""
    job = ask(world)
    for _ in range(world.policy.max_leases_lost + 1):
        if state(world, job) == "failed":
            break
        doomed, other, *_ = world.drainers
        take(world, doomed, job)
        world.crash(doomed)
        world.tend(other)
    assert state(world, job) == "failed"
    world.calm()


def evidence_is_not_replaced(world: World) -> None:
    """A worker says `retryable`, and hands a reply in for the same attempt afterwards: kept, and moves nothing."""
    first, *_ = world.drainers
    job = ask(world)
    call = in_flight(world, first, job, Plan("retryable", 1_000))
    finish(world, call)
    reply = Reply(reply_text(call.uid, fingerprint("k")))
    ending = end(Heard(evidence_of(reply), world.clock(), 0.0), world.policy.lane("free"), world.policy)
    world.witness.delivered(call.uid, ending)
    settled = world.store.settle(call.uid, ending, ACCEPT, lane="free", lease=None)
    world.witness.check()
    assert not settled.accepted
    world.calm()


def a_person_decides_what_was_asked(world: World) -> None:
    """`after_hold: ask`: nothing more is sent until a person decides it."""
    first, second, *_ = world.drainers
    job = ask(world)
    finish(world, in_flight(world, first, job, Plan("lost", 1_000)))
    finish(world, take(world, second, job))
    assert (state(world, job), len(world.witness.calls)) == ("waiting/asked", 1)
    world.plans.append(OK)
    world.calm()
    assert (state(world, job), len(world.witness.calls)) == ("done", 2)


def a_drainer_that_was_given_up_leases_under_a_new_name(world: World) -> None:
    """Rightly or not, and it does not know. Under its old name it would hold what everybody takes for nobody's."""
    zombie, *_ = world.drainers
    job, name = ask(world), zombie.owner
    world.store.reclaim(name, max_leases_lost=world.policy.max_leases_lost)
    assert (world.lease(zombie, 1), zombie.owner == name) == (0, False), f"{name} was given up, and leases as {name}"
    finish(world, in_flight(world, zombie, job, OK))
    world.calm()


def a_drainer_whose_beat_is_old_sends_nothing(world: World) -> None:
    """Its lease is young, its beat is not: others may take its job at any time, and the ledger does not say so yet."""
    zombie, *_ = world.drainers
    job = ask(world)
    flight = until(world, take(world, zombie, job), steps.Call)
    world.freeze(zombie, 12_000, beat_age_ms=5_000)
    world.pass_time(12_000)
    finish(world, flight)
    assert not world.witness.calls
    world.calm()
    assert state(world, job) == "done"


def a_drainer_that_slept_is_not_known_by_its_old_name(world: World) -> None:
    """Whoever saw its beat stand still writes so only when it has long woken, and is at work again."""
    zombie, *_ = world.drainers
    job, name = ask(world), zombie.owner
    world.freeze(zombie, 20_000)
    world.pass_time(20_000)
    call = in_flight(world, zombie, job, OK)
    assert call.lease.owner != name
    world.store.reclaim(name, max_leases_lost=world.policy.max_leases_lost)
    world.witness.check()
    finish(world, call)
    assert (state(world, job), answered_by(world, job)) == ("done", call.uid)
    world.calm()


def a_drainer_that_slept_unseen_keeps_its_calls(world: World) -> None:
    """Nobody gave it up: what it calls and what it listens to goes on under its new name, and is paid for once."""
    sleeper, heir, *_ = world.drainers
    called, listened, leased = ask(world, "a"), ask(world, "b"), ask(world, "c")
    world.lease(sleeper, 8)
    flights = {flight.lease.job_id: flight for flight in sleeper.flights}
    world.plans += [Plan("slow", 19_000), Plan("late", 22_000)]
    for job in (called, listened):
        world.fly(until(world, flights[job], steps.Call))
    world.cancel(listened, HOLD_MS)
    again = ask(world, "b")
    world.freeze(sleeper, 16_000)
    world.pass_time(16_000)
    world.tend(sleeper)
    assert (state(world, called), state(world, again), state(world, leased)) == ("leased", "waiting/held", "ready")
    world.tend(heir)
    for job in (called, listened):
        finish(world, flights[job])
    finish(world, flights[leased])
    assert [state(world, job) for job in (called, again)] == ["done", "done"]
    assert len(world.witness.calls) == 2
    world.calm()


def a_clock_that_is_set_forward_ends_no_hold(world: World) -> None:
    """By the time on the wall the hold is long over; by the listener's own clock it has just begun."""
    listener, other, *_ = world.drainers
    job = ask(world)
    call = in_flight(world, listener, job, LATE)
    world.cancel(job, HOLD_MS)
    again = ask(world)
    for drainer in (listener, other):
        world.set_clock(drainer, 3_600_000)
    world.tend(listener)
    if world.lease(other, 8):
        until(world, other.flights[0], steps.Call)
    finish(world, call)
    assert (state(world, again), answered_by(world, again)) == ("done", call.uid)
    world.calm()


def a_clock_that_is_set_forward_ends_no_hold_for_a_lane_to_be_asked(world: World) -> None:
    """Nobody listens any more. By the time on the wall the hold is long over, and the lane has the reply soon."""
    first, second, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.crash(first)
    world.tend(second)
    world.set_clock(second, 3_600_000)
    finish(world, take(world, second, job))
    assert state(world, job) == "waiting/held"
    world.pass_time(OK.takes_ms)
    world.tend(second)
    assert (state(world, job), answered_by(world, job)) == ("done", call.uid)
    world.calm()


def a_clock_that_is_set_forward_forgets_no_call_for_which_a_lane_is_asked(world: World) -> None:
    """Its job is cancelled, and whoever asks for the same an hour later, by the wall, is answered by its reply."""
    first, second, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.crash(first)
    world.tend(second)
    world.cancel(job, 0)
    world.set_clock(second, 3_600_000)
    with world._seen_by(second):
        assert not world.store.forget(call.uid), "it was forgotten within its hold"
    world.pass_time(OK.takes_ms)
    world.tend(second)
    assert state(world, ask(world)) == "done"
    world.calm()


def a_lease_whose_task_died_is_taken_back_by_its_owner(world: World) -> None:
    """The process lives, so nobody else may judge."""
    owner, other, *_ = world.drainers
    job = ask(world)
    world.drop(owner, in_flight(world, owner, job, OK))
    world.pass_time(LEASE_MS - 1)
    world.tend(owner)
    world.tend(other)
    assert state(world, job) == "leased"
    world.pass_time(1)
    world.tend(owner)
    assert state(world, job) == "ready", f"job {job} is leased for ever to a task that died"
    world.calm()


def a_call_that_breaks_wakes_who_waits_for_it(world: World) -> None:
    """Cancelled and listened to, so that who asks again is held; then its connection breaks, and nothing holds him."""
    first, *_ = world.drainers
    job = ask(world)
    call = in_flight(world, first, job, Plan("lost", 2_000))
    world.cancel(job, HOLD_MS)
    again = ask(world)
    assert state(world, again) == "waiting/held"
    finish(world, call)
    assert state(world, again) == "ready", f"{call.uid} has ended, and job {again} is {state(world, again)}"
    world.calm()


def a_late_reply_replaces_an_estimate(world: World) -> None:
    """Given up and decided, so booked at its worst; then it answers after all, and says what it used."""
    first, second, *_ = world.drainers
    job = ask(world)
    call = in_flight(world, first, job, LATER)
    world.fly(until(world, call, steps.StopListening))
    until(world, take(world, second, job), steps.Admit)
    row = world.witness.seen.attempts[call.uid]
    assert row.cost > 100, f"{call.uid} was decided, and is booked at {row.cost}"
    finish(world, call)
    world.calm()


def the_schema_refuses_a_second_open_attempt(world: World) -> None:
    """Whatever a program does: two open attempts of one key cannot stand in the file."""
    first, *_ = world.drainers
    call = in_flight(world, first, ask(world), OK)
    columns = "job_id, attempt_no, lease_no, owner, lane, tier, idempotency_key, fingerprint, started_ms"
    with suppress(apsw.ConstraintError):
        run_sql(world, f"INSERT INTO attempt (uid, {columns}) SELECT 'x', {columns} FROM attempt WHERE uid = 'a1'")
    world.witness.check()
    finish(world, call)
    world.calm()


def record_heeds_an_answer_that_nobody_told_it_of(world: World) -> None:
    """No verb leaves a live job beside an answer in force. Should a file be so all the same, nothing is paid for."""
    first, *_ = world.drainers
    flight = until(world, take(world, first, ask(world)), steps.Record)
    run_sql(world, """
        INSERT INTO attempt (uid, job_id, attempt_no, lease_no, owner, lane, tier, idempotency_key, fingerprint,
          started_ms, ended_ms, outcome) SELECT 'x', id, 1, 1, 'd1', 'free', 'free', idempotency_key, fingerprint, 1, 1,
          'ok' FROM job""")  # fmt: skip
    run_sql(world, """
        INSERT INTO artifact (idempotency_key, fingerprint, attempt_uid, accepted_ms)
          SELECT idempotency_key, fingerprint, 'x', 1 FROM job""")  # fmt: skip
    flight.step()
    assert flight.uid == "", f"call {flight.uid} was recorded for key k, which has its answer in force"


def who_dies_when_policy_has_given_a_call_up_pays_no_second_time(world: World) -> None:
    """Found by a real SIGKILL: the decision was written, the job's end was not, and the next drainer asked again."""
    worker, *_ = world.drainers
    world.plans += [Plan("lost", 2_000), OK]
    finish(world, take(world, worker, job := ask(world)))
    worker.land()
    while not world.lease(worker, 8):
        world.pass_time((world.next_ms() or 0) - world.clock())
    until(world, worker.flights[0], steps.Give)
    world.crash(worker)
    world.calm()
    assert state(world, job) == "failed"


def decided_while_it_answers(world: World) -> tuple[Flight, Flight]:
    """A call whose hold is over and whose reply comes now, and a journey that is about to post its worst case."""
    first, second, *_ = world.drainers
    job = ask(world)
    call = until(world, in_flight(world, first, job, LATER), steps.StopListening)
    world.fly(call)
    poster = until(world, take(world, second, job), steps.Post)
    until(world, call, steps.Settle)
    return call, poster


def evidence_that_comes_between_post_and_mark_is_posted(world: World) -> None:
    """The estimate is in the book and not yet marked; its evidence is in the ledger, and whoever brought it dies."""
    call, poster = decided_while_it_answers(world)
    world.fly(poster)
    world.fly(call)
    assert isinstance(call.next, steps.Post)
    world.fly(poster)
    world.crash(world.drainers[0])
    world.calm()


def who_is_slow_to_post_an_estimate_undoes_no_actual(world: World) -> None:
    """Its evidence was settled and posted meanwhile."""
    call, poster = decided_while_it_answers(world)
    finish(world, call)
    world.fly(poster)
    world.fly(poster)
    world.calm()


def two_queues_on_one_book_leave_each_other_alone(world: World) -> None:
    """Each is about to record a call of its own when the other sees to the book."""
    neighbour = World(1, policy=two_lanes(), beside=world)
    try:
        flights = [(one, until(one, take(one, one.drainers[0], ask(one)), steps.Record)) for one in (world, neighbour)]
        for one in (world, neighbour):
            one.keep_book()
        for one, flight in flights:
            one.plans.append(OK)
            finish(one, flight)
        world.calm()
        neighbour.calm()
        world.check_end()
    finally:
        neighbour.close()


def a_call_of_the_dead_is_held_where_the_lane_remembers(world: World) -> None:
    """Its process dies while the call is under way: nobody hears the reply, and the lane has it soon."""
    first, second, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.crash(first)
    world.tend(second)
    assert state(world, job) == "waiting/held", "it is held no more, though its lane will remember"
    world.pass_time(OK.takes_ms)
    world.tend(second)
    assert (state(world, job), answered_by(world, job)) == ("done", call.uid)
    world.calm()


def a_hold_outlives_its_listener_where_the_lane_remembers(world: World) -> None:
    """Detached, and then its process dies: nobody hears the reply, and the lane has it soon."""
    first, second, *_ = world.drainers
    call = until(world, in_flight(world, first, job := ask(world), LATE), steps.Detach)
    world.fly(call)
    world.crash(first)
    world.tend(second)
    assert state(world, job) == "waiting/held", "it is held no more, though its lane will remember"
    world.pass_time(LATE.takes_ms)
    world.tend(second)
    assert (state(world, job), answered_by(world, job)) == ("done", call.uid)
    world.calm()


def a_lane_is_asked_before_its_job_fails_for_want_of_another(world: World) -> None:
    """No hold, no attempt left, and a reply that only the lane has."""
    first, second, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.pass_time(OK.takes_ms)
    world.crash(first)
    world.store.reclaim(first.owner)
    world.lease(second, 8)
    assert state(world, job) == "leased", f"job {job} is {state(world, job)}, and its lane was not asked"
    finish(world, second.flights[0])
    assert (state(world, job), answered_by(world, job)) == ("done", call.uid)
    world.calm()


def past_its_hold(world: World) -> tuple[int, Flight]:
    """A call that a person has cancelled and whose process died: its hold is over, and its lane has the reply."""
    first, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.cancel(job, 0)
    world.crash(first)
    world.store.reclaim(first.owner)
    world.pass_time(OK.takes_ms)
    return job, call


def a_lane_is_asked_before_who_asks_anew_pays_again(world: World) -> None:
    _, call = past_its_hold(world)
    job = ask(world)
    finish(world, take(world, world.drainers[1], job))
    assert (state(world, job), answered_by(world, job)) == ("done", call.uid)
    world.calm()


def a_lane_is_asked_before_a_retry_pays_again(world: World) -> None:
    job, call = past_its_hold(world)
    world.retry(job)
    finish(world, take(world, world.drainers[1], job))
    assert (state(world, job), len(world.witness.calls)) == ("done", 1), "its lane had the reply, and was not asked"
    assert answered_by(world, job) == call.uid
    world.calm()


def a_call_that_would_leave_after_its_lease_does_not(world: World) -> None:
    """Its process lives, beats and is slow; then it dies. Nobody would know how long the call may run."""
    first, second, *_ = world.drainers
    world.plans.append(Plan("late", 59_000))
    call = until(world, take(world, first, job := ask(world)), steps.Call)
    world.pass_time(LEASE_MS + 10_000)
    world.fly(call)
    world.crash(first)
    while state(world, job) != "done":
        if world.tend(second) + world.lease(second, 8) == 0:
            world.pass_time(1_000)
        for flight in second.flights:
            finish(world, flight)
        second.land()
    world.calm()


def a_job_whose_call_was_never_made_has_its_attempt_still(world: World) -> None:
    """Its lane gives it one: whatever kept the call from leaving was no fault of the lane."""
    first, second, *_ = world.drainers
    call = until(world, take(world, first, job := ask(world)), steps.Call)
    world.pass_time(LEASE_MS)
    finish(world, call)
    found = world.witness.seen.jobs[job]
    assert (found.state, found.attempts_made) == ("ready", 0), "an attempt is counted that was not made"
    finish(world, in_flight(world, second, job, OK))
    assert state(world, job) == "done"
    world.calm()


def the_schema_refuses_a_reply_that_was_in_force(world: World) -> None:
    """Whatever a program does: a reply that was retired cannot come into force again."""
    first, *_ = world.drainers
    finish(world, call := in_flight(world, first, ask(world), OK))
    ask(world, fresh=True)
    with suppress(apsw.ConstraintError):
        run_sql(world, f"""
            INSERT INTO artifact (idempotency_key, fingerprint, attempt_uid, accepted_ms)
              SELECT 'other', fingerprint, attempt_uid, 1 FROM artifact
                WHERE attempt_uid = '{call.uid}'""")  # fmt: skip
    world.witness.check()
    world.calm()


def record_heeds_a_death_that_moved_nothing(world: World) -> None:
    """Reclaim takes all leases of the dead in one transaction. Should a file be otherwise, nothing is sent for it."""
    first, *_ = world.drainers
    flight = until(world, take(world, first, ask(world)), steps.Record)
    run_sql(world, f"UPDATE owner SET dead = 1 WHERE uuid = '{first.owner}'")
    flight.step()
    assert flight.uid == "", f"call {flight.uid} was recorded for {first.owner}, which was declared dead"


def a_key_is_not_taken_from_a_call_under_way(world: World) -> None:
    """A caller's own key: cancelled in flight, and asked for with other work while its call is still listened to."""
    first, *_ = world.drainers
    job = ask(world, "own", "one")
    call = in_flight(world, first, job, LATE)
    world.cancel(job, HOLD_MS)
    [refused] = world.ask(asked("own", "another"))
    assert isinstance(refused, KeyConflict)
    finish(world, call)
    world.calm()


def a_call_for_which_no_job_waits_ends_with_its_owner(world: World) -> None:
    """Given up, called again, and answered by the first call after all; then the owner of the second call dies."""
    first, second, third, *_ = [*world.drainers, Drainer(world.ground)]
    old = until(world, in_flight(world, first, job := ask(world), LATER), steps.StopListening)
    world.fly(old)
    new = in_flight(world, second, job, Plan("slow", 59_000))
    finish(world, old)
    assert (state(world, job), answered_by(world, job)) == ("done", old.uid)
    world.crash(second)
    world.tend(third)
    fresh = ask(world, fresh=True)
    world.calm()
    assert answered_by(world, fresh) not in (old.uid, new.uid)


def a_job_that_nobody_asks_for_is_not_retried(world: World) -> None:
    """Cancelled, asked for anew, and retried: its request joins the new job, and a second retry finds nobody."""
    old, _ = ask(world), world.cancel(1, 0)
    new = ask(world)
    world.retry(old)
    assert world.witness.seen.hanging(old) == []
    world.cancel(new, 0)
    world.retry(old)
    assert state(world, old) == "cancelled"
    world.calm()


def a_call_that_left_late_is_not_taken_for_absent(world: World) -> None:
    """Asleep between its row and its first byte, just short of its lease; then its process dies, and it runs on."""
    first, second, *_ = world.drainers
    world.plans.append(Plan("late", 59_000))
    call = until(world, take(world, first, job := ask(world)), steps.Call)
    world.pass_time(LEASE_MS - 1_000)
    world.fly(call)
    world.crash(first)
    while state(world, job) != "done":
        world.tend(second)
        world.pass_time(1_000)
    assert answered_by(world, job) == call.uid
    world.calm()


def a_clock_that_was_set_anew_proves_nothing(world: World) -> None:
    """Recorded by a clock that is an hour behind: by the right one the call should be over for long, and it runs."""
    first, second, *_ = world.drainers
    world.set_clock(first, -3_600_000)
    call = in_flight(world, first, job := ask(world), LATE)
    world.crash(first)
    world.tend(second)
    world.pass_time(LATE.takes_ms)
    while state(world, job) != "done":
        world.tend(second)
        world.pass_time(1_000)
    assert answered_by(world, job) == call.uid
    world.calm()


def a_clock_set_forward_before_the_question_makes_no_call_older(world: World) -> None:
    """Found by chance (seed 70009): between the look at what is unknown and the question an hour came to the clock."""
    first, second, *_ = world.drainers
    in_flight(world, first, job := ask(world), LATE)
    world.crash(first)
    world.tend(second)
    flight = until(world, take(world, second, job), steps.Recall)
    world.set_clock(second, 3_600_000)
    world.plans.append(OK)
    finish(world, flight)
    assert state(world, job) == "done"
    world.calm()


def a_hold_that_ends_after_the_look_lets_no_call_leave_unasked(world: World) -> None:
    """Found by chance (seed 881120): held at the look back, over at the ledger row, and its lane never asked."""
    first, second, *_ = world.drainers
    call = in_flight(world, first, job := ask(world), OK)
    world.cancel(job, HOLD_MS)
    world.crash(first)
    world.tend(second)
    heir = ask(world, not_before_ms=world.clock() + 1_000)
    world.pass_time(1_000)
    flight = until(world, take(world, second, heir), steps.Record)
    world.pass_time(HOLD_MS)
    finish(world, flight)
    assert flight.uid == "", f"call {flight.uid} left while the lane of {call.uid} was not asked"
    world.tend(second)
    assert (state(world, heir), answered_by(world, heir)) == ("done", call.uid)
    world.calm()


def a_clock_set_forward_ends_no_hold_that_a_due_time_shortens(world: World) -> None:
    """Found by chance (seed 1289716649924000354): held for as long again as the call was old, and it was paid again."""
    first, second, *_ = world.drainers
    call = in_flight(world, first, ask(world, due_ms=world.clock() + 8_000), LATE)
    world.pass_time(3_000)
    world.crash(first)
    world.tend(second)
    world.set_clock(second, 9_000)
    world.pass_time(2_500)
    world.lease(second, 8)
    for flight in second.flights:
        finish(world, flight)
    assert set(world.witness.calls) == {call.uid}, "another call left while the first one's lane can be asked"
    world.calm()


def nobody_is_asked_about_what_has_ended(world: World) -> None:
    """Found by chance (seed 60085): a word is about to be wanted on a call, and its end comes first."""
    first, second, *_ = world.drainers
    call = until(world, in_flight(world, first, job := ask(world), Plan("retryable", 55_000)), steps.StopListening)
    world.fly(call)
    flight = until(world, take(world, second, job), steps.Give)
    finish(world, call)
    finish(world, flight)
    assert state(world, job) == "ready", f"job {job} is {state(world, job)}, and there is nothing to be said"
    world.calm()


def a_person_decides_what_is_still_held(world: World) -> None:
    """Sooner than the hold ends: once more on the same lane. The first reply comes all the same, and counts."""
    first, second, *_ = world.drainers
    old = until(world, in_flight(world, first, job := ask(world), LATER), steps.Listen)
    assert world.say(job, "same")
    new = in_flight(world, second, job, OK)
    finish(world, new)
    assert answered_by(world, job) == new.uid
    finish(world, old)
    assert world.witness.seen.attempts[old.uid].resolution == "late"
    world.calm()


def what_is_leased_and_not_sent_when_a_person_stops_it_goes_back(world: World) -> None:
    """Leased before the stop, and about to write its row after it; the lane in question may cost."""
    first, second, *_ = world.drainers
    job = ask(world, lane="paid")
    flight = until(world, take(world, first, job), steps.Record)
    world.stop("paid")
    finish(world, flight)
    seen = world.witness.seen
    assert (flight.uid, state(world, job), seen.jobs[job].attempts_made) == ("", "ready", 0)
    assert world.lease(second, 8) == 0
    world.resume("paid")
    world.calm()


def what_a_dead_drainer_could_not_write_is_written_before_its_work_is_given_away(world: World) -> None:
    first, second, *_ = world.drainers
    world.plans.append(OK)
    flight = until(world, take(world, first, job := ask(world)), steps.Settle)
    world.fill(60_000)
    world.fly(flight)
    world.crash(first)
    world.tend(second)
    assert state(world, job) == "leased", "nobody is reclaimed while the queue takes nothing"
    world.pass_time(60_000)
    world.tend(second)
    world.calm()
    assert (state(world, job), len(world.witness.calls)) == ("done", 1)


def what_a_frozen_drainer_could_not_write_is_written_by_others_and_then_by_itself(world: World) -> None:
    first, second, *_ = world.drainers
    world.plans.append(OK)
    flight = until(world, take(world, first, job := ask(world)), steps.Settle)
    world.fill(20_000)
    world.fly(flight)
    world.freeze(first, 50_000)
    world.pass_time(20_000)
    world.tend(second)
    assert state(world, job) == "done"
    world.pass_time(30_000)
    finish(world, flight)
    world.calm()
    assert (len(world.witness.calls), first.spool.pending()) == (1, 0)


HISTORIES: dict[str, tuple[Callable[[World], None], Policy]] = {
    one.__name__: (one, policy)
    for one, policy in [
        (a_job_that_is_due_within_a_hold_pays_no_second_time, two_lanes()),
        (a_lease_that_is_over_records_nothing, two_lanes()),
        (who_dies_when_policy_has_given_a_call_up_pays_no_second_time, two_lanes("fail")),
        (a_lease_that_is_over_fails_nothing, two_lanes()),
        (a_reply_older_than_the_fresh_wish_answers_nothing, two_lanes()),
        (a_reply_of_other_work_answers_nothing, two_lanes()),
        (a_frozen_drainer_s_reply_is_taken_from_it, two_lanes(soft_timeout_ms=None)),
        (a_frozen_drainer_sends_nothing_when_it_wakes, two_lanes()),
        (a_cancelled_call_answers_who_asks_again, two_lanes()),
        (a_cancelled_call_that_nobody_waited_for_answers_the_next, two_lanes()),
        (what_kills_its_worker_again_and_again_fails, two_lanes()),
        (evidence_is_not_replaced, two_lanes()),
        (a_person_decides_what_was_asked, two_lanes("ask")),
        (a_drainer_that_was_given_up_leases_under_a_new_name, two_lanes()),
        (a_drainer_whose_beat_is_old_sends_nothing, two_lanes()),
        (a_drainer_that_slept_is_not_known_by_its_old_name, two_lanes()),
        (a_drainer_that_slept_unseen_keeps_its_calls, two_lanes(soft_timeout_ms=None)),
        (a_clock_that_is_set_forward_ends_no_hold, two_lanes(soft_timeout_ms=None)),
        (a_clock_that_is_set_forward_ends_no_hold_for_a_lane_to_be_asked, one_lane("same", hold_ms=LONG_HOLD)),
        (a_clock_that_is_set_forward_forgets_no_call_for_which_a_lane_is_asked, one_lane("same", hold_ms=LONG_HOLD)),
        (a_lease_whose_task_died_is_taken_back_by_its_owner, two_lanes()),
        (a_call_that_breaks_wakes_who_waits_for_it, two_lanes()),
        (a_late_reply_replaces_an_estimate, two_lanes("same", price=DEAR, max_output_tokens=100)),
        (the_schema_refuses_a_second_open_attempt, two_lanes()),
        (record_heeds_an_answer_that_nobody_told_it_of, two_lanes()),
        (evidence_that_comes_between_post_and_mark_is_posted, two_lanes("same", price=DEAR, max_output_tokens=100)),
        (who_is_slow_to_post_an_estimate_undoes_no_actual, two_lanes("same", price=DEAR, max_output_tokens=100)),
        (two_queues_on_one_book_leave_each_other_alone, two_lanes()),
        (a_call_of_the_dead_is_held_where_the_lane_remembers, two_lanes(**REMEMBERS)),
        (a_hold_outlives_its_listener_where_the_lane_remembers, two_lanes(**REMEMBERS)),
        (a_lane_is_asked_before_its_job_fails_for_want_of_another, one_lane(max_attempts=1, hold_ms=NO_HOLD)),
        (a_lane_is_asked_before_who_asks_anew_pays_again, one_lane(hold_ms=NO_HOLD)),
        (a_lane_is_asked_before_a_retry_pays_again, one_lane(hold_ms=NO_HOLD)),
        (a_call_that_left_late_is_not_taken_for_absent, one_lane(hold_ms=LONG_HOLD)),
        (a_clock_that_was_set_anew_proves_nothing, one_lane(hold_ms=LONG_HOLD)),
        (a_clock_set_forward_before_the_question_makes_no_call_older, one_lane("same", hold_ms=NO_HOLD)),
        (
            a_hold_that_ends_after_the_look_lets_no_call_leave_unasked,
            one_lane(hold_ms={"realtime": 0, "batch": HOLD_MS}),
        ),
        (a_clock_set_forward_ends_no_hold_that_a_due_time_shortens, one_lane(hold_ms=LONG_HOLD)),
        (nobody_is_asked_about_what_has_ended, two_lanes("ask")),
        (a_call_that_would_leave_after_its_lease_does_not, one_lane(hold_ms=LONG_HOLD, settling_ms=0)),
        (a_job_whose_call_was_never_made_has_its_attempt_still, one_lane(max_attempts=1)),
        (the_schema_refuses_a_reply_that_was_in_force, two_lanes()),
        (record_heeds_a_death_that_moved_nothing, two_lanes()),
        (a_key_is_not_taken_from_a_call_under_way, two_lanes()),
        (a_call_for_which_no_job_waits_ends_with_its_owner, two_lanes()),
        (a_job_that_nobody_asks_for_is_not_retried, two_lanes()),
        (a_person_decides_what_is_still_held, one_lane(max_attempts=1)),
        (what_is_leased_and_not_sent_when_a_person_stops_it_goes_back, two_lanes()),
        (what_a_dead_drainer_could_not_write_is_written_before_its_work_is_given_away, two_lanes()),
        (what_a_frozen_drainer_could_not_write_is_written_by_others_and_then_by_itself, two_lanes()),
    ]
}
