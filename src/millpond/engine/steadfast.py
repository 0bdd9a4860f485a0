"""Tasks of a drain that no cancel from elsewhere ends: what they brought may be paid for, and must be written down.

Who leaves the program cancels every task that there is: `asyncio.run` when its own comes to an end, a shutdown handler
while the loop still runs, one by one and in no order. A drain hears of that by the task that awaits it, as a stop; all
that it set going ends by itself then. Tasks that a call made by itself are not ours to keep: where they were ended,
what the call raises says nothing of what it had sent.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Steadfast(asyncio.Task[T]):
    """A task that only its drain ends, by `cut`.

    `was_asked_to_end`: by a cut, or by who cancels every task there is, since nobody else holds this one. It may be
    that tasks which it made have ended by that.
    """

    was_asked_to_end = False

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse: it goes on to its end."""
        self.was_asked_to_end = True
        return False

    def cut(self) -> None:
        """Cancel it all the same."""
        self.was_asked_to_end = True
        super().cancel()


class Calling(Steadfast[T]):
    """The task of one call. What runs within the call may cancel it, as the timer of `asyncio.timeout` does."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Refuse, unless the call itself asks for it, or a timer or a task that it made."""
        if _CALL.get() == self.get_name():
            return super(Steadfast, self).cancel(msg)
        return super().cancel(msg)


_CALL: contextvars.ContextVar[str | None] = contextvars.ContextVar("millpond_call", default=None)
"""The name of the call that code runs in. Tasks and timers inherit it from whoever made them, and so tell whose they
are."""


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
    """Set a call, or anything of others' code, going on the running loop. `name` tells it from all others there."""
    context = contextvars.copy_context()
    context.run(_CALL.set, name)
    return Calling(course, loop=asyncio.get_running_loop(), name=name, context=context)
