"""What a handler said of its work: by what it returned, by what it raised, or by not coming back in time.

A handler is whatever does a lane's work in the user's own code: a callable, a program, a worker outside the drain.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any

from millpond.lanes.answer import read_answer
from millpond.rules.errors import HandlerSignal, Permanent, Retryable, Saturated
from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome, Prompt, Reply, Usage
from millpond.rules.price import token_count
from millpond.rules.redaction import clean
from millpond.rules.schema import judge_answer


def raised(error: BaseException, *, secrets: Iterable[str] = ()) -> Evidence:
    """What an exception of a handler says. Its traceback is left out: it may show the work and the key.

    Only a HandlerSignal says how the call ended. What any other exception means is left to the table of outcomes, which
    asks whether the lane has effects.
    """
    return Evidence(
        failure="exception",
        said=_said(error),
        type=type(error).__name__,
        message=clean(str(error), secrets),
        retry_info_ms=_ms(error.after_s) if isinstance(error, HandlerSignal) else None,
    )


def returned(value: Any, work: Any) -> Evidence:
    """What a call that ended well brought. The work is done, so a value of no use is unusable, not retryable."""
    if isinstance(value, Reply):
        reply = value
    elif isinstance(value, str):
        reply = Reply(text=value)
    else:
        reply = _reply_of(value)
    if reply is not None:
        reply = _sound(reply)
    if reply is None:
        found = "None" if value is None else type(value).__name__
        words = f"the callable returned {found}, wanted text, JSON-able data or a Reply"
        return Evidence(said="unusable", code="bad_output", message=words, terminal=True)
    has_schema = isinstance(work, Prompt) and work.schema is not None
    # Where a text is the answer, what stands beside it in data takes nothing from it: it is stored as near as can be.
    schema_error = _no_json(reply.data) if has_schema or not reply.text.strip() else ""
    if schema_error:
        reply = dataclasses.replace(reply, data=None)
    elif isinstance(work, Prompt) and work.schema is not None and (reply.data is not None or reply.text.strip()):
        data = reply.data
        if isinstance(value, Reply | str) and data is None:
            data, schema_error = read_answer(reply.text, work.schema)
        else:
            schema_error = judge_answer(data, work.schema)
        reply = dataclasses.replace(reply, data=None if schema_error else data)
    return Evidence(
        terminal=True,
        body_bytes=len(reply.text.encode(errors="replace")),
        has_content=bool(reply.text.strip() or schema_error) or reply.data is not None or reply.finish_reason in _CALLS,
        finish_reason=reply.finish_reason or "stop",
        schema_error=schema_error,
        reply=reply,
        usage=reply.usage if reply.usage != Usage() else None,
        request_id=reply.request_id,
        model=reply.model,
    )


def ran_out(total_ms: int) -> Evidence:
    """What silence until the total deadline says."""
    return Evidence(failure="total_timeout", message=f"total timeout after {total_ms} ms")


_CALLS = ("tool_calls", "tool_use")
"""Finish reasons of a reply that calls tools, which stand in `raw`."""

_SAID: tuple[tuple[type[HandlerSignal], Outcome], ...] = (
    (Permanent, "permanent"),
    (Saturated, "saturated"),
    (Retryable, "retryable"),
)


def _said(error: BaseException) -> Outcome | None:
    if not isinstance(error, HandlerSignal):
        return None
    for kind, outcome in _SAID:
        if isinstance(error, kind):
            return outcome
    return "ambiguous"


def _ms(after_s: float | None) -> int | None:
    """Seconds as a callable says them, in ms, rounded up; below 0 is 0, and what is no number is not said."""
    if after_s is None or math.isnan(after_s) or math.isinf(after_s):
        return None
    return max(0, math.ceil(after_s * 1000))


def _sound(reply: Reply) -> Reply | None:
    """A handler's Reply with nothing in it that cannot be stored; None if its text is none."""
    text: Any = reply.text
    usage: Any = reply.usage
    if not isinstance(text, str):
        return None
    if not isinstance(usage, Usage):
        usage = Usage()
    return dataclasses.replace(
        reply,
        finish_reason=_word(reply.finish_reason),
        model=_word(reply.model),
        request_id=_word(reply.request_id),
        usage=dataclasses.replace(
            usage, tokens_in=token_count(usage.tokens_in), tokens_out=token_count(usage.tokens_out)
        ),
    )


def _no_json(data: Any) -> str:
    """Why data cannot be kept as JSON; "" if it can."""
    try:
        json.dumps(data, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as problem:
        return f"its data is no JSON: {problem}"
    return ""


def _word(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _reply_of(value: Any) -> Reply | None:
    """JSON-able data as a reply, in the form in which it will be read back; None for anything else."""
    if value is None:
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return Reply(text=text, data=json.loads(text))
