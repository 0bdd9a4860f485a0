"""Files and frames of rows become requests: bytes to lines, lines to columns, columns to what is asked."""

from __future__ import annotations

from millpond.rows.formats import Format
from millpond.rows.frames import Frame
from millpond.rows.lines import Source
from millpond.rows.reading import read, read_rows
from millpond.rows.shape import Refused, Row

__all__ = ["Format", "Frame", "Refused", "Row", "Source", "read", "read_rows"]
