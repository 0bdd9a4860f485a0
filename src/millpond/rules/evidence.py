"""What was seen of one call: facts off the wire, in words that the table of outcomes reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from millpond.rules.job import Outcome, Reply, Usage

Sent = Literal["no", "headers", "yes"]
"""`no`: nothing left. `headers`: the head left, the body not whole. `yes`: the whole request may have arrived."""

Failure = Literal[
    "refused",
    "dns",
    "tls",
    "connect_timeout",
    "pool_timeout",
    "write_timeout",
    "write_error",
    "first_byte_timeout",
    "idle_timeout",
    "total_timeout",
    "soft_timeout",
    "closed",
    "reset",
    "not_http",
    "body_cut",
    "bad_json",
    "stream_cut",
    "stream_unfinished",
    "stream_error",
    "html",
    "redirect",
    "died",
    "exception",
    "exit_status",
    "cancelled",
]
"""What went wrong on the way, as the lane saw it."""

Uncalled = Literal["lease_too_old", "lease_lost", "stopped"]
"""Why a call that has its ledger row was never made: we slept, or waited too long, since the lease; the job was
cancelled or given to another; the drain was stopped."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything a lane saw of one call. It states facts; `classify` decides what they mean.

    `said` is what a callable said itself (Retryable, Saturated, …). `code`, `type` and `message` are the provider's own
    words, from the body or from a stream event. `headers` are the few that matter, lower case, raw.
    """

    sent: Sent = "yes"
    failure: Failure | None = None
    status: int | None = None
    code: str = ""
    type: str = ""
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    retry_info_ms: int | None = None
    """A delay stated in the body (Gemini's RetryInfo) or by a callable's `after_s`."""
    body_bytes: int = 0
    first_byte_ms: int | None = None
    """ms from the send to the first byte of the reply."""
    terminal: bool = False
    """Whether the reply bore its terminal marker: a finish reason, `[DONE]`, a whole JSON body, exit status 0."""
    has_content: bool = False
    """Whether any text or tool call came."""
    content_before_error: bool = False
    """In a stream: whether content had come before the error event."""
    finish_reason: str | None = None
    schema_error: str = ""
    """Why the answer does not satisfy the schema that was asked; "" if it does or none was asked."""
    said: Outcome | None = None
    reply: Reply | None = None
    """The reply, whole or in part; only an `ok` one is ever accepted."""
    usage: Usage | None = None
    request_id: str | None = None
    model: str | None = None


LEASE_TOO_OLD = "too long after its lease, or asleep since: others may have its job by now"
"""In words."""


def uncalled(code: Uncalled, why: str) -> Evidence:
    """Of an attempt whose call we never made: its row is written, and its lane never heard of it."""
    return Evidence(sent="no", said="retryable", code=code, message=why)


@dataclass(frozen=True, slots=True)
class Recalled:
    """A lane that was asked what became of a call has its reply: what would have been seen of the call."""

    evidence: Evidence


@dataclass(frozen=True, slots=True)
class Absent:
    """The lane was asked, and has no record of the call. A lane says what it found; what that proves is no matter of
    its own: it may not have settled yet."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The lane could not be asked, or what it said cannot be read; `why` in words."""

    why: str = ""


Recollection = Recalled | Absent | Unknown
"""What a lane answers of an earlier call."""
