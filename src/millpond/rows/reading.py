"""Files and frames of rows become requests, one at a time; what cannot become one is refused by its line."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from millpond.rows.formats import (
    FORMATS,
    SUFFIXES,
    Format,
    begins_a_batch,
    csv_table,
    format_of,
    jsonl,
    openai_batch,
    suffix_of,
    text,
)
from millpond.rows.frames import Frame, frame_rows, parquet_rows
from millpond.rows.lines import Source, lines_of, opened, title_of
from millpond.rows.shape import Refused, Row, Shape, checked_map, schema_of
from millpond.rows.template import Template
from millpond.rules.errors import UsageError
from millpond.rules.identity import found
from millpond.rules.job import Request
from millpond.rules.prompt import REQUEST_FIELDS, mapping_of


def read(
    path_or_file: Source | Frame,
    *,
    format: Format | None = None,  # noqa: A002
    delimiter: str | None = None,
    map: Mapping[str, str] | None = None,  # noqa: A002
    task: str | None = None,
    system: str | None = None,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Request]:
    """The rows of a file as requests, as `read_rows` reads them; the first refused row raises UsageError with its line.

    Rows before it were given out already: hand a list to `enqueue_many` if it should be all or nothing.
    """
    how: dict[str, Any] = {"map": map, "task": task, "system": system, "schema": schema, "params": params}
    rows = read_rows(path_or_file, format=format, delimiter=delimiter, **how)
    return _whole(rows, title_of(path_or_file))


def read_rows(
    path_or_file: Source | Frame,
    *,
    format: Format | None = None,  # noqa: A002
    delimiter: str | None = None,
    map: Mapping[str, str] | None = None,  # noqa: A002
    task: str | None = None,
    system: str | None = None,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Row | Refused]:
    """The rows of a file, each as a request or as a refusal that names its line; good rows go on after bad ones.

    The source is a path, "-" for standard input, an open file, or a data frame (of pandas, polars, pyarrow: anything
    with Arrow's stream interface). The format of a file is the argument, else the suffix (.jsonl .ndjson .csv .tsv
    .txt .text .parquet); without a suffix, and for "-" and open files, it is jsonl if the first character that is not
    blank is "{", else text. JSONL whose first line has a custom_id and a body is read as openai-batch, unless columns
    are mapped. Blank lines are skipped, a byte order mark is ignored, and one line is held in memory, or a batch of
    rows of Parquet and of a frame.

    With `map` (field -> column) or `task` (a template over columns: "Classify: {text}", "{{" for a brace) a row is a
    set of columns, and those not mapped are carried, in the file's order, also what a template writes. Otherwise its
    keys are those of Prompt and Request, and an unknown one is refused with a suggestion. `system` is a template too;
    it, `schema` (a mapping, or the path of a JSON file) and `params` apply where the row has none of its own. A text
    file's lines are tasks; their one column is `text`.

    In CSV an empty cell is no value, `messages`, `schema`, `tools`, `params` and `carried` are JSON, and `tags` and
    `images` a JSON list or plain (tags between commas, one image). `delimiter` parts its columns: a comma, or a tab in
    .tsv, where nobody says it. A row of broken quotes is the last one that is read.

    A line of an OpenAI batch file says everything itself, so `map`, `task` and `system` are refused; its custom_id is
    required, and once in the file (these are held in memory).

    Parquet and frames need pyarrow, and Parquet a file that can be sought in. A row's line is its number from 1. Their
    values become what JSON has (docs/enqueue.md says how), and fields that are no text may be text as in CSV.

    A mapped `task` must be text, while a template writes numbers too, and refuses a row that has nothing to write;
    whole numbers serve as custom_id, key and label.
    Raises UsageError for arguments at once, and while reading for what spoils the whole file: unreadable, compressed,
    binary, not UTF-8 at all (UTF-16 is named), an endless line, no rows, columns that cannot serve.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"format: found {found(format)}, wanted one of {', '.join(FORMATS)}")
    if format is not None and isinstance(path_or_file, Frame):
        raise UsageError(f"format: found {format} with a data frame, wanted none; a frame is no file")
    if delimiter is not None:
        _check_delimiter(delimiter)
    shape = Shape(
        by_columns=map is not None or task is not None,
        map=checked_map(map or {}, task, system),
        task=None if task is None else Template.parse(task, "task"),
        system=None if system is None else Template.parse(system, "system"),
        schema=schema_of(schema),
        params=mapping_of(params, "params") or {},
    )
    if format == "openai-batch":
        shape.check_batch()
    return _rows(path_or_file, format, shape, delimiter)


def _check_delimiter(said: object) -> None:
    if not isinstance(said, str) or len(said) != 1 or not said.isascii() or said.isalnum() or said in '"\r\n\0 ':
        raise UsageError(f"delimiter: found {found(said)}, wanted one character, such as ; or a tab")


def _whole(rows: Iterator[Row | Refused], title: str) -> Iterator[Request]:
    for row in rows:
        if isinstance(row, Refused):
            raise UsageError(f"{title} line {row.line}: {row.reason}")
        yield Request(**{name: getattr(row, name) for name in ("work", *REQUEST_FIELDS)})


def _rows(
    source: Source | Frame, format_: Format | None, shape: Shape, delimiter: str | None
) -> Iterator[Row | Refused]:
    title = title_of(source)
    has_rows = False
    for row in _any_rows(source, format_, shape, title, delimiter):
        has_rows = True
        yield row
    if not has_rows:
        raise UsageError(f"{title}: found no rows below the header, wanted at least one")


def _any_rows(
    source: Source | Frame, format_: Format | None, shape: Shape, title: str, delimiter: str | None
) -> Iterator[Row | Refused]:
    if isinstance(source, Frame):
        _refuse_delimiter(delimiter, "a data frame", title)
        yield from frame_rows(source, shape, title)
        return
    with opened(source, title) as file:
        if format_ == "parquet" or (format_ is None and SUFFIXES.get(suffix_of(source)) == "parquet"):
            _refuse_delimiter(delimiter, "parquet", title)
            yield from parquet_rows(file, shape, title)
            return
        lines = lines_of(file, title)
        # A file that is blank throughout has no first line, and no format to tell.
        first = next(((number, line) for number, line in lines if line.strip()), None)
        if first is None:
            raise UsageError(f"{title}: found no rows, wanted at least one line with something on it")
        kind = format_ or format_of(source, title, first[1])
        if format_ is None and kind == "jsonl" and not shape.by_columns and begins_a_batch(first[1]):
            kind = "openai-batch"
        lines = chain([first], lines)
        if kind == "csv":
            parted_by = delimiter or ("\t" if suffix_of(source) == ".tsv" else ",")
            yield from csv_table(lines, shape, title, delimiter=parted_by)
            return
        _refuse_delimiter(delimiter, kind, title)
        yield from {"jsonl": jsonl, "text": text, "openai-batch": openai_batch}[kind](lines, shape, title)


def _refuse_delimiter(delimiter: str | None, kind: str, title: str) -> None:
    if delimiter is not None:
        raise UsageError(f"{title}: found a delimiter with {kind}, wanted none; say the format csv, if it is CSV")
