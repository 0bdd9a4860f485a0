"""Numbers that callers give: ids, limits and counts, refused in words where they are none."""

from __future__ import annotations

from millpond.rules.errors import UsageError
from millpond.rules.job import MAX_ID


def whole_number(value: object, field: str, *, at_least: int = 1, at_most: int = MAX_ID) -> int:
    """The value, if it is a whole number within these bounds. Raises UsageError naming the field."""
    if type(value) is not int or not at_least <= value <= at_most:
        raise UsageError(f"{field}: found {_shown(value)}, wanted a whole number from {at_least} to {at_most}")
    return value


def seconds(value: object, field: str) -> float | None:
    """A span in s as locks take it, None for ever: none below 0, none beyond a year. Raises UsageError."""
    if value is None:
        return None
    if type(value) not in (int, float) or value != value:
        raise UsageError(f"{field}: found {_shown(value)}, wanted seconds, or None to wait for ever")
    assert isinstance(value, int | float)
    return float(min(max(value, 0), 366 * 86_400))


def _shown(value: object) -> str:
    if type(value) is int and abs(value) > MAX_ID:
        return "a number beyond all ids"
    return repr(value)[:40] if isinstance(value, int | float | str) else f"a {type(value).__name__}"
