"""The keywords of JSON Schema as answers are judged by them: in bounded time, whatever the schema and the answer say.

An answer is judged in the drainer's loop, so one that takes minutes would stop all others. The library's own keywords
are kept, but for those that match patterns with Python's backtracking `re`, for those that compare values one by one,
and for the one that divides floats; each of them is counted.
Docs: docs/decisions/011-an-answer-is-judged-in-bounded-time.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from typing import Any, cast

from jsonschema import ValidationError, validators

MAX_STEPS = 10_000_000
"""Two to five seconds. An answer needs 6 a character with fifty properties in each of its objects, and 33 if it chooses
among eight kinds of short objects by reference: 300,000 characters of those."""

MAX_PATTERNS = 256
"""So many different ones has a schema, and so many stay compiled: that can take longer than to match them."""

_STEPS_A_WORD = 10
_STEPS_A_REFERENCE = 30  # it is looked up anew each time, part by part
_STEPS_A_VALUE = 4
_CHARS_A_STEP = 64
_KEPT_CHARS_A_STEP = 8
_COMPARISONS_A_STEP = 50

_SURROGATE = re.compile("[\ud800-\udfff]")

_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_QUADRATIC = frozenset({"unevaluatedItems", "unevaluatedProperties"})
"""Keywords by which the library looks for each part of a value in a list of those that were judged."""

_Word = Callable[[Any, Any, Any, Any], Any]


class TooCostly(Exception):
    """Judging went over its steps."""


@dataclass(slots=True)
class _Judging:
    """What one judging has left, and has found out."""

    left: int
    listed: dict[int, frozenset[Any]] = field(default_factory=dict[int, frozenset[Any]])
    """What the values of an enum are, by the `id` of their list, which lives as long as the schema."""

    def spend(self, steps: int) -> None:
        """Take steps from what is left. Raises TooCostly."""
        self.left -= steps
        if self.left < 0:
            raise TooCostly


_judging: ContextVar[_Judging] = ContextVar("the judging at work")


def first_error(validator: Any, data: Any) -> Any:
    """The first error of a validator of a `bounded` class; None if there is none. Raises TooCostly."""
    _judging.set(_Judging(MAX_STEPS))
    return next(iter(validator.iter_errors(data)), None)


@lru_cache
def bounded(base: Any) -> Any:
    """A class of validators of the same draft, whose keywords are those of this room."""
    words = {**base.VALIDATORS, **{name: word for name, word in _OURS.items() if name in base.VALIDATORS}}
    return cast("Any", validators).extend(base, {name: partial(_counted, name, word) for name, word in words.items()})


def refuse_pattern(pattern: str) -> str:
    """Say why a pattern cannot be matched in a time that grows with the text alone; "" if it can."""
    try:
        _compiled(pattern)
    except Exception as problem:  # pydantic_core's SchemaError, whose words end with the engine's own
        return str(problem).rpartition("error: ")[2].strip()
    return ""


def _counted(name: str, word: _Word, validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
    spend = _judging.get().spend
    spend(_STEPS_A_WORD + _size(instance) + (0 if name == "enum" else _size(value)))
    if name in _REFERENCES:
        spend(_STEPS_A_REFERENCE + len(value))
    if name in _QUADRATIC:
        spend(_size(instance) ** 2 // _COMPARISONS_A_STEP)
    for error in word(validator, value, instance, schema) or ():
        # anyOf keeps them all, and each repeats its value.
        spend(_STEPS_A_WORD + len(error.message) // _KEPT_CHARS_A_STEP)
        yield error


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // _CHARS_A_STEP
    return len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0


@lru_cache(MAX_PATTERNS)
def _compiled(pattern: str) -> Callable[[str], bool]:
    # The engine of Rust, which pydantic brings: linear in the text, hence without look-around and back-references.
    from pydantic_core import SchemaValidator, core_schema

    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python


def _matches(pattern: str, text: str) -> bool:
    _judging.get().spend(1 + _size(text))
    return _compiled(pattern)(text if text.isascii() else _SURROGATE.sub("\ufffd", text))


def _pattern(validator: Any, pattern: str, instance: Any, _: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not _matches(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    for pattern, part in patterns.items():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, part, path=name, schema_path=pattern)


def _additional_properties(validator: Any, part: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if not validator.is_type(instance, "object"):
        return
    listed, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, value in instance.items():
        if name in listed or any(_matches(pattern, name) for pattern in patterns):
            continue
        if part is False:
            yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
        else:
            yield from validator.descend(value, part, path=name)


def _unique_items(validator: Any, is_asked: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    if (
        is_asked
        and validator.is_type(instance, "array")
        and len({_identity(item) for item in instance}) < len(instance)
    ):
        yield ValidationError(f"{instance!r} has non-unique elements")


def _enum(_: Any, values: list[Any], instance: Any, __: Any) -> Iterator[ValidationError]:
    listed = _judging.get().listed
    if id(values) not in listed:
        listed[id(values)] = frozenset(map(_identity, values))
    if _identity(instance) not in listed[id(values)]:
        yield ValidationError(f"{instance!r} is not one of {values!r}")


def _const(_: Any, value: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    if _identity(instance) != _identity(value):
        yield ValidationError(f"{value!r} was expected")


def _identity(value: Any) -> Any:
    """What two values have in common where JSON Schema calls them equal: 1 and 1.0 are, 1 and true are not.

    Numbers are texts, since a stranger can write any number of numbers that Python hashes alike.
    """
    _judging.get().spend(_STEPS_A_VALUE + _size(value))
    match value:
        case bool():
            return ("bool", value)
        case int():
            return ("number", hex(value))
        case float():
            return ("number", hex(int(value)) if value.is_integer() else repr(value))
        case list():
            return ("list", *map(_identity, cast("list[Any]", value)))
        case dict():
            return frozenset((name, _identity(item)) for name, item in cast("dict[str, Any]", value).items())
        case _:
            return value


def _multiple_of(validator: Any, factor: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    """JSON's numbers are decimal: 19.99 is a multiple of 0.01, whatever the floats nearest to both may be."""
    if validator.is_type(instance, "number") and _exact(instance) % _exact(factor):
        yield ValidationError(f"{instance!r} is not a multiple of {factor!r}")


def _exact(number: float) -> Fraction:
    """The number that was written, by the shortest digits that are read as it."""
    digits = repr(number)
    _judging.get().spend(_STEPS_A_WORD + len(digits))
    return Fraction(digits)


_OURS: dict[str, _Word] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "enum": _enum,
    "const": _const,
    "multipleOf": _multiple_of,
    "divisibleBy": _multiple_of,
}
