"""Bodies of an OpenAI-compatible chat API as the fault lane speaks it: what is asked, answers, chunks, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from millpond.drill.script import prompt_digest

CREATED_S: Final = 1_700_000_000
"""`created` of every answer: a fixed moment, so that equal requests get equal bodies."""
CHARACTERS_A_TOKEN: Final = 4
"""A rule of thumb for English; the usage of a fake only has to be the same every time."""

Json = dict[str, Any]


class Refused(Exception):
    """The body is no chat completion request; the words and the parameter are those of a 400."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


@dataclass(frozen=True, slots=True)
class Answer:
    """What the work produced: a text or calls of tools, why it ended, and what it used."""

    text: str
    tool_calls: tuple[Json, ...]
    finish_reason: str
    tokens_in: int
    tokens_out: int

    @property
    def result(self) -> str:
        """The text, or the calls as JSON."""
        return json.dumps(list(self.tool_calls)) if self.tool_calls else self.text


# ---------------------------------------------------------------- what is asked


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


def texts_of(body: Mapping[str, Any]) -> list[str]:
    """The texts of the messages, one a message, in their order; a picture has none."""
    texts: list[str] = []
    for message in cast(list[Json], body.get("messages", [])):
        content: Any = message.get("content")
        parts = cast(list[Json], content) if isinstance(content, list) else []
        texts.append(content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in parts))
    return texts


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


# ---------------------------------------------------------------- what is answered


def default_answer(body: Mapping[str, Any]) -> str:
    """The answer that follows from the prompt alone: its digest in words, or the least JSON that the schema allows."""
    words = f"answer to {prompt_digest(body)[:8]}"
    schema = schema_of(body)
    if schema is not None:
        return json.dumps(least(schema, words))
    kind: Any = cast(Json, body.get("response_format") or {}).get("type")
    return json.dumps({"answer": words}) if kind == "json_object" else words


def least(schema: Mapping[str, Any], words: str, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """The least value that satisfies a simple JSON Schema; texts say `words`.

    Understood are type, properties, required, items, minItems, enum, const, minimum and maximum (also exclusive),
    minLength, maxLength, anyOf and oneOf (first), allOf (merged), and references into the same document. `pattern`
    and `format` are not.
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


def _least_number(schema: Mapping[str, Any]) -> Any:
    low, high = schema.get("minimum"), schema.get("maximum")
    if (above := schema.get("exclusiveMinimum")) is not None:
        low = above + (1 if schema.get("type") == "integer" or high is None else (high - above) / 2)
    if (below := schema.get("exclusiveMaximum")) is not None:
        high = below - 1
    value = 0 if low is None else max(0, low)
    return value if high is None else min(value, high)


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


def must_call(body: Mapping[str, Any]) -> bool:
    """Whether the request leaves no choice but to call a tool."""
    return body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict)


def tool_calls_for(body: Mapping[str, Any]) -> tuple[Json, ...]:
    """One call of the tool that was named, else of the first; with the least arguments its schema allows.

    A request that offers no tool gets a call of `unasked`, as a confused model would.
    """
    offered = [cast(Json, tool["function"]) for tool in cast(list[Json], body.get("tools") or [])]
    choice: Any = body.get("tool_choice")
    named: Any = cast(Json, choice).get("function", {}).get("name") if isinstance(choice, dict) else None
    tool = next((one for one in offered if named in (None, one["name"])), {"name": "unasked"})
    digest = prompt_digest(body)
    parameters = cast(Json, tool.get("parameters") or {"type": "object"})
    arguments = json.dumps(least(parameters, f"answer to {digest[:8]}"))
    call = {"id": f"call_{digest[:16]}", "type": "function"}
    return ({**call, "function": {"name": tool["name"], "arguments": arguments}},)


def answer_for(body: Mapping[str, Any], text: str, *, fault: str) -> Answer:
    """The answer to a request as a fault bends it: cut short, empty, filtered, calling tools, or `text` itself."""
    calls: tuple[Json, ...] = ()
    finish = "stop"
    if fault == "tool_calls" or (fault in ("ok", "slow", "stream_ok") and must_call(body)):
        text, calls, finish = "", tool_calls_for(body), "tool_calls"
    elif fault in _BENT:
        finish = _BENT[fault]
        text = {"truncated": text[: max(1, len(text) // 2)], "unknown_finish": text}.get(fault, "")
    elif fault == "bad_schema":
        schema = schema_of(body)
        text = json.dumps([text] if schema and schema.get("type") != "array" else {}) if schema else '{"answer": '
    said = text or "".join(call["function"]["arguments"] for call in calls)
    return Answer(text, calls, finish, _tokens("\n".join(texts_of(body))), 0 if not said else _tokens(said))


_BENT: Final[Mapping[str, str]] = {
    "truncated": "length",
    "empty": "stop",
    "content_filter": "content_filter",
    "unknown_finish": "eos",
    "finish_error": "error",
}
"""Fault -> its finish reason."""


def _tokens(text: str) -> int:
    return max(1, -(-len(text) // CHARACTERS_A_TOKEN))


def _usage(answer: Answer) -> Json:
    return {
        "prompt_tokens": answer.tokens_in,
        "completion_tokens": answer.tokens_out,
        "total_tokens": answer.tokens_in + answer.tokens_out,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }


def completion(body: Mapping[str, Any], answer: Answer, reply_id: str, *, fault: str = "ok") -> Json:
    """The body of a whole answer."""
    message: Json = {"role": "assistant", "content": answer.text or None, "refusal": None, "annotations": []}
    if answer.tool_calls:
        message["tool_calls"] = list(answer.tool_calls)
    else:
        message["content"] = answer.text
    choice: Json = {"index": 0, "message": message, "logprobs": None, "finish_reason": answer.finish_reason}
    if fault == "finish_error":
        choice["error"] = _PROVIDER_ERROR
    whole: Json = {
        "id": reply_id,
        "object": "chat.completion",
        "created": CREATED_S,
        "model": body["model"],
        "choices": [] if fault == "no_choices" else [choice],
        "usage": _usage(answer),
        "service_tier": "default",
        "system_fingerprint": "fp_fault",
    }
    return {**whole, "error": None} if fault == "error_null" else whole


def chunks(body: Mapping[str, Any], answer: Answer, reply_id: str, *, fault: str = "ok") -> list[Json]:
    """The chunks of a streamed answer, the last with its finish reason, and one of usage if it was asked.

    Content comes in at least two chunks where it has two characters, so that a half can be told from the whole.
    """
    frame: Json = {
        "id": reply_id,
        "object": "chat.completion.chunk",
        "created": CREATED_S,
        "model": body["model"],
        "service_tier": "default",
        "system_fingerprint": "fp_fault",
    }
    if fault == "error_null":
        frame["error"] = None
    if wants_usage(body):
        frame["usage"] = None
    deltas: list[Json] = [{"role": "assistant", "content": None if answer.tool_calls else "", "refusal": None}]
    deltas += [{"content": piece} for piece in _pieces(answer.text)]
    for index, call in enumerate(answer.tool_calls):
        head = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
        deltas.append({"tool_calls": [{"index": index, **head}]})
        for piece in _pieces(call["function"]["arguments"]):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    choices: list[Json] = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None} for delta in deltas]
    last: Json = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": answer.finish_reason}
    choices.append({**last, "error": _PROVIDER_ERROR} if fault == "finish_error" else last)
    events: list[Json] = [{**frame, "choices": [one]} for one in choices]
    if fault == "no_choices":
        events = [{**frame, "choices": []}]
    if wants_usage(body):
        events.append({**frame, "choices": [], "usage": _usage(answer)})
    return events


def _pieces(text: str) -> list[str]:
    words = re.findall(r"\S+\s*|\s+", text)
    return words if len(words) > 1 else [piece for piece in (text[: len(text) // 2], text[len(text) // 2 :]) if piece]


def event(data: Json | str) -> bytes:
    """One server-sent event."""
    return f"data: {data if isinstance(data, str) else json.dumps(data, separators=(',', ':'))}\n\n".encode()


def models(model: str) -> Json:
    """The body of `GET /v1/models`."""
    one = {"id": model, "object": "model", "created": CREATED_S, "owned_by": "millpond"}
    return {"object": "list", "data": [one]}


# ---------------------------------------------------------------- what is refused


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> Json:
    """The body of a refusal."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_PROVIDER_ERROR: Final[Json] = {"code": 502, "message": "The provider ended the answer with an error."}

BROKEN: Final[Json] = error_body("The server had an error while working on your request.", "server_error")
"""What an error inside a 200 or a stream says."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status and a body; `says_when` if it bears Retry-After."""

    status: int
    body: Json
    says_when: bool = False


_INVALID = "invalid_request_error"
REFUSALS: Final[Mapping[str, Refusal]] = {
    "429": Refusal(429, error_body("Rate limit reached.", "requests", "rate_limit_exceeded"), says_when=True),
    "429_bare": Refusal(429, error_body("Rate limit reached.", "requests", "rate_limit_exceeded")),
    "429_quota": Refusal(
        429, error_body("You exceeded your current quota.", "insufficient_quota", "insufficient_quota")
    ),
    "503_proof": Refusal(
        503, error_body("The engine is overloaded.", "service_unavailable_error", "overloaded"), says_when=True
    ),
    "503_bare": Refusal(503, error_body("Service unavailable.", "server_error")),
    "loading": Refusal(503, error_body("Loading model", "unavailable_error", "model_loading")),
    "500": Refusal(500, BROKEN),
    "400": Refusal(400, error_body("Invalid value for 'messages'.", _INVALID, None, "messages")),
    "400_context": Refusal(
        400,
        error_body(
            "The maximum context length is 8192 tokens; your messages are longer.",
            _INVALID,
            "context_length_exceeded",
            "messages",
        ),
    ),
    "400_credit": Refusal(400, error_body("Your credit balance is too low to use this API.", _INVALID)),
    "401": Refusal(401, error_body("Incorrect API key provided.", _INVALID, "invalid_api_key")),
    "402": Refusal(402, error_body("Payment required: add credits.", "billing_error", "payment_required")),
    "404_model": Refusal(404, error_body("The model does not exist.", _INVALID, "model_not_found", "model")),
    "408": Refusal(408, error_body("The request timed out.", "timeout_error")),
    "409": Refusal(409, error_body("Conflict with another request.", "conflict_error")),
    "413": Refusal(413, error_body("The request is too large.", _INVALID, "request_too_large")),
    "422": Refusal(422, error_body("The request could not be validated.", _INVALID, "unprocessable_entity")),
}
"""Fault -> the refusal it plays."""
