"""Signals are the command line's business only: a drain hears them in its loop, a verb that waits is ended by them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import NoReturn

from millpond.faces.cli.failing import BROKEN_PIPE

HEARD = (signal.SIGINT, signal.SIGTERM)


def hear(tell: Callable[[int], object]) -> None:
    """Tell of every SIGINT and SIGTERM from here on, while the running loop runs."""
    loop = asyncio.get_running_loop()
    for number in HEARD:
        loop.add_signal_handler(number, tell, int(number))


@contextmanager
def ended_by_signals(first: Callable[[], object] = lambda: None) -> Generator[None]:
    """For a verb that only looks: SIGINT (exit 130) and SIGTERM (143) end the program inside, once `first` was done.

    They end it where it stands: it has nothing to write down, and an exception out of a signal may meet any line of any
    lock. Only the main thread may enter.
    """

    def leave(number: int, _: object) -> None:
        first()
        leave_now(exit_code_of(number))

    before = {number: signal.signal(number, leave) for number in HEARD}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ended_from_outside() -> Generator[None]:
    """For a verb that waits or shows as it happens: signals end the program inside, and so does a closed pipe.

    That is noticed at once, not with the next line that is written to it, which may be hours away.
    """
    is_over = threading.Event()
    _leave_when_unread(is_over)
    try:
        with ended_by_signals():
            yield
    finally:
        is_over.set()


def _leave_when_unread(is_over: threading.Event) -> None:
    """End the program once nobody reads its stdout any more. A file has no reader that could leave."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # not a file of the system's
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # only what is told unasked: error, hang-up

    def wait() -> None:
        poll.poll()
        if not is_over.is_set():
            os._exit(BROKEN_PIPE)

    threading.Thread(target=wait, name="millpond-reader", daemon=True).start()


def exit_code_of(number: int) -> int:
    """The exit code of a program that a signal ended: 130 interrupted, 143 terminated."""
    return 128 + number


def leave_now(code: int) -> NoReturn:
    """End the process without waiting for threads: everything that must be written is written by now."""
    with suppress(RuntimeError, OSError):  # a signal that comes while a line is written, or nobody reads it
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
