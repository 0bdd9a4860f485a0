"""The drainer's pen: store writes of many journeys, gathered while the last commit runs, go out in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from millpond.db.database import Database, Transaction
from millpond.engine.steadfast import Steadfast, keep
from millpond.engine.trouble import Trouble
from millpond.rules.errors import REFUSED, FileGone, MayBeWritten

T = TypeVar("T")
Operation = Callable[[Transaction], Any]

PATIENCE_S = 120.0
"""How long a write is tried again before the drain gives up. Each try waits busy_ms (10 s) for a lock by itself. A
daemon goes on trying what may heal by itself."""

RETRY_S = 0.5
"""The first pause before a write is tried again; each further one is twice as long."""

RETRY_CAP_S = 10.0
"""No pause is longer: a disk that was full and has room again is noticed in time."""


def pauses_s() -> Iterator[float]:
    """How long to wait before each further try."""
    pause_s = RETRY_S
    while True:
        yield pause_s
        pause_s = min(pause_s * 2, RETRY_CAP_S)


class Scribe:
    """Writes for one event loop. The store's thread commits while the loop goes on gathering; nothing is acknowledged
    before its commit has returned, and what was handed in is written even if who awaits it is cancelled.
    """

    def __init__(self, db: Database, *, goes_on: bool = False) -> None:
        """`goes_on`: a write is tried again without end, unless its file is gone. Else for PATIENCE_S."""
        self._db = db
        self._goes_on = goes_on
        self._trouble = Trouble("the queue or the spend book does not take writes yet, trying again")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millpond-scribe")
        self._waiting: list[tuple[Operation, bool, asyncio.Future[Any]]] = []
        self._pump: Steadfast[None] | None = None
        self.in_haste = asyncio.Event()
        """Set once the drain is to end: what is refused then is not tried again."""

    async def write(self, operation: Callable[[Transaction], T], *, full: bool = True) -> T:
        """Commit an operation, together with what else is waiting; raises what the operation or the commit raised.

        What others kept from being written, or the disk refused, is tried again for PATIENCE_S: nothing of it was
        written. What may be written is not: an operation need not bear to be done twice.
        """
        loop = asyncio.get_running_loop()
        give_up = loop.time() + PATIENCE_S
        for pause_s in pauses_s():
            try:
                written = await self.once(operation, full=full)
            except MayBeWritten:
                raise
            except REFUSED as problem:
                is_over = loop.time() >= give_up and (not self._goes_on or isinstance(problem, FileGone))
                if is_over or self.in_haste.is_set():
                    raise
                self._trouble.met(problem)
            else:
                self._trouble.over()
                return written
            await wait_for(self.in_haste, pause_s)
        raise AssertionError("the pauses never end")

    async def once(self, operation: Callable[[Transaction], T], *, full: bool = True) -> T:
        """The same, tried once."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, full, done))
        if self._pump is None:
            self._pump = keep(self._run())
        return await done

    async def look(self, reading: Callable[[], T]) -> T:
        """Run something that reads the store on the store's thread, so that the loop never waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, reading)

    def close(self) -> None:
        """End the store's thread once it has nothing left to write."""
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            full = any(full for _, full, _ in group)
            results = await self._commit([operation for operation, _, _ in group], full)
            for (_, _, done), result in zip(group, results, strict=True):
                if done.cancelled():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        self._pump = None

    async def _commit(self, operations: list[Operation], full: bool) -> list[Any]:
        """One result an operation, or what it raised."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, partial(self._db.write_all, operations, full=full))
        except Exception as problem:  # none of them was run: every one learns of it
            return [problem] * len(operations)


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until an event is set, at most so long."""
    waiting = keep(event.wait())
    try:
        await asyncio.wait({waiting}, timeout=timeout_s)
    finally:
        waiting.cut()
