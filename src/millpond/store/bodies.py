"""What is stored of work and replies, as JSON text, and how it is read back.

JSON escapes control characters, so a NUL in a prompt or a reply never reaches a text column (O06), and both stores hold
the same bytes. What cannot be UTF-8 (a lone surrogate in a reply) is escaped rather than refused: a reply is never lost
for odd characters.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, cast

from millpond.rules.errors import Undeliverable
from millpond.rules.job import Command, Image, Prompt, Reply, Usage, Work

UNSTORABLE = (ValueError, TypeError, RecursionError)
"""What `json.dumps` raises for what it cannot write."""

_SURROGATE = re.compile("[\ud800-\udfff]")


def dump(value: Any) -> str:
    """Compact JSON text that always encodes to UTF-8; ValueError on NaN, TypeError on what JSON does not have."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text


def dump_work(work: Work) -> str:
    """A Prompt as its non-empty fields, a Command as its type, version, uid and payload."""
    if isinstance(work, Command):
        body = {"type": work.type, "version": work.version, "uid": work.uid, "payload": dict(work.payload)}
        return dump({"command": body})
    parts = {field.name: value for field in fields(Prompt) if (value := getattr(work, field.name))}
    if "images" in parts:
        parts["images"] = [_dump_image(image) for image in work.images]
    return dump({"prompt": parts})


def load_work(body: str) -> Work:
    """The Prompt or Command that `dump_work` wrote."""
    stored: dict[str, Any] = json.loads(body)
    if "command" in stored:
        return Command(**stored["command"])
    parts: dict[str, Any] = stored["prompt"]
    if "images" in parts:
        parts["images"] = tuple(_load_image(image) for image in parts["images"])
    return Prompt(**parts)


def rehydrate(work: Work, registry: Mapping[str, Any] | None) -> Any:
    """The registered model of a Command, validated anew; a Prompt as it is.

    Without a registry a Command stays a Command. Raises Undeliverable for an unknown type or a payload that this
    program's model refuses.
    """
    if not isinstance(work, Command) or registry is None:
        return work
    model = registry.get(work.type)
    if model is None:
        known = ", ".join(sorted(registry)) or "none"
        raise Undeliverable(f"unknown command type {work.type!r}; registered types: {known}")
    try:
        # As JSON, since a strict model takes the text of a date or the list of a set from JSON only.
        return model.model_validate_json(dump(dict(work.payload)))
    except Exception as problem:  # a validator of theirs may raise anything; one bad command must not stop the others
        raise Undeliverable(f"command {work.type!r} no longer validates: {_first_line(problem)}") from problem


def contains(body: str, words: str) -> bool:
    """Whether stored work says these words anywhere, in whatever case; names of fields are not what it says."""
    [stored] = json.loads(body).values()
    stored.pop("images", None)
    return any(words.casefold() in text.casefold() for text in _texts(stored))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value):
            yield from _texts(item)


def dump_reply(reply: Reply) -> str:
    """A reply whole, with the provider's own body."""
    usage = {"tokens_in": reply.usage.tokens_in, "tokens_out": reply.usage.tokens_out, "raw": reply.usage.raw}
    parts = {
        "text": reply.text,
        "data": reply.data,
        "finish_reason": reply.finish_reason,
        "model": reply.model,
        "usage": usage,
        "request_id": reply.request_id,
        "raw": reply.raw,
    }
    kept = {name: value for name, value in parts.items() if value is not None}
    try:
        return dump(kept)
    except UNSTORABLE:  # only what a handler made up can be so; each part is kept as well as JSON can
        return "{" + ",".join(f"{dump(name)}:{dump_seen(value)}" for name, value in kept.items()) + "}"


def dump_seen(value: Any) -> str:
    """What was brought from outside, as `dump` writes it, or else as near to it as JSON comes.

    NaN and Infinity are kept as texts of these words; what else JSON does not have, as Python shows it.
    """
    try:
        return dump(value)
    except UNSTORABLE:
        pass
    try:
        return json.dumps(finite(value), separators=(",", ":"), default=repr)
    except UNSTORABLE:  # a circle, keys that are no text, nesting past the stack
        return json.dumps(repr(value))


def finite(value: Any) -> Any:
    """The value with NaN and Infinity, which JSON does not have, as texts of these words."""
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(value)
    if isinstance(value, dict):
        return {name: finite(item) for name, item in cast("dict[Any, Any]", value).items()}
    return [finite(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def storable(text: str | None) -> str | None:
    """A provider's own words for a column of text: NUL becomes U+2400, a lone surrogate U+FFFD.

    Only replies are kept whole, as JSON. Words of an error are for people, and must not stop its settling (O06).
    """
    if text is None or (text.isascii() and "\0" not in text):
        return text
    return _SURROGATE.sub("\ufffd", text.replace("\0", "\u2400"))


def load_reply(body: str) -> Reply:
    """The Reply that `dump_reply` wrote."""
    parts: dict[str, Any] = json.loads(body)
    parts["usage"] = Usage(**parts["usage"])
    return Reply(**parts)


def _dump_image(image: Image) -> dict[str, str]:
    if image.url:
        return {"url": image.url}
    return {"data": base64.b64encode(image.data).decode(), "media_type": image.media_type}


def _load_image(stored: dict[str, str]) -> Image:
    if "url" in stored:
        return Image(url=stored["url"])
    return Image(base64.b64decode(stored["data"]), stored["media_type"])


def _first_line(problem: Exception) -> str:
    from pydantic import ValidationError  # loaded already by the model that refused

    if not isinstance(problem, ValidationError):
        return f"{type(problem).__name__}: {next(iter(str(problem).splitlines()), '')}".rstrip(": ")
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "payload"
    return f"{where}: {first['msg']}"
