"""Prices: unknown is never zero, cached tokens are counted once, and nothing asks the network."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import genai_prices
import pytest
from genai_prices.data_snapshot import get_snapshot
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.job import Usage
from millpond.rules.price import (
    FREE,
    UNKNOWN_PRICE,
    Cost,
    PriceRule,
    cost,
    from_micro,
    nearest_known,
    to_micro,
    whole_input_tokens,
    worst_case,
)

AUTO = PriceRule("auto")
OPENAI, ANTHROPIC = "https://api.openai.com/v1", "https://api.anthropic.com/v1"
NOW_MS = 1_796_083_200_000
STATED = PriceRule(
    "stated", input_usd_per_mtok=Decimal("0.50"), output_usd_per_mtok=Decimal(2), call_usd=Decimal("0.001")
)


def usd(usage: Usage, rule: PriceRule, **where: Any) -> Decimal | None:
    found = cost(usage, rule, **{"model": "gpt-5-mini", "when_ms": NOW_MS, **where})
    return None if found is None else found.usd


def listed(model: str, provider: str, **tokens: int) -> Decimal:
    when = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    usage = genai_prices.Usage(**tokens)
    return genai_prices.calc_price(usage, model, provider_id=provider, genai_request_timestamp=when).total_price


# Kinds of rules


def test_a_free_lane_costs_nothing_even_without_usage() -> None:
    assert cost(Usage(), FREE, model=None) == Cost(Decimal(0), "free")
    assert cost(Usage(1, 1), FREE, model="gpt-5-mini", base_url=OPENAI) == Cost(Decimal(0), "free")


def test_no_price_is_none_and_not_zero() -> None:
    assert cost(Usage(1, 1), UNKNOWN_PRICE, model="gpt-5-mini", base_url=OPENAI) is None


def test_stated_figures_are_per_million_tokens_and_per_call() -> None:
    assert usd(Usage(1_000_000, 500_000), STATED) == Decimal("1.501")
    assert usd(Usage(0, 0), STATED) == Decimal("0.001")
    assert cost(Usage(), PriceRule("stated", call_usd=Decimal("0.02")), model=None) == Cost(Decimal("0.02"), "stated")


@pytest.mark.parametrize("usage", [Usage(), Usage(1, None), Usage(None, 1), Usage(-1, 1), Usage(True, 1)])
def test_stated_figures_without_the_tokens_are_none(usage: Usage) -> None:
    assert usd(usage, STATED) is None


def test_a_stated_price_without_one_side_is_none_where_that_side_was_used() -> None:
    only_input = PriceRule("stated", input_usd_per_mtok=Decimal(1))
    assert usd(Usage(1_000_000, 1), only_input) is None
    assert usd(Usage(1_000_000, 0), only_input) == Decimal(1)
    assert usd(Usage(1, 1), PriceRule("stated")) is None
    half_free = PriceRule("stated", input_usd_per_mtok=Decimal(0), output_usd_per_mtok=Decimal(1))
    assert usd(Usage(None, 1_000_000), half_free) == Decimal(1)


# The price list


def test_auto_prices_by_the_list_and_says_which_entry() -> None:
    found = cost(Usage(1_000, 10), AUTO, model="gpt-5-mini", base_url=OPENAI, when_ms=NOW_MS)
    assert found is not None
    assert found.usd == listed("gpt-5-mini", "openai", input_tokens=1_000, output_tokens=10) > 0
    assert found.version == f"genai-prices {genai_prices.__version__} openai/gpt-5-mini"
    assert usd(Usage(1_000, 10), AUTO) == found.usd
    assert usd(Usage(1_000, 10), PriceRule("auto", provider="openai"), base_url="http://127.0.0.1:1/v1") == found.usd
    assert usd(Usage(1_000, 10), AUTO, base_url=OPENAI, model="gpt-5-mini-2025-08-07") == found.usd
    assert usd(Usage(1_000, 10), AUTO, base_url=OPENAI, when_ms=None) is not None


def test_o27_a_model_without_a_price_costs_none_and_the_nearest_name_is_known() -> None:
    for model in ("gpt-5-minii", "big-model-4.1", "", None):
        assert cost(Usage(1_000, 10), AUTO, model=model, base_url=OPENAI) is None, model
        assert worst_case(1_000, 10, AUTO, model=model, base_url=OPENAI) is None, model
    assert nearest_known("gpt-5-minii", base_url=OPENAI) == "gpt-5-mini"
    assert nearest_known("GPT-5-Mini", base_url=OPENAI) == "gpt-5-mini"
    assert nearest_known("claude-sonet-4-5", provider="anthropic") == "claude-sonnet-4-5"
    assert nearest_known("big-model-4.1", known=["small-1", "big-model-4-1"]) == "big-model-4-1"
    assert nearest_known("zzzz", known=["small-1"]) is None
    assert nearest_known("gpt-5-minii", base_url="http://127.0.0.1:1") is not None
    assert cost(Usage(), FREE, model="big-model-4.1") == Cost(Decimal(0), "free")


@pytest.mark.parametrize(
    ("usage", "where"),
    [
        (Usage(), {"base_url": OPENAI}),
        (Usage(1, None), {"base_url": OPENAI}),
        (Usage(1, 1), {"base_url": "http://127.0.0.1:11434/v1"}),
        (Usage(1, 1), {"base_url": ANTHROPIC}),
        (Usage(1, 1), {"base_url": OPENAI, "model": "claude-sonnet-4-5"}),
        (Usage(raw={"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 9}}), {}),
    ],
)
def test_what_the_list_cannot_price_is_none(usage: Usage, where: dict[str, Any]) -> None:
    assert usd(usage, AUTO, **where) is None


def test_an_unknown_provider_is_none() -> None:
    assert usd(Usage(1, 1), PriceRule("auto", provider="nobody")) is None


def test_a_model_that_is_listed_without_a_figure_is_none_and_not_zero() -> None:
    bare = [
        (provider.id, model.id)
        for provider in get_snapshot().providers
        for model in provider.models
        if not isinstance(model.prices, list) and not any(vars(model.prices).values())
    ]
    assert bare
    for provider, model in bare[:20]:
        assert cost(Usage(1_000, 10), PriceRule("auto", provider=provider), model=model, when_ms=NOW_MS) is None


def test_openai_counts_cached_tokens_inside_and_anthropic_outside() -> None:
    inside = {"prompt_tokens": 1_000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 400}}
    assert usd(Usage(1_000, 10, inside), AUTO, base_url=OPENAI) == listed(
        "gpt-5-mini", "openai", input_tokens=1_000, cache_read_tokens=400, output_tokens=10
    )
    responses = {"input_tokens": 1_000, "output_tokens": 10, "input_tokens_details": {"cached_tokens": 400}}
    assert usd(Usage(1_000, 10, responses), AUTO, base_url=OPENAI) == usd(
        Usage(1_000, 10, inside), AUTO, base_url=OPENAI
    )
    outside = {
        "input_tokens": 600,
        "cache_read_input_tokens": 300,
        "cache_creation_input_tokens": 100,
        "output_tokens": 10,
    }
    claude = {"model": "claude-sonnet-4-5", "base_url": ANTHROPIC}
    assert usd(Usage(600, 10, outside), AUTO, **claude) == listed(
        "claude-sonnet-4-5",
        "anthropic",
        input_tokens=1_000,
        cache_read_tokens=300,
        cache_write_tokens=100,
        output_tokens=10,
    )
    assert whole_input_tokens(Usage(1_000, 10, inside)) == 1_000
    assert whole_input_tokens(Usage(600, 10, outside)) == 1_000
    assert usd(Usage(600, 0, outside), PriceRule("stated", input_usd_per_mtok=Decimal(1))) == Decimal("0.001")


def test_usage_in_a_shape_that_is_not_known_goes_by_the_counted_tokens() -> None:
    assert usd(Usage(1_000, 10, {"words": 3}), AUTO, base_url=OPENAI) == usd(Usage(1_000, 10), AUTO, base_url=OPENAI)
    assert usd(Usage(raw={"words": 3}), AUTO, base_url=OPENAI) is None


def test_the_price_is_that_of_the_time_of_the_call() -> None:
    changed = [
        (provider.id, model.id)
        for provider in get_snapshot().providers
        for model in provider.models
        if isinstance(model.prices, list) and "start_date" in repr(model.prices)
    ]
    costs = {
        (usd(Usage(1000, 1000), PriceRule("auto", provider=provider), model=model, when_ms=when_ms))
        for provider, model in changed[:5]
        for when_ms in (0, NOW_MS)
    }
    assert len(costs) > len(changed[:5])


# Bounds and the book's unit


def test_the_worst_case_bounds_every_smaller_reply() -> None:
    worst = worst_case(1_000, 4_096, AUTO, model="gpt-5-mini", base_url=OPENAI, when_ms=NOW_MS)
    assert worst is not None
    cached = {"prompt_tokens": 1_000, "completion_tokens": 4_096, "prompt_tokens_details": {"cached_tokens": 900}}
    for usage in (Usage(1_000, 1), Usage(1_000, 4_096), Usage(1_000, 4_096, cached)):
        smaller = usd(usage, AUTO, base_url=OPENAI)
        assert smaller is not None
        assert smaller <= worst.usd
    assert worst_case(None, 1, STATED, model="x") is None
    assert worst_case(1, None, STATED, model="x") is None
    assert worst_case(1_000_000, 0, STATED, model="x") == Cost(Decimal("0.501"), "stated")
    assert worst_case(None, None, FREE, model=None) == Cost(Decimal(0), "free")


def test_micro_dollars_round_up_and_come_back_exact() -> None:
    assert to_micro(Decimal("0.0000001")) == 1
    assert to_micro(Decimal(0)) == 0
    assert to_micro(Decimal("1.5")) == 1_500_000
    assert to_micro(Decimal("-0.0000001")) == 0
    with localcontext(prec=3):
        assert to_micro(Decimal("12345.6789012")) == 12_345_678_902
    assert from_micro(1) == Decimal("0.000001")
    assert from_micro(2**63 - 1) == Decimal("9223372036854.775807")


@given(st.decimals(min_value=0, max_value=10**9, allow_nan=False, allow_infinity=False))
def test_micro_dollars_never_book_less_than_was_paid(amount: Decimal) -> None:
    booked = from_micro(to_micro(amount))
    assert 0 <= Fraction(booked) - Fraction(amount) < Fraction(1, 1_000_000)


@given(st.integers(0, 2**63 - 1))
def test_micro_dollars_survive_the_round_trip(micro: int) -> None:
    assert to_micro(from_micro(micro)) == micro


# Purity


def test_the_price_list_loads_late_and_never_asks_the_network() -> None:
    program = """
import json, socket, sys, threading
def refuse(*args, **kwargs): raise AssertionError("the network was asked")
socket.socket.connect = socket.getaddrinfo = refuse
from millpond.rules import price
before = "genai_prices" in sys.modules
from decimal import Decimal
from millpond.rules.job import Usage
found = price.cost(Usage(1000, 10), price.PriceRule("auto"), model="gpt-5-mini", base_url="https://api.openai.com/v1")
from genai_prices import data_snapshot
print(json.dumps([before, str(found.usd), threading.active_count(), data_snapshot.get_snapshot().from_auto_update]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded_before, amount, threads, from_network = json.loads(done.stdout)
    assert (loaded_before, threads, from_network) == (False, 1, False)
    assert Decimal(amount) > 0
