"""Signals are the command line's business only: SIGINT and SIGTERM are heard inside the event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

HEARD = (signal.SIGINT, signal.SIGTERM)


def hear(tell: Callable[[int], object]) -> None:
    """Tell of every SIGINT and SIGTERM from here on, while the running loop runs."""
    loop = asyncio.get_running_loop()
    for number in HEARD:
        loop.add_signal_handler(number, tell, int(number))


def exit_code_of(number: int) -> int:
    """The exit code of a program that a signal ended: 130 interrupted, 143 terminated."""
    return 128 + number


def leave_now(code: int) -> NoReturn:
    """End the process without waiting for threads: everything that must be written is written by now."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
