"""What a prompt may be made of: the names of its fields, their types, and one plain form for what means the same."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, cast

from millpond.rules.errors import UsageError
from millpond.rules.identity import found, plain
from millpond.rules.job import Prompt, Request

PROMPT_FIELDS = tuple(field.name for field in fields(Prompt))
REQUEST_FIELDS = tuple(field.name for field in fields(Request) if field.name != "work")

SAMPLING_PARAMS = (
    "frequency_penalty", "logit_bias", "max_completion_tokens", "max_tokens", "min_p", "presence_penalty",
    "repetition_penalty", "response_format", "seed", "stop", "temperature", "top_k", "top_p", "verbosity",
)  # fmt: skip
"""Names that people write beside the task and that belong into `params`; only suggestions are made from them."""

MAX_NAME_CHARS = 512
"""Longest label, custom_id, tag, lane, intent or trace_id, as for keys."""

MAX_TAGS = 64


def prompt_of(values: Mapping[str, Any]) -> Prompt:
    """A Prompt from a mapping of its fields, in plain types. An unknown key is a UsageError with a suggestion."""
    if unknown := [name for name in cast(Mapping[Any, Any], values) if name not in PROMPT_FIELDS]:
        raise UsageError(unknown_key("body" if "body" in unknown else unknown[0]))
    return plain_prompt(Prompt(**values))


def unknown_key(name: object, known: Sequence[str] = PROMPT_FIELDS) -> str:
    """The words that refuse a key which is none of the known ones: where it belongs, or which was meant."""
    if name == "body":
        return "'body': found a line of an OpenAI batch file among other rows, wanted format openai-batch said"
    if not isinstance(name, str):
        return f"found {found(name)} as a key, wanted one of: {', '.join(known)}"
    shown = f"unknown key {name[:40]!r}"
    if name in REQUEST_FIELDS:
        return f"{shown}: it belongs to the request, Request(work, {name}=…)"
    if close := get_close_matches(name[:40], known, n=1):
        return f"{shown}; did you mean {close[0]!r}?"
    if close := get_close_matches(name[:40], SAMPLING_PARAMS, n=1):
        return f'{shown}; did you mean "params": {{"{close[0]}": …}}?'
    return f"{shown}; known: {', '.join(known)}"


def plain_prompt(prompt: Prompt) -> Prompt:
    """The prompt in plain types, None and empty parts as one, images as they are. Raises UsageError by field."""
    images = cast(Any, prompt.images)
    if images is not None and not isinstance(images, (list, tuple)):
        raise UsageError(f"images: found {found(images)}, wanted a list")
    messages = _mappings(prompt.messages, "messages")
    for at, message in enumerate(messages or ()):
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise UsageError(f"messages[{at}].role: found {found(message.get('role'))}, wanted a role such as 'user'")
    plainly = Prompt(
        task=_text(prompt.task, "task"),
        intent=short_name(None if prompt.intent == "" else prompt.intent, "intent") or "",
        system=_text(prompt.system, "system"),
        reasoning=_text(prompt.reasoning, "reasoning"),
        messages=messages,
        schema=mapping_of(prompt.schema, "schema"),
        tools=_mappings(prompt.tools, "tools"),
        images=tuple(cast("Sequence[Any]", images or ())),
        params=mapping_of(prompt.params, "params") or {},
        model=_text(prompt.model, "model") or None,
        namespace=_text(prompt.namespace, "namespace"),
    )
    if not (plainly.task.strip() or plainly.messages or plainly.images or plainly.system.strip()):
        raise UsageError("task: found nothing to ask, wanted a task, messages or images")
    return plainly


# Fields by their type


def _text(value: object, field: str) -> str:
    """A text, None being the empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UsageError(f"{field}: found {found(value)}, wanted text")
    return plain(value, field)


def mapping_of(value: object, field: str) -> dict[str, Any] | None:
    """A plain copy; None if it is None or empty."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise UsageError(f"{field}: found {found(value)}, wanted a mapping")
    return plain(cast(Mapping[Any, Any], value), field) or None


def _mappings(value: object, field: str) -> list[dict[str, Any]] | None:
    """A plain copy of a list of mappings; None if it is None or empty."""
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"{field}: found {found(value)}, wanted a list of mappings")
    for at, item in enumerate(cast("Sequence[Any]", value)):
        if not isinstance(item, Mapping):
            raise UsageError(f"{field}[{at}]: found {found(item)}, wanted a mapping")
    return plain(list(cast("Sequence[Any]", value)), field) or None


def short_name(value: object, field: str) -> str | None:
    """A short text without control characters, since names stand in columns, lines of output and headers (O06)."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise UsageError(f"{field}: found {found(value)}, wanted text")
    text: str = plain(value, field)
    if not text:
        raise UsageError(f"{field}: found an empty text, wanted 1 to {MAX_NAME_CHARS} characters, or None")
    if len(text) > MAX_NAME_CHARS:
        raise UsageError(f"{field}: found {len(text):,} characters, wanted at most {MAX_NAME_CHARS}")
    if not text.isprintable():
        for at, character in enumerate(text):
            if unicodedata.category(character) == "Cc":
                raise UsageError(f"{field}: found the control character U+{ord(character):04X} at {at}, wanted none")
    return text


def tag_names(value: object) -> tuple[str, ...]:
    """Tags in their order, each once."""
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise UsageError(f"tags: found {found(value)}, wanted a list of texts")
    tags: dict[str, None] = {}
    for at, tag in enumerate(cast("Sequence[Any]", value)):
        name = short_name(tag, f"tags[{at}]")
        if name is None:
            raise UsageError(f"tags[{at}]: found None, wanted text")
        tags[name] = None
    if len(tags) > MAX_TAGS:
        raise UsageError(f"tags: found {len(tags)}, wanted at most {MAX_TAGS}")
    return tuple(tags)
