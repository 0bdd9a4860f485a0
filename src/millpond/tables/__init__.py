"""Results as the rows of a table with typed columns: spooled once, then written as CSV, Parquet or a data frame."""

from __future__ import annotations

from millpond.tables.columnar import results_table, write_parquet
from millpond.tables.spool import Column, Table, spooled

__all__ = ["Column", "Table", "results_table", "spooled", "write_parquet"]
