"""The lane of kind `chat`: an OpenAI-compatible chat completions API, streamed or not, one POST a call.

What goes into the body, and from where: the lane's `params`, over them the prompt's; then what the product decides
itself: model, messages, the cap on output, the schema, tools, effort, and how the answer travels. A value of None takes
a name out again (`params: {stream_options: null}` for a server that refuses it).
"""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast
from urllib.parse import quote

import httpx2

from millpond.lanes.answer import read_answer
from millpond.lanes.completion import Completion, Fault, parse, read_fault
from millpond.lanes.fit import cannot, content_parts, refusal
from millpond.lanes.lane import Call, Question
from millpond.lanes.wire import Exchange, get, open_client, post
from millpond.rules.errors import SettingsError
from millpond.rules.estimate import MOST_CHARS_PER_TOKEN
from millpond.rules.evidence import Absent, Evidence, Failure, Recalled, Recollection, Unknown
from millpond.rules.job import Image, Prompt, Reply
from millpond.rules.policy import OUTPUT_LIMITS, Deadlines, LanePolicy
from millpond.rules.redaction import clean
from millpond.rules.schema import WORDS_CHARS, is_strict

log = logging.getLogger("millpond.lanes")

SECRET_HEADERS = ("authorization", "api-key", "x-api-key", "cookie")
"""Headers of a lane's policy whose values are treated as keys."""

LABEL = "millpond_attempt"
"""The name in a request's metadata that says whose call it was: the attempt's uid."""

LISTING_MS = 30_000
"""A question to the listing has an answer by then, or none: it generates nothing. Ours."""

LISTED = 100
"""Completions asked for at once; the most that the public API gives."""

LISTING_PAGES = 20
"""Pages read of one listing. A server that heeds the filter has a page with one completion on it."""

_OWN_FIELDS = frozenset({"model", "messages", "stream"})
"""Names that no params may set: the prompt and the lane say them elsewhere."""


class CannotAsk(Exception):
    """The work cannot be put to this lane; nothing was sent. `evidence` says why."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__(evidence.message)
        self.evidence = evidence


class ChatLane:
    """Puts prompts to a chat completions API. `key` goes into the Authorization header; it is kept nowhere else.

    One HTTP client per event loop; a lane that is used in another loop opens a new one.
    """

    def __init__(self, policy: LanePolicy, key: str = "") -> None:
        """Raises SettingsError where the address, a header or the key cannot be used."""
        self.policy = policy
        self._url = _address(policy)
        self._headers = _headers(policy, key)
        named = {name.lower(): value for name, value in policy.headers.items()}
        self._secrets = tuple(
            filter(None, (key, self._url.password, *(named.get(name, "") for name in SECRET_HEADERS)))
        )
        self._client: httpx2.AsyncClient | None = None
        self._asking: httpx2.AsyncClient | None = None
        """Of its own, so that no call waits for a connection because of a question."""
        self._loop: asyncio.AbstractEventLoop | None = None

    async def call(self, call: Call) -> Evidence:
        """Make one POST and say what was seen; work that this lane cannot put is not sent at all."""
        try:
            if not isinstance(call.work, Prompt):
                raise CannotAsk(cannot("unfit", "unfit_work", "a chat lane takes prompts, not commands"))
            body = _encoded(_labelled(request_body(self.policy, call.work), self.policy, call.uid))
        except CannotAsk as refused:
            return refused.evidence
        # No answer in ordinary text reaches this; one that never stops does (O20).
        cap = self.policy.max_output_tokens
        completion = Completion(max_chars=cap * MOST_CHARS_PER_TOKEN if cap else None)
        exchange = await post(
            self._open()[0],
            self._url,
            headers={**self._headers, **_key_header(self.policy, call.idempotency_key)},
            body=body,
            deadlines=self.policy.deadlines,
            on_event=partial(_take_event, completion),
        )
        try:
            return self._clean(_evidence(exchange, completion, call.work))
        except Exception as problem:  # A reply that none of us foresaw was paid for all the same.
            _tell(problem)
            return self._clean(_unread(exchange, completion, problem))

    async def recall(self, question: Question) -> Recollection:
        """Look for the call among the completions that the provider has stored, by the label that it was sent with."""
        if not isinstance(question.work, Prompt):
            return Unknown("a chat lane takes prompts, not commands")
        after: str | None = None
        for _ in range(LISTING_PAGES):
            listing = await self._list(question.uid, after)
            if isinstance(listing, Unknown):
                return listing
            if found := next((one for one in listing.completions if _label_of(one) == question.uid), None):
                return self._read(found, listing.exchange, question.work)
            if not listing.has_more:
                return Absent()
            after = listing.last_id
        return Unknown(f"the listing of stored completions goes on after {LISTING_PAGES} pages")

    async def _list(self, uid: str, after: str | None) -> _Listing | Unknown:
        """One page of the stored completions that bear this attempt's label."""
        query = {f"metadata[{LABEL}]": uid, "limit": str(LISTED), **({"after": after} if after else {})}
        headers = {**self._headers, "accept": "application/json"}
        del headers["content-type"]
        url = self._url.copy_merge_params(query)
        exchange = await get(self._open()[1], url, headers=headers, deadlines=_for_listing(self.policy.deadlines))
        if exchange.failure is not None or not exchange.answered:
            words = exchange.message or _error_words(exchange.body).message
            what = exchange.failure if exchange.failure is not None else f"status {exchange.status}"
            return Unknown(clean(f"{what}: {words}"[:WORDS_CHARS], secrets=self._secrets))
        return _read_listing(exchange) or Unknown("its answer is no list of completions")

    def _read(self, stored: Mapping[str, Any], listing: Exchange, prompt: Prompt) -> Recollection:
        """Read a stored completion as the reply that its call would have brought, by the same code."""
        request_id = stored.get("request_id")
        exchange = replace(
            listing,
            body=json.dumps(stored, ensure_ascii=False).encode(errors="surrogatepass"),
            request_id=request_id if isinstance(request_id, str) else None,
            first_byte_ms=None,
        )
        completion = Completion()
        try:
            return Recalled(self._clean(_evidence(exchange, completion, prompt)))
        except Exception as problem:  # as of a reply that comes by itself
            _tell(problem)
            return Recalled(self._clean(_unread(exchange, completion, problem)))

    async def close(self) -> None:
        """Close the connections that are kept."""
        clients, self._client, self._asking = (self._client, self._asking), None, None
        for client in clients:
            if client is not None and self._loop is asyncio.get_running_loop():
                await client.aclose()

    def _open(self) -> tuple[httpx2.AsyncClient, httpx2.AsyncClient]:
        """The clients for calls and for questions."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._asking is None or self._loop is not loop:
            # Connections of another loop cannot even be closed from this one; they end with it.
            self._client, self._asking, self._loop = open_client(self.policy), open_client(self.policy), loop
        return self._client, self._asking

    def _clean(self, evidence: Evidence) -> Evidence:
        """Take the key out of everything but the reply itself."""
        kept = partial(clean, secrets=self._secrets)
        return replace(
            evidence,
            code=kept(evidence.code),
            type=kept(evidence.type),
            message=kept(evidence.message),
            headers={name: kept(value) for name, value in evidence.headers.items()},
            request_id=kept(evidence.request_id) if evidence.request_id else None,
        )


# ---------------------------------------------------------------- what is asked


def request_body(policy: LanePolicy, prompt: Prompt) -> dict[str, Any]:
    """The JSON body that puts a prompt to a lane. Raises CannotAsk where the lane or the prompt rules it out."""
    params = {**policy.params, **prompt.params}
    body = {name: value for name, value in params.items() if name not in _OWN_FIELDS}
    if body.get("n", 1) not in (1, None):
        words = "n: a call brings one answer; for more, enqueue with sample=1, 2, …"
        raise CannotAsk(cannot("permanent", "bad_params", words))
    if refused := refusal(policy, prompt):
        raise CannotAsk(refused)
    if model := policy.model_for(prompt):
        body["model"] = model
    body["messages"] = _messages(prompt)
    _cap_output(body, policy)
    if prompt.reasoning:
        body["reasoning_effort"] = prompt.reasoning
    if prompt.tools:
        body["tools"] = list(prompt.tools)
    if prompt.schema is not None:
        body["response_format"] = _response_format(prompt.schema, body.get("response_format"))
    if policy.streams:
        body = {"stream_options": {"include_usage": True}} | body | {"stream": True}
    else:
        body.pop("stream_options", None)
    return {name: value for name, value in body.items() if value is not None}


def _labelled(body: dict[str, Any], policy: LanePolicy, uid: str) -> dict[str, Any]:
    """The body with what lets the lane be asked for it later; what the params say of the metadata stays in it."""
    if not policy.can_recall or not uid:
        return body
    said = body.get("metadata")
    metadata = cast(Mapping[str, Any], said if isinstance(said, Mapping) else {})
    return {**body, "store": True, "metadata": {**metadata, LABEL: uid}}


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    """The chat: `messages` as they are, else system and task. Images join the last message of the user."""
    messages: list[dict[str, Any]] = [{**message} for message in prompt.messages or ()]
    if prompt.messages is None:
        system: dict[str, Any] = {"role": "system", "content": prompt.system}
        messages = [*([system] if prompt.system else []), {"role": "user", "content": prompt.task}]
    if prompt.images:
        last = next((message for message in reversed(messages) if message.get("role") == "user"), None)
        if last is None:
            last: dict[str, Any] | None = {"role": "user"}
            messages.append(last)
        text: Any = last.get("content")
        before = [{"type": "text", "text": text}] if text and isinstance(text, str) else content_parts(text)
        last["content"] = [*before, *map(_image_part, prompt.images)]
    return messages


def _image_part(image: Any) -> dict[str, Any]:
    """An image as a part of a message: its bytes as a data: URL, or its address, which the provider fetches."""
    if isinstance(image, Image):
        data = f"data:{image.media_type};base64,{b64encode(image.data).decode()}" if image.data else image.url
    else:
        data = image if isinstance(image, str) else ""
    if not data.startswith(("data:", "http://", "https://")):
        words = f"images: found {str(image)[:80]!r}, wanted an Image or a URL"
        raise CannotAsk(cannot("permanent", "bad_image", words))
    return {"type": "image_url", "image_url": {"url": data}}


def _cap_output(body: dict[str, Any], policy: LanePolicy) -> None:
    """Hold the output under the lane's cap, whatever the prompt asks: the cap bounds what was reserved for the call."""
    cap = policy.max_output_tokens
    if cap is None:
        return
    host = httpx2.URL(policy.base_url).host
    own = OUTPUT_LIMITS[0] if host.endswith((".openai.com", ".openai.azure.com")) else OUTPUT_LIMITS[1]
    for name in [name for name in OUTPUT_LIMITS if body.get(name) is not None] or [own]:
        asked = body.get(name)
        body[name] = min(asked, cap) if isinstance(asked, int) and asked > 0 else cap


def _response_format(schema: Mapping[str, Any], said: Any) -> dict[str, Any]:
    """The schema as the API takes it. `said` may hold the words around it: its name, strictness, description."""
    around: Any = cast(Mapping[str, Any], said).get("json_schema") if isinstance(said, Mapping) else None
    if not isinstance(around, Mapping):
        around = {"strict": is_strict(schema)}  # a caller who says the words leaves strictness to the API's default
    return {
        "type": "json_schema",
        "json_schema": {"name": "answer", **cast(Mapping[str, Any], around), "schema": schema},
    }


def _encoded(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        raise CannotAsk(cannot("permanent", "bad_prompt", f"the prompt cannot be written as JSON: {error}")) from None


def _address(policy: LanePolicy) -> httpx2.URL:
    wanted = (
        f"lanes.{policy.name}.base_url: found {policy.base_url!r}, wanted an address such as http://127.0.0.1:11434/v1"
    )
    try:
        url = httpx2.URL(policy.base_url)
    except (httpx2.InvalidURL, TypeError):
        raise SettingsError(wanted) from None
    if url.scheme not in ("http", "https") or not url.host:
        raise SettingsError(wanted)
    return url.copy_with(path=url.path.rstrip("/") + "/chat/completions")


def _headers(policy: LanePolicy, key: str) -> dict[str, str]:
    headers = {
        "content-type": "application/json",
        "accept": "text/event-stream, application/json" if policy.streams else "application/json",
        **({"authorization": f"Bearer {key}"} if key else {}),
        **{name.lower(): value for name, value in policy.headers.items()},
    }
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable() and name.isascii() and name.replace("-", "").isalnum()):
            what = "the key" if name == "authorization" and name not in policy.headers else f"the header {name!r}"
            raise SettingsError(f"lanes.{policy.name}: {what} holds characters that no header can carry")
    return headers


def _key_header(policy: LanePolicy, idempotency_key: str) -> dict[str, str]:
    """The idempotency key as a header; percent-encoded where it could not stand there, or be mistaken for encoded."""
    if not policy.dedup_header or not idempotency_key:
        return {}
    is_plain = idempotency_key.isascii() and idempotency_key.isprintable() and "%" not in idempotency_key
    is_plain = is_plain and idempotency_key == idempotency_key.strip()
    return {policy.dedup_header: idempotency_key if is_plain else quote(idempotency_key, safe="")}


# ---------------------------------------------------------------- what came back


def _take_event(completion: Completion, event: httpx2.ServerSentEvent) -> bool:
    """Take one event of a stream; one that cannot be taken ends it, and what came before it is kept."""
    try:
        return completion.take_event(event)
    except Exception as problem:  # Raised on, it would take the whole reply with it.
        _tell(problem)
        completion.broken = "bad_json"
        return True


def _tell(problem: Exception) -> None:
    """Our own reading broke. What it broke on may be somebody's words, so it is shown to those who debug alone."""
    log.warning("a reply broke our reading of it (%s); see the log at DEBUG", type(problem).__name__)
    log.debug("what broke", exc_info=problem)


def _evidence(exchange: Exchange, completion: Completion, prompt: Prompt) -> Evidence:
    """Put together what the wire and the codec saw."""
    failure, message, fault = exchange.failure, exchange.message, Fault()
    if exchange.status is not None and not exchange.answered and failure is None:
        fault = _error_words(exchange.body)
    elif exchange.answered and failure is None:
        failure, message = _read_reply(exchange, completion)
        fault = completion.fault or fault
    if completion.finished and not completion.fault and exchange.streamed:
        # The answer is whole; what happened to the connection afterwards does not take it back.
        failure, message = None, ""
    evidence = Evidence(
        sent=exchange.sent,
        failure=failure,
        status=exchange.status,
        code=fault.code,
        type=fault.type,
        message=fault.message or message,
        headers=exchange.headers,
        retry_info_ms=fault.retry_info_ms,
        body_bytes=exchange.body_bytes,
        first_byte_ms=exchange.first_byte_ms,
        terminal=completion.finished and failure is None,
        content_before_error=completion.content_before_fault,
        usage=completion.usage,
        request_id=exchange.request_id or completion.id,
        model=completion.model,
    )
    return _with_answer(evidence, completion, prompt)


def _unread(exchange: Exchange, completion: Completion, problem: Exception) -> Evidence:
    """What is known of a reply that could not be put together: all that the wire saw, and its body as it came."""
    return Evidence(
        sent=exchange.sent,
        said="unusable" if exchange.answered else None,
        failure=exchange.failure,
        status=exchange.status,
        code="bad_output",
        message=f"the reply could not be read: {type(problem).__name__}: {problem}"[:WORDS_CHARS],
        headers=exchange.headers,
        body_bytes=exchange.body_bytes,
        first_byte_ms=exchange.first_byte_ms,
        reply=Reply(text=exchange.body.decode(errors="replace") or completion.text),
        usage=completion.usage,
        request_id=exchange.request_id,
        model=completion.model,
    )


def _with_answer(evidence: Evidence, completion: Completion, prompt: Prompt) -> Evidence:
    """Add what was answered: whole, with the schema's judgement, or in part."""
    is_refused = bool(completion.refusal) and not completion.has_content
    finish_reason = "refusal" if is_refused else completion.finish_reason
    data, schema_error = None, ""
    if prompt.schema is not None and evidence.terminal and completion.text.strip():
        data, schema_error = read_answer(completion.text, prompt.schema)
    reply = Reply(
        text=completion.text,
        data=None if schema_error else data,
        finish_reason=finish_reason,
        model=completion.model,
        **({"usage": completion.usage} if completion.usage else {}),
        request_id=evidence.request_id,
        raw=completion.as_body(),
    )
    came = completion.finished or completion.chars > 0 or bool(completion.tool_calls)
    return replace(
        evidence,
        message=completion.refusal if is_refused and not evidence.message else evidence.message,
        has_content=completion.has_content,
        finish_reason=finish_reason,
        schema_error=schema_error,
        reply=reply if came else None,
    )


def _read_reply(exchange: Exchange, completion: Completion) -> tuple[Failure | None, str]:
    """Read a 2xx reply that came to its end."""
    if not exchange.streamed:
        body = parse(exchange.body)
        if isinstance(body, list) and len(cast(list[Any], body)) == 1:  # Gemini wraps its errors in a list
            body = cast(list[Any], body)[0]
        if not isinstance(body, Mapping):
            return "bad_json", f"the reply is no JSON object: {exchange.body[:200].decode(errors='replace')}"
        completion.take_whole(cast(Mapping[str, Any], body))
        return None, ""
    if completion.fault:
        return "stream_error", ""
    if completion.broken == "bad_json":
        return "bad_json", "an event of the stream is no JSON object"
    if completion.broken == "too_long":
        return "stream_cut", f"more than {completion.max_chars} characters of output; stopped reading"
    if not completion.finished:
        return "stream_unfinished", "the stream ended without a finish reason or [DONE]"
    return None, ""


@dataclass(frozen=True, slots=True)
class _Listing:
    """One page of stored completions."""

    completions: Sequence[Mapping[str, Any]]
    has_more: bool
    last_id: str | None
    exchange: Exchange


def _read_listing(exchange: Exchange) -> _Listing | None:
    """Read a page; None where it is none, or says that more follows and not after what."""
    body = parse(exchange.body)
    if not isinstance(body, Mapping):
        return None
    said = cast(Mapping[str, Any], body)
    data, has_more, last_id = said.get("data"), said.get("has_more"), said.get("last_id")
    if not isinstance(data, list) or not isinstance(has_more, bool) or (has_more and not isinstance(last_id, str)):
        return None
    listed = [cast(Mapping[str, Any], one) for one in cast(list[Any], data) if isinstance(one, Mapping)]
    return _Listing(listed, has_more, last_id, exchange)


def _label_of(completion: Mapping[str, Any]) -> str | None:
    """Whose call it was: a server that does not heed the filter lists those of others too."""
    metadata = completion.get("metadata")
    return cast(Mapping[str, Any], metadata).get(LABEL) if isinstance(metadata, Mapping) else None


def _for_listing(deadlines: Deadlines) -> Deadlines:
    """The lane's own deadlines, none of them beyond what a listing may take."""
    return Deadlines(
        connect_ms=min(deadlines.connect_ms, LISTING_MS),
        first_byte_ms=min(deadlines.first_byte_ms, LISTING_MS),
        idle_ms=min(deadlines.idle_ms, LISTING_MS),
        total_ms=min(deadlines.total_ms, LISTING_MS),
    )


def _error_words(body: bytes) -> Fault:
    """The words of an error's body; a body that is no JSON is its own words."""
    parsed = parse(body)
    return read_fault(parsed) if isinstance(parsed, (Mapping, list)) else Fault(message=body.decode(errors="replace"))
