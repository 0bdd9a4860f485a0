"""What reaches a terminal: text without control characters, JSON that hides none, never a key (O10, O22)."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, TextIO

import click

from millpond.report.words import columns
from millpond.rules.redaction import MIN_SECRET_CHARS, REDACTED, redact

_secrets: set[str] = set()

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"  # CSI: colours, cursor, clearing
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"  # OSC: titles
    r"|\x1b[ -/]*[0-~]?"
)
_UNSAFE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # controls, but tab and line end
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb\U000e0000-\U000e007f\ud800-\udfff"
)
_UNSAFE_CHARACTER = re.compile(f"[{_UNSAFE}]")
_MARK = r"[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
_MARKS = re.compile(f"({_MARK}{{4}}){_MARK}+")
"""More than four combining marks on one letter overflow the lines above and below."""


def keep_secret(values: Iterable[str]) -> None:
    """From here on these values are never printed."""
    _secrets.update(value.strip() for value in values if len(value.strip()) >= MIN_SECRET_CHARS)


def plain(text: str, *, lines: bool = False) -> str:
    """Text that a terminal shows and does not obey: no escape sequences, controls, overrides of direction.

    Without `lines` it is one line: line ends and tabs become blanks.
    """
    text = _MARKS.sub(r"\1", _UNSAFE_CHARACTER.sub("", _SEQUENCE.sub("", text)))
    return text if lines else re.sub(r"[\n\t]+", " ", text)


def short(text: str, width: int) -> str:
    """One plain line of at most so many characters."""
    text = plain(text)
    return text if len(text) <= width else text[: width - 1] + "…"


def say(text: str) -> None:
    """Print words on stdout, line by line as they are."""
    click.echo(plain(redact(text, _secrets), lines=True))


def say_work(text: str) -> None:
    """Print what holds prompts and replies: only known values of keys are blanked, nothing that looks like one."""
    click.echo(plain(without_secrets(text), lines=True))


def warn(text: str, *, lines: bool = False) -> None:
    """Print one line on stderr (`lines`: as many as it has)."""
    click.echo(plain(redact(text, _secrets), lines=lines), err=True)


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON on stdout: unknown is null, money a number in USD, ids of lanes and states as words."""
    click.echo(as_json(value, indent=indent, hide=True))


def as_json(value: Any, *, indent: int | None = None, hide: bool = False) -> str:
    """A value as JSON text of plain keys. What a terminal would obey is escaped; the data stays what it was.

    `hide` blanks the values of key variables.
    """
    separators = None if indent else (", ", ": ")
    text = json.dumps(_jsonable(value), ensure_ascii=False, indent=indent, separators=separators)
    text = (
        _UNSAFE_CHARACTER.sub(lambda match: _escaped(match[0]), text) if not text.isascii() or "\x7f" in text else text
    )
    return without_secrets(text) if hide else text


def without_secrets(text: str) -> str:
    """The text with the values of key variables blanked, and nothing else: for answers, which must stay as they are."""
    for secret in _secrets:
        for form in _forms(secret):
            text = text.replace(form, REDACTED)
    return text


def _forms(secret: str) -> list[str]:
    """A value as it stands in text, in JSON and in JSON within JSON, each also with the doubled quotes of CSV."""
    once = json.dumps(secret, ensure_ascii=False)[1:-1]
    forms = {secret, once, json.dumps(secret)[1:-1], json.dumps(once, ensure_ascii=False)[1:-1]}
    return sorted(forms | {form.replace('"', '""') for form in forms}, key=len, reverse=True)


def discard(stream: TextIO) -> None:
    """Whoever read it has left: from here on what is written there, and what is still buffered, goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a person looks at it: nothing moves and nothing is coloured elsewhere."""
    return (stream or sys.stdout).isatty()


def table(rows: Iterable[Iterable[str]], *, gap: str = "  ") -> str:
    """Rows of plain cells as columns; the first row is the heading."""
    return "\n".join(columns(([plain(cell) for cell in row] for row in rows), gap=gap))


def _escaped(character: str) -> str:
    return json.dumps(character)[1:-1] if ord(character) > 0x7F else f"\\u{ord(character):04x}"


def _jsonable(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _jsonable(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _jsonable(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float) and not math.isfinite(value):  # JSON has no such number
        return json.dumps(value)
    return str(value) if isinstance(value, Path) else value
