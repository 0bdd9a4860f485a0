"""What a call will use and cost: figures in order, a bound that holds, and an unknown that never becomes a number."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.estimate import (
    NO_MONEY,
    Range,
    money,
    most_calls,
    tokens_in,
    tokens_out,
)
from millpond.rules.job import Command, Image, Prompt, Usage
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import PriceRule, cost
from millpond.rules.router import NOT_COUNTED, Exhausted, Tried, next_lane

PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
chats = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.just("user"),
            "content": texts | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts})),
        }
    ),
    min_size=1,
    max_size=4,
)
prompts = st.builds(
    Prompt,
    task=texts,
    system=texts,
    messages=st.none() | chats,
    schema=st.none() | st.dictionaries(texts, st.integers(-5, 5), min_size=1, max_size=3),
    tools=st.none() | st.lists(st.dictionaries(texts, texts, max_size=2), max_size=2),
    params=st.dictionaries(st.sampled_from(["response_format", "temperature", "max_tokens"]), st.integers(1, 9)),
)
unknown_or = st.none() | st.integers(0, 10**6)
dollars = st.decimals(0, 1_000, places=6, allow_nan=False)
rules = st.one_of(
    st.just(PriceRule("free")),
    st.just(PriceRule("unknown")),
    st.builds(PriceRule, st.just("stated"), dollars, dollars, st.none() | dollars),
    st.builds(PriceRule, st.just("stated"), call_usd=dollars),
)


def is_in_order(found: Range[Any]) -> bool:
    known = [one for one in (found.low, found.expected, found.worst) if one is not None]
    return known == sorted(known)


# tokens in


def test_english_text_is_four_bytes_a_token_and_no_token_is_shorter_than_a_byte() -> None:
    found = tokens_in(Prompt("x" * 400))
    assert (found.low, found.expected) == (25, 100)
    assert found.worst is not None
    assert 400 <= found.worst < 500


def test_few_tokens_are_told_by_characters_and_many_by_bytes() -> None:
    """A letter beyond ASCII has several bytes, and no ordinary token has more of them for that."""
    found = tokens_in(Prompt("щ" * 160))
    assert (found.low, found.expected) == (10, 80)
    assert found.worst is not None
    assert found.worst >= 320


def test_what_a_model_reads_beside_the_task_counts() -> None:
    bare = tokens_in(Prompt("ask")).expected
    schema = {"type": "object", "properties": {"legs": {"type": "integer"}}}
    for more in (
        Prompt("ask", system="x" * 40),
        Prompt("ask", schema=schema),
        Prompt("ask", tools=[{"type": "function", "function": {"name": "x" * 40}}]),
        Prompt("ask", params={"response_format": schema}),
        Prompt(messages=[{"role": "user", "content": [{"type": "text", "text": "x" * 40}]}]),
        Prompt(messages=[{"role": "assistant", "tool_calls": [{"id": "x" * 40}]}]),
    ):
        assert (tokens_in(more).expected or 0) >= (bare or 0) + 9, more
    assert tokens_in(Prompt("ask", params={"temperature": 0.12345678901234567, "user": "x" * 40})).expected == bare


def test_a_full_chat_replaces_system_and_task() -> None:
    chat = [{"role": "user", "content": "x" * 40}]
    assert tokens_in(Prompt("not sent", system="not sent", messages=chat)).expected == 10


@pytest.mark.parametrize(
    "prompt",
    [
        Prompt("x" * 400, images=(Image(b"png"),)),
        Prompt(messages=[{"role": "user", "content": [{"type": "text", "text": "x" * 400}, PICTURE]}]),
    ],
)
def test_a_picture_makes_expected_and_worst_unknown_and_its_bytes_are_no_text(prompt: Prompt) -> None:
    assert tokens_in(prompt) == Range(25, None, None)


def test_of_a_command_nothing_is_known() -> None:
    assert tokens_in(Command("greet", {"name": "x"}, "uid")) == Range(None, None, None)


@given(prompts)
def test_the_figures_of_what_goes_in_are_in_order(prompt: Prompt) -> None:
    found = tokens_in(prompt)
    assert is_in_order(found)
    assert found.worst is not None
    said = [prompt.system, prompt.task] if prompt.messages is None else _chat_texts(prompt.messages)
    assert found.worst >= sum(len(text.encode()) for text in said)


def _chat_texts(messages: Any) -> list[str]:
    contents = [message["content"] for message in messages]
    return [text for one in contents for text in ([one] if isinstance(one, str) else [part["text"] for part in one])]


# tokens out


@given(unknown_or.filter(lambda limit: limit != 0), st.none() | st.floats(0, 10**7))
def test_what_comes_out_is_at_least_a_token_and_expected_as_measured(limit: int | None, mean: float | None) -> None:
    found = tokens_out(limit, mean)
    assert found.low == 1
    assert is_in_order(found)
    assert (found.expected is None, found.worst is None) == (mean is None, limit is None)


# money


@given(st.integers(1, 20), st.integers(1, 5), st.integers(1, 30))
def test_a_lane_bills_its_attempts_and_the_replies_of_the_wrong_shape(attempts: int, unusable: int, cap: int) -> None:
    policy = Policy(max_unusable_per_job=unusable, max_attempts_per_job=cap)
    assert most_calls(LanePolicy("paid", max_attempts=attempts), policy) == min(attempts + unusable - 1, cap)


def priced(rule: PriceRule, usage: Usage) -> Decimal | None:
    found = cost(usage, rule, model=None)
    return None if found is None else found.usd


@given(prompts, unknown_or.filter(lambda limit: limit != 0), st.none() | st.floats(0, 1e7), st.integers(1, 9), rules)
def test_low_is_at_most_expected_and_expected_at_most_worst(
    prompt: Prompt, limit: int | None, mean: float | None, calls: int, rule: PriceRule
) -> None:
    given_, taken = tokens_out(limit, mean), tokens_in(prompt)
    found = money(taken, given_, calls, lambda usage: priced(rule, usage))
    assert is_in_order(found)
    if rule.kind == "unknown":
        assert found == Range(None, None, None)
    if rule.kind == "free":
        assert found == NO_MONEY
    if rule.output_usd_per_mtok:  # a price by the token, and tokens that nobody knows
        assert (found.expected is None, found.worst is None) == (mean is None, limit is None)


@given(st.lists(st.tuples(unknown_or, unknown_or, unknown_or), min_size=1))
def test_one_unknown_part_makes_the_whole_unknown(parts: list[tuple[int | None, int | None, int | None]]) -> None:
    whole = Range(0, 0, 0)
    for part in parts:
        whole = whole.and_also(Range(*part))
    for at, name in enumerate(("low", "expected", "worst")):
        column = [part[at] for part in parts]
        assert getattr(whole, name) == (None if None in column else sum(one or 0 for one in column))


ENDINGS = [
    ("ambiguous", "same", ""),
    ("ambiguous", "pin", ""),
    ("unusable", None, "bad_output"),
    ("unusable", None, "truncated"),
    ("retryable", None, ""),
    ("unfit", None, ""),
    ("saturated", None, ""),
    ("permanent", None, ""),
]


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(1, 3),
    st.integers(1, 9),
    st.lists(st.sampled_from(ENDINGS), min_size=30, max_size=30),
)
def test_no_walk_through_the_lanes_bills_more_calls_than_that(
    attempts: list[int], unusable: int, cap: int, endings: list[Any]
) -> None:
    """The router itself walks, call by call, until it says that the job is over."""
    lanes = {f"l{at}": LanePolicy(f"l{at}", max_attempts=most) for at, most in enumerate(attempts)}
    policy = Policy(lanes, max_unusable_per_job=unusable, max_attempts_per_job=cap)
    history: list[Tried] = []
    for outcome, resolution, code in endings:
        step = next_lane(history, policy, tuple(lanes))
        made = sum(one.outcome not in NOT_COUNTED for one in history)
        if isinstance(step, Exhausted) or made >= cap:
            break
        history.append(Tried(step.lane, outcome, resolution, code))
    for name, lane in lanes.items():
        calls = [one for one in history if one.lane == name and one.outcome in ("ambiguous", "unusable")]
        assert len(calls) <= most_calls(lane, policy)
