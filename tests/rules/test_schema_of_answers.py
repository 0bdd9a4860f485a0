"""Schemas of answers: which can be asked, what satisfies them, which are strict enough for OpenAI."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from millpond.rules.schema import is_strict, judge_answer, refuse_schema

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    "schema",
    [
        {},
        OBJECT,
        {"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}},
        {"$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}}, "$ref": "#/$defs/tree"},
        {"$id": "https://pond.example/a", "$defs": {"b": {"$id": "b", "type": "string"}}, "$ref": "b"},
        {"properties": {"$ref": {"type": "string"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {}, "type": "string"},
    ],
)
def test_a_schema_that_stands_by_itself_can_be_asked(schema: dict[str, Any]) -> None:
    assert refuse_schema(schema) == ""


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "nonsense"}, "'nonsense' is not valid"),
        ({"properties": {"a": {"minimum": "x"}}}, "at $.properties.a.minimum"),
        ({"$ref": "#/$defs/missing"}, "'#/$defs/missing' is not in the schema"),
        ({"items": {"$ref": "https://pond.example/duck.json"}}, "none is fetched"),
        ({"$ref": "file:///etc/passwd"}, "none is fetched"),
    ],
)
def test_a_schema_that_is_none_or_points_elsewhere_is_refused(
    schema: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    assert words in refuse_schema(schema)


def test_what_does_not_satisfy_is_named_with_its_place() -> None:
    assert judge_answer({"n": 1}, OBJECT) == ""
    assert judge_answer({}, OBJECT) == "'n' is a required property"
    assert judge_answer({"n": "1"}, OBJECT) == "at $.n: '1' is not of type 'integer'"
    assert judge_answer([], {"$ref": "#"}) != ""  # refers to itself without end


def test_judging_fetches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *what, **_: fetched.append(what))
    assert "none is fetched" in judge_answer({}, {"$ref": "https://pond.example/duck.json"})
    assert fetched == []


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        ({**OBJECT, "additionalProperties": False}, True),
        (OBJECT, False),
        ({"type": "object", "properties": {"n": {}}, "required": [], "additionalProperties": False}, False),
        ({"type": "array", "items": OBJECT}, False),
        ({"anyOf": [{"type": "string"}, OBJECT]}, False),
        ({"$defs": {"a": OBJECT}, "$ref": "#/$defs/a"}, False),
        ({"enum": [{"properties": {}}], "default": {"type": "object"}}, True),
        (
            {
                "type": "object",
                "properties": {"properties": {"type": "string"}},
                "required": ["properties"],
                "additionalProperties": False,
            },
            True,
        ),
    ],
)
def test_strict_mode_wants_every_object_closed_and_all_required(schema: dict[str, Any], strict: bool) -> None:
    assert is_strict(schema) is strict
