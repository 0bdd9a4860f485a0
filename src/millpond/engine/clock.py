"""The clocks that are read for real. Everything else is handed its time."""

from __future__ import annotations

import time
from functools import cache
from pathlib import Path

from millpond.rules.boot import Boot

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_ms() -> int:
    """Milliseconds UTC on the wall clock."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds on a clock that counts suspend: a lease's age is judged by it before anything is sent."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000


def awake_ms() -> int:
    """Milliseconds on the clock of this boot that stands still while the machine sleeps: one clock for all processes.

    Docs of Python, `time.monotonic`: "The clock is the same for all processes." What another has read on it a moment
    ago can be compared, as long as both are of one boot; a sleep makes nobody look late.
    """
    return time.monotonic_ns() // 1_000_000


@cache
def boot_id() -> str:
    """Names this start of the machine; "" where it has no name, as on macOS."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def boot() -> Boot:
    """Now, on the clock that nobody sets."""
    return Boot(boot_id(), boot_ms())
