"""Whether a lane takes one more call now."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.admission import Admitted, LaneLoad, ParkUntil, admit, room
from millpond.rules.policy import LanePolicy

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
    assert admit(LANE, LaneLoad(1), now_ms=1_000) == Admitted()
    assert admit(LANE, LaneLoad(1, closed_until_ms=1_000), now_ms=1_000) == Admitted()


def test_a_lane_that_closed_since_the_lease_parks_until_it_opens() -> None:
    parked = admit(LANE, LaneLoad(1, closed_until_ms=1_001), now_ms=1_000)
    assert isinstance(parked, ParkUntil)
    assert (parked.until_ms, parked.why) == (1_001, "lane free is closed until 1001")


def test_a_lane_that_only_a_person_opens_says_so_and_names_no_time() -> None:
    parked = admit(LANE, LaneLoad(1, closed_until_ms=9_999, needs_person=True), now_ms=1_000)
    assert isinstance(parked, ParkUntil)
    assert (parked.until_ms, parked.why) == (None, "lane free is closed until a person opens it")


@given(st.integers(0, 20), st.none() | st.integers(0, 2_000), st.booleans(), st.integers(0, 2_000))
def test_a_lane_with_room_admits(in_flight: int, closed_until_ms: int | None, needs_person: bool, now_ms: int) -> None:
    load = LaneLoad(in_flight, closed_until_ms, needs_person)
    if room(LANE, load, now_ms):
        assert admit(LANE, load, now_ms) == Admitted()
