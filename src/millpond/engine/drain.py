"""The drainer: leases what ranks first while lanes have room, sets journeys going, and stops gently."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from millpond.engine.bookkeeping import Bookkeeper, keep_book
from millpond.engine.clock import boot_ms
from millpond.engine.happening import Happening
from millpond.engine.leasing import Leasing
from millpond.engine.listening import Listening
from millpond.engine.perform import Performer
from millpond.engine.recall import Recaller, patiently
from millpond.engine.scribe import PATIENCE_S, RETRY_S, Scribe, wait_for
from millpond.engine.spool import Spool
from millpond.engine.steadfast import Steadfast, keep, keep_calling, to_its_end
from millpond.engine.tab import LaneTab, Tab
from millpond.engine.tenure import Tenure
from millpond.engine.trouble import Trouble
from millpond.lanes.deadline import pause, until_done
from millpond.lanes.lane import Lane
from millpond.report.summary import Reason, Summary
from millpond.rules.errors import MillpondError, QueueUnavailable
from millpond.rules.numbers import whole_number
from millpond.rules.policy import Policy
from millpond.rules.router import lanes_for
from millpond.spend.book import SpendBook
from millpond.store.reader import PAGE_ROWS
from millpond.store.reclaim import Reclaimed
from millpond.store.store import Store

POLL_MS = 200
"""How often other processes' writes are looked for while idle: one PRAGMA, no row is read until somebody committed.

An idle daemon takes 0.23 % of a core with it (60 s of process time, on a machine of 2 cores that others used), of which
TEND_MS takes half, and 0.37 % at 100 ms. The 0.1 % of DESIGN §9 are a doorbell's to bring: 400 ms would come to 0.18 %,
for work that is heard of later.
"""

COUNT_EVENTS = 10_000
"""Events read at a time when those of one kind are counted."""

CLOSE_S = 10.0
"""How long lanes may take to give back their connections; nothing is waited for by then but good manners."""

log = logging.getLogger("millpond.engine")

TEND_MS = 1_000
"""How often a running drain looks after what others left behind."""


@dataclass(slots=True)
class Until:
    """When a drain ends. Nothing set: when nothing is ready, in flight or due within the policy's idle_exit_ms.

    `max_jobs`: once so many jobs have ended. `max_iters`: after so many rounds. A round is one lease that takes work
    into the free slots of all open lanes, and ends with the last of its calls; a look that finds nothing is none.
    """

    until_empty: bool = False
    daemon: bool = False
    max_jobs: int | None = None
    max_iters: int | None = None

    def __post_init__(self) -> None:
        """Raises UsageError for a number of jobs or rounds that is none."""
        for name in ("max_jobs", "max_iters"):
            if getattr(self, name) is not None:
                whole_number(getattr(self, name), name)


class Drainer:
    """Performs journeys until told or until there is nothing left. One per SQLite queue; the caller holds the lock.

    `stop()` once: no further lease, calls in flight may finish within the policy's grace. Twice: they are cut, which
    makes them ambiguous. `finish()` is the first step, and never the second. All may be called from any thread or
    signal handler of the loop's process.
    """

    def __init__(
        self,
        store: Store,
        policy: Policy,
        lanes: Mapping[str, Lane],
        owner: Tenure,
        spool: Spool,
        *,
        book: SpendBook,
        tend: Callable[[], Reclaimed],
        may_lease: Callable[[], bool],
        is_undecided: Callable[[], bool],
        rng: random.Random | None = None,
        registry: Mapping[str, Any] | None = None,
        tell: Callable[[Happening], None] | None = None,
        boot_ms: Callable[[], int] = boot_ms,
    ) -> None:
        """`policy` routes; `lanes` are those of it that this drain has, work for the others is left to wait for them.

        `spool` keeps the replies that the queue does not take; nothing is leased while one is in it.

        `owner` is the name under which it leases; after a sleep it takes a new one.
        `tend` is called on the store's thread every TEND_MS while the drain runs, to reclaim what the dead left.
        `is_undecided`: whether `tend` may soon find somebody gone of whom nobody can say it now.
        `may_lease` False: the drain lock is no longer what others would find; it ends, and leases nothing more.
        """
        assert lanes.keys() <= policy.lanes.keys(), "a lane of this drain is not in its policy"
        self._store = store
        self._policy = policy
        self._lanes = lanes
        self._owner = owner
        self._spool = spool
        self._held_back_s: float | None = None
        self._book = book
        self._bookkeeper = Bookkeeper(store, book)
        self._registry = registry
        self._boot_ms = boot_ms
        self._listener = tell or _silence
        self._rng = rng or random.Random()
        self._tend = tend
        self._may_lease = may_lease
        self._is_undecided = is_undecided
        self._is_watching = False
        self._seen_seq = 0
        self.tab = Tab({name: LaneTab() for name in lanes})
        self._journeys: set[Steadfast[None]] = set()
        self._stops = 0
        self._is_ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = threading.Event()
        self._over.set()
        self._changed = asyncio.Event()
        self._listening = Listening(store)
        self._problem: BaseException | None = None
        self._unseen = Trouble("could not look after what others left")
        self._lagging = Trouble("the spend book lags behind the ledger")

    # --- from outside ---------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """First call: finish what is in flight. Second: cut it."""
        self._stops += 1
        self._end()

    def finish(self) -> None:
        """Finish what is in flight: for who ends a drain with what it stands on, whoever else stops it, and when."""
        if not self._is_ending:
            self._end()

    def _end(self) -> None:
        self._is_ending = True
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to be stopped
                self._loop.call_soon_threadsafe(self._heed_stop)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it does not run; False if it still does. A drain whose loop does not run is not waited for."""
        return self._over.wait(timeout_s) or self._loop is None or not self._loop.is_running()

    def runs_here(self) -> bool:
        """Whether it runs on this very thread, which then cannot wait for it."""
        try:
            return not self._over.is_set() and asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    async def run(self, until: Until | None = None) -> Summary:
        """Drain, and say what was done and what is left. Raises what broke an invariant, after calls have ended.

        To cancel the task that awaits this is to `stop()`: once, then twice. It ends as cancelled once all is written.
        Who cancels every task there is, as `asyncio.run` does to clear its loop, may do so again, and only ends the
        program: that is to `finish()`, and whatever the drain set going hears of none of it.
        """
        goes_on = until is not None and until.daemon
        self._scribe = Scribe(self._store.db, goes_on=goes_on)
        self._accountant = Scribe(self._book.db, goes_on=goes_on)
        self._performer = Performer(
            self._store,
            self._scribe,
            self._book,
            self._accountant,
            self._policy,
            self._lanes,
            self.tab,
            self._spool,
            patience_s=math.inf if goes_on else PATIENCE_S,
            rng=self._rng,
            tell=self._tell,
            boot_ms=self._boot_ms,
            may_send=self._owner.may_send,
            is_stopping=self._is_stopping,
            stop=self.stop,
            wake=self._changed.set,
        )
        self._leasing = Leasing(
            self._store,
            self._scribe,
            self._policy,
            self._lanes,
            self._owner,
            self.tab,
            registry=self._registry,
            tell=self._tell,
        )
        self._recaller = Recaller(
            self._store, self._scribe, self._policy, self._lanes, self.tab, rng=self._rng, tell=self._tell
        )
        self._loop = asyncio.get_running_loop()
        self._over.clear()
        course = keep(self._run(until or Until()))
        try:
            await to_its_end(course, on_cancel=lambda: self.finish() if course.was_asked_to_end else self.stop())
        except asyncio.CancelledError:
            course.result()  # what broke is told before the cancel
            raise
        finally:
            self._over.set()
        return course.result()

    async def _run(self, until: Until) -> Summary:
        tending = [keep(self._keep_tending()), keep(self._keep_asking())]
        for task in tending:
            task.add_done_callback(self._heed_end)
        reason: Reason = "stopped"
        try:
            try:
                reason = await self._drain(until)
            except (Exception, KeyboardInterrupt, SystemExit) as problem:
                self._meet(problem)
            await self._let_calls_end()
            if self._problem is not None:
                raise self._problem
            if not self._was_cut:
                await patiently(self._recaller.forget_ours())
            return await self._scribe.look(partial(self._sum_up, reason))
        finally:
            for task in tending:
                task.cut()
            await asyncio.wait(tending)
            try:
                if not self._was_cut:
                    await self._keep_book(partial(keep_book, self._store, self._book))
            finally:
                self._scribe.close()
                self._accountant.close()
                await self._close_lanes()

    @property
    def _was_cut(self) -> bool:
        """Whether it was told not to wait: what it leaves undone the next drain does."""
        return self._stops > 1

    def _sum_up(self, reason: Reason) -> Summary:
        """The Summary. Of calls that were paid again, the ledger knows which one answered, whoever received it."""
        self._count_cancels()
        uids = list(self.tab.again)
        for start in range(0, len(uids), PAGE_ROWS):
            page = uids[start : start + PAGE_ROWS]
            self.tab.count_again(page, self._store.beyond(page))
        return self.tab.summary(reason, self._store.counts(), self._store.next_due_ms())

    def _begin_to_count(self) -> None:
        self._seen_seq = self._store.last_event()

    def _count_cancels(self) -> None:
        """Count the cancels since the last look. How many jobs are cancelled says nothing: some may be asked again."""
        last = self._store.last_event()
        while self._seen_seq < last:
            upto = min(self._seen_seq + COUNT_EVENTS, last)
            self.tab.cancelled += self._store.count_events("cancel", self._seen_seq, upto)
            self._seen_seq = upto

    async def _close_lanes(self) -> None:
        """Close every lane, whatever becomes of the others': what was done is done."""
        closing = {keep_calling(lane.close(), f"close {name}"): name for name, lane in self._lanes.items()}
        if closing:
            await asyncio.wait(closing, timeout=CLOSE_S)
        for task, name in closing.items():
            if not task.done():
                task.cut()
                log.warning("lane %s did not close within %g s; it was left", name, CLOSE_S)
            elif not task.cancelled() and (problem := task.exception()) is not None:
                log.warning("lane %s could not be closed: %s: %s", name, type(problem).__name__, problem)

    # --- the loop -------------------------------------------------------------------------------------------------

    async def _drain(self, until: Until) -> Reason:
        rounds = 0
        await self._scribe.look(self._begin_to_count)
        while True:
            self._changed.clear()
            version = self._store.db.data_version()
            if self._problem is not None:
                return "stopped"
            if self._is_ending:
                return "signal"
            if not self._may_lease():
                raise QueueUnavailable(
                    "the drain lock was deleted or replaced under this drain, so another may drain beside it: "
                    "nothing more is leased; leave the lock file alone and start again"
                )
            if self._performer.is_held_up or not self._spool.is_clear():
                await self._hold_back(until)
                continue
            self._held_back_s = None
            if until.max_jobs is not None and self.tab.done + self.tab.failed >= until.max_jobs:
                return "max_jobs"
            if until.max_iters is not None and self._journeys:
                await self._wait(version)  # the round goes on until its last call has ended
                continue
            if rounds == until.max_iters:
                return "max_iters"
            if await self._lease(until):
                rounds += 1
                continue
            ended = await self._scribe.look(partial(self._is_over, until))
            if self._changed.is_set() or self._store.db.data_version() != version:
                continue  # a slot came free or somebody committed while we looked: look again
            if ended:
                return ended
            await self._wait(version)

    async def _hold_back(self, until: Until) -> None:
        """Lease nothing: a reply waits for the queue to take it, or the next one could not be kept.

        Replies wait by themselves. That there is no spool is told once, and raised where it lasts PATIENCE_S.
        """
        now_s = asyncio.get_running_loop().time()
        try:
            await asyncio.to_thread(self._spool.prepare)
        except QueueUnavailable as problem:
            if self._held_back_s is None:
                self._held_back_s = now_s
                log.warning("nothing is leased: %s", problem)
            if now_s - self._held_back_s >= PATIENCE_S and not until.daemon:
                raise
        await wait_for(self._changed, RETRY_S)

    async def _lease(self, until: Until) -> int:
        """Lease into every free slot and set the journeys going; how many."""
        most = None
        if until.max_jobs is not None:
            underway = self.tab.in_flight - len(self.tab.past_hold)
            most = until.max_jobs - self.tab.done - self.tab.failed - underway
        room = await self._leasing.look(most)
        if room is None or self._performer.is_held_up or self._is_ending:  # perhaps since the look began
            return 0
        await self._leasing.stand()
        taken_ms = self._boot_ms()
        got = await self._leasing.take(room)
        if got is None:
            self._changed.set()  # what is ready is still to be leased
            return 0
        self.tab.failed += len(got.failed)
        for job_id, reason in got.failed.items():
            self._tell(Happening("failed", job_id, "", reason))
        for lease in got.leases:
            self.tab.lanes[lease.lane].in_flight += 1
            order = lanes_for(lease.work, lease.route, self._policy, lease.wished_lane)
            task = keep(self._performer.perform(lease, order, taken_ms))
            self._journeys.add(task)
            task.add_done_callback(partial(self._journey_ended, lease.lane))
        return len(got.leases)

    def _is_over(self, until: Until) -> Reason | None:
        """Whether nothing is left that this drain should wait for."""
        if until.daemon or self._journeys or self._recaller.under_way:
            return None
        counts = self._store.counts()
        if not counts["ready"] and not counts["waiting"] and not counts["leased"]:
            return "empty"
        if self._lanes and self._leasing.stopped.keys() == self._lanes.keys():
            return "stopped"
        times = [at_ms for at_ms in (self._leasing.next_ms(), self._recaller.next_ms()) if at_ms is not None]
        next_ms = min(times, default=None)  # None: only a person or another process can move what is left
        if next_ms is not None and (until.until_empty or next_ms - self._store.now_ms() <= self._policy.idle_exit_ms):
            return None
        if until.until_empty and (counts["leased"] or counts["held"]) and self._is_undecided():
            if not self._is_watching:
                self._is_watching = True
                log.warning(
                    "what another machine holds is taken back once no beat of it was seen for its lease: watching"
                )
            return None
        return "stopped" if any(map(self._store.any_ready, self._leasing.stopped)) else "idle"

    async def _wait(self, version: int) -> None:
        """Until a slot is free, somebody committed, or something is due."""
        next_ms = await self._scribe.look(self._leasing.next_ms)
        changing = keep(self._changed.wait())
        try:
            while not changing.done():
                left = POLL_MS if next_ms is None else max(next_ms - self._store.now_ms(), 1)
                await asyncio.wait({changing}, timeout=min(left, POLL_MS) / 1000)
                is_due = next_ms is not None and next_ms <= self._store.now_ms()
                if is_due or self._store.db.data_version() != version:
                    return
        finally:
            changing.cut()

    async def _keep_tending(self) -> None:
        while True:
            await pause(TEND_MS / 1000)  # a hold that ran out while we stood still may have its reply at hand
            waited = self._is_undecided()
            try:
                if not self._may_lease():
                    self._changed.set()  # an idle drain learns of it too
                await self._leasing.stand()
                self.tab.failed += await self._scribe.look(self._look_after_others)
                while page := self.tab.oldest_again():
                    self.tab.count_again(page, await self._scribe.look(partial(self._store.beyond, page)))
            except (MillpondError, OSError) as problem:  # busy or full just now: the next round is a second away
                self._unseen.met(problem)
            else:
                self._unseen.over()
            if waited and not self._is_undecided():
                self._changed.set()  # one who waited for that may end
            await self._keep_book(self._bookkeeper.go_on)

    async def _keep_book(self, look: Callable[[], None]) -> None:
        try:
            await self._accountant.look(look)
        except (MillpondError, OSError) as problem:  # the next round, or the next drain, does it
            self._lagging.met(problem)
        else:
            self._lagging.over()

    async def _keep_asking(self) -> None:
        """Ask lanes what became of calls whose end is unknown, as the time of each comes."""
        while True:
            if await patiently(self._recaller.round()):
                self._changed.set()  # what was held may go on, or this drain may end
            else:
                await asyncio.sleep(TEND_MS / 1000)

    def _look_after_others(self) -> int:
        """End our holds that ran out, take back what the dead left; how many jobs failed by that."""
        self._count_cancels()
        if not self._spool.pending():  # what a hold waits for may be at hand
            self._listening.end_holds(self._owner.uuid)
        reclaimed = self._tend()
        if reclaimed.released:  # they are back where they were, perhaps behind what was looked at there
            self._leasing.look_everywhere()
        return reclaimed.failed

    def _journey_ended(self, lane: str, task: Steadfast[None]) -> None:
        self._journeys.discard(task)
        self.tab.lanes[lane].in_flight -= 1
        self._heed_end(task)

    def _heed_end(self, task: Steadfast[None]) -> None:
        """A task of ours ended. By a broken invariant or a dead disk: stop rather than go on guessing."""
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._meet(problem)
        self._changed.set()

    def _meet(self, problem: BaseException) -> None:
        """Something ends this drain that no call has done, and perhaps nobody asked for: what is in flight goes on.

        Its replies may be paid for. They are not waited for as long as a daemon would, which goes on for ever.
        """
        self._problem = problem
        self._performer.patience_s = min(self._performer.patience_s, PATIENCE_S)
        self._make_haste()

    # --- stopping -------------------------------------------------------------------------------------------------

    def _heed_stop(self) -> None:
        self._changed.set()
        self._make_haste()
        if self._was_cut:
            self._performer.cut()

    def _make_haste(self) -> None:
        """What is refused from now on is not tried again, but for the ends of calls."""
        self._scribe.in_haste.set()
        self._accountant.in_haste.set()

    def _tell(self, happening: Happening) -> None:
        """Tell of something. Where that fails, the drain ends with it once its calls have had their end."""
        try:
            self._listener(happening)
        except Exception as problem:
            self._problem = self._problem or problem
            self._changed.set()

    def _is_stopping(self) -> bool:
        return self._is_ending or self._problem is not None

    def _is_asked_to_end(self) -> bool:
        """Whether a person or the program asked for it: by a stop, or by an interrupt that some code of ours met."""
        return self._is_ending or (self._problem is not None and not isinstance(self._problem, Exception))

    async def _let_calls_end(self) -> None:
        """Let what is in flight end: without a limit until somebody stops it, within the grace after that."""
        if self._journeys and self._problem is not None and not self._is_asked_to_end():
            kept = f", {self._spool.pending()} of them with replies to be written" if self._spool.pending() else ""
            log.warning("nothing more is leased; %s in flight may end%s: %s", len(self._journeys), kept, self._problem)
        while self._journeys and not self._is_asked_to_end():
            self._changed.clear()
            await self._changed.wait()
        if self._journeys:
            await until_done(self._journeys, self._policy.grace_ms / 1000)
        self._performer.cut()
        if self._journeys:  # cut, they only write down how they ended
            await asyncio.wait(self._journeys)


def _silence(_: Happening) -> None:
    """Nobody wants to be told."""
