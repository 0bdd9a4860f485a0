"""No lane sees a request that the ledger does not have, in any test; and settings that hold nothing of this machine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apsw
import pytest
from settings_here import Load

from millpond.drill.faultlane import FaultLane
from millpond.settings import Settings, load
from millpond.store.store import Store

# The tests start the program some 1,500 times. Where it may not keep what it compiled, half of each start is compiling.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# They commit far more often, and what a disk keeps is the matter of tests/power alone, which has a disk of its own. So
# files live in memory, on systems that have it and have enough of it; `--basetemp` puts them elsewhere.
MEMORY, ROOM_BYTES = Path("/dev/shm"), 2 << 30
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= ROOM_BYTES:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.fixture(autouse=True)
def requests_seen_are_ledger_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After each test that opened a store: the POSTs that the fault lanes saw from it are at most its ledger rows.

    Tests that call a lane without a store prove other things and are left out.
    """
    lanes: list[FaultLane] = []
    paths: set[str] = set()
    make_lane, make_store = FaultLane.__init__, Store.__init__

    def lane_made(self: FaultLane, *args: Any, **kwargs: Any) -> None:
        make_lane(self, *args, **kwargs)
        lanes.append(self)

    def store_made(self: Store, *args: Any, **kwargs: Any) -> None:
        make_store(self, *args, **kwargs)
        paths.add(str(self.db.path))  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(FaultLane, "__init__", lane_made)
    monkeypatch.setattr(Store, "__init__", store_made)
    yield
    posts = sum(lane.accepted() for lane in lanes)
    if paths and posts:
        rows = sum(_ledger_rows(path) for path in paths)
        assert posts <= rows, f"lanes saw {posts} requests, the ledger has {rows} rows"


def _ledger_rows(path: str) -> int:
    database = apsw.Connection(path, flags=apsw.SQLITE_OPEN_READONLY)
    try:
        return database.execute("SELECT count(*) FROM attempt").fetchall()[0][0]
    finally:
        database.close()


@pytest.fixture(autouse=True, scope="session")
def no_spend_book_of_this_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not even by what many tests share, which is made before any of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        yield


@pytest.fixture(autouse=True)
def spend_books_are_the_tests_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the spend book of whoever runs it, in this process or in one that it starts."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that commands are given in."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def loaded(tmp_path: Path, folder: Path) -> Load:
    """Write ./millpond.yaml and load it, with nothing of this machine's environment."""

    def load_here(text: str | None = None, *, env: Mapping[str, str] | None = None, **given: Any) -> Settings:
        if text is not None:
            (folder / "millpond.yaml").write_text(text, encoding="utf-8")
        places = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data")}
        return load(env={**places, **(env or {})}, cwd=folder, **given)

    return load_here
