"""What a caller may give as lanes, and how what is no lane is refused: in words, before anything is leased."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from millpond.lanes.callable import CallableLane
from millpond.lanes.given import choose_lanes, flaw_of
from millpond.lanes.lane import Call
from millpond.rules.errors import UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.policy import LanePolicy, Policy
from millpond.testing import ScriptedLane


class OwnLane:
    """A lane as its author may write it: the policy belongs to the class."""

    policy = LanePolicy("own", kind="callable")

    async def call(self, call: Call) -> Evidence:
        raise NotImplementedError(call)

    async def close(self) -> None:
        return


class Blocking(OwnLane):
    def call(self, call: Call) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        raise NotImplementedError(call)


class ClosesAtOnce(OwnLane):
    def close(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


class Handler:
    async def __call__(self, call: Call) -> Evidence:
        raise NotImplementedError(call)


class Delegating(OwnLane):
    """Its call is an object that is called as an async function."""

    def __init__(self) -> None:
        self.call: Any = Handler()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Mock(return_value="yes"), "lanes: found Mock whose policy is Mock, wanted a LanePolicy"),
        (MagicMock(), "lanes: found MagicMock whose policy is MagicMock, wanted a LanePolicy"),
        (AsyncMock(), "lanes: found AsyncMock whose policy is .*, wanted a LanePolicy"),
        (Mock(policy=LanePolicy("mock")), r"lanes: found Mock whose call is not async, wanted `async def call`"),
        (Blocking(), "lanes: found Blocking whose call is not async, wanted `async def call`"),
        (ClosesAtOnce(), "lanes: found ClosesAtOnce whose close is not async, wanted `async def close`"),
        (OwnLane, r"lanes: found the class OwnLane, wanted a lane of it: OwnLane\(…\)"),
    ],
)
@pytest.mark.parametrize("form", ["alone", "listed", "named"])
def test_what_only_has_the_names_of_a_lane_is_refused_in_words(given: Any, words: str, form: str) -> None:
    forms: dict[str, Any] = {"alone": given, "listed": [given], "named": {"mine": given}}
    with pytest.raises(UsageError, match=f"^{words}; .* CallableLane"):
        choose_lanes(Policy(), forms[form])


def test_a_mock_is_called_where_it_is_said_to_be_a_function() -> None:
    _, lanes = choose_lanes(Policy(), CallableLane(Mock(return_value="yes")))
    assert list(lanes) == ["callable"]


@pytest.mark.parametrize("lane", [OwnLane(), Delegating(), ScriptedLane(), CallableLane(str)])
def test_a_lane_is_taken_as_it_is(lane: Any) -> None:
    assert flaw_of(lane) == ""
    assert choose_lanes(Policy(), lane)[1] == {lane.policy.name: lane}


def test_what_has_no_name_of_a_lane_is_called_or_refused() -> None:
    assert isinstance(choose_lanes(Policy(), str)[1]["callable"], CallableLane)
    with pytest.raises(UsageError, match="found int, wanted a callable, a Lane, or the name of a lane"):
        choose_lanes(Policy(), 7)  # type: ignore[arg-type]
