"""What an OpenAI-compatible chat request asks: the check of a strict server, and how to read a checked body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from millpond.drill.least import least

Json = dict[str, Any]


class Refused(Exception):
    """The body is no chat completion request; the words and the parameter are those of a 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


def check_request(body: object) -> Json:
    """Give the body back if it is a chat completion request that a strict server takes; raises Refused if not.

    Checked are the fields of the public API whose shape matters here. Others pass: servers differ in what they add.
    """
    if not isinstance(body, dict):
        raise Refused("We could not parse the JSON body of your request: an object is expected.")
    fields = cast(Json, body)
    if not isinstance(fields.get("model"), str) or not fields["model"]:
        raise Refused("You must provide a model parameter.", "model")
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refused("'messages' must be a non-empty array.", "messages")
    for position, message in enumerate(cast(list[Any], messages)):
        _check_message(message, f"messages[{position}]")
    _check_numbers(fields)
    _check_stream(fields)
    _check_tools(fields)
    _check_format(fields.get("response_format"))
    _check_label(fields)
    return fields


def _check_message(message: Any, where: str) -> None:
    if not isinstance(message, dict):
        raise Refused(f"'{where}' must be an object.", where)
    fields = cast(Json, message)
    role, content = fields.get("role"), fields.get("content")
    if role not in ("system", "developer", "user", "assistant", "tool", "function"):
        raise Refused(f"Invalid value: {role!r} for '{where}.role'.", f"{where}.role")
    if role == "tool" and not isinstance(fields.get("tool_call_id"), str):
        raise Refused(f"Missing parameter '{where}.tool_call_id'.", f"{where}.tool_call_id")
    if isinstance(content, str) or (content is None and role == "assistant"):
        return
    if not isinstance(content, list) or not content:
        raise Refused(f"'{where}.content' must be a string or an array of parts.", f"{where}.content")
    for part in cast(list[Any], content):
        _check_part(part, f"{where}.content")


def _check_part(part: Any, where: str) -> None:
    fields = cast(Json, part) if isinstance(part, dict) else {}
    match fields.get("type"):
        case "text" | "refusal" as kind:
            good = isinstance(fields.get(kind), str)
        case "image_url":
            url = fields["image_url"].get("url") if isinstance(fields.get("image_url"), dict) else None
            good = isinstance(url, str) and re.match(r"https?://.|data:image/[\w.+-]+;base64,.", url) is not None
        case "input_audio" | "file" as kind:
            good = isinstance(fields.get(kind), dict)
        case _:
            good = False
    if not good:
        raise Refused(f"Invalid content part in '{where}'.", where)


_NUMBERS: Final[Mapping[str, tuple[float, float]]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
    "max_tokens": (1, 2**31),
    "max_completion_tokens": (1, 2**31),
    "seed": (-(2**63), 2**63 - 1),
    "n": (1, 1),
}
"""Numeric parameters and their bounds in the public API; `n` above 1 is not played."""
_WHOLE_NUMBERS = frozenset({"max_tokens", "max_completion_tokens", "seed", "n"})


def _check_numbers(fields: Json) -> None:
    for name, (low, high) in _NUMBERS.items():
        value = fields.get(name)
        if value is None:
            continue
        kinds = int if name in _WHOLE_NUMBERS else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
            raise Refused(f"Invalid value for '{name}': {value!r}.", name)


def _check_stream(fields: Json) -> None:
    if not isinstance(fields.get("stream"), bool | None):
        raise Refused("'stream' must be a boolean.", "stream")
    if fields.get("stream_options") is not None and not fields.get("stream"):
        raise Refused("The 'stream_options' parameter is only allowed when 'stream' is enabled.", "stream_options")


def _check_tools(fields: Json) -> None:
    tools: Any = fields.get("tools")
    if tools is None:
        if fields.get("tool_choice") not in (None, "none"):
            raise Refused("'tool_choice' is only allowed when 'tools' are specified.", "tool_choice")
        return
    if not isinstance(tools, list) or not tools:
        raise Refused("'tools' must be a non-empty array.", "tools")
    for position, tool in enumerate(cast(list[Any], tools)):
        function: Any = cast(Json, tool).get("function") if isinstance(tool, dict) else None
        name: Any = cast(Json, function).get("name") if isinstance(function, dict) else None
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise Refused(f"Invalid 'tools[{position}].function.name'.", f"tools[{position}].function.name")
        _check_schema(cast(Json, function).get("parameters") or {}, f"tools[{position}].function.parameters")


def _check_format(response_format: Any) -> None:
    if response_format is None:
        return
    fields = cast(Json, response_format) if isinstance(response_format, dict) else {}
    kind, named = fields.get("type"), fields.get("json_schema")
    if kind not in ("text", "json_object", "json_schema"):
        raise Refused("Invalid 'response_format.type'.", "response_format.type")
    if kind == "json_schema":
        inner = cast(Json, named) if isinstance(named, dict) else {}
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", str(inner.get("name", ""))):
            raise Refused("Invalid 'response_format.json_schema.name'.", "response_format.json_schema.name")
        if not isinstance(inner.get("schema"), dict):
            raise Refused("Missing 'response_format.json_schema.schema'.", "response_format.json_schema.schema")
        _check_schema(inner["schema"], "response_format.json_schema.schema")


def _check_label(fields: Json) -> None:
    """Whether the answer is kept, and what the caller has tied to it: bounds as the public API states them."""
    if not isinstance(fields.get("store"), bool | None):
        raise Refused("'store' must be a boolean.", "store")
    metadata: Any = fields.get("metadata")
    if metadata is None:
        return
    named = cast(Json, metadata) if isinstance(metadata, dict) else {"": None}
    if len(named) > 16 or any(
        not isinstance(value, str) or len(name) > 64 or len(value) > 512 for name, value in named.items()
    ):
        raise Refused("'metadata' must be an object of at most 16 texts, each of at most 512 characters.", "metadata")
    if metadata and not fields.get("store"):
        raise Refused("The 'metadata' parameter is only allowed when 'store' is enabled.", "metadata")


def _check_schema(schema: Any, where: str) -> None:
    try:
        least(schema, "")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise Refused(f"Invalid schema in '{where}'.", where) from error


def texts_of(body: Mapping[str, Any]) -> list[str]:
    """The texts of the messages, one a message, in their order; a picture has none."""
    texts: list[str] = []
    for message in cast(list[Json], body.get("messages", [])):
        content: Any = message.get("content")
        parts = cast(list[Json], content) if isinstance(content, list) else []
        texts.append(content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in parts))
    return texts


def metadata_of(body: Mapping[str, Any]) -> Json:
    """What the caller has tied to a request, by name."""
    return cast(Json, body.get("metadata") or {})


def wants_stream(body: Mapping[str, Any]) -> bool:
    """Whether the answer shall come as a stream of events."""
    return body.get("stream") is True


def wants_usage(body: Mapping[str, Any]) -> bool:
    """Whether a stream shall end with a chunk of usage, as `stream_options.include_usage` asks."""
    options = body.get("stream_options")
    return isinstance(options, dict) and cast(Json, options).get("include_usage") is True


def schema_of(body: Mapping[str, Any]) -> Json | None:
    """The JSON Schema that the answer must satisfy; None if none was asked."""
    response_format: Any = body.get("response_format")
    if not isinstance(response_format, dict) or cast(Json, response_format).get("type") != "json_schema":
        return None
    return cast(Json, response_format["json_schema"]["schema"])


def must_call(body: Mapping[str, Any]) -> bool:
    """Whether the request leaves no choice but to call a tool."""
    return body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict)
