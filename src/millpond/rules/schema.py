"""The JSON Schema that an answer is asked by: whether it can be asked at all, and whether a value satisfies it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

TOO_DEEP = "it is nested too deeply, or refers to itself without end"

MAX_SCHEMA_CHARS = 1_000_000
"""Of its JSON: some 6,000 described properties, which take a second to check. Providers take less than that."""

WORDS_CHARS = 500
"""So much is said of an error: the library repeats the value, which may be a whole answer."""


def refuse_schema(schema: Mapping[str, Any]) -> str:
    """Say why answers cannot be asked by a schema; "" if they can.

    It is no JSON Schema, it refers to what does not stand in it or to itself without end, it is too large, or one of
    its patterns could not be matched in linear time.
    """
    return _read(schema).refusal


def judge_answer(data: Any, schema: Mapping[str, Any]) -> str:
    """Say why a value does not satisfy a schema, naming the place; "" if it does.

    Never raises, and ends soon: an answer was paid for, and its end is written down whatever it is.
    """
    read = _read(schema)
    if read.refusal:
        return read.refusal
    from millpond.rules.keywords import TooCostly, first_error  # loaded with the schema

    try:
        error = first_error(read.validator, data)
        words = f"{_where(error)}{error.message}" if error else ""
    except RecursionError:
        return TOO_DEEP
    except TooCostly:
        return "it would take too long to hold the answer against its schema"
    except Exception as problem:  # the library computes with the answer's numbers, and raises what they make it raise
        words = f"it cannot be held against its schema: {type(problem).__name__}: {problem}"
    return _short(words)


def is_strict(schema: Any) -> bool:
    """Whether OpenAI's strict mode takes a schema as it stands.

    It wants every object to list all its properties as required and to allow no others. Whether a keyword is known
    there is left to the provider, which says so in a 400.
    """
    if isinstance(schema, list):
        return all(is_strict(part) for part in cast(list[Any], schema))
    if not isinstance(schema, Mapping):
        return True
    parts = cast(Mapping[str, Any], schema)
    if parts.get("type") == "object" or "properties" in parts:
        properties = cast(Mapping[str, Any], parts.get("properties") or {})
        if parts.get("additionalProperties") is not False or set(properties) != set(parts.get("required") or ()):
            return False
    return all(
        is_strict(list(cast(Mapping[str, Any], part).values()) if name in _NAMED_PARTS else part)
        for name, part in parts.items()
        if name not in _DATA_KEYWORDS
    )


_NAMED_PARTS = frozenset({"properties", "$defs", "definitions", "patternProperties", "dependentSchemas"})
"""Keywords whose value maps names of the caller's to schemas."""
_DATA_KEYWORDS = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose value is data, not a schema."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A schema made ready to judge by, or why none can be asked by it."""

    refusal: str = ""
    validator: Any = None


def _read(schema: Mapping[str, Any]) -> _Read:
    try:
        text = json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        return _Read(TOO_DEEP)
    except (TypeError, ValueError) as problem:
        return _Read(f"it is no JSON: {problem}")
    if len(text) > MAX_SCHEMA_CHARS:
        return _Read(f"found {len(text):,} characters of JSON, wanted at most {MAX_SCHEMA_CHARS:,}")
    return _read_text(text)


@lru_cache(16)  # Rows mostly share a schema, and to check a small one takes 4 ms, to judge by it 0.01.
def _read_text(text: str) -> _Read:
    from jsonschema import SchemaError

    from millpond.rules.schema_parts import ready

    try:
        return _Read(*ready(text))
    except SchemaError as error:
        return _Read(_short(f"{_where(error)}{error.message}"))
    except RecursionError:
        return _Read(TOO_DEEP)
    except (
        Exception
    ) as problem:  # the libraries read what a stranger wrote; whatever they make of it, it cannot be asked
        return _Read(_short(f"{type(problem).__name__}: {problem}"))


def _short(words: str) -> str:
    """The words without the middle of a value that is long: its place stands before it, what is wrong behind it."""
    return words if len(words) <= WORDS_CHARS else f"{words[: WORDS_CHARS // 2]} … {words[-WORDS_CHARS // 2 :]}"


def _where(error: Any) -> str:
    """The place of an error, `at $.items[2].price: `; "" for the whole."""
    return "" if error.json_path == "$" else f"at {error.json_path}: "
