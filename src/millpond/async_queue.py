"""AsyncQueue: a Queue for programs that live on an event loop, with the same words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial, wraps
from pathlib import Path
from types import TracebackType
from typing import Concatenate, ParamSpec, TypeVar

from millpond.db import fork
from millpond.door import Registry
from millpond.engine.drain import Drainer, Until
from millpond.engine.draining import not_drained
from millpond.engine.happening import Happening
from millpond.engine.steadfast import keep, to_its_end
from millpond.lanes.given import Lanes
from millpond.paged import Paged
from millpond.queue import Queue
from millpond.report.summary import Summary
from millpond.rules.errors import LockHeld, MillpondError
from millpond.rules.html import table
from millpond.rules.job import Lease, Submission
from millpond.rules.numbers import seconds
from millpond.rules.policy import Policy
from millpond.waiters import EVERYTHING, Everything, Waitable

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 4
"""Threads that speak to the database for the loop. A verb takes milliseconds there; who waits takes none of them."""


def _awaited(
    verb: Callable[Concatenate[Queue, P], T], undo: Callable[[Queue, T], object] = lambda _, done: None
) -> Callable[Concatenate[AsyncQueue, P], Awaitable[T]]:
    """A verb that is done at once, on a thread of the queue's own. `undo`: what a cancelled one is followed by."""

    @wraps(verb)
    async def awaited(self: AsyncQueue, *args: P.args, **kwargs: P.kwargs) -> T:
        call = partial(verb, self.queue, *args, **kwargs)
        return await self.on_thread(call, undo=partial(undo, self.queue))

    return awaited


def _iterated(
    verb: Callable[Concatenate[Queue, P], Paged[T]],
) -> Callable[Concatenate[AsyncQueue, P], AsyncIterator[T]]:
    """A verb that is read page by page; between pages it may wait, and takes no thread for that."""

    @wraps(verb)
    async def iterated(self: AsyncQueue, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        steps = (await self.on_thread(partial(verb, self.queue, *args, **kwargs))).steps
        while (step := await self.on_thread(partial(next, steps, None), undo=_cancel)) is not None:
            if isinstance(step, Future):
                await asyncio.wrap_future(step)
                continue
            for one in step:
                yield one

    return iterated


def _cancel(found: object) -> None:
    """Whoever wanted to wait for it has gone."""
    if isinstance(found, Future):
        found.cancel()


def _release(queue: Queue, leases: Iterable[Lease]) -> None:
    """Nobody has these leases in hand: give the jobs back."""
    for lease in leases:
        with suppress(MillpondError):  # it is lost already, or goes with the queue when that is closed
            queue.release(lease)


class _Threads(fork.Bystander):
    """The threads of a queue. A forked child has none of its parent's, and is given its own."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="millpond-async")
        fork.join(self)

    def after_fork(self, *, child: bool) -> None:
        """The parent keeps its threads."""
        if child:
            self.pool = ThreadPoolExecutor(THREADS, thread_name_prefix="millpond-async")


class AsyncQueue:
    """A queue on an event loop: `async with AsyncQueue.open(…) as queue`, then the words of Queue, awaited.

    Iterators are async ones. A verb runs on one of a few threads, so that the loop never waits for the disk; however
    many wait, one more thread looks for all of them. A verb whose task is cancelled may have been done all the same;
    jobs that it leased are given back.
    """

    def __init__(self, queue: Queue) -> None:
        """`queue` is an open one, closed with this."""
        self.queue = queue
        self._closed = False
        self._threads = _Threads()

    @classmethod
    def open(
        cls,
        target: str | Path | None = None,
        *,
        policy: Policy | None = None,
        spend: str | Path | None = None,
        registry: Registry | None = None,
    ) -> Opening:
        """Open the queue of a folder, as `Queue.open` does: to be awaited, or entered with `async with`."""
        return Opening(partial(Queue.open, target, policy=policy, spend=spend, registry=registry))

    async def close(self) -> None:
        """Close it, as `Queue.close` does."""
        await self.on_thread(self.queue.close)
        self._closed = True
        self._threads.pool.shutdown(wait=False)

    async def __aenter__(self) -> AsyncQueue:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await to_its_end(keep(self.close()))

    def __repr__(self) -> str:
        return f"Async{self.queue!r}"

    def _repr_html_(self) -> str:
        return table(repr(self), self.queue.counts())

    async def on_thread(self, call: Callable[[], T], *, undo: Callable[[T], object] = lambda done: None) -> T:
        """Run something that speaks to the queue on one of its threads. `undo` a result that nobody awaits any more."""
        if self._closed:
            return call()  # refuses without a look at the disk
        done = self._threads.pool.submit(call)
        try:
            return await asyncio.wrap_future(done)
        except asyncio.CancelledError:
            if not done.cancelled():  # it had begun
                done.add_done_callback(lambda done: done.exception() is None and undo(done.result()))
            raise

    enqueue = _awaited(Queue.enqueue)
    enqueue_many = _awaited(Queue.enqueue_many)
    estimate = _awaited(Queue.estimate)

    job = _awaited(Queue.job)
    jobs = _awaited(Queue.jobs)
    submission = _awaited(Queue.submission)
    submissions = _awaited(Queue.submissions)
    counts = _awaited(Queue.counts)
    status = _awaited(Queue.status)
    explain = _awaited(Queue.explain)
    report = _awaited(Queue.report)
    result = _awaited(Queue.result)
    results = _iterated(Queue.results)
    ledger = _iterated(Queue.ledger)
    feed = _iterated(Queue.feed)

    async def wait(
        self,
        what: Waitable | Iterable[Waitable] | Submission | str | Everything = EVERYTHING,
        timeout: float | None = None,  # noqa: ASYNC109  # the word of Queue
    ) -> bool:
        """Wait until all of these requests (a whole submission, the whole queue) are answered, failed or cancelled.

        `timeout` in s; False if it passed first. Raises UsageError for an unknown request or submission.
        """
        span_s = seconds(timeout, "timeout")
        ending = await self.on_thread(partial(self.queue.ending_of, what), undo=_cancel)
        try:
            # What is over already is told however short the timeout is.
            async with asyncio.timeout(None if ending.done() else span_s):
                await asyncio.wrap_future(ending)
        except TimeoutError:
            return False
        return True

    cancel = _awaited(Queue.cancel)
    retry = _awaited(Queue.retry)
    decide = _awaited(Queue.decide)
    decide_many = _awaited(Queue.decide_many)
    unpin = _awaited(Queue.unpin)
    reconcile = _awaited(Queue.reconcile)
    resume_lane = _awaited(Queue.resume_lane)
    stop = _awaited(Queue.stop)
    resume = _awaited(Queue.resume)

    async def drain(
        self,
        policy: Policy | None = None,
        *,
        lanes: Lanes = None,
        max_jobs: int | None = None,
        until_empty: bool = False,
        daemon: bool = False,
        max_iters: int | None = None,
    ) -> Summary:
        """Drain the queue on this loop, async callables included, as `Queue.drain` does on one of its own.

        To cancel the task that awaits it is to stop it: once, calls in flight may finish within the policy's grace;
        twice, they are cut. It ends as cancelled after what they brought is written.
        """
        until = Until(until_empty=until_empty, daemon=daemon, max_jobs=max_jobs, max_iters=max_iters)
        try:
            async with self.draining(policy, lanes=lanes) as drainer:
                return await drainer.run(until)
        except LockHeld as held:
            return await self.on_thread(partial(not_drained, self.queue.store, held))

    @asynccontextmanager
    async def draining(
        self, policy: Policy | None = None, *, lanes: Lanes = None, tell: Callable[[Happening], None] | None = None
    ) -> AsyncGenerator[Drainer]:
        """A Drainer that holds the queue's drain lock, for those who run and stop it themselves. Raises LockHeld."""
        held = self.queue.draining(policy, lanes=lanes, tell=tell)
        entering = keep(self.on_thread(held.__enter__))
        try:
            await to_its_end(entering)
            yield entering.result()
        finally:
            if entering.exception() is None:
                await to_its_end(keep(self.on_thread(partial(held.__exit__, None, None, None))))

    drainer = _awaited(Queue.drainer)

    lease = _awaited(Queue.lease, undo=_release)
    record = _awaited(Queue.record)
    settle = _awaited(Queue.settle)
    renew = _awaited(Queue.renew)
    release = _awaited(Queue.release)
    accept = _awaited(Queue.accept)


class Opening:
    """A queue that is opened when it is awaited, or entered."""

    def __init__(self, opens: Callable[[], Queue]) -> None:
        self._opens = opens
        self._opened: AsyncQueue | None = None

    def __await__(self) -> Generator[None, None, AsyncQueue]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncQueue:
        self._opened = await self
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, at)

    async def _open(self) -> AsyncQueue:
        thread = ThreadPoolExecutor(1)  # of its own, so that the program's default one need not have room
        opening = asyncio.get_running_loop().run_in_executor(thread, self._opens)
        try:
            await to_its_end(opening)
        except asyncio.CancelledError:
            if opening.exception() is None:
                opening.result().close()
            raise
        finally:
            thread.shutdown(wait=False)
        return AsyncQueue(opening.result())
