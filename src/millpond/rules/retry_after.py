"""How long a server asks us to wait, read from Retry-After in every shape that servers send (O32)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

_NUMBER = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?")
_LONGEST_DATE_CHARS = 64
_ENDLESS_MS = 10**18
"""Stands for every number too long to matter: far above any cap."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def stated_delay_ms(headers: Mapping[str, str], now_ms: int) -> int | None:
    """The delay that the headers state, in ms, uncapped and perhaps negative; None if they state none that can be read.

    `retry-after-ms` wins over `retry-after`; that is a number of seconds (a fraction is rounded up to the millisecond)
    or an HTTP date (O32). Never raises.
    """
    lower = {name.lower(): value.strip() for name, value in headers.items()}
    in_ms = _decimal_ms(lower.get("retry-after-ms", ""), 1)
    if in_ms is not None:
        return in_ms
    value = lower.get("retry-after", "")
    in_s = _decimal_ms(value, 1000)
    if in_s is not None:
        return in_s
    date_ms = _http_date_ms(value)
    return None if date_ms is None else date_ms - now_ms


def clamped(delay_ms: int, cap_ms: int) -> int:
    """The delay, at least 0 and at most the cap."""
    return max(0, min(delay_ms, cap_ms))


def _decimal_ms(text: str, ms_per_unit: int) -> int | None:
    """A plain decimal number times its unit, rounded up to whole ms; below 0 is 0. No exponents, so no surprises."""
    match = _NUMBER.fullmatch(text)
    if not match or not (match[2] or match[3]):
        return None
    if match[1] == "-":
        return 0
    whole, fraction = match[2].lstrip("0"), (match[3] or "").rstrip("0")
    if len(whole) > 15:  # int() refuses more than 4,300 digits, and the cap is near anyway.
        return _ENDLESS_MS
    billionths = int(whole or "0") * 10**9 + int(fraction[:9].ljust(9, "0")) + bool(fraction[9:])
    return -(-billionths * ms_per_unit // 10**9)


def _http_date_ms(text: str) -> int | None:
    """An HTTP date as UTC ms, in any of the forms that email.utils reads; None for anything else."""
    if not text or len(text) > _LONGEST_DATE_CHARS:
        return None
    try:
        moment = parsedate_to_datetime(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError, IndexError, OverflowError, AttributeError):
        return None
