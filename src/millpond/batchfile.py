"""OpenAI batch files on their way out: what became of a submission, as lines of the output file and of the error file.

An answer keeps the provider's own body; where there is none, or an essential part of one is missing, it is made up from
what is known, so that each body can be read as a chat completion.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from millpond.rules.job import Error

if TYPE_CHECKING:
    from millpond.queue import Queue
    from millpond.rules.job import Reply
    from millpond.store.looking import Answered


def batch_lines(queue: Queue, submission: int | str) -> Iterator[dict[str, Any]]:
    """One line for each request of a submission that is done, failed or cancelled, in the order of the file.

    `{"id", "custom_id", "response", "error"}` as in OpenAI's batch files: a line whose `error` is None belongs into the
    output file, any other into the error file. Requests that are pending have no line yet. Raises UsageError if there
    is no such submission.
    """
    answered = queue.store.answered(queue.submission(submission).id)
    return (_line(one) for one in answered if one.state in ("done", "failed", "cancelled"))


def _line(one: Answered) -> dict[str, Any]:
    line: dict[str, Any] = {"id": f"batch_req_{one.request_id}", "custom_id": one.custom_id}
    if one.reply is None:
        error = one.error or Error("reply_missing", "it was answered, and its reply is not in this queue any more")
        return {**line, "response": None, "error": {"code": error.code, "message": error.message}}
    response = {
        "status_code": 200,
        "request_id": one.reply.request_id or one.attempt_uid,
        "body": _completion(one, one.reply),
    }
    return {**line, "response": response, "error": None}


def _completion(one: Answered, reply: Reply) -> dict[str, Any]:
    """The provider's body, or one in its shape, with everything in it that a chat completion must have."""
    body: Mapping[str, Any] = _as_completion(reply.raw) or _made_up(reply)
    choices: list[dict[str, Any]] = body["choices"]
    first = choices[0]
    said_there: dict[str, Any] = first["message"]
    if first.get("finish_reason") is None:  # a stream that ended with [DONE] alone, or a function that did not say
        calls = bool(said_there.get("tool_calls"))
        first = {**first, "finish_reason": reply.finish_reason or ("tool_calls" if calls else "stop")}
    essentials = {
        "id": f"chatcmpl-{one.attempt_uid}",
        "object": "chat.completion",
        "created": (one.answered_ms or 0) // 1000,
        "model": reply.model or one.model or one.lane or "",
    }
    said = {name: value for name, value in body.items() if value is not None or name not in essentials}
    message: dict[str, Any] = {"role": "assistant", **said_there}
    return {**essentials, **said, "choices": [{"index": 0, **first, "message": message}, *choices[1:]]}


def _as_completion(raw: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What was kept as the provider's body, if it is one rather than something that a function made up."""
    choices: Any = raw.get("choices") if raw else None
    first: Any = cast("list[Any]", choices)[0] if isinstance(choices, list) and choices else None
    message: Any = cast("dict[str, Any]", first).get("message") if isinstance(first, dict) else None
    return raw if isinstance(message, dict) else None


def _made_up(reply: Reply) -> dict[str, Any]:
    """A body for a reply that came without one. Unknown usage is left out: a zero would be believed."""
    text = reply.text
    if not text and reply.data is not None:
        text = json.dumps(reply.data, ensure_ascii=False)
    body: dict[str, Any] = {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    tokens_in, tokens_out = reply.usage.tokens_in, reply.usage.tokens_out
    if tokens_in is not None and tokens_out is not None:
        total = tokens_in + tokens_out
        body["usage"] = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": total}
    return body
