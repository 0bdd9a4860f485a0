"""Tasks of a drain that no cancel from elsewhere ends: what they brought may be paid for, and must be written down.

Who leaves the program cancels every task that there is: `asyncio.run` does so when its own comes to an end, one by one
and in no order. A drain hears of that by the task that awaits it, as a stop; all that it set going ends by itself then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Steadfast(asyncio.Task[T]):
    """A task that only its drain ends, by `cut`."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse: it goes on to its end."""
        return False

    def cut(self) -> None:
        """Cancel it all the same."""
        super().cancel()


class Calling(Steadfast[T]):
    """The task of one call. What it awaits may cancel it from inside the running loop, as `asyncio.timeout` does."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse while no loop runs: it is then that a loop's runner tears its tasks down."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return super(Steadfast, self).cancel(msg)


async def to_its_end(task: asyncio.Future[Any], on_cancel: Callable[[], object] = lambda: None) -> None:
    """Wait for what must not be left half done. A cancel meanwhile is told at once, and raised afterwards."""
    given_up: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as cancel:
            given_up = cancel
            on_cancel()
    if given_up is not None:
        raise given_up


def keep(course: Coroutine[Any, Any, T]) -> Steadfast[T]:
    """Set something going on the running loop that only `cut` ends."""
    return Steadfast(course, loop=asyncio.get_running_loop())


def keep_calling(course: Coroutine[Any, Any, T], name: str) -> Calling[T]:
    """Set a call, or anything of others' code, going on the running loop."""
    return Calling(course, loop=asyncio.get_running_loop(), name=name)
