"""What is wrong with the settings, in one line each: where, which key, what was found, what was wanted, what to do."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from millpond.settings.said import Key, Origin, dotted
from millpond.settings.shape import KINDS, Figures, File, Lane

OTHER_WORDS = {
    "api_key": "key_env",
    "key": "key_env",
    "token": "key_env",
    "url": "base_url",
    "endpoint": "base_url",
    "host": "base_url",
    "concurrency": "max_in_flight",
    "parallel": "max_in_flight",
    "workers": "max_in_flight",
    "retries": "max_attempts",
    "max_retries": "max_attempts",
    "type": "kind",
    "provider": "kind",
    "timeout": "soft_timeout_s",
    "budget": "caps",
}
"""What other programs call our keys."""

PRIVATE = frozenset({"headers", "key_env", "proxy", "path", "params"})
"""Keys whose values may hold a secret; they are never repeated in a message."""

KIND_NEEDS = {"chat": "base_url", "command": "command", "python": "target"}
KIND_EXAMPLES = {
    "base_url": "http://127.0.0.1:11434/v1",
    "command": "[llm, --no-stream]",
    "target": "my_module:my_callable",
}


def shape_faults(fault: ValidationError, origins: Mapping[Key, Origin]) -> list[str]:
    """One line for each thing that does not have the shape of the file."""
    return [_place(_key(error), origins) + _sentence(error) for error in fault.errors(include_url=False)]


def sense_faults(file: File, origins: Mapping[Key, Origin]) -> list[str]:
    """One line for each thing that has the right shape and makes no sense: unknown lanes, missing halves."""
    return [_place(key, origins) + sentence for key, sentence in _senseless(file)]


def nearest(name: str, known: list[str]) -> str:
    """The known name that was probably meant, or ""."""
    return next(iter(get_close_matches(name, known, n=1, cutoff=0.6)), "")


# --- shape -----------------------------------------------------------------------------------------------------------


def _key(error: ErrorDetails) -> Key:
    """pydantic's location without the names of union members and its mark for the key of a mapping."""
    return tuple(part for part in error["loc"] if not (isinstance(part, str) and part[:1] + part[-1:] in ("<>", "[]")))


def _place(key: Key, origins: Mapping[Key, Origin]) -> str:
    origin = next((origins[key[:end]] for end in range(len(key), 0, -1) if key[:end] in origins), None)
    return _printable(f"{origin.text + ': ' if origin else ''}{dotted(key)}: ")


def _sentence(error: ErrorDetails) -> str:
    key, context = _key(error), error.get("ctx", {})
    if error["type"] == "extra_forbidden":
        return _unknown_key(key)
    if error["type"] == "missing":
        return f"missing; such as {key[-1]}: {_example(key, 'a number')}"
    wish = _wish(error["type"], error["msg"], context)
    return f"found {_found(error['input'], key)}, wanted {wish}{_next(wish, error['input'], key)}"


def _wish(kind: str, message: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "wanted":
            wish = message
        case "greater_than_equal":
            wish = f"{context['ge']:.12g} or more"
        case "greater_than":
            wish = f"more than {context['gt']:.12g}"
        case "less_than_equal":
            wish = f"{context['le']:.12g} or less"
        case "literal_error":
            wish = str(context["expected"]).replace("'", "")
        case "too_short":
            wish = "one or more"
        case "string_type":
            wish = "text"
        case "list_type":
            wish = "a list"
        case "dict_type" | "model_type" | "mapping_type":
            wish = "a mapping of keys to values"
        case _ if kind.startswith("int"):
            wish = "a whole number"
        case _ if kind.startswith("bool"):
            wish = "true or false"
        case _ if kind.startswith(("float", "decimal", "finite")):
            wish = "a number"
        case _:
            wish = message[:1].lower() + message[1:]
    return wish


def _found(value: Any, key: Key) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str() if PRIVATE & set(key) or "@" in value:
            return "text"
        case str():
            return _printable(repr(value if len(value) <= 40 else value[:40] + "…"))
        case list() | tuple():
            return "a list" if value else "an empty list"
        case dict():
            return "a mapping"
        case _ if PRIVATE & set(key):
            return "a number"
        case _:
            return _printable(str(value)[:40])


def _next(wish: str, value: Any, key: Key) -> str:
    name = next((part for part in reversed(key) if isinstance(part, str)), "")
    if wish == "text":
        return "" if isinstance(value, (list, dict)) else "; put it in quotes"
    if wish == "a list" and isinstance(value, str) and not PRIVATE & set(key):
        return f"; write {name}: [{_printable(value[:40])}]"
    if wish in ("a number", "a whole number", "true or false"):
        return f"; such as {name}: {_example(key, wish)}"
    if wish.startswith("a mapping"):
        return f"; such as {name}: {{{', '.join(f'{known}: …' for known in _known_keys(key)[:2]) or 'name: …'}}}"
    choices = wish.replace(" or ", ", ").split(", ")
    if isinstance(value, str) and (meant := nearest(value, choices)):
        return f"; did you mean {meant}?"
    return ""


def _unknown_key(key: Key) -> str:
    name, known = str(key[-1]), _known_keys(key[:-1])
    meant = OTHER_WORDS.get(name.lower(), "")
    meant = meant if meant in known else nearest(name.lower(), known)
    if meant == "key_env" and name.lower() in OTHER_WORDS:
        return "unknown key; name the environment variable that holds it under key_env, keys never stand in files"
    if meant:
        return f"unknown key; did you mean {meant}?"
    elsewhere = [dotted(at) for at in _all_keys(File, ()) if at[-1] == name]
    if elsewhere:
        return f"unknown key here; did you mean {elsewhere[0]}?"
    if len(known) <= 8:
        return f"unknown key; known are {', '.join(known)}"
    return "unknown key; `millpond config schema` lists all"


def _example(key: Key, wish: str) -> str:
    section = _section_at(key[:-1])
    field = section.model_fields.get(str(key[-1])) if section else None
    default = field.default if field else None
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, (int, float)):
        return f"{default:g}"
    return {"true or false": "true", "a whole number": "100"}.get(wish, "30" if str(key[-1]).endswith("_s") else "5")


def _known_keys(key: Key) -> list[str]:
    section = _section_at(key)
    return list(section.model_fields) if section else []


def _section_at(key: Key) -> type[BaseModel] | None:
    """The section of the file that a key leads to, if it leads to one."""
    section: type[BaseModel] | None = File
    parts = iter(key)
    for part in parts:
        field = section.model_fields.get(str(part)) if section else None
        section = next(_sections_in(field.annotation), None) if field else None
        if field and section and _names_of_its_own(field.annotation) and next(parts, None) is None:
            return None  # the name of a lane or a cap is still to come
    return section


def _sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _sections_in(inner)


def _names_of_its_own(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is dict


def _all_keys(section: type[BaseModel], at: Key) -> Iterator[Key]:
    for name, field in section.model_fields.items():
        here: Key = (*at, name)
        yield here
        for inner in _sections_in(field.annotation):
            yield from _all_keys(inner, (*here, "NAME") if _names_of_its_own(field.annotation) else here)


def _printable(text: str) -> str:
    """One line without control characters, whatever a key or a value was."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


# --- sense -----------------------------------------------------------------------------------------------------------


def _senseless(file: File) -> Iterator[tuple[Key, str]]:
    lanes = list(file.lanes)
    for name, lane in file.lanes.items():
        yield from _senseless_lane(("lanes", name), lane)
    for route, names in file.routing.items():
        for place, name in enumerate(names):
            if name not in lanes:
                yield ("routing", route, place), _unknown_lane(name, lanes, "configured lanes")
    for name in file.caps:
        if name not in (known := ["all", *lanes, "free", "paid"]):
            yield ("caps", name), _unknown_lane(name, known, "a cap is for all, a lane or a tier; known")
    path = file.queue.path or ""
    if "://" in path and not path.startswith(("postgresql://", "postgres://")):
        yield ("queue", "path"), "found an address of another kind, wanted a file or postgresql://…"
    if "://" in (file.spend.path or ""):
        yield ("spend", "path"), "found an address, wanted a file; on PostgreSQL the spend book stands beside the queue"


def _senseless_lane(at: Key, lane: Lane) -> Iterator[tuple[Key, str]]:
    if lane.kind and lane.kind not in KINDS and lane.kind not in (plugins := _plugin_kinds()):
        known = [*KINDS, *plugins]
        meant = nearest(lane.kind, known)
        hint = f"did you mean {meant}?" if meant else f"known are {', '.join(known)}, and those of installed plugins"
        yield (*at, "kind"), f"unknown kind {_found(lane.kind, at)}; {hint}"
    needed = KIND_NEEDS.get(lane.kind, "")
    if needed and not getattr(lane, needed):
        yield (*at, needed), f"missing; kind {lane.kind} needs it, such as {needed}: {KIND_EXAMPLES[needed]}"
    if isinstance(lane.price, Figures):
        one, other = lane.price.input_usd_per_mtok, lane.price.output_usd_per_mtok
        if (one is None) != (other is None):
            missing = "output" if other is None else "input"
            yield (
                (*at, "price"),
                f"only half a price, {missing}_usd_per_mtok is missing; unknown is not zero, so say 0 if it is",
            )
        elif one is None and lane.price.call_usd is None:
            yield (*at, "price"), "found no figure, wanted call_usd, or input_usd_per_mtok and output_usd_per_mtok"
    if isinstance(lane.command, str):
        try:
            shlex.split(lane.command)
        except ValueError as fault:
            yield (*at, "command"), f"cannot be split into words ({fault}); write it as a list"


def _unknown_lane(name: str, known: list[str], what: str) -> str:
    meant = nearest(name, known)
    return f"unknown lane {_found(name, ())}; {what}: {', '.join(known) or 'none'}" + (
        f"; did you mean {meant}?" if meant else ""
    )


def _plugin_kinds() -> list[str]:
    from importlib.metadata import entry_points

    return sorted({entry.name for entry in entry_points(group="millpond.lanes")})
