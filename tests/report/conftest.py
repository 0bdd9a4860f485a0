"""The scene that reports are read from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.store.store import Store, open_sqlite
from millpond.testing.store_scene import Scene


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """An empty store on a clock that stands still."""
    opened: list[Store] = []

    def make(now_ms: Callable[[], int]) -> Store:
        opened.append(Store(open_sqlite(tmp_path / "queue.db"), now_ms))
        return opened[0]

    yield Scene(make)
    opened[0].close()
