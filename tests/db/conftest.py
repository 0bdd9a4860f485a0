"""Fixtures for the tests of `db`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from item_database import open_items

from millpond.db.sqlite import SqliteDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@pytest.fixture
def database(path: Path) -> Iterator[SqliteDatabase]:
    database = open_items(path)
    yield database
    database.close()


@pytest.fixture
def trace() -> Iterator[list[tuple[int, str]]]:
    """Every statement that connections opened from now on run, as (connection, SQL)."""
    seen: list[tuple[int, str]] = []
    numbers: dict[int, int] = {}

    def hook(connection: apsw.Connection) -> None:
        number = numbers.setdefault(id(connection), len(numbers))

        def note(cursor: Any, sql: str, bindings: Any) -> bool:
            seen.append((number, sql))
            return True

        connection.exec_trace = note

    apsw.connection_hooks.append(hook)
    yield seen
    apsw.connection_hooks.remove(hook)
