"""The drainer's pen: store writes of many journeys, gathered while the last commit runs, go out in one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from millpond.db.database import Database, Transaction

T = TypeVar("T")


class Scribe:
    """Writes for one event loop. The store's thread commits while the loop goes on gathering; nothing is acknowledged
    before its commit has returned.
    """

    def __init__(self, db: Database) -> None:
        self._db = db
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="millpond-scribe")
        self._waiting: list[tuple[Callable[[Transaction], Any], bool, asyncio.Future[Any]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def write(self, operation: Callable[[Transaction], T], *, full: bool = True) -> T:
        """Commit an operation, together with what else is waiting; raises what the operation or the commit raised."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((operation, full, done))
        if self._pump is None:
            self._pump = asyncio.create_task(self._run())
        return await done

    async def look(self, reading: Callable[[], T]) -> T:
        """Run something that reads the store on the store's thread, so that the loop never waits for the disk."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, reading)

    def close(self) -> None:
        """End the store's thread once it has nothing left to write."""
        self._thread.shutdown(wait=True)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group, self._waiting = self._waiting, []
            full = any(full for _, full, _ in group)
            results: list[Any]
            try:
                results = await loop.run_in_executor(self._thread, self._commit, [one for one, _, _ in group], full)
            except Exception as problem:  # the whole group failed: every member learns of it
                results = [problem] * len(group)
            for (_, _, done), result in zip(group, results, strict=True):
                if done.cancelled():
                    continue
                if isinstance(result, Exception):
                    done.set_exception(result)
                else:
                    done.set_result(result)
        self._pump = None

    def _commit(self, operations: list[Callable[[Transaction], Any]], full: bool) -> list[Any]:
        return self._db.write_all(operations, full=full)
