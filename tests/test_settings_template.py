"""The template of a settings file, and the schema of all its keys."""

from __future__ import annotations

import re

import pytest
from settings_here import Load, lane

from millpond.rules.policy import Deadlines, LanePolicy, Policy
from millpond.rules.price import FREE
from millpond.settings import schema, template


def test_the_template_is_a_free_lane_that_works(loaded: Load) -> None:
    settings = loaded(template())
    free = lane(settings)
    assert list(settings.policy.lanes) == ["free"]
    assert (free.kind, free.price, free.tier, free.after_hold) == ("chat", FREE, "free", "same")
    assert settings.unread == ()
    assert settings.keys == {}
    # The template explains the defaults; only its lane differs from them.
    assert settings.policy == Policy(lanes={"free": free})


def test_every_commented_line_of_the_template_may_be_used(loaded: Load) -> None:
    used = re.sub(r"^( *)#(?=\S)", r"\1", template(), flags=re.MULTILINE)
    settings = loaded(used)
    assert list(settings.policy.lanes) == ["free", "paid"]
    assert settings.policy.routing == {"label": ("free",)}
    assert lane(settings, "paid").deadlines == Deadlines()
    assert settings.unread == ()
    loose = {"lanes", "routing"}
    assert {key for key, _, origin in settings.shown() if origin == "default"}.isdisjoint(
        {"fair_every", "durability"} | loose
    )


@pytest.mark.parametrize("line", [line for line in template().splitlines() if re.match(r"#\S.*: \S", line)])
def test_any_one_line_of_the_template_may_be_used_alone(loaded: Load, line: str) -> None:
    loaded(template().replace(line, line[1:]))


def test_what_the_template_says_is_the_default_is_the_default(loaded: Load) -> None:
    used = re.sub(r"^#(?=\w+: )", "", template(), flags=re.MULTILINE)
    assert loaded(used).policy == loaded(template()).policy


def test_every_line_of_the_template_fits_its_screen_and_names_no_secret() -> None:
    assert max(map(len, template().splitlines())) <= 130
    assert "api_key" not in template()


def test_the_schema_describes_every_key() -> None:
    described = schema()
    assert described["additionalProperties"] is False
    lane_keys = described["$defs"]["Lane"]["properties"]
    assert {"rpm", "deadlines", "after_hold", "key_env"} <= lane_keys.keys()
    keys = [*lane_keys.values(), *described["properties"].values()]
    assert all(key.get("description") or "$ref" in key for key in keys)


def test_every_field_of_a_lanes_policy_can_be_said_in_a_file() -> None:
    renamed = {"name", "soft_timeout_ms", "hold_ms", "settling_ms", "dedup_header"}
    assert set(LanePolicy.__dataclass_fields__) - renamed <= set(schema()["$defs"]["Lane"]["properties"])
