"""Text with columns in it: how a template is read, and what a column's value becomes inside it."""

from __future__ import annotations

import json
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from millpond.rules.errors import UsageError
from millpond.rules.identity import found


@dataclass(frozen=True, slots=True)
class Template:
    """Text with columns in it: literal pieces, each followed by a column's name or by nothing."""

    argument: str
    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: object, argument: str) -> Template:
        if not isinstance(text, str):
            raise UsageError(f"{argument}: found {found(text)}, wanted a template such as 'Classify: {{text}}'")
        hint = "wanted plain names of columns in braces, and {{ or }} for a brace itself"
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as problem:
            raise UsageError(f"{argument}: found {text[:80]!r} ({problem}), {hint}") from None
        for _, name, spec, conversion in parsed:
            if name is not None and (not name or spec or conversion):
                shown = f"{{{name}{f'!{conversion}' if conversion else ''}{f':{spec}' if spec else ''}}}"
                raise UsageError(f"{argument}: found {shown[:80]!r}, {hint}")
        return cls(argument, tuple((literal, name) for literal, name, _, _ in parsed))

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for _, name in self.pieces if name is not None)

    def fill(self, columns: Mapping[str, Any]) -> str:
        return "".join(
            literal + ("" if name is None else written(value_of(columns, name, self.argument), name))
            for literal, name in self.pieces
        )


def value_of(columns: Mapping[str, Any], name: str, wanted_by: str) -> Any:
    """The value of a column; UsageError if the row has none of this name."""
    require(columns, name, wanted_by)
    return columns[name]


def require(columns: Collection[str], name: str, wanted_by: str) -> None:
    """Refuse columns without this one."""
    if name not in columns:
        known = ", ".join(column[:40] for column in list(columns)[:20]) or "none"
        raise UsageError(f"{wanted_by}: no column {name[:40]!r}; columns: {known}")


def written(value: Any, name: str) -> str:
    """A column's value inside a template: text as it is, numbers and truth as JSON writes them.

    Nothing at all is refused: a task with a hole in it would be paid for like any other.
    """
    if isinstance(value, str):
        if not value.strip():
            raise UsageError(f"found nothing in column {name[:40]!r}, wanted text or a number for the template")
        return value
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    what = "null" if value is None else found(value)
    raise UsageError(f"found {what} in column {name[:40]!r}, wanted text or a number for the template")
