"""Of which type a column is: what a JSON Schema says of its values, and what the values show.

A kind is what every value of a column has in common. Where they have nothing in common that a typed column can hold,
the kind is `json`: each value then is written as JSON text. Nothing is lost to a type: a whole number too large for a
double never stands among doubles, and a field that an object did not have is never made up as null, unless a schema
says that there is such a field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal, cast

Name = Literal["null", "bool", "int", "long", "whole", "float", "text", "list", "object", "json"]

MAX_DEPTH = 16
MAX_FIELDS = 100
"""What is nested more deeply, or has more fields, is JSON: nobody reads such a type."""

_EXACT_IN_DOUBLE = 2**53
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of values, null always among them.

    Among numbers, `long` are whole ones that a double may not hold exactly, and `whole` are those of which some were
    written as 5.0: JSON Schema takes that for an integer.
    """

    name: Name
    item: Kind | None = None
    """Of a list: the kind of its items."""
    fields: Mapping[str, Kind] | None = None
    """Of an object: its fields by name, in their order."""
    is_exact: bool = True
    """Of an object: whether every one of them had all of the fields."""


NULL, BOOL, INT, LONG, WHOLE, FLOAT, TEXT, JSON = map(
    Kind, ("null", "bool", "int", "long", "whole", "float", "text", "json")
)

_WIDER: Mapping[frozenset[str], Kind] = {
    frozenset({"int", "long"}): LONG,
    frozenset({"int", "whole"}): WHOLE,
    frozenset({"int", "float"}): FLOAT,
    frozenset({"whole", "float"}): FLOAT,
}


def of_value(value: Any, depth: int = 0) -> Kind:
    """The kind of one JSON value."""
    if isinstance(value, bool):
        return BOOL
    if isinstance(value, int):
        if abs(value) <= _EXACT_IN_DOUBLE:
            return INT
        return LONG if -_INT64 <= value < _INT64 else JSON
    if isinstance(value, float):
        return WHOLE if value.is_integer() and abs(value) <= _EXACT_IN_DOUBLE else FLOAT
    if isinstance(value, str):
        return TEXT
    if value is None:
        return NULL
    if depth == MAX_DEPTH:
        return JSON
    if isinstance(value, list):
        items = (of_value(item, depth + 1) for item in cast("list[Any]", value))
        return Kind("list", item=both_of(items))
    if isinstance(value, dict) and 0 < len(cast("dict[str, Any]", value)) <= MAX_FIELDS:
        fields = {name: of_value(item, depth + 1) for name, item in cast("dict[str, Any]", value).items()}
        return Kind("object", fields=fields)
    return JSON


def both(one: Kind, other: Kind) -> Kind:
    """The kind of values of either."""
    if one == other or other.name == "null":
        return one
    if one.name == "null":
        return other
    if one.name == other.name == "list":
        return Kind("list", item=both(one.item or NULL, other.item or NULL))
    if one.name == other.name == "object":
        return _both_objects(one, other)
    return _WIDER.get(frozenset({one.name, other.name}), JSON)


def both_of(kinds: Iterable[Kind]) -> Kind:
    """The kind of values of any of these."""
    return reduce(both, kinds, NULL)


def _both_objects(one: Kind, other: Kind) -> Kind:
    ours, theirs = one.fields or {}, other.fields or {}
    fields = {name: both(ours.get(name, NULL), theirs.get(name, NULL)) for name in {**ours, **theirs}}
    if len(fields) > MAX_FIELDS:
        return JSON
    is_exact = one.is_exact and other.is_exact and ours.keys() == theirs.keys()
    return Kind("object", fields=fields, is_exact=is_exact)


def settle(said: Kind | None, seen: Kind) -> Kind:
    """The kind of a column: what a schema says of it, as long as that holds everything that was seen in it."""
    if said is not None and admits(said, seen):
        return _without_guesses(said)
    return _without_guesses(both(said, seen) if said is not None else seen)


_HELD_TOO: Mapping[Name, tuple[Name, ...]] = {"int": ("long", "whole"), "float": ("int", "whole")}
"""What else a column of numbers holds as it is. A column of integers that has long ones has no whole ones beside."""


def admits(said: Kind, seen: Kind) -> bool:
    """Whether a column of the one kind holds all values of the other as they are."""
    if "json" in (said.name, seen.name):
        return said.name == "json"
    if said.name == seen.name == "list":
        return admits(said.item or NULL, seen.item or NULL)
    if said.name == seen.name == "object":
        known = said.fields or {}
        return all(name in known and admits(known[name], kind) for name, kind in (seen.fields or {}).items())
    return seen.name in ("null", said.name) or seen.name in _HELD_TOO.get(said.name, ())


def _without_guesses(kind: Kind) -> Kind:
    """The kind with JSON for objects that had not all the same fields, and doubles for numbers that nobody named."""
    if kind == WHOLE:
        return FLOAT
    if kind.name == "list":
        return replace(kind, item=_without_guesses(kind.item or NULL))
    if kind.name != "object":
        return kind
    if not kind.is_exact:
        return JSON
    return replace(kind, fields={name: _without_guesses(field) for name, field in (kind.fields or {}).items()})


# What a schema says


def properties(schema: Mapping[str, Any] | None) -> dict[str, Kind] | None:
    """The properties of the objects that a schema asks for, with their kinds; None if it does not list any."""
    if schema is None:
        return None
    whole = _referred(schema, schema)
    listed = whole.get("properties") if whole is not None else None
    kind: Any = (whole or {}).get("type", "object")
    if not isinstance(listed, Mapping) or not listed or "object" not in (kind if isinstance(kind, list) else [kind]):
        return None
    return {name: of_schema(part, schema) for name, part in cast("Mapping[str, Any]", listed).items()}


def of_schema(part: Any, root: Mapping[str, Any], depth: int = 0) -> Kind:
    """The kind of the values that a part of a schema admits; `json` where it does not say."""
    part = _referred(part, root)
    if part is None or depth > MAX_DEPTH:
        return JSON
    if "const" in part:
        return of_value(part["const"])
    if isinstance(part.get("enum"), list):
        return both_of(map(of_value, part["enum"]))
    for words in ("anyOf", "oneOf", "allOf"):
        choices: Any = part.get(words)
        if isinstance(choices, list) and choices:
            if words == "allOf" and len(cast("list[Any]", choices)) > 1:
                return JSON
            return both_of(of_schema(choice, root, depth + 1) for choice in cast("list[Any]", choices))
    if isinstance(part.get("type"), list):
        return both_of(of_schema({**part, "type": one}, root, depth + 1) for one in part["type"])
    return _of_type(part, root, depth)


_OF_TYPE: Mapping[Any, Kind] = {"string": TEXT, "integer": INT, "number": FLOAT, "boolean": BOOL, "null": NULL}


def _of_type(part: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Kind:
    kind = part.get("type")
    if kind == "array" and isinstance(part.get("items"), Mapping) and "prefixItems" not in part:
        return Kind("list", item=of_schema(part["items"], root, depth + 1))
    if kind == "object":
        listed: Any = part.get("properties")
        # An object that may have more than is listed has no type: a column of it would lose the rest.
        if (
            isinstance(listed, Mapping)
            and part.get("additionalProperties") is False
            and "patternProperties" not in part
        ):
            fields = cast("Mapping[str, Any]", listed)
            if 0 < len(fields) <= MAX_FIELDS:
                return Kind("object", fields={name: of_schema(one, root, depth + 1) for name, one in fields.items()})
        return JSON
    return _OF_TYPE.get(kind, JSON) if isinstance(kind, str) else JSON


def _referred(part: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part, or what it refers to within the schema; None if it is none, or leads nowhere."""
    for _ in range(MAX_DEPTH):
        if not isinstance(part, Mapping):
            return None
        reference = cast("Mapping[str, Any]", part).get("$ref")
        if not isinstance(reference, str):
            return cast("Mapping[str, Any]", part)
        if not reference.startswith("#"):
            return None
        part = root
        for step in filter(None, reference[1:].split("/")):
            name = step.replace("~1", "/").replace("~0", "~")
            part = cast("Mapping[str, Any]", part).get(name) if isinstance(part, Mapping) else None
    return None
