"""Results as a table: which columns there are, and of which type, is known after the last of them.

First the carried columns under their own names, then the properties of answers that are objects, then ours. A name that
is taken gets a prefix: `carried.text`, `data.text`. Properties come from the schemas that were asked, so that one which
no answer has is a column all the same; without a schema they come from the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from tempfile import TemporaryFile
from typing import IO, Any, Literal, cast

from millpond.rules.job import Prompt, Result
from millpond.store.bodies import load_work
from millpond.store.store import Store
from millpond.tables.kinds import FLOAT, INT, JSON, NULL, TEXT, Kind, both, kind_of_column, of_value, properties

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
    "error_code": TEXT,
    "error_message": TEXT,
}
"""What every result has: a Result without its carried columns, and its error in two."""

MAX_DATA_COLUMNS = 500
"""So many properties of answers get columns. Answers whose keys are data (a count by word) would have any number."""

MAX_SHAPES = 1_000
"""For so many shapes of answers the schema is looked up; what has yet another shape adds no column."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_Shape = tuple[tuple[str, str], ...]
"""Names of the properties of an answer, each with the type of its value."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its name in the table, its kind, and where its values stand in a result."""

    name: str
    kind: Kind
    place: Literal["carried", "data", "own"]
    key: str


@dataclass(frozen=True, slots=True)
class Table:
    """Results as rows, in their order. Lone surrogates, which neither CSV nor Arrow can hold, are U+FFFD."""

    columns: tuple[Column, ...]
    rows_count: int
    _lines: IO[str]

    def rows(self) -> Iterator[list[Any]]:
        """The values of each row in the order of the columns, as JSON has them."""
        self._lines.seek(0)
        for line in self._lines:
            row: dict[str, Any] = json.loads(line)
            data = row["own"]["data"]
            row["data"] = data if isinstance(data, dict) else {}
            yield [_typed(row[column.place].get(column.key), column.kind) for column in self.columns]


def _typed(value: Any, kind: Kind) -> Any:
    """The value; a whole number of a column of such, which JSON may have as 5.0, without its fraction."""
    return int(value) if kind == INT and isinstance(value, float) else value


@contextmanager
def as_table(store: Store, results: Iterable[Result]) -> Generator[Table]:
    """The results as a table, for as long as the context lasts. Held in memory are its columns, and one result."""
    found = _Found(store)
    with TemporaryFile("w+", encoding="utf-8", newline="\n", prefix="millpond-") as lines:
        count = 0
        for result in results:
            line = _line(result)
            lines.write(line)
            found.take(result.job_id, json.loads(line))
            count += 1
        yield Table(tuple(found.columns()), count, lines)


def _line(result: Result) -> str:
    own: dict[str, Any] = {name: getattr(result, name) for name in OWN if not name.startswith("error_")}
    own["cost"] = _number(result.cost)
    error = result.error
    own |= {"error_code": error.code if error else None, "error_message": error.message if error else None}
    text = json.dumps({"carried": result.carried or {}, "own": own}, ensure_ascii=False)
    return (text if text.isascii() else _SURROGATE.sub("\ufffd", text)) + "\n"


def _number(cost: Decimal | None) -> int | float | None:
    if cost is None:
        return None
    return int(cost) if cost == cost.to_integral_value() else float(cost)


@dataclass(slots=True)
class _Found:
    """What has been found out about the columns so far."""

    store: Store
    carried: dict[str, Kind] = field(default_factory=dict[str, Kind])
    seen: dict[str, Kind] = field(default_factory=dict[str, Kind])
    """Property -> what its values have shown."""
    said: dict[str, Kind] = field(default_factory=dict[str, Kind])
    """Property -> what the schemas say of it."""
    shapes: set[_Shape] = field(default_factory=set[_Shape])

    def take(self, job_id: int, row: Mapping[str, Any]) -> None:
        """Look at one row."""
        for name, value in row["carried"].items():
            self.carried[name] = both(self.carried.get(name, NULL), of_value(value))
        data: Any = row["own"]["data"]
        if not isinstance(data, dict):
            return
        answer = cast("dict[str, Any]", data)
        shape = tuple((name, type(value).__name__) for name, value in answer.items())
        if shape not in self.shapes and len(self.shapes) < MAX_SHAPES:
            self.shapes.add(shape)
            self._learn(job_id, answer)
        for name, value in answer.items():
            if name in self.seen:
                self.seen[name] = both(self.seen[name], of_value(value))

    def _learn(self, job_id: int, answer: Mapping[str, Any]) -> None:
        """Add the columns of an answer of this shape.

        Its schema is looked up once a shape, not once a row: the results of a submission mostly share one, and the
        stored work is read whole, with its pictures.
        """
        said = properties(self._schema(job_id))
        for name in said if said is not None else answer:
            if name in self.seen or len(self.seen) < MAX_DATA_COLUMNS:
                self.seen.setdefault(name, NULL)
                if said is not None:
                    self.said[name] = both(self.said.get(name, NULL), said[name])

    def _schema(self, job_id: int) -> Mapping[str, Any] | None:
        body = self.store.payload(job_id)
        work = load_work(body) if body is not None else None
        return work.schema if isinstance(work, Prompt) else None

    def columns(self) -> Iterator[Column]:
        """All columns in their order, each with a name that no other has."""
        taken = {*OWN}
        for place, kinds in (("carried", self.carried), ("data", self.seen)):
            for key, seen in kinds.items():
                name = key
                while name in taken or (name != key and name in kinds):
                    name = f"{place}.{name}"
                taken.add(name)
                said = self.said.get(key) if place == "data" else None
                yield Column(name, kind_of_column(said, seen), cast("Any", place), key)
        for name, kind in OWN.items():
            yield Column(name, kind, "own", name)
