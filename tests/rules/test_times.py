"""What people may write for a time, what is refused because it could be read in two ways, and how times are shown."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.errors import UsageError
from millpond.rules.times import MAX_MS, age_words, duration_ms, instant_ms, show_ms, took_words
from millpond.store.moves import FAR_FUTURE_MS

NOW = 1_796_112_000_000  # 2026-12-01T08:00Z
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture(params=["", "America/St_Johns"])
def local_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run under this machine's zone and under one with an odd offset and summer time."""
    if request.param:
        monkeypatch.setenv("TZ", request.param)
        time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("said", "ms"),
    [
        ("2h", 7_200_000),
        ("90m", 5_400_000),
        ("1d", 86_400_000),
        ("30s", 30_000),
        ("250ms", 250),
        ("1h30m", 5_400_000),
        ("1d2h3m4s5ms", 93_784_005),
        (" 1h 30m ", 5_400_000),
        ("0s", 0),
        (timedelta(hours=2), 7_200_000),
        (timedelta(microseconds=1_999), 1),
    ],
)
def test_a_duration_counts_from_now_and_back_from_now(said: object, ms: int) -> None:
    assert duration_ms(said) == ms
    assert instant_ms(said, NOW) == NOW + ms
    assert instant_ms(said, NOW, back=True) == NOW - ms


@pytest.mark.parametrize(
    "said", ["", " ", "h", "2", "2 hours", "2H", "1.5h", "-2h", "30m1h", "1h1h", "2h!", "1hm", "٢h", "9" * 5000 + "h"]
)
def test_what_is_not_a_duration_is_refused(said: str) -> None:
    with pytest.raises(UsageError, match=r"pause: found .*wanted"):
        duration_ms(said, field="pause")
    with pytest.raises(UsageError, match="due: found"):
        instant_ms(said, NOW, field="due")


def test_a_negative_timedelta_is_refused() -> None:
    with pytest.raises(UsageError, match="due: found the negative timedelta"):
        instant_ms(timedelta(seconds=-1), NOW, field="due")
    with pytest.raises(UsageError, match="pause: found the negative"):
        duration_ms(timedelta(seconds=-1), field="pause")


def test_a_duration_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(UsageError, match="year 10000"):
        duration_ms("99999999d")
    with pytest.raises(UsageError, match="years 1970 to 9999"):
        instant_ms("9000000d", NOW)
    with pytest.raises(UsageError, match="years 1970 to 9999"):
        instant_ms("36500d", NOW, back=True)


@pytest.mark.usefixtures("local_zone")
@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("2026-03-29T02:30Z", "2026-03-29T02:30:00.000Z"),
        ("2026-03-29T02:30:00Z", "2026-03-29T02:30:00.000Z"),
        ("2026-03-29T02:30+02:00", "2026-03-29T00:30:00.000Z"),
        ("2026-03-29T02:30+0200", "2026-03-29T00:30:00.000Z"),
        ("2026-03-29T02:30:15-03:30", "2026-03-29T06:00:15.000Z"),
        ("2026-03-29T02:30+02", "2026-03-29T00:30:00.000Z"),
        ("2026-03-29T02:30:15.123456789Z", "2026-03-29T02:30:15.123Z"),
        ("2026-03-29T02:30:15.999999999+02:00", "2026-03-29T00:30:15.999Z"),
        ("2026-03-29T02:30:15.5Z", "2026-03-29T02:30:15.500Z"),
        ("2026-03-29 02:30:15,5z", "2026-03-29T02:30:15.500Z"),
        (datetime(2026, 3, 29, 3, 30, tzinfo=BERLIN), "2026-03-29T01:30:00.000Z"),
        (datetime(2026, 3, 29, 3, 30, 0, 999_999, tzinfo=timezone(timedelta(hours=2))), "2026-03-29T01:30:00.999Z"),
        (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), "2026-10-25T00:30:00.000Z"),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), "2026-10-25T01:30:00.000Z"),
    ],
)
def test_o33_what_says_its_zone_is_one_moment_under_every_local_zone(said: object, shown: str) -> None:
    assert show_ms(instant_ms(said, NOW)) == shown


@pytest.mark.usefixtures("local_zone")
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("2026-03-29T02:30", "no time zone; wanted it said: 2026-03-29T02:30Z for UTC"),
        ("2026-03-29T02:30:00.123456", "no time zone"),
        ("2026-03-29 02:30:00", "no time zone"),
        (datetime(2026, 3, 29, 2, 30), "found the naive datetime 2026-03-29T02:30:00"),
        (datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN), "which Europe/Berlin skips"),
        ("2026-03-29", "without a time of day, wanted both, for example 2026-03-29T00:00Z"),
        (date(2026, 3, 29), "without a time of day"),
        (
            1_774_751_400,
            r"1774751400: seconds \(2026-03-29T02:30:00.000Z\) or milliseconds \(1970-01-21T12:59:11.400Z\) since",
        ),
        ("1774751400", r"seconds \(2026-03-29T02:30:00.000Z\)"),
        (1_774_751_400_000, r"milliseconds \(2026-03-29T02:30:00.000Z\)"),
        (1_774_751_400.5, "or milliseconds"),
        (float("inf"), "found a number far outside"),
        (float("nan"), "found a number far outside"),
        pytest.param(10**5000, "found a number far outside", id="5,001 digits"),
        (True, "found bool, wanted"),
        (None, "found NoneType, wanted"),
        ("tomorrow", 'found \'tomorrow\', wanted "2h", "2026-12-01T08:00Z"'),
        ("2026-02-30T08:00Z", "wanted a moment that exists"),
        ("2026-12-01T24:00Z", "wanted a moment that exists"),
        ("2026-12-01T08:00:60Z", "wanted a moment that exists"),
        ("2026-12-01T08:00+25:00", "wanted a moment that exists"),
        ("2026-12-01T08:00+02:60", "wanted a moment that exists"),
        ("2026-12-01T08:00:00.1234567890Z", "wanted"),
        ("0000-12-01T08:00Z", "wanted a moment that exists"),
        ("1969-12-31T23:59:59Z", "years 1970 to 9999"),
        ("9999-12-31T23:59-01:00", "years 1970 to 9999"),
        ("0001-01-01T00:00+01:00", "years 1970 to 9999"),
        (datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), "years 1970 to 9999"),
        ("10000-01-01T00:00Z", "wanted"),
    ],
)
def test_o33_what_could_be_read_in_two_ways_is_refused(said: object, why: str) -> None:
    with pytest.raises(UsageError, match=f"^not_before: .*{why}"):
        instant_ms(said, NOW, field="not_before")


@given(st.integers(0, MAX_MS), st.integers(0, MAX_MS))
def test_o33_the_order_of_shown_times_is_the_order_of_times(one: int, other: int) -> None:
    assert (show_ms(one) < show_ms(other)) == (one < other)
    assert len(show_ms(one)) == len("2026-12-01T08:00:00.000Z")


@given(st.integers(0, MAX_MS), st.integers(-1439, 1439), st.integers(0, 999_999))
def test_o33_every_form_of_a_moment_is_the_same_ms(ms: int, offset_min: int, below: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    try:
        local = moment.astimezone(timezone(timedelta(minutes=offset_min)))
    except OverflowError:  # the local year would be 10000
        return
    said = local.isoformat(timespec="milliseconds")
    at = len("2026-12-01T08:00:00.000")
    assert instant_ms(local, 0) == instant_ms(said, 0) == ms
    assert instant_ms(f"{said[:at]}{below:06}{said[at:].replace(':', '')}", 0) == ms
    assert instant_ms(show_ms(ms), 0) == ms


@given(st.one_of(st.text(), st.integers(), st.floats(), st.datetimes(), st.timedeltas(), st.binary()))
def test_whatever_is_given_for_a_time_is_a_moment_in_range_or_a_usage_error(value: object) -> None:
    try:
        ms, words = instant_ms(value, NOW), ""
    except UsageError as refusal:
        ms, words = 0, str(refusal)
    assert 0 <= ms <= MAX_MS
    assert len(words) < 400


@pytest.mark.parametrize("ms", [-(10**30), -1, 0, FAR_FUTURE_MS, 2**63, 10**30])
def test_o33_showing_a_stored_time_never_raises(ms: int) -> None:
    assert len(show_ms(ms)) == 24


def test_every_accepted_moment_is_at_or_before_the_stores_far_future() -> None:
    assert MAX_MS < FAR_FUTURE_MS


@pytest.mark.parametrize(
    ("ms", "words"),
    [(-5, "0 s"), (0, "0 s"), (999, "0 s"), (22_400, "22 s"), (60_000, "1 m"), (299_999, "4 m"), (7_300_000, "2 h"),
     (86_400_000, "1 d"), (10**11, "1157 d")],
)  # fmt: skip
def test_an_age_is_told_in_its_largest_unit(ms: int, words: str) -> None:
    assert age_words(ms) == words


@pytest.mark.parametrize(("ms", "words"), [(-5, "0 ms"), (340, "340 ms"), (999, "999 ms"), (1_240, "1.2 s")])
def test_how_long_a_call_took_is_told_in_ms_or_s(ms: int, words: str) -> None:
    assert took_words(ms) == words
