"""Results as a table: which columns there are, and of which type, is known after the last of them.

First the carried columns under their own names, then the properties of answers that are objects, then ours. A name that
is taken gets a prefix: `carried.text`, `data.text`. Properties come from all the schemas that were asked, so that one
which no answer has is a column all the same, in whatever order the rows come; without a schema they come from the
answers.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, cast

from millpond.db.tape import Tape
from millpond.rules.job import Result
from millpond.store.bodies import dump
from millpond.store.store import Store
from millpond.tables.kinds import (
    BOOL,
    FLOAT,
    INT,
    JSON,
    NULL,
    SURROGATE,
    TEXT,
    Kind,
    both,
    kind_of_column,
    of_value,
    properties,
)

OWN: Mapping[str, Kind] = {
    "request_id": INT,
    "job_id": INT,
    "custom_id": TEXT,
    "position": INT,
    "disposition": TEXT,
    "state": TEXT,
    "text": TEXT,
    "data": JSON,
    "finish_reason": TEXT,
    "model": TEXT,
    "lane": TEXT,
    "tokens_in": INT,
    "tokens_out": INT,
    "cost": FLOAT,
    "cost_is_estimate": BOOL,
    "error_code": TEXT,
    "error_message": TEXT,
}
"""What every result has: a Result without its carried columns, and its error in two."""

MAX_DATA_COLUMNS = 500
"""So many properties of answers get columns. Answers whose keys are data (a count by word) would have any number."""

MAX_SCHEMAS = 500
"""Of so many schemas the properties are columns; rows that were asked by yet another add none."""

MAX_NAMES = 10_000
"""The values of so many properties are followed, since one that has no column yet may be listed by a later schema."""

_NO_SCHEMA = ""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in the table, its kind, and where its values stand in a result."""

    name: str
    kind: Kind
    place: Literal["carried", "data", "own"]
    key: str


@dataclass(frozen=True, slots=True)
class Table:
    """Results as rows, in their order.

    Half a surrogate pair, which neither CSV nor Arrow can hold, is U+FFFD in the names of columns and in texts.
    """

    columns: tuple[Column, ...]
    rows_count: int
    _lines: Tape[str]

    def rows(self) -> Iterator[list[Any]]:
        """The values of each row in the order of the columns, as JSON has them."""
        for line in self._lines:
            row: dict[str, Any] = json.loads(line)
            data = row["own"]["data"]
            row["data"] = data if isinstance(data, dict) else {}
            yield [_typed(row[column.place].get(column.key), column.kind) for column in self.columns]


def _typed(value: Any, kind: Kind) -> Any:
    """The value; a whole number of a column of such, which JSON may have as 5.0, without its fraction."""
    if isinstance(value, str) and kind == TEXT:
        return SURROGATE.sub("\ufffd", value)
    return int(value) if kind == INT and isinstance(value, float) else value


@contextmanager
def as_table(store: Store, results: Iterable[Result]) -> Generator[Table]:
    """The results as a table, for as long as the context lasts. Held in memory are its columns, and one result."""
    found = _Found(store)
    with Tape[str]() as lines:
        count = 0
        for result in results:
            line = _line(result)
            lines.append(line)
            found.take(result.job_id, json.loads(line))
            count += 1
        yield Table(tuple(found.columns()), count, lines)


def _line(result: Result) -> str:
    own: dict[str, Any] = {name: getattr(result, name) for name in OWN if not name.startswith("error_")}
    own["cost"] = _number(result.cost)
    error = result.error
    own |= {"error_code": error.code if error else None, "error_message": error.message if error else None}
    return json.dumps({"carried": result.carried or {}, "own": own})


def _number(cost: Decimal | None) -> int | float | None:
    if cost is None:
        return None
    return int(cost) if cost == cost.to_integral_value() else float(cost)


@dataclass(slots=True)
class _Found:
    """What has been found out about the columns so far."""

    store: Store
    carried: dict[str, Kind] = field(default_factory=dict[str, Kind])
    met: dict[str, Kind] = field(default_factory=dict[str, Kind])
    """Property -> what its values have shown, whether it has a column or may yet get one."""
    said: dict[str, Kind | None] = field(default_factory=dict[str, Kind | None])
    """Property that has a column -> what the schemas say of it, if any does."""
    schemas: dict[str, bool] = field(default_factory=dict[str, bool])
    """Schemas that were asked, as JSON -> whether they list properties."""

    def take(self, job_id: int, row: Mapping[str, Any]) -> None:
        """Look at one row."""
        for name, value in row["carried"].items():
            self.carried[name] = both(self.carried.get(name, NULL), of_value(value))
        data: Any = row["own"]["data"]
        if not isinstance(data, dict):
            return
        answer = cast("dict[str, Any]", data)
        for name, value in answer.items():
            if name in self.met or len(self.met) < MAX_NAMES:
                self.met[name] = both(self.met.get(name, NULL), of_value(value))
        schema = self._schema(job_id)
        if schema not in self.schemas and len(self.schemas) < MAX_SCHEMAS:
            self._learn(schema)
        if self.schemas.get(schema) is False:
            for name in answer:
                self._is_column(name)

    def _learn(self, schema: str) -> None:
        """Add the columns of a schema."""
        listed = properties(json.loads(schema)) if schema != _NO_SCHEMA else None
        self.schemas[schema] = listed is not None
        for name, kind in (listed or {}).items():
            if self._is_column(name):
                self.said[name] = both(self.said[name] or NULL, kind)

    def _is_column(self, name: str) -> bool:
        """Whether a property has a column; it gets one while there is room."""
        if name not in self.said and len(self.said) < MAX_DATA_COLUMNS:
            self.said[name] = None
        return name in self.said

    def _kind(self, name: str) -> Kind:
        """The kind of a property's column; where its first values may have gone unseen JSON, which holds all."""
        return kind_of_column(self.said[name], self.met.get(name, JSON if len(self.met) >= MAX_NAMES else NULL))

    def _schema(self, job_id: int) -> str:
        """The schema that a job was asked by, as JSON."""
        body = self.store.payload(job_id)
        if body is None or '"schema":{' not in body:  # most bodies need not be parsed: they may hold pictures
            return _NO_SCHEMA
        schema = json.loads(body).get("prompt", {}).get("schema")
        return dump(schema) if schema else _NO_SCHEMA

    def columns(self) -> Iterator[Column]:
        """All columns in their order, each with a name that no other has."""
        taken = {*OWN}
        carried = {name: kind_of_column(None, seen) for name, seen in self.carried.items()}
        for place, kinds in (("carried", carried), ("data", {name: self._kind(name) for name in self.said})):
            for key, kind in kinds.items():
                name = SURROGATE.sub("\ufffd", key)
                while name in taken or (name != key and name in kinds):
                    name = f"{place}.{name}"
                taken.add(name)
                yield Column(name, kind, cast("Any", place), key)
        for name, kind in OWN.items():
            yield Column(name, kind, "own", name)
