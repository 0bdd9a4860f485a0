"""The JSON Schema that an answer is asked by: whether it can be asked at all, and whether a value satisfies it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import jsonschema
import referencing
import referencing.exceptions
from jsonschema import validators
from referencing.jsonschema import DRAFT3, specification_with

from millpond.rules.keywords import MAX_PATTERNS, TooCostly, bounded, first_error, refuse_pattern

_NO_REMOTE: referencing.Registry[Any] = referencing.Registry()
"""References are looked up in the schema itself; nothing is ever fetched."""

_NO_FORMATS = jsonschema.FormatChecker(formats=())
"""Patterns are judged by the engine that matches them: Python's would refuse what others know."""

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


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a schema that is a schema itself, with what its references are looked up by."""

    contents: Any
    specification: Any
    resolver: Any

    @property
    def says(self) -> dict[str, Any]:
        """Its keywords; none where it is true or false."""
        return cast("dict[str, Any]", self.contents) if isinstance(self.contents, dict) else {}

    @property
    def extended(self) -> list[Any]:
        """What draft 3 calls `extends`, one schema or a list of them; the walk of the library knows the list alone."""
        extended: Any = self.says.get("extends", []) if self.specification is DRAFT3 else []
        return cast("list[Any]", extended) if isinstance(extended, list) else [extended]

    def under(self, *parts: Any) -> Iterator[_Part]:
        """Those of the parts in this one that are schemas: `dependencies` holds names too."""
        for contents in parts:
            if isinstance(contents, dict | bool):
                resource = self.specification.create_resource(contents)
                yield _Part(contents, self.specification, self.resolver.in_subresource(resource))

    def standing(self) -> Iterator[_Part]:
        """All parts that stand in this one."""
        found = self.specification.create_resource(self.contents).subresources()
        yield from self.under(*(resource.contents for resource in found), *self.extended)

    def referred(self) -> Iterator[tuple[str, _Part | None]]:
        """Its references, each with the part that it leads to; None if there is none."""
        for word in ("$ref", "$dynamicRef", "$recursiveRef"):
            if isinstance(reference := self.says.get(word), str):
                try:
                    found = self.resolver.lookup(reference)
                except referencing.exceptions.Unresolvable:
                    yield reference, None
                else:
                    yield reference, _Part(found.contents, self.specification, found.resolver)

    def in_place(self) -> Iterator[tuple[str, _Part]]:
        """The parts that judge the very value that this one judges, by a reference or, "", as they stand in it."""
        for reference, part in self.referred():
            if part is not None:
                yield reference, part
        contents = [*self.extended, *(self.says.get(word) for word in ("not", "if", "then", "else"))]
        for word in ("allOf", "anyOf", "oneOf"):
            contents += cast("list[Any]", self.says.get(word) or ())
        for word in ("dependentSchemas", "dependencies"):
            contents += cast("dict[str, Any]", self.says.get(word) or {}).values()
        for part in self.under(*contents):
            yield "", part


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
    try:
        schema: Any = json.loads(text)
        draft: Any = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
        draft.check_schema(schema, format_checker=_NO_FORMATS)
        parts = list(_parts(schema, draft))
        if refusal := next(_faults(parts), ""):
            return _Read(refusal)
        for part in parts:  # the library would judge what names a draft by its own keywords again
            part.says.pop("$schema", None)
        return _Read(validator=bounded(draft)(schema, registry=_NO_REMOTE))
    except jsonschema.SchemaError as error:
        return _Read(_short(f"{_where(error)}{error.message}"))
    except RecursionError:
        return _Read(TOO_DEEP)
    except (
        Exception
    ) as problem:  # the libraries read what a stranger wrote; whatever they make of it, it cannot be asked
        return _Read(_short(f"{type(problem).__name__}: {problem}"))


def _parts(schema: Any, draft: Any) -> Iterator[_Part]:
    """Every part of a schema once, the whole first, also those that only a reference tells to be one."""
    specification: Any = specification_with(draft.META_SCHEMA["$schema"])
    resolver = _NO_REMOTE.resolver_with_root(specification.create_resource(schema))
    ahead = [_Part(schema, specification, resolver)]
    met: set[int] = set()
    while ahead:
        part = ahead.pop()
        if id(part.contents) in met or not part.says:
            continue
        met.add(id(part.contents))
        yield part
        ahead += [there for _, there in part.referred() if there is not None]
        ahead += part.standing()


def _faults(parts: list[_Part]) -> Iterator[str]:
    """Why a schema cannot be asked, part by part."""
    patterns: set[str] = set()
    for part in parts:
        for reference, there in part.referred():
            if there is None:
                yield f"the reference {reference!r} is not in the schema, and none is fetched"
        by_name = cast("Mapping[str, Any]", part.says.get("patternProperties") or {})
        for pattern in [part.says.get("pattern"), *by_name]:
            if not isinstance(pattern, str) or pattern in patterns:
                continue
            patterns.add(pattern)
            if len(patterns) > MAX_PATTERNS:
                yield f"it has more than {MAX_PATTERNS} different patterns, which is the most that are judged by"
            elif why := refuse_pattern(pattern):
                yield f"the pattern {pattern[:80]!r} cannot be matched in linear time: {why}"
    if all(any(word in part.says for part in parts) for word in ("unevaluatedProperties", "patternProperties")):
        yield "unevaluatedProperties beside patternProperties is not judged here; list the properties"
    ends: dict[int, bool] = {}
    for part in parts:
        if (reference := _endless(part, ends)) is not None:
            yield f"the reference {reference!r} leads back to where it stands without end"


def _endless(part: _Part, ends: dict[int, bool]) -> str | None:
    """A reference by which judging one value comes back to this part; None if there is none.

    `ends` holds the parts that were met: whether all that follows is known, or they are on the way here.
    """
    here = id(part.contents)
    if here in ends:
        return None if ends[here] else ""
    ends[here] = False
    for reference, there in part.in_place():
        if there.says and (found := _endless(there, ends)) is not None:
            return found or reference
    ends[here] = True
    return None


def _short(words: str) -> str:
    """The words without the middle of a value that is long: its place stands before it, what is wrong behind it."""
    return words if len(words) <= WORDS_CHARS else f"{words[: WORDS_CHARS // 2]} … {words[-WORDS_CHARS // 2 :]}"


def _where(error: Any) -> str:
    """The place of an error, `at $.items[2].price: `; "" for the whole."""
    return "" if error.json_path == "$" else f"at {error.json_path}: "
