"""A store beside a model in dicts: whatever is done to both in whatever order, they say and hold the same.

Needs hypothesis, which Millpond itself does not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millpond.rules.effects import ACCEPT, Then
from millpond.rules.errors import KeyConflict, LeaseLost
from millpond.rules.job import Lease
from millpond.store.store import Store
from millpond.testing.cases import refuse_without_assertions
from millpond.testing.promises import check_promises
from millpond.testing.store_model import MAX_LEASES_LOST, Model, ModelJob
from millpond.testing.store_scene import MakeStore, Scene, asked, at_position, ending

HOLD_MS = st.sampled_from([0, 1_000])
ENDS = st.sampled_from(["ok", "ok", "retryable", "ambiguous", "permanent", "unusable"])
AFTER_FAILURE = st.sampled_from([
    (Then("release"), ("ready", None, None)),
    (Then("back_off", delay_ms=30), ("waiting", "backoff", 30)),
    (Then("fail", reason="refused: no"), ("failed", None, None)),
    (Then("ask"), ("waiting", "asked", None)),
])  # fmt: skip
NAMED = [("a", "a"), ("a", "a"), ("mine", "a"), ("mine", "b")]
"""Key and work: one that is named by what it asks, and a caller's key for two different works."""
WORKS = st.sampled_from(NAMED)


def store_machine(make_store: MakeStore) -> type[BesideAModel]:
    """The machine of one kind of store. Run its `TestCase`, or give it to hypothesis' `run_state_machine_as_test`.

    `make_store(now_ms)` makes a new, empty store that reads its time from `now_ms`; each run closes its own.
    """
    refuse_without_assertions()

    return type("OfThisStore", (BesideAModel,), {"make_store": staticmethod(make_store)})


class BesideAModel(RuleBasedStateMachine):
    """Does the same to a store and to the model. A rule is a verb, an invariant what must then hold of both."""

    make_store: ClassVar[Callable[[Callable[[], int]], Store]]
    """Makes a new, empty store; `store_machine` says which."""

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(type(self).make_store)
        self.store, self.model = self.scene.store, Model()
        self.owners = [self.scene.worker, self.scene.owner("w1")]
        self.leases: list[Lease] = []
        self.calls: list[tuple[str, Lease]] = []
        self.submission_of: dict[int, int] = {}

    def teardown(self) -> None:
        """Close the store."""
        self.store.close()

    def pick(self, data: st.DataObject, things: list[Any]) -> Any:
        """One of the newest few: old ones have had their turn."""
        return things[-1 - data.draw(st.integers(0, min(len(things), 4) - 1))]

    # --- what callers do ----------------------------------------------------------------------------------------------

    @rule(
        named=WORKS,
        fresh=st.booleans(),
        priority=st.integers(0, 2),
        delay=st.sampled_from([0, 0, 40]),
        more=st.booleans(),
    )
    def ask(self, named: tuple[str, str], fresh: bool, priority: int, delay: int, more: bool) -> None:
        """`more`: in the newest submission, so that several of its requests may hang on one job."""
        key, work = named
        now, start = self.scene.now_ms, self.scene.now_ms + delay
        expected = self.model.ask(key, work, fresh, priority, start, now)
        submission = max(self.submission_of.values()) if more and self.submission_of else self.store.open_submission()
        one = asked(key, work=work, fresh=fresh, priority=priority, not_before_ms=start)
        [receipt] = self.store.enqueue([at_position(one, len(self.submission_of))], submission)
        if isinstance(receipt, KeyConflict):
            assert expected == "conflict"
            return
        self.submission_of[receipt.request_id] = submission
        assert receipt.disposition == expected
        new = ModelJob(key, work, priority=priority)
        assert (receipt.job_id in self.model.jobs) == (expected == "joined" or self.has_done_job(expected, key))
        self.model.hang(receipt.job_id, receipt.request_id, expected, new, start, now)
        if expected == "reused":
            assert self.store.job(receipt.job_id) is not None
            assert self.scene.text(receipt.request_id) is not None

    def has_done_job(self, said: str, key: str) -> bool:
        return said == "reused" and any(job.answer == self.model.in_force[key] for job in self.model.jobs.values())

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), hold_ms=HOLD_MS)
    def cancel(self, data: st.DataObject, hold_ms: int) -> None:
        self.cancel_for(self.pick(data, list(self.model.jobs)), None, hold_ms)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data(), hold_ms=HOLD_MS)
    def cancel_for_a_submission(self, data: st.DataObject, hold_ms: int) -> None:
        self.cancel_for(*self.pick_submission(data), hold_ms)

    def cancel_for(self, job_id: int, submissions: list[int] | None, hold_ms: int) -> None:
        done = self.scene.cancel(job_id, hold_ms=hold_ms, submissions=submissions)
        assert (done.moved, done.goes_on) == self.model.cancel(job_id, self.requests_of(submissions), hold_ms)

    @precondition(lambda self: any(job.state in ("failed", "cancelled") for job in self.model.jobs.values()))
    @rule(data=st.data())
    def retry(self, data: st.DataObject) -> None:
        over = [id_ for id_, job in self.model.jobs.items() if job.state in ("failed", "cancelled")]
        self.retry_for(self.pick(data, over), None)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def retry_whatever(self, data: st.DataObject) -> None:
        self.retry_for(self.pick(data, list(self.model.jobs)), None)

    @precondition(lambda self: self.model.jobs)
    @rule(data=st.data())
    def retry_for_a_submission(self, data: st.DataObject) -> None:
        self.retry_for(*self.pick_submission(data))

    def retry_for(self, job_id: int, submissions: list[int] | None) -> None:
        done = self.scene.retry(job_id, submissions=submissions)
        assert done.moved == self.model.retry(job_id, self.requests_of(submissions), for_all=submissions is None)

    def pick_submission(self, data: st.DataObject) -> tuple[int, list[int]]:
        """A job, and a submission of which some request hangs on it."""
        job_id = self.pick(data, [id_ for id_, job in self.model.jobs.items() if job.requests])
        return job_id, [self.pick(data, self.store.requests(job_id)).submission_id]

    def requests_of(self, submissions: list[int] | None) -> list[int]:
        """The requests of some submissions, or all."""
        return [id_ for id_, one in self.submission_of.items() if submissions is None or one in submissions]

    # --- what workers do ----------------------------------------------------------------------------------------------

    @rule(at=st.integers(0, 1), limit=st.integers(1, 3))
    def lease(self, at: int, limit: int) -> None:
        owner = self.owners[at]
        leases = self.scene.lease(limit, owner=owner)
        assert [lease.job_id for lease in leases] == self.model.lease(owner, limit, self.scene.now_ms)
        for lease in leases:
            assert lease.lease_no == self.model.jobs[lease.job_id].lease_no
        self.leases += leases

    @rule(named=WORKS, fresh=st.booleans(), at=st.integers(0, 1))
    def ask_and_call(self, named: tuple[str, str], fresh: bool, at: int) -> None:
        """Three verbs in one rule, so that calls are in the air more often than chance would have them there."""
        self.ask(named, fresh, 0, 0, more=False)
        known = len(self.leases)
        self.lease(at, 3)
        for lease in self.leases[known:]:
            self.send(lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        self.send(self.pick(data, self.leases))

    def send(self, lease: Lease) -> None:
        if self.model.lost(lease.job_id, lease.lease_no, lease.owner):
            with self.scene.lease_lost():
                self.scene.record(lease)
            return
        uid = self.scene.record(lease)
        assert (uid is not None) == self.model.record(uid or "", lease.job_id, lease.owner)
        if uid is not None:
            self.calls.append((uid, lease))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), after=AFTER_FAILURE)
    def give(self, data: st.DataObject, after: tuple[Then, tuple[str, str | None, int | None]]) -> None:
        lease, (then, state) = self.pick(data, self.leases), after
        job = self.model.jobs[lease.job_id]
        if job.state != "leased" or job.lease_no != lease.lease_no:
            with self.scene.refused(LeaseLost):
                self.store.give(lease, then)
            return
        self.store.give(lease, then)
        self.model.follow(job, *self.dated(state))

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), outcome=ENDS, after=AFTER_FAILURE, detached=st.booleans())
    def settle(
        self, data: st.DataObject, outcome: str, after: tuple[Then, tuple[str, str | None, int | None]], detached: bool
    ) -> None:
        uid, lease = self.pick(data, self.calls)
        self.end(uid, lease, outcome, *after, detached=detached)

    def end(
        self, uid: str, lease: Lease, outcome: str, then: Then, state: tuple[str, str | None, int | None] | None, *,
        detached: bool,
    ) -> None:  # fmt: skip
        if outcome == "ok" or detached:
            then, state = ACCEPT, None
        elif outcome == "ambiguous":
            then, state = Then("release"), ("ready", None, None)
        settled = self.store.settle(
            uid, ending(outcome), then, lane="free", lease=None if detached else lease  # type: ignore[arg-type]
        )  # fmt: skip
        expected = self.model.settle(
            uid, outcome, self.dated(state) if state else None, None if detached else lease.lease_no
        )
        assert settled.accepted == expected

    @precondition(lambda self: self.open_calls())
    @rule(data=st.data(), at=st.integers(0, 1))
    def lose_sight_and_call_again(self, data: st.DataObject, at: int) -> None:
        """Two calls of one key, and both may answer yet: what all of this is about."""
        uid, lease = self.pick(data, self.open_calls())
        self.end(uid, lease, "ambiguous", Then("release"), None, detached=False)
        self.store.resolve(uid, "same")
        self.model.resolve(uid, "same")
        known = len(self.leases)
        self.lease(at, 3)
        for again in self.leases[known:]:
            self.send(again)

    def open_calls(self) -> list[tuple[str, Lease]]:
        return [(uid, lease) for uid, lease in self.calls if self.model.attempts[uid].outcome is None]

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), hold_ms=HOLD_MS)
    def detach(self, data: st.DataObject, hold_ms: int) -> None:
        uid, lease = self.pick(data, self.calls)
        assert self.store.detach(uid, lease, hold_ms) == self.model.detach(uid, lease.lease_no, hold_ms)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def stop_listening(self, data: st.DataObject) -> None:
        uid, _ = self.pick(data, self.calls)
        self.store.stop_listening(uid)
        self.model.stop_listening(uid)

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), choice=st.sampled_from(["pin", "same", "fail"]))
    def resolve(self, data: st.DataObject, choice: str) -> None:
        uid, _ = self.pick(data, self.calls)
        self.store.resolve(uid, choice)
        self.model.resolve(uid, choice)

    @rule(at=st.integers(0, 1))
    def die(self, at: int) -> None:
        """An owner dies, and another takes its place; what the dead one still does is done by the rules above."""
        dead = self.owners[at]
        self.store.reclaim(dead, max_leases_lost=MAX_LEASES_LOST)
        self.model.reclaim(dead)
        self.owners[at] = self.scene.owner(f"w{len(self.model.dead) + 1}")

    @rule(ms=st.sampled_from([1, 30, 2_000]))
    def advance(self, ms: int) -> None:
        self.scene.clock.advance(ms)

    def dated(self, state: tuple[str, str | None, int | None]) -> tuple[str, str | None, int | None]:
        name, why, delay = state
        return name, why, None if delay is None else self.scene.now_ms + delay

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def both_hold_the_same(self) -> None:
        for id_, job in self.model.jobs.items():
            real = self.scene.job(id_)
            assert (real.state, real.wait_reason, real.not_before_ms) == (job.state, job.why, job.not_before)
            assert (real.priority, real.attempts_made, real.leases_lost) == (job.priority, job.made, job.lost)
            assert {one.id: one.withdrawn_ms is None for one in self.store.requests(id_)} == job.requests
        ledger = {row.uid: row for row in self.store.attempts()}
        assert list(ledger) == list(self.model.attempts)
        for uid, it in self.model.attempts.items():
            row = ledger[uid]
            assert (row.seq, row.outcome, row.resolution, row.listener) == (
                it.seq, it.outcome, it.resolution, it.listener)  # fmt: skip
            assert (row.artifact_id is not None) == (uid in self.model.accepted)

    @invariant()
    def the_artifacts_in_force_are_the_same(self) -> None:
        found = {key: self.store.artifact(key) for key, _ in NAMED}
        assert {key: one.attempt_uid for key, one in found.items() if one is not None} == self.model.in_force

    @invariant()
    def every_promise_is_kept(self) -> None:
        check_promises(self.store)
