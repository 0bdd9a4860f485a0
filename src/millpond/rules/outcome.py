"""How a call can end: eight outcomes, and `classify`, which reads them off the evidence by one table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome
from millpond.rules.provider_words import (
    CONTENT_WORDS,
    CONTEXT_WORDS,
    FILTERED,
    FINISHED,
    LIMIT_ZERO,
    LOADING_WORDS,
    REFUSING_WORDS,
    THING_WORDS,
    TRUNCATED,
    stated_date_ms,
)
from millpond.rules.retry_after import clamped, stated_delay_ms
from millpond.rules.view import UNDECLARED, Declared, View

TABLE_VERSION = 1
"""Grows with every change of a row's meaning; docs/outcomes.md names it."""

MESSAGE_CHARS = 500
"""How much of the provider's words is kept."""

STATED_DATE_CAP_MS = 366 * 86_400_000
"""A date in a provider's text further ahead than this is not believed: a person opens the lane instead."""

WORKED: frozenset[Outcome] = frozenset({"ok", "unusable"})
"""Outcomes of a call that did the work; it is billed by its usage."""

MAY_BE_BILLED: frozenset[Outcome] = frozenset({*WORKED, "ambiguous"})
"""Outcomes of a call that did the work or may have: tokens and cost that are not known then are unknown, not none."""

LaneClose = Literal["until", "person", "model", "count"]
"""What an ending means for the lane itself: closed `until` the delay has passed, until a `person` opens it, for that
`model` only, or one more to `count` before the policy closes it (a local server that is not running)."""


@dataclass(frozen=True, slots=True)
class Classified:
    """What an ending means: for the attempt (`outcome`, `code`, `message`), and apart from it for the lane."""

    outcome: Outcome
    code: str
    """Stable word for filters and reports: `rate_limited`, `no_money`, `truncated`."""
    message: str
    """The provider's own words where there are any, else the table's. Not redacted yet."""
    delay_ms: int | None
    """How long until the lane (if it closes) or the job (if not) may go again; None where nothing states it."""
    lane_close: LaneClose | None
    warning: str
    row: str
    """The row of the table that decided."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: when it holds, what it means, and why. The first row that holds decides."""

    name: str
    outcome: Outcome
    code: str
    when: str
    holds: Callable[[View], bool]
    why: str
    lane: LaneClose | None = None
    delay: Literal["stated", "default", "date"] = "stated"
    """Whence a delay comes: only what is stated, else the default too (every saturated row), or a date in the text."""
    warning: str = ""


_UNSENT_FAILURES = ("refused", "dns", "tls", "connect_timeout")


def _status(*codes: int) -> Callable[[View], bool]:
    return lambda v: v.status in codes


def _failed(*failures: str) -> Callable[[View], bool]:
    return lambda v: v.seen.failure in failures


def _said(outcome: Outcome) -> Callable[[View], bool]:
    return lambda v: v.seen.said == outcome


_SAID: tuple[tuple[Outcome, LaneClose | None], ...] = (
    ("retryable", None),
    ("saturated", "until"),
    ("lane_down", "person"),
    ("ambiguous", None),
    ("unfit", None),
    ("permanent", None),
    ("unusable", None),
)

# fmt: off
TABLE: tuple[Row, ...] = (
    Row("died", "ambiguous", "died",
        when="our process died between record and settle",
        holds=_failed("died"),
        why="nobody is left who saw whether the request went"),
    # A handler's own word. Its plain reply ("ok") is judged below like any other.
    *(
        Row(f"said-{outcome.replace('_', '-')}", outcome, f"said_{outcome}", lane=lane,
            when=f"a handler said {outcome}",
            holds=_said(outcome),
            why="the handler knows its own work")
        for outcome, lane in _SAID
    ),
    # Nothing left: nothing was done, whatever else went wrong.
    Row("unsent-pool", "saturated", "pool_timeout", lane="until",
        when="not sent: no connection of our own pool was free in time",
        holds=lambda v: v.seen.sent == "no" and v.seen.failure == "pool_timeout",
        why="we had no room; nothing left"),
    Row("unsent-local", "retryable", "not_running", lane="count",
        when="not sent: a local lane refused the connection, or DNS, TLS or connect failed",
        holds=lambda v: v.declared.local and v.seen.sent == "no" and v.seen.failure in _UNSENT_FAILURES,
        why="the server is not running: no attempt of the job is used up, and several in a row close the lane"),
    Row("unsent", "retryable", "unreachable",
        when="not sent, for any other reason",
        holds=lambda v: v.seen.sent == "no",
        why="nothing left, so no work was done"),
    # What answered is not the provider.
    Row("redirect", "lane_down", "redirect", lane="person",
        when="a redirect",
        holds=lambda v: v.seen.failure == "redirect" or 300 <= (v.seen.status or 0) < 400,
        why="never followed: the address is wrong, or somebody else answers; whoever redirects did not do the work"),
    Row("html", "ambiguous", "html", lane="person",
        when="HTML where an answer was wanted, status 2xx or none",
        holds=lambda v: v.seen.failure == "html" and not v.is_error,
        why="a page in between answers for the provider: the lane closes; the request may have passed through all "
            "the same"),
    Row("not-http", "ambiguous", "not_http", lane="person",
        when="the answer is not HTTP",
        holds=_failed("not_http"),
        why="something else listens there: the lane closes; what it did with the request is unknown"),
    # The provider named an error: by status, in a 200, in a stream event, in a batch line.
    Row("no-money-after-content", "ambiguous", "error_after_content", lane="person", delay="date",
        when="the money ran out after content had come (the words of `no-money`)",
        holds=lambda v: v.came_after_content and v.has_no_money,
        why="work was done and may be billed; the next request would not pass"),
    Row("error-after-content", "ambiguous", "error_after_content",
        when="an error after content had come",
        holds=lambda v: v.came_after_content,
        why="work was done and may be billed"),
    Row("outcome-unknown", "ambiguous", "outcome_unknown",
        when="`change_outcome_unknown`",
        holds=lambda v: v.is_error and v.named("change_outcome_unknown"),
        why="the provider itself does not know"),
    Row("no-money", "lane_down", "no_money", lane="person", delay="date",
        when="`insufficient_quota`, `credit_balance_exhausted`, `*_spend_limit_*`, "
             "`*_usage_limit_*`, or the text says that credit or the API usage limit is used up",
        holds=lambda v: v.has_no_money,
        why="no request will pass until somebody pays or the stated date comes"),
    Row("429-limit-zero", "lane_down", "no_quota", lane="person",
        when="429 with `limit: 0`",
        holds=lambda v: v.status == 429 and LIMIT_ZERO.search(v.text) is not None,
        why="a quota of nothing never refills"),
    Row("refused-content", "permanent", "filtered",
        when="400 or 403 by a content filter or moderation",
        holds=lambda v: v.status in (400, 403) and v.says(*CONTENT_WORDS),
        why="the prompt was refused, not the key: the lane stays open"),
    Row("no-access", "lane_down", "no_access", lane="person",
        when="401, 402, 403, 407, 451",
        holds=_status(401, 402, 403, 407, 451),
        why="key, billing, permission, region or proxy: the same for every job"),
    Row("400-context", "unfit", "context_length",
        when="400 or 413: the prompt exceeds the context window",
        holds=lambda v: v.status in (400, 413) and v.says(*CONTEXT_WORDS),
        why="a lane with a larger window may do it"),
    Row("400", "permanent", "invalid_request",
        when="400 with words",
        holds=lambda v: v.status == 400 and v.is_readable,
        why="refused before any work; it would be refused again"),
    Row("404-model", "unfit", "model_not_found", lane="model",
        when="404 for a model",
        holds=lambda v: v.status == 404 and v.says("model"),
        why="another lane may have the model; this lane closes for it"),
    Row("404-thing", "permanent", "not_found",
        when="404 for something else that the request named",
        holds=lambda v: v.status == 404 and (any(w.endswith("_not_found") for w in v.words) or v.says(*THING_WORDS)),
        why="the request points at a thing that is not there; the lane is well"),
    Row("404", "lane_down", "no_such_address", lane="person",
        when="404 otherwise",
        holds=_status(404),
        why="the address is wrong: the same for every job"),
    Row("408-499", "ambiguous", "server_timeout",
        when="408, 499",
        holds=_status(408, 499),
        why="somebody on the way gave up waiting; the work may go on"),
    Row("409-replay", "retryable", "in_progress", delay="default",
        when="409 on a lane that replays by idempotency key",
        holds=lambda v: v.status == 409 and v.declared.idempotency == "replay",
        why="our earlier request is at work: wait, then the same key brings its reply"),
    Row("409-reject", "ambiguous", "key_taken",
        when="409 on a lane that rejects a repeated idempotency key",
        holds=lambda v: v.status == 409 and v.declared.idempotency == "reject",
        why="the key was taken by our earlier request, whose work exists and cannot be asked for this way"),
    Row("409", "permanent", "conflict",
        when="409 otherwise",
        holds=_status(409),
        why="refused before any work; it would be refused again"),
    Row("413-larger", "unfit", "too_large",
        when="413 and a lane that takes more exists",
        holds=lambda v: v.status == 413 and v.declared.larger_lane_exists,
        why="another lane may take it"),
    Row("413", "permanent", "too_large",
        when="413 otherwise",
        holds=_status(413),
        why="no lane takes it"),
    Row("422", "permanent", "invalid_request",
        when="422",
        holds=_status(422),
        why="refused by validation"),
    Row("429", "saturated", "rate_limited", lane="until",
        when="429 otherwise (rate limit, `slow_down`, Gemini's RetryInfo, flex `resource_unavailable`)",
        holds=_status(429),
        why="refused for want of room; not charged"),
    Row("498", "saturated", "capacity", lane="until",
        when="498",
        holds=_status(498),
        why="Groq: no capacity now"),
    Row("500-harmless", "retryable", "server_error",
        when="500 on a lane that declares `retry_500`",
        holds=lambda v: v.status == 500 and v.declared.retry_500,
        why="its provider documents that a 500 does no work and costs nothing; 502, 504, 52x come from boxes between"),
    Row("503-loading", "saturated", "loading", lane="until",
        when="503 while a model is loading",
        holds=lambda v: v.status == 503 and v.says(*LOADING_WORDS),
        why="a local server will be ready soon"),
    Row("503-refused", "retryable", "overloaded",
        when="503 or 529 with proof of refusal: overloaded, `slow_down`, `server_is_overloaded`, or a Retry-After "
             "that can be read",
        holds=lambda v: v.status in (503, 529) and (v.says(*REFUSING_WORDS) or v.has_stated_delay),
        why="turned away at the door: no work was done"),
    Row("5xx", "ambiguous", "server_error",
        when="any other 5xx (500, 502, 504, 520 to 527; 503 and 529 without proof)",
        holds=lambda v: 500 <= (v.status or 0) < 600,
        why="the work may have been done before it broke"),
    Row("4xx", "permanent", "refused",
        when="any other 4xx with the provider's own words",
        holds=lambda v: 400 <= (v.status or 0) < 500 and v.status != 400 and v.is_readable,
        why="an error that the provider wrote itself says that it refused the request; it would again"),
    Row("4xx-unread", "ambiguous", "refused_unread",
        when="a 4xx without readable words (400 too)",
        holds=lambda v: 400 <= (v.status or 0) < 500,
        why="it may be a box in between that gave up waiting (444, 460), so the refusal is not proved"),
    Row("error-unknown", "ambiguous", "error_unknown",
        when="an error inside a 200, a stream or a batch line, of a code that is not known",
        holds=lambda v: v.is_error,
        why="it was accepted before it failed, and nothing says that no work was done"),
    # The request left, or began to leave, and no whole reply came back.
    Row("body-half-sent", "retryable", "body_half_sent",
        when="the body did not leave whole, on a lane that declares partial bodies harmless",
        holds=lambda v: v.sent_half and v.declared.partial_bodies_harmless,
        why="half a body cannot be worked on there"),
    Row("exception-harmless", "retryable", "handler_failed",
        when="a handler raised something unforeseen, or its program ended with a non-zero status, and its lane has "
             "no effects",
        holds=lambda v: v.declared.exceptions_harmless and v.seen.failure in ("exception", "exit_status"),
        why="the lane declares that its handler has no effects"),
    Row("exception", "ambiguous", "handler_failed",
        when="a handler raised something unforeseen",
        holds=_failed("exception"),
        why="it may have had effects before it raised"),
    Row("exit-status", "ambiguous", "exit_status",
        when="a program ended with a non-zero status",
        holds=_failed("exit_status"),
        why="it may have done and paid for the work before it failed; a status number proves nothing"),
    Row("given-up", "ambiguous", "given_up",
        when="we ended the call: the drain was stopped",
        holds=_failed("cancelled"),
        why="we stopped waiting; the other side need not have stopped"),
    Row("our-deadline", "ambiguous", "timeout",
        when="one of our own deadlines passed (first byte, silence, total, soft)",
        holds=_failed("first_byte_timeout", "idle_timeout", "total_timeout", "soft_timeout"),
        why="we stopped waiting; the other side need not have stopped"),
    Row("cut", "ambiguous", "cut",
        when="sent, then closed, reset, cut, unreadable or ended without its terminal marker",
        holds=lambda v: v.seen.failure is not None,
        why="the work may exist; part of an answer is not an answer"),
    # A reply came: is it one?
    Row("unfinished", "ambiguous", "unfinished",
        when="a reply without its terminal marker",
        holds=lambda v: not v.seen.terminal,
        why="it may have been cut where no one saw it"),
    Row("filtered", "permanent", "filtered",
        when="finish reason content_filter, refusal and their kin",
        holds=lambda v: v.is_final and v.finish in FILTERED,
        why="refused for its content; other lanes are asked only if the user says so"),
    Row("truncated", "unusable", "truncated",
        when="finish reason length, max_tokens, incomplete and their kin",
        holds=lambda v: v.is_final and v.finish in TRUNCATED,
        why="paid for, and half an answer is not one"),
    Row("empty", "unusable", "empty",
        when="no choices, or neither text nor calls",
        holds=lambda v: v.is_final and not v.seen.has_content,
        why="paid for, and nothing in it"),
    Row("bad-output", "unusable", "bad_output",
        when="the answer does not satisfy the schema that was asked",
        holds=lambda v: v.is_final and bool(v.seen.schema_error),
        why="paid for, and not what was asked"),
    Row("ok", "ok", "ok",
        when="content with a known finish reason, or with none on a whole reply",
        holds=lambda v: v.is_final and (not v.finish or v.finish in FINISHED),
        why="complete"),
    Row("ok-unknown-finish", "ok", "ok", warning="unknown finish reason",
        when="content with a finish reason that is not known",
        holds=lambda v: v.is_final,
        why="complete, by a word that this table does not know yet"),
    Row("unknown", "ambiguous", "unknown",
        when="anything else (a whole reply under status 1xx)",
        holds=lambda _: True,
        why="neither provably unsent nor provably refused"),
)
# fmt: on
"""Every way a call can end, most telling first. The first row that holds decides; the last always holds."""


def classify(
    evidence: Evidence,
    declared: Declared = UNDECLARED,
    *,
    now_ms: int = 0,
    default_delay_ms: int = 5_000,
    cap_ms: int = 3_600_000,
) -> Classified:
    """Say what the evidence means, by the first row of TABLE that holds. Never raises.

    `default_delay_ms` is how long a saturated lane closes if nothing states it, `cap_ms` the longest that a Retry-After
    may close it.
    """
    stated_ms = stated_delay_ms(evidence.headers, now_ms)
    if stated_ms is None:
        stated_ms = evidence.retry_info_ms
    view = View.of(evidence, declared, has_stated_delay=stated_ms is not None)
    row = next(row for row in TABLE if row.holds(view))
    delay_ms: int | None = None
    lane_close = row.lane
    if row.delay == "date":
        if (until_ms := stated_date_ms(evidence.message)) and 0 < until_ms - now_ms <= STATED_DATE_CAP_MS:
            delay_ms, lane_close = until_ms - now_ms, "until"
    elif row.outcome == "saturated" or row.delay == "default":
        delay_ms = clamped(default_delay_ms if stated_ms is None else stated_ms, cap_ms)
    elif row.outcome in ("retryable", "ambiguous") and stated_ms is not None:
        delay_ms = clamped(stated_ms, cap_ms)
    warning = f"{row.warning} {evidence.finish_reason!r}" if row.warning else ""
    # A handler's own word may come with its own code.
    code = evidence.code if evidence.said == row.outcome and evidence.code else row.code
    return Classified(row.outcome, code, _words(evidence, row), delay_ms, lane_close, warning, row.name)


def table_in_words() -> str:
    """The table as Markdown, for docs/outcomes.md."""
    lanes = {None: "", "until": "closed until then", "person": "closed", "model": "closed for it", "count": "counted"}
    rows = [f"| {r.name} | {r.when} | `{r.outcome}` | {r.code} | {lanes[r.lane]} | {r.why} |" for r in TABLE]
    return "\n".join(["| row | when | outcome | code | lane | why |", "|---|---|---|---|---|---|", *rows])


def _words(evidence: Evidence, row: Row) -> str:
    """One line for people: status, the provider's code and message; else what the row says."""
    if row.outcome == "ok":
        return ""
    head = [str(evidence.status)] if evidence.status is not None and evidence.status != 200 else []
    if evidence.code or evidence.type:
        head.append(evidence.code or evidence.type)
    said = evidence.message or evidence.schema_error
    if not said:
        said = row.when if evidence.failure is None else f"{evidence.failure.replace('_', ' ')}: {row.why}"
    return ": ".join(part for part in (" ".join(head), said) if part)[:MESSAGE_CHARS]
