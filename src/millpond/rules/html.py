"""How values look in a notebook: a small table of HTML, in which everything is text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import cast


def table(title: str, rows: Mapping[str, object]) -> str:
    """Names and values under a title. None is `-`; a name that ends in `_ms` is a moment, or unknown."""
    lines = "".join(
        f'<tr><th style="text-align:left">{escape(name.removesuffix("_ms"))}</th>'
        f'<td style="text-align:left">{escape(_words(name, value))}</td></tr>'
        for name, value in rows.items()
    )
    return f"<table><caption>{escape(title)}</caption>{lines}</table>"


def _words(name: str, value: object) -> str:
    if value is None:
        return "-"
    if name.endswith("_ms") and isinstance(value, int):
        try:
            return datetime.fromtimestamp(value / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        except (OverflowError, ValueError, OSError):
            return str(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, cast("Sequence[object]", value)))
    return f"{value:,}" if type(value) is int and name != "id" else str(value)
