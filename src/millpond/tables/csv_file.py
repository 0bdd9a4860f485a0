"""A table as CSV: a header, and a row a result, whose cells are text as it is and everything else as JSON."""

from __future__ import annotations

import csv
from typing import IO, Any

from millpond.store.bodies import dump_seen
from millpond.tables.table import Table


def write_csv(table: Table, file: IO[str]) -> None:
    """Write a table as CSV, a row at a time. The file ends its lines as it is told: open it with `newline=""`."""
    lines = csv.writer(file)
    lines.writerow(column.name for column in table.columns)
    lines.writerows([_cell(value) for value in row] for row in table.rows())


def _cell(value: Any) -> str:
    """A cell: text as it is, nothing for unknown, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else dump_seen(value)
