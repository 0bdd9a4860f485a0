"""The keywords of JSON Schema as answers are judged by them: in bounded time, whatever the schema and the answer say.

An answer is judged in the drainer's loop, so one that takes minutes would stop all others. The library's own keywords
are kept, but for those that match patterns with Python's backtracking `re`, and for the one that compares every item
with every other; each of them is counted. Docs: docs/decisions/011-an-answer-is-judged-in-bounded-time.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, cast

from jsonschema import ValidationError, validators

MAX_STEPS = 5_000_000
"""Two or three seconds. An answer of a megabyte with ten properties in each of its objects needs the half of them."""

_STEPS_A_WORD = 10
_STEPS_A_REFERENCE = 80  # it is looked up anew each time
_CHARS_A_STEP = 64

_SURROGATE = re.compile("[\ud800-\udfff]")

_left: ContextVar[list[int]] = ContextVar("steps left")

_Word = Callable[[Any, Any, Any, Any], Any]


class TooCostly(Exception):
    """Judging went over its steps."""


def first_error(validator: Any, data: Any) -> Any:
    """The first error of a validator of a `bounded` class; None if there is none. Raises TooCostly."""
    _left.set([MAX_STEPS])
    return next(iter(validator.iter_errors(data)), None)


@lru_cache
def bounded(base: Any) -> Any:
    """A class of validators of the same draft, whose keywords are those of this room."""
    words = {**base.VALIDATORS, **{name: word for name, word in _OURS.items() if name in base.VALIDATORS}}
    steps = {name: _STEPS_A_REFERENCE if name.endswith("Ref") or name == "$ref" else _STEPS_A_WORD for name in words}
    counted = {name: partial(_counted, word, steps[name]) for name, word in words.items()}
    return cast("Any", validators).extend(base, counted)


def refuse_pattern(pattern: str) -> str:
    """Say why a pattern cannot be matched in a time that grows with the text alone; "" if it can."""
    try:
        _compiled(pattern)
    except Exception as problem:  # pydantic_core's SchemaError, whose words end with the engine's own
        return str(problem).rpartition("error: ")[2].strip()
    return ""


def _counted(word: _Word, steps: int, validator: Any, value: Any, instance: Any, schema: Any) -> Any:
    left = _left.get()
    left[0] -= steps + _size(value) + _size(instance)
    if left[0] < 0:
        raise TooCostly
    return word(validator, value, instance, schema)


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // _CHARS_A_STEP
    return len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0


@lru_cache(256)
def _compiled(pattern: str) -> Callable[[str], bool]:
    # The engine of Rust, which pydantic brings: linear in the text, hence without look-around and back-references.
    from pydantic_core import SchemaValidator, core_schema

    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex")).isinstance_python


def _matches(pattern: str, text: str) -> bool:
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


def _identity(value: Any) -> Any:
    """What two values have in common where JSON Schema calls them equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, list):
        return ("list", *map(_identity, cast("list[Any]", value)))
    if isinstance(value, dict):
        return frozenset((name, _identity(item)) for name, item in cast("dict[str, Any]", value).items())
    return ("bool", value) if isinstance(value, bool) else value


_OURS: dict[str, _Word] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
}
