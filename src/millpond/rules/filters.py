"""The filter that picks jobs: words that are all true of a job, the same on the command line, over HTTP, on the page.

    state:failed lane:free intent:label code:truncated tag:x submission:s3 id:10..20 age:>2h text:"duck"

A `-` before a word negates it. A word without a field looks for itself in the job's work; `"…"` holds blanks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import get_args

from millpond.rules.errors import UsageError
from millpond.rules.job import Job, State, WaitReason
from millpond.rules.times import duration_ms

FIELDS = {
    "state": "failed",
    "lane": "free",
    "intent": "label",
    "code": "truncated",
    "tag": "x",
    "submission": "s3",
    "id": "10..20",
    "age": ">2h",
    "text": '"duck"',
}
"""Every field, with an example of its value."""

LOOKED_UP = frozenset({"intent", "submission", "text"})
"""Fields that a Job does not hold: `matches` asks its caller about them, after everything cheaper."""

MAX_CHARS = 2_000
"""Longest filter that is read."""

STATES: tuple[str, ...] = get_args(State)
WAIT_REASONS: tuple[str, ...] = get_args(WaitReason)


@dataclass(frozen=True, slots=True)
class Term:
    """One word of a filter. `low` and `high` (included) bound an `id`, or the creation in ms that an `age` means."""

    field: str
    value: str
    is_negated: bool = False
    low: int | None = None
    high: int | None = None


def parse(text: str, now_ms: int) -> tuple[Term, ...]:
    """Read a filter; the empty one admits every job. Terms that need a look-up come last.

    Raises UsageError naming the word, what is known and what was probably meant.
    """
    if len(text) > MAX_CHARS:
        raise UsageError(f"filter: found {len(text):,} characters, wanted at most {MAX_CHARS:,}")
    terms = [_term(field, value, is_negated, now_ms) for field, value, is_negated in _words(text)]
    return tuple(sorted(terms, key=lambda term: term.field in LOOKED_UP))


def matches(terms: Sequence[Term], job: Job, look: Callable[[Term, Job], bool]) -> bool:
    """Whether every term is true of the job; `look` answers for the fields in LOOKED_UP, whatever their negation."""
    return all(_holds(term, job, look) != term.is_negated for term in terms)


def _holds(term: Term, job: Job, look: Callable[[Term, Job], bool]) -> bool:
    match term.field:
        case "state":
            return term.value in (job.state, job.wait_reason)
        case "lane":
            return term.value == job.next_lane
        case "code":
            return term.value == (job.reason or "").partition(": ")[0]
        case "tag":
            return term.value in job.tags
        case "id":
            return _is_within(job.id, term)
        case "age":
            return _is_within(job.created_ms, term)
        case _:
            return look(term, job)


def _is_within(number: int, term: Term) -> bool:
    return (term.low is None or term.low <= number) and (term.high is None or number <= term.high)


def _term(field: str, value: str, is_negated: bool, now_ms: int) -> Term:
    if field not in FIELDS:
        meant = next(iter(get_close_matches(field.lower(), FIELDS, n=1)), "")
        hint = f"did you mean {meant}:{value}? " if meant else ""
        known = ", ".join(FIELDS)
        raise UsageError(f"filter: unknown field {field[:40]!r}; {hint}known: {known}; quote a text that has a colon")
    if not value:
        raise UsageError(f"filter: found {field}: without a value, wanted one: {field}:{FIELDS[field]}")
    if field == "state" and value not in STATES + WAIT_REASONS:
        meant = next(iter(get_close_matches(value.lower(), STATES + WAIT_REASONS, n=1)), "")
        hint = f"did you mean state:{meant}? " if meant else ""
        known = f"{', '.join(STATES)}, and of waiting jobs {', '.join(WAIT_REASONS)}"
        raise UsageError(f"filter: unknown state {value[:40]!r}; {hint}known: {known}")
    if field == "id":
        return Term(field, value, is_negated, *_id_bounds(value))
    if field == "age":
        return Term(field, value, is_negated, *_age_bounds(value, now_ms))
    return Term(field, value, is_negated)


def _id_bounds(value: str) -> tuple[int | None, int | None]:
    """`10`, `10..20`, `10..`, `..20`: the lowest and the highest id."""
    low, dots, high = value.partition("..")
    ends = [low, high] if dots else [low]
    if not any(ends) or not all(end == "" or (end.isascii() and end.isdecimal() and len(end) < 19) for end in ends):
        raise UsageError(f"filter: found id:{value}, wanted id:10, id:10..20, id:10.. or id:..20")
    first, last = (int(low) if low else None), (int(high) if high else None)
    return (first, last) if dots else (first, first)


def _age_bounds(value: str, now_ms: int) -> tuple[int | None, int | None]:
    """`>2h`, `<30m`: the earliest and the latest creation."""
    sign, length = value[0], value[1:].removeprefix("=")
    if sign not in "<>":
        raise UsageError(f"filter: found age:{value}, wanted age:>2h (older) or age:<30m (younger)")
    moment_ms = now_ms - duration_ms(length, field="filter: age")
    return (None, moment_ms) if sign == ">" else (moment_ms, None)


def _words(text: str) -> Iterator[tuple[str, str, bool]]:
    """Each word as its field, its value without quotes, and whether a `-` stands before it."""
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        is_negated = text[at] == "-" and at + 1 < len(text) and not text[at + 1].isspace()
        at += is_negated
        value, at, was_quoted = _value(text, at)
        if not was_quoted and ":" in value:
            field, _, value = value.partition(":")
            if not value and at < len(text) and text[at] == '"':
                value, at, _ = _value(text, at)
            yield field, value, is_negated
        else:
            yield "text", value, is_negated


def _value(text: str, at: int) -> tuple[str, int, bool]:
    """The value that begins here, where it ends, and whether it was quoted; `\\"` stands for a quote in quotes."""
    if text[at] != '"':
        start = at
        while at < len(text) and not text[at].isspace() and not (text[at] == '"' and text[at - 1] == ":"):
            at += 1
        return text[start:at], at, False
    letters: list[str] = []
    at += 1
    while at < len(text) and text[at] != '"':
        at += text[at] == "\\" and text[at + 1 : at + 2] in ('"', "\\")
        letters.append(text[at])
        at += 1
    if at == len(text):
        raise UsageError(f'filter: found a " that is not closed, wanted another after {"".join(letters)[:40]!r}')
    return "".join(letters), at + 1, True
