"""SQL as text: cutting it into statements, giving each its name, putting in what a dialect writes in its own way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

import apsw

_NAME_LINE = re.compile(r"^[ \t]*--[ \t]*name:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TOKEN = re.compile(r"\{([a-z_]+)((?: [a-z0-9_]+)*)\}")


def load(text: str, tokens: Mapping[str, str] | None = None) -> dict[str, str]:
    """Read the named statements of a file: a line `-- name: move`, comment lines that say why, one statement.

    `tokens` are a dialect's spellings (see `expand`); without them tokens stay as they are, for the database to expand.
    Raises ValueError for a name twice, a name without a statement or with two, SQL before the first name.
    """
    pieces = _NAME_LINE.split(text)
    if split(pieces[0]):
        raise ValueError("SQL stands before the first '-- name: …' line; every statement needs a name")
    statements: dict[str, str] = {}
    for name, block in zip(pieces[1::2], pieces[2::2], strict=True):
        if not _NAME.fullmatch(name):
            raise ValueError(f"statement name {name!r}: wanted lower-case letters, digits and underscores")
        if name in statements:
            raise ValueError(f"statement {name!r} stands twice; names are unique")
        found = split(block)
        if len(found) != 1:
            raise ValueError(f"statement {name!r}: found {len(found)} statements, wanted exactly one")
        statements[name] = found[0] if tokens is None else expand(found[0], tokens, name)
    return statements


def expand(sql: str, tokens: Mapping[str, str], name: str) -> str:
    """Replace each dialect token, `{word argument …}`, by the dialect's text, `{0}` in it being the first argument.

    Raises ValueError for a token that the dialect does not have; `name` is the statement's, for that message.
    """

    def spell(match: re.Match[str]) -> str:
        word, arguments = match[1], match[2].split()
        if word not in tokens:
            raise ValueError(f"statement {name!r}: unknown token {match[0]}; known: {', '.join(sorted(tokens))}")
        try:
            return tokens[word].format(*arguments)
        except IndexError:
            raise ValueError(f"statement {name!r}: token {match[0]} lacks an argument") from None

    return _TOKEN.sub(spell, sql)


@lru_cache(1 << 10)  # a program that opens many databases reads the same text for each
def split(text: str) -> tuple[str, ...]:
    """Cut SQL text into its statements, without their closing semicolons and without the comments that lead them.

    SQLite itself says where a statement is complete, so semicolons in strings, comments and triggers do not cut.
    """
    statements: list[str] = []
    start = 0
    end = text.find(";")
    while end >= 0:
        if apsw.complete(text[start : end + 1]):
            statements.append(text[start:end])
            start = end + 1
        end = text.find(";", end + 1)
    statements.append(text[start:])
    return tuple(_without_leading_comments(sql) for sql in statements if not _is_blank(sql))


def _is_blank(sql: str) -> bool:
    # After one lone semicolon SQLite's scanner stays "complete" over whitespace and comments, and over nothing else.
    return apsw.complete(";" + sql)


def _without_leading_comments(sql: str) -> str:
    lines = sql.strip().splitlines()
    while lines and (not lines[0].strip() or lines[0].lstrip().startswith("--")):
        del lines[0]
    return "\n".join(lines)
