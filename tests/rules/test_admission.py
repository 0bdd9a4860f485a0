"""Whether a lane takes one more call now."""

from __future__ import annotations

from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.admission import NOTHING_YET, Admitted, Closing, InARow, LaneLoad, NotNow, admit, closing, room
from millpond.rules.evidence import Evidence
from millpond.rules.outcome import classify
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.view import Declared

LANE = LanePolicy("free", max_in_flight=4)


@pytest.mark.parametrize(
    ("load", "free"),
    [
        (LaneLoad(0), 4), (LaneLoad(3), 1), (LaneLoad(4), 0), (LaneLoad(9), 0),
        (LaneLoad(0, closed_until_ms=1_001), 0), (LaneLoad(0, closed_until_ms=1_000), 4),
        (LaneLoad(0, needs_person=True), 0), (LaneLoad(0, closed_until_ms=1, needs_person=True), 0),
    ],
)  # fmt: skip
def test_a_lane_has_room_for_its_width_less_what_is_in_flight_while_it_is_open(load: LaneLoad, free: int) -> None:
    assert room(LANE, load, now_ms=1_000) == free


@pytest.mark.parametrize(("in_flight", "free"), [(0, 1), (1, 0), (2, 0)])
def test_a_serial_lane_has_room_for_one_whatever_its_width(in_flight: int, free: int) -> None:
    assert room(LanePolicy("serial", max_in_flight=9, serial=True), LaneLoad(in_flight), now_ms=0) == free


def test_an_open_lane_admits() -> None:
    assert admit(LaneLoad(1), now_ms=1_000) == Admitted()
    assert admit(LaneLoad(1, closed_until_ms=1_000), now_ms=1_000) == Admitted()


def test_a_lane_that_closed_since_the_lease_takes_nothing() -> None:
    assert admit(LaneLoad(1, closed_until_ms=1_001), now_ms=1_000) == NotNow()
    assert admit(LaneLoad(1, closed_until_ms=None, needs_person=True), now_ms=1_000) == NotNow()


def ended(evidence: Evidence, in_a_row: InARow = NOTHING_YET, **policy: int) -> Closing | None:
    classified = classify(evidence, Declared(local=True), default_delay_ms=5_000)
    return closing(classified, None, LANE, Policy(**policy), in_a_row, 1_000, 0.0)  # pyright: ignore[reportArgumentType]


def test_a_lane_that_says_not_now_at_once_stays_closed_twice_as_long_each_time_up_to_the_default() -> None:
    at_once = Evidence(status=429, headers={"retry-after": "0"})
    until = [ended(at_once, InARow(saturations=n)) for n in range(9)]
    assert [one.until_ms - 1_000 for one in until if one and one.until_ms] == [
        100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000, 5_000,
    ]  # fmt: skip
    assert ended(Evidence(status=429, headers={"retry-after": "7"})) == Closing(8_000, ANY, "saturated")


def test_a_good_reply_ends_the_row_of_closings() -> None:
    row = InARow(saturations=3, refusals=2)
    good = classify(Evidence(status=200, terminal=True, has_content=True, finish_reason="stop"))
    assert row.and_then(good) == NOTHING_YET
    assert row.and_then(classify(Evidence(status=429))) == InARow(saturations=4)
    assert row.and_then(classify(Evidence(sent="no", failure="refused"), Declared(local=True))) == InARow(3, 3)


def test_a_lane_is_down_after_so_many_refused_connections_in_a_row() -> None:
    refused = Evidence(sent="no", failure="refused")
    assert ended(refused, InARow(refusals=1), lane_down_after=3) is None
    assert ended(refused, InARow(refusals=2), lane_down_after=3, lane_down_probe_ms=9) == Closing(
        1_009, "connection refused 3 times in a row", "down"
    )


@given(st.integers(0, 20), st.none() | st.integers(0, 2_000), st.booleans(), st.integers(0, 2_000))
def test_a_lane_with_room_admits(in_flight: int, closed_until_ms: int | None, needs_person: bool, now_ms: int) -> None:
    load = LaneLoad(in_flight, closed_until_ms, needs_person)
    if room(LANE, load, now_ms):
        assert admit(load, now_ms) == Admitted()
