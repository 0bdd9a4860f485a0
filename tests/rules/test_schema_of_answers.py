"""Schemas of answers: which can be asked, what satisfies them, which are strict enough for OpenAI."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from millpond.rules.schema import MAX_SCHEMA_CHARS, WORDS_CHARS, is_strict, judge_answer, refuse_schema

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
        ({"$dynamicRef": "#missing"}, "'#missing' is not in the schema"),
        ({"$ref": "#/definitions/a", "definitions": {"a": {"items": {"$ref": "#/gone"}}}}, "'#/gone' is not in"),
        ({"properties": {"a": {"pattern": "^(?!x)"}}}, "'^(?!x)' cannot be matched in linear time: look-around"),
        ({"patternProperties": {r"(a)\1": {}}}, "backreferences are not supported"),
        ({"pattern": "("}, "unclosed group"),
        ({"patternProperties": {"^x": {}}, "unevaluatedProperties": False}, "list the properties"),
        ({"$schema": 5}, "'int'"),
        ({"a": {1}}, "it is no JSON"),
        ({"description": "x" * MAX_SCHEMA_CHARS}, "characters of JSON, wanted at most 1,000,000"),
    ],
)
def test_a_schema_that_is_none_or_points_elsewhere_is_refused(
    schema: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_network(*_: Any, **__: Any) -> Any:
        raise AssertionError("something was fetched")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    assert words in refuse_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$dynamicRef": "#"},
        {"$schema": "https://json-schema.org/draft/2019-09/schema", "$recursiveRef": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"properties": {"x": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/x"}]}}},
        {"allOf": [{"not": {"$ref": "#"}}]},
        {"if": {"then": {"$ref": "#"}}},
        {"dependentSchemas": {"a": {"$ref": "#"}}},
    ],
)
def test_a_schema_that_leads_back_to_the_same_value_is_refused(schema: dict[str, Any]) -> None:
    assert "leads back to where it stands without end" in refuse_schema(schema)


def test_what_does_not_satisfy_is_named_with_its_place() -> None:
    assert judge_answer({"n": 1}, OBJECT) == ""
    assert judge_answer({}, OBJECT) == "'n' is a required property"
    assert judge_answer({"n": "1"}, OBJECT) == "at $.n: '1' is not of type 'integer'"
    assert judge_answer([], {"$ref": "#"}) != ""  # refers to itself without end


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 10**401])
def test_what_a_validator_cannot_compute_does_not_satisfy(number: float) -> None:
    wrong = judge_answer({"a": number}, {"properties": {"a": {"type": "number", "multipleOf": 0.01}}})
    assert "cannot be held against its schema" in wrong


MANY_WAYS = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
OTHER_DRAFT = {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"}
RUNAWAY = "a" * 60 + "!"


@pytest.mark.parametrize(
    ("data", "schema", "words"),
    [
        (RUNAWAY, {"pattern": "^(a+)+$"}, "does not match '^(a+)+$'"),
        ([RUNAWAY], {"items": OTHER_DRAFT}, "does not match"),
        ({RUNAWAY: 1}, {"patternProperties": {"^(a+)+$": False, "!$": {"type": "string"}}}, "not of type 'string'"),
        ({RUNAWAY: 1}, {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, "was unexpected"),
        ({RUNAWAY: 1}, {"propertyNames": {"pattern": "^(a+)+$"}}, "does not match"),
        ([{"n": n} for n in range(30_000)], {"uniqueItems": True}, ""),
        (1, {"$ref": "#/$defs/d0", "$defs": {**MANY_WAYS, "d40": {"type": "string"}}}, "would take too long"),
        ([*range(50_000)], {"items": {"enum": [*range(50_000)]}}, "would take too long"),
    ],
)
def test_no_answer_is_judged_for_long(data: Any, schema: dict[str, Any], words: str) -> None:
    assert refuse_schema(schema) == ""
    began = time.monotonic()
    wrong = judge_answer(data, schema)
    assert time.monotonic() - began < 20  # seconds: here it takes at most 4
    assert wrong.endswith(words) or words in wrong
    assert bool(wrong) is bool(words)


@pytest.mark.parametrize(
    ("data", "schema", "is_right"),
    [
        ("ab", {"pattern": "b"}, True),
        ("ä1", {"pattern": r"^\p{L}\d$"}, True),
        ("b\n", {"pattern": "b$"}, False),
        ("\ud83d", {"pattern": "^.$"}, True),
        (5, {"pattern": "b"}, True),
        ({"x1": 1, "a": 2}, {"properties": {"a": {}}, "patternProperties": {"^x": {"type": "integer"}}}, True),
        ({"x1": "1"}, {"patternProperties": {"^x": {"type": "integer"}}}, False),
        ({"x1": 1, "b": 2}, {"patternProperties": {"^x": {}}, "additionalProperties": False}, False),
        ({"x1": 1, "b": 2}, {"patternProperties": {"^x": {}}, "additionalProperties": {"type": "integer"}}, True),
        ({"b": "2"}, {"additionalProperties": {"type": "integer"}}, False),
        ({}, {"additionalProperties": False}, True),
        ({"a": 1}, {"properties": {"a": {}}, "additionalProperties": False}, True),
        ({"a": 1, "b": 2}, {"properties": {"a": {}}, "additionalProperties": False}, False),
        ([1, True, 0, False, "1", [1], [True], None], {"uniqueItems": True}, True),
        ([1, 1.0], {"uniqueItems": True}, False),
        ([{"a": 1, "b": [2]}, {"b": [2], "a": 1}], {"uniqueItems": True}, False),
        ([1, 1], {"uniqueItems": False}, True),
        (
            {"q": "a"},
            {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "definitions": {"a": {"type": "string"}},
                "properties": {"q": {"$ref": "#/definitions/a", "minLength": 5}},
            },
            True,
        ),
    ],
)
def test_our_keywords_judge_as_json_schema_says(data: Any, schema: dict[str, Any], is_right: bool) -> None:
    assert (judge_answer(data, schema) == "") is is_right


def test_words_of_an_error_leave_out_the_middle_of_a_long_value() -> None:
    wrong = judge_answer({"a": "x" * 10_000}, {"properties": {"a": {"type": "integer"}}})
    assert wrong.startswith("at $.a: 'xxx")
    assert wrong.endswith("x' is not of type 'integer'")
    assert len(wrong) < WORDS_CHARS + 10


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
