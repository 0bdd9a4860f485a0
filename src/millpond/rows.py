"""Files of rows become requests, one at a time; what cannot become one is refused by its line."""

from __future__ import annotations

import csv
import json
import os
import string
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, cast, get_args

from millpond.rules.errors import UsageError
from millpond.rules.identity import found
from millpond.rules.job import Prompt, Request
from millpond.rules.openai_body import request_of_line
from millpond.rules.prompt import (
    PROMPT_FIELDS,
    REQUEST_FIELDS,
    mapping_of,
    prompt_of,
    short_name,
    tag_names,
    unknown_key,
)

Format = Literal["jsonl", "csv", "text", "openai-batch"]
Source = str | os.PathLike[str] | IO[Any]

FORMATS: tuple[Format, ...] = get_args(Format)
SUFFIXES: Mapping[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".txt": "text",
    ".text": "text",
}
TEXT_COLUMN = "text"
"""The one column that each line of a text file has, for maps and templates."""

ROW_KEYS = (*PROMPT_FIELDS, *REQUEST_FIELDS)
"""What a row may be made of: the fields of a Prompt and those of its Request."""

MAX_LINE_BYTES = 100_000_000
"""Longest line that is read, and largest cell of a CSV file: it bounds what one row may take of memory."""

_REASON_CHARS = 400
_START_BYTES = 1 << 16
"""So much of a file is looked at for the zero bytes that text does not have."""

_BOM = b"\xef\xbb\xbf"
_NOT_TEXT = (
    (b"\x1f\x8b", "a gzip file", "gzip -dc FILE | …"),
    (b"PK\x03\x04", "a zip file (spreadsheets are zip files too)", "unpack it, or save the sheet as CSV"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "zstd -dc FILE | …"),
    (b"PAR1", "a Parquet file", "write it as JSONL"),
    (b"\xff\xfe\0\0", "UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
)


@dataclass(frozen=True, slots=True)
class Row(Request):
    """A Request that knows the line of the file on which it began, from 1."""

    line: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is no request: the line on which it began, from 1, and why."""

    line: int
    reason: str


def read(
    path_or_file: Source,
    *,
    format: Format | None = None,  # noqa: A002
    map: Mapping[str, str] | None = None,  # noqa: A002
    task: str | None = None,
    system: str | None = None,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Request]:
    """The rows of a file as requests, as `read_rows` reads them; the first refused row raises UsageError with its line.

    Rows before it were given out already: hand a list to `enqueue_many` if it should be all or nothing.
    """
    rows = read_rows(path_or_file, format=format, map=map, task=task, system=system, schema=schema, params=params)
    return _whole(rows, _title(path_or_file))


def read_rows(
    path_or_file: Source,
    *,
    format: Format | None = None,  # noqa: A002
    map: Mapping[str, str] | None = None,  # noqa: A002
    task: str | None = None,
    system: str | None = None,
    schema: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    params: Mapping[str, Any] | None = None,
) -> Iterator[Row | Refused]:
    """The rows of a file, each as a request or as a refusal that names its line; good rows go on after bad ones.

    The source is a path, "-" for standard input, or an open file. The format is the argument, else the suffix (.jsonl
    .ndjson .csv .txt .text); without a suffix, and for "-" and open files, it is jsonl if the first character that is
    not blank is "{", else text. JSONL whose first line has a custom_id and a body is read as openai-batch, unless
    columns are mapped. Blank lines are skipped, a byte order mark is ignored, and one line is held in memory.

    With `map` (field -> column) or `task` (a template over columns: "Classify: {text}", "{{" for a brace) a row is a
    set of columns, and those neither mapped nor used are carried, in the file's order. Otherwise its keys are those of
    Prompt and Request, and an unknown one is refused with a suggestion. `system` is a template too; it, `schema` (a
    mapping, or the path of a JSON file) and `params` apply where the row has none of its own. A text file's lines are
    tasks; their one column is `text`. In CSV an empty cell is no value, `messages`, `schema`, `tools`, `params` and
    `carried` are JSON, and `tags` and `images` a JSON list or plain (tags between commas, one image).

    A line of an OpenAI batch file says everything itself, so `map`, `task` and `system` are refused; its custom_id is
    required, and once in the file (these are held in memory).

    A mapped `task` must be text, while a template writes numbers too, and refuses a row that has nothing to write;
    whole numbers serve as custom_id, key and label.
    Raises UsageError for arguments at once, and while reading for what spoils the whole file: unreadable, compressed,
    binary, not UTF-8 at all (UTF-16 is named), an endless line, no rows, a CSV header that cannot serve.
    """
    if format is not None and format not in FORMATS:
        raise UsageError(f"format: found {found(format)}, wanted one of {', '.join(FORMATS)}")
    shape = _Shape(
        by_columns=map is not None or task is not None,
        map=_checked_map(map or {}, task, system),
        task=None if task is None else _Template.parse(task, "task"),
        system=None if system is None else _Template.parse(system, "system"),
        schema=_schema(schema),
        params=mapping_of(params, "params") or {},
    )
    if format == "openai-batch":
        shape.check_batch()
    return _rows(path_or_file, format, shape)


def _whole(rows: Iterator[Row | Refused], title: str) -> Iterator[Request]:
    for row in rows:
        if isinstance(row, Refused):
            raise UsageError(f"{title} line {row.line}: {row.reason}")
        yield Request(**{name: getattr(row, name) for name in ("work", *REQUEST_FIELDS)})


def _rows(source: Source, format_: Format | None, shape: _Shape) -> Iterator[Row | Refused]:
    title = _title(source)
    with _opened(source, title) as file:
        lines = _lines(file, title)
        # A file that is blank throughout has no first line, and no format to tell.
        first = next(((number, line) for number, line in lines if line.strip()), None)
        if first is None:
            raise UsageError(f"{title}: found no rows, wanted at least one line with something on it")
        kind = format_ or _format(source, title, first[1])
        if format_ is None and kind == "jsonl" and not shape.by_columns and _begins_a_batch(first[1]):
            kind = "openai-batch"
        reader = {"jsonl": _jsonl, "csv": _csv, "text": _text, "openai-batch": _openai_batch}[kind]
        has_rows = False
        for row in reader(chain([first], lines), shape, title):
            has_rows = True
            yield row
        if not has_rows:
            raise UsageError(f"{title}: found no rows below the header, wanted at least one")


# The formats

_Line = tuple[int, bytes]


def _jsonl(lines: Iterator[_Line], shape: _Shape | _BatchShape, title: str) -> Iterator[Row | Refused]:
    for number, line in lines:
        if line.strip():
            yield _attempt(shape, number, _json_columns, line)


def _openai_batch(lines: Iterator[_Line], shape: _Shape, title: str) -> Iterator[Row | Refused]:
    shape.check_batch(title)
    yield from _jsonl(lines, _BatchShape(shape.schema, shape.params), title)


def _text(lines: Iterator[_Line], shape: _Shape, title: str) -> Iterator[Row | Refused]:
    shape = shape.for_text()
    shape.check([TEXT_COLUMN], title)
    for number, line in lines:
        if line.strip():
            yield _attempt(shape, number, _text_columns, line)


def _csv(lines: Iterator[_Line], shape: _Shape, title: str) -> Iterator[Row | Refused]:
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
            yield _attempt(shape, start, partial(_csv_columns, header), row, are_cells=True)


def _attempt(
    shape: _Shape | _BatchShape,
    line: int,
    columns_of: Callable[[Any], Mapping[str, Any]],
    raw: object,
    *,
    are_cells: bool = False,
) -> Row | Refused:
    """The row, or why there is none."""
    try:
        return shape.row(columns_of(raw), line, are_cells=are_cells)
    except UsageError as problem:
        reason = str(problem)
    except RecursionError:
        reason = "found deeper nesting than can be read"
    return Refused(line, reason if len(reason) <= _REASON_CHARS else f"{reason[:_REASON_CHARS]}…")


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
        value = json.loads(_decoded(line).rstrip(), parse_constant=_no_constant)
    except json.JSONDecodeError as problem:
        raise UsageError(f"found broken JSON at column {problem.colno}: {problem.msg}; wanted one object") from None
    except ValueError as problem:  # a number of more digits than Python reads
        raise UsageError(f"found a number that cannot be read: {problem}") from None
    if not isinstance(value, dict):
        raise UsageError(f'found {found(value)}, wanted an object such as {{"task": …}}')
    return cast("dict[str, Any]", value)


def _no_constant(name: str) -> NoReturn:
    raise UsageError(f"found {name}, wanted a finite number; JSON has no NaN or Infinity")


# From columns to a request


@dataclass(frozen=True, slots=True)
class _Template:
    """Text with columns in it: literal pieces, each followed by a column's name or by nothing."""

    argument: str
    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, text: object, argument: str) -> _Template:
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
            literal + ("" if name is None else _written(_column(columns, name, self.argument), name))
            for literal, name in self.pieces
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """How a row becomes a request: which column is which field, what is written around them, what applies to all."""

    by_columns: bool
    map: Mapping[str, str]
    task: _Template | None
    system: _Template | None
    schema: Mapping[str, Any] | None
    params: Mapping[str, Any]
    used: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        templates = [template for template in (self.task, self.system) if template is not None]
        used = frozenset(chain(self.map.values(), *(template.columns for template in templates)))
        object.__setattr__(self, "used", used)

    def for_text(self) -> _Shape:
        """A line of text is its task unless a map or template says otherwise."""
        if self.by_columns:
            return self
        return _Shape(True, {"task": TEXT_COLUMN}, None, self.system, self.schema, self.params)

    def check_batch(self, title: str = "format openai-batch") -> None:
        """Refuse what says again, or says otherwise, what the lines of a batch file say themselves."""
        for argument, said in (("map", self.map), ("task", self.task), ("system", self.system)):
            if said:
                raise UsageError(
                    f"{title}: found {argument}, wanted none; the lines of a batch file have bodies of their own"
                )

    def check(self, header: Collection[str], title: str) -> None:
        """Refuse the whole file where every row would be refused for its columns."""
        for template in (self.task, self.system):
            for name in template.columns if template else ():
                _require(header, name, f"{title}: {cast(_Template, template).argument}")
        for target, name in self.map.items():
            _require(header, name, f"{title}: {target}")
        for name in () if self.by_columns else header:
            if name not in ROW_KEYS and name not in self.used:
                raise UsageError(f"{title}: {_not_a_key(name)}")

    def row(self, columns: Mapping[str, Any], line: int, *, are_cells: bool = False) -> Row:
        """The request that these columns ask. `are_cells` says that the values are cells of a CSV file."""
        said = self._mapped(columns) if self.by_columns else self._keyed(columns)
        if are_cells:
            said = {name: _from_cell(name, value) for name, value in said.items() if value != ""}
        if self.task is not None:
            said["task"] = self.task.fill(columns)
        if self.system is not None and said.get("system") is None:
            said["system"] = self.system.fill(columns)
        if self.schema is not None and said.get("schema") is None:
            said["schema"] = self.schema
        if self.params:
            said["params"] = {**self.params, **(mapping_of(said.get("params"), "params") or {})}
        carried = mapping_of(said.get("carried"), "carried")
        if self.by_columns:
            rest = {name: value for name, value in columns.items() if name not in self.used}
            carried = mapping_of({**rest, **(carried or {})}, "carried")
        return Row(
            work=prompt_of({name: value for name, value in said.items() if name in PROMPT_FIELDS}),
            custom_id=_name(said, "custom_id"),
            carried=carried,
            key=_name(said, "key"),
            label=_name(said, "label"),
            tags=tag_names(said.get("tags")),
            line=line,
        )

    def _mapped(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        said = {target: _column(columns, name, target) for target, name in self.map.items()}
        task = said.get("task")
        if "task" in said and not isinstance(task, str):
            name = self.map["task"]
            raise UsageError(
                f"task: found {found(task)} in column {name[:40]!r}, wanted text; "
                f"the template {{{name[:40]}}} writes numbers as text"
            )
        return said

    def _keyed(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if "body" in columns and "body" not in self.used:
            raise UsageError(unknown_key("body"))
        for name, value in columns.items():
            if name in ROW_KEYS:
                said[name] = value
            elif name not in self.used:
                raise UsageError(_not_a_key(name))
        return said


@dataclass(frozen=True, slots=True)
class _BatchShape:
    """How the lines of an OpenAI batch file become requests: they say everything but what applies to all."""

    schema: Mapping[str, Any] | None
    params: Mapping[str, Any]
    first_line_of: dict[str, int] = field(default_factory=dict[str, int])
    """custom_id -> the line that had it first."""

    def row(self, columns: Mapping[str, Any], line: int, *, are_cells: bool = False) -> Row:
        """The request of one line. A custom_id counts as met even where its line is refused for something else."""
        if "body" not in columns:
            raise UsageError('found no body, wanted {"custom_id": …, "method": "POST", "url": …, "body": {…}}')
        custom_id = short_name(columns.get("custom_id"), "custom_id")
        if custom_id is None:
            raise UsageError("custom_id: found none, wanted a name that no other line has")
        if (first := self.first_line_of.setdefault(custom_id, line)) != line:
            raise UsageError(f"custom_id: found {custom_id[:40]!r} again, which names line {first}; wanted each once")
        work: Prompt = request_of_line(columns).work
        schema = self.schema if work.schema is None and "response_format" not in work.params else work.schema
        work = replace(work, schema=schema, params={**self.params, **work.params})
        return Row(work, custom_id=custom_id, line=line)


def _not_a_key(name: str) -> str:
    return f"{unknown_key(name, ROW_KEYS)}; a column of your own needs a map or a template"


def _checked_map(given: Mapping[str, str], task: str | None, system: str | None) -> dict[str, str]:
    if not isinstance(cast(Any, given), Mapping):
        raise UsageError(f"map: found {found(given)}, wanted a mapping of fields to columns such as task=question")
    for target, column in cast(Mapping[Any, Any], given).items():
        if target not in ROW_KEYS:
            close = get_close_matches(str(target)[:40], ROW_KEYS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; fields: {', '.join(ROW_KEYS)}"
            raise UsageError(f"map: unknown field {str(target)[:40]!r}{hint}")
        if not isinstance(column, str):
            raise UsageError(f"map: found {found(column)} for {target}, wanted the name of a column")
        if (task is not None and target == "task") or (system is not None and target == "system"):
            raise UsageError(f"map: found {target} both mapped and as a template, wanted one of them")
    return dict(given)


def _schema(given: object) -> dict[str, Any] | None:
    if not isinstance(given, (str, os.PathLike)):
        return mapping_of(given, "schema")
    path = Path(cast("str | os.PathLike[str]", given))
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as problem:
        raise UsageError(f"schema: cannot read {str(path)[-80:]!r}: {_why(problem)}; wanted a JSON file") from problem
    return mapping_of(value, "schema")


def _column(columns: Mapping[str, Any], name: str, wanted_by: str) -> Any:
    _require(columns, name, wanted_by)
    return columns[name]


def _require(columns: Collection[str], name: str, wanted_by: str) -> None:
    if name not in columns:
        known = ", ".join(column[:40] for column in list(columns)[:20]) or "none"
        raise UsageError(f"{wanted_by}: no column {name[:40]!r}; columns: {known}")


def _written(value: Any, name: str) -> str:
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


def _from_cell(target: str, cell: str) -> Any:
    """What the text of a CSV cell says for a field that is not text."""
    if target in ("messages", "schema", "tools", "params", "carried"):
        return _cell_json(target, cell)
    if target in ("tags", "images") and cell.lstrip().startswith("["):
        return _cell_json(target, cell)
    if target == "tags":
        return [tag.strip() for tag in cell.split(",") if tag.strip()]
    return [cell] if target == "images" else cell


def _cell_json(target: str, cell: str) -> Any:
    try:
        return json.loads(cell, parse_constant=_no_constant)
    except ValueError as problem:
        raise UsageError(f"{target}: found {cell[:40]!r}, wanted JSON ({problem})") from None


def _name(said: Mapping[str, Any], target: str) -> str | None:
    """A name of the request's; whole numbers count as their digits, since ids often are numbers."""
    value = said.get(target)
    return short_name(str(value) if type(value) is int else value, target)


# Bytes to lines


def _title(source: object) -> str:
    if source == "-":
        return "standard input"
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(cast("str | os.PathLike[str]", source))
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "the file"


@contextmanager
def _opened(source: Source, title: str) -> Generator[IO[Any]]:
    """The file to read: one that was handed in stays open, one that is opened here is closed."""
    if source == "-":
        yield getattr(sys.stdin, "buffer", sys.stdin)
    elif isinstance(source, (str, os.PathLike)):
        try:
            file = Path(source).open("rb", buffering=_START_BYTES)  # noqa: SIM115
        except (OSError, ValueError) as problem:
            raise UsageError(f"cannot read {title[-200:]!r}: {_why(problem)}; wanted a readable file") from problem
        with file:
            yield file
    elif hasattr(source, "readline"):
        yield source
    else:
        raise UsageError(f'found {found(source)}, wanted a path, "-" or an open file')


def _lines(file: IO[Any], title: str) -> Iterator[_Line]:
    """The physical lines with their numbers, from 1, as bytes and without a byte order mark."""
    number = seen = 0
    while True:
        try:
            line: bytes | str = file.readline(MAX_LINE_BYTES + 1)
        except (OSError, ValueError) as problem:
            raise UsageError(f"cannot read {title[-200:]!r} after line {number}: {_why(problem)}") from problem
        if not line:
            return
        number += 1
        if isinstance(line, str):
            line = line.encode(errors="surrogatepass")
        if number == 1:
            _refuse_other_than_text(line, title)
            _refuse_binary(_buffered(file), title)  # where it can be seen, before any row is given out
            line = line.removeprefix(_BOM)
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"{title} line {number}: found more than {MAX_LINE_BYTES:,} bytes, wanted shorter lines")
        if seen < _START_BYTES:
            _refuse_binary(line, title)
            seen += len(line)
        yield number, line


def _refuse_other_than_text(start: bytes, title: str) -> None:
    for magic, what, way in _NOT_TEXT:
        if start.startswith(magic):
            raise UsageError(f"{title}: found {what}, wanted UTF-8 text; {way}")
    if b"\0" in start[:4]:
        raise UsageError(f"{title}: found UTF-16 text, or no text at all, wanted UTF-8; iconv -f UTF-16 -t UTF-8")


def _refuse_binary(start: bytes, title: str) -> None:
    if b"\0" in start:
        raise UsageError(f"{title}: found zero bytes, as in a binary file, wanted UTF-8 text")


def _buffered(file: IO[Any]) -> bytes:
    """What has been read ahead of a file; nothing of a pipe, which would be waited for."""
    peek = getattr(file, "peek", None)
    return peek()[:_START_BYTES] if peek is not None and file.seekable() else b""


def _format(source: Source, title: str, first: bytes) -> Format:
    suffix = Path(source).suffix.lower() if isinstance(source, (str, os.PathLike)) and source != "-" else ""
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if suffix:
        raise UsageError(f"{title}: unknown suffix {suffix!r}; wanted {' '.join(SUFFIXES)}, or the format said")
    start = first.strip()
    if start == b"[" or start.startswith(b"[{"):  # as text, each line of it would be paid for as a prompt
        raise UsageError(f"{title}: found a JSON list, wanted one object a line, or the format said; jq -c '.[]'")
    return "jsonl" if start.startswith(b"{") else "text"


def _begins_a_batch(line: bytes) -> bool:
    """Whether the first line of a file is one of an OpenAI batch file."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict) and "custom_id" in value and isinstance(cast("dict[str, Any]", value).get("body"), dict)
    )


def _why(problem: Exception) -> str:
    return (isinstance(problem, OSError) and problem.strerror) or str(problem)
