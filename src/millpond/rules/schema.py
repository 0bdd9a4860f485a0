"""The JSON Schema that an answer is asked by: whether it can be asked at all, and whether a value satisfies it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import jsonschema
import referencing
import referencing.exceptions
from jsonschema import validators
from referencing.jsonschema import DRAFT202012

_NO_REMOTE: referencing.Registry[Any] = referencing.Registry()
"""References are looked up in the schema itself; nothing is ever fetched."""

TOO_DEEP = "it is nested too deeply, or refers to itself without end"


def refuse_schema(schema: Mapping[str, Any]) -> str:
    """Say why a schema cannot be asked: it is no JSON Schema, or refers to what does not stand in it; "" if it can."""
    try:
        _validator_class(schema).check_schema(schema)
        resource: referencing.Resource[Any] = referencing.Resource.from_contents(
            schema, default_specification=DRAFT202012
        )
        missing = _missing_reference(resource, _NO_REMOTE.resolver_with_root(resource))
    except jsonschema.SchemaError as error:
        return f"{_where(error)}{error.message}"
    except RecursionError:
        return TOO_DEEP
    return f"the reference {missing!r} is not in the schema, and none is fetched" if missing else ""


def judge_answer(data: Any, schema: Mapping[str, Any]) -> str:
    """Say why a value does not satisfy a schema, naming the place; "" if it does."""
    try:
        validator = _validator_class(schema)(schema, registry=_NO_REMOTE)
        error = next(iter(validator.iter_errors(data)), None)
    except RecursionError:
        return TOO_DEEP
    except referencing.exceptions.Unresolvable as error:
        return f"the reference {error.ref!r} is not in the schema, and none is fetched"
    return f"{_where(error)}{error.message}" if error else ""


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


def _validator_class(schema: Mapping[str, Any]) -> Any:
    """The validator of the draft that the schema names, else of 2020-12."""
    return validators.validator_for(schema, default=jsonschema.Draft202012Validator)


def _missing_reference(resource: referencing.Resource[Any], resolver: Any) -> str:
    """The first reference of a schema, part by part, that cannot be looked up in it; "" if there is none."""
    if isinstance(resource.contents, Mapping):
        reference = cast(Mapping[str, Any], resource.contents).get("$ref")
        try:
            if isinstance(reference, str):
                resolver.lookup(reference)
        except referencing.exceptions.Unresolvable:
            return str(reference)
    parts = (_missing_reference(part, resolver.in_subresource(part)) for part in resource.subresources())
    return next(filter(None, parts), "")


def _where(error: Any) -> str:
    """The place of an error, `at $.items[2].price: `; "" for the whole."""
    return "" if error.json_path == "$" else f"at {error.json_path}: "
