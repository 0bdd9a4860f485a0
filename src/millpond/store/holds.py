"""When a key is blocked: an attempt of it is open, or its end is unknown and evidence can still come."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.boot import Boot, age_ms
from millpond.rules.job import State
from millpond.store.moves import move


def blocking(tx: Transaction, key: str, now_ms: int, here: Boot | None = None) -> list[Any]:
    """The attempts of this key that keep it from being called again, oldest first."""
    return [row for row in tx.all("open_or_undecided", keys=[key]) if is_blocking(row, now_ms, here)]


def is_blocking(attempt: Any, now_ms: int, here: Boot | None = None) -> bool:
    """Open, listened to by a living owner, or still within its hold.

    `here`: now, on a clock that nobody sets. Whoever is about to decide a call, or to make another, must know it.
    """
    if attempt.outcome is None or attempt.listener is not None:
        return True
    return attempt.hold_until_ms is not None and _ends_ms(attempt, now_ms, here) > now_ms


def _ends_ms(attempt: Any, now_ms: int, here: Boot | None) -> int:
    """When a hold without a listener ends, on the wall clock as it is now.

    A wall clock that was set forward ends none for which a lane can be asked: until the call is as old as it was to be
    then, by the walls that its row and its end were written by, though no older than its whole hold.
    """
    if here is None or attempt.recall_hold_ms is None:
        return attempt.hold_until_ms
    span_ms = attempt.hold_until_ms - min(attempt.started_ms, attempt.ended_ms)
    return max(attempt.hold_until_ms, now_ms + min(span_ms, attempt.recall_hold_ms) - age(attempt, now_ms, here))


def age(attempt: Any, now_ms: int, here: Boot | None) -> int:
    """How long ago a call was recorded (ms)."""
    began_ms = attempt.started_boot_ms
    then = Boot(attempt.boot_id, began_ms) if attempt.boot_id and began_ms is not None else None
    return age_ms(attempt.started_ms, then, here, now_ms)


def may_speak(attempt: Any, now_ms: int) -> bool:
    """Blocking, or past its hold and undecided where its lane can be asked: whoever calls its key again asks first."""
    return is_blocking(attempt, now_ms) or attempt.recall_hold_ms is not None


def unheard_until_ms(attempt: Any, now_ms: int) -> int:
    """Until when a key is held for an attempt whose end is unknown from now on and to which nobody listens.

    As long as its lane can be asked for it, though not past a due time still to be met; where it cannot, not at all.
    """
    if attempt.recall_hold_ms is None:
        return now_ms
    hold_ms = attempt.recall_hold_ms
    if attempt.due_ms is not None and attempt.due_ms > now_ms:
        hold_ms = min(hold_ms, attempt.due_ms - now_ms)
    return now_ms + hold_ms


def left_at_ms(attempt: Any, now_ms: int) -> int:
    """Until when a key is held for a call to which nobody listens any more: as before where its lane can be asked."""
    return attempt.hold_until_ms if attempt.recall_hold_ms is not None else now_ms


def hold_end_ms(blocked: Iterable[Any], now_ms: int = 0, here: Boot | None = None) -> int | None:
    """When the timer should look again; None if only an event can say: the end of an open attempt, or a listener."""
    ends: list[int] = []
    for attempt in blocked:
        if attempt.outcome is None or attempt.listener is not None:
            return None
        ends.append(_ends_ms(attempt, now_ms, here))
    return max(ends)


def wake_key(tx: Transaction, key: str, now_ms: int, pause_ms: int | None = None) -> State | None:
    """Whatever ends an attempt wakes its key's held job, whichever job made the attempt. Returns its state after.

    So it does with one that waits for a person's word, once nothing is left to be decided.

    It is to be routed anew: its last lane may be closed, while its history now sends it to another. `pause_ms`: it
    backs off for so long first.
    """
    job = tx.one("live_job", key=key)
    if job is None or job.wait_reason not in ("held", "asked"):
        return None
    if job.wait_reason == "asked" and tx.one("undecided_of_key", idempotency_key=key) is not None:
        return "waiting"  # a person is still asked
    blocked = blocking(tx, key, now_ms)
    if blocked:
        tx.all("postpone_held", job_id=job.id, not_before_ms=hold_end_ms(blocked))
        return "waiting"
    if pause_ms:
        move(tx, job, "back_off", now_ms, not_before_ms=now_ms + pause_ms)
        return "waiting"
    move(tx, job, "wake", now_ms, next_lane="")
    return "ready"
