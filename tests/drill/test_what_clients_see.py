"""Every fault as two clients meet it that know nothing of us: plain httpx2, and the official `openai`.

What each sees is what the table of docs/testing.md says in its column "the client sees"; what was done and what arrived
is what its other two columns say. A fault without a line here fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import httpx2
import openai
import pytest
from record_openai import ASKED, TOOL

from millpond.drill.faultlane import FaultLane
from millpond.drill.script import FAULTS


class Sights(NamedTuple):
    """What the clients make of one fault, without a stream and with one.

    `finish reason: content`, `…` for a finish reason that never came; `| …` what else stood in a stream, its end
    included; after a slash how it broke off, for `openai` the class of the error and its code, else its type.
    """

    httpx2: str
    httpx2_stream: str
    openai: str
    openai_stream: str


def answered(words: str) -> Sights:
    """A whole answer, the same for all."""
    return Sights(words, f"{words} | [DONE]", words, words)


def refused(words: str, error: type[openai.APIStatusError], *, says_when: bool = False) -> Sights:
    """A status and the word for it, the same whether a stream was asked or not."""
    plain = f"{words} Retry-After" if says_when else words
    known = f"/ {error.__name__} {words.partition(' ')[2]}"
    return Sights(plain, plain, known, known)


ANSWER = "one two three four"
NO_REPLY = Sights("/ RemoteProtocolError", "/ RemoteProtocolError", "/ APIConnectionError", "/ APIConnectionError")
CUT = Sights(
    "no JSON / RemoteProtocolError", "…: one two / RemoteProtocolError",
    "/ APIConnectionError", "…: one two / APIConnectionError",
)  # fmt: skip
ERROR = "error server_error"
SIGHTS: Mapping[str, Sights] = {
    "ok": answered(f"stop: {ANSWER}"),
    "stream_ok": answered(f"stop: {ANSWER}"),
    "slow": answered(f"stop: {ANSWER}"),
    "tool_calls": answered("tool_calls: count_ducks"),
    "error_null": Sights(
        f"stop: {ANSWER} | error null", f"stop: {ANSWER} | error null | [DONE]", f"stop: {ANSWER}", f"stop: {ANSWER}"
    ),
    "429": refused("429 rate_limit_exceeded", openai.RateLimitError, says_when=True),
    "429_bare": refused("429 rate_limit_exceeded", openai.RateLimitError),
    "429_quota": refused("429 insufficient_quota", openai.RateLimitError),
    "503_proof": refused("503 overloaded", openai.InternalServerError, says_when=True),
    "503_bare": refused("503 server_error", openai.InternalServerError),
    "loading": refused("503 model_loading", openai.InternalServerError),
    "500": refused("500 server_error", openai.InternalServerError),
    "400": refused("400 invalid_request_error", openai.BadRequestError),
    "400_context": refused("400 context_length_exceeded", openai.BadRequestError),
    "400_credit": refused("400 invalid_request_error", openai.BadRequestError),
    "401": refused("401 invalid_api_key", openai.AuthenticationError),
    "402": refused("402 payment_required", openai.APIStatusError),
    "404_model": refused("404 model_not_found", openai.NotFoundError),
    "408": refused("408 timeout_error", openai.APIStatusError),
    "409": refused("409 conflict_error", openai.ConflictError),
    "413": refused("413 request_too_large", openai.APIStatusError),
    "422": refused("422 unprocessable_entity", openai.UnprocessableEntityError),
    # `openai` follows it, and pays with a second POST.
    "redirect": Sights("307 to this server", "307 to this server", f"stop: {ANSWER}", f"stop: {ANSWER}"),
    "reset": Sights("/ ReadError", "/ ReadError", "/ APIConnectionError", "/ APIConnectionError"),
    "reset_idle": answered(f"stop: {ANSWER}"),
    "cut": CUT._replace(httpx2_stream="…: one / RemoteProtocolError", openai_stream="…: one / APIConnectionError"),
    "hang": NO_REPLY,
    # `openai` hands out the page as a text, and finds no event in it.
    "html": Sights("text/html", "text/html", "a text", ""),
    "bad_json": Sights("no JSON", "…: | no JSON | [DONE]", "/ JSONDecodeError", "…: / JSONDecodeError"),
    "stream_cut": CUT,
    # Nothing is raised: part of an answer looks like one.
    "stream_unfinished": CUT._replace(httpx2_stream="…: one two", openai_stream="…: one two"),
    "stream_error_before": Sights(ERROR, f"…: | {ERROR}", "no choices", "/ APIError server_error"),
    "stream_error_after": Sights(ERROR, f"…: one two | {ERROR}", "no choices", "…: one two / APIError server_error"),
    "comments": NO_REPLY._replace(httpx2_stream="…: | comments / RemoteProtocolError"),
    "partial_stream_then_hang": NO_REPLY._replace(httpx2_stream=CUT.httpx2_stream, openai_stream=CUT.openai_stream),
    "error_200": Sights(ERROR, ERROR, "no choices", ""),
    "finish_error": answered("error:")._replace(
        httpx2="error: | error 502", httpx2_stream="error: | error 502 | [DONE]"
    ),
    "no_choices": Sights("no choices", "…: | [DONE]", "no choices", "…:"),
    "empty": answered("stop:"),
    "truncated": answered(f"length: {ANSWER[: len(ANSWER) // 2]}"),
    "content_filter": answered("content_filter:"),
    "unknown_finish": answered(f"eos: {ANSWER}"),
    "bad_schema": answered('stop: {"answer":'),
}


WHOLE = ("stop:", "tool_calls:", "length:", "content_filter:", "eos:")
"""Finish reasons of a model that has said all that it will."""


def test_every_fault_has_its_line() -> None:
    assert list(SIGHTS) == list(FAULTS)


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_a_plain_client_sees(plain: httpx2.Client, fault: str, stream: bool) -> None:
    with lane_of(fault) as lane:
        seen = by_httpx2(plain, lane, stream=stream)
        assert seen == (SIGHTS[fault].httpx2_stream if stream else SIGHTS[fault].httpx2)
        assert_remembered(lane, fault, stream)
        assert lane.posts()[0].delivered == (seen.startswith(WHOLE) and "/" not in seen), "what arrives is seen whole"
        assert lane.accepted() == 1


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "streamed"])
@pytest.mark.parametrize("fault", list(FAULTS))
def test_the_official_client_sees(official: openai.OpenAI, fault: str, stream: bool) -> None:
    with lane_of(fault) as lane:
        assert by_openai(official, lane, stream=stream) == (
            SIGHTS[fault].openai_stream if stream else SIGHTS[fault].openai
        )
        assert_remembered(lane, fault, stream)
        assert lane.accepted() == (2 if fault == "redirect" else 1)


def test_a_kept_connection_breaks_under_the_next_request(plain: httpx2.Client, official: openai.OpenAI) -> None:
    with FaultLane(script=["reset_idle"]) as lane:
        assert by_httpx2(plain, lane, stream=False) == "stop: answer to " + lane.posts()[0].prompt_digest[:8]
        # Which of the two depends on how much of the request had left when the reset came.
        assert by_httpx2(plain, lane, stream=False) in ("/ ReadError", "/ RemoteProtocolError")
        assert lane.accepted() == 1
    with FaultLane(script=["reset_idle"]) as lane:
        assert by_openai(official, lane, stream=False).startswith("stop: ")
        assert by_openai(official, lane, stream=False) == "/ APIConnectionError"
        assert lane.accepted() == 1


# ---------------------------------------------------------------- the two clients


@pytest.fixture(scope="module")
def plain() -> Iterator[httpx2.Client]:
    with httpx2.Client() as client:
        yield client


@pytest.fixture(scope="module")
def official() -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url="http://127.0.0.1", api_key="placeholder", max_retries=0) as client:
        yield client


def lane_of(fault: str) -> FaultLane:
    return FaultLane(script=[fault, "ok"], slow_s=0.02, hang_s=0.05, answer=lambda _: ANSWER)


def assert_remembered(lane: FaultLane, fault: str, stream: bool) -> None:
    """The two other columns of the table hold: done, arrives."""
    played = FAULTS[fault] if stream else FAULTS[FAULTS[fault].plain or fault]
    post = lane.posts()[0]
    assert (post.fault, post.completed, post.delivered) == (fault, played.works, played.arrives)


def body_of(*, stream: bool) -> dict[str, Any]:
    return {"model": "m", "messages": ASKED, "tools": [TOOL], "stream": stream}


def by_httpx2(client: httpx2.Client, lane: FaultLane, *, stream: bool) -> str:
    said, raw = "", b""
    reply: httpx2.Response | None = None
    try:
        with client.stream("POST", f"{lane.base_url}/chat/completions", json=body_of(stream=stream)) as reply:
            for chunk in reply.iter_bytes():
                raw += chunk
    except httpx2.TransportError as error:
        said = f" / {type(error).__name__}"
    return ((words_of(reply, raw, lane) if reply is not None else "") + said).strip()


def words_of(reply: httpx2.Response, raw: bytes, lane: FaultLane) -> str:
    """A reply in words, as far as it came."""
    kind = reply.headers["content-type"].partition(";")[0] if reply.status_code != 307 else ""
    if reply.status_code == 307:
        return "307 to this server" if reply.headers["location"].startswith(lane.base_url) else "307"
    if reply.status_code != 200:
        when = " Retry-After" if "retry-after" in reply.headers else ""
        return f"{reply.status_code} {word_of(json.loads(raw)['error'])}{when}"
    if kind == "text/event-stream":
        *events, _ = raw.decode().split("\n\n")  # the last is not whole
        return words_of_chunks(events)
    return words_of_body(raw) if kind == "application/json" else kind


def words_of_body(raw: bytes) -> str:
    body = parsed(raw)
    if body is None:
        return "no JSON"
    if body.get("error"):
        return f"error {word_of(body['error'])}"
    for choice in body["choices"]:
        calls = " ".join(call["function"]["name"] for call in choice["message"].get("tool_calls") or [])
        said = f"{choice['finish_reason']}: {choice['message']['content'] or calls}".strip()
        return " | ".join([said, *errors_in(body), *errors_in(choice)])
    return "no choices"


def words_of_chunks(events: list[str]) -> str:
    finish, content, beside = "…", "", dict[str, None]()
    for event in events:
        data = event.removeprefix("data: ")
        chunk = parsed(data)
        if event.startswith(":"):
            beside["comments"] = None
        elif data == "[DONE]" or chunk is None:
            beside["[DONE]" if data == "[DONE]" else "no JSON"] = None
        else:
            beside |= dict.fromkeys(errors_in(chunk))
            for choice in chunk.get("choices", []):
                beside |= dict.fromkeys(errors_in(choice))
                calls = choice["delta"].get("tool_calls") or []
                content += choice["delta"].get("content") or "".join(call["function"].get("name", "") for call in calls)
                finish = choice["finish_reason"] or finish
    return " | ".join([f"{finish}: {content}".strip(), *beside])


def errors_in(part: Mapping[str, Any]) -> list[str]:
    """What a body, a chunk or a choice says of an error, null included."""
    if "error" not in part:
        return []
    return ["error null" if part["error"] is None else f"error {word_of(part['error'])}"]


def word_of(error: Mapping[str, Any]) -> str:
    return str(error.get("code") or error.get("type"))


def parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def by_openai(client: openai.OpenAI, lane: FaultLane, *, stream: bool) -> str:
    asked: Any = body_of(stream=stream)
    said = ""
    try:
        reply = client.with_options(base_url=lane.base_url).chat.completions.create(**asked)
        for words in words_as_they_come(reply) if stream else [words_of_completion(reply)]:
            said = words
    except (openai.APIError, ValueError) as error:
        word = getattr(error, "code", None) or getattr(error, "type", None)
        said += f" / {type(error).__name__}" + (f" {word}" if word else "")
    return said.strip()


def words_of_completion(completion: Any) -> str:
    if isinstance(completion, str):
        return "a text"
    for choice in completion.choices or []:
        calls = " ".join(call.function.name for call in choice.message.tool_calls or [])
        return f"{choice.finish_reason}: {choice.message.content or calls}".strip()
    return "no choices"


def words_as_they_come(stream: Any) -> Iterator[str]:
    finish, content = "…", ""
    for chunk in stream:
        for choice in chunk.choices:
            calls = choice.delta.tool_calls or []
            content += choice.delta.content or "".join(call.function.name or "" for call in calls)
            finish = choice.finish_reason or finish
        yield f"{finish}: {content}".strip()
