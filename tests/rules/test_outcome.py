"""Outcomes: every row of the table by an example, the cases by name, and what no evidence may ever lead to."""

from __future__ import annotations

import typing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules import outcome
from millpond.rules.evidence import Evidence, Failure, Sent
from millpond.rules.job import Outcome, Reply
from millpond.rules.outcome import TABLE, TABLE_VERSION, Classified, classify
from millpond.rules.provider_words import STATUS_OF
from millpond.rules.view import Declared

NOW_MS = 1_796_083_200_000  # 2026-12-01T00:00Z
DEFAULT_MS, CAP_MS = 5_000, 60_000
PAGE = (Path(__file__).parents[2] / "docs" / "outcomes.md").read_text(encoding="utf-8")


TIMES = {"now_ms": NOW_MS, "default_delay_ms": DEFAULT_MS, "cap_ms": CAP_MS}


def judge(evidence: Evidence, **declared: Any) -> Classified:
    times = {name: declared.pop(name, default) for name, default in TIMES.items()}
    return classify(evidence, Declared(**declared), **times)


def whole(**seen: Any) -> Evidence:
    """A complete reply under status 200."""
    return Evidence(**{"status": 200, "terminal": True, "has_content": True, "finish_reason": "stop", **seen})


def error(status: int, **seen: Any) -> Evidence:
    return Evidence(status=status, **seen)


def inner(**seen: Any) -> Evidence:
    """An error inside a 200."""
    return Evidence(status=200, terminal=True, **seen)


def event(**seen: Any) -> Evidence:
    """An error event in a stream, before any content."""
    return Evidence(status=200, failure="stream_error", **seen)


QUOTA = {"code": "insufficient_quota", "message": "You exceeded your current quota"}

Example = tuple[str, Evidence, dict[str, Any], Outcome, str, Any]
EXAMPLES: list[Example] = [
    # row, evidence, what the lane declares, outcome, code, lane
    ("died", Evidence(failure="died"), {}, "ambiguous", "died", None),
    ("died", Evidence(failure="died", sent="no"), {}, "ambiguous", "died", None),
    ("said-retryable", Evidence(said="retryable", failure="exception"), {}, "retryable", "said_retryable", None),
    ("said-saturated", Evidence(said="saturated", failure="exception"), {}, "saturated", "said_saturated", "until"),
    ("said-lane-down", Evidence(said="lane_down"), {}, "lane_down", "said_lane_down", "person"),
    ("said-ambiguous", Evidence(said="ambiguous", failure="exception"), {}, "ambiguous", "said_ambiguous", None),
    ("said-unfit", Evidence(said="unfit", code="no_images", sent="no"), {}, "unfit", "no_images", None),
    ("said-permanent", Evidence(said="permanent", failure="exception"), {}, "permanent", "said_permanent", None),
    ("said-unusable", Evidence(said="unusable"), {}, "unusable", "said_unusable", None),
    ("unsent-pool", Evidence(sent="no", failure="pool_timeout"), {}, "saturated", "pool_timeout", "until"),
    ("unsent-local", Evidence(sent="no", failure="refused"), {"local": True}, "retryable", "not_running", "count"),
    ("unsent", Evidence(sent="no", failure="refused"), {}, "retryable", "unreachable", None),
    ("unsent", Evidence(sent="no", failure="dns"), {}, "retryable", "unreachable", None),
    ("unsent", Evidence(sent="no", failure="tls"), {}, "retryable", "unreachable", None),
    ("unsent", Evidence(sent="no", failure="connect_timeout"), {}, "retryable", "unreachable", None),
    ("unsent", Evidence(sent="no", failure="cancelled"), {"local": True}, "retryable", "unreachable", None),
    ("unsent", Evidence(sent="no"), {}, "retryable", "unreachable", None),
    ("redirect", Evidence(failure="redirect", status=307), {}, "lane_down", "redirect", "person"),
    ("redirect", error(302), {}, "lane_down", "redirect", "person"),
    ("html", Evidence(status=200, failure="html", message="<html>Sign in"), {}, "ambiguous", "html", "person"),
    ("not-http", Evidence(failure="not_http"), {}, "ambiguous", "not_http", "person"),
    (
        "no-money-after-content",
        event(content_before_error=True, **QUOTA),
        {},
        "ambiguous",
        "error_after_content",
        "person",
    ),
    ("error-after-content", event(content_before_error=True, code="429"), {}, "ambiguous", "error_after_content", None),
    ("error-after-content", inner(code="rate_limit", has_content=True), {}, "ambiguous", "error_after_content", None),
    ("error-after-content", whole(finish_reason="error"), {}, "ambiguous", "error_after_content", None),
    (
        "outcome-unknown",
        error(503, code="change_outcome_unknown", headers={"retry-after": "1"}),
        {},
        "ambiguous",
        "outcome_unknown",
        None,
    ),
    ("no-money", error(429, **QUOTA), {}, "lane_down", "no_money", "person"),
    ("no-money", error(429, type="credit_balance_exhausted"), {}, "lane_down", "no_money", "person"),
    ("no-money", error(429, code="project_spend_limit_reached"), {}, "lane_down", "no_money", "person"),
    ("no-money", error(429, code="org_usage_limit_exceeded"), {}, "lane_down", "no_money", "person"),
    (
        "no-money",
        error(400, type="invalid_request_error", message="Your credit balance is too low"),
        {},
        "lane_down",
        "no_money",
        "person",
    ),
    (
        "no-money",
        error(400, message="You have reached your specified API usage limits."),
        {},
        "lane_down",
        "no_money",
        "person",
    ),
    (
        "429-limit-zero",
        error(429, message="Quota exceeded for metric: x, limit: 0\n"),
        {},
        "lane_down",
        "no_quota",
        "person",
    ),
    ("refused-content", error(400, code="content_filter", message="filtered"), {}, "permanent", "filtered", None),
    ("refused-content", error(403, message="Your input was flagged by moderation"), {}, "permanent", "filtered", None),
    *[("no-access", error(status), {}, "lane_down", "no_access", "person") for status in (401, 402, 403, 407, 451)],
    ("400-context", error(400, code="context_length_exceeded"), {}, "unfit", "context_length", None),
    (
        "400-context",
        error(400, message="prompt is too long: 9000 tokens > 8192 maximum"),
        {},
        "unfit",
        "context_length",
        None,
    ),
    ("400", error(400, type="invalid_request_error"), {}, "permanent", "invalid_request", None),
    ("404-model", error(404, code="model_not_found"), {}, "unfit", "model_not_found", "model"),
    (
        "404-model",
        error(404, type="not_found_error", message="model: claude-x"),
        {},
        "unfit",
        "model_not_found",
        "model",
    ),
    ("404-thing", error(404, code="previous_response_not_found"), {}, "permanent", "not_found", None),
    ("404-thing", error(404, message="No such File object: file-1"), {}, "permanent", "not_found", None),
    ("404", error(404), {}, "lane_down", "no_such_address", "person"),
    ("404", error(404, type="not_found_error", message="File Not Found"), {}, "lane_down", "no_such_address", "person"),
    *[("408-499", error(status), {}, "ambiguous", "server_timeout", None) for status in (408, 499)],
    ("409-replay", error(409), {"idempotency": "replay"}, "retryable", "in_progress", None),
    ("409-reject", error(409), {"idempotency": "reject"}, "ambiguous", "key_taken", None),
    ("409", error(409), {}, "permanent", "conflict", None),
    ("413-larger", error(413), {"larger_lane_exists": True}, "unfit", "too_large", None),
    ("413", error(413), {}, "permanent", "too_large", None),
    ("422", error(422), {}, "permanent", "invalid_request", None),
    ("429", error(429), {}, "saturated", "rate_limited", "until"),
    ("429", error(429, type="slow_down"), {}, "saturated", "rate_limited", "until"),
    ("429", error(429, code="resource_unavailable"), {}, "saturated", "rate_limited", "until"),
    (
        "429",
        error(429, message="You exceeded your current quota, limit: 0.5"),
        {},
        "saturated",
        "rate_limited",
        "until",
    ),
    ("429", error(429, failure="bad_json"), {}, "saturated", "rate_limited", "until"),
    ("498", error(498), {}, "saturated", "capacity", "until"),
    ("500-harmless", error(500), {"retry_500": True}, "retryable", "server_error", None),
    ("503-loading", error(503, message="Loading model"), {}, "saturated", "loading", "until"),
    ("503-refused", error(503, code="server_is_overloaded"), {}, "retryable", "overloaded", None),
    ("503-refused", error(503, code="slow_down"), {}, "retryable", "overloaded", None),
    ("503-refused", error(503, headers={"retry-after": "2"}), {}, "retryable", "overloaded", None),
    ("503-refused", error(529, type="overloaded_error"), {}, "retryable", "overloaded", None),
    *[
        ("5xx", error(status), {}, "ambiguous", "server_error", None)
        for status in (500, 501, 502, 503, 504, 520, 527, 529)
    ],
    ("5xx", error(503, headers={"retry-after": "soon"}), {}, "ambiguous", "server_error", None),
    ("5xx", error(503, failure="html", message="temporarily overloaded"), {}, "ambiguous", "server_error", None),
    ("5xx", error(502), {"retry_500": True}, "ambiguous", "server_error", None),
    ("4xx", error(418, message="I am a teapot"), {}, "permanent", "refused", None),
    ("4xx-unread", error(444), {}, "ambiguous", "refused_unread", None),
    ("4xx-unread", error(400), {}, "ambiguous", "refused_unread", None),
    ("4xx-unread", error(400, failure="html", message="Bad Request"), {}, "ambiguous", "refused_unread", None),
    ("error-unknown", inner(message="oops"), {}, "ambiguous", "error_unknown", None),
    ("error-unknown", event(), {}, "ambiguous", "error_unknown", None),
    ("error-unknown", inner(finish_reason="failed"), {}, "ambiguous", "error_unknown", None),
    ("error-unknown", error(999), {}, "ambiguous", "error_unknown", None),
    (
        "body-half-sent",
        Evidence(sent="headers", failure="write_timeout"),
        {"partial_bodies_harmless": True},
        "retryable",
        "body_half_sent",
        None,
    ),
    ("cut", Evidence(sent="headers", failure="write_timeout"), {}, "ambiguous", "cut", None),
    ("cut", Evidence(sent="yes", failure="write_timeout"), {"partial_bodies_harmless": True}, "ambiguous", "cut", None),
    (
        "exception-harmless",
        Evidence(failure="exception"),
        {"exceptions_harmless": True},
        "retryable",
        "handler_failed",
        None,
    ),
    (
        "exception-harmless",
        Evidence(failure="exit_status"),
        {"exceptions_harmless": True},
        "retryable",
        "handler_failed",
        None,
    ),
    ("exception", Evidence(failure="exception", type="ValueError"), {}, "ambiguous", "handler_failed", None),
    ("exit-status", Evidence(failure="exit_status", message="exit status 1"), {}, "ambiguous", "exit_status", None),
    ("given-up", Evidence(failure="cancelled"), {}, "ambiguous", "given_up", None),
    *[
        ("our-deadline", Evidence(failure=failure), {}, "ambiguous", "timeout", None)
        for failure in ("first_byte_timeout", "idle_timeout", "total_timeout", "soft_timeout")
    ],
    *[
        ("cut", Evidence(failure=failure, status=200, has_content=True), {}, "ambiguous", "cut", None)
        for failure in ("closed", "reset", "body_cut", "bad_json", "stream_cut", "stream_unfinished", "write_error")
    ],
    ("unfinished", whole(terminal=False), {}, "ambiguous", "unfinished", None),
    ("unfinished", Evidence(), {}, "ambiguous", "unfinished", None),
    ("filtered", whole(finish_reason="content_filter", has_content=False), {}, "permanent", "filtered", None),
    ("filtered", whole(finish_reason="refusal"), {}, "permanent", "filtered", None),
    ("filtered", whole(finish_reason="SAFETY"), {}, "permanent", "filtered", None),
    ("truncated", whole(finish_reason="length"), {}, "unusable", "truncated", None),
    ("truncated", whole(finish_reason="max_tokens", schema_error="no JSON"), {}, "unusable", "truncated", None),
    ("truncated", whole(finish_reason="incomplete"), {}, "unusable", "truncated", None),
    ("empty", whole(has_content=False), {}, "unusable", "empty", None),
    ("empty", whole(has_content=False, finish_reason=None), {}, "unusable", "empty", None),
    ("bad-output", whole(schema_error="'age' is required"), {}, "unusable", "bad_output", None),
    *[
        ("ok", whole(finish_reason=reason), {}, "ok", "ok", None)
        for reason in ("stop", "STOP", "tool_calls", "tool_use", "end_turn", "stop_sequence", None, "")
    ],
    ("ok", Evidence(terminal=True, has_content=True), {}, "ok", "ok", None),
    ("ok", Evidence(said="ok", terminal=True, has_content=True), {}, "ok", "ok", None),
    ("ok-unknown-finish", whole(finish_reason="eos"), {}, "ok", "ok", None),
    ("unknown", whole(status=102), {}, "ambiguous", "unknown", None),
]


@pytest.mark.parametrize(("row", "evidence", "declared", "wanted", "code", "lane"), EXAMPLES)
def test_each_row_decides_its_examples(
    row: str, evidence: Evidence, declared: dict[str, Any], wanted: Outcome, code: str, lane: Any
) -> None:
    found = judge(evidence, **declared)
    assert (found.row, found.outcome, found.code, found.lane_close) == (row, wanted, code, lane)


def test_no_row_is_dead_and_no_name_is_used_twice() -> None:
    names = [row.name for row in TABLE]
    assert len(names) == len(set(names))
    assert set(names) == {example[0] for example in EXAMPLES}


def test_every_failure_that_a_lane_may_report_is_decided_on_purpose() -> None:
    seen = {evidence.failure for _, evidence, *_ in EXAMPLES}
    assert seen == {None, *typing.get_args(Failure)}


def test_the_page_shows_the_table_as_it_is() -> None:
    assert PAGE.endswith("\n" + outcome.table_in_words() + "\n")
    assert f"Version {TABLE_VERSION}." in PAGE
    for name in typing.get_args(Outcome):
        assert f"| `{name}` |" in PAGE


def test_the_last_row_holds_always_and_is_ambiguous() -> None:
    assert TABLE[-1].name == "unknown"
    assert TABLE[-1].outcome == "ambiguous"


# Cases


def test_o04_a_length_stop_or_an_empty_text_is_no_good_answer() -> None:
    ends = [
        (whole(finish_reason="length", has_content=False), "unusable", "truncated"),
        (whole(finish_reason="length"), "unusable", "truncated"),
        (whole(finish_reason="content_filter", has_content=False), "permanent", "filtered"),
        (whole(finish_reason="stop", has_content=False), "unusable", "empty"),
    ]
    for evidence, wanted, code in ends:
        found = judge(evidence)
        assert (found.outcome, found.code) == (wanted, code)
    unknown = judge(whole(finish_reason="eos"))
    assert unknown.outcome == "ok"
    assert "eos" in unknown.warning


def test_o21_a_429_that_means_no_money_closes_the_lane_however_it_comes() -> None:
    no_money = [
        error(429, code="insufficient_quota"),
        event(code="insufficient_quota"),
        inner(code="insufficient_quota"),
        Evidence(code="insufficient_quota"),  # a batch line
        error(429, message="Quota exceeded for quota metric 'x', limit: 0"),
        error(400, type="invalid_request_error", message="Your credit balance is too low to access the API."),
    ]
    for evidence in no_money:
        found = judge(evidence)
        assert (found.outcome, found.lane_close) == ("lane_down", "person"), evidence
        assert found.message
    plain = [
        error(429, type="rate_limit_error", headers={"retry-after": "2"}),
        event(type="rate_limit_error", headers={"retry-after": "2"}),
        inner(type="rate_limit_error", headers={"retry-after": "2"}),
    ]
    for evidence in plain:
        found = judge(evidence)
        assert (found.outcome, found.lane_close, found.delay_ms) == ("saturated", "until", 2_000), evidence


def test_o21_the_same_code_ends_the_same_way_by_status_and_by_event() -> None:
    for code, status in STATUS_OF.items():
        by_status, by_event = judge(error(status, code=code)), judge(event(code=code))
        assert (by_status.outcome, by_status.row) == (by_event.outcome, by_event.row), code


def test_o26_an_error_inside_a_200_is_never_done() -> None:
    by_code = judge(inner(code="429"))
    assert by_code.outcome == "saturated"
    assert judge(whole(has_content=False, finish_reason=None)).outcome == "unusable"
    assert judge(inner(finish_reason="error")).outcome == "ambiguous"
    assert judge(inner(finish_reason="error", code="503", type="overloaded")).outcome == "retryable"
    assert judge(whole()).outcome == "ok"  # {"error": null, "choices": [good]}
    page = judge(Evidence(status=200, failure="html", message="<!doctype html>" + "x" * 400))
    assert (page.outcome, page.lane_close) == ("ambiguous", "person")
    assert page.message.count("x") >= 200
    assert judge(Evidence(status=200, failure="bad_json", message="{")).outcome == "ambiguous"


def test_o30_a_batch_line_about_an_empty_account_is_not_the_jobs_fault() -> None:
    line = Evidence(type="invalid_request_error", message="Your credit balance is too low to access the API.")
    assert judge(line).outcome == "lane_down"
    assert judge(replace(line, message="max_tokens: required")).outcome == "permanent"


def test_o20_deadlines_of_our_own_are_ambiguous_and_loading_is_saturated() -> None:
    for failure in ("first_byte_timeout", "idle_timeout", "total_timeout"):
        assert judge(Evidence(failure=failure), local=True).outcome == "ambiguous"
    loading = judge(error(503, message="model is loading", headers={"retry-after": "40"}), local=True)
    assert (loading.outcome, loading.delay_ms) == ("saturated", 40_000)


# Delays


def test_a_delay_in_the_body_counts_where_no_header_states_one() -> None:
    assert judge(error(429, retry_info_ms=7_000)).delay_ms == 7_000
    assert judge(error(429, retry_info_ms=7_000, headers={"retry-after": "1"})).delay_ms == 1_000
    assert judge(error(503, retry_info_ms=7_000)).outcome == "retryable"
    assert judge(Evidence(said="saturated", retry_info_ms=7_000)).delay_ms == 7_000
    assert judge(Evidence(said="retryable", retry_info_ms=-7)).delay_ms == 0
    assert judge(error(409, retry_info_ms=10**12), idempotency="replay").delay_ms == CAP_MS
    assert judge(error(409), idempotency="replay").delay_ms == DEFAULT_MS


def test_a_lane_without_money_opens_at_the_date_that_the_text_states() -> None:
    def after(text: str) -> Classified:
        return judge(error(400, message=f"You have reached your specified API usage limits. {text}"))

    stated = after("You will regain access on 2026-12-03 at 12:30 UTC.")
    assert (stated.lane_close, stated.delay_ms) == ("until", (2 * 86_400 + 45_000) * 1_000)
    for text in ("", "on 2026-11-01", "on 2099-01-01", "on 2026-13-45", "on 2026-12-03 at 99:99"):
        found = after(text)
        assert (found.lane_close, found.delay_ms) == ("person", None), text


def test_words_for_people_name_status_code_and_text_within_bounds() -> None:
    assert judge(error(429, **QUOTA)).message == "429 insufficient_quota: You exceeded your current quota"
    assert judge(Evidence(failure="reset")).message.startswith("reset: ")
    assert judge(whole()).message == ""
    assert judge(whole(schema_error="'age' is required")).message == "'age' is required"
    assert len(judge(error(400, message="x" * 10_000)).message) == outcome.MESSAGE_CHARS


# What no evidence may ever lead to

WORDS = st.sampled_from(
    [
        "",
        "insufficient_quota",
        "overloaded_error",
        "429",
        "503",
        "999999999999",
        "model_not_found",
        "x",
        "loading model",
        "limit: 0",
        "2026-12-09",
        "٤٢٩",
    ]
)
EVIDENCE = st.builds(
    Evidence,
    sent=st.sampled_from(typing.get_args(Sent)),
    failure=st.none() | st.sampled_from(typing.get_args(Failure)),
    status=st.none() | st.integers(-1, 1000),
    code=WORDS | st.text(),
    type=WORDS,
    message=WORDS | st.text(),
    headers=st.dictionaries(st.sampled_from(["retry-after", "retry-after-ms"]), st.text() | WORDS),
    retry_info_ms=st.none() | st.integers(),
    terminal=st.booleans(),
    has_content=st.booleans(),
    content_before_error=st.booleans(),
    finish_reason=st.none() | st.sampled_from(["stop", "length", "error", "eos", ""]),
    schema_error=st.sampled_from(["", "no"]),
    said=st.none() | st.sampled_from(typing.get_args(Outcome)),
    reply=st.none() | st.just(Reply(text="x")),
)
DECLARED = st.fixed_dictionaries(
    {
        "retry_500": st.booleans(),
        "partial_bodies_harmless": st.booleans(),
        "exceptions_harmless": st.booleans(),
        "idempotency": st.sampled_from(["none", "reject", "replay"]),
        "larger_lane_exists": st.booleans(),
        "local": st.booleans(),
        "now_ms": st.integers(0, 2**50),
        "default_delay_ms": st.integers(0, 10**6),
        "cap_ms": st.integers(0, 10**7),
    }
)


@given(EVIDENCE, DECLARED)
def test_classify_never_raises_and_keeps_its_bounds(evidence: Evidence, declared: dict[str, Any]) -> None:
    found = judge(evidence, **declared)
    row = next(row for row in TABLE if row.name == found.row)
    assert found.outcome == row.outcome
    assert found.code
    if found.outcome == "saturated":
        assert found.lane_close == "until"
        assert found.delay_ms is not None
    if found.delay_ms is not None:
        assert 0 <= found.delay_ms <= max(declared["cap_ms"], outcome.STATED_DATE_CAP_MS if row.delay == "date" else 0)
    if found.lane_close == "until":
        assert found.delay_ms is not None


@given(EVIDENCE, DECLARED)
def test_what_was_not_sent_is_never_ambiguous(evidence: Evidence, declared: dict[str, Any]) -> None:
    unsent = replace(evidence, sent="no", said=None)
    if unsent.failure != "died":  # Nobody is left to vouch that nothing was sent.
        assert judge(unsent, **declared).outcome in ("retryable", "saturated")


@given(EVIDENCE, DECLARED)
def test_what_was_sent_and_not_answered_is_never_sent_again_blindly(
    evidence: Evidence, declared: dict[str, Any]
) -> None:
    unanswered = replace(evidence, sent="yes", status=None, code="", type="", said=None, terminal=False)
    declared = {**declared, "exceptions_harmless": False}
    if unanswered.failure not in (None, "stream_error", "redirect"):
        assert judge(unanswered, **declared).outcome == "ambiguous"
    assert judge(unanswered, **declared).outcome not in ("retryable", "saturated", "ok")


@given(EVIDENCE, DECLARED)
def test_ok_needs_a_whole_reply_without_an_error(evidence: Evidence, declared: dict[str, Any]) -> None:
    if judge(evidence, **declared).outcome == "ok":
        assert evidence.terminal
        assert evidence.has_content
        assert evidence.failure is None
        assert (evidence.code.strip(), evidence.type, evidence.message) == ("", "", "")
        assert not evidence.schema_error
        assert evidence.finish_reason not in ("length", "error")
        assert (evidence.status or 200) // 100 == 2
        assert evidence.sent != "no"


@given(EVIDENCE, DECLARED)
def test_work_that_gave_content_is_never_retried_for_an_error_after_it(
    evidence: Evidence, declared: dict[str, Any]
) -> None:
    late = replace(evidence, sent="yes", status=200, failure="stream_error", content_before_error=True, said=None)
    assert judge(late, **declared).outcome == "ambiguous"
