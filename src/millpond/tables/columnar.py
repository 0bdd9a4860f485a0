"""A table in Arrow's types: written as a Parquet file, or held as a pyarrow Table for pandas and polars."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import IO, Any, Protocol

from millpond.arrow import arrow
from millpond.rules.job import Result
from millpond.store.bodies import dump_seen
from millpond.store.store import Store
from millpond.tables.kinds import SURROGATE, Kind, ListKind, ObjectKind, ScalarKind
from millpond.tables.table import Table, as_table

CHUNK_ROWS = 10_000
"""So many rows make a row group of a Parquet file, if they are not too long."""

CHUNK_CHARS = 32_000_000
"""So many characters of texts make one, however few rows that are: a chunk is held in memory."""


class HasResults(Protocol):
    """What is asked of a Queue here: its results, and the store of the work behind them."""

    @property
    def store(self) -> Store: ...

    def results(
        self,
        submission: int | str | None = None,
        *,
        failed: bool = False,
        since: str | datetime | timedelta | None = None,
    ) -> Iterable[Result]: ...


def results_table(
    queue: HasResults,
    submission: int | str | None = None,
    *,
    failed: bool = False,
    since: str | datetime | timedelta | None = None,
) -> Any:
    """The results that `queue.results` gives, as a pyarrow Table: `.to_pandas()`, `polars.from_arrow(…)`.

    Carried columns come first, then the properties of answers that are objects, typed by the schema that was asked,
    then the fields of a Result (`data` as JSON text, `error` as `error_code` and `error_message`). Raises UsageError
    without pyarrow, and as `results` does.
    """
    pyarrow = arrow()
    with as_table(queue.store, queue.results(submission, failed=failed, since=since)) as table:
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
    match kind:
        case ListKind(item):
            return pyarrow.list_(_type(item))
        case ObjectKind(fields):
            return pyarrow.struct([(name, _type(field)) for name, field in fields.items()])
        case ScalarKind("bool"):
            return pyarrow.bool_()
        case ScalarKind("int" | "long"):
            return pyarrow.int64()
        case ScalarKind("float" | "whole"):
            return pyarrow.float64()
        case ScalarKind():  # texts, JSON as text, and a column in which nothing is known
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
    match kind:
        case ListKind(item):
            return [_stored(one, item) for one in value]
        case ObjectKind(fields):
            return {name: _stored(value.get(name), field) for name, field in fields.items()}
        case ScalarKind("json"):
            return dump_seen(value)
        case ScalarKind("int"):
            return int(value)
        case ScalarKind("text"):
            return SURROGATE.sub("\ufffd", value)
        case ScalarKind():
            return value
