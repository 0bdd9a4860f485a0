"""What a lane makes of one piece of work: the model that it asks, and the output that it allows."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.rules.job import Command, Prompt
from millpond.rules.policy import LanePolicy


def test_the_model_is_the_one_that_would_be_asked_by_the_providers_name() -> None:
    lane = LanePolicy("paid", model="small", models={"big": "provider/big-7"})
    assert lane.model_for(Prompt("a")) == "small"
    assert lane.model_for(Prompt("a", model="big")) == "provider/big-7"
    assert lane.model_for(Command("greet", {}, "uid")) == "small"


@pytest.mark.parametrize(
    ("asked", "lane", "limit"),
    [
        ({}, None, None),
        ({}, 100, 100),
        ({"max_tokens": 7}, None, 7),
        ({"max_tokens": 7}, 100, 7),
        ({"max_tokens": 700}, 100, 100),
        ({"max_completion_tokens": 7, "max_tokens": 9}, None, 9),
        ({"max_tokens": "7"}, None, None),
        ({"max_tokens": True}, 100, 100),
        ({"max_tokens": 0}, None, None),
    ],
)
def test_the_output_is_limited_by_the_prompt_under_the_lanes_limit(
    asked: dict[str, Any], lane: int | None, limit: int | None
) -> None:
    assert LanePolicy("paid", max_output_tokens=lane).output_limit(Prompt("a", params=asked)) == limit


def test_a_limit_among_the_lanes_params_counts_unless_the_prompt_says_another() -> None:
    lane = LanePolicy("paid", params={"max_tokens": 50})
    assert lane.output_limit(Prompt("a")) == 50
    assert lane.output_limit(Prompt("a", params={"max_tokens": 60})) == 60
    assert lane.output_limit(Prompt("a", params={"max_tokens": None})) is None


def test_code_is_bound_by_its_lanes_limit_alone() -> None:
    asked = Prompt("a", params={"max_tokens": 7})
    assert LanePolicy("mine", kind="python").output_limit(asked) is None
    assert LanePolicy("mine", kind="python", max_output_tokens=100).output_limit(asked) == 100
    assert LanePolicy("mine", kind="python").output_limit(Command("greet", {}, "uid")) is None
