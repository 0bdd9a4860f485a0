"""Which work a lane cannot do, one sentence for all kinds of lanes."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.lanes.fit import refusal
from millpond.rules.job import Command, Image, Prompt
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.router import lanes_for

SCHEMA = {"type": "object"}
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
PLAIN = {"supports_schema": False, "supports_tools": False, "supports_images": False}


def code(work: Any, *, text_only: bool = False, **policy: Any) -> str:
    refused = refusal(LanePolicy("pond", **policy), work, text_only=text_only)
    if refused is None:
        return ""
    assert refused.sent == "no"
    assert refused.message
    assert refused.said == ("permanent" if refused.code.startswith("bad_") else "unfit")
    return refused.code


@pytest.mark.parametrize(
    ("work", "plain", "text_only"),
    [
        (Prompt("hi"), "", ""),
        (Prompt("hi", tools=[{}]), "unfit_tools", "unfit_tools"),
        (Prompt("hi", images=(Image(b"x"),)), "unfit_images", "unfit_images"),
        (Prompt(messages=PICTURE), "unfit_images", "unfit_images"),
        (Prompt(messages=[{"role": "user", "content": "hi"}]), "", "unfit_messages"),
        (Prompt("hi", schema=SCHEMA), "unfit_schema", ""),
        (Prompt("hi", schema={"type": "nonsense"}), "bad_schema", "bad_schema"),
        (Command("Count", {}, "u"), "", ""),
    ],
)
def test_a_lane_refuses_what_it_does_not_support(work: Any, plain: str, text_only: str) -> None:
    assert code(work, **PLAIN) == plain
    assert code(work, text_only=True) == text_only
    assert code(work) == ("bad_schema" if plain == "bad_schema" else "")


@pytest.mark.parametrize(
    ("policy", "fits"),
    [
        ({"kind": "callable"}, True),
        ({"kind": "python"}, True),
        ({"kind": "command"}, False),
        ({"kind": "chat"}, False),
        ({"kind": "callable", "model": "m"}, False),
        ({"kind": "python", "models": {"a": "b"}}, False),
        ({"kind": "command", "model": "mini"}, True),
        ({"kind": "command", "models": {"mini": "mini-2"}}, True),
        ({"kind": "chat", "models": {"x": "mini"}}, True),
    ],
)
def test_router_and_lane_agree_on_a_model_that_the_caller_named(policy: dict[str, Any], fits: bool) -> None:
    lane, work = LanePolicy("pond", **policy), Prompt("hi", model="mini")
    refused = refusal(lane, work)
    assert (refused and refused.code) == (None if fits else "unfit_model")
    assert lanes_for(work, "", Policy(lanes={"pond": lane})) == (("pond",) if fits else ())
    assert refusal(lane, Prompt("hi")) is None
