"""Numbers, amounts and tables as people read them, wherever they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal

LEAST_SHOWN_USD = Decimal("0.0001")


def usd(amount: Decimal | None) -> str:
    """An amount for people: `$0.37`, four decimals below a dime, `unknown` where it is. Only nothing is `$0.00`."""
    if amount is None:
        return "unknown"
    if amount == 0:
        return "$0.00"
    if 0 < amount < LEAST_SHOWN_USD:
        return f"< ${LEAST_SHOWN_USD}"
    return f"${amount:,.2f}" if amount >= Decimal("0.10") else f"${amount:,.4f}"


def number(value: float | None, decimals: int = 0) -> str:
    """`1,234`, or with its decimals `1,234.5`; `unknown` where it is."""
    return "unknown" if value is None else f"{value:,.{decimals}f}"


def counted(n: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def columns(rows: Iterable[Sequence[str]], *, gap: str = "  ") -> list[str]:
    """Rows of cells as lines, the cells of a column below each other."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [gap.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
