"""Of which type a column is: what schemas say of it, what values show, and where nothing but JSON holds them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.tables.kinds import (
    BOOL,
    FLOAT,
    INT,
    JSON,
    LONG,
    NULL,
    TEXT,
    Kind,
    ListKind,
    ObjectKind,
    both,
    both_of,
    kind_of_column,
    of_schema,
    of_value,
    properties,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


def listed(item: Kind) -> Kind:
    return ListKind(item)


def shaped(**fields: Kind) -> Kind:
    return ObjectKind(fields)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], NULL),
        ([None], NULL),
        ([True, None], BOOL),
        ([1, 2**53], INT),
        ([1, 2**53 + 1], LONG),
        ([-(2**63), 2**63 - 1], LONG),
        ([2**63], JSON),
        ([1, 0.5], FLOAT),
        ([1, 2.0], FLOAT),
        ([2.0, 0.5], FLOAT),
        ([2**53 + 1, 2.0], JSON),
        ([2**53 + 1, 0.5], JSON),
        ([True, 1], JSON),
        (["a", 1], JSON),
        ([[], [1], [None]], listed(INT)),
        ([[1], ["a"]], listed(JSON)),
        ([[1], 1], JSON),
        ([{"a": 1, "b": "x"}, {"b": None, "a": 2}], shaped(a=INT, b=TEXT)),
        ([{"a": 1}, {"a": 1, "b": 2}], JSON),
        ([[{"a": 1}], [{"b": 2}]], listed(JSON)),
        ([{}], JSON),
        ([{str(n): n for n in range(101)}], JSON),
    ],
)
def test_values_show_the_kind_that_holds_them_all(values: list[Any], kind: Kind) -> None:
    assert kind_of_column(None, both_of(map(of_value, values))) == kind


@given(VALUES, VALUES, VALUES)
def test_the_order_of_values_is_no_matter(a: Any, b: Any, c: Any) -> None:
    a, b, c = map(of_value, (a, b, c))
    assert kind_of_column(None, both(a, b)) == kind_of_column(None, both(b, a))
    assert kind_of_column(None, both(both(a, b), c)) == kind_of_column(None, both(a, both(b, c)))
    assert both(a, a) == a


PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}}
SCHEMAS: list[tuple[Any, Kind]] = [
    ({"type": "string"}, TEXT),
    ({"type": "integer"}, INT),
    ({"type": "number"}, FLOAT),
    ({"type": "boolean"}, BOOL),
    ({"type": ["integer", "null"]}, INT),
    ({"anyOf": [{"type": "number"}, {"type": "null"}]}, FLOAT),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, FLOAT),
    ({"anyOf": [{"type": "string"}, {"type": "number"}]}, JSON),
    ({"enum": ["a", "b", None]}, TEXT),
    ({"const": 3}, INT),
    ({"type": "array", "items": {"type": "number"}}, listed(FLOAT)),
    ({"type": "array"}, JSON),
    ({"type": "array", "items": {"type": "string"}, "prefixItems": [{"type": "number"}]}, JSON),
    (PERSON, JSON),
    ({**PERSON, "additionalProperties": False}, shaped(name=TEXT, age=INT)),
    ({"allOf": [{"$ref": "#/$defs/Mood"}]}, TEXT),
    ({"$ref": "#/$defs/Mood"}, TEXT),
    ({"$ref": "#/$defs/gone"}, JSON),
    ({"$ref": "https://example.org/schema"}, JSON),
    ({"$ref": "#/$defs/Self"}, JSON),
    ({}, JSON),
    (True, JSON),
    ({"type": "strange"}, JSON),
]  # fmt: skip
ROOT = {"$defs": {"Mood": {"type": "string"}, "Self": {"$ref": "#/$defs/Self"}}}


@pytest.mark.parametrize(("schema", "kind"), SCHEMAS)
def test_a_schema_says_the_kind(schema: Any, kind: Kind) -> None:
    assert of_schema(schema, ROOT) == kind


@pytest.mark.parametrize("word", ["anyOf", "allOf"])
def test_parts_that_refer_to_each_other_in_many_ways_are_read_once(word: str) -> None:
    steps = {f"d{n}": {word: [{"$ref": f"#/$defs/d{n + 1}"}] * 8} for n in range(16)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**steps, "d16": PERSON}, "properties": {"a": {"$ref": "#/$defs/d0"}}}
    assert properties(schema) == ({"name": TEXT, "age": INT} if word == "allOf" else None)
    assert of_schema({"$ref": "#/$defs/d0"}, schema) == JSON


def test_a_schema_that_contains_itself_ends_in_json() -> None:
    node = {"type": "object", "additionalProperties": False, "properties": {"next": {"$ref": "#"}}}
    assert isinstance(kind_of_column(of_schema(node, node), NULL), ObjectKind)


def test_properties_are_those_that_an_object_lists() -> None:
    assert properties({"properties": {"b": {"type": "integer"}, "a": {}}}) == {"b": INT, "a": JSON}
    assert list(properties({"properties": {"b": {}, "a": {}}}) or ()) == ["b", "a"]
    assert properties({"$ref": "#/$defs/P", "$defs": {"P": PERSON}}) == {"name": TEXT, "age": INT}
    assert properties({**PERSON, "type": ["object", "null"]}) == {"name": TEXT, "age": INT}
    assert properties({"allOf": [PERSON, {"properties": {"legs": {"type": "integer"}}}]}) == {
        "name": TEXT, "age": INT, "legs": INT,
    }  # fmt: skip
    assert properties({"properties": {"age": {}}, "allOf": [{"$ref": "#/$defs/P"}], "$defs": {"P": PERSON}}) == {
        "age": INT, "name": TEXT,
    }  # fmt: skip
    assert properties({"allOf": [{"$ref": "#"}, {"type": "string", "properties": {"a": {}}}]}) is None
    for schema in (None, {}, {"type": "object"}, {"type": "array", "items": PERSON}, {"anyOf": [PERSON]}):
        assert properties(schema) is None


@pytest.mark.parametrize(
    ("said", "seen", "kind"),
    [
        (INT, [1, None], INT),
        (INT, [2**60], INT),
        (INT, [1, 2.0, None], INT),
        (INT, [1, 2.5], FLOAT),
        (INT, [2.0, 2**60], JSON),
        (listed(INT), [[2.0]], listed(INT)),
        (FLOAT, [1, 2.0, 0.5], FLOAT),
        (INT, [2**64], JSON),
        (FLOAT, [1, 2], FLOAT),
        (FLOAT, [2**60], JSON),
        (BOOL, [], BOOL),
        (TEXT, ["a", 1], JSON),
        (listed(FLOAT), [[1], None], listed(FLOAT)),
        (shaped(a=INT, b=TEXT), [{"a": 1}, {"b": "x"}], shaped(a=INT, b=TEXT)),
        (shaped(a=INT), [{"a": 1, "c": 2}], JSON),
        (shaped(a=INT), [{str(n): n for n in range(101)}], JSON),
        (JSON, [1], JSON),
    ],
)
def test_a_schema_counts_as_long_as_it_holds_what_was_seen(said: Kind, seen: list[Any], kind: Kind) -> None:
    assert kind_of_column(said, both_of(map(of_value, seen))) == kind
