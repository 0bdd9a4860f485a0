"""The SQLite store against the suite that every store must pass."""

from __future__ import annotations

import pytest

from millpond.testing.store_scene import MakeStore
from millpond.testing.store_suite import STORE_CASES, Case, run_store_case


@pytest.mark.parametrize("case", [pytest.param(case, id=f"sqlite-{name}") for name, case in STORE_CASES])
def test_store(case: Case, make_sqlite: MakeStore) -> None:
    run_store_case(case, make_sqlite)
