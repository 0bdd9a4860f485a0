"""Signals are the command line's business only: a drain hears them in its loop, a verb that waits is ended by them."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, Self

from millpond.faces.cli.failing import BROKEN_PIPE

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What ends a program: Ctrl-C, `kill`, and the terminal or the parent that is gone."""


def heard() -> list[signal.Signals]:
    """Those that end this program. A hang-up that was ignored when it began, as by `nohup`, stays ignored."""
    return [one for one in ENDING if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]


FLUSH_S = 0.5
"""How long the last words of a program that is ended may take: whoever reads them may have paused."""


class Signals:
    """The signals that came since it was entered: for a verb that must write down what is under way before it ends.

    They end nothing by themselves. Who runs a loop is `told` of them there, first of those that came before. While
    nobody is told, nothing is under way, and a second one ends the program where it stands.
    """

    def __init__(self, passing: Collection[int] = ()) -> None:
        """`passing` are told too, and end nothing at all."""
        self.ending: list[int] = []
        """Those that end the program; the first is its exit code."""
        self._came: list[int] = []
        self._passing = passing
        self._is_told = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in heard()}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _: object) -> None:
        self._came.append(number)
        if number in self._passing:
            return
        self.ending.append(number)
        if self._is_told:
            return
        if len(self.ending) > 1:
            leave_now(exit_code_of(self.ending[0]))
        with suppress(OSError, ValueError):  # not by print, which may be what the signal has interrupted
            if select.select([], [2], [], 0)[1]:  # whoever reads it may have paused
                os.write(2, b"millpond: stopping, once this step is done; once more ends it here\n")

    @contextmanager
    def told(self, tell: Callable[[int], object]) -> Generator[None]:
        """Tell of every signal on the running loop, one after the other, while the block runs."""
        loop, told = asyncio.get_running_loop(), 0
        ear, mouth = socket.socketpair()

        def tell_all() -> None:
            nonlocal told
            with suppress(BlockingIOError):
                ear.recv(4096)
            while told < len(self._came):
                told += 1
                tell(self._came[told - 1])

        for end in (ear, mouth):
            end.setblocking(False)
        # A handler does not wake a loop that is about to wait. The byte does that is written as the signal comes.
        before = signal.set_wakeup_fd(mouth.fileno(), warn_on_full_buffer=False)
        loop.add_reader(ear, tell_all)
        self._is_told = True
        try:
            tell_all()
            yield
        finally:
            self._is_told = False
            loop.remove_reader(ear)
            signal.set_wakeup_fd(before)
            ear.close()
            mouth.close()


@contextmanager
def ended_by_signals(first: Callable[[], object] = lambda: None) -> Generator[None]:
    """For a verb that only looks: a signal ends the program inside (exit 130, 143, 129), once `first` was done.

    They end it where it stands: it has nothing to write down, and an exception out of a signal may meet any line of any
    lock. Only the main thread may enter.
    """

    def leave(number: int, _: object) -> None:
        first()
        leave_now(exit_code_of(number))

    before = {number: signal.signal(number, leave) for number in heard()}
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
    """The exit code of a program that a signal ended: 130 interrupted, 143 terminated, 129 hung up."""
    return 128 + number


def leave_now(code: int) -> NoReturn:
    """End the process without waiting for threads: everything that must be written is written by now."""
    flushing = threading.Thread(target=_flush, daemon=True)
    flushing.start()
    flushing.join(FLUSH_S)
    os._exit(code)


def _flush() -> None:
    """Show what was said. Whoever reads it may pause, or the signal have come while a line is written."""
    with suppress(RuntimeError, OSError):
        sys.stdout.flush()
        sys.stderr.flush()
