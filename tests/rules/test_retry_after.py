"""Retry-After in every shape that servers send (O32): read right, never an exception, always within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.evidence import Evidence
from millpond.rules.outcome import classify
from millpond.rules.retry_after import clamped, stated_delay_ms

NOW_MS = 1_796_083_200_000  # 2026-12-01T00:00Z
DEFAULT_MS, CAP_MS = 5_000, 60_000


def retry_after_ms(headers: Mapping[str, str], now_ms: int, default_ms: int, cap_ms: int) -> int:
    """The pause that follows, as `classify` puts it together."""
    stated_ms = stated_delay_ms(headers, now_ms)
    return clamped(default_ms if stated_ms is None else stated_ms, cap_ms)


def http_date(ahead_s: int) -> str:
    return format_datetime(datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(seconds=ahead_s), usegmt=True)


RETRY_AFTER: list[tuple[Mapping[str, str], int]] = [
    ({"retry-after": "2"}, 2_000),
    ({"retry-after": "1.5"}, 1_500),
    ({"retry-after": "1.0001"}, 1_001),
    ({"retry-after": "0.0000000001"}, 1),
    ({"retry-after": ".5"}, 500),
    ({"retry-after": "+3"}, 3_000),
    ({"retry-after": " 2 "}, 2_000),
    ({"retry-after": "0"}, 0),
    ({"retry-after": "-5"}, 0),
    ({"retry-after": "-0.5"}, 0),
    ({"retry-after": ""}, DEFAULT_MS),
    ({"retry-after": "."}, DEFAULT_MS),
    ({"retry-after": "soon"}, DEFAULT_MS),
    ({"retry-after": "2, 2"}, DEFAULT_MS),
    ({"retry-after": "1e3"}, DEFAULT_MS),
    ({"retry-after": "nan"}, DEFAULT_MS),
    ({"retry-after": "٣"}, DEFAULT_MS),
    ({"retry-after": http_date(3)}, 3_000),
    ({"retry-after": http_date(-30)}, 0),
    ({"retry-after": "Tue, 01 Dec 2026 01:00:03 +0100"}, 3_000),
    ({"retry-after": "Tue, 01 Dec 2026 00:00:03 -0000"}, 3_000),
    ({"retry-after": "Tuesday, 01-Dec-26 00:00:03 GMT"}, 3_000),
    ({"retry-after": "Tue Dec  1 00:00:03 2026"}, 3_000),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, CAP_MS),
    ({"retry-after": "Fri, 31 Dec 9999 23:59:59 -2359"}, CAP_MS),
    ({"retry-after": "Fri, 99 Dec 2026 00:00:00 GMT"}, DEFAULT_MS),
    ({"retry-after": "Tue, 01 Dec 99999 00:00:00 GMT"}, DEFAULT_MS),
    ({"retry-after": "9" * 5_000}, CAP_MS),
    ({"retry-after": "-" + "9" * 5_000}, 0),
    ({"retry-after": "0." + "0" * 5_000 + "1"}, 1),
    ({"retry-after": "x" * 5_000}, DEFAULT_MS),
    ({"retry-after-ms": "1500"}, 1_500),
    ({"retry-after-ms": "1500.2"}, 1_501),
    ({"retry-after-ms": "1500", "retry-after": "9"}, 1_500),
    ({"retry-after-ms": "soon", "retry-after": "9"}, 9_000),
    ({"Retry-After": "2"}, 2_000),
    ({}, DEFAULT_MS),
]


@pytest.mark.parametrize(("headers", "wanted_ms"), RETRY_AFTER, ids=lambda value: str(value)[:60])
def test_o32_retry_after_in_every_shape(headers: Mapping[str, str], wanted_ms: int) -> None:
    assert retry_after_ms(headers, NOW_MS, DEFAULT_MS, CAP_MS) == wanted_ms
    refused = Evidence(status=429, headers=headers)
    found = classify(refused, now_ms=NOW_MS, default_delay_ms=DEFAULT_MS, cap_ms=CAP_MS)
    assert (found.outcome, found.delay_ms) == ("saturated", wanted_ms)


@given(
    st.text() | st.from_regex(r"[-+]?[0-9]{0,400}\.?[0-9]{0,400}"), st.integers(0, 2**63), st.integers(), st.integers()
)
def test_o32_retry_after_never_raises_and_keeps_its_bounds(
    text: str, now_ms: int, default_ms: int, cap_ms: int
) -> None:
    for name in ("retry-after", "retry-after-ms"):
        assert 0 <= retry_after_ms({name: text}, now_ms, default_ms, cap_ms) <= max(0, cap_ms)
