"""The two clocks that are read for real. Everything else is handed its time."""

from __future__ import annotations

import time


def wall_ms() -> int:
    """Milliseconds UTC on the wall clock."""
    return time.time_ns() // 1_000_000


def boot_ms() -> int:
    """Milliseconds on a clock that counts suspend: a lease's age is judged by it before anything is sent."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime_ns(clock) // 1_000_000
