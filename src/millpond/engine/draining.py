"""Holding a queue to drain it: the drain lock, an owner's row, what the dead left; and giving all of it back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from millpond.engine.bookkeeping import keep_book
from millpond.engine.drain import Drainer, Until
from millpond.engine.drain_lock import DrainLock
from millpond.engine.happening import Happening
from millpond.engine.spool import Spool
from millpond.engine.taking_back import reclaim_dead, sweep
from millpond.engine.tenure import Tenure
from millpond.engine.watch import Watch
from millpond.lanes.lane import Lane
from millpond.report.summary import Summary
from millpond.rules.errors import LockHeld, UsageError
from millpond.rules.policy import Policy
from millpond.spend.book import SpendBook
from millpond.store.store import Store

LOOK_S = 1.0
"""How often the end of a drain is looked for whose loop may have been left."""


class Drains:
    """The drains of one open queue that are under way: one at most on SQLite, since each holds the drain lock.

    Thread-safe. `close` ends them while the store is still open, so that no reply is lost with it.
    """

    def __init__(self, store: Store, book: SpendBook, folder: Path) -> None:
        """`folder` is where the queue's locks stand."""
        self._store = store
        self._book = book
        self._folder = folder
        self._under_way: dict[Drainer, _Hold] = {}

    @contextmanager
    def begin(
        self,
        policy: Policy,
        lanes: Mapping[str, Lane],
        *,
        registry: Mapping[str, Any] | None = None,
        tell: Callable[[Happening], None] | None = None,
    ) -> Generator[Drainer]:
        """A Drainer that holds the drain lock. Raises LockHeld, and QueueUnavailable for a spend book too."""
        hold = _Hold(self._store, self._folder)
        cap, watch = policy.max_leases_lost, Watch(self._folder)
        tend = partial(reclaim_dead, self._store, self._folder, max_leases_lost=cap, watch=watch)
        drainer: Drainer | None = None
        try:
            tend()
            sweep(self._store, self._folder)
            keep_book(self._store, self._book)  # opens it, too: where nothing can be reserved, nothing is leased
            owner, spool = hold.enlist(policy, sum(policy.lanes[name].width for name in lanes))
            drainer = Drainer(
                self._store,
                policy,
                lanes,
                owner,
                spool,
                book=self._book,
                registry=registry,
                tell=tell,
                tend=tend,
                may_lease=hold.stands,
                is_undecided=lambda: watch.is_undecided,
            )
            self._under_way[drainer] = hold
            yield drainer
        finally:
            if drainer is None:
                hold.give_back()
            else:
                self._end(drainer, hold)

    def close(self) -> None:
        """Stop what drains, wait until it has ended, and give back what it held.

        Calls in flight may finish within the policy's grace; Ctrl-C, twice, cuts them. Raises UsageError, and stops
        nothing, if it would have to wait for this very thread.
        """
        for drainer, hold in list(self._under_way.items()):
            self._end(drainer, hold)

    def _end(self, drainer: Drainer, hold: _Hold) -> None:
        """Give back what a drain held, after its end: nobody else may drain while it still does."""
        if not hold.is_ours():
            return  # the parent's, seen from a forked child
        if drainer.runs_here():
            raise UsageError(
                "this queue is being drained on the event loop of this thread, so its end cannot be waited for here; "
                "cancel the task of the drain and await it first, or use `async with AsyncQueue`"
            )
        drainer.finish()
        try:
            wait_interrupted(drainer, lambda: drainer.wait(LOOK_S))
        finally:
            self._under_way.pop(drainer, None)
            hold.give_back()


class _Hold:
    """What a drain holds of a queue: the drain lock, and the row of an owner. Given back once, by whoever is first."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._owner: Tenure | None = None
        self._spool: Spool | None = None
        self._lock = DrainLock(folder)
        self._pid = os.getpid()
        self._giving = threading.Lock()
        self._lock.take(store.now_ms())

    def enlist(self, policy: Policy, replies: int) -> tuple[Tenure, Spool]:
        """Become an owner, with room for so many replies that the queue may not take."""
        self._owner = Tenure(self._store, self._folder, "drainer", lease_ms=policy.lease_ms)
        self._spool = Spool(self._folder, self._owner.uuid, replies)
        self._spool.prepare()
        return self._owner, self._spool

    def stands(self) -> bool:
        """Whether the drain lock is still what others would find."""
        return self._lock.stands()

    def is_ours(self) -> bool:
        """Whether this process took it, and not the one that it was forked from."""
        return self._pid == os.getpid()

    def give_back(self) -> None:
        """Give all of it back. Whatever the database says, this process neither drains nor owns any more."""
        with self._giving:
            owner, self._owner = self._owner, None
            try:
                if owner is not None:
                    owner.leave(self._write_what_waits)
            finally:
                if self._spool is not None:
                    self._spool.remove()
                self._lock.release()

    def _write_what_waits(self) -> None:
        if self._spool is not None:
            self._spool.write_all(self._store)


def run(drainer: Drainer, until: Until) -> Summary:
    """Run a drainer to its end: on this thread, or on one of its own where a loop already runs on this one.

    Either way Ctrl-C stops it: once, and calls in flight may finish within the grace; twice, and they are cut.
    KeyboardInterrupt is raised when what they brought is written.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run_here(drainer, until)
    thread = ThreadPoolExecutor(1, thread_name_prefix="millpond-drain")
    with _interrupts_heard(drainer):
        going = thread.submit(lambda: asyncio.run(drainer.run(until)))
        thread.shutdown(wait=False)
        wait_interrupted(drainer, lambda: bool(wait({going}).done))
    return going.result()


def _run_here(drainer: Drainer, until: Until) -> Summary:
    """Run it on a loop of its own. The loop's runner takes the first Ctrl-C for a cancel, and is left by the second."""
    with asyncio.Runner() as runner:
        try:
            return runner.run(drainer.run(until))
        except KeyboardInterrupt:
            drainer.stop()
            raise


@contextmanager
def _interrupts_heard(drainer: Drainer) -> Generator[None]:
    """Let each Ctrl-C be a stop also where the loop of this thread would hear it, which waits for the drain meanwhile.

    The handler that stands there still hears it first: what `asyncio.run` has set makes a cancel of the task that waits
    here of it, and raises at the second. Where that task was cancelled, KeyboardInterrupt is raised at the end, as it
    would have been without a loop.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: FrameType | None) -> None:
        before(number, frame)  # what it raises is heard by who waits, and makes a stop there
        drainer.stop()

    task = asyncio.current_task()
    cancels = task.cancelling() if task is not None else 0
    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if task is not None and task.cancelling() > cancels:
        raise KeyboardInterrupt


def wait_interrupted(drainer: Drainer, is_over: Callable[[], bool]) -> None:
    """Wait for the end of a drain that runs elsewhere. Each Ctrl-C meanwhile stops it, and is raised afterwards."""
    interrupted: KeyboardInterrupt | None = None
    while True:
        try:
            if is_over():
                break
        except KeyboardInterrupt as interrupt:
            interrupted = interrupt
            drainer.stop()
    if interrupted is not None:
        raise interrupted


def not_drained(store: Store, held: LockHeld) -> Summary:
    """The Summary of a drain that could not begin, since somebody else drains: what is left, and who that is."""
    counts = store.counts()
    return Summary(
        reason="lock_held",
        holder=held.holder,
        waiting=counts["waiting"],
        held=counts["held"],
        ready=counts["ready"],
        leased=counts["leased"],
        offloaded=counts["offloaded"],
        next_due_ms=store.next_due_ms(),
    )
