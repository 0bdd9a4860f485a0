"""The filter grammar: what its words mean, and what it refuses in one line."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.errors import UsageError
from millpond.rules.filters import FIELDS, LOOKED_UP, Term, matches, parse
from millpond.rules.job import Job

NOW = 1_800_000_000_000
HOUR = 3_600_000
JOB = Job(
    id=15,
    kind="prompt",
    state="failed",
    wait_reason=None,
    not_before_ms=None,
    priority=0,
    service_class="batch",
    due_ms=None,
    next_lane="free",
    idempotency_key="k",
    fingerprint="f",
    attempts_made=1,
    leases_lost=0,
    label=None,
    origin="api",
    tags=("x", "two words"),
    trace_id=None,
    created_ms=NOW - 3 * HOUR,
    settled_ms=NOW,
    settled_by="free",
    reason="truncated: 2 paid replies not usable",
    cost=Decimal(0),
)


def never(term: Term, job: Job) -> bool:
    """No look-up is expected."""
    raise AssertionError(f"looked up {term} of job {job.id}")


def holds(text: str, job: Job = JOB) -> bool:
    """Whether a filter that needs no look-up admits the job."""
    return matches(parse(text, NOW), job, never)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "state:failed",
        "state:failed lane:free code:truncated tag:x id:10..20 age:>2h",
        'tag:"two words"',
        "id:15",
        "id:15..",
        "id:..15",
        "age:>=3h",
        "age:<4h",
        "age:<3h1s",
        "-state:done",
        "-lane:paid -tag:y -id:16 -age:<1h",
    ],
)
def test_a_filter_admits_a_job_of_which_every_word_is_true(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    "text",
    [
        "state:done",
        "state:failed lane:paid",
        "lane:fre",
        "code:trunc",
        "code:paid",
        "tag:two",
        "id:16",
        "id:16..",
        "id:..14",
        "age:<2h",
        "age:>4h",
        "-state:failed",
        "state:failed -tag:x",
    ],
)
def test_one_word_that_is_not_true_keeps_a_job_out(text: str) -> None:
    assert not holds(text)


def test_a_reason_of_waiting_stands_beside_the_states() -> None:
    held = replace(JOB, state="waiting", wait_reason="held")
    assert holds("state:waiting", held)
    assert holds("state:held", held)
    assert not holds("state:backoff", held)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("intent:label", Term("intent", "label")),
        ("submission:s3", Term("submission", "s3")),
        ('text:"a duck: one"', Term("text", "a duck: one")),
        ("duck", Term("text", "duck")),
        ('"state:failed"', Term("text", "state:failed")),
        (r'"say \"quack\" \\ "', Term("text", 'say "quack" \\ ')),
        ('-"two ducks"', Term("text", "two ducks", is_negated=True)),
        ("-", Term("text", "-")),
    ],
)
def test_what_a_job_does_not_hold_is_asked_of_the_caller(text: str, asked: Term) -> None:
    seen: list[Term] = []

    def look(term: Term, job: Job) -> bool:
        seen.append(term)
        return True

    assert matches(parse(text, NOW), JOB, look) is not asked.is_negated
    assert seen == [asked]


def test_look_ups_come_last_and_only_for_jobs_that_the_rest_admits() -> None:
    terms = parse("duck intent:label state:done", NOW)
    assert [term.field for term in terms] == ["state", "text", "intent"]
    assert not matches(terms, JOB, never)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stat:failed", "unknown field 'stat'; did you mean state:failed? known: state, lane, intent, code,"),
        ("http://x", "unknown field 'http'; known: state"),
        ("state:faild", "unknown state 'faild'; did you mean state:failed? known: waiting, ready,"),
        ("state:", "found state: without a value, wanted one: state:failed"),
        ('text:""', 'found text: without a value, wanted one: text:"duck"'),
        ("id:x", "found id:x, wanted id:10, id:10..20, id:10.. or id:..20"),
        ("id:..", "found id:.., wanted id:10"),
        ("id:²", "found id:², wanted id:10"),
        ("age:2h", "found age:2h, wanted age:>2h (older) or age:<30m (younger)"),
        ("age:>2", "filter: age: found '2', wanted a duration"),
        ('text:"duck', "found a \" that is not closed, wanted another after 'duck'"),
        ("x" * 2001, "found 2,001 characters, wanted at most 2,000"),
    ],
)
def test_a_word_that_cannot_be_read_is_refused_with_what_was_wanted(text: str, words: str) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(text, NOW)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("field", FIELDS)
def test_the_example_of_every_field_can_be_read(field: str) -> None:
    value = "failed" if field == "state" else FIELDS[field]
    [term] = parse(f"{field}:{value}", NOW)
    assert term.field == field
    assert field in LOOKED_UP or isinstance(matches([term], JOB, never), bool)


@given(st.text(min_size=1, max_size=80))
def test_any_text_in_quotes_is_looked_for_as_it_is(text: str) -> None:
    quoted = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    assert parse(quoted, NOW) == (Term("text", text),)
    assert parse(f"-text:{quoted}", NOW) == (Term("text", text, is_negated=True),)


@given(st.text(alphabet='abc:" -.\\<>1é\x00', max_size=40))
def test_whatever_is_typed_is_read_or_refused(text: str) -> None:
    with suppress(UsageError):
        assert all(term.field in FIELDS and term.value for term in parse(text, NOW))
