"""The words that providers use: for how an answer ended, for why they refuse, and the status that each stands for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

FINISHED = frozenset(
    {
        "stop",
        "tool_calls",
        "tool_use",
        "function_call",
        "end_turn",
        "stop_sequence",
        "eos_token",
        "completed",
        "complete",
    }
)
"""Finish reasons of a whole answer."""

TRUNCATED = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "model_length",
        "model_context_window_exceeded",
        "incomplete",
        "pause_turn",
    }
)
"""Finish reasons of an answer that was cut off."""

FILTERED = frozenset(
    {
        "content_filter",
        "refusal",
        "safety",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "guardrail_intervened",
        "content_filtered",
    }
)
"""Finish reasons of an answer that was refused for its content."""

FAILED = frozenset({"error", "failed"})
"""Finish reasons that are an error in the place of an answer."""

NO_MONEY_WORDS = (
    "insufficient_quota",
    "credit_balance_exhausted",
    "spend_limit",
    "usage_limit",
    "billing_hard_limit",
    "billing_not_active",
    "insufficient_credits",
    "insufficient_balance",
)
"""Parts of the codes that say that the account is empty or its limit used up."""

NO_MONEY_TEXTS = ("credit balance is too low", "specified api usage limits")
"""What the text says of an empty account. Not "exceeded your current quota": Google says that of a rate limit too."""

LIMIT_ZERO = re.compile(r"\blimit:\s*0(?![\d.])")
"""A quota of nothing, which never refills."""

CONTEXT_WORDS = (
    "context_length_exceeded",
    "exceed_context_size",
    "maximum context length",
    "prompt is too long",
    "available context size",
    "context window",
)
"""The prompt is longer than the model takes."""

CONTENT_WORDS = ("content_filter", "content_policy", "moderation")
"""The prompt was refused for its content."""

THING_WORDS = ("no such file", "previous response", "previous_response", "file-")
"""Something else than the model that a request names, and that is not there."""

REFUSING_WORDS = ("overloaded", "slow_down")
"""Proof that a request was turned away at the door."""

LOADING_WORDS = ("loading model", "model is loading", "currently loading", "model_loading", "model is not ready")
"""A local server is getting its model ready."""

STATUS_OF: Mapping[str, int] = {
    # OpenAI and those who follow it
    "rate_limit_exceeded": 429,
    "rate_limit": 429,
    "rate_limited": 429,
    "too_many_requests": 429,
    "insufficient_quota": 429,
    "resource_unavailable": 429,
    "slow_down": 503,
    "server_is_overloaded": 503,
    "service_unavailable": 503,
    "server_error": 500,
    "internal_error": 500,
    "internal_server_error": 500,
    "model_not_found": 404,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "invalid_request": 400,
    "invalid_api_key": 401,
    "content_filter": 400,
    "content_policy_violation": 400,
    # Anthropic
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
    # Google
    "invalid_argument": 400,
    "failed_precondition": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
    "resource_exhausted": 429,
    "cancelled": 499,
    "internal": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
}
"""The status that an error code stands for where the HTTP status does not tell: in a 200, a stream, a batch line."""


def status_of(*words: str) -> int | None:
    """The HTTP status that the first known of these words stands for, a number for itself; None if none is known."""
    for word in words:
        name = word.strip().lower()
        if re.fullmatch(r"[45][0-9]{2}", name):
            return int(name)
        if name in STATUS_OF:
            return STATUS_OF[name]
    return None


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"\b(20[0-9]{2})-([0-9]{2})-([0-9]{2})(?:(?:[T ]| at )([0-9]{2}):([0-9]{2}))?")


def stated_date_ms(text: str) -> int | None:
    """A date in the provider's text ("…regain access on 2026-12-01 at 00:00 UTC"), as UTC; None if there is none."""
    match = _DATE.search(text)
    if not match:
        return None
    year, month, day, hour, minute = (int(part or 0) for part in match.groups())
    try:
        return (datetime(year, month, day, hour, minute, tzinfo=UTC) - _EPOCH) // timedelta(milliseconds=1)
    except ValueError:
        return None
