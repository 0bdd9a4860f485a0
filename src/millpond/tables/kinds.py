"""Of which type a column is: what a JSON Schema says of its values, and what the values show.

A kind is what every value of a column has in common. Where they have nothing in common that a typed column can hold,
the kind is `json`: each value then is written as JSON text. Nothing is lost to a type: a whole number too large for a
double never stands among doubles, and a field that an object did not have is never made up as null, unless a schema
says that there is such a field.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Literal, TypeAlias, cast

Name = Literal["null", "bool", "int", "long", "whole", "float", "text", "json"]

MAX_DEPTH = 16
MAX_FIELDS = 100
"""What is nested more deeply, or has more fields, is JSON: nobody reads such a type."""

SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which UTF-8 cannot hold."""

_EXACT_IN_DOUBLE = 2**53
_INT64 = 2**63


@dataclass(frozen=True, slots=True)
class ScalarKind:
    """A type of values without parts, or of any values as JSON text; null always among them.

    Among numbers, `long` are whole ones that a double may not hold exactly, and `whole` are those of which some were
    written as 5.0: JSON Schema takes that for an integer.
    """

    name: Name


@dataclass(frozen=True, slots=True)
class ListKind:
    """A type of lists, by the kind of their items; null among them."""

    item: Kind


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A type of objects, by the kinds of their fields in their order; null among them."""

    fields: Mapping[str, Kind]
    is_exact: bool = True
    """Whether every one of them had all of the fields."""


Kind: TypeAlias = ScalarKind | ListKind | ObjectKind

NULL, BOOL, INT, LONG, WHOLE, FLOAT, TEXT, JSON = map(
    ScalarKind, ("null", "bool", "int", "long", "whole", "float", "text", "json")
)

_WIDER: Mapping[frozenset[Kind], Kind] = {
    frozenset({INT, LONG}): LONG,
    frozenset({INT, WHOLE}): WHOLE,
    frozenset({INT, FLOAT}): FLOAT,
    frozenset({WHOLE, FLOAT}): FLOAT,
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
        return ListKind(both_of(items))
    if isinstance(value, dict) and _can_be_fields(cast("dict[str, Any]", value)):
        return ObjectKind({name: of_value(item, depth + 1) for name, item in cast("dict[str, Any]", value).items()})
    return JSON


def _can_be_fields(names: Iterable[str]) -> bool:
    """Whether these can be the names of the fields of a type: some, not too many, and each one that UTF-8 can hold."""
    several = list(names)
    return 0 < len(several) <= MAX_FIELDS and not any(map(SURROGATE.search, several))


def both(one: Kind, other: Kind) -> Kind:
    """The kind of values of either."""
    if one == other or other == NULL:
        return one
    match one, other:
        case ScalarKind("null"), _:
            return other
        case ListKind(ours), ListKind(theirs):
            return ListKind(both(ours, theirs))
        case ObjectKind(), ObjectKind():
            return _both_objects(one, other)
        case ScalarKind(), ScalarKind():
            return _WIDER.get(frozenset({one, other}), JSON)
        case _:
            return JSON


def both_of(kinds: Iterable[Kind]) -> Kind:
    """The kind of values of any of these."""
    return reduce(both, kinds, NULL)


def _both_objects(one: ObjectKind, other: ObjectKind) -> Kind:
    fields = {
        name: both(one.fields.get(name, NULL), other.fields.get(name, NULL)) for name in {**one.fields, **other.fields}
    }
    if len(fields) > MAX_FIELDS:
        return JSON
    return ObjectKind(fields, one.is_exact and other.is_exact and one.fields.keys() == other.fields.keys())


def kind_of_column(said: Kind | None, seen: Kind) -> Kind:
    """The kind of a column: what a schema says of it, as long as that holds everything that was seen in it."""
    if said is not None and admits(said, seen):
        return _without_guesses(said)
    return _without_guesses(both(said, seen) if said is not None else seen)


_HELD_TOO: Mapping[Kind, tuple[Kind, ...]] = {INT: (LONG, WHOLE), FLOAT: (INT, WHOLE)}
"""What else a column of numbers holds as it is. A column of integers that has long ones has no whole ones beside."""


def admits(said: Kind, seen: Kind) -> bool:
    """Whether a column of the one kind holds all values of the other as they are."""
    if JSON in (said, seen):
        return said == JSON
    match said, seen:
        case _, ScalarKind("null"):
            return True
        case ListKind(known), ListKind(item):
            return admits(known, item)
        case ObjectKind(known), ObjectKind(fields):
            return all(name in known and admits(known[name], field) for name, field in fields.items())
        case ScalarKind(), ScalarKind():
            return seen == said or seen in _HELD_TOO.get(said, ())
        case _:
            return False


def _without_guesses(kind: Kind) -> Kind:
    """The kind with JSON for objects that had not all the same fields, and doubles for numbers that nobody named."""
    match kind:
        case ListKind(item):
            return ListKind(_without_guesses(item))
        case ObjectKind(fields):
            return ObjectKind({name: _without_guesses(one) for name, one in fields.items()}) if kind.is_exact else JSON
        case ScalarKind():
            return FLOAT if kind == WHOLE else kind


# What a schema says


def properties(schema: Mapping[str, Any] | None) -> dict[str, Kind] | None:
    """The properties of the objects that a schema asks for, with their kinds; None if it does not list any."""
    return _properties(schema, schema, {}, set()) or None if schema is not None else None


_Known = dict[tuple[int, int], "Kind"]
"""Part of a schema, by its identity and depth -> its kind: parts may refer to each other in any number of ways."""


def _properties(part: Any, root: Mapping[str, Any], known: _Known, met: set[int]) -> dict[str, Kind]:
    """The properties that a part lists for the whole value: its own, then those of the parts that are all asked."""
    whole = _referred(part, root)
    kind: Any = (whole or {}).get("type", "object")
    if whole is None or id(whole) in met or "object" not in (kind if isinstance(kind, list) else [kind]):
        return {}
    met.add(id(whole))
    own: Any = whole.get("properties")
    own = cast("Mapping[str, Any]", own) if isinstance(own, Mapping) else {}
    listed = {name: of_schema(one, root, 0, known) for name, one in own.items()}
    every: Any = whole.get("allOf")
    for one in cast("list[Any]", every) if isinstance(every, list) else []:
        for name, said in _properties(one, root, known, met).items():
            listed[name] = said if listed.get(name, JSON) == JSON else listed[name]
    return listed


def of_schema(part: Any, root: Mapping[str, Any], depth: int = 0, known: _Known | None = None) -> Kind:
    """The kind of the values that a part of a schema admits; `json` where it does not say."""
    part = _referred(part, root)
    if part is None or depth > MAX_DEPTH:
        return JSON
    known = {} if known is None else known
    here = (id(part), depth)
    if here not in known:
        known[here] = _of_part(part, root, depth, known)
    return known[here]


def _of_part(part: Mapping[str, Any], root: Mapping[str, Any], depth: int, known: _Known) -> Kind:
    if "const" in part:
        return of_value(part["const"])
    if isinstance(part.get("enum"), list):
        return both_of(map(of_value, part["enum"]))
    for words in ("anyOf", "oneOf", "allOf"):
        choices: Any = part.get(words)
        if isinstance(choices, list) and choices:
            if words == "allOf" and len(cast("list[Any]", choices)) > 1:
                return JSON
            return both_of(of_schema(choice, root, depth + 1, known) for choice in cast("list[Any]", choices))
    kinds: Any = part.get("type")
    several = cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]
    return both_of(_of_type(one, part, root, depth, known) for one in several)


_OF_TYPE: Mapping[Any, Kind] = {"string": TEXT, "integer": INT, "number": FLOAT, "boolean": BOOL, "null": NULL}


def _of_type(kind: Any, part: Mapping[str, Any], root: Mapping[str, Any], depth: int, known: _Known) -> Kind:
    if kind == "array" and isinstance(part.get("items"), Mapping) and "prefixItems" not in part:
        return ListKind(of_schema(part["items"], root, depth + 1, known))
    if kind == "object":
        listed: Any = part.get("properties")
        # An object that may have more than is listed has no type: a column of it would lose the rest.
        if (
            isinstance(listed, Mapping)
            and part.get("additionalProperties") is False
            and "patternProperties" not in part
        ):
            fields = cast("Mapping[str, Any]", listed)
            if _can_be_fields(fields):
                return ObjectKind({name: of_schema(one, root, depth + 1, known) for name, one in fields.items()})
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
