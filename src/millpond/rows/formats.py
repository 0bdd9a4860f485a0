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

from millpond.rows.lines import MAX_LINE_BYTES, Line, Source
from millpond.rows.shape import TEXT_COLUMN, BatchShape, Refused, Row, Shape, no_constant, row_or_refusal
from millpond.rules.errors import UsageError
from millpond.rules.identity import found

Format = Literal["jsonl", "csv", "text", "parquet", "openai-batch"]

FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
    ".parquet": "parquet",
}


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


def csv_table(lines: Iterator[Line], shape: Shape, title: str) -> Iterator[Row | Refused]:
    """Cells under the names of a header; a row may span lines."""
    # The limit is the process's, and the standard one (128 KiB) is less than a long prompt; it is only ever raised.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    first = next(lines)
    skipped = first[0] - 1
    # A row may span lines, so bytes that are not UTF-8 are found later, in its cells.
    table = csv.reader((line.decode(errors="surrogateescape") for _, line in chain([first], lines)), strict=True)
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
            yield Refused(start, _csv_problem(problem))
            continue
        if not header:
            header = _header(row, title)
            shape.check(header, title)
        elif row:
            yield row_or_refusal(shape, start, partial(_csv_columns, header), row, are_cells=True)


def _csv_problem(problem: csv.Error) -> str:
    if "unexpected end of data" in str(problem):
        return "found a quote that is never closed, so that the rest of the file is one cell; wanted its closing quote"
    return f"found broken CSV: {problem}"


def _header(row: list[str], title: str) -> list[str]:
    twice = [name for at, name in enumerate(row) if name in row[:at]]
    if twice:
        raise UsageError(f"{title}: found two columns named {twice[0]!r}, wanted every column once")
    for name in row:
        _utf8(name, "the header")
    return row


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
    return {TEXT_COLUMN: _decoded(line).rstrip("\r\n")}


def _json_columns(line: bytes) -> Mapping[str, Any]:
    try:
        value = json.loads(_decoded(line).rstrip(), parse_constant=no_constant)
    except json.JSONDecodeError as problem:
        raise UsageError(f"found broken JSON at column {problem.colno}: {problem.msg}; wanted one object") from None
    except ValueError as problem:  # a number of more digits than Python reads
        raise UsageError(f"found a number that cannot be read: {problem}") from None
    if not isinstance(value, dict):
        raise UsageError(f'found {found(value)}, wanted an object such as {{"task": …}}')
    return cast("dict[str, Any]", value)


def suffix_of(source: Source) -> str:
    """The suffix of a path, in small letters; "" for what has no name."""
    return Path(source).suffix.lower() if isinstance(source, (str, os.PathLike)) and source != "-" else ""


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
