"""One source of rows: its lines, its works, and what of it is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import pytest

from millpond.rows import Refused, read, read_rows
from millpond.rules.errors import UsageError


def lines_of(*rows: Mapping[str, Any]) -> io.BytesIO:
    return io.BytesIO("".join(json.dumps(row) + "\n" for row in rows).encode())


def works(source: Any, **options: Any) -> list[Any]:
    return [request.work for request in read(source, **options)]


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        list(read(source, **options))
    return str(caught.value)


def refused(source: Any, **options: Any) -> dict[int, str]:
    return {row.line: row.reason for row in read_rows(source, **options) if isinstance(row, Refused)}
