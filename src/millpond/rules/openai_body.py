"""OpenAI's way of asking: the body of a chat completions request, and the line of a batch file around it, as work.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": …, "messages": […], …}}

Everything in a body that determines the answer goes into the Prompt; what only says how the answer travels does not.
A body that asks for what a Prompt cannot bring (several answers, sound) is refused rather than answered in part.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, cast

from millpond.rules.errors import UsageError
from millpond.rules.identity import found, plain
from millpond.rules.job import Prompt, Request
from millpond.rules.prompt import PROMPT_FIELDS, SAMPLING_PARAMS, plain_prompt, short_name

LINE_KEYS = ("custom_id", "method", "url", "body")
"""What a line of a batch file is made of."""

URLS = ("/v1/chat/completions", "/chat/completions")
"""Addresses of chat completions inside a batch file: OpenAI's, and the shorter one that Azure writes."""

BODY_FIELDS = frozenset(SAMPLING_PARAMS) | {
    "audio", "function_call", "functions", "logprobs", "messages", "metadata", "modalities", "model", "moderation",
    "n", "parallel_tool_calls", "prediction", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "reasoning_effort", "safety_identifier", "service_tier", "store", "stream", "stream_options", "tool_choice",
    "tools", "top_logprobs", "user", "web_search_options",
}  # fmt: skip
"""Names by which a bare body is known. A body that is said to be one (`body`) may have others, since servers do."""

_SHARED_FIELDS = frozenset({"messages", "model", "tools"})
"""Names that a Prompt and a body have in common, and that mean the same in both."""

_TRAVEL = ("n", "stream", "stream_options")
"""Names that are gone once they are checked: a call brings one answer, and its lane says how it travels."""


def is_line(values: Mapping[Any, Any]) -> bool:
    """Whether a mapping is meant as a line of a batch file."""
    return "body" in values


def is_body(values: Mapping[Any, Any]) -> bool:
    """Whether a mapping is a request body rather than a Prompt's fields: a chat with parameters beside it.

    Every name must be known, so that a misspelt field of a Prompt is still refused with a suggestion.
    """
    names = set(values)
    others = names.difference(PROMPT_FIELDS)
    is_prompt = bool(names.intersection(PROMPT_FIELDS) - _SHARED_FIELDS)
    return "messages" in names and bool(others) and others <= BODY_FIELDS and not is_prompt


def request_of_line(line: Mapping[str, Any]) -> Request:
    """What a line of a batch file asks, with its custom_id if it has one. Raises UsageError naming the field."""
    for name in cast(Mapping[Any, Any], line):
        if name not in LINE_KEYS:
            raise UsageError(_unknown_beside_the_body(name))
    method, url = line.get("method"), line.get("url")
    if method not in (None, "POST"):
        raise UsageError(f"method: found {found(method)}, wanted POST")
    if url not in (None, *URLS):
        raise UsageError(f"url: found {found(url)}, wanted {URLS[0]}; other endpoints are not taken")
    return Request(prompt_of_body(line.get("body")), custom_id=short_name(line.get("custom_id"), "custom_id"))


def prompt_of_body(body: object) -> Prompt:
    """The Prompt that a chat completions body asks. Raises UsageError naming the field below `body`.

    `model`, `messages` and `tools` are the Prompt's own, `reasoning_effort` is its reasoning, and the schema of a
    `response_format` its schema; the name, the strictness and the description around that schema stay in params, from
    where a chat lane puts them around it again. Every other field is one of params, transport fields included.
    """
    if not isinstance(body, Mapping):
        raise UsageError(f"body: found {found(body)}, wanted the body of a chat completions request")
    said: dict[str, Any] = plain(cast(Mapping[Any, Any], body), "body")
    _refuse_other_answers(said)
    messages = said.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        what = "an empty list" if messages == [] else found(cast(Any, messages))
        raise UsageError(f"body.messages: found {what}, wanted a list of messages")
    reasoning = said.pop("reasoning_effort", None)
    if not isinstance(reasoning, str | None):
        raise UsageError(f"body.reasoning_effort: found {found(reasoning)}, wanted text such as 'low'")
    schema = _lift_schema(said)
    prompt = Prompt(
        messages=cast("list[Any]", messages),
        model=said.pop("model", None),
        tools=said.pop("tools", None),
        reasoning=reasoning or "",
        schema=schema,
        params={name: value for name, value in said.items() if name not in _TRAVEL},
    )
    try:
        return plain_prompt(prompt)
    except UsageError as problem:
        raise UsageError(f"body.{problem}") from None


def _refuse_other_answers(body: Mapping[str, Any]) -> None:
    """Refuse what one answer of text and calls, read whole, cannot bring."""
    n, stream, modalities = body.get("n"), body.get("stream"), body.get("modalities")
    if n is not None and (type(n) is not int or n != 1):
        raise UsageError(f"body.n: found {found(n)}, wanted 1; a request has one answer, sample=1, 2, … asks for more")
    if stream is not None and stream is not False:
        raise UsageError(f"body.stream: found {found(stream)}, wanted it left out; how an answer travels its lane says")
    if body.get("audio") is not None or modalities not in (None, ["text"]):
        name = "audio" if body.get("audio") is not None else "modalities"
        raise UsageError(f"body.{name}: found a wish for more than text, wanted it left out; only text can be kept")


def _lift_schema(body: dict[str, Any]) -> dict[str, Any] | None:
    """Take the schema out of a body's `response_format`, whose other words stay; None if it holds none."""
    format_: Any = body.get("response_format")
    if not isinstance(format_, dict) or cast("dict[str, Any]", format_).get("type") != "json_schema":
        return None
    named: Any = cast("dict[str, Any]", format_).get("json_schema")
    if not isinstance(named, dict):
        return None
    rest = cast("dict[str, Any]", named)
    schema: Any = rest.get("schema")
    if not isinstance(schema, dict) or not schema:  # nothing to hold an answer against; the provider may still take it
        return None
    around = {name: value for name, value in rest.items() if name != "schema"}
    body["response_format"] = {**cast("dict[str, Any]", format_), "json_schema": around}
    return cast("dict[str, Any]", schema)


def _unknown_beside_the_body(name: object) -> str:
    if not isinstance(name, str):
        return f"found {found(name)} as a key, wanted one of: {', '.join(LINE_KEYS)}"
    close = get_close_matches(name[:40], LINE_KEYS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(LINE_KEYS)}"
    return f"unknown key {name[:40]!r} beside the body; {hint}"
