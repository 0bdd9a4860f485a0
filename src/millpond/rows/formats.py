"""The formats: how the lines of each become rows, and how a file's format is told where nobody says it."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, cast, get_args

from millpond.rows.lines import LONE_RETURNS, MAX_LINE_BYTES, Line, Source
from millpond.rows.shape import TEXT_COLUMN, BatchShape, Refused, Row, Shape, json_of, row_or_refusal
from millpond.rules.errors import UsageError
from millpond.rules.identity import found

Format = Literal["jsonl", "csv", "text", "parquet", "openai-batch"]

FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".txt": "text",
    ".text": "text",
    ".parquet": "parquet",
}


_OTHER_DELIMITERS = ",;\t|"
"""What parts the columns of files that are called CSV."""


def jsonl(lines: Iterator[Line], shape: Shape | BatchShape, title: str) -> Iterator[Row | Refused]:
    """Each line an object."""
    for number, line in lines:
        if line.strip():
            yield row_or_refusal(shape, number, _json_columns, line)


def openai_batch(lines: Iterator[Line], shape: Shape, title: str) -> Iterator[Row | Refused]:
    """Each line one of an OpenAI batch file."""
    shape.check_batch(title)
    yield from jsonl(lines, BatchShape(shape.schema, shape.params), title)


def text(lines: Iterator[Line], shape: Shape, title: str) -> Iterator[Row | Refused]:
    """Each line a value of one column."""
    shape = shape.for_text()
    shape.check([TEXT_COLUMN], title)
    for number, line in lines:
        if line.strip():
            yield row_or_refusal(shape, number, _text_columns, line)


def csv_table(lines: Iterator[Line], shape: Shape, title: str, *, delimiter: str = ",") -> Iterator[Row | Refused]:
    """Cells under the names of a header; a row may span lines.

    Where a row of broken quotes ends cannot be known, so nothing after its beginning is read: the rest of one cell
    would be asked, and paid for, as prompts.
    """
    # The limit is the process's, and the standard one (128 KiB) is less than a long prompt; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    first = next(lines)
    skipped = first[0] - 1
    # A row may span lines, so bytes that are not UTF-8 are found later, in its cells.
    table = csv.reader(
        (line.decode(errors="surrogateescape") for _, line in chain([first], lines)), delimiter=delimiter, strict=True
    )
    header: list[str] = []
    while True:
        start = skipped + table.line_num + 1
        try:
            row = next(table)
        except StopIteration:
            return
        except csv.Error as problem:
            if not header:
                raise UsageError(f"{title} line {start}: {_csv_problem(problem)}") from None
            yield Refused(start, f"{_csv_problem(problem)}; nothing from this line on is taken in")
            return
        if not header:
            header = _header(row, title)
            _check(header, shape, title, delimiter)
        elif row:
            yield row_or_refusal(shape, start, partial(_csv_columns, header), row, are_cells=True)


def _csv_problem(problem: csv.Error) -> str:
    if "unexpected end of data" in str(problem):
        return "found a quote that is never closed, so that the rest of the file is one cell; wanted its closing quote"
    if "new-line character" in str(problem):
        return LONE_RETURNS
    return f"found broken CSV: {problem}"


def _header(row: list[str], title: str) -> list[str]:
    twice = [name for at, name in enumerate(row) if name in row[:at]]
    if twice:
        raise UsageError(f"{title}: found two columns named {twice[0]!r}, wanted every column once")
    for name in row:
        _utf8(name, f"{title}: the header")
    return row


def _check(header: list[str], shape: Shape, title: str, delimiter: str) -> None:
    try:
        shape.check(header, title)
    except UsageError as refusal:
        other = next((one for one in _OTHER_DELIMITERS if one in header[0]), None)
        if len(header) > 1 or other is None:
            raise
        words = f"found one column alone, parted by {delimiter!r}; is the delimiter {other!r}?"
        raise UsageError(f"{refusal}; {words}") from None


def _csv_columns(header: list[str], row: list[str]) -> dict[str, str]:
    if len(row) != len(header):
        raise UsageError(f"found {len(row)} cells, wanted {len(header)}, one for each column of the header")
    for name, cell in zip(header, row, strict=True):
        _utf8(cell, f"column {name[:40]!r}")
    return dict(zip(header, row, strict=True))


def _utf8(text: str, where: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            byte = ord(text[problem.start]) - 0xDC00
            at = problem.start + 1
            raise UsageError(f"{where}: found the byte 0x{byte:02X} as character {at}, wanted UTF-8") from None


def _decoded(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as problem:
        byte, at = line[problem.start], problem.start + 1
        raise UsageError(f"found the byte 0x{byte:02X} at byte {at} of the line, wanted UTF-8") from None


def _text_columns(line: bytes) -> Mapping[str, Any]:
    text = _decoded(line).rstrip("\r\n")
    if "\r" in text:
        raise UsageError(LONE_RETURNS)
    return {TEXT_COLUMN: text}


def _json_columns(line: bytes) -> Mapping[str, Any]:
    try:
        value = json_of(_decoded(line).rstrip())
    except json.JSONDecodeError as problem:
        raise UsageError(f"found broken JSON at column {problem.colno}: {problem.msg}; wanted one object") from None
    if not isinstance(value, dict):
        raise UsageError(f'found {found(value)}, wanted an object such as {{"task": …}}')
    return cast("dict[str, Any]", value)


def suffix_of(source: Source) -> str:
    """The suffix of a path, in small letters; "" for what has no name."""
    return Path(source).suffix.lower() if isinstance(source, (str, os.PathLike)) else ""


def format_of(source: Source, title: str, first: bytes) -> Format:
    """The format that a suffix says, else the first line that is not blank. Raises UsageError for another suffix."""
    suffix = suffix_of(source)
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix:
        raise UsageError(f"{title}: unknown suffix {suffix!r}; wanted {' '.join(SUFFIXES)}, or the format said")
    start = first.strip()
    if start == b"[" or start.startswith(b"[{"):  # as text, each line of it would be paid for as a prompt
        raise UsageError(f"{title}: found a JSON list, wanted one object a line, or the format said; jq -c '.[]'")
    return "jsonl" if start.startswith(b"{") else "text"


def begins_a_batch(line: bytes) -> bool:
    """Whether the first line of a file is one of an OpenAI batch file."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict) and "custom_id" in value and isinstance(cast("dict[str, Any]", value).get("body"), dict)
    )
