"""A chat completion as it comes, whole or in chunks, put together into one answer.

When is it finished? A whole body is. A stream is once a finish reason or `[DONE]` was seen: the finish reason is the
model's own word that the answer is whole, and `[DONE]` only says that nothing follows, so servers that leave it out, or
whose connection breaks between the two, have still answered in full; at worst the usage is missing, and then unknown.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from httpx2 import ServerSentEvent

from millpond.rules.job import Usage
from millpond.rules.price import token_count

Json = Mapping[str, Any]

_FRAME = ("created", "service_tier", "system_fingerprint")

MAX_DIGITS = 4_000
"""Python itself refuses to read or write numbers of more than 4,300."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An error as a provider words it: `code` and `type` are its own, `retry_info_ms` the delay that it states."""

    code: str = ""
    type: str = ""
    message: str = ""
    retry_info_ms: int | None = None


@dataclass(slots=True)
class Completion:
    """The first choice of a completion, and what was said around it. Other choices are left out."""

    max_chars: int | None = None
    """Characters of output after which the stream is given up; None for no such limit."""
    id: str | None = None
    model: str | None = None
    finish_reason: str | None = None
    usage: Usage | None = None
    fault: Fault | None = None
    broken: Literal["", "bad_json", "too_long"] = ""
    """Why nothing more can be read: an event that is no JSON, or more output than was asked for."""
    done: bool = False
    """Whether a whole body or `[DONE]` came."""
    content_before_fault: bool = False
    text_parts: list[str] = field(default_factory=list[str])
    refusal_parts: list[str] = field(default_factory=list[str])
    tool_calls: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    frame: dict[str, Any] = field(default_factory=dict[str, Any])
    """What else a provider says of a whole completion, by name: when it was made, by what."""
    logprobs: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    chars: int = 0
    """Characters of output so far: text, refusal, reasoning and arguments."""
    _whole: Json | None = None

    @property
    def finished(self) -> bool:
        """Whether the answer is whole."""
        return self.done or self.finish_reason is not None

    @property
    def text(self) -> str:
        return "".join(self.text_parts)

    @property
    def refusal(self) -> str:
        return "".join(self.refusal_parts)

    @property
    def has_content(self) -> bool:
        """Whether there is a text that is more than white space, or a call of a tool."""
        return bool(self.text.strip()) or bool(self.tool_calls)

    def take_whole(self, body: Json) -> None:
        """Take a whole body."""
        self.done, self._whole = True, body
        self._take_frame(body)
        if not self.fault and (choice := _first_choice(body)):
            self._take_choice(choice, _mapping(choice.get("message")))

    def take_event(self, event: ServerSentEvent) -> bool:
        """Take one event of a stream. True says that nothing more is wanted."""
        data = event.data.strip()
        if data == "[DONE]":
            self.done = True
            return True
        if not data:
            return False
        chunk = parse(data)
        if not isinstance(chunk, Mapping):
            self.broken = "bad_json"
            return True
        had_content = self.chars > 0 or bool(self.tool_calls)
        self._take_frame(cast(Json, chunk), is_error=event.event == "error")
        if not self.fault and (choice := _first_choice(cast(Json, chunk))):
            self._take_choice(choice, _mapping(choice.get("delta") or choice.get("message")))
        if self.fault:
            self.content_before_fault = had_content
            return True
        if self.max_chars is not None and self.chars > self.max_chars:
            self.broken = "too_long"
        return self.broken != ""

    def as_body(self) -> Json:
        """The body as it came; of a stream, the body that an unstreamed completion would have had."""
        if self._whole is not None:
            return self._whole
        message: dict[str, Any] = {"role": "assistant", "content": self.text or None}
        if self.refusal:
            message["refusal"] = self.refusal
        if self.tool_calls:  # only the parts of a stream bear numbers
            calls = [{name: value for name, value in call.items() if name != "index"} for call in self.tool_calls]
            message["tool_calls"] = calls
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": self.finish_reason}
        if self.logprobs:
            choice["logprobs"] = self.logprobs
        return {
            "id": self.id,
            "object": "chat.completion",
            "model": self.model,
            "choices": [choice],
            "usage": self.usage.raw if self.usage else None,
            **self.frame,
        }

    def _take_frame(self, body: Json, *, is_error: bool = False) -> None:
        self.id = _text(body.get("id")) or self.id
        self.model = _text(body.get("model")) or self.model
        self.usage = read_usage(body.get("usage")) or self.usage
        self.frame |= {name: body[name] for name in _FRAME if body.get(name) is not None}
        if is_error or body.get("error") is not None:
            self.fault = read_fault(body)

    def _take_choice(self, choice: Json, said: Json) -> None:
        self._take_texts(said)
        for name, tokens in _mapping(choice.get("logprobs")).items():
            if isinstance(tokens, list):
                self.logprobs.setdefault(name, []).extend(cast(list[Any], tokens))
        for position, call in enumerate(_list(said.get("tool_calls"))):
            self._take_tool_call(_mapping(call), position)
        self.finish_reason = _text(choice.get("finish_reason")) or self.finish_reason
        if choice.get("error") is not None:
            self.fault = read_fault(choice)

    def _take_texts(self, said: Json) -> None:
        for kind, text in _texts(said.get("content")):
            (self.refusal_parts if kind == "refusal" else self.text_parts).append(text)
            self.chars += len(text)
        if refusal := _text(said.get("refusal")):
            self.refusal_parts.append(refusal)
            self.chars += len(refusal)
        self.chars += len(_text(said.get("reasoning_content")) or _text(said.get("reasoning")))

    def _take_tool_call(self, part: Json, position: int) -> None:
        """Join a part to its call: the one of its index, else the one begun last, unless it bears a new id."""
        index = part.get("index")
        if not isinstance(index, int):
            starts = bool(part.get("id")) or not self.tool_calls
            index = max(position, len(self.tool_calls)) if starts else len(self.tool_calls) - 1
        call: dict[str, Any] | None = next((call for call in self.tool_calls if call["index"] == index), None)
        if call is None:
            call = {"index": index, "id": "", "type": "function", "function": {"name": "", "arguments": ""}}
            self.tool_calls.append(call)
        function = _mapping(part.get("function"))
        arguments = function.get("arguments")
        if isinstance(arguments, Mapping):  # some local servers give the object itself
            arguments = json.dumps(arguments, ensure_ascii=False)
        call["id"] = _text(part.get("id")) or call["id"]
        call["function"]["name"] = _text(function.get("name")) or call["function"]["name"]
        call["function"]["arguments"] += _text(arguments)
        self.chars += len(_text(arguments))


def parse(text: str | bytes) -> Any:
    """Parse JSON; None if it is none. (A lone `null` is no body either.)

    A number that Python cannot hold, or that JSON does not have (NaN, 1e999, thousands of digits), is read as its text:
    the answer beside it was paid for.
    """
    try:
        return json.loads(text, parse_int=_number, parse_float=_number, parse_constant=str)
    except (ValueError, RecursionError):
        return None


def _number(digits: str) -> int | float | str:
    if digits.lstrip("-").isdecimal():
        return int(digits) if len(digits) <= MAX_DIGITS else digits
    number = float(digits)
    return number if math.isfinite(number) else digits


def read_usage(usage: Any) -> Usage | None:
    """Read tokens off a usage object; what is missing is unknown, None if there is no such object."""
    if not isinstance(usage, Mapping) or not usage:
        return None
    raw = cast(Json, usage)
    return Usage(
        tokens_in=token_count(raw.get("prompt_tokens", raw.get("input_tokens"))),
        tokens_out=token_count(raw.get("completion_tokens", raw.get("output_tokens"))),
        raw=raw,
    )


def read_fault(body: Any) -> Fault:
    """Read a provider's words off the body of an error, in the shapes that servers send.

    `{"error": {"code", "type", "message"}}` (OpenAI, OpenRouter, Anthropic), the same in a list (Gemini),
    `{"error": "words"}` (Ollama), `{"message", "type", "code"}` (vLLM), `{"detail": …}` (FastAPI).
    """
    if isinstance(body, list):
        body = next(iter(cast(list[Any], body)), None)
    outer = _mapping(body)
    error = outer.get("error", outer)
    if not isinstance(error, Mapping):
        return Fault(message=_words(error))
    said = cast(Json, error)
    # OpenRouter and Gemini put the status there as a number; an HTTP status is a code like any other.
    code = said.get("code")
    kind = _text(said.get("type")) or _text(said.get("status"))
    message = said.get("message", said.get("detail", said.get("error", "")))
    return Fault(
        code="" if code is None or isinstance(code, (Mapping, list)) else str(code),
        type=kind,
        message=_words(message) or (_words(said) if said else ""),
        retry_info_ms=_retry_info_ms(said.get("details")),
    )


def _retry_info_ms(details: Any) -> int | None:
    """Gemini's RetryInfo: `{"@type": "…RetryInfo", "retryDelay": "34.07s"}`, rounded up to the millisecond."""
    for detail in map(_mapping, _list(details)):
        delay = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,9}))?s", _text(detail.get("retryDelay")))
        if delay and "RetryInfo" in _text(detail.get("@type")):
            fraction = (delay[2] or "").ljust(9, "0")
            return int(delay[1]) * 1000 - (-int(fraction) // 1_000_000)
    return None


def _first_choice(body: Json) -> Json:
    """The choice of index 0; empty if there is none."""
    choices = [_mapping(choice) for choice in _list(body.get("choices"))]
    return next((choice for choice in choices if choice.get("index") in (0, None)), _mapping(None))


def _texts(content: Any) -> list[tuple[str, str]]:
    """The texts of a message's content with their kinds; a list of parts is read part by part."""
    if isinstance(content, str):
        return [("text", content)]
    parts = [_mapping(part) for part in _list(content)]
    texts = [(_text(part.get("type")), _text(part.get("text")) or _text(part.get("refusal"))) for part in parts]
    return [(kind, text) for kind, text in texts if kind in ("text", "output_text", "refusal", "")]


def _words(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> Json:
    return cast(Json, value) if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []
