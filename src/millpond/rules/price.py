"""What a call cost, from its usage and a lane's price rule. No price is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal


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
