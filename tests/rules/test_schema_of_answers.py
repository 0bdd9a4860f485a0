"""Schemas of answers: which can be asked, what satisfies them, which are strict enough for OpenAI."""

from __future__ import annotations

import socket
import time
from functools import reduce
from typing import Any

import pytest

from millpond.rules import keywords
from millpond.rules.keywords import MAX_STEPS
from millpond.rules.schema import MAX_SCHEMA_CHARS, WORDS_CHARS, is_strict, judge_answer, refuse_schema

DRAFT_3 = {"$schema": "http://json-schema.org/draft-03/schema#"}
DRAFT_7 = {"$schema": "http://json-schema.org/draft-07/schema#"}
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
        {**DRAFT_7, "definitions": {}, "type": "string"},
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
        ({"properties": {f"p{n}": {"pattern": f"^{n}$"} for n in range(300)}}, "more than 256 different patterns"),
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
        {**DRAFT_3, "extends": {"$ref": "#"}},
    ],
)
def test_a_schema_that_leads_back_to_the_same_value_is_refused(schema: dict[str, Any]) -> None:
    assert "leads back to where it stands without end" in refuse_schema(schema)


def test_what_does_not_satisfy_is_named_with_its_place() -> None:
    assert judge_answer({"n": 1}, OBJECT) == ""
    assert judge_answer({}, OBJECT) == "'n' is a required property"
    assert judge_answer({"n": "1"}, OBJECT) == "at $.n: '1' is not of type 'integer'"
    assert judge_answer([], {"$ref": "#"}) != ""  # refers to itself without end


@pytest.mark.parametrize("number", [float("inf"), float("nan"), pytest.param(10**5_000, id="long")])
def test_what_a_validator_cannot_compute_does_not_satisfy(number: float) -> None:
    wrong = judge_answer({"a": number}, {"properties": {"a": {"type": "number", "multipleOf": 0.01}}})
    assert "cannot be held against its schema" in wrong


@pytest.mark.parametrize(
    ("number", "factor", "is_right"),
    [
        (19.99, 0.01, True),
        (4.35, 0.01, True),
        (19.995, 0.01, False),
        (0.3, 0.1, True),
        (1e308, 1e-5, True),
        (10**401, 0.01, True),
        (7, 2, False),
        (7.0, 3.5, True),
        ("19.995", 0.01, True),
    ],
)
def test_a_multiple_is_one_of_decimal_numbers(number: Any, factor: float, is_right: bool) -> None:
    assert (judge_answer(number, {"multipleOf": factor}) == "") is is_right
    assert (judge_answer(number, {**DRAFT_3, "divisibleBy": factor}) == "") is is_right


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({**DRAFT_7, "dependencies": {"a": ["b"]}}, "'b' is a dependency of 'a'"),
        ({**DRAFT_7, "dependencies": {"c": {}, "a": ["b"]}}, "'b' is a dependency of 'a'"),
        ({"dependencies": {"a": ["b"]}}, ""),  # no keyword of this draft
        ({**DRAFT_3, "dependencies": {"a": "b"}}, "'b' is a dependency of 'a'"),
        ({**DRAFT_3, "extends": {"properties": {"a": {"type": "string"}}}}, "at $.a: 1 is not of type 'string'"),
        ({**DRAFT_3, "extends": [{"properties": {"a": {"type": "string"}}}]}, "at $.a: 1 is not of type 'string'"),
        ({"extends": {"$ref": "#/nowhere"}}, ""),  # nor this
    ],
)
def test_what_depends_and_extends_is_judged_in_every_form(schema: dict[str, Any], words: str) -> None:
    assert refuse_schema(schema) == ""
    assert judge_answer({"a": 1}, schema) == words


def test_a_part_that_another_extends_is_looked_through() -> None:
    assert "'#/gone' is not in the schema" in refuse_schema({**DRAFT_3, "extends": {"items": {"$ref": "#/gone"}}})


MANY_WAYS = {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
OTHER_DRAFT = {**DRAFT_7, "pattern": "^(a+)+$"}
LISTED = [[{"n": n, "of": [n]} for n in range(20_000)]]
BURIED: Any = reduce(lambda part, _: {"allOf": [part]}, range(60), {"type": "string"})
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
        ([*range(50_000)] * 2, {"items": {"enum": [*range(50_000)]}}, ""),
        ([n * (2**61 - 1) for n in range(100_000)], {"uniqueItems": True}, ""),  # all of one hash
        (LISTED, {"allOf": [{"$ref": "#/$defs/c"}] * 1_000, "$defs": {"c": {"const": LISTED}}}, "would take too long"),
        (LISTED[0], {"allOf": [{"$ref": "#/$defs/u"}] * 1_000, "$defs": {"u": {"uniqueItems": True}}}, "take too long"),
        ([[*range(100_000)]], {"anyOf": [{"type": "string"}] * 2_000}, "would take too long"),
        (dict.fromkeys(map(str, range(100_000)), 1), {"unevaluatedProperties": {"type": "integer"}}, "take too long"),
        (
            dict.fromkeys(map(str, range(100_000))),
            {"patternProperties": {f"x{n}": {} for n in range(250)}},
            "would take too long",
        ),
        (
            ["x"] * 100_000,
            {"items": {"$ref": "#/$defs/a" + "/allOf/0" * 60}, "$defs": {"a": BURIED}},
            "would take too long",
        ),
    ],
)
@pytest.mark.parametrize("part", [10, pytest.param(1, marks=pytest.mark.prove)])
def test_no_answer_is_judged_for_long(
    data: Any, schema: dict[str, Any], words: str, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All the steps that an answer may take are seconds; what takes too many is told by a tenth of them as well."""
    if "take too long" in words:
        monkeypatch.setattr(keywords, "MAX_STEPS", MAX_STEPS // part)
    assert refuse_schema(schema) == ""
    began = time.process_time()
    wrong = judge_answer(data, schema)
    assert time.process_time() - began < 20  # seconds: here it takes at most 4
    assert words in wrong
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
        ([2.5, 2.5], {"uniqueItems": True}, False),
        (1.0, {"enum": [1]}, True),
        (True, {"enum": [1]}, False),
        ([False], {"enum": [[0], None]}, False),
        (None, {"enum": [[0], None]}, True),
        ({"a": 1, "b": [2.0]}, {"enum": ["x", {"b": [2], "a": 1}]}, True),
        ("number", {"enum": [["number"]]}, False),
        (
            [[1, 2], [3, 4], [5, 6]],
            {"prefixItems": [{"enum": [[1, 2]]}, {"enum": [[3, 4]]}, {"enum": [[1, 2]]}]},
            False,
        ),
        ({"a": 1.0}, {"const": {"a": 1}}, True),
        (0, {"const": False}, False),
        (
            {"q": "a"},
            {
                **DRAFT_7,
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
