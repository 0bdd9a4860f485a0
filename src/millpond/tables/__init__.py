"""Results as the rows of a table with typed columns: read once, then written as CSV, Parquet or a data frame."""

from __future__ import annotations

from millpond.tables.columnar import results_table, write_parquet
from millpond.tables.csv_file import write_csv
from millpond.tables.table import Column, Table, as_table

__all__ = ["Column", "Table", "as_table", "results_table", "write_csv", "write_parquet"]
