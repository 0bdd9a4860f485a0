"""A mill for each test of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mill_of_one import Mill


@pytest.fixture
def mill(tmp_path: Path) -> Iterator[Mill]:
    mill = Mill(tmp_path)
    yield mill
    assert mill.store.miscounted() == {}
    mill.store.close()
