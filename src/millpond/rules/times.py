"""Times that people write: a duration or a moment becomes integer milliseconds UTC, and milliseconds become words."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta, timezone

from millpond.rules.errors import UsageError

MAX_MS = 253_402_300_799_000
"""The last second that a four-digit year can write, 9999-12-31T23:59:59Z; what lies beyond has no fixed width."""

FORMS = '"2h", "2026-12-01T08:00Z", an aware datetime or a timedelta'
"""What every refusal says it wanted (CONTRACT: times given)."""

_UNIT_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(r"(?=[0-9])" + " ?".join(rf"(?:([0-9]+) ?{unit}(?![a-z]))?" for unit in _UNIT_MS))
_MOMENT = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]{1,9}))?)?"
    r"(?:(Z|z)|([+-])([0-9]{2}):?([0-9]{2})?)?"
)
_DATE_ONLY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_LONGEST_CHARS = 64


def instant_ms(value: object, now_ms: int, *, field: str = "time", back: bool = False) -> int:
    """The moment that a caller gave, in ms since 1970 UTC. A duration counts from now, with `back` into the past.

    Fractions below the millisecond are cut off. Raises UsageError naming the field for what could be read in two ways
    (no time zone, no clock time, a plain number, a wall time that its zone skips) or lies outside 1970 to 9999 (O33).
    """
    if isinstance(value, datetime):
        return _in_range(_aware_ms(value, field), value.isoformat(), field)
    if isinstance(value, timedelta):
        return _in_range(now_ms + _signed(_timedelta_ms(value, field), back), str(value), field)
    if isinstance(value, str):
        text = value.strip()
        moment = _MOMENT.fullmatch(text)
        if moment:
            return _in_range(_moment_ms(moment, field), text, field)
        duration = _parse_duration(text)
        if duration is not None:
            return _in_range(now_ms + _signed(duration, back), text, field)
        raise UsageError(f"{field}: {_why_not(text)}")
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        raise UsageError(f"{field}: {_both_readings(value)}")
    if isinstance(value, date):
        raise UsageError(f"{field}: {_without_clock(value.isoformat())}")
    raise UsageError(f"{field}: found {type(value).__name__}, wanted {FORMS}")


def duration_ms(value: object, *, field: str = "duration") -> int:
    """A length of time in ms: "2h", "1h30m", "250ms", or a timedelta. Raises UsageError naming the field."""
    if isinstance(value, timedelta):
        return _timedelta_ms(value, field)
    found = _parse_duration(value.strip()) if isinstance(value, str) else None
    if found is None:
        shown = repr(value[:_LONGEST_CHARS]) if isinstance(value, str) else type(value).__name__
        raise UsageError(f'{field}: found {shown}, wanted a duration such as "2h", "1h30m", "45s" or "250ms"')
    if found > MAX_MS:
        raise UsageError(f"{field}: found {_short(str(value))!r}, wanted less than the time until the year 10000")
    return found


def show_ms(ms: int) -> str:
    """A moment as text of fixed width, so that the order of texts is the order of times: 2026-12-01T08:00:00.000Z.

    Never raises: what lies outside the years 1 to 9999 is shown as the nearest moment inside.
    """
    first_ms = -62_135_596_800_000  # 0001-01-01
    moment = _EPOCH + timedelta(milliseconds=min(max(ms, first_ms), MAX_MS + 999))
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def age_words(ms: int) -> str:
    """A length of time in its largest whole unit, for people: `4 m`. Below a second, and below 0, it is `0 s`."""
    for unit in ("d", "h", "m"):
        if ms >= _UNIT_MS[unit]:
            return f"{ms // _UNIT_MS[unit]} {unit}"
    return f"{max(ms, 0) // 1000} s"


def took_words(ms: int) -> str:
    """How long a call took, for people: `340 ms`, `1.2 s`."""
    return f"{max(ms, 0)} ms" if ms < 1000 else f"{ms / 1000:.1f} s"


def _parse_duration(text: str) -> int | None:
    """The ms of whole numbers with units, largest unit first, each at most once; None for anything else."""
    match = _DURATION.fullmatch(text) if len(text) <= _LONGEST_CHARS else None
    if match is None:
        return None
    return sum(
        int(number) * unit_ms for number, unit_ms in zip(match.groups(), _UNIT_MS.values(), strict=True) if number
    )


def _moment_ms(moment: re.Match[str], field: str) -> int:
    text = moment[0]
    year, month, day, hour, minute = (int(moment[at]) for at in range(1, 6))
    zulu, sign, zone_hours, zone_minutes = moment.group(8, 9, 10, 11)
    if not (zulu or sign):
        raise UsageError(
            f"{field}: found {text!r}, which has no time zone; wanted it said: {text}Z for UTC, or {text}+02:00"
        )
    try:
        if int(zone_minutes or 0) > 59:
            raise ValueError("offset minutes must be in 0..59")
        offset = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
        zone = timezone(-offset if sign == "-" else offset)
        second = datetime(year, month, day, hour, minute, int(moment[6] or 0), tzinfo=zone)
    except ValueError as error:
        raise UsageError(f"{field}: found {text!r}, wanted a moment that exists ({error})") from None
    return (second - _EPOCH) // _MS + int((moment[7] or "0").ljust(3, "0")[:3])


def _aware_ms(value: datetime, field: str) -> int:
    if value.utcoffset() is None:
        raise UsageError(
            f"{field}: found the naive datetime {value.isoformat()}, wanted an aware one: "
            "datetime(…, tzinfo=UTC), or .astimezone() for this machine's zone"
        )
    try:
        # A wall time that summer time skips would silently mean another hour.
        exists = value.astimezone(UTC).astimezone(value.tzinfo).replace(tzinfo=None) == value.replace(tzinfo=None)
    except OverflowError:  # at either end of the calendar; the range is judged by the caller
        exists = True
    if not exists:
        raise UsageError(f"{field}: found {value.isoformat()}, which {value.tzinfo} skips; wanted a moment that exists")
    return (value - _EPOCH) // _MS


def _timedelta_ms(value: timedelta, field: str) -> int:
    if value < timedelta():
        raise UsageError(f"{field}: found the negative timedelta {value}, wanted a positive one")
    return value // _MS


def _signed(ms: int, back: bool) -> int:
    return -ms if back else ms


def _in_range(ms: int, said: str, field: str) -> int:
    if not 0 <= ms <= MAX_MS:
        raise UsageError(f"{field}: found {_short(said)!r}, wanted a moment in the years 1970 to 9999")
    return ms


def _why_not(text: str) -> str:
    if _DATE_ONLY.fullmatch(text):
        return _without_clock(text)
    if _NUMBER.fullmatch(text) and len(text) <= 20:
        return _both_readings(float(text) if "." in text else int(text))
    return f"found {_short(text)!r}, wanted {FORMS}"


def _without_clock(text: str) -> str:
    return f"found the date {text} without a time of day, wanted both, for example {text}T00:00Z"


def _both_readings(number: float) -> str:
    """A plain number is refused with the two moments that it could be."""
    if not abs(number) < 10**20:  # NaN too
        return f"found a number far outside any calendar, wanted {FORMS}"
    seconds, ms = show_ms(int(number * 1000)), show_ms(int(number))
    return f"found the number {number}: seconds ({seconds}) or milliseconds ({ms}) since 1970? wanted {FORMS}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_CHARS else f"{text[:_LONGEST_CHARS]}…"
