"""A JSON Schema made ready to judge by: its parts, where its references lead, and why none can be asked by it.

It loads jsonschema, which most programs do without: it is imported once a schema is met.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import jsonschema
import referencing
import referencing.exceptions
from jsonschema import validators
from referencing.jsonschema import DRAFT3, specification_with

from millpond.rules.keywords import MAX_PATTERNS, bounded, refuse_pattern

_NO_REMOTE: referencing.Registry[Any] = referencing.Registry()
"""References are looked up in the schema itself; nothing is ever fetched."""

_NO_FORMATS = jsonschema.FormatChecker(formats=())
"""Patterns are judged by the engine that matches them: Python's would refuse what others know."""


def ready(text: str) -> tuple[str, Any]:
    """Read the JSON of a schema: (why answers cannot be asked by it, None) or ("", a validator that is `bounded`).

    Raises SchemaError where it is none, RecursionError, and whatever the libraries make of what a stranger wrote.
    """
    schema: Any = json.loads(text)
    draft: Any = validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    draft.check_schema(schema, format_checker=_NO_FORMATS)
    parts = list(_parts(schema, draft))
    if refusal := next(_faults(parts), ""):
        return refusal, None
    for part in parts:  # the library would judge what names a draft by its own keywords again
        part.says.pop("$schema", None)
    return "", bounded(draft)(schema, registry=_NO_REMOTE)


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
