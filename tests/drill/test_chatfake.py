"""What the fault lane takes for a request, and that its answers keep the schema that was asked."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.drill.chatfake import answer_for, chunks, completion, default_answer
from millpond.drill.chatrequest import Refused, check_request
from millpond.drill.least import least

GOOD: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "How many ducks are on the pond?"}]}


def satisfies(value: Any, schema: dict[str, Any]) -> bool:
    """A validator of the simple schemas below, apart from the code under test."""
    if "enum" in schema:
        return value in schema["enum"]
    match schema["type"]:
        case "object":
            known = schema["properties"]
            return (
                isinstance(value, dict)
                and set(schema["required"]) <= set(value) <= set(known)
                and all(satisfies(part, known[name]) for name, part in value.items())
            )
        case "array":
            long_enough = isinstance(value, list) and len(value) >= schema["minItems"]
            return long_enough and all(satisfies(part, schema["items"]) for part in value)
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "number":
            return isinstance(value, int | float) and value > schema["exclusiveMinimum"]
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str) and schema["minLength"] <= len(value) <= schema["maxLength"]
        case kind:
            raise AssertionError(kind)


def objects(parts: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    def chosen(properties: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
        required = st.lists(st.sampled_from(sorted(properties)), unique=True) if properties else st.just([])
        shape = {"type": "object", "properties": properties, "additionalProperties": False}
        return required.map(lambda names: {**shape, "required": names})

    return st.dictionaries(st.text(min_size=1, max_size=4), parts, max_size=4).flatmap(chosen)


SCHEMAS = st.recursive(
    st.one_of(
        st.just({"type": "boolean"}),
        st.lists(st.integers() | st.text(max_size=5), min_size=1, max_size=3).map(lambda options: {"enum": options}),
        st.tuples(st.integers(-50, 50), st.integers(0, 50)).map(
            lambda pair: {"type": "integer", "minimum": pair[0], "maximum": pair[0] + pair[1]}
        ),
        st.integers(-50, 50).map(lambda low: {"type": "number", "exclusiveMinimum": low}),
        st.tuples(st.integers(0, 40), st.integers(0, 40)).map(
            lambda pair: {"type": "string", "minLength": pair[0], "maxLength": pair[0] + pair[1]}
        ),
    ),
    lambda parts: (
        objects(parts)
        | st.tuples(parts, st.integers(0, 3)).map(lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1]})
    ),
    max_leaves=12,
)


@given(SCHEMAS)
def test_the_least_value_satisfies_its_schema(schema: dict[str, Any]) -> None:
    assert satisfies(least(schema, "answer to ab12cd34"), schema)


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("bounds", [(-5, -3), (-1, 1), (-2, 0), (0, 2), (7, 9), (None, -3), (7, None), (None, None)])
def test_numbers_keep_clear_of_bounds_that_are_left_out(kind: str, bounds: tuple[int | None, int | None]) -> None:
    named = zip(("exclusiveMinimum", "exclusiveMaximum"), bounds, strict=True)
    value = least({"type": kind, **{name: bound for name, bound in named if bound is not None}}, "")
    low, high = bounds
    assert low is None or low < value
    assert high is None or value < high
    assert kind == "number" or type(value) is int


def test_references_and_alternatives_are_followed() -> None:
    schema = {
        "$defs": {"Bird": {"type": "object", "properties": {"name": {"const": "duck"}}, "required": ["name"]}},
        "type": "object",
        "properties": {
            "bird": {"$ref": "#/$defs/Bird"},
            "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            "both": {
                "allOf": [{"$ref": "#/$defs/Bird"}, {"properties": {"n": {"type": "integer"}}, "required": ["n"]}]
            },
        },
        "required": ["bird", "note", "both"],
    }
    assert least(schema, "w") == {"bird": {"name": "duck"}, "note": None, "both": {"name": "duck", "n": 0}}


def test_the_answer_follows_from_the_prompt_alone() -> None:
    assert default_answer(GOOD) == default_answer({**GOOD, "stream": True})
    assert default_answer(GOOD) != default_answer({**GOOD, "messages": [{"role": "user", "content": "Other"}]})


def test_usage_is_about_four_characters_a_token() -> None:
    answer = answer_for(GOOD, "x" * 9, fault="ok")
    assert (answer.tokens_in, answer.tokens_out) == (8, 3)
    usage = completion(GOOD, answer, "id")["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (8, 3, 11)


@given(st.text(max_size=60))
def test_the_chunks_of_a_stream_add_up_to_the_answer(text: str) -> None:
    whole = chunks({**GOOD, "stream": True}, answer_for(GOOD, text, fault="ok"), "id")
    assert "".join(one["choices"][0]["delta"].get("content") or "" for one in whole) == text
    assert [one["choices"][0]["finish_reason"] for one in whole] == [None] * (len(whole) - 1) + ["stop"]


def test_usage_comes_in_a_stream_only_if_it_was_asked() -> None:
    answer = answer_for(GOOD, "a b", fault="ok")
    assert all("usage" not in one for one in chunks({**GOOD, "stream": True}, answer, "id"))
    asked = chunks({**GOOD, "stream": True, "stream_options": {"include_usage": True}}, answer, "id")
    assert [one["usage"] is None for one in asked] == [True] * (len(asked) - 1) + [False]
    assert asked[-1]["choices"] == []


def test_an_answer_of_the_wrong_shape_is_json_that_breaks_the_schema() -> None:
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    body = {**GOOD, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}
    assert not satisfies(json.loads(answer_for(body, "{}", fault="bad_schema").text), schema)
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer_for(GOOD, "{}", fault="bad_schema").text)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"model": None}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "duck", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "7"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, "messages[0].content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "pond.png"}}]}]},
            "messages[0].content",
        ),
        ({"temperature": 3}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 1.5}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/$defs/None"}}}]},
            "tools[0].function.parameters",
        ),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "pond"}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_a_strict_server_refuses_is_refused(change: dict[str, Any], param: str) -> None:
    assert check_request(GOOD) is GOOD
    with pytest.raises(Refused) as refused:
        check_request({**GOOD, **change})
    assert refused.value.param == param
