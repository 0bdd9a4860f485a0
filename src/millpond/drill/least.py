"""The least value that satisfies a JSON Schema: what a fake answers when it is asked for a shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any, cast

Json = dict[str, Any]


def least(schema: Mapping[str, Any], words: str, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """The least value that satisfies a simple JSON Schema; texts say `words`.

    Understood are type, properties, required, items, minItems, enum, const, minimum and maximum (also exclusive),
    minLength, maxLength, anyOf and oneOf (first), allOf (merged), and references into the same document; not `pattern`,
    `format` and `uniqueItems`. A schema that is none raises LookupError, TypeError, ValueError or AttributeError.
    """
    root = root if root is not None else schema
    if depth > 32 or "const" in schema:
        return schema.get("const")
    if schema.get("enum"):
        return schema["enum"][0]
    if reference := schema.get("$ref"):
        return least(_referred(str(reference), root), words, root, depth + 1)
    options: Any = schema.get("anyOf") or schema.get("oneOf")
    if options:
        return least(options[0], words, root, depth + 1)
    if parts := schema.get("allOf"):
        return least(_merged(parts, root), words, root, depth + 1)
    kind: Any = schema.get("type", "object" if "properties" in schema else "string")
    match str(cast(list[Any], kind)[0] if isinstance(kind, list) else kind):
        case "object":
            properties = cast(Json, schema.get("properties", {}))
            wanted = cast(list[str], schema.get("required", []))
            return {name: least(properties.get(name, {}), words, root, depth + 1) for name in wanted}
        case "array":
            items = cast(Json, schema.get("items") or {})
            return [least(items, words, root, depth + 1)] * int(schema.get("minItems", 0))
        case "integer" | "number":
            return _least_number(schema)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return words[: schema.get("maxLength")].ljust(int(schema.get("minLength", 0)), ".")


def _least_number(schema: Mapping[str, Any]) -> int | float:
    """0 if the bounds leave it inside, else a number between them, or 1 beyond the only one."""
    step = 1 if schema.get("type") == "integer" else 0
    lows = [schema.get("minimum"), _moved(schema.get("exclusiveMinimum"), step)]
    highs = [schema.get("maximum"), _moved(schema.get("exclusiveMaximum"), -step)]
    low = max((bound for bound in lows if bound is not None), default=-inf)
    high = min((bound for bound in highs if bound is not None), default=inf)
    if low < 0 < high:
        return 0
    if step:
        return low if low >= 0 else high
    if low == -inf:
        return high - 1
    return low + 1 if high == inf else (low + high) / 2


def _moved(bound: float | None, by: int) -> float | None:
    return None if bound is None else bound + by


def _referred(reference: str, root: Mapping[str, Any]) -> Json:
    found: Any = root
    for step in reference.removeprefix("#").strip("/").split("/"):
        found = found[step] if step else found
    return cast(Json, found)


def _merged(parts: Iterable[Json], root: Mapping[str, Any]) -> Json:
    whole: Json = {"properties": {}, "required": []}
    for part in parts:
        known = _referred(str(part["$ref"]), root) if "$ref" in part else part
        whole["properties"] |= known.get("properties", {})
        whole["required"] += [name for name in known.get("required", []) if name not in whole["required"]]
        whole |= {name: value for name, value in known.items() if name not in ("properties", "required")}
    return whole
