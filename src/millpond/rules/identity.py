"""The identity of work: canonical bytes -> fingerprint -> idempotency key.

What goes in, in which order and why stands in docs/identity.md, with test vectors that other programs can check.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import os
import re
import unicodedata
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote_to_bytes

from millpond.rules.errors import UsageError
from millpond.rules.job import Command, Image, Prompt, Work

PROMPT_TAG = b"millpond prompt 1\n"
COMMAND_TAG = b"millpond command 1\n"
"""Kind and version of the canonical form. A change of the form takes a new number: old fingerprints never match."""

MAX_DEPTH = 100
"""Deepest nesting of lists and mappings in a JSON part. Ours, and far below every library's, so that what is accepted
today loads on every Python (O12: the standard library stops at 995 levels on 3.11, pydantic at 199)."""

MIN_INT, MAX_INT = -(2**63), 2**63 - 1
"""Integers that every database and JSON reader we use can carry (O12)."""

MAX_KEY_CHARS = 512
"""Longest key a caller may choose."""

TRANSPORT_PARAMS = frozenset(
    {
        "background",
        "extra_headers",
        "idempotency_key",
        "keep_alive",
        "max_retries",
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream",
        "stream_options",
        "timeout",
        "user",
    }
)
"""Parameters that say how the answer travels, is kept, is labelled or is paid for, and not what it says. A name that
is not known to be one of these counts: a needless second answer costs money once, a wrong shared one costs trust."""

PARAMS_WITH_SCHEMA = frozenset(
    {
        "format",
        "functions",
        "guided_json",
        "json_schema",
        "output_config",
        "output_format",
        "response_format",
        "structured_outputs",
        "text",
        "tools",
    }
)
"""Parameters that carry a schema or tools: beneath them the order of keys is kept, as in `schema` and `tools`
(docs/decisions/001-schema-order-is-identity.md)."""

_DERIVED_FORM = re.compile(r"([0-9a-f]{64})(?::.*)?", re.DOTALL)
_URL = re.compile(r"https?://", re.IGNORECASE)
_DATA_URL = re.compile(r"data:([^,;]*)((?:;[^,]*)?),(.*)", re.IGNORECASE | re.DOTALL)


def canonical(work: object) -> bytes:
    """The bytes that stand for everything about the work that determines its result.

    Raises UsageError naming the field, what was found and what is wanted, for what cannot be stored and loaded again.
    """
    try:
        if isinstance(work, Prompt):
            return _canonical_prompt(work)
        if isinstance(work, Command):
            return _canonical_command(work)
    except RecursionError:  # The caller's own stack was nearly full: still a refusal, never a crash.
        raise UsageError(f"work: found deeper nesting than the stack allows, wanted {MAX_DEPTH} levels") from None
    raise UsageError(f"work: found {_kind(work)}, wanted a Prompt or a Command")


def fingerprint(work: Work) -> str:
    """Name the exact work asked, as 64 hex digits of SHA-256 over its canonical bytes.

    The lane, and a model that the lane chooses, are left out: the same answer serves either. Raises UsageError.
    """
    return hashlib.sha256(canonical(work)).hexdigest()


def idempotency_key(
    work: Work,
    fingerprint: str,
    *,
    key: str | None = None,
    sample: int | None = None,
    unique: int | str | None = None,
) -> str:
    """The key that has at most one answer in force: the caller's own, or one derived from the work.

    A prompt's is its fingerprint; with `sample` the fingerprint and that number; with `unique` (for `dedup=False`) the
    fingerprint and a number nobody else gets. A command's is its own uid, since every command put is meant once more.
    Raises UsageError for more than one of the three, and for a key that could be taken for other work's.
    """
    given = [name for name, value in (("key", key), ("sample", sample), ("unique", unique)) if value is not None]
    if len(given) > 1:
        raise UsageError(f"found {' and '.join(given)}, wanted at most one of key, sample and dedup=False")
    if key is not None:
        return _own_key(key, fingerprint, "key")
    if isinstance(work, Command):
        if sample is not None:
            raise UsageError("sample: found with a command, wanted a prompt; a command is put as often as it is meant")
        return _own_key(work.uid, fingerprint, "uid")
    if sample is not None:
        return f"{fingerprint}:sample:{_number(sample, 'sample')}"
    if unique is not None:
        if isinstance(unique, str) and re.fullmatch(r"[0-9A-Za-z-]{1,64}", unique):
            return f"{fingerprint}:unique:{unique}"
        return f"{fingerprint}:unique:{_number(unique, 'unique')}"
    return fingerprint


def plain(value: object, field: str) -> Any:
    """A copy of a JSON value in plain lists and dicts, keys in their order.

    Raises UsageError naming the path of what JSON, UTF-8 or a signed 64-bit integer cannot carry, or lies too deep.
    """
    return _plain(value, field, ordered=True)


def inline_content(url: str) -> tuple[str, bytes] | None:
    """Media type and content of a data URL; None for anything else, and for base64 that does not decode."""
    return _data_url(url)


def found(value: object) -> str:
    """What was found, for a refusal: the value if it is short and harmless, else its type."""
    return _kind(value)


def _own_key(key: object, fingerprint: str, field: str) -> str:
    """The caller's key, verbatim, if it cannot be mistaken for the derived key of other work."""
    text = _text(key, field)
    if not text:
        raise UsageError(f"{field}: found an empty key, wanted 1 to {MAX_KEY_CHARS} characters")
    if len(text) > MAX_KEY_CHARS:
        raise UsageError(f"{field}: found {len(text):,} characters, wanted at most {MAX_KEY_CHARS}")
    for at, character in enumerate(text):
        if unicodedata.category(character) == "Cc":
            raise UsageError(f"{field}: found the control character U+{ord(character):04X} at {at}, wanted none")
    derived = _DERIVED_FORM.fullmatch(text)
    # Under a foreign fingerprint this job would answer requests for that other work.
    if derived and derived[1] != fingerprint:
        raise UsageError(
            f"{field}: found {text[:12]}…, which has the form of a fingerprint of other work; "
            f"wanted a name of your own, for example 'mine-{text[:12]}…'"
        )
    return text


def _number(value: object, field: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_INT:
        raise UsageError(f"{field}: found {_kind(value)}, wanted a whole number from 0")
    return value


def _canonical_prompt(prompt: Prompt) -> bytes:
    out = [PROMPT_TAG]
    out += [_sized(_utf8(getattr(prompt, name), name)) for name in ("intent", "task", "system", "reasoning")]
    for name, value in sorted(_further_parts(prompt).items()):
        out += [_sized(name.encode()), _sized(value)]
    return b"".join(out)


def _canonical_command(command: Command) -> bytes:
    texts = {"type": command.type, "version": command.version}
    for name, text in texts.items():
        if not _text(text, name):
            raise UsageError(f"{name}: found {_kind(text)}, wanted a name")
    payload = _plain(_mapping(command.payload, "payload"), "payload", ordered=False)
    out = [COMMAND_TAG, *(_sized(_utf8(text, name)) for name, text in texts.items()), _sized(_json(payload))]
    return b"".join(out)


def _further_parts(prompt: Prompt) -> dict[str, bytes]:
    """Name -> value of every part beyond the four texts that is present: neither None nor empty."""
    parts: dict[str, bytes] = {}
    for name in ("model", "namespace"):
        if value := _utf8(getattr(prompt, name), name):
            parts[name] = value
    if prompt.messages is not None:
        items = [_mapping(item, f"messages[{at}]") for at, item in enumerate(_list(prompt.messages, "messages"))]
        attachments: list[tuple[str, str, str]] = []
        plain = _plain(items, "messages", ordered=False)
        for at, message in enumerate(plain):
            _detach(message.get("content"), f"messages[{at}].content", attachments)
        if plain:
            parts["messages"] = _json(plain)
        if attachments:
            parts["attachments"] = _json(attachments)
    if prompt.schema is not None and (schema := _mapping(prompt.schema, "schema")):
        parts["schema"] = _json(_plain(schema, "schema", ordered=True))
    if prompt.tools is not None:
        tools = [_mapping(item, f"tools[{at}]") for at, item in enumerate(_list(prompt.tools, "tools"))]
        if tools:
            parts["tools"] = _json(_plain(tools, "tools", ordered=True))
    if images := [_image(image, f"images[{at}]") for at, image in enumerate(_list(prompt.images or (), "images"))]:
        parts["images"] = _json(images)
    given = _mapping(prompt.params if cast(Any, prompt.params) is not None else {}, "params")
    counted = {name: value for name, value in given.items() if value is not None and name not in TRANSPORT_PARAMS}
    if counted:
        parts["params"] = _json(_plain(counted, "params", ordered=False))
    return parts


# Texts and JSON


def _sized(value: bytes) -> bytes:
    """A field with its length in bytes before it, so that no field can run into the next (O23)."""
    return len(value).to_bytes(8, "big") + value


def _text(value: object, field: str) -> str:
    """A text, None being the empty one; refuses other types and what UTF-8 cannot carry."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{field}: found {_kind(value)}, wanted text")
    text = str.__str__(value)  # An enum's member counts as its text.
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{field}: found a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
                "wanted text that UTF-8 can carry"
            ) from None
    return text


def _utf8(value: object, field: str) -> bytes:
    return _text(value, field).encode()


def _json(value: object) -> bytes:
    """Plain values as JSON in UTF-8: no spaces, order as it stands, `1` and `1.0` distinct."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _plain(value: Any, path: str, *, ordered: bool, depth: int = 0) -> Any:
    """A copy of plain lists and dicts with sorted keys (kept, if `ordered`), or a refusal that names the path."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _text(value, path)
    if isinstance(value, int):
        if not MIN_INT <= value <= MAX_INT:
            raise UsageError(f"{path}: found an integer of {value.bit_length()} bits, wanted at most 64 bits, signed")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise UsageError(f"{path}: found {value}, wanted a finite number; JSON has no NaN or Infinity")
        return float(value)
    if isinstance(value, Mapping):
        depth = _deeper(depth, path)
        entries: dict[str, Any] = {}
        mapping = cast(Mapping[object, Any], value)
        for key in mapping:
            if not isinstance(key, str):
                raise UsageError(f"{path}: found {_kind(key)} as a key, wanted text")
        names = [(_text(key, f"{path} (a key)"), item) for key, item in mapping.items()]
        for name, item in names if ordered else sorted(names, key=_name_of):
            keeps = ordered or (name in PARAMS_WITH_SCHEMA and path.startswith("params"))
            entries[name] = _plain(item, f"{path}.{name}", ordered=keeps, depth=depth)
        return entries
    if isinstance(value, (list, tuple)):
        depth = _deeper(depth, path)
        items: list[Any] = []
        for at, item in enumerate(cast("list[Any]", value)):
            items.append(_plain(item, f"{path}[{at}]", ordered=ordered, depth=depth))
        return items
    raise UsageError(f"{path}: found {_kind(value)}, wanted text, a number, true, false, null, a list or a mapping")


def _name_of(entry: tuple[str, Any]) -> str:
    return entry[0]


def _deeper(depth: int, path: str) -> int:
    if depth >= MAX_DEPTH:
        shown = path if len(path) <= 60 else f"{path[:60]}…"
        raise UsageError(f"{shown}: found more than {MAX_DEPTH} levels of nesting, wanted at most {MAX_DEPTH}")
    return depth + 1


def _mapping(value: object, field: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{field}: found {_kind(value)}, wanted a mapping")
    return cast(Mapping[Any, Any], value)


def _list(value: object, field: str) -> list[Any]:
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{field}: found {_kind(value)}, wanted a list")
    return list(cast("list[Any]", value))


def _kind(value: object) -> str:
    """What was found, for a message: the value if it is short and harmless, else its type."""
    if value is None or isinstance(value, (bool, int, float)):
        return f"{type(value).__name__} {value}" if not isinstance(value, int) or abs(value) < 2**63 else "an int"
    if isinstance(value, str):
        return f"text {value[:40]!r}" if value else "an empty text"
    return type(value).__name__


# Content by digest


def _image(image: object, field: str) -> dict[str, str]:
    """One picture: the digest of its content with its media type, or its address where the lane fetches it."""
    if isinstance(image, str):
        image = Image(url=image)
    if not isinstance(image, Image):
        found = f"the path {os.fspath(cast(Any, image))!r}" if isinstance(image, os.PathLike) else _kind(image)
        raise UsageError(f"{field}: found {found}, wanted an Image; the queue reads files before it names the work")
    if not isinstance(cast(Any, image.data), (bytes, bytearray)):
        raise UsageError(f"{field}.data: found {_kind(image.data)}, wanted bytes")
    data, media_type, url = bytes(image.data), _text(image.media_type, f"{field}.media_type"), _text(image.url, field)
    entry: dict[str, str] = {}
    if inline := _data_url(url):
        if data:
            raise UsageError(f"{field}: found content both in data and in url, wanted one of them")
        (media_type, data), url = inline, ""
    elif url and not _URL.match(url):
        raise UsageError(
            f"{field}: found {url[:80]!r}, wanted an http(s) or data URL, or an Image with its content; "
            "the queue reads files before it names the work"
        )
    if data:
        entry = {"sha256": hashlib.sha256(data).hexdigest(), "type": media_type}
    if url:
        entry["url"] = url
    if not entry:
        raise UsageError(f"{field}: found neither content nor an address, wanted one of them")
    return entry


def _detach(content: Any, path: str, attachments: list[tuple[str, str, str]]) -> None:
    """Move embedded files out of a message's content parts: null in their place, digest in `attachments`.

    Only where providers read files from: a text that quotes a data URL stays text. What does not decode stays too.
    """
    if not isinstance(content, list):
        return
    for at, part in enumerate(cast("list[Any]", content)):
        if not isinstance(part, dict):
            continue
        entries = cast("dict[str, Any]", part)
        here = f"{path}[{at}]"
        for name in ("image_url", "file_data"):
            _take(entries, name, f"{here}.{name}", attachments)
        for name, inner in (("image_url", "url"), ("input_audio", "data"), ("file", "file_data"), ("source", "data")):
            if isinstance(entries.get(name), dict):
                _take(entries[name], inner, f"{here}.{name}.{inner}", attachments)
        _detach(entries.get("content"), f"{here}.content", attachments)


def _take(holder: dict[str, Any], name: str, path: str, attachments: list[tuple[str, str, str]]) -> None:
    value = holder.get(name)
    if not isinstance(value, str):
        return
    found = _data_url(value)
    if found is None and name in ("data", "file_data") and (raw := _base64(value)):
        found = ("", raw)
    if found is not None:
        holder[name] = None
        attachments.append((path, found[0], hashlib.sha256(found[1]).hexdigest()))


def _data_url(url: str) -> tuple[str, bytes] | None:
    """Media type and content of a data URL; None for anything else. Parameters other than base64 stay in the type."""
    match = _DATA_URL.fullmatch(url)
    if not match:
        return None
    media_type, options, body = match[1], match[2], match[3]
    if options.lower().endswith(";base64"):
        data = _base64(unquote_to_bytes(body).decode("latin-1"))
        return None if data is None else (media_type + options[: -len(";base64")], data)
    return (media_type + options, unquote_to_bytes(body))


def _base64(text: str) -> bytes | None:
    """The bytes behind base64 in either alphabet, padded or not, wrapped or not; None for what is not base64."""
    packed = "".join(text.split()).rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None
