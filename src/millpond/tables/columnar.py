"""A table in Arrow's types: written as a Parquet file, or held as a pyarrow Table for pandas and polars."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from millpond.arrow import arrow
from millpond.store.bodies import dump_seen
from millpond.tables.kinds import NULL, Kind
from millpond.tables.spool import Table, spooled

if TYPE_CHECKING:
    from millpond.queue import Queue, When

CHUNK_ROWS = 10_000
"""So many rows make a row group of a Parquet file, if they are not too long."""

CHUNK_CHARS = 32_000_000
"""So many characters of texts make one, however few rows that are: a chunk is held in memory."""


def results_table(
    queue: Queue, submission: int | str | None = None, *, failed: bool = False, since: When | None = None
) -> Any:
    """The results that `queue.results` gives, as a pyarrow Table: `.to_pandas()`, `polars.from_arrow(…)`.

    Carried columns come first, then the properties of answers that are objects, typed by the schema that was asked,
    then the fields of a Result (`data` as JSON text, `error` as `error_code` and `error_message`). Raises UsageError
    without pyarrow, and as `results` does.
    """
    pyarrow = arrow()
    with spooled(queue, queue.results(submission, failed=failed, since=since)) as table:
        return pyarrow.Table.from_batches(list(_batches(table)), _schema(table))


def write_parquet(table: Table, file: IO[bytes]) -> None:
    """Write a table as a Parquet file, a chunk of rows at a time. Raises UsageError without pyarrow."""
    with arrow("pyarrow.parquet").ParquetWriter(file, _schema(table)) as writer:
        for batch in _batches(table):
            writer.write_batch(batch)


def _schema(table: Table) -> Any:
    pyarrow = arrow()
    return pyarrow.schema([(column.name, _type(column.kind)) for column in table.columns])


def _type(kind: Kind) -> Any:
    pyarrow = arrow()
    match kind.name:
        case "bool":
            return pyarrow.bool_()
        case "int" | "long":
            return pyarrow.int64()
        case "float" | "whole":
            return pyarrow.float64()
        case "list":
            return pyarrow.list_(_type(kind.item or NULL))
        case "object":
            return pyarrow.struct([(name, _type(field)) for name, field in (kind.fields or {}).items()])
        case "text" | "json" | "null":  # a column in which nothing is known is one of texts
            return pyarrow.string()


def _batches(table: Table) -> Iterator[Any]:
    pyarrow, schema = arrow(), _schema(table)
    for chunk in _chunks(table):
        columns = zip(*chunk, strict=True)
        arrays = [
            pyarrow.array([_stored(value, column.kind) for value in values], type=field.type)
            for column, field, values in zip(table.columns, schema, columns, strict=True)
        ]
        yield pyarrow.record_batch(arrays, schema=schema)


def _chunks(table: Table) -> Iterator[list[list[Any]]]:
    chunk: list[list[Any]] = []
    chars = 0
    for row in table.rows():
        chunk.append(row)
        chars += sum(len(value) for value in row if isinstance(value, str))
        if len(chunk) == CHUNK_ROWS or chars >= CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


def _stored(value: Any, kind: Kind) -> Any:
    """A value in the form that its type takes: JSON as text, everything else as it is."""
    if value is None:
        return None
    match kind.name:
        case "json":
            return dump_seen(value)
        case "list":
            return [_stored(item, kind.item or NULL) for item in value]
        case "object":
            return {name: _stored(value.get(name), field) for name, field in (kind.fields or {}).items()}
        case "int":
            return int(value)
        case _:
            return value
