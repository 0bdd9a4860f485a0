"""Bodies that an OpenAI-compatible chat API answers with, as the fault lane bends them: answers, chunks, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from millpond.drill.chatrequest import Json, must_call, schema_of, texts_of, wants_usage
from millpond.drill.least import least
from millpond.drill.script import prompt_digest

CREATED_S: Final = 1_700_000_000
"""`created` of every answer: a fixed moment, so that equal requests get equal bodies."""
CHARACTERS_A_TOKEN: Final = 4
"""A rule of thumb for English; the usage of a fake only has to be the same every time."""


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


def default_answer(body: Mapping[str, Any]) -> str:
    """The answer that follows from the prompt alone: its digest in words, or the least JSON that the schema allows."""
    words = f"answer to {prompt_digest(body)[:8]}"
    schema = schema_of(body)
    if schema is not None:
        return json.dumps(least(schema, words))
    kind: Any = cast(Json, body.get("response_format") or {}).get("type")
    return json.dumps({"answer": words}) if kind == "json_object" else words


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
    if fault in _BENT:
        finish = _BENT[fault]
        text = {"truncated": text[: max(1, len(text) // 2)], "unknown_finish": text}.get(fault, "")
    elif fault == "bad_schema":
        schema = schema_of(body)
        text = json.dumps([text] if schema and schema.get("type") != "array" else {}) if schema else '{"answer": '
    elif fault == "tool_calls" or must_call(body):
        text, calls, finish = "", tool_calls_for(body), "tool_calls"
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
