"""What a call cost, from its usage and a lane's price rule. No price is None, never 0."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import importlib.metadata
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, cast

from millpond.rules.job import Usage

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation
    from genai_prices.types import Usage as PricedUsage


@dataclass(frozen=True, slots=True)
class PriceRule:
    """How a lane's calls are priced: `unknown`, `free` (stated 0), `auto` (genai-prices), or `stated` figures."""

    kind: Literal["unknown", "free", "auto", "stated"]
    input_usd_per_mtok: Decimal | None = None
    output_usd_per_mtok: Decimal | None = None
    call_usd: Decimal | None = None
    provider: str = ""
    """For `auto`: the provider's id in genai-prices; "" lets it match by model and address."""


UNKNOWN_PRICE = PriceRule("unknown")
FREE = PriceRule("free")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a call cost, and by which price: `free`, `stated`, or `genai-prices 0.2.3 openai/gpt-5-mini`."""

    usd: Decimal
    version: str


MICRO = 1_000_000
"""Micro-dollars in a dollar; SQL holds money as integers of these."""

_MTOK = 1_000_000

_NEWEST = datetime(9998, 12, 31, 12, tzinfo=UTC)
"""Stands for "the newest known price" where no time of the call is given, so that no clock is read here."""

_FLAVORS = ("chat", "default", "responses", "anthropic")
"""The shapes of usage that text calls return, in genai-prices' words, most common first."""


def cost(
    usage: Usage, rule: PriceRule, *, model: str | None, base_url: str = "", when_ms: int | None = None
) -> Cost | None:
    """What a call with this usage costs in USD; None if the price or a token count that it needs is not known.

    Rounded up to a whole micro-dollar, which is how the ledger holds it: sums of what is told then agree with the book.
    `model` is the one that answered, `base_url` the lane's address, `when_ms` the time of the call (None: the newest
    known price). `auto` prices by genai-prices, whose data is bundled: no network. An address that it does not know is
    not guessed at: a gateway has prices of its own, so name `provider` in the rule.
    """
    match rule.kind:
        case "free":
            return Cost(Decimal(0), "free")
        case "stated":
            found = _stated(usage, rule)
        case "auto":
            found = _looked_up(usage, rule, model, base_url, when_ms)
        case _:
            return None
    if found is None:
        return None
    booked = from_micro(to_micro(found.usd))
    return found if booked == found.usd else Cost(booked, found.version)


def worst_case(
    tokens_in: int | None,
    max_output_tokens: int | None,
    rule: PriceRule,
    *,
    model: str | None,
    base_url: str = "",
    when_ms: int | None = None,
) -> Cost | None:
    """What a call may cost at most: the whole prompt at the full price and all the output that was allowed.

    None if the price, the prompt's size or the output's limit is not known: such a call cannot be bounded.
    """
    return cost(Usage(tokens_in, max_output_tokens), rule, model=model, base_url=base_url, when_ms=when_ms)


def to_micro(usd: Decimal) -> int:
    """Dollars as whole micro-dollars, rounded up, so that the book never shows less than was paid."""
    return math.ceil(Fraction(usd) * MICRO)  # Fractions: Decimal's context might round down first.


def from_micro(micro: int) -> Decimal:
    """Micro-dollars as dollars, exact."""
    return Decimal(micro).scaleb(-6)


def nearest_known(
    model: str, *, base_url: str = "", provider: str = "", known: Iterable[str] | None = None
) -> str | None:
    """The priced model whose name is nearest to this one, for messages; None if none is near.

    Looks among the models of the provider (by id, else by address), else among all; or among `known` if given.
    """
    names = sorted(set(_known_models(base_url, provider) if known is None else known))
    lower = {name.lower(): name for name in reversed(names)}
    near = difflib.get_close_matches(model.lower(), lower, n=1, cutoff=0.6)
    return lower[near[0]] if near else None


MAX_TOKENS = 2**63
"""Past what a column of whole numbers holds; so large a number of tokens is no number of tokens."""


def token_count(value: Any) -> int | None:
    """A number of tokens as a provider or a handler gives it; anything else is unknown, never guessed at."""
    return value if type(value) is int and 0 <= value < MAX_TOKENS else None


def whole_input_tokens(usage: Usage) -> int | None:
    """All tokens of the prompt, cached or not. OpenAI counts cached ones inside its input, Anthropic outside."""
    raw = usage.raw or {}
    outside = [token_count(raw.get(name)) for name in ("cache_creation_input_tokens", "cache_read_input_tokens")]
    bare = token_count(raw.get("input_tokens"))
    if bare is not None and any(count is not None for count in outside):
        return bare + sum(count or 0 for count in outside)
    return token_count(usage.tokens_in)


def _stated(usage: Usage, rule: PriceRule) -> Cost | None:
    per_token = (rule.input_usd_per_mtok, rule.output_usd_per_mtok)
    if per_token == (None, None):
        return None if rule.call_usd is None else Cost(rule.call_usd, "stated")
    usd = rule.call_usd or Decimal(0)
    for price, tokens in zip(per_token, (whole_input_tokens(usage), token_count(usage.tokens_out)), strict=True):
        if tokens == 0 or price == 0:
            continue
        if price is None or tokens is None:
            return None
        usd += price * tokens / _MTOK
    return Cost(usd, "stated")


def _looked_up(usage: Usage, rule: PriceRule, model: str | None, base_url: str, when_ms: int | None) -> Cost | None:
    if not model:
        return None
    # Loaded here: its data is 1.6 MB, and most commands never price anything.
    genai: Any = importlib.import_module("genai_prices")
    when = _NEWEST if when_ms is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=when_ms)
    where: dict[str, str] = {}
    if rule.provider:
        where["provider_id"] = rule.provider
    elif base_url:
        where["provider_api_url"] = base_url
    try:
        found: PriceCalculation = genai.calc_price(genai.Usage(), model, genai_request_timestamp=when, **where)
        counted = _counted(usage, found, model, genai)
        if counted is None or not _has_prices(found, counted):
            return None
        priced = found.model.calc_price(counted, found.provider, genai_request_timestamp=when)
    except (LookupError, ValueError):  # No such provider or model; or counts that contradict each other.
        return None
    version = importlib.metadata.version("genai-prices")
    return Cost(priced.total_price, f"genai-prices {version} {found.provider.id}/{found.model.id}")


def _counted(usage: Usage, found: PriceCalculation, model: str, genai: Any) -> PricedUsage | None:
    """The usage in the price list's units: from the provider's own words where they can be read, else from ours."""
    if usage.raw:
        body = {"model": model, "usage": usage.raw, "usageMetadata": usage.raw}
        extractors = {extractor.api_flavor: extractor for extractor in found.provider.extractors or ()}
        for flavor in _FLAVORS:
            try:
                counted = extractors[flavor].extract(body)[1] if flavor in extractors else None
            except ValueError:  # Another shape.
                continue
            if counted is not None:
                return counted
    tokens_in, tokens_out = whole_input_tokens(usage), token_count(usage.tokens_out)
    if tokens_in is None or tokens_out is None:
        return None
    # Without the provider's words nothing is known of caching: the full price, which is the most it can be.
    return cast("PricedUsage", genai.Usage(input_tokens=tokens_in, output_tokens=tokens_out))


def _has_prices(found: PriceCalculation, counted: PricedUsage) -> bool:
    """Whether the list has a figure for both directions that were used; a model listed without one would cost 0."""
    prices = cast(Mapping[str, Any], vars(found.model_price))
    return all(
        prices.get(price) is not None or getattr(counted, tokens) == 0
        for price, tokens in (("input_mtok", "input_tokens"), ("output_mtok", "output_tokens"))
    )


def _known_models(base_url: str, provider: str) -> Iterable[str]:
    snapshot: Any = importlib.import_module("genai_prices.data_snapshot").get_snapshot()
    providers = snapshot.providers
    if provider or base_url:
        with contextlib.suppress(LookupError):
            providers = [snapshot.find_provider(None, provider or None, None if provider else base_url)]
    return (model.id for one in providers for model in one.models)
