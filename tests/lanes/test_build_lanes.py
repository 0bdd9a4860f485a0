"""From a policy to its lanes: kinds, keys, entry points, and one line for everything that is wrong."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from millpond.lanes import build
from millpond.lanes.build import build_lane, build_lanes
from millpond.lanes.callable import PythonLane
from millpond.lanes.chat import ChatLane
from millpond.lanes.command import CommandLane
from millpond.lanes.lane import Call
from millpond.rules.errors import MissingKey, SettingsError, UnknownLane
from millpond.rules.evidence import Evidence
from millpond.rules.policy import LanePolicy, Policy

CHAT = LanePolicy("free", kind="chat", base_url="http://127.0.0.1:11434/v1")
PAID = LanePolicy("paid", kind="chat", base_url="https://api.openai.com/v1", key_env="POND_KEY")


class EchoLane:
    def __init__(self, policy: LanePolicy) -> None:
        self.policy = policy

    async def call(self, call: Call) -> Evidence:
        return Evidence()

    async def close(self) -> None:
        return None


def broken(policy: LanePolicy) -> Any:
    raise RuntimeError("no water")


def no_lane(policy: LanePolicy) -> Any:
    return 7


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry points as an installed package would add them."""
    points = EntryPoints(
        EntryPoint(name, f"{__name__}:{name_of}", build.ENTRY_POINTS)
        for name, name_of in (("echo", "EchoLane"), ("broken", "broken"), ("odd", "no_lane"))
    )
    monkeypatch.setattr(build, "entry_points", lambda *, group: points.select(group=group))


def refused(policy: LanePolicy, error: type[Exception] = SettingsError, **options: Any) -> str:
    with pytest.raises(error) as caught:
        build_lane(policy, **options)
    words = str(caught.value)
    assert "\n" not in words
    assert policy.name in words
    return words


def test_each_kind_becomes_its_lane() -> None:
    assert isinstance(build_lane(CHAT), ChatLane)
    assert isinstance(build_lane(LanePolicy("cmd", kind="command", command=("true",))), CommandLane)
    assert isinstance(build_lane(LanePolicy("py", kind="python", target="json:dumps")), PythonLane)


def test_lanes_are_built_by_name_or_all_that_are_enabled_in_the_policys_order() -> None:
    off = LanePolicy("off", kind="chat", base_url="http://127.0.0.1:1/v1", enabled=False)
    policy = Policy(lanes={"paid": PAID, "off": off, "free": CHAT})
    assert list(build_lanes(policy, environ={"POND_KEY": "k"})) == ["paid", "free"]
    assert list(build_lanes(policy, ["free"])) == ["free"]  # the key of a lane that is not asked for is not missed
    with pytest.raises(UnknownLane, match="configured lanes: paid, off, free"):
        build_lanes(policy, ["fre"])


@pytest.mark.parametrize("environ", [{}, {"POND_KEY": ""}, {"POND_KEY": " \n"}])
def test_a_missing_key_names_lane_variable_and_remedy_in_one_line(environ: dict[str, str]) -> None:
    words = refused(PAID, MissingKey, environ=environ)
    assert words == "lane 'paid' needs the key in POND_KEY, which is not set; set it with: export POND_KEY=…"
    assert MissingKey.exit_code == 4


def test_the_key_comes_from_the_environment_without_its_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POND_KEY", "sk-pond-1\n")
    lane = build_lane(PAID)
    assert isinstance(lane, ChatLane)
    assert lane._headers["authorization"] == "Bearer sk-pond-1"
    assert "sk-pond" not in repr(lane)


def test_a_lane_without_key_variable_sends_no_authorization() -> None:
    lane = build_lane(CHAT)
    assert isinstance(lane, ChatLane)
    assert "authorization" not in lane._headers


def test_a_lane_that_cannot_be_built_says_what_is_wanted() -> None:
    assert "kind: chat" in refused(LanePolicy("seed", kind=""))
    assert "Queue.drain" in refused(LanePolicy("mine", kind="callable"))
    assert "unknown kind 'chta'; known kinds: chat, command, python" in refused(LanePolicy("typo", kind="chta"))


@pytest.mark.usefixtures("added")
def test_entry_points_add_kinds() -> None:
    lane = build_lane(LanePolicy("mine", kind="echo"))
    assert isinstance(lane, EchoLane)
    assert lane.policy.name == "mine"
    assert "failed: RuntimeError: no water" in refused(LanePolicy("b", kind="broken"))
    assert "gave int, not a Lane" in refused(LanePolicy("o", kind="odd"))
    assert "known kinds: broken, chat, command, echo, odd, python" in refused(LanePolicy("typo", kind="chta"))
