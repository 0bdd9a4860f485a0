"""Deadlines that count what has already come: nothing that lies ready to be read is given up for a late clock.

A process may stand still, stopped by a person, frozen with its container, or held up by a function that blocks its
event loop. When it goes on, its timers are overdue, and the answers that came meanwhile lie unread in sockets, pipes
and threads. A loop runs its overdue timers before whoever waits for those answers has seen them. So a deadline that has
come gives them a chance first: for as long again as it came late, but GRACE_S at most, and then for some turns of the
loop, each of which takes in what is ready. One that comes in time is later by those turns alone, about a millisecond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import Any

GRACE_S = 5.0
"""How much longer than its turns a late deadline waits at most: what runs in a thread or a program has to end, too."""

TURNS = 50
"""Turns of the loop before a deadline counts. One piece of a reply, 64 KB, takes about four."""


class Deadline:
    """Cancels what runs in its block once it has come, which then raises TimeoutError, as `asyncio.timeout` does.

    It may be moved at any time, and is dropped with the end of the block.
    """

    def __init__(self, span_s: float | None = None) -> None:
        """`span_s` counts from the beginning of the block; None: it is set later, by `move_to`."""
        self._span_s = span_s
        self._due_s: float | None = None
        self._handle: asyncio.Handle | None = None
        self._timer = asyncio.timeout(None)

    async def __aenter__(self) -> Deadline:
        self._loop = asyncio.get_running_loop()
        await self._timer.__aenter__()
        if self._span_s is not None:
            self.move_to(self._loop.time() + self._span_s)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._drop()
        return await self._timer.__aexit__(kind, error, trace)

    def move_to(self, due_s: float) -> None:
        """Let it come then, by the loop's time. The same time again changes nothing: not even how long it has left."""
        if due_s != self._due_s:
            self._drop()
            self._due_s = due_s
            self._handle = self._loop.call_at(due_s, self._come)

    def expired(self) -> bool:
        """Whether it has come and nothing was there any more."""
        return self._timer.expired()

    def _come(self) -> None:
        assert self._due_s is not None, "set before its time"
        self._handle = self._loop.call_later(_grace_s(self._loop, self._due_s), self._turn, TURNS)

    def _turn(self, left: int) -> None:
        if left:
            self._handle = self._loop.call_soon(self._turn, left - 1)
        else:
            self._timer.reschedule(self._loop.time())

    def _drop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


async def until_done(awaited: Iterable[asyncio.Future[Any]], span_s: float | None) -> bool:
    """Wait until all of them are done, at most so long, and leave them as they are. Whether they were done in time."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + (span_s or 0.0)
    _, left = await asyncio.wait(awaited, timeout=span_s)
    if left:
        _, left = await asyncio.wait(left, timeout=_grace_s(loop, due_s))
    for _ in range(TURNS):
        if all(one.done() for one in left):
            return True
        await asyncio.sleep(0)
    return all(one.done() for one in left)


async def pause(span_s: float) -> None:
    """Sleep so long; where that came late, long enough for what came meanwhile to be read first."""
    loop = asyncio.get_running_loop()
    due_s = loop.time() + span_s
    await asyncio.sleep(span_s)
    await asyncio.sleep(_grace_s(loop, due_s))


def _grace_s(loop: asyncio.AbstractEventLoop, due_s: float) -> float:
    return min(max(loop.time() - due_s, 0.0), GRACE_S)
