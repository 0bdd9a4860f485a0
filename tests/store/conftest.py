"""Fixtures for the tests of the store: an SQLite store in a folder of its own, without waiting for the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import apsw
import pytest

# The suite's plain assertions then say what they found, where this environment does not have the plugin yet.
pytest.register_assert_rewrite("millpond.testing.store_cases", "millpond.testing.store_scene")

from millpond.store.store import Store, open_sqlite  # noqa: E402
from millpond.testing.store_scene import MakeStore, Scene  # noqa: E402


@pytest.fixture
def make_sqlite(tmp_path: Path) -> MakeStore:
    def make(now_ms: Callable[[], int]) -> Store:
        return Store(open_sqlite(tmp_path / "queue.db", durable=False), now_ms)

    return make


@pytest.fixture
def scene(make_sqlite: MakeStore) -> Iterator[Scene]:
    scene = Scene(make_sqlite)
    yield scene
    scene.store.close()


@pytest.fixture
def sql(scene: Scene, tmp_path: Path) -> Iterator[apsw.Connection]:
    """A connection of the tests' own to the scene's file, by the same SQLite, with foreign keys kept."""
    connection = apsw.Connection(str(tmp_path / "queue.db"))
    connection.execute("PRAGMA foreign_keys = ON").fetchall()
    yield connection
    connection.close()
