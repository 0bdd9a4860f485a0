"""A clock that moves only when it is told to."""

from __future__ import annotations

DAWN_MS = 1_800_000_000_000
"""Where a FakeClock starts unless told otherwise: a day in January 2027, so that times look like times."""


class FakeClock:
    """Milliseconds UTC for whatever takes a `now_ms`. Call it, or read `now_ms()`: both say the same."""

    def __init__(self, start_ms: int = DAWN_MS) -> None:
        self._now_ms = start_ms

    def now_ms(self) -> int:
        """The time."""
        return self._now_ms

    def __call__(self) -> int:
        return self._now_ms

    def advance(self, ms: int) -> int:
        """Let so many milliseconds pass and return the time. A negative number is a wall clock that was set back."""
        self._now_ms += ms
        return self._now_ms

    def __repr__(self) -> str:
        return f"FakeClock({self._now_ms})"
