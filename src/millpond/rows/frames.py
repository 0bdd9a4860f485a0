"""Tables with types: Parquet files and data frames, read a batch of rows at a time; a row's line is its number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import IO, Any, Protocol, runtime_checkable

from millpond.arrow import arrow
from millpond.rows.lines import why
from millpond.rows.shape import Refused, Row, Shape, row_or_refusal
from millpond.rows.values import reader_of
from millpond.rules.errors import UsageError

BATCH_ROWS = 256
"""So many rows are held at once."""

_BUFFER_BYTES = 1 << 20
"""A column of a Parquet file is read in pieces of this size. Without it, and with pyarrow's `pre_buffer`, 200,000 rows
of one row group held 22 MB, which is all there is of them; now 1 MB."""

_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")
"""What pandas calls the column of an index that has no name."""


@runtime_checkable
class Frame(Protocol):
    """Anything that speaks Arrow's stream interface: frames of pandas and polars, tables and readers of pyarrow."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


def parquet_rows(file: IO[Any], shape: Shape, title: str) -> Iterator[Row | Refused]:
    """The rows of a Parquet file that is open for reading."""
    parquet = arrow("pyarrow.parquet")
    if not file.seekable():
        raise UsageError(f"{title}: found a stream, wanted a file: Parquet is read from its end")
    if not isinstance(file.read(0), bytes):
        raise UsageError(f"{title}: found a file that is open as text, wanted it open in binary mode")
    try:
        whole = parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        batches = whole.iter_batches(batch_size=BATCH_ROWS, use_threads=False)
    except _refusals() as problem:
        raise UsageError(f"{title}: found no Parquet file that can be read: {_first_line(problem)}") from problem
    yield from _rows(batches, whole.schema_arrow, shape, title)


def frame_rows(frame: Frame, shape: Shape, title: str) -> Iterator[Row | Refused]:
    """The rows of a data frame."""
    try:
        reader = arrow().RecordBatchReader.from_stream(frame)
    except _refusals() as problem:
        raise UsageError(f"{title}: found what is no table of typed columns: {_first_line(problem)}") from problem
    pieces = (batch.slice(at, BATCH_ROWS) for batch in reader for at in range(0, batch.num_rows, BATCH_ROWS))
    yield from _rows(pieces, reader.schema, shape, title)


def _rows(batches: Iterator[Any], schema: Any, shape: Shape, title: str) -> Iterator[Row | Refused]:
    wanted = {at: name for at, name in enumerate(schema.names) if not _UNNAMED_INDEX.fullmatch(name)}
    header = list(wanted.values())
    if twice := next((name for at, name in enumerate(header) if name in header[:at]), None):
        raise UsageError(f"{title}: found two columns named {twice[:40]!r}, wanted every column once")
    shape.check(header, title)
    try:
        readers = {at: reader_of(schema.field(at), name) for at, name in wanted.items()}
    except UsageError as refusal:
        raise UsageError(f"{title}: {refusal}") from None
    line = 0
    while (batch := _next(batches, title, line)) is not None:
        columns = [reader(batch.column(at)) for at, reader in readers.items()]
        for values in zip(*columns, strict=True) if columns else ((),) * batch.num_rows:
            line += 1
            yield row_or_refusal(shape, line, dict, zip(header, values, strict=True), are_cells=True)


def _next(batches: Iterator[Any], title: str, line: int) -> Any:
    try:
        return next(batches, None)
    except _refusals() as problem:
        raise UsageError(f"cannot read {title[-200:]!r} after row {line:,}: {_first_line(problem)}") from problem


def _refusals() -> tuple[type[Exception], ...]:
    """What pyarrow, and the frames that hand themselves to it, raise for what they cannot read."""
    return (OSError, ValueError, TypeError, OverflowError, arrow().ArrowException)


def _first_line(problem: Exception) -> str:
    return next(iter(why(problem).splitlines()), type(problem).__name__)[:200]
