"""Performs journeys: each effect that one asks for, on the store through the scribe, on its lane, on the clock."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from millpond.engine import recall
from millpond.engine.bookkeeping import not_posted
from millpond.engine.happening import Happening
from millpond.engine.kept import UNSTORABLE, Kept, settle_kept, without_its_reply
from millpond.engine.scribe import PATIENCE_S, Scribe, pauses_s, wait_for
from millpond.engine.spool import Spool
from millpond.engine.steadfast import Calling, keep_calling
from millpond.engine.tab import Tab
from millpond.lanes.deadline import until_done
from millpond.lanes.lane import Call as LaneCall
from millpond.lanes.lane import Lane, is_asked
from millpond.report.words import counted
from millpond.rules import effects as steps
from millpond.rules.admission import Admitted, NotNow, admit
from millpond.rules.effects import Charge, Effect, Facts, Heard, Instead, Recorded, Reserved, Silence
from millpond.rules.errors import REFUSED, LeaseLost, MillpondError
from millpond.rules.evidence import LEASE_TOO_OLD, Absent, Evidence, Uncalled, Unknown, uncalled
from millpond.rules.job import Lease
from millpond.rules.journey import journey
from millpond.rules.policy import Policy
from millpond.rules.router import whole_hold_ms
from millpond.rules.times import age_words
from millpond.rules.verdict import Worst, worst_bill, worst_of
from millpond.spend.book import SpendBook
from millpond.store import accounts, asking, ledger, settle
from millpond.store.lanes import load_of
from millpond.store.store import Store, fence

log = logging.getLogger("millpond.engine")


class Performer:
    """Performs the journeys of one drain. `cut` ends every call in flight, which makes them ambiguous.

    What the queue does not take of their ends is kept in the spool, and tried again: for `patience_s` where it is on
    disk, and until the drain is cut where it is not.

    `accountant` writes into the book as `scribe` does into the store: what many journeys reserve and post while its
    last commit runs goes out in one. `may_send`: whether calls may still leave that were leased under an owner's name.
    `stop` is called when a call was ended by an interrupt of the program, `wake` when a job was let go of before its
    journey ended.
    """

    def __init__(
        self,
        store: Store,
        scribe: Scribe,
        book: SpendBook,
        accountant: Scribe,
        policy: Policy,
        lanes: Mapping[str, Lane],
        tab: Tab,
        spool: Spool,
        *,
        patience_s: float,
        rng: random.Random,
        tell: Callable[[Happening], None],
        boot_ms: Callable[[], int],
        may_send: Callable[[str], bool],
        is_stopping: Callable[[], bool],
        stop: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        self.store = store
        self.scribe = scribe
        self.book = book
        self.accountant = accountant
        self.policy = policy
        self.lanes = lanes
        self.tab = tab
        self.spool = spool
        self.patience_s = patience_s
        self.rng = rng
        self.tell = tell
        self.boot_ms = boot_ms
        self.may_send = may_send
        self.is_stopping = is_stopping
        self.stop = stop
        self.wake = wake
        self.calls: dict[str, Calling[Evidence]] = {}
        self.was_cut = asyncio.Event()
        self.is_held_up = False
        """Whether the queue does not take what ends: nothing is leased until it has taken all of it."""

    async def perform(self, lease: Lease, order: Sequence[str], taken_boot_ms: int) -> None:
        """Take one leased job as far as it goes now. A lease that was lost meanwhile ends it quietly."""
        flight = _Flight(self, lease, taken_boot_ms)
        course = journey(lease, self.policy, order)
        try:
            effect = next(course)
            while True:
                try:
                    answer = await flight.do(effect)
                except LeaseLost as lost:
                    effect = course.throw(lost)
                else:
                    effect = course.send(answer)
        except StopIteration:
            return
        except LeaseLost:
            self.tab.skipped += 1  # cancelled, answered or reclaimed meanwhile: the job is somebody else's now
        finally:
            self.tab.past_hold.pop(flight.past_hold, None)

    def cut(self) -> None:
        """Give up every call in flight: its connection is closed, its end is unknown. None begins after this."""
        self.was_cut.set()
        for call in self.calls.values():
            call.cut()

    async def persist(self, kept: Kept) -> tuple[Kept, settle.Settled]:
        """Write how an attempt ended: it may have been paid for, so it is tried for as long as that can help.

        What is returned is what was written. Raises the last refusal, with where the reply is now.
        """
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        for pause_s in pauses_s():
            try:
                written = await settle_kept(kept, self.scribe.once, self.policy, self.store.now_ms())
            except REFUSED as problem:
                kept = await self._keep(kept, problem)
                if self._may_give_up(loop.time() - began_s):
                    raise self.spool.explained(problem) from problem
            else:
                self._clear(kept)
                return written
            if self.was_cut.is_set():
                await asyncio.sleep(pause_s)
            else:
                await wait_for(self.was_cut, pause_s)
        raise AssertionError("the pauses never end")

    def _may_give_up(self, tried_s: float) -> bool:
        """Whether a reply may be left: to whoever finds it on disk, or to nobody, where there was no room anywhere."""
        if self.spool.are_all_on_disk():
            return self.was_cut.is_set() or tried_s >= self.patience_s
        return self.was_cut.is_set() and tried_s >= PATIENCE_S

    async def _keep(self, kept: Kept, refusal: MillpondError) -> Kept:
        """Keep an ending that the queue does not take, and say so, once for all that wait together."""
        if not self.is_held_up:
            self.is_held_up = True
            words = (
                f"{refusal}. Its reply is kept, as those are that come meanwhile; once the queue takes them this drain "
                "writes them by itself, and it leases nothing before"
            )
            self.tell(Happening("kept", kept.job.id if kept.job else None, kept.lane, words))
        try:
            await asyncio.to_thread(self.spool.keep, kept)  # not on the store's thread, which may be waiting for a lock
        except UNSTORABLE as problem:
            kept = without_its_reply(kept, problem, self.policy.lane(kept.lane), self.policy)
            await asyncio.to_thread(self.spool.keep, kept)
        return kept

    def _clear(self, kept: Kept) -> None:
        if not self.is_held_up:
            return
        self.spool.clear(kept.uid)
        if not self.spool.pending():
            self.is_held_up = False
            words = "all replies that were kept are in the queue now"
            self.tell(Happening("written", kept.job.id if kept.job else None, kept.lane, words))


class _Flight:
    """One journey under way. Each effect of `rules.journey` has its method here."""

    def __init__(self, ground: Performer, lease: Lease, taken_boot_ms: int) -> None:
        self.ground = ground
        self.lease = lease
        self.taken_boot_ms = taken_boot_ms
        self.detached = False
        self.past_hold = ""
        """Its attempt, once that holds the job no more."""

    async def do(self, effect: Effect) -> Any:
        """Perform one effect and return what the journey asked to know."""
        return await _PERFORM[type(effect)](self, effect)

    async def look_back(self, effect: steps.LookBack) -> Facts:
        store = self.ground.store
        return await self.ground.scribe.look(partial(store.look_back, self.lease))

    async def recall(self, effect: steps.Recall) -> Heard | Absent | Unknown:
        assert self.lease.stored is not None, "a lease without its work as it is stored"
        said = await recall.ask(
            self.ground.lanes.get(effect.lane),
            self.ground.policy,
            effect.uid,
            self.lease.stored,
            age_ms=effect.age_ms,
            now_ms=self.ground.store.now_ms,
            chance=self.ground.rng.random(),
        )
        recall.tell_unasked(self.ground.tab, self.ground.tell, effect.lane, self.lease.job_id, said)
        if isinstance(said, Unknown):
            noted = partial(asking.note_unasked, uid=effect.uid, why=recall.why_unasked(said))
            await self.ground.scribe.write(noted, full=False)
        return said

    async def resolve(self, effect: steps.Resolve) -> Charge | None:
        worst = self._worst(effect.lane)
        return await self.ground.scribe.write(
            partial(
                settle.resolve,
                uid=effect.uid,
                choice=effect.choice,
                worst=worst.cost,
                certain=worst.is_certain,
                now_ms=self.ground.store.now_ms(),
            )
        )

    async def admit(self, effect: steps.Admit) -> Admitted | NotNow:
        if self.ground.is_stopping():
            return NotNow()
        closed = (await self.ground.scribe.look(self.ground.store.closed_lanes)).get(effect.lane)
        return admit(load_of(self.ground.tab.lanes[effect.lane].in_flight, closed), self.ground.store.now_ms())

    async def reserve(self, effect: steps.Reserve) -> Reserved:
        lane, uid = self.ground.policy.lane(effect.lane), uuid4().hex
        worst = worst_bill(self.lease.work, lane, self.ground.store.now_ms())
        try:
            await self.ground.accountant.write(self.ground.book.reserving(uid, self.lease.owner, lane.name, worst))
        except REFUSED as problem:
            raise type(problem)(f"the spend book takes no reservation, so nothing was called: {problem}") from problem
        return Reserved(uid)

    async def release(self, effect: steps.Release) -> None:
        try:
            await self.ground.accountant.write(self.ground.book.releasing(effect.uid))
        except MillpondError as problem:  # it falls with this owner, at the latest
            log.warning("a reservation that came to nothing stands for now: %s", problem)

    async def post(self, effect: steps.Post) -> None:
        """The ledger knows what is owed. A book that does not take it now has it from there, with the next tending."""
        try:
            await self.ground.accountant.once(self.ground.book.posting(effect.charge))  # its slot is not kept for that
            await self.ground.scribe.write(partial(accounts.mark_posted, charge=effect.charge), full=False)
        except MillpondError as problem:
            not_posted(effect.charge.uid, problem)

    async def record(self, effect: steps.Record) -> Recorded | Instead:
        lane = self.ground.policy.lane(effect.lane)
        asked = is_asked(self.ground.lanes[effect.lane])
        recorded = await self.ground.scribe.write(
            partial(
                ledger.record,
                lease=self.lease,
                uid=effect.uid,
                lane=lane.name,
                tier=lane.tier,
                recall_hold_ms=whole_hold_ms(lane, self.ground.policy, self.lease.service_class) if asked else None,
                free_lanes=self.ground.policy.free_lanes,
                now_ms=self.ground.store.now_ms(),
                boot=self.ground.store.boot(),
            )
        )
        if isinstance(recorded, Instead):
            self.ground.tab.done += recorded.by == "answered"
            kind, words = _INSTEAD[recorded.by]
            self.ground.tell(Happening(kind, self.lease.job_id, lane.name, words))
        elif (before := recorded.after) is not None:
            worst = self._worst(before.lane)
            self.ground.tab.called_after(before.uid, worst.cost, recorded.uid)
        return recorded

    async def call(self, effect: steps.Call) -> Heard | Silence:
        if not await self.ground.scribe.look(partial(self.ground.store.holds, self.lease)):
            return self._unsent(effect.lane, "lease_lost", "cancelled, answered or given to another before the call")
        # Nothing is waited for from here to the first byte: a look may take as long as a commit before it.
        if self.ground.was_cut.is_set():
            return self._unsent(effect.lane, "stopped", "the drain was stopped before the call")
        is_old = self.ground.boot_ms() - self.taken_boot_ms >= self.ground.policy.lease_ms
        if is_old or not self.ground.may_send(self.lease.owner):
            # Suspended, stopped, or kept waiting between lease and call: others may have given us up.
            return self._unsent(effect.lane, "lease_too_old", LEASE_TOO_OLD)
        lane = self.ground.lanes[effect.lane]
        call = LaneCall(
            uid=effect.uid,
            work=self.lease.work,
            stored=self.lease.stored,
            idempotency_key=self.lease.idempotency_key,
            attempt_no=effect.attempt_no,
            deadline_ms=self.ground.store.now_ms() + lane.policy.deadlines.total_ms,
        )
        self.ground.calls[effect.uid] = keep_calling(lane.call(call), f"call {effect.uid}")
        return await self._hear(effect.uid, effect.lane, effect.soft_timeout_ms)

    async def detach(self, effect: steps.Detach) -> None:
        self.detached = await self._write_detached(effect)
        if not self.detached:
            return
        self.ground.tell(
            Happening(
                "held", self.lease.job_id, self.lease.lane, f"no reply yet; listened to for {age_words(effect.hold_ms)}"
            )
        )
        if effect.hold_ms == 0:
            self._let_job_go(effect.uid)

    async def _write_detached(self, effect: steps.Detach) -> bool:
        """Try until it is written. False: the call ended first, and settles under its lease as if it were in time."""
        call = self.ground.calls[effect.uid]
        for pause_s in pauses_s():
            try:
                await self.ground.scribe.once(
                    partial(
                        settle.detach,
                        uid=effect.uid,
                        job=fence(self.lease),
                        hold_ms=effect.hold_ms,
                        now_ms=self.ground.store.now_ms(),
                    )
                )
                return True
            except REFUSED as problem:
                log.warning("a call past its soft timeout is not written down yet, trying again: %s", problem)
            await asyncio.wait({call}, timeout=pause_s)
            if call.done():
                break
        return False

    async def listen(self, effect: steps.Listen) -> Heard | Silence:
        return await self._hear(effect.uid, effect.lane, effect.for_ms)

    async def stop_listening(self, effect: steps.StopListening) -> None:
        with suppress(*REFUSED):  # the drain ends the holds that have run out as it goes round, this one too
            await self.ground.scribe.once(
                partial(settle.stop_listening, uid=effect.uid, now_ms=self.ground.store.now_ms())
            )
        self._let_job_go(effect.uid)

    def _worst(self, lane: str) -> Worst:
        """The most that a call of this work on a lane can have cost."""
        return worst_of(self.lease.work, lane, self.ground.store.now_ms(), self.ground.policy)

    def _let_job_go(self, uid: str) -> None:
        """Nothing holds the job any more: it goes on by policy, whatever becomes of the call."""
        self.past_hold = uid
        self.ground.tab.past_hold[uid] = False
        self.ground.wake()
        words = "still no reply: the policy says what follows for the job, and the call is listened to all the same"
        self.ground.tell(Happening("unheard", self.lease.job_id, self.lease.lane, words))

    async def settle(self, effect: steps.Settle) -> Charge | None:
        then, job = effect.then, None if self.detached else fence(self.lease)
        if job is not None and then.move is None and effect.ending.outcome != "ok":
            # Its soft timeout could not be written, so it still has its job, which nobody else sends on its way.
            then = (
                steps.Then("back_off", delay_ms=then.delay_ms)
                if then.delay_ms
                else steps.Then("release", next_lane=steps.UNROUTED)
            )
        kept = Kept(effect.uid, effect.lane, effect.ending, then, job, self.ground.store.now_ms(), effect.how)
        kept, settled = await self.ground.persist(kept)
        if kept.how == "late":
            worst = self._worst(kept.lane)
            self.ground.tab.ended(kept.lane, kept.uid, kept.ending, worst.cost)
            self._report(kept, settled)
        else:
            tab, tell = self.ground.tab, self.ground.tell
            recall.recalled(tab, tell, kept.lane, kept.uid, self.lease.job_id, kept.ending, settled)
        return settled.charge

    async def give(self, effect: steps.Give) -> None:
        given = await self.ground.scribe.write(
            partial(settle.give, job=fence(self.lease), then=effect.then, now_ms=self.ground.store.now_ms()),
            full=effect.then.move == "fail",
        )
        if not given:
            raise LeaseLost(ledger.lost(self.lease))
        if effect.then.move == "fail":
            self._failed(self.lease.lane, effect.then.reason or "")

    async def _hear(self, uid: str, lane: str, for_ms: int | None) -> Heard | Silence:
        """Wait for the call, at most so long. A lane that raises has a bug: what it did is unknown."""
        call = self.ground.calls[uid]
        if not await until_done({call}, for_ms / 1000 if for_ms is not None else None):
            return Silence(self.ground.store.now_ms())
        del self.ground.calls[uid]
        if call.cancelled():
            return self._heard(
                lane, Evidence(sent="yes", failure="cancelled", message="the drain was stopped during the call")
            )
        if (problem := call.exception()) is not None:
            if not isinstance(problem, Exception):  # an interrupt in the user's code: it has left the loop by itself
                self.ground.stop()
            words = f"{type(problem).__name__}: {problem}"
            return self._heard(lane, Evidence(sent="yes", said="ambiguous", failure="exception", message=words))
        evidence = call.result()
        if call.was_asked_to_end and evidence.failure == "exception":
            evidence = replace(evidence, failure="cancelled", said=None)  # maybe raised because it was asked to
        return self._heard(lane, evidence)

    def _unsent(self, lane: str, code: Uncalled, why: str) -> Heard:
        """The ledger row is written, and nothing was sent."""
        return self._heard(lane, uncalled(code, why))

    def _heard(self, lane: str, evidence: Evidence) -> Heard:
        return Heard(
            evidence, self.ground.store.now_ms(), self.ground.rng.random(), self.ground.tab.lanes[lane].in_a_row
        )

    def _report(self, kept: Kept, settled: settle.Settled) -> None:
        ending, job_id = kept.ending, self.lease.job_id
        classified = ending.classified
        words = f"{ending.outcome}" + (f" ({classified.code})" if classified.code not in ("", ending.outcome) else "")
        self.ground.tell(Happening("ended", job_id, kept.lane, words))
        if settled.accepted:
            self.ground.tab.in_force(kept.uid)
        if settled.moved and ending.outcome == "ok":
            self.ground.tab.answered(settled.requests, ending.cost)
            words = f"answers {counted(settled.requests, 'request')}"
            self.ground.tell(Happening("done", settled.job_id, kept.lane, words))
        elif settled.accepted:
            words = "its reply came when no job waited for it; it answers the next who asks for the same"
            self.ground.tell(Happening("late", job_id, kept.lane, words))
        elif ending.outcome == "ok":
            self.ground.tab.paid_again(kept.uid, ending.cost)
        elif kept.then.move == "fail" and settled.moved:
            self._failed(kept.lane, kept.then.reason or "")
        if ending.closing is not None:
            self.ground.tell(Happening("closed", None, kept.lane, ending.closing.reason))

    def _failed(self, lane: str, reason: str) -> None:
        self.ground.tab.failed += 1
        self.ground.tell(Happening("failed", self.lease.job_id, lane, reason))


_INSTEAD = {
    "answered": ("done", "by an answer in force"),
    "held": ("held", "another call of its key is not decided"),
    "stopped": ("stopped", "given back before its call"),
    "unasked": ("held", "a hold has ended, and its lane is asked before another call"),
}
"""Why no row was written -> the kind and the words that are told."""

_PERFORM: dict[type[Any], Callable[[_Flight, Any], Any]] = {
    steps.LookBack: _Flight.look_back,
    steps.Recall: _Flight.recall,
    steps.Resolve: _Flight.resolve,
    steps.Admit: _Flight.admit,
    steps.Reserve: _Flight.reserve,
    steps.Release: _Flight.release,
    steps.Record: _Flight.record,
    steps.Call: _Flight.call,
    steps.Detach: _Flight.detach,
    steps.Listen: _Flight.listen,
    steps.StopListening: _Flight.stop_listening,
    steps.Settle: _Flight.settle,
    steps.Post: _Flight.post,
    steps.Give: _Flight.give,
}
