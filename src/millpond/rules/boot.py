"""A clock that nobody sets: it counts from a machine's start, and its numbers mean that start only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Boot:
    """A reading of it, and which start that was."""

    id: str
    ms: int


def age_ms(started_ms: int, began: Boot | None, here: Boot | None, now_ms: int) -> int:
    """How long ago a call was recorded. The wall clock, of `started_ms` and `now_ms`, may have been set anew since.

    By the clock of the boot where that is still the same. After another start the wall's word counts, though not for
    longer than this machine runs: by a clock that was wrong at first a call would seem long over that still runs.
    """
    if began is None or here is None:
        return now_ms - started_ms
    return here.ms - began.ms if began.id == here.id else min(now_ms - started_ms, here.ms)
